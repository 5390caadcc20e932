"""What is down for everybody parks its jobs, and everything comes back by itself. Real HTTP, a real store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

import redrive
from redrive.core import lifecycle
from redrive.core.job import Job, State
from redrive.core.store import Applied, Commit, Filter, Outcome, Wanted
from redrive.engine.breakers import Breakers
from redrive.retries.breaker import BREAKER, Breaker, begin_probe
from tests.receiver import Receiver, Seen, answer, receiving
from tests.support import FakeClock, eventually, opened, soon

LOCAL: dict[str, Any] = {"allow": ["127.0.0.1"]}


class Downstream:
    """A server that is down, or up, or thinks about it."""

    def __init__(self) -> None:
        self.up = False
        self.says = "503 Down"
        self.thinking: asyncio.Event | None = None
        self.active = self.most = 0
        self.receiver = Receiver()

    async def talk(self, _: Seen, writer: asyncio.StreamWriter) -> None:
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            if self.thinking is not None:
                await self.thinking.wait()
            writer.write(answer("200 OK" if self.up else self.says))
            await writer.drain()
        finally:
            self.active -= 1

    @property
    def calls(self) -> int:
        return len(self.receiver.requests)

    @property
    def key(self) -> str:
        return f"host:127.0.0.1:{self.receiver.port}"

    def url(self) -> str:
        return self.receiver.url("/in")


@asynccontextmanager
async def a_downstream() -> AsyncIterator[Downstream]:
    down = Downstream()
    async with receiving(down.talk) as receiver:
        down.receiver = receiver
        yield down


async def all_jobs(rd: redrive.Redrive, **filters: Any) -> list[Job]:
    found: list[Job] = []
    cursor = None
    while True:
        page = await rd.jobs.list(limit=1000, cursor=cursor, **filters)
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return found


async def states(rd: redrive.Redrive, **filters: Any) -> Counter[State]:
    return Counter(job.state for job in await all_jobs(rd, **filters))


async def the_breaker(rd: redrive.Redrive) -> Breaker:
    (found,) = await rd.breakers()
    return found


async def pass_time(rd: redrive.Redrive, clock: FakeClock, rounds: int, step: float = 1.0, **options: Any) -> None:
    """Round by round, as a worker with its scheduler would."""
    for _ in range(rounds):
        clock.advance(step)
        await soon(rd.drain(**options))


# ---- an outage, with numbers


async def test_an_outage_of_one_downstream_parks_its_jobs_and_drains_by_itself(
    clock: FakeClock, database: Path
) -> None:
    """300 jobs for A, which is down; 100 for B, which is up; 50 that call nobody."""
    async with a_downstream() as a, a_downstream() as b, opened(database, clock=clock, delivery=LOCAL) as rd:
        b.up = True

        @rd.task("plain")
        async def plain(n: int) -> int:
            return n

        for down, number in ((a, 300), (b, 100)):
            requests = [{"method": "POST", "url": down.url(), "json": {"n": n}} for n in range(number)]
            await rd.enqueue_many("redrive.http", requests, queue="a" if down is a else "b")
        await rd.enqueue_many("plain", [{"n": n} for n in range(50)])

        await soon(rd.drain(concurrency=10))
        assert await states(rd, queue="b") == {State.done: 100}
        assert await states(rd, queue="plain") == {State.done: 50}
        assert 10 <= a.calls <= 10 + 9, "ten in a row open it; nine may have been under way"
        tried = a.calls
        assert await states(rd, queue="a") == {State.held: 300 - tried, State.waiting: tried}
        parked = [job for job in await all_jobs(rd, queue="a") if job.state is State.held]
        assert {(job.because, job.held_for, job.attempts) for job in parked} == {("circuit_open", a.key, 0)}
        assert all(job.recommendation and a.key in job.recommendation for job in parked)
        breaker = await the_breaker(rd)
        assert (breaker.key, breaker.state, breaker.cause) == (a.key, "open", "server_error")
        assert "503" in breaker.error

        for seconds, probes in ((4.5, 0), (0.5, 1), (9.5, 1), (0.5, 2), (19.0, 2)):
            clock.advance(seconds)
            await soon(rd.drain(concurrency=10))
            assert a.calls == tried + probes, "probes after 5 and after 10 more seconds, the next after 20"
        assert await states(rd, queue="a") == {State.held: 300}
        burnt = Counter(job.attempts for job in await all_jobs(rd, queue="a"))
        assert burnt == {0: 300 - tried, 1: tried}
        assert (await the_breaker(rd)).pause == 20.0

        a.up = True
        await pass_time(rd, clock, 1, concurrency=10)
        assert a.calls == tried + 3
        assert (await the_breaker(rd)).state == "closed"
        assert await states(rd, queue="a") == {State.held: 299, State.done: 1}
        released = []
        for _ in range(5):
            before = a.calls
            await pass_time(rd, clock, 1, concurrency=10)
            released.append(a.calls - before)
        assert released == [20, 40, 80, 159, 0]
        assert await states(rd) == {State.done: 450}
        assert a.most <= 10
        assert await rd.breakers() == []
        assert Counter(job.attempts for job in await all_jobs(rd, queue="a")) == {1: 300 - tried, 2: tried}
        assert {len(job.history) for job in await all_jobs(rd, queue="plain")} == {0}


async def test_nobody_begins_while_a_breaker_opens(
    clock: FakeClock, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk the other four would finish, and four more begin, before it is known to be open."""
    async with a_downstream() as a, opened(database, clock=clock, delivery=LOCAL) as rd:
        apply = rd.store.apply

        async def slowly(commits: Sequence[Commit]) -> list[Outcome]:
            if any(put.kind == BREAKER.name for commit in commits for put in commit.puts):
                await asyncio.sleep(0.2)
            return await apply(commits)

        monkeypatch.setattr(rd.store, "apply", slowly)
        for _ in range(40):
            await rd.enqueue_http("POST", a.url(), queue="a")
        await soon(rd.drain(concurrency=5))
        assert 10 <= a.calls <= 10 + 4
        assert await states(rd, queue="a") == {State.held: 40 - a.calls, State.waiting: a.calls}


