"""A queue on a real file with a clock that is told the time. Nothing of the machine's own settings is seen."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import redrive
from tests import elsewhere
from tests.support import FakeClock

APART = pytest.StashKey[dict[str, str]]()
"""With --store: the tests that were left out, and why."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --store: leave out the tests that need the file itself. The run ends with their names and reasons."""
    if not config.getoption("--store"):
        return
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


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDRIVE_URL", "REDRIVE_CONFIG", "REDRIVE_CONCURRENCY", "REDRIVE_POLL", "REDRIVE_PRESET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def stores_elsewhere(clean_surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With --store: a path names a namespace of a server, here and in the processes that a test starts."""
    if elsewhere.SERVER not in os.environ:
        yield
        return
    monkeypatch.setattr(elsewhere.opening, "_file", elsewhere.store)
    monkeypatch.setattr(sys, "path", [str(elsewhere.SITE), *sys.path])
    for folder in (elsewhere.SITE.parents[1], elsewhere.SITE):
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    yield
    elsewhere.forget(tmp_path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def rd(database: Path, clock: FakeClock, preset: Any) -> AsyncIterator[redrive.Redrive]:
    """Time stands still: `rd.drain()` runs what is due, `clock.advance()` makes more due."""
    async with redrive.Redrive(database, clock=clock, preset=preset) as rd:
        yield rd


@pytest.fixture
async def live(database: Path, preset: Any) -> AsyncIterator[redrive.Redrive]:
    """On the system's clock, for tests with workers that run by themselves."""
    async with redrive.Redrive(database, preset=preset) as rd:
        yield rd
