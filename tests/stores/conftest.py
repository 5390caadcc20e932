"""What every test of a store may count on."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.stores.contract")

from tests.chaos.vfs import scratch_directory  # noqa: E402
from tests.stores.openers import Openers  # noqa: E402
from tests.stores.places import PLACES, SqlitePlace  # noqa: E402


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder on a real filesystem, in memory where there is one."""
    with scratch_directory() as directory:
        yield directory


@pytest.fixture
async def sqlite(folder: Path) -> AsyncIterator[Openers]:
    """Openers of one SQLite file; closed afterwards."""
    openers = Openers("sqlite", folder, SqlitePlace(folder))
    yield openers
    await openers.close()


@pytest.fixture(params=sorted(PLACES))
async def openers(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Openers]:
    """Openers of one place, for every kind of store."""
    openers = Openers(request.param, folder, PLACES[request.param](folder))
    yield openers
    await openers.close()
