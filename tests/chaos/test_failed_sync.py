"""A worker on a disk whose syncs fail now and then, under a process manager that starts it again when it ends."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.chaos.app import make_app
from tests.chaos.ledger import Audit, audit
from tests.chaos.processes import Child, Zygote, until
from tests.chaos.vfs import FaultVFS, FileKind, Operation, installed

pytestmark = pytest.mark.chaos

CONCURRENCY = 4
UNSETTLED = 3 * CONCURRENCY
"""What one failed sync can undo: the ends in the commit that failed, those that waited behind it, and what ran."""
BROKEN = 3


def failing_worker(folder: str, *, nth: int | None, ends: bool = True) -> None:
    """`redrive worker` on a disk whose nth sync of the log fails, once."""
    if not ends:
        _without_an_end()
    app = sys.modules["chaos_app"] = ModuleType("chaos_app")
    app.rd, _ = make_app(Path(folder), poll=0.05)  # type: ignore[attr-defined]
    from redrive.doors.cli import cli

    fault = FaultVFS(nth, operations=(Operation.SYNC,), kinds=(FileKind.WAL,))
    with installed(fault):
        cli.main(["worker", "chaos_app:rd", "--concurrency", str(CONCURRENCY)], prog_name="redrive")


def _without_an_end() -> None:
    """The guard removed: nobody hears that the store has stopped itself."""
    from redrive.stores.sqlite import SqliteStore

    async def never(self: SqliteStore) -> str:
        await asyncio.sleep(3600)
        return ""

    SqliteStore.until_failed = never  # type: ignore[method-assign]


class Manager:
    """Starts a worker, waits for its end, starts the next, as systemd with Restart=always does."""

    def __init__(self, zygote: Zygote, folder: Path, rng: random.Random) -> None:
        self._zygote = zygote
        self._folder = folder
        self._rng = rng
        self.statuses: list[int] = []
        self.rd, self.ledger = make_app(folder)

    def start(self, nth: int | None, **how: Any) -> Child:
        log = self._folder / f"worker{len(self.statuses)}.log"
        return self._zygote.start(
            "tests.chaos.test_failed_sync:failing_worker", log=log, folder=self._folder, nth=nth, **how
        )

    async def hand_in(self, number: int) -> None:
        many = await self.rd.enqueue_many(self._rng.choice(("work", "post")), [{"n": n} for n in range(number)])
        self.ledger.accepted([id for id in many.ids if id])

    async def one_life(self, nth: int) -> None:
        """One worker, from its start to its failed sync."""
        child = self.start(nth)

        async def over() -> bool:
            if child.running():
                await self.hand_in(5)
            return not child.running()

        await until("the worker ends after its failed sync", over)
        self.ledger.killed(child.pid)  # what it ran may start once more
        assert child.status is not None
        self.statuses.append(child.status)
        assert child.status == BROKEN, child.log()[-3_000:]

    async def left(self) -> int:
        totals = (await self.rd.stats())["totals"]
        return int(totals["waiting"] + totals["running"])

    async def audit(self) -> Audit:
        """By a worker on a disk that works again."""
        child = self.start(None)

        async def all_done() -> bool:
            return not await self.left()

        await until("everything is done", all_done, 120.0)
        child.send(15)
        assert await child.exited() == 0, child.log()[-3_000:]
        return await audit(self.rd, self.ledger, concurrency=UNSETTLED)


@pytest.mark.behaviour("T-9e")
async def test_a_process_manager_brings_a_failed_worker_back(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]
) -> None:
    rng = random.Random(seed)
    manager = Manager(zygote, folder, rng)
    async with manager.rd:
        for _ in range(size(4, 200)):
            await manager.one_life(rng.randrange(1, 40))
        found = await manager.audit()
    found.assert_sound()
    assert set(manager.statuses) == {BROKEN}
    assert all(job.attempts <= 1 for job in found.jobs.values()), "a failed disk cost a job an attempt"


async def test_control_a_worker_that_does_not_end_is_never_started_again(
    zygote: Zygote, folder: Path, seed: int
) -> None:
    manager = Manager(zygote, folder, random.Random(seed))
    async with manager.rd:
        child = manager.start(3, ends=False)

        async def stopped() -> bool:
            await manager.hand_in(5)
            return "store stopped" in child.log()

        await until("its store has stopped", stopped)
        await manager.hand_in(5)
        with pytest.raises(AssertionError, match="in vain"):
            await until("the worker ends, or does the rest", lambda: _over(manager, child), 3.0)


async def _over(manager: Manager, child: Child) -> bool:
    return not child.running() or not await manager.left()
