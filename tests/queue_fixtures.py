"""Fixtures of the rooms: a queue or a store on a real file, with a clock that is told the time.

Each room's conftest imports all of them. Nothing of the machine's own settings is seen.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive.stores.sqlite import SqliteStore
from tests import elsewhere
from tests.new_files import copy_template
from tests.support import FakeClock


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDRIVE_URL", "REDRIVE_CONFIG", "REDRIVE_CONCURRENCY", "REDRIVE_POLL", "REDRIVE_PRESET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    copy_template(monkeypatch)


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


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    """An open store without a queue around it, for the parts that need no more."""
    store = SqliteStore(tmp_path / "jobs.db", monotonic=clock.monotonic)
    await store.open()
    yield store
    await store.close()
