"""What the tests of this room may count on."""

from tests.queue_fixtures import *  # noqa: F403
