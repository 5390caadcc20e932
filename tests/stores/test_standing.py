"""Standing claims: an idle worker gets a job in the commit that makes it due, and no job is left behind."""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.core.job import Job, State
from redrive.core.store import Claim, Filter, Wanted
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.standing_claim import StandingClaim, claim_nothing
from tests.stores.jobs import a_job
from tests.support import FakeClock, eventually

LONG = 30.0


async def idle_claim(store: SqliteStore, woken: asyncio.Event, seconds: float = LONG, slots: int = 10) -> Claim | None:
    """What an idle worker does: look, find nothing, stand by."""
    wanted = Wanted(slots)
    looked = await store.claim(wanted, "worker", time.time())
    assert not looked.jobs
    return await store.claim_next(wanted, "worker", time.time, looked.mark, seconds, woken)


async def standing_by(store: SqliteStore) -> None:
    await eventually(lambda: bool(store._standing))


@pytest.fixture
async def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "jobs.db")


async def test_a_job_comes_with_the_commit_that_accepts_it(store: SqliteStore) -> None:
    waiting = asyncio.create_task(idle_claim(store, asyncio.Event()))
    await standing_by(store)
    job = a_job(run_at=0.0)
    await store.insert([job])
    claim = await asyncio.wait_for(waiting, LONG)
    assert claim is not None
    assert [(found.id, found.state, found.run) for found in claim.jobs] == [(job.id, State.running, 1)]
    (record,) = await store.get([job.id])
    assert (record.state, record.token) == (State.running, claim.jobs[0].token)
    await store.close()


async def test_what_is_not_due_or_not_wanted_does_not_come(store: SqliteStore) -> None:
    woken = asyncio.Event()
    waiting = asyncio.create_task(idle_claim(store, woken))
    await standing_by(store)
    await store.insert([a_job(run_at=time.time() + 3600)])
    assert await asyncio.wait_for(waiting, LONG) is None, "told that something changed, and given nothing"
    await store.close()


async def test_time_passes_or_somebody_calls(store: SqliteStore) -> None:
    woken = asyncio.Event()
    assert await idle_claim(store, woken, seconds=0.05) is None
    waiting = asyncio.create_task(idle_claim(store, woken))
    await standing_by(store)
    woken.set()
    assert await asyncio.wait_for(waiting, LONG) is None
    assert not store._standing
    await store.close()


async def test_a_worker_that_would_not_notice_is_given_nothing(store: SqliteStore) -> None:
    """Its event loop is blocked: what it were given would wait for it, and nobody could run it."""
    hears, woken = threading.Event(), asyncio.Event()
    looked = await store.claim(Wanted(10), "worker", time.time())
    wish = store.claim_next(Wanted(10), "worker", time.time, looked.mark, LONG, woken, hears.is_set)
    waiting = asyncio.create_task(wish)
    await standing_by(store)
    job = a_job(run_at=time.time() - 1)
    await store.insert([job])
    assert await asyncio.wait_for(waiting, LONG) is None, "the change wakes it"
    assert (await store.get([job.id]))[0].state is State.waiting
    await store.close()


async def test_nobody_is_left_behind_whenever_the_worker_leaves(store: SqliteStore) -> None:
    """Inserts race with workers that withdraw at any moment: a job is running only where somebody was given it."""
    chance = random.Random(7)
    given: set[str] = set()
    for _ in range(150):
        woken = asyncio.Event()
        looked = await store.claim(Wanted(10), "worker", time.time())
        given |= {job.id for job in looked.jobs}
        standing = store.claim_next(Wanted(10), "worker", time.time, looked.mark, chance.random() * 0.003, woken)
        claim, _ = await asyncio.gather(standing, store.insert([a_job(run_at=0.0)]))
        given |= {job.id for job in claim.jobs} if claim else set()
    running = await store.find(Filter(states=(State.running,)), limit=1000)
    assert {job.id for job in running.jobs} == given
    assert await store.count(Filter()) == {(): 150}
    await store.close()


