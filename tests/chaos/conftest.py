"""What the chaos suites share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.processes import Zygote
from tests.chaos.vfs import chosen_seed, scratch_directory


@pytest.fixture(scope="session")
def one_zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def zygote(one_zygote: Zygote) -> Iterator[Zygote]:
    yield one_zygote
    one_zygote.end_all()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a run's store and ledger are; in memory where there is some, since these tests lose no power."""
    with scratch_directory() as directory:
        (directory / "effects").mkdir()
        yield directory


@pytest.fixture
def seed() -> int:
    return chosen_seed()
