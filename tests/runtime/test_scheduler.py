"""What must happen from time to time, on a clock that is told the time."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive.core.consent import Approval
from redrive.core.job import CYCLE, Job, State
from redrive.core.lifecycle import deferred, held_back
from redrive.core.policy import Policy
from redrive.core.store import Commit, Filter, Page, Put, Wanted
from redrive.insight import story
from redrive.runtime.bus import Bus, BusEvent
from redrive.runtime.questions import asked, key_of, waits_for
from redrive.runtime.registry import Handler, Registry
from redrive.runtime.scheduler import HOUR, WEEK, Scheduler, prune
from redrive.runtime.worker import Worker
from redrive.stores.sqlite import SqliteStore
from tests.runtime.jobs import a_job, claimed, dead, done, held, write
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
    worker = Worker(store, registry, bus, clock, heartbeats=False)
    return Scheduler(store, registry, bus, clock, worker.settle_lapsed, retention=14 * DAY)


async def state(store: SqliteStore, job: Job) -> str:
    return (await store.get([job.id]))[0].state


# The look around -----------------------------------------------------------------------------------------------------


async def test_whoever_hangs_while_it_is_told_something_keeps_no_job_waiting(
    store: SqliteStore, registry: Registry, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.runtime.scheduler.MOMENT", 0.01)
    looks: list[str] = []

    async def look() -> None:
        looks.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            looks.append("left")

    worker = Worker(store, registry, Bus(), clock, heartbeats=False)
    duties = Scheduler(store, registry, Bus(), clock, worker.settle_lapsed, retention=14 * DAY, watch=look)
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

    worker = Worker(store, registry, Bus(), clock, heartbeats=False)
    duties = Scheduler(store, registry, Bus(), clock, worker.settle_lapsed, retention=14 * DAY, watch=look)
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
    assert (lost.state, lost.attempts, lost.crashes) == ("waiting", 0, 1)
    assert lost.history[0].outcome == "lost"
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


async def test_the_delayed_lane_comes_back_after_an_hour(
    store: SqliteStore, clock: FakeClock, duties: Scheduler, events: list[BusEvent]
) -> None:
    delayed, manual = await dead(store, clock, lane="delayed"), await dead(store, clock)
    clock.advance(HOUR - 60)
    await duties.pull_delayed()
    assert await state(store, delayed) == "dead"
    clock.advance(120)
    await duties.pull_delayed()
    assert (await state(store, delayed), await state(store, manual)) == ("waiting", "dead")
    (back,) = await store.get([delayed.id])
    assert (back.grants, back.run_at) == (0, clock.now())
    assert [(event.type, event.job_id) for event in events] == [("replayed", delayed.id)]


async def test_at_the_cap_the_delayed_lane_becomes_manual(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    job = await dead(store, clock, lane="delayed", allowed=1)
    clock.advance(2 * HOUR)
    await duties.pull_delayed()
    (waits,) = await store.get([job.id])
    assert (waits.state, waits.lane, waits.grants) == ("dead", "manual", 0)
    last = (await store.story(job.id))[-1]
    assert (last.move, last.who, last.why) == ("rerouted", "scheduler", "it has no tries left: redrive grants more")
    told = story.tell(waits, await store.story(job.id), clock.now(), [])
    assert told.standing.endswith("It waits for a person.")


async def test_what_came_without_a_limit_has_that_of_its_queue_and_is_granted_nothing(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    job = await dead(store, clock, lane="delayed", allowed=None)
    clock.advance(2 * HOUR)
    await duties.pull_delayed()
    (back,) = await store.get([job.id])
    assert (back.state, back.grants, back.allowed) == ("waiting", 0, None)


async def test_the_delayed_lane_comes_back_however_many_letters_of_cycles_are_newer(
    store: SqliteStore, clock: FakeClock, duties: Scheduler
) -> None:
    job = await dead(store, clock, lane="delayed")
    clock.advance(60)
    trouble: dict[str, Any] = {
        "state": State.dead, "lane": "delayed", "because": "imported", "recommendation": "wait", "error": "down",
        "error_class": "ConnectionError", "category": "transient", "detail": "network", "attempts": 1,
    }  # fmt: skip
    cycles = [a_job(clock, queue=f"{CYCLE}nightly", **trouble) for _ in range(1_001)]
    await store.insert(cycles)
    clock.advance(2 * HOUR)
    await duties.pull_delayed()
    assert await state(store, job) == "waiting"
    assert await state(store, cycles[0]) == "dead", "its next cycle brings it back"


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
    for _ in range(2):
        await _announce(store, clock, "work")
        await duties.bury_unroutable()
        clock.advance(HOUR + 1)
    await _announce(store, clock, "work")
    await duties.bury_unroutable()
    assert [await state(store, job) for job in jobs] == ["waiting", "dead", "waiting"]


@pytest.mark.usefixtures("one_at_a_time")
async def test_open_questions_hide_no_expired_one(store: SqliteStore, clock: FakeClock, duties: Scheduler) -> None:
    jobs = []
    for expires in (86_400.0, 60.0, 86_400.0):
        running = await claimed(store, clock)
        key, approval = (
            key_of(running.id, "go"),
            Approval("go on?", clock.now(), "it", expires_at=clock.now() + expires),
        )
        move = held_back(running, clock.now(), because="approval", why="it asks", held_for=waits_for(key))
        await store.apply([Commit((move,), (asked(key, approval),))])
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
    clock.advance(HOUR + 1)
    await _announce(store, clock, "work")
    await duties.bury_unroutable()
    assert await state(store, job) == "dead"


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
    duties._duties = [(1.0, _recorded(duties, calls, "often")), (60.0, _recorded(duties, calls, "rarely"))]
    for _ in range(120):
        await duties.tick()
        clock.advance(1)
    assert (calls.count("often"), calls.count("rarely")) == (120, 2)


async def test_a_duty_that_fails_does_not_stop_the_others(
    duties: Scheduler, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    duties._duties = [
        (1.0, _recorded(duties, calls, "broken", RuntimeError("oh"))),
        (1.0, _recorded(duties, calls, "fine")),
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
