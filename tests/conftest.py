"""What every test may count on.

- async tests simply run, on asyncio
- `size(short, long)` is the short number here and the long one under --long (./dev chaos)
- with CI=true a skipped test is a failed test
- what tests write lies in memory where there is room, so that a thousand databases do not wait for one disk
"""

import os
import shutil
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

T = TypeVar("T")
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

hypothesis.settings.register_profile("redrive", deadline=None, print_blob=True)
hypothesis.settings.load_profile("redrive")

MEMORY = Path("/dev/shm")
ROOM = 4 * 1024**3
"""Bytes: several times what a run of all tests holds at once."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the chaos tests at full size")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Where `tmp_path` lies. A commit syncs there as anywhere; what a power cut does to a disk is for tests/chaos.

    And Ctrl-C reaches the processes that tests start, also where a shell put the whole run into the background.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM
    if roomy and not config.getoption("--long"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> Callable[[T, T], T]:
    """size(100, 5_000): 100 in the test command, 5,000 in the long run."""
    full: bool = pytestconfig.getoption("--long")
    return lambda short, long: long if full else short


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _no_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _no_skip((yield))


def _no_skip(report: Report) -> Report:
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"With CI=true nothing may be skipped, but this was. {why}"
    return report
