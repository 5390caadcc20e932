"""A store on other machines whose answers are lost: nothing is doubled, left claimed or told wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from redrive.core.job import Job
from redrive.core.store import Applied, Commit, Lease, Put, Stale, Store, Wanted
from redrive.stores.remote import Hub, RemoteStore
from redrive.stores.replica import ReplicaStore
from redrive.stores.sqlite import SqliteStore
from tests.chaos.processes import until
from tests.stores.direct import DirectTransport, Faults
from tests.stores.jobs import T0, a_job, keyed, success
from tests.stores.memory_log import MemoryLog, MemoryMessages


@pytest.fixture(params=["file", "replica"])
async def hub(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Store]:
    """The store of a hub: a plain file, or a replica of a log."""
    kept = MemoryMessages()
    store: Store = (
        SqliteStore(folder / "jobs.db")
        if request.param == "file"
        else ReplicaStore(folder / "replica.db", lambda: MemoryLog(kept), live=folder / "live")
    )
    await store.open()
    yield store
    await store.close()


@asynccontextmanager
async def client_of(store: Store) -> AsyncIterator[tuple[RemoteStore, Faults]]:
    """A store without a file on the hub of this one, and what goes wrong between them."""
    faults = Faults()
    remote = RemoteStore(lambda: DirectTransport(lambda: Hub(store), faults), url="a hub of this test")
    try:
        await remote.open()
        yield remote, faults
    finally:
        await remote.close()


async def a_claimed(remote: RemoteStore) -> Job:
    await remote.insert([a_job()])
    (job,) = (await remote.claim(Wanted(1), "w", T0 + 1)).jobs
    return job


@pytest.mark.behaviour("F-20a")
async def test_an_insert_whose_answers_are_lost_is_new_once(hub: Store) -> None:
    async with client_of(hub) as (remote, faults):
        for number in range(1, 4):
            faults.lose_answers = number
            (inserted,) = await remote.insert([keyed(f"k{number}")])
            assert not inserted.duplicate, "its own earlier try is no duplicate"
        (again,) = await remote.insert([keyed("k1")])
        assert again.duplicate


async def test_the_control_without_sessions_an_insert_is_its_own_duplicate(
    hub: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.sessions.execute_once", lambda *given: given[-1]())
    async with client_of(hub) as (remote, faults):
        await remote.insert([a_job()])  # says hello
        faults.lose_answers = 1
        (inserted,) = await remote.insert([keyed("k")])
        assert inserted.duplicate


@pytest.mark.behaviour("F-20a")
async def test_a_settle_whose_answers_are_lost_is_not_told_stale(hub: Store) -> None:
    async with client_of(hub) as (remote, faults):
        job = await a_claimed(remote)
        faults.lose_answers = 2
        (outcome,) = await remote.apply([Commit((success(job),))])
        assert isinstance(outcome, Applied)
        (second,) = await remote.apply([Commit((success(job),))])
        assert isinstance(second, Stale)


async def test_the_control_without_sessions_a_settle_is_told_stale(hub: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client_of(hub) as (remote, faults):
        job = await a_claimed(remote)
        monkeypatch.setattr("redrive.stores.sqlite.sessions.execute_once", lambda *given: given[-1]())
        faults.lose_answers = 1
        (outcome,) = await remote.apply([Commit((success(job),))])
        assert isinstance(outcome, Stale)


@pytest.mark.behaviour("F-20a")
async def test_a_late_repeat_does_not_overwrite_what_came_after(hub: Store) -> None:
    """A document without a condition: the lost first try, its repeat, and a newer value of somebody else."""
    async with client_of(hub) as (first, faults), client_of(hub) as (second, _):
        await first.insert([a_job()])  # says hello
        faults.lose_answers = 1
        put = asyncio.ensure_future(first.apply([Commit(puts=(Put("note", "k", b"1"),))]))
        await until("the first try is kept", lambda: _written(hub))
        await second.apply([Commit(puts=(Put("note", "k", b"2"),))])
        await put
        found = await second.doc("note", "k")
        assert found is not None and found.value == b"2"


async def _written(store: Store) -> bool:
    return await store.doc("note", "k") is not None


@pytest.mark.behaviour("F-20b")
async def test_a_claim_whose_answers_are_lost_finds_its_jobs_again(hub: Store) -> None:
    async with client_of(hub) as (remote, faults):
        jobs = [a_job() for _ in range(3)]
        await remote.insert(jobs)
        faults.lose_answers = 3
        claim = await remote.claim(Wanted(2), "w", T0 + 1)
        assert len(claim.jobs) == 2 and {job.run for job in claim.jobs} == {1}
        states = [job.state for job in await remote.get([job.id for job in jobs])]
        assert sorted(states) == ["running", "running", "waiting"]
        outcomes = await remote.apply([Commit((success(job),)) for job in claim.jobs])
        assert all(isinstance(outcome, Applied) for outcome in outcomes)


@pytest.mark.behaviour("F-20b")
async def test_a_kept_claim_whose_answer_is_lost_gets_the_job_once(hub: Store) -> None:
    async with client_of(hub) as (remote, faults):
        faults.lose_answers = 1
        waiting = asyncio.ensure_future(remote.claim_next(Wanted(1), "w", lambda: T0 + 1, 0, 10.0, asyncio.Event()))
        await hub.insert([a_job()])
        claim = await waiting
        assert claim is not None and [job.run for job in claim.jobs] == [1]
        (outcome,) = await remote.apply([Commit((success(claim.jobs[0]),))])
        assert isinstance(outcome, Applied)


@pytest.mark.behaviour("F-20b")
async def test_a_worker_that_is_woken_leaves_nothing_claimed(hub: Store) -> None:
    async with client_of(hub) as (remote, _):
        woken = asyncio.Event()
        waiting = asyncio.ensure_future(remote.claim_next(Wanted(1), "w", lambda: T0 + 1, 0, 10.0, woken))
        await asyncio.sleep(0)
        job = a_job()
        woken.set()
        await hub.insert([job])
        claim = await waiting
        if claim is not None and claim.jobs:
            return  # it came first
        await until("the job waits", lambda: _waits(hub, job.id))


@pytest.mark.behaviour("F-20b")
@pytest.mark.parametrize("turns", range(0, 40, 4))
async def test_a_cancelled_claim_leaves_nothing_claimed(hub: Store, turns: int) -> None:
    """Cancelled after any number of turns of the event loop: while asking, while claimed, while the answer is lost."""
    async with client_of(hub) as (remote, faults):
        job = a_job()
        await remote.insert([job])
        faults.lose_answers = 1
        claiming = asyncio.ensure_future(remote.claim(Wanted(1), "w", T0 + 1))
        for _ in range(turns):
            await asyncio.sleep(0.001)
        claiming.cancel()
        (found,) = await asyncio.gather(claiming, return_exceptions=True)
        if isinstance(found, BaseException):
            await until("the job waits at no cost", lambda: _waits(hub, job.id))


async def _waits(store: Store, id: str) -> bool:
    (job,) = await store.get([id])
    return (job.state, job.run) == ("waiting", 0)


@pytest.mark.behaviour("F-20a")
async def test_a_heartbeat_may_be_sent_again(hub: Store) -> None:
    async with client_of(hub) as (remote, faults):
        job = await a_claimed(remote)
        faults.lose_answers = 2
        lost = await remote.heartbeat([Lease(job.id, job.token or ""), Lease(job.id, "another")])
        assert lost == [Lease(job.id, "another")]


@pytest.mark.behaviour("F-20c")
async def test_a_hub_that_wakes_late_does_not_take_the_jobs_of_its_client(folder: Path) -> None:
    """Frozen with a request that waits for work, it is asked no more; then it wakes, claims for it, and gives back."""
    kept = MemoryMessages()
    stores = [ReplicaStore(folder / f"{n}.db", lambda: MemoryLog(kept), live=folder / f"live{n}") for n in (1, 2)]
    for store in stores:
        await store.open()
    frozen, awake = Hub(stores[0]), Hub(stores[1])
    late = _Late(frozen)
    turns = iter([late, awake])
    faults = Faults()
    remote = RemoteStore(lambda: _Turning(turns, faults), url="two hubs")
    jobs = [a_job(), a_job()]
    claiming = asyncio.ensure_future(remote.claim(Wanted(1), "w", T0 + 1))
    await stores[1].insert(jobs)
    claim = await claiming
    assert len(claim.jobs) == 1
    await late.wakes()
    (job,) = claim.jobs
    (outcome,) = await remote.apply([Commit((success(job),))])
    assert isinstance(outcome, Applied), "its job was given back by the hub that woke late"
    other = next(one.id for one in jobs if one.id != job.id)
    assert await _waits(stores[1], other)
    await remote.close()
    for store in stores:
        await store.close()


class _Late:
    """A hub that is frozen with a request in hand. When it wakes it performs it, and nobody hears the answer."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._request = b""

    async def answer(self, request: bytes) -> bytes:
        self._request = request
        raise TimeoutError

    async def wakes(self) -> None:
        await self._hub.undo(await self._hub.perform(self._request))


class _Turning(DirectTransport):
    """The first request goes to the first hub, all others to the last."""

    def __init__(self, turns: object, faults: Faults) -> None:
        self._turns = turns
        super().__init__(lambda: next(turns), faults)  # type: ignore[call-overload]

    async def ask(self, request: bytes, seconds: float) -> bytes:
        try:
            return await super().ask(request, seconds)
        finally:
            self._hub = next(self._turns, self._hub)  # type: ignore[call-overload]
