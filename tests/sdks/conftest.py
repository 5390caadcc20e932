"""Exceptions that the real libraries raise. They need those libraries: `./dev test tests/sdks` runs them twice.

It runs them with the pinned libraries (in .venv-sdks) and with the newest (in .venv-sdks-newest).
Elsewhere these files are not collected at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

SDKS = os.environ.get("REDRIVE_SDKS", "")
"""The group of libraries that is installed."""
collect_ignore = [] if SDKS == "sdks-newest" else ["test_alone.py"]

if SDKS:
    from tests.sdks.answers import Server

    ABANDONED = r"Async\w*Stream|\w+ByteStream|Response|SSEDecoder"
    """Whose generators a client leaves half read when an error comes in a stream: openai raises out of its loop, closes
    the response, but none of the generators that read it. The garbage collector ends them, now and then one of the
    chain while another is being ended, and Python then says that it is already executing. None of them is redrive's,
    nor does redrive read any: the task's own function began the stream and let go of it."""

    def pytest_configure(config: pytest.Config) -> None:
        said = rf"Exception ignored in. <async_generator object ({ABANDONED})\."
        config.addinivalue_line("filterwarnings", f"ignore:{said}:pytest.PytestUnraisableExceptionWarning")

    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"  # else a proxy is asked for our own server
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else importing litellm goes to the network

    @pytest.fixture(scope="session")
    def server() -> Iterator[Server]:
        with Server() as running:
            yield running
else:
    collect_ignore_glob = ["test_*.py"]