async def test_new_jobs_are_parked_while_it_is_open_and_run_when_it_is_closed(clock: FakeClock, database: Path) -> None:
    async with a_downstream() as a, opened(database, clock=clock, delivery=LOCAL) as rd:
        await open_it(rd, a)
        before = a.calls
        late = [await rd.enqueue_http("POST", a.url(), queue="other") for _ in range(5)]
        await soon(rd.drain())
        assert a.calls == before, "whatever the queue: it is the same host"
        assert [(await handle.refresh()).held_for for handle in late] == [a.key] * 5
        a.up = True
        assert await rd.close_breaker(a.key)
        now = await rd.enqueue_http("POST", a.url(), queue="other")
        await soon(rd.drain())
        assert (await now.refresh()).state is State.done


async def open_it(rd: redrive.Redrive, down: Downstream, jobs: int = 12) -> None:
    for _ in range(jobs):
        await rd.enqueue_http("POST", down.url(), queue="a")
    await soon(rd.drain(concurrency=1))
    assert (await the_breaker(rd)).state == "open"
    assert down.calls == 10


# ---- one probe at a time


async def test_two_processes_send_one_probe(clock: FakeClock, database: Path) -> None:
    """Two instances on one file, both wanting to probe at the same moment; the server counts."""
    async with (
        a_downstream() as a,
        opened(database, clock=clock, delivery=LOCAL) as one,
        opened(database, clock=clock, delivery=LOCAL) as other,
    ):
        await open_it(one, a, jobs=40)
        assert [breaker.key for breaker in await other.breakers()] == [a.key], "what one knows the other knows"
        clock.advance(5.0)
        a.most, a.thinking = 0, asyncio.Event()
        both = asyncio.gather(one.drain(), other.drain())
        await eventually(lambda: a.active == 1, "a probe under way")
        half = await the_breaker(other)
        assert (half.state, half.probes) == ("half_open", 1)
        a.thinking.set()
        await soon(both)
        assert (a.most, a.calls) == (1, 11)
        assert await states(one) == {State.held: 40}
        assert Counter(job.attempts for job in await all_jobs(one)) == {0: 30, 1: 10}


