"""A real store on a real file, for the parts that need one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.stores.sqlite import SqliteStore
from tests.support import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db", monotonic=clock.monotonic)
    await store.open()
    yield store
    await store.close()
