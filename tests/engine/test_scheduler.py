"""What must happen from time to time, on a clock that is told the time."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from redrive.core.consent import Approval
from redrive.core.job import CYCLE, Job
from redrive.core.lifecycle import deferred, held_back
from redrive.core.policy import Policy
from redrive.core.store import Commit, Filter, Outcome, Page, Put, Wanted
from redrive.engine.approvals import make_approval_hold, make_approval_key, put_approval
from redrive.engine.bus import Bus, BusEvent
from redrive.engine.registry import Handler, Registry
from redrive.engine.scheduler import HOUR, WEEK, PeriodicDuty, Scheduler, prune
from redrive.engine.worker import Worker
from redrive.engine.worker_registry import Announcement, put_announcement, put_arrival
from redrive.jobs.publishing_store import wrap_store
from redrive.stores.sqlite import SqliteStore
from tests.stored_jobs import a_job, claimed, dead, done, held, write
from tests.support import FakeClock, soon

DAY = 86400.0


async def work() -> None: ...


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.add(Handler("work", work, queue="work", policy=Policy(), wants_context=False))
    return registry


@pytest.fixture
def events() -> list[BusEvent]:
    return []


@pytest.fixture
async def duties(store: SqliteStore, registry: Registry, clock: FakeClock, events: list[BusEvent]) -> Scheduler:
    bus = Bus()
    bus.subscribe("*", events.append)
    told = wrap_store(store, bus)
    worker = Worker(told, registry, clock, heartbeats=False)
    return Scheduler(told, registry, clock, worker.settle_lapsed, retention=14 * DAY)


async def state(store: SqliteStore, job: Job) -> str:
    return (await store.get([job.id]))[0].state


# The look around -----------------------------------------------------------------------------------------------------


async def test_whoever_hangs_while_it_is_told_something_keeps_no_job_waiting(
    store: SqliteStore, registry: Registry, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.engine.scheduler.MOMENT", 0.01)
    looks: list[str] = []

    async def look() -> None:
        looks.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            looks.append("left")

    worker = Worker(store, registry, clock, heartbeats=False)
    duties = Scheduler(store, registry, clock, worker.settle_lapsed, retention=14 * DAY, watch=look)
    await soon(duties.tick())
    job = await claimed(store, clock, options_json='{"lease": 3.0}')
    for _ in range(20):
        clock.advance(1)
        await soon(duties.tick())
    assert await state(store, job) == "waiting"
    assert looks == ["began"], "one look at a time"
    await soon(duties.stop())
    assert looks == ["began", "left"]


async def test_a_look_that_fails_is_told_and_the_next_one_is_made(
    store: SqliteStore, registry: Registry, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[float] = []

    async def look() -> None:
        looks.append(clock.now())
        raise ConnectionError("the mill is away")

    worker = Worker(store, registry, clock, heartbeats=False)
    duties = Scheduler(store, registry, clock, worker.settle_lapsed, retention=14 * DAY, watch=look)
    for _ in range(2):
        await duties.tick()
        clock.advance(5)
    assert (len(looks), duties.errors) == (2, 2)
    assert "look_around failed and will be tried again" in caplog.text and "the mill is away" in caplog.text


# Each duty -----------------------------------------------------------------------------------------------------------


async def test_a_lapsed_lease_takes_the_normal_way(
    store: SqliteStore, clock: FakeClock, duties: Scheduler, events: list[BusEvent]
) -> None:
    job = await claimed(store, clock, options_json='{"lease": 30.0}')
    await duties.recover()
    for _ in range(28):
        clock.advance(1)
        await duties.recover()
    assert await state(store, job) == "running"
    clock.advance(5)
    await duties.recover()
    (lost,) = await store.get([job.id])
    assert (lost.state, lost.attempts, lost.crashes) == ("waiting", 0, 0), "its process, this one, lives"
    assert lost.history[0].outcome == "lost" and "stood still" in (lost.history[0].decision or "")
    assert [event.type for event in events] == ["retry"]


async def test_a_heartbeat_starts_the_lease_anew(store: SqliteStore, clock: FakeClock, duties: Scheduler) -> None:
    from redrive.core.store import Lease

    job = await claimed(store, clock, options_json='{"lease": 30.0}')
    for _ in range(10):
        clock.advance(20)
        assert await store.heartbeat([Lease(job.id, job.token or "")]) == []
        await duties.recover()
    assert await state(store, job) == "running"


async def test_pruning_drops_what_ended_long_ago(
    store: SqliteStore, clock: FakeClock, duties: Scheduler, registry: Registry
) -> None:
    registry.configure("quick", Policy(retention=DAY))
    old = await claimed(store, clock)
    quick = await claimed(store, clock, task="quick")
    grave = await dead(store, clock)
    await store.apply([done(old, clock.now(), '"result"'), done(quick, clock.now(), '"result"')])
    clock.advance(2 * DAY)
    await soon(duties.prune())
    kept = [job.payload is not None for job in await store.get([old.id, quick.id, grave.id])]
    assert kept == [True, False, True]
    clock.advance(13 * DAY)
    await soon(duties.prune())
    kept = [job.payload is not None for job in await store.get([old.id, quick.id, grave.id])]
    assert kept == [False, False, True]


async def test_pruning_goes_on_while_old_keys_are_left(
    store: SqliteStore, clock: FakeClock, duties: Scheduler, registry: Registry
) -> None:
    """Their contents went long ago; more of them than one batch forgets."""
    jobs = [a_job(clock) for _ in range(4_100)]
    await store.insert(jobs)
    await store.insert([a_job(clock, run_at=clock.now() + 1000 * DAY)])  # a store keeps its newest job
    claim = await store.claim(Wanted(slots=5_000), "w1", clock.now())
    await store.apply([done(job, clock.now()) for job in claim.jobs])
    clock.advance(15 * DAY)
    await soon(duties.prune())
    clock.advance(15 * DAY)
    await soon(prune(store, registry, clock.now(), 14 * DAY, 20 * DAY))
    assert await store.get([job.id for job in jobs]) == []


@pytest.fixture
def one_at_a_time(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pages as there are jobs: whatever looks at the first alone sees next to nothing."""
    find = store.find

    async def listed(filter: Filter, cursor: str | None = None, limit: int = 100, *, oldest: bool = False) -> Page:
        return await find(filter, cursor, 1, oldest=oldest)

    monkeypatch.setattr(store, "find", listed)