async def test_a_probe_that_fails_costs_its_job_nothing(clock: FakeClock, database: Path) -> None:
    async with a_downstream() as a, opened(database, clock=clock, delivery=LOCAL) as rd:
        await open_it(rd, a)
        for pause in (5, 10, 20, 40, 80, 160, 300, 300):
            before, attempts = a.calls, Counter(job.attempts for job in await all_jobs(rd))
            clock.advance(pause - 0.5)
            await soon(rd.drain())
            assert a.calls == before
            clock.advance(0.5)
            await soon(rd.drain())
            assert a.calls == before + 1
            assert Counter(job.attempts for job in await all_jobs(rd)) == attempts
        assert await states(rd) == {State.held: 12}


async def test_a_probe_whose_worker_died_goes_on(clock: FakeClock, database: Path) -> None:
    async with a_downstream() as a, opened(database, clock=clock, delivery=LOCAL) as rd:
        await open_it(rd, a)
        clock.advance(5.0)
        breaker = await the_breaker(rd)
        (held, *_) = [job for job in await all_jobs(rd) if job.state is State.held]
        await write(rd, probed_by(breaker, held.id))
        await lift(rd, held, clock)
        (taken,) = (await rd.store.claim(Wanted(slots=1, ids=(held.id,)), "doomed", clock.now())).jobs
        clock.advance(2.0)
        await rd.store.claim(Wanted(slots=0), "other", clock.now())  # from now on somebody minds its lease
        clock.advance(86_400.0)
        a.up = True
        lapsed = (await rd.store.claim(Wanted(slots=0), "other", clock.now())).lapsed
        assert [job.id for job in lapsed] == [taken.id]
        await pass_time(rd, clock, 8, 3.0)
        assert (await states(rd))[State.done] == 12, await states(rd)


def probed_by(breaker: Breaker, job_id: str) -> Breaker:
    return begin_probe(breaker, job_id, breaker.until)


async def write(rd: redrive.Redrive, breaker: Breaker | None, key: str | None = None) -> None:
    put = BREAKER.put(breaker.key, breaker) if breaker else BREAKER.drop(key or "")
    (outcome,) = await rd.store.apply([Commit(puts=(put,))])
    assert isinstance(outcome, Applied)


async def lift(rd: redrive.Redrive, job: Job, clock: FakeClock) -> None:
    (outcome,) = await rd.store.apply([Commit((lifecycle.unblocked(job, clock.now(), who="test", why="test"),))])
    assert isinstance(outcome, Applied)


# ---- what a probe must not say


class Calls:
    """A task that calls `crm`, as it is told."""

    def __init__(self, rd: redrive.Redrive, **options: Any) -> None:
        self.error: BaseException | None = ConnectionError("refused")
        self.errors: list[BaseException] = []
        """What the next runs raise before that."""
        self.runs = 0

        @rd.task("sync", downstream="crm", **options)
        async def sync(ctx: redrive.Context, n: int) -> int:
            self.runs += 1
            if self.errors:
                raise self.errors.pop(0)
            if self.error is not None:
                raise self.error
            return n

        self.task = sync


async def down(rd: redrive.Redrive, jobs: int = 12, **options: Any) -> Calls:
    calls = Calls(rd, **options)
    for number in range(jobs):
        await calls.task.enqueue(number)
    await soon(rd.drain(concurrency=1))
    assert (await the_breaker(rd)).key == "crm"
    assert calls.runs == 10
    return calls


