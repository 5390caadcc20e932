"""A server, a worker and a database of its own for every test."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import redrive
from tests.new_files import copy_template
from tests.web.serving import Served, make_rd, serving


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDRIVE_URL", "REDRIVE_CONFIG", "REDRIVE_TOKEN", "REDRIVE_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    copy_template(monkeypatch)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def rd(database: Path, preset: Any) -> AsyncIterator[redrive.Redrive]:
    async with make_rd(database, preset=preset) as rd:
        yield rd


@pytest.fixture
async def served(rd: redrive.Redrive) -> AsyncIterator[Served]:
    """A real uvicorn on 127.0.0.1 with a real worker."""
    async with serving(rd) as served:
        yield served


@pytest.fixture
async def still(rd: redrive.Redrive) -> AsyncIterator[Served]:
    """The same without a worker: jobs stay where they are put."""
    async with serving(rd, worker=False) as served:
        yield served