@pytest.mark.usefixtures("one_at_a_time")
async def test_jobs_that_wait_for_their_script_hide_no_unroutable_one(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    jobs = [a_job(clock, task="unknown", queue=queue) for queue in (f"{CYCLE}nightly", "other", f"{CYCLE}nightly")]
    await store.insert(jobs)
    await _an_hour_passes(store, clock, duties)
    assert [await state(store, job) for job in jobs] == ["waiting", "dead", "waiting"]


@pytest.mark.usefixtures("one_at_a_time")
async def test_open_questions_hide_no_expired_one(store: SqliteStore, clock: FakeClock, duties: Scheduler) -> None:
    jobs = []
    for expires in (86_400.0, 60.0, 86_400.0):
        running = await claimed(store, clock)
        key, approval = (
            make_approval_key(running.id, "go"),
            Approval("go on?", clock.now(), "it", expires_at=clock.now() + expires),
        )
        move = held_back(running, clock.now(), because="approval", why="it asks", held_for=make_approval_hold(key))
        await store.apply([Commit((move,), (put_approval(key, approval),))])
        jobs.append(running)
    clock.advance(61)
    await duties.expire_questions()
    assert [await state(store, job) for job in jobs] == ["held", "waiting", "held"]


@pytest.mark.usefixtures("one_at_a_time")
async def test_all_that_is_due_is_brought_back_or_buried_in_one_round(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    unknown = [await held(store, clock) for _ in range(3)]
    clock.advance(WEEK + 1)
    await duties.bury_unresolved()
    assert [await state(store, job) for job in unknown] == ["dead"] * 3
    for job in await store.get([job.id for job in unknown]):
        await write(store, deferred(job, clock.now(), owner="ann", until=clock.now() + 60, who="ann", why=None))
    clock.advance(61)
    await duties.recall_deferred()
    assert [await state(store, job) for job in unknown] == ["dead"] * 3


async def test_an_unknown_outcome_is_buried_after_a_week(
    store: SqliteStore, clock: FakeClock, duties: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    unknown, approval = await held(store, clock), await held(store, clock, because="approval")
    clock.advance(WEEK - HOUR)
    await duties.bury_unresolved()
    assert await state(store, unknown) == "held"
    clock.advance(2 * HOUR)
    await duties.bury_unresolved()
    (buried,) = await store.get([unknown.id])
    assert (buried.state, buried.because, buried.lane) == ("dead", "outcome_unknown", "manual")
    assert buried.recommendation and "resolve" in buried.recommendation
    assert await state(store, approval) == "held"
    assert any("seven days" in r.getMessage() and r.levelno >= logging.WARNING for r in caplog.records)


async def _announce(store: SqliteStore, clock: FakeClock, *tasks: str, worker: str = "w1") -> None:
    value = msgspec.json.encode({"tasks": list(tasks), "at": clock.now()})
    await store.apply([Commit(puts=(Put("worker", worker, value),))])


async def _an_hour_passes(store: SqliteStore, clock: FakeClock, duties: Scheduler) -> None:
    """A worker lives that knows another task, and somebody looks every minute."""
    for _ in range(62):
        await _announce(store, clock, "work")
        await duties.bury_unroutable()
        clock.advance(60)


async def test_unroutable_counts_an_hour_of_the_steady_clock(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    job = a_job(clock, task="unknown")
    await store.insert([job])
    await _announce(store, clock, "work")
    await duties.bury_unroutable()
    clock._now += 2 * HOUR  # the wall clock jumps: nothing has waited for an hour yet
    await _announce(store, clock, "work")
    await duties.bury_unroutable()
    assert await state(store, job) == "waiting"
    await _an_hour_passes(store, clock, duties)
    assert await state(store, job) == "dead"


async def test_an_hour_in_which_nobody_looked_counts_for_nothing(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    """Frozen, or cut off from its store: whoever announced the task meanwhile was not seen."""
    job = a_job(clock, task="unknown")
    await store.insert([job])
    for _ in range(2):
        await _announce(store, clock, "work")
        await duties.bury_unroutable()
        clock.advance(HOUR + 1)
    await _announce(store, clock, "work")
    await duties.bury_unroutable()
    assert await state(store, job) == "waiting"


@pytest.mark.parametrize("control", [False, True])
async def test_a_worker_that_comes_while_its_jobs_are_buried_keeps_them(
    store: SqliteStore, clock: FakeClock, duties: Scheduler, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """It announces its task after the announcements were read, before the burial is written. The control has no
    fence."""
    jobs = [a_job(clock, task="unknown") for _ in range(3)]
    await store.insert(jobs)
    apply = store.apply

    async def beaten(group: Sequence[Commit]) -> list[Outcome]:
        if any(move.move == "buried" for commit in group for move in commit.transitions):
            monkeypatch.setattr(store, "apply", apply)
            said = put_announcement("late", Announcement(frozenset({"unknown"}), clock.now()))
            await apply([Commit(puts=(said, put_arrival(clock.now())))])
            if control:
                group = [Commit(commit.transitions) for commit in group]
        return await apply(group)

    monkeypatch.setattr(store, "apply", beaten)
    await _an_hour_passes(store, clock, duties)
    assert [await state(store, job) for job in jobs] == (["dead"] if control else ["waiting"]) + ["waiting"] * 2


async def test_a_worker_that_went_silent_counts_for_nothing(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    job = a_job(clock, task="unknown")
    await store.insert([job])
    await _announce(store, clock, "work")
    for _ in range(200):
        await duties.bury_unroutable()
        clock.advance(60)
    assert await state(store, job) == "waiting"
    assert await store.docs("worker") == [], "a dead announcement is taken down"


async def test_when_the_clock_went_back_jobs_keep_their_delay(
    store: SqliteStore, clock: FakeClock, duties: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    job = a_job(clock, run_at=clock.now() + 60)
    await store.insert([job])
    await duties.mind_the_clock()
    clock._now -= 10 * HOUR
    await duties.mind_the_clock()
    (moved,) = await store.get([job.id])
    assert moved.run_at == pytest.approx(clock.now() + 60)
    assert any("clock went back" in record.getMessage() for record in caplog.records)


async def test_when_the_clock_only_goes_on_nothing_is_moved(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    job = a_job(clock, run_at=clock.now() + 60)
    await store.insert([job])
    for _ in range(5):
        await duties.mind_the_clock()
        clock.advance(3 * HOUR)
    assert (await store.get([job.id]))[0].run_at == job.run_at


# The round -----------------------------------------------------------------------------------------------------------


def _recorded(duties: Scheduler, calls: list[str], name: str, error: Exception | None = None) -> Callable[[], Any]:
    async def duty() -> None:
        calls.append(name)
        if error is not None:
            raise error

    duty.__name__ = name
    return duty


async def test_each_duty_has_its_own_pace(duties: Scheduler, clock: FakeClock) -> None:
    calls: list[str] = []
    duties._duties = [
        PeriodicDuty(1.0, _recorded(duties, calls, "often")),
        PeriodicDuty(60.0, _recorded(duties, calls, "rarely")),
    ]
    for _ in range(120):
        await duties.tick()
        clock.advance(1)
    assert (calls.count("often"), calls.count("rarely")) == (120, 2)


async def test_a_duty_that_fails_does_not_stop_the_others(
    duties: Scheduler, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    duties._duties = [
        PeriodicDuty(1.0, _recorded(duties, calls, "broken", RuntimeError("oh"))),
        PeriodicDuty(1.0, _recorded(duties, calls, "fine")),
    ]
    for _ in range(3):
        await duties.tick()
        clock.advance(1)
    assert calls == ["broken", "fine"] * 3
    assert duties.errors == 3
    assert any("broken failed" in r.getMessage() and r.levelno >= logging.WARNING for r in caplog.records)


async def test_all_duties_run_in_the_first_round(duties: Scheduler) -> None:
    assert await soon(duties.tick()) == 1.0
    assert duties.errors == 0