@pytest.mark.parametrize(
    "error",
    [
        TypeError("a bug before the call"),
        redrive.Snooze(5),
        redrive.Cancel("enough"),
        redrive.GiveUp("no"),
        RuntimeError("?"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_probe_that_did_not_ask_proves_nothing(
    rd: redrive.Redrive, clock: FakeClock, error: BaseException
) -> None:
    """The breaker stays open, and the next probe does not wait for a quarter of an hour."""
    calls = await down(rd)
    calls.errors = [error]
    clock.advance(5.0)
    await soon(rd.drain(concurrency=1))
    breaker = await the_breaker(rd)
    assert (breaker.state, breaker.probes, calls.runs) == ("open", 2, 12), "one that did not ask, and one that did"
    calls.error = None
    await pass_time(rd, clock, 8, 5.0, concurrency=1)
    assert await rd.breakers() == []
    counted = await states(rd)
    assert counted[State.held] == 0 and sum(counted.values()) == 12 and counted[State.done] >= 11


async def test_an_answer_that_is_a_refusal_is_an_answer(clock: FakeClock, database: Path) -> None:
    """Whoever says 404 is there: the others may go, and only that job has a problem."""
    async with a_downstream() as a, opened(database, clock=clock, delivery=LOCAL) as rd:
        await open_it(rd, a)
        a.says = "404 Not Found"
        clock.advance(5.0)
        await soon(rd.drain(concurrency=1))
        assert (await the_breaker(rd)).state == "closed"
        assert (await states(rd))[State.dead] >= 1


async def test_who_opens_no_breaker_closes_none(rd: redrive.Redrive, clock: FakeClock) -> None:
    """A task with breaker_after=0 that fails at the same downstream says nothing good about it."""
    await down(rd)

    @rd.task("careless", downstream="crm", breaker_after=0)
    async def careless(n: int) -> int:
        raise ConnectionError("refused")

    clock.advance(5.0)
    for number in range(5):
        await careless.enqueue(number)
    await soon(rd.drain(concurrency=1, queues=["careless"]))
    assert {breaker.state for breaker in await rd.breakers()} <= {"open", "half_open"}


# ---- at the cap


async def test_jobs_at_their_cap_are_held_with_one_try_left(clock: FakeClock, database: Path) -> None:
    """30 jobs with one attempt each are under way when it goes down: none is buried."""
    async with (
        a_downstream() as a,
        opened(database, clock=clock, delivery=LOCAL, queues={"a": {"breaker_after": 1}}) as rd,
    ):
        a.thinking = asyncio.Event()
        for _ in range(30):
            await rd.enqueue_http("POST", a.url(), queue="a", max_attempts=1)
        running = asyncio.create_task(rd.drain(concurrency=30))
        await eventually(lambda: a.active == 30, "30 calls under way")
        a.thinking.set()
        await soon(running)
        assert await states(rd) == {State.held: 30}
        assert {(job.attempts, job.because, job.held_for) for job in await all_jobs(rd)} == {(0, "circuit_open", a.key)}
        shown = await rd.jobs.get((await all_jobs(rd))[0].id)
        assert shown.history[-1].decision and "keeps one" in shown.history[-1].decision
        a.up = True
        await pass_time(rd, clock, 6, 2.0)
        assert await states(rd) == {State.done: 30}
        assert await rd.breakers() == []


async def test_what_is_not_the_downstreams_fault_is_buried_as_ever(rd: redrive.Redrive, clock: FakeClock) -> None:
    calls = await down(rd, max_attempts=2)
    calls.error = TypeError("a bug")
    await rd.close_breaker("crm")
    await pass_time(rd, clock, 6, 10.0, concurrency=1)
    assert await states(rd) == {State.dead: 12}


# ---- a person


async def test_a_person_closes_a_breaker(clock: FakeClock, database: Path) -> None:
    async with (
        a_downstream() as a,
        opened(database, clock=clock, delivery=LOCAL) as rd,
        opened(database, clock=clock) as shell,
    ):
        await open_it(rd, a, jobs=50)
        assert not await shell.close_breaker("host:nobody:80")
        a.up = True
        assert await shell.close_breaker(a.key)
        assert not await shell.close_breaker(a.key), "it is closed"
        await pass_time(rd, clock, 5)
        assert await states(rd) == {State.done: 50}
        assert await rd.breakers() == []


async def test_a_breaker_without_jobs_is_forgotten(clock: FakeClock, database: Path) -> None:
    async with a_downstream() as a, opened(database, clock=clock, delivery=LOCAL) as rd:
        await open_it(rd, a)
        for job in await all_jobs(rd):
            await rd.jobs.cancel(job.id, why="not wanted")
        await rd.close_breaker(a.key)
        await pass_time(rd, clock, 2)
        assert await rd.breakers() == []


# ---- nobody is forgotten


async def test_a_job_parked_for_a_breaker_that_is_gone_comes_back(rd: redrive.Redrive, clock: FakeClock) -> None:
    """Another process may park a job in the very moment in which the last of the breaker is released."""
    calls = await down(rd)
    calls.error = None
    await write(rd, None, "crm")
    assert await rd.breakers() == []
    assert (await states(rd))[State.held] > 0
    await pass_time(rd, clock, 5)
    assert await states(rd) == {State.done: 12}


async def test_who_comes_while_it_closes_goes_at_the_pace_of_the_parked(rd: redrive.Redrive, clock: FakeClock) -> None:
    """One of many jobs probed and closed it while the others stood before it, with an older look at it."""
    calls = await down(rd)
    calls.error = None
    (held, *_) = [job for job in await all_jobs(rd) if job.state is State.held]
    late = Breakers(rd.store, clock)
    await late.mind()
    assert await rd.close_breaker("crm")
    free = lifecycle.unblocked(held, clock.now(), who="breaker", why="it answers again").after(held.version + 1)
    move = await late.gate(free, rd.registry.handlers["sync"])
    assert move is not None and "was down until just now" in str(move.why)
    parked = move.after(free.version + 1)
    assert (parked.state, parked.because, parked.held_for) == (State.held, "circuit_open", "crm")
    await pass_time(rd, clock, 5)
    assert await states(rd) == {State.done: 12}


async def test_a_cancelled_probe_makes_way_for_the_next(rd: redrive.Redrive, clock: FakeClock) -> None:
    calls = await down(rd)
    calls.error = None
    breaker = await the_breaker(rd)
    (held, *_) = [job for job in await all_jobs(rd) if job.state is State.held]
    await write(rd, probed_by(breaker, held.id))
    await rd.jobs.cancel(held.id)
    await pass_time(rd, clock, 5, 4.0)
    assert await states(rd) == {State.done: 11, State.discarded: 1}


async def test_a_probe_that_hangs_does_not_keep_the_others_for_ever(rd: redrive.Redrive, clock: FakeClock) -> None:
    calls = await down(rd)
    calls.error = None
    breaker = await the_breaker(rd)
    (held, *_) = [job for job in await all_jobs(rd) if job.state is State.held]
    await write(rd, probed_by(breaker, held.id))
    await lift(rd, held, clock)
    (hanging,) = (await rd.store.claim(Wanted(slots=1, ids=(held.id,), lease=1e6), "slow", clock.now())).jobs
    assert hanging.state is State.running
    clock.advance(905.0)
    await pass_time(rd, clock, 5, 2.0)
    assert await states(rd) == {State.done: 11, State.running: 1}


# ---- other things that may be down


async def test_a_models_breaker(rd: redrive.Redrive, clock: FakeClock) -> None:
    broken = {"m"}

    @rd.task("ask")
    async def ask(ctx: redrive.Context, n: int) -> int:
        if ctx.model in broken:
            raise TimeoutError("no answer")
        return n

    for number in range(20):
        await ask.options(model="m").enqueue(number)
        await ask.options(model="n").enqueue(number)
    await soon(rd.drain(concurrency=1))
    by_model = Counter((job.model, job.state) for job in await all_jobs(rd))
    assert by_model == {("n", State.done): 20, ("m", State.waiting): 10, ("m", State.held): 10}
    assert (await the_breaker(rd)).key == "model:m"
    broken.clear()
    await pass_time(rd, clock, 6, 2.0)
    assert await states(rd) == {State.done: 40}


async def test_one_trouble_of_a_task_that_names_nothing(rd: redrive.Redrive, clock: FakeClock) -> None:
    """Jobs that all fail in one way wait for one of them; the probe is one at a time, and costs nothing."""
    answers = False
    active = most = runs = 0
    thinking = asyncio.Event()

    @rd.task("call", max_attempts=4)
    async def call(n: int) -> int:
        nonlocal active, most, runs
        runs += 1
        active += 1
        most = max(most, active)
        try:
            await thinking.wait()
            if not answers:
                raise ConnectionError("refused")
            return n
        finally:
            active -= 1

    thinking.set()
    for number in range(30):
        await call.enqueue(number)
    await soon(rd.drain(concurrency=1))
    assert runs == 30, "nobody knows what a new job of it calls"
    (breaker,) = await rd.breakers()
    assert breaker.key.startswith("group:") and breaker.state == "open"
    clock.advance(3.0)
    await soon(rd.drain())
    assert await states(rd) == {State.held: 30}
    assert runs == 30

    most = 0
    for pause in (2, 10, 20):
        before = runs
        thinking = asyncio.Event()
        clock.advance(pause)
        draining = asyncio.create_task(rd.drain())
        await eventually(lambda: active == 1, "a probe under way")
        clock.advance(3.0)
        thinking.set()
        await soon(draining)
        assert (runs, most) == (before + 1, 1)
    assert {job.attempts for job in await all_jobs(rd)} == {1}
    answers = True
    await pass_time(rd, clock, 6, 10.0)
    assert await states(rd) == {State.done: 30}
    assert {job.attempts for job in await all_jobs(rd)} == {2}


@pytest.mark.behaviour("R-9a")
async def test_a_locked_database_opens_the_breaker_of_its_group(
    rd: redrive.Redrive, clock: FakeClock, tmp_path: Path
) -> None:
    """Another program holds the write lock. A lock has no host, so the group of the failure stands for it."""
    index = tmp_path / "index.db"
    runs = 0

    @rd.task("index", max_attempts=3)
    async def write(n: int) -> int:
        nonlocal runs
        runs += 1
        with closing(sqlite3.connect(index, timeout=0)) as connection, connection:
            connection.execute("INSERT INTO notes VALUES (?)", (n,))
        return n

    with closing(sqlite3.connect(index, isolation_level=None)) as other:
        other.execute("CREATE TABLE notes (n)")
        other.execute("BEGIN IMMEDIATE")
        for number in range(20):
            await write.enqueue(number)
        await soon(rd.drain(concurrency=1))
        breaker = await the_breaker(rd)
        assert (breaker.key[:6], breaker.state, breaker.cause) == ("group:", "open", "contention")
        assert runs == 20, "nobody knows what a new job of it calls"
        clock.advance(3.0)
        await soon(rd.drain())
        assert (await states(rd), runs) == ({State.held: 20}, 20), "parked, and no attempt is used"
        other.execute("ROLLBACK")
    await pass_time(rd, clock, 6, 10.0)
    assert await states(rd) == {State.done: 20}
    assert {job.attempts for job in await all_jobs(rd)} == {2}


@pytest.mark.behaviour("R-9a")
async def test_a_conflict_that_a_service_answers_with_opens_no_breaker(clock: FakeClock, database: Path) -> None:
    """409 says that one object is taken. The service is there for everything else."""
    async with a_downstream() as down, opened(database, clock=clock) as rd, httpx2.AsyncClient() as client:
        down.says = "409 Conflict"

        @rd.task("push")
        async def push(n: int) -> None:
            (await client.post(down.url(), json={"n": n})).raise_for_status()

        ids = [(await push.enqueue(number)).id for number in range(15)]
        await soon(rd.drain(concurrency=1))
        causes = [attempt.cause for job in await rd.store.get(ids) for attempt in job.history]
        assert [cause.detail for cause in causes if cause] == ["contention"] * 15
        assert (await rd.breakers(), await states(rd), down.calls) == ([], {State.waiting: 15}, 15)


async def test_the_downstream_may_be_a_function_of_the_payload(rd: redrive.Redrive, clock: FakeClock) -> None:
    broken = {"eu"}

    @rd.task("push", downstream=lambda region, n: f"push-{region}" if n >= 0 else None, breaker_after=3)
    async def push(region: str, n: int) -> int:
        if region in broken:
            raise ConnectionError("refused")
        return n

    for number in range(6):
        await push.enqueue("eu", number)
        await push.enqueue("us", number)
    await soon(rd.drain(concurrency=1))
    assert Counter(job.state for job in await all_jobs(rd)) == {State.done: 6, State.held: 3, State.waiting: 3}
    assert (await the_breaker(rd)).key == "push-eu"


async def test_an_edited_delivery_no_longer_waits_for_the_old_host(clock: FakeClock, database: Path) -> None:
    async with a_downstream() as a, a_downstream() as b, opened(database, clock=clock, delivery=LOCAL) as rd:
        b.up = True
        letter = await rd.enqueue_http("POST", a.url(), queue="x", max_attempts=1)
        await soon(rd.drain())
        assert (await letter.refresh()).state is State.dead
        await open_it_further(rd, a)
        await rd.dead.edit(letter.id, {"method": "POST", "url": b.url()})
        await soon(rd.drain())
        assert (await letter.refresh()).state is State.done
        assert b.calls == 1


async def open_it_further(rd: redrive.Redrive, down: Downstream) -> None:
    for _ in range(12):
        await rd.enqueue_http("POST", down.url(), queue="a")
    await soon(rd.drain(concurrency=1))
    assert (await the_breaker(rd)).state == "open"


async def test_never_means_never(clock: FakeClock, database: Path) -> None:
    async with (
        a_downstream() as a,
        opened(database, clock=clock, delivery=LOCAL, queues={"a": {"breaker_after": 0}}) as rd,
    ):
        for _ in range(30):
            await rd.enqueue_http("POST", a.url(), queue="a")
        await soon(rd.drain())
        assert await rd.breakers() == []
        assert a.calls == 30


async def test_a_success_ends_the_row(rd: redrive.Redrive) -> None:
    @rd.task("sync", downstream="crm", max_attempts=1)
    async def sync(n: int) -> int:
        if n % 10 == 9:
            return n
        raise ConnectionError("refused")

    for number in range(60):
        await sync.enqueue(number)
    await soon(rd.drain(concurrency=1))
    assert await rd.breakers() == []


async def test_a_mixed_outage_opens_it_as_well(rd: redrive.Redrive) -> None:
    """Refused, timed out, refused, …: two faces of one outage."""

    @rd.task("sync", downstream="crm")
    async def sync(n: int) -> int:
        raise (ConnectionError if n % 2 else TimeoutError)("down")

    for number in range(30):
        await sync.enqueue(number)
    await soon(rd.drain(concurrency=1))
    assert (await the_breaker(rd)).key == "crm"
    assert Counter(job.state for job in await all_jobs(rd)) == {State.waiting: 19, State.held: 11}


# ---- by themselves, on the real clock


async def test_two_workers_on_one_file_recover_by_themselves(database: Path) -> None:
    quick = {
        "a": {"breaker_after": 5, "breaker_pause": 0.2, "breaker_release": 500.0, "base": 0.05, "max_attempts": 500}
    }
    async with (
        a_downstream() as a,
        opened(database, delivery=LOCAL, queues=quick, poll=0.05) as one,
        opened(database, delivery=LOCAL, queues=quick, poll=0.05) as other,
    ):
        for _ in range(120):
            await one.enqueue_http("POST", a.url(), queue="a")
        async with one.worker(concurrency=4), other.worker(concurrency=4):

            async def parked() -> bool:
                return (await states(one))[State.held] > 80

            await eventually(parked, "most jobs parked")
            assert a.calls < 60
            assert len(await other.breakers()) == 1
            a.up = True

            async def over() -> bool:
                return await states(one) == {State.done: 120}

            await eventually(over, "everything drained")
        assert await states(other) == {State.done: 120}
        assert (await one.store.count(Filter(states=(State.held,)), by=("held_for",))) == {}
