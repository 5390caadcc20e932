"""An app of its own for every test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.mcp.agents import World
from tests.new_files import copy_template


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    copy_template(monkeypatch)
    made = World(tmp_path / "jobs.db")
    async with made.rd:
        yield made
