"""Heartbeats from a thread: leases are kept, losses told, a blocked event loop named."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from redrive import Context, Redrive
from redrive.core.job import Job
from redrive.core.store import Lease
from redrive.engine.blocked_loop import has_waited_too_long
from redrive.engine.heartbeat import Heartbeats
from redrive.engine.worker_registry import BlockedLoop
from redrive.stores.sqlite import SqliteStore
from tests.stored_jobs import a_job, claimed, done
from tests.support import DEADLINE, FakeClock, eventually, soon


def beat(store: SqliteStore, job: Job) -> int:
    import apsw

    connection = apsw.Connection(str(store.path))
    try:
        return int(connection.execute("SELECT beat FROM jobs WHERE id = ?", (job.id,)).get)
    finally:
        connection.close()


async def test_the_leases_of_what_runs_are_renewed(store: SqliteStore, clock: FakeClock) -> None:
    job = await claimed(store, clock, options_json='{"lease": 0.3}')
    assert job.lease == 0.3
    heart = Heartbeats(store, asyncio.get_running_loop(), lambda: [job], lambda lease: None)
    heart.start()
    try:
        await eventually(lambda: beat(store, job) >= 3)
    finally:
        await soon(heart.stop())


async def test_a_lost_lease_is_told_on_the_workers_loop(store: SqliteStore, clock: FakeClock) -> None:
    job = await claimed(store, clock, options_json='{"lease": 0.3}')
    await store.apply([done(job, clock.now())])
    lost: list[tuple[Lease, threading.Thread]] = []
    heart = Heartbeats(
        store,
        asyncio.get_running_loop(),
        lambda: [job],
        lambda lease: lost.append((lease, threading.current_thread())),
    )
    heart.start()
    try:
        await eventually(lambda: bool(lost))
    finally:
        await soon(heart.stop())
    assert lost[0] == (Lease(job.id, job.token or ""), threading.current_thread())


async def test_a_heart_survives_a_store_that_fails(
    store: SqliteStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    job = await claimed(store, clock, options_json='{"lease": 0.3}')
    beats = 0

    class Failing(SqliteStore):
        async def heartbeat(self, leases: object, now: float | None = None) -> list[Lease]:
            nonlocal beats
            beats += 1
            raise OSError("the disk is gone")

    heart = Heartbeats(Failing(store.path), asyncio.get_running_loop(), lambda: [job], lambda lease: None)
    heart.start()
    try:
        await eventually(lambda: beats >= 3)
    finally:
        await soon(heart.stop())
    told = [record for record in caplog.records if "heartbeat failed" in record.getMessage()]
    assert told and all(record.levelno == logging.WARNING for record in told)


async def test_a_blocked_loop_is_reported_with_the_tasks_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The task blocks the loop until the report is there, so only a thread can have made it."""
    monkeypatch.setattr("redrive.engine.heartbeat.BLOCKED_AFTER", 0.05)
    monkeypatch.setitem(Heartbeats.__init__.__kwdefaults__, "blocked_after", 0.05)
    monkeypatch.setattr("redrive.engine.heartbeat.PULSE_SECONDS", 0.05)
    seen: list[str] = []
    async with Redrive(tmp_path / "jobs.db") as rd:

        @rd.task
        async def hog(ctx: Context) -> None:
            worker, *_ = rd.local_workers
            for _ in range(int(DEADLINE / 0.01)):
                if worker.heart is not None and worker.heart.blocked:
                    seen.append(worker.heart.blocked)
                    return
                threading.Event().wait(0.01)

        job = await hog.enqueue()
        async with rd.worker() as worker:
            await job.result(DEADLINE)
            assert worker.heart is not None
            heart = worker.heart
            await eventually(lambda: heart.blocked is None)
    assert len(seen) == 1 and "hog" in seen[0] and job.id[-8:] in seen[0]
    assert any("blocked" in r.getMessage() and "hog" in r.getMessage() for r in caplog.records)


async def test_a_lost_lease_cancels_the_task(tmp_path: Path) -> None:
    begun, told = asyncio.Event(), asyncio.Event()
    async with Redrive(tmp_path / "jobs.db") as rd, Redrive(tmp_path / "jobs.db") as other:

        @rd.task
        async def work(ctx: Context) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                if ctx.cancelled:
                    told.set()

        job = await work.options(lease=0.6).enqueue()
        async with rd.worker():
            await soon(begun.wait())
            await other.jobs.cancel(job.id)
            await soon(told.wait())
        assert (await job.refresh()).state == "discarded"


async def test_a_heart_without_work_only_waits(store: SqliteStore) -> None:
    heart = Heartbeats(store, asyncio.get_running_loop(), list, lambda lease: None)
    heart.start()
    await soon(heart.stop())
    assert heart.blocked is None


class Helper:
    """Notes what a heart asks of whoever acts for a blocked event loop."""

    def __init__(self) -> None:
        self.silent: list[float] = []
        self.over = threading.Event()

    async def act(self, silent: float, blocked: BlockedLoop | None, *, told: bool) -> None:
        self.silent.append(silent)

    def ended(self) -> None:
        self.over.set()


async def test_a_freeze_is_not_taken_for_a_blocked_loop(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a freeze of an hour, of the whole process, the loop counts as silent for a moment only."""
    helper, loop = Helper(), asyncio.get_running_loop()
    heart = Heartbeats(store, loop, list, lambda lease: None, helps=helper)
    now = 1000.0
    monkeypatch.setattr("redrive.engine.heartbeat.time.monotonic", lambda: now)
    await heart._look()
    now += 3600
    await heart._look()
    assert helper.silent == [0.0, 2.0]
    assert heart.blocked is None and not heart.hears()
    await asyncio.sleep(0)
    assert heart.silent == 0.0 and heart.hears()


async def test_a_loop_that_does_not_answer_is_blocked_and_one_that_does_again_is_not(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper, loop = Helper(), asyncio.get_running_loop()
    heart = Heartbeats(store, loop, list, lambda lease: None, helps=helper, named=lambda task: ("hog", "1" * 32))
    now = 1000.0
    monkeypatch.setattr("redrive.engine.heartbeat.time.monotonic", lambda: now)
    for _ in range(8):
        await heart._look()
        now += 1.0
    assert helper.silent == [float(second) for second in range(8)]
    assert heart.blocked == "task hog (job 11111111)"
    await asyncio.sleep(0)
    assert heart.blocked is None and helper.over.is_set()


@pytest.mark.behaviour("T-10f")
@pytest.mark.parametrize(("lease", "kept"), [(None, 5.0), (90.0, 5.0), (3600.0, 5.0), (3.0, 1.0)])
def test_a_blocked_loop_keeps_what_it_has_not_begun_for_seconds(
    clock: FakeClock, lease: float | None, kept: float
) -> None:
    job = a_job(clock, lease=lease)
    assert has_waited_too_long(job, kept) and not has_waited_too_long(job, kept - 0.1)
