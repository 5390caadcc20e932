"""A queue on a real file with a clock that is told the time. Nothing of the machine's own settings is seen."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import redrive
from tests.support import FakeClock


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDRIVE_URL", "REDRIVE_CONFIG", "REDRIVE_CONCURRENCY", "REDRIVE_POLL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def rd(database: Path, clock: FakeClock) -> AsyncIterator[redrive.Redrive]:
    """Time stands still: `rd.drain()` runs what is due, `clock.advance()` makes more due."""
    async with redrive.Redrive(database, clock=clock) as rd:
        yield rd


@pytest.fixture
async def live(database: Path) -> AsyncIterator[redrive.Redrive]:
    """On the system's clock, for tests with workers that run by themselves."""
    async with redrive.Redrive(database) as rd:
        yield rd
