"""An app of its own for every test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.mcp.agents import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path / "jobs.db")
    async with made.rd:
        yield made
