"""The disk is full: a clear error, nothing half written, results wait, and everything goes on when there is room."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Redrive, StoreFailed, StoreFull
from redrive.core.store import Commit, Outcome, Wanted
from redrive.engine.clock import SystemClock
from redrive.engine.outbox import Outbox
from redrive.engine.worker import Worker
from tests.chaos.app import make_app
from tests.chaos.ledger import Audit, Ledger, audit
from tests.chaos.processes import until
from tests.chaos.vfs import FaultVFS, Operation, QuotaVFS, inspect_files, installed

pytestmark = pytest.mark.chaos

ROOM = 400_000


async def fill(rd: Redrive, ledger: Ledger) -> StoreFull:
    """Hand in jobs for later until the disk is full."""
    for n in range(1_000):
        try:
            handle = await rd.enqueue("work", {"n": n}, delay=3_600, headers={"padding": "x" * 5_000})
        except StoreFull as full:
            return full
        ledger.accepted([handle.id])
    raise AssertionError("the disk never filled up")


class SmallDisk:
    """A disk with a quota. Space that SQLite has already may be written again, unless not a byte is granted."""

    def __init__(self) -> None:
        self.quota = QuotaVFS(1 << 40)
        self.vfs = FaultVFS(None, errno.ENOSPC, operations=(Operation.WRITE,), base=self.quota)

    def leave(self, room: int) -> None:
        self.quota.quota = self.quota.used() + room

    def grant_nothing(self) -> None:
        self.vfs.arm(1, sticky=True)

    def make_room(self) -> None:
        self.vfs.disarm()
        self.leave(100 * ROOM)


async def one_cycle(rd: Redrive, ledger: Ledger, worker: Worker, disk: SmallDisk, gate: Path) -> None:
    handle = await rd.enqueue("gated", {"gate": gate.name})
    ledger.accepted([handle.id])
    await until("the job starts", lambda: ledger.read().started(handle.id))
    disk.leave(ROOM)
    full = await fill(rd, ledger)
    assert "no space left" in str(full) and "free some space" in str(full)
    disk.grant_nothing()
    gate.touch()
    await until("the task has ended, its result waits", lambda: worker.slots.running == 0)
    with pytest.raises(StoreFull):
        await rd.enqueue("work", {"n": 0})
    assert (await handle.refresh()).state == "running", "reading goes on, and nobody claims that it is done"
    disk.make_room()
    assert await handle.result(timeout=30) == gate.name
    assert (await handle.refresh()).run == 1
    after = await rd.enqueue("work", {"n": 1})
    ledger.accepted([after.id])
    assert await after.result(timeout=30) == 1


async def run_cycles(folder: Path, cycles: int) -> Audit:
    rd, ledger = make_app(folder)
    disk = SmallDisk()
    with installed(disk.vfs):
        async with rd, rd.worker() as worker:
            for cycle in range(cycles):
                await one_cycle(rd, ledger, worker, disk, folder / f"gate{cycle}")
            assert disk.quota.refused > 0
            found = await audit(rd, ledger, ended=False)
    assert inspect_files(folder, "jobs.db", "SELECT 1").error is None
    return found


@pytest.mark.behaviour("000-99")
async def test_full_and_free_again(folder: Path, size: Callable[[int, int], int]) -> None:
    found = (await run_cycles(folder, size(1, 50))).assert_sound()
    assert found.extra_starts == 0


async def test_control_an_outbox_that_gives_up_loses_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def once(self: Outbox, batch: list[Commit]) -> list[tuple[Commit, Outcome]]:
        try:
            return list(zip(batch, await self._store.apply(batch), strict=True))
        except StoreFull as full:
            raise StoreFailed(str(full)) from full

    monkeypatch.setattr(Outbox, "_insist", once)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(4):
            await run_cycles(folder, 1)


class Ahead(SystemClock):
    """A clock whose monotonic part can be moved: so much time passed for whoever watches leases."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


async def test_a_result_that_waits_keeps_its_job(folder: Path) -> None:
    """The disk is full for longer than the lease: the worker lives, so its job must not be started again."""
    clock = Ahead()
    rd, ledger = make_app(folder, clock=clock)
    disk = SmallDisk()
    with installed(disk.vfs):
        async with rd, rd.worker(scheduler=False) as worker:
            handle = await rd.enqueue("gated", {"gate": "gate"})
            ledger.accepted([handle.id])
            await until("the job starts", lambda: ledger.read().started(handle.id))
            await _settle_lapsed(rd, worker, clock)  # the observer sees it for the first time
            disk.grant_nothing()
            (folder / "gate").touch()
            await until("the task has ended, its result waits", lambda: worker.slots.running == 0)
            clock.ahead += 1_000.0
            disk.make_room()
            await _settle_lapsed(rd, worker, clock)
            assert await handle.result(timeout=30) == "gate"
            found = (await audit(rd, ledger)).assert_sound()
    assert found.jobs[handle.id].run == 1


async def _settle_lapsed(rd: Redrive, worker: Worker, clock: Ahead) -> None:
    """What the scheduler does every second."""
    clock.ahead += 2.0
    claim = await rd.store.claim(Wanted(slots=0), "observer", clock.now())
    await worker.settle_lapsed(claim.lapsed)


async def test_a_worker_can_stop_while_the_disk_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot store it must leave: the job runs again where there is room."""
    monkeypatch.setattr("redrive.engine.worker.FLUSH_SECONDS", 0.5)
    rd, ledger = make_app(folder)
    disk = SmallDisk()
    with installed(disk.vfs):
        async with rd:
            running = rd.worker(grace=0.1)
            worker = await running.__aenter__()
            handle = await rd.enqueue("gated", {"gate": "gate"})
            ledger.accepted([handle.id])
            await until("the job starts", lambda: ledger.read().started(handle.id))
            disk.grant_nothing()
            (folder / "gate").touch()
            await until("the task has ended, its result waits", lambda: worker.slots.running == 0)
            stopping = asyncio.create_task(running.__aexit__(None, None, None))
            await until("the worker stops", stopping.done, 15.0)
            assert (await handle.refresh()).state == "running"
            disk.make_room()
        rd, ledger = make_app(folder)  # the next process
        async with rd, rd.worker():
            await until("the job is done", lambda: _is_done(rd, handle.id))
            (await audit(rd, ledger, concurrency=1, expiries=1)).assert_sound()


async def _is_done(rd: Redrive, job_id: str) -> bool:
    return (await rd.jobs.get(job_id)).state == "done"
