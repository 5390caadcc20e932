"""What every test may count on.

- async tests simply run, on asyncio
- `size(short, long)` is the short number here and the long one under --long (./dev chaos)
- `@pytest.mark.long` is for what runs under --long only
- a test that hangs ends its run after `timeout` of pyproject.toml, under --long after LONGEST
- with CI=true a skipped test is a failed test
- `--store` sends what the rooms' tests make on files to a server: see tests/elsewhere.py
- what tests write lies in memory where there is room, so that a thousand databases do not wait for one disk
"""

import contextlib
import gc
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

from tests import elsewhere
from tests import postgres_server as postgres

T = TypeVar("T")
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

hypothesis.settings.register_profile("redrive", deadline=None, print_blob=True)
hypothesis.settings.load_profile("redrive")

MEMORY = Path("/dev/shm")
LONGEST = 3600
"""Seconds for one test under --long, where the loops are some fifty times as long."""
ROOM = 4 * 1024**3
"""Bytes: several times what a run of all tests holds at once."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the chaos tests at full size")
    parser.addoption("--store", choices=sorted(elsewhere.SERVERS), help="run the rooms' tests on this instead of files")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Where `tmp_path` lies. A commit syncs there as anywhere; what a power cut does to a disk is for tests/chaos.

    And Ctrl-C reaches the processes that tests start, also where a shell put the whole run into the background.
    Tests at full size get their longer time limit here, before pytest-timeout reads it.
    """
    if config.getoption("--long") and config.getoption("--timeout") is None:
        config.option.timeout = LONGEST
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM
    if roomy and not config.getoption("--long"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if (kind := config.getoption("--store")) and not hasattr(config, "workerinput"):
        _start(config, kind)


def _start(config: pytest.Config, kind: str) -> None:
    """Start the one server of this run. The processes of xdist find its URL in their environment."""
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    os.environ[elsewhere.SERVER] = stack.enter_context(elsewhere.SERVERS[kind]())


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> Callable[[T, T], T]:
    """size(100, 5_000): 100 in the test command, 5,000 in the long run."""
    full: bool = pytestconfig.getoption("--long")
    return lambda short, long: long if full else short


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A PostgreSQL server of this run's own. ./dev test installs Debian's where it may."""
    if postgres.binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres.started() as server:
        yield server


@pytest.fixture
def preset(request: pytest.FixtureRequest) -> Any:
    """The presets that a test asks for with `@pytest.mark.preset("seven_agents")`; none for the others."""
    marker = request.node.get_closest_marker("preset")
    return marker.args if marker is not None else None


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


APART = pytest.StashKey[dict[str, str]]()
"""With --store: the tests that were left out, and why."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        _leave_for_long(config, items)
    if config.getoption("--store"):
        _leave_for_files(config, items)
    # tests in a browser wait more than they compute: they begin first, beside tests that compute
    items.sort(key=lambda item: "browser" not in item.path.parts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is collected goes away again: a fifth of this time went to the garbage collector."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays until the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def _leave_for_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are marked `long`."""
    later = [item for item in items if item.get_closest_marker("long")]
    if later:
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=later)


def _leave_for_files(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --store: leave out the tests that need the file itself. The run ends with their names and reasons."""
    marked = [(item, marker) for item in items if (marker := item.get_closest_marker("file")) is not None]
    if not marked:
        return
    said = {item.nodeid: str(marker.args[0]) for item, marker in marked}
    items[:] = [item for item in items if item.nodeid not in said]
    config.hook.pytest_deselected(items=[item for item, _ in marked])
    config.stash[APART] = said
    if hasattr(config, "workeroutput"):
        config.workeroutput["apart"] = said


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of xdist says what it left out: all of them the same."""
    node.config.stash[APART] = getattr(node, "workeroutput", {}).get("apart", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    said = config.stash.get(APART, {})
    if said:
        terminalreporter.section(f"{len(said)} tests need the SQLite file itself and were not run")
        for name, why in sorted(said.items()):
            terminalreporter.write_line(f"{name}: {why}")
