"""The power goes out at every step of a store's life: what was acknowledged is there, and nothing is corrupt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.stores.sqlite import SqliteStore
from tests.chaos.vfs import RecordingVFS, Survey, images, installed, scratch_directory, survey_images
from tests.chaos.workload import DATABASE, MOVES, NOW, Life, acknowledged

pytestmark = pytest.mark.chaos

ROUNDS = 20
IMAGES = 2_000
"""From each recorded life."""


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs make many checkpoints to cut short, and images that are quick to look at."""
    monkeypatch.setattr("redrive.stores.sqlite.writer.CHECKPOINT_PAGES", 30)
    monkeypatch.setattr("redrive.stores.sqlite.writer.LOG_PAGES", 33)


async def recorded_life(directory: Path, seed: int, rounds: int = ROUNDS) -> RecordingVFS:
    with installed(RecordingVFS(directory)) as recorder:
        await Life(directory / DATABASE, seed, recorder.mark).live(rounds)
    assert recorder.unrecorded() == []
    return recorder


async def surveyed_life(seed: int, limit: int, keep: Path | None = None) -> Survey:
    with scratch_directory() as directory:
        recorder = await recorded_life(directory, seed)
    survey = survey_images(recorder.log, DATABASE, MOVES, seed=seed, limit=limit, acknowledged=acknowledged, keep=keep)
    print(survey)
    return survey


@pytest.mark.behaviour("000-16")
@pytest.mark.behaviour("000-99")
async def test_nothing_acknowledged_is_lost(seed: int, tmp_path: Path, size: Callable[[int, int], int]) -> None:
    lives = size(1, 50)
    for life in range(lives):
        survey = await surveyed_life(seed + life, IMAGES, tmp_path)
        assert survey.images == IMAGES
        assert not survey.lossy and not survey.corrupt, survey


async def test_control_normal_loses_what_was_acknowledged(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SqliteStore._write

    async def unsynced(self: SqliteStore, work: Any, **how: Any) -> Any:
        return await real(self, work, **{**how, "synced": False})

    monkeypatch.setattr(SqliteStore, "_write", unsynced)
    survey = await surveyed_life(seed, 200)
    assert len(survey.lossy) > 0
    assert not survey.corrupt, survey


async def test_power_lost_again_while_the_store_recovers(seed: int, size: Callable[[int, int], int]) -> None:
    """The store opens what is left, repairs nothing because nothing is wrong, goes on, and the power fails again."""
    with scratch_directory() as directory:
        first = await recorded_life(directory, seed, 8)
    for image in images(first.log, seed=seed, limit=size(6, 100)):
        with scratch_directory() as second_life:
            image.write(second_life)
            with installed(RecordingVFS(second_life)) as recorder:
                for mark in image.marks:
                    recorder.mark(mark)
                life = Life(second_life / DATABASE, seed + 1, recorder.mark)
                await life.store.open()
                assert await life.store.repair(NOW + 1_000_000.0) == [], image
                await life.live(2)
            survey = survey_images(recorder.log, DATABASE, MOVES, seed=seed, limit=40, acknowledged=acknowledged)
        assert not survey.lossy and not survey.corrupt, f"{image}\n{survey}"