async def test_a_commit_that_fails_gives_nothing(store: SqliteStore) -> None:
    """The control of the order of things: told only after the commit."""
    woken = asyncio.Event()
    waiting = asyncio.create_task(idle_claim(store, woken))
    await standing_by(store)
    job = a_job(run_at=0.0)
    broken = a_job(state=State.done, run_at=0.0)
    answers = await asyncio.gather(store.insert([broken]), return_exceptions=True)
    assert isinstance(answers[0], Exception)
    assert not waiting.done()
    await store.insert([job])
    claim = await asyncio.wait_for(waiting, LONG)
    assert claim is not None
    assert [found.id for found in claim.jobs] == [job.id]
    await store.close()


async def test_an_earlier_empty_answer_is_not_taken_for_the_one_under_way() -> None:
    standing = StandingClaim(Wanted(1), "w", time.time, asyncio.Event())
    assert standing.begin()
    standing.end(None)
    await asyncio.sleep(0)
    assert standing.begin()
    withdrawing = asyncio.create_task(standing.withdraw())
    await asyncio.sleep(0)
    assert not withdrawing.done()
    found = claim_nothing([], 0)
    standing.end(found)
    assert await asyncio.wait_for(withdrawing, LONG) is found


async def test_a_wish_is_granted_once() -> None:
    standing = StandingClaim(Wanted(1), "w", time.time, asyncio.Event())
    assert standing.begin()
    standing.end(claim_nothing([], 0))
    assert not standing.begin()


def left_standing(store: SqliteStore, clock: Callable[[], float], leaves: Callable[[], bool]) -> None:
    """A worker stands by in a loop of its own that is closed without stopping it, as a notebook does."""

    async def worker() -> None:
        looked = await store.claim(Wanted(10), "worker", time.time())
        wish = store.claim_next(Wanted(10), "worker", clock, looked.mark, LONG, asyncio.Event())
        forgotten.append(asyncio.create_task(wish))
        await eventually(leaves)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(worker())
    loop.close()


forgotten: list[asyncio.Task[Claim | None]] = []
"""Tasks whose loops are closed: never finished, and kept from being collected in the middle of another test."""


async def test_a_worker_whose_loop_was_closed_takes_nothing_and_spoils_nothing(store: SqliteStore) -> None:
    await asyncio.to_thread(left_standing, store, time.time, lambda: bool(store._standing))
    job = a_job(run_at=0.0)
    (accepted,) = await store.insert([job])
    assert accepted.job.id == job.id
    claim = await store.claim(Wanted(1), "another", time.time())
    assert [found.id for found in claim.jobs] == [job.id], "left for whoever can run it"
    await store.close()


async def test_a_loop_closed_while_it_is_served_holds_a_job_no_longer_than_its_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steady = FakeClock()
    store = SqliteStore(tmp_path / "jobs.db", monotonic=steady.monotonic)
    serving, closed = threading.Event(), threading.Event()

    def clock() -> float:
        """Asked for the time by the writer, after it began to serve the wish and before it tells."""
        serving.set()
        assert closed.wait(LONG)
        return time.time()

    def worker() -> None:
        left_standing(store, clock, serving.is_set)
        closed.set()

    leaving = asyncio.create_task(asyncio.to_thread(worker))
    await standing_by(store)
    job = a_job(run_at=0.0)
    (accepted,) = await store.insert([job])
    await leaving
    assert accepted.job.id == job.id
    assert "they come back when their leases end" in caplog.text
    assert [found.id for found in await seen_lapsed(store, steady, 2.0)] == []
    assert [found.id for found in await seen_lapsed(store, steady, 91.0)] == [job.id]
    await store.close()


async def seen_lapsed(store: SqliteStore, steady: FakeClock, seconds: float) -> list[Job]:
    steady.advance(seconds)
    return (await store.claim(Wanted(slots=0), "observer", time.time())).lapsed
