"""Runs when a Python begins that a test started: its stores go where those of the test go."""

import os

from tests import elsewhere

if elsewhere.SERVER in os.environ:
    elsewhere.opening._file = elsewhere.store
