"""Exceptions that the real libraries raise. They need those libraries: `./dev test tests/sdks` runs them in .venv-sdks.

Elsewhere these files are not collected at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

if os.environ.get("REDRIVE_SDKS") == "1":
    from tests.sdks.answers import Server

    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"  # else a proxy is asked for our own server
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else importing litellm goes to the network

    @pytest.fixture(scope="session")
    def server() -> Iterator[Server]:
        with Server() as running:
            yield running
else:
    collect_ignore_glob = ["test_*.py"]
