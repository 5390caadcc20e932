"""A replica tells outcomes before it commits what it executed: what readers see, and what a commit that fails costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

import apsw
import pytest

from redrive.core.store import Lease, Wanted
from redrive.errors import StoreError
from redrive.stores.replica import ReplicaStore
from redrive.stores.replica.engine import Engine
from redrive.stores.replica.log import LogEntry
from tests.chaos.processes import until
from tests.stores.jobs import T0, a_job
from tests.stores.memory_log import MemoryLog
from tests.stores.test_replica_rules import Fleet, engine_of

LATER = "redrive.stores.replica.engine.COMMIT_SECONDS"


@pytest.fixture
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(folder)
    yield fleet
    await fleet.close()


@pytest.fixture(autouse=True)
def commits_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit comes by time, so that every test meets what is executed and not yet committed."""
    monkeypatch.setattr(LATER, 600.0)


async def refuse_commits(store: ReplicaStore, times: int) -> None:
    """Let so many commits of this replica's file fail."""
    engine, left = engine_of(store), [times]

    def refused() -> bool:
        left[0] -= 1
        return left[0] >= 0

    async def hook() -> None:
        engine.connection.set_commit_hook(refused)

    await engine.call(hook)


def committed_jobs(store: ReplicaStore) -> int:
    """How many jobs another process would find in the file."""
    with apsw.Connection(str(store.path)) as connection:
        found: int = connection.execute("SELECT count(*) FROM jobs").get
    return found


async def test_what_was_told_can_be_read_at_once(fleet: Fleet) -> None:
    store = await fleet.join("one")
    for number in range(1, 20):
        ((job, duplicate),) = [(one.job, one.duplicate) for one in await store.insert([a_job()])]
        assert not duplicate
        assert committed_jobs(store) == number - 1, "it was committed before its caller was told"
        assert [found.id for found in await store.get([job.id])] == [job.id]


async def test_messages_are_committed_together_a_moment_later(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await fleet.join("one")
    monkeypatch.setattr(LATER, 0.02)
    for _ in range(3):
        await store.insert([a_job()])
    await until("they are committed", lambda: committed_jobs(store) == 3)
    assert not engine_of(store).file.is_dirty


async def test_many_commands_are_committed_at_once_so_that_readers_do_not_wait(fleet: Fleet) -> None:
    store = await fleet.join("one")
    await store.insert([a_job()])
    assert engine_of(store).file.is_dirty
    fleet.kept.faults.hold = True
    inserting = [asyncio.ensure_future(store.insert([a_job()])) for _ in range(40)]
    await until("they are in the log", lambda: len(fleet.kept.entries) >= 3)
    fleet.recover()
    await asyncio.gather(*inserting)
    await until("they are committed", lambda: committed_jobs(store) == 41)


async def test_a_store_that_closes_has_committed_everything(fleet: Fleet) -> None:
    store = await fleet.join("one")
    await store.insert([a_job()])
    await store.close()
    assert committed_jobs(store) == 1


@pytest.mark.parametrize("control", [False, True])
async def test_a_commit_that_fails_takes_no_job_from_the_worker_that_has_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """What was undone is heard and executed again, and whoever was told an outcome is not told twice.

    The control forgets what it told: it gives the jobs of a claim back, although a worker runs them.
    """
    if control:
        monkeypatch.setattr(Engine, "_settle", _forgetful(Engine._settle))
    store = await fleet.join("one")
    await store.insert([a_job()])
    (job,) = (await store.claim(Wanted(1), "w", T0 + 1)).jobs
    await refuse_commits(store, 1)
    with pytest.raises(StoreError):
        await store.get([job.id])
    assert "cannot be written" in (engine_of(store).trouble or "")
    async with asyncio.timeout(20):
        await store.insert([a_job()])
        (found,) = await store.get([job.id])
    lease = Lease(job.id, job.token or "")
    lost = await store.heartbeat([lease])
    assert (found.state, lost) == (("running", []) if not control else ("waiting", [lease]))
    assert control or engine_of(store).trouble is None


def _forgetful(settle: Any) -> Any:
    def settled(self: Engine, replayed: Any) -> None:
        self._told = 0
        settle(self, replayed)

    return settled


async def test_a_disk_that_refuses_many_commits_costs_time_and_nothing_else(fleet: Fleet) -> None:
    bad, good = await fleet.join("bad"), await fleet.join("good")
    await good.insert([a_job()])
    await refuse_commits(bad, 4)
    with pytest.raises(StoreError):
        await bad.insert([a_job()])
        await bad.get(["x"])
    async with asyncio.timeout(20):
        await bad.insert([a_job() for _ in range(3)])
        await good.insert([a_job()])
        assert len((await bad.claim(Wanted(100), "w", T0 + 1)).jobs) == 6
    assert engine_of(bad).failed is None
    for store in (bad, good):
        engine = engine_of(store)
        await engine.call(engine.wait_until_current)
    assert engine_of(bad).replay.here.chain == engine_of(good).replay.here.chain


class Counting(MemoryLog):
    """Knows how many of its feeds are open."""

    open_feeds: ClassVar[list[int]] = []

    async def feed(self, after: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        self.open_feeds.append(after)
        try:
            async with aclosing(super().feed(after)) as feed:
                async for entries in feed:
                    yield entries
        finally:
            await asyncio.sleep(0.05)  # as one that closes its connection
            self.open_feeds.remove(after)


async def test_a_feed_is_closed_before_the_log_is_heard_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it holds, such as a connection, is left to the collector of garbage."""
    monkeypatch.setattr(Counting, "open_feeds", [])
    store = await fleet.join("one", log=Counting)
    await store.insert([a_job()])
    assert engine_of(store).file.is_dirty
    await MemoryLog(fleet.kept).append("rubbish", b"\xc1")
    await store.until_failed()
    assert Counting.open_feeds == []


async def test_a_message_that_cannot_be_executed_does_not_undo_what_was_told_before(fleet: Fleet) -> None:
    """The good messages before it are executed again and committed, each alone; then the bad one stops the replica."""
    store = await fleet.join("one")
    await store.insert([a_job()])
    assert engine_of(store).file.is_dirty
    await MemoryLog(fleet.kept).append("rubbish", b"\xc1")
    assert "cannot be read" in await store.until_failed()
    assert committed_jobs(store) == 1
