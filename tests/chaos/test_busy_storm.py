"""Eight processes at one file: nobody is ever told that it is busy, the log stays small, and the books balance."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from redrive import RedriveError
from tests.chaos.app import make_app
from tests.chaos.ledger import Audit, Ledger, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

PROCESSES = 8
WAL_LIMIT = 64 * 1024 * 1024


def busy(folder: str, *, seed: int, seconds: float, steady: bool = False, deferred: bool = False) -> None:
    """Open, hand in, work, look around, close; again and again, or for as long as it goes. Every error is noted."""
    if deferred:
        _begin_deferred()
    asyncio.run(_busy(Path(folder), random.Random(seed), seconds, steady=steady))


async def _busy(folder: Path, rng: random.Random, seconds: float, *, steady: bool) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        rd, ledger = make_app(folder, poll=0.05)
        try:
            async with rd, rd.worker(concurrency=8):
                turns = 1_000_000 if steady else rng.randrange(5, 20)
                for _ in range(turns):
                    await _one_turn(rd, ledger, rng)
                    if time.monotonic() > until:
                        break
        except (RedriveError, OSError, apsw.Error) as error:
            ledger.note("error", os.getpid(), type(error).__name__, str(error).replace("\n", " "))
        ledger.close()


async def _one_turn(rd: Any, ledger: Ledger, rng: random.Random) -> None:
    task = rng.choice(("work", "work", "flaky", "hopeless"))
    many = await rd.enqueue_many(task, [{"n": n} for n in range(rng.randrange(1, 30))])
    ledger.accepted([id for id in many.ids if id])
    if rng.random() < 0.2:
        await rd.stats()
    if rng.random() < 0.1:
        handle = await rd.enqueue("work", {"n": 1})
        ledger.accepted([handle.id])
        await handle.result(timeout=60)


def _begin_deferred() -> None:
    """The guard removed: read first, ask for the write lock later.

    Not where a log is written again: that lock is what keeps others out meanwhile, and without it the file is ruined.
    """

    class Deferred(apsw.Connection):
        alone = False

        def pragma(self, name: str, *args: Any, **how: Any) -> Any:
            self.alone = self.alone or name == "locking_mode"
            return super().pragma(name, *args, **how)

        def execute(self, statements: str, *args: Any, **how: Any) -> Any:
            asked = statements if self.alone else statements.replace("BEGIN IMMEDIATE", "BEGIN DEFERRED")
            return super().execute(asked, *args, **how)

    apsw.Connection = Deferred  # type: ignore[misc]


async def stormed(
    zygote: Zygote, folder: Path, seed: int, seconds: float, processes: int = PROCESSES, **how: Any
) -> tuple[Audit, list[str], int]:
    """The audit, the errors that anybody met, and how large the log was at most."""
    children = [
        zygote.start(
            "tests.chaos.test_busy_storm:busy", log=folder / f"busy{number}.log", folder=folder, seed=seed + number,
            seconds=seconds, steady=number % 2 == 0, **how,
        )
        for number in range(processes)
    ]  # fmt: skip
    largest = 0

    def ended() -> bool:
        nonlocal largest
        log = folder / "jobs.db-wal"
        largest = max(largest, log.stat().st_size if log.exists() else 0)
        return not any(child.running() for child in children)

    await until("the storm is over", ended, seconds + 120.0)
    _check(children)
    rd, ledger = make_app(folder)
    async with rd:
        if not how:
            await _drain(rd)
        found = await audit(rd, ledger, ended=not how, concurrency=0, expiries=0)
    errors = [note for note in found.books.notes if note.startswith("error")]
    errors += [line for child in children for line in child.log().splitlines() if "locked by another" in line]
    return found, errors, largest


async def _drain(rd: Any) -> None:
    """What is left is done by one worker in peace."""
    for _ in range(100):
        await rd.drain()
        totals = (await rd.stats())["totals"]
        if not totals["waiting"] and not totals["running"]:
            return
    raise AssertionError("not everything came to its end")


def _check(children: list[Child]) -> None:
    for child in children:
        assert child.status == 0, child.log()[-3_000:]


@pytest.mark.behaviour("000-99")
async def test_eight_processes(zygote: Zygote, folder: Path, seed: int, size: Callable[[float, float], float]) -> None:
    found, errors, largest = await stormed(zygote, folder, seed, size(6.0, 1_800.0))
    print(f"log at most {largest / 1e6:.1f} MB")
    found.assert_sound()
    assert errors == []
    assert found.extra_starts == 0
    assert largest <= WAL_LIMIT
    assert len(found.books.accepted) > 1_000


async def test_control_deferred_transactions_are_busy(zygote: Zygote, folder: Path, seed: int) -> None:
    errors: list[str] = []
    for round_number in range(10):  # one is nearly always enough
        _, errors, _ = await stormed(zygote, folder, seed + 100 * round_number, 1.5, deferred=True)
        if errors:
            break
    assert any("Busy" in error or "locked by another" in error for error in errors)
