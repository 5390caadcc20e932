"""What every test of a store may count on."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.stores.contract")

from tests.chaos.vfs import scratch_directory  # noqa: E402
from tests.new_files import copy_template  # noqa: E402
from tests.stores.openers import Openers  # noqa: E402
from tests.stores.places import PLACES, SqlitePlace  # noqa: E402

POSTGRES_ALWAYS = ("TestOpening", "TestLeases", "TestWaking", "TestWakingOthers")
"""What the ordinary run shows on PostgreSQL; ./dev chaos shows all of the contract."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    later = {
        item for item in items if _on_postgres(item) and not item.nodeid.split("::")[1].startswith(POSTGRES_ALWAYS)
    }
    if later:
        items[:] = [item for item in items if item not in later]
        config.hook.pytest_deselected(items=list(later))


def _on_postgres(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and call.params.get("openers") == "postgres"


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
async def openers(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Openers]:
    """Openers of one place, for every kind of store."""
    if request.param == "postgres":
        request.getfixturevalue("postgres_server")
    copy_template(monkeypatch)
    openers = Openers(request.param, folder, PLACES[request.param](folder))
    yield openers
    await openers.close()
