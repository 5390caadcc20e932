"""Tasks that open the database by sqlite3 and by open(), in the process of a worker, while others open and close it.

Each such close would drop the locks of the worker's store; whoever opens the file next takes itself for the first one
and starts the index of the log anew, while the worker goes on with the old one.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from redrive import RedriveError
from tests.chaos.app import make_app
from tests.chaos.ledger import Ledger, audit
from tests.chaos.processes import Zygote, until

pytestmark = pytest.mark.chaos

PROCESSES = 4


def peeking(folder: str, *, seed: int, seconds: float, guarded: bool = True) -> None:
    """Hands in, works and peeks into the file; opens and closes the store again and again."""
    if not guarded:
        _without_the_guard()
    asyncio.run(_peeking(Path(folder), random.Random(seed), seconds))


def _without_the_guard() -> None:
    from redrive.stores.sqlite.file_guard import FileGuard

    FileGuard.take = FileGuard.release = lambda self: None  # type: ignore[method-assign]


async def _peeking(folder: Path, rng: random.Random, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rd, ledger = make_app(folder, poll=0.05)
        try:
            async with rd, rd.worker(concurrency=4):
                for _ in range(rng.randrange(3, 12)):
                    many = await rd.enqueue_many("work", [{"n": n} for n in range(rng.randrange(1, 20))])
                    ledger.accepted([id for id in many.ids if id])
                    await asyncio.to_thread(_peek, folder / "jobs.db", ledger)
        except (RedriveError, OSError, apsw.Error) as error:
            ledger.note("error", os.getpid(), type(error).__name__, str(error).replace("\n", " "))
        ledger.close()


def _peek(database: Path, ledger: Ledger) -> None:
    for name, look in (("sqlite3", _by_sqlite3), ("open", _by_open)):
        try:
            look(database)
            ledger.note("peeked", name)
        except (RuntimeError, sqlite3.Error, OSError) as error:
            ledger.note("refused" if isinstance(error, RuntimeError) else "peek failed", name, type(error).__name__)


def _by_sqlite3(database: Path) -> None:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        connection.execute("SELECT count(*) FROM jobs").fetchall()


def _by_open(database: Path) -> None:
    database.read_bytes()
    Path(f"{database}-shm").read_bytes()


class Ending:
    """What is left of the file, as a process that comes later finds it."""

    def __init__(self, folder: Path, statuses: list[int | None]) -> None:
        self.folder = folder
        self.statuses = statuses
        self.notes: list[str] = make_app(folder)[1].read().notes

    def noted(self, *words: str) -> int:
        return sum(note.startswith(words) for note in self.notes)

    async def ruined(self) -> str | None:
        """What is wrong with the file or its jobs; None where nothing is."""
        with closing(apsw.Connection(str(self.folder / "jobs.db"))) as connection:
            try:
                found = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
            except apsw.Error as error:
                return repr(error)
        if found != ["ok"]:
            return "; ".join(found)
        try:
            await self._audit()
        except (RedriveError, AssertionError) as error:
            return repr(error)
        return None

    async def _audit(self) -> None:
        rd, ledger = make_app(self.folder)
        async with rd:
            for _ in range(100):
                await rd.drain()
                totals = (await rd.stats())["totals"]
                if not totals["waiting"] and not totals["running"]:
                    break
            (await audit(rd, ledger, concurrency=0, expiries=0)).assert_sound()


async def peeked(zygote: Zygote, folder: Path, seed: int, seconds: float, **how: Any) -> Ending:
    children = [
        zygote.start(
            "tests.chaos.test_second_sqlite:peeking", log=folder / f"peek{number}.log", folder=folder,
            seed=seed + number, seconds=seconds, **how,
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    await until("nobody peeks any more", lambda: not any(child.running() for child in children), seconds + 120.0)
    return Ending(folder, [child.status for child in children])


@pytest.mark.behaviour("T-15d")
async def test_a_second_sqlite_harms_nothing(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[float, float], float]
) -> None:
    ending = await peeked(zygote, folder, seed, size(4.0, 300.0))
    assert await ending.ruined() is None
    assert ending.statuses == [0] * PROCESSES
    assert (ending.noted("peeked"), ending.noted("error"), ending.noted("peek failed")) == (0, 0, 0)
    assert ending.noted("refused sqlite3") > 20 and ending.noted("refused open") > 20


async def test_control_without_the_guard_the_file_is_ruined(zygote: Zygote, folder: Path, seed: int) -> None:
    for round_number in range(10):
        place = folder / str(round_number)
        (place / "effects").mkdir(parents=True)
        ending = await peeked(zygote, place, seed + 100 * round_number, 2.0, guarded=False)
        assert ending.noted("peeked") > 0
        if ruined := await ending.ruined():
            print(f"round {round_number}: {ruined}")
            return
    raise AssertionError("the guard was taken away and nothing happened: the test above proves nothing")
