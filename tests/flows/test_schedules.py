"""Tasks that run by themselves: one job per slot, whoever looks and whatever happens in between."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import redrive
from redrive import Context, InvalidOption, InvalidPayload, Policy, Redrive
from redrive.core.policy import REASONS
from redrive.core.schedule import ON_TIME, Cron
from redrive.core.store import Commit, Filter, Put
from redrive.errors import StoreUnavailable
from redrive.flows.schedules import Schedules, slots_between
from redrive.testing import harness
from tests.support import FakeClock, eventually, opened

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
START = datetime.fromtimestamp(1_800_000_000.0, UTC)  # 2027-01-15 08:00, the tests' clock


async def look(rd: Redrive) -> None:
    """One round of a worker's scheduler."""
    duties = rd.make_scheduler(rd.make_worker())
    await duties.tick()
    assert duties.errors == 0


async def pass_time(rd: Redrive, clock: FakeClock, seconds: float, step: float = MINUTE) -> None:
    """A scheduler looks at every step of the way."""
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await look(rd)


def add(rd: Redrive, *schedules: Cron, **options: Any) -> list[datetime | None]:
    """A task that notes the slots it runs for."""
    ran: list[datetime | None] = []

    @rd.task("nightly", schedule=list(schedules), **options)
    async def nightly(ctx: Context, site: str = "main") -> str:
        ran.append(ctx.slot)
        return site

    return ran


async def slots(rd: Redrive, **filters: Any) -> list[str]:
    """Which slots became jobs, as hours and minutes, oldest first."""
    jobs = (await rd.jobs.list(task="nightly", limit=1000, **filters)).jobs
    return [job.options.headers["redrive-slot"][11:16] for job in reversed(jobs)]


def _core(rd: Redrive, store: Any) -> Any:
    """What schedules work with, with another store."""
    return SimpleNamespace(store=store, registry=rd.registry, bus=rd.bus, clock=rd.clock)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name != "redrive.health"
    ]


@pytest.fixture
def events(rd: Redrive) -> list[redrive.BusEvent]:
    heard: list[redrive.BusEvent] = []
    rd.subscribe("*", lambda event: None if event.type == "pain" else heard.append(event))  # no worker runs them here
    return heard


# Slots become jobs ---------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B29")
@pytest.mark.behaviour("003-17")
async def test_a_slot_becomes_a_job_that_knows_why_and_for_when(
    rd: Redrive, clock: FakeClock, events: list[redrive.BusEvent]
) -> None:
    ran = add(rd, redrive.cron("0 3 * * *", tz="Europe/Rome", payload={"site": "blog"}))
    await look(rd)
    assert (await rd.jobs.list()).jobs == [], "what was before it was first seen is not run"
    await pass_time(rd, clock, DAY, HOUR)
    (job,) = (await rd.jobs.list()).jobs
    three = datetime(2027, 1, 16, 2, 0, tzinfo=UTC)
    assert (job.reason, job.queue, job.arguments) == ("scheduled_job", "nightly", {"site": "blog"})
    assert (job.key, job.run_at) == ("nightly#0@2027-01-16T02:00:00Z", three.timestamp())
    assert await rd.drain() == 1
    assert ran == [three]
    assert [event.type for event in events] == ["enqueued", "completed"], "it is told as any job is"


async def test_a_job_that_nobody_scheduled_has_no_slot(rd: Redrive) -> None:
    ran = add(rd, redrive.cron("@daily"))
    await rd.enqueue("nightly", {}, headers={"redrive-slot": "2027-01-16T02:00:00Z"})
    await rd.drain()
    assert ran == [None]


async def test_several_schedules_of_one_task(rd: Redrive, clock: FakeClock) -> None:
    add(rd, redrive.cron("0 * * * *", payload={"site": "a"}), redrive.cron("30 * * * *", payload={"site": "b"}))
    await look(rd)
    await pass_time(rd, clock, HOUR)
    jobs = (await rd.jobs.list()).jobs
    assert sorted((job.key, job.arguments["site"]) for job in jobs) == [
        ("nightly#0@2027-01-15T09:00:00Z", "a"),
        ("nightly#1@2027-01-15T08:30:00Z", "b"),
    ]


async def test_jitter_moves_the_job_and_not_the_slot(rd: Redrive, clock: FakeClock) -> None:
    ran = add(rd, redrive.cron("0 * * * *", jitter=timedelta(minutes=20)))
    await look(rd)
    await pass_time(rd, clock, HOUR)
    (job,) = (await rd.jobs.list()).jobs
    nine = (START + timedelta(hours=1)).timestamp()
    assert nine < job.run_at < nine + 20 * MINUTE
    assert await rd.drain() == 0
    clock.advance(20 * MINUTE)
    assert await rd.drain() == 1
    assert ran == [START + timedelta(hours=1)]


@pytest.mark.behaviour("003-1")
@pytest.mark.behaviour("003-2")
async def test_jobs_of_every_reason_share_a_store_and_keep_their_policies(rd: Redrive, clock: FakeClock) -> None:
    ran = add(rd, redrive.cron("0 * * * *"))
    await look(rd)
    clock.advance(HOUR)
    for reason in ("retry", "deferred_submit"):
        await rd._enqueuer.insert_one(rd._enqueuer.prepare(rd._enqueuer.plan("nightly", {}, reason), {}))
    await rd.enqueue("nightly")
    await look(rd)
    assert await rd.store.count(Filter(), by=("reason",)) == {(reason,): 1 for reason in REASONS}
    found = {job.reason: rd.registry.policy_for(job) for job in (await rd.jobs.list()).jobs}
    kept = {reason: (policy.max_attempts, policy.backoff, policy.lease) for reason, policy in found.items()}
    assert kept == {
        "direct": (5, "doubling", 90.0),
        "scheduled_job": (5, "doubling", 90.0),
        "retry": (5, "adaptive", 90.0),
        "deferred_submit": (1, "none", 600.0),
    }
    assert {job.reason: job.allowed for job in (await rd.jobs.list()).jobs}["deferred_submit"] == 1
    assert await rd.drain() == len(ran) == 4


@pytest.mark.behaviour("003-2")
async def test_the_policy_of_its_reason_holds(rd: Redrive, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REASONS, "scheduled_job", Policy(max_attempts=2, backoff="fixed_10s"))

    @rd.task("fails", schedule=redrive.cron("0 * * * *"), retry_on=(ValueError,))
    async def fails() -> None:
        raise ValueError("again")

    await look(rd)
    clock.advance(HOUR)
    await look(rd)
    direct = await rd.enqueue("fails")
    await rd.drain()
    (scheduled,) = (await rd.jobs.list(reason="scheduled_job")).jobs
    assert (scheduled.allowed, scheduled.run_at) == (2, clock.now() + 10)
    assert (direct.job.allowed, (await direct.refresh()).run_at) == (5, clock.now() + 2)
    clock.advance(10)
    await rd.drain()
    assert (await rd.jobs.get(scheduled.id)).because == "attempts_exhausted"


async def test_the_task_says_its_queue_and_its_attempts(rd: Redrive, clock: FakeClock) -> None:
    add(rd, redrive.cron("0 * * * *"), queue="reports", max_attempts=7)
    await look(rd)
    clock.advance(HOUR)
    await look(rd)
    (job,) = (await rd.jobs.list()).jobs
    assert (job.queue, job.allowed) == ("reports", 7)


async def test_a_paused_queue_collects_its_jobs(rd: Redrive, clock: FakeClock) -> None:
    ran = add(rd, redrive.cron("0 * * * *", overlap=True))
    await rd.queues.pause("nightly")
    await look(rd)
    await pass_time(rd, clock, 3 * HOUR, HOUR)
    assert (await rd.drain(), await slots(rd, state="waiting")) == (0, ["09:00", "10:00", "11:00"])
    await rd.queues.resume("nightly")
    assert await rd.drain() == 3
    assert sorted(slot.hour for slot in ran if slot) == [9, 10, 11]


async def test_a_process_that_only_enqueues_fires_nothing(rd: Redrive, clock: FakeClock) -> None:
    add(rd, redrive.cron("0 * * * *"))
    await rd.enqueue("nightly")
    for _ in range(3):
        clock.advance(HOUR)
        await rd.health()
        await rd.enqueue("nightly")
    assert (await rd.jobs.list(reason="scheduled_job")).jobs == []
    assert len((await rd.jobs.list()).jobs) == 4
    assert await rd.store.docs("schedule") == []


async def test_drain_runs_the_slots_that_are_due(rd: Redrive, clock: FakeClock) -> None:
    """Where a drain now and then is all the worker there is."""
    ran = add(rd, redrive.cron("0 * * * *"), redrive.cron("0 * * * *", catch_up="all"))
    assert await rd.drain() == 0
    clock.advance(3 * HOUR)
    assert await rd.drain() == 1 + 3
    assert await rd.drain() == 0
    assert sorted(slot.hour for slot in ran if slot) == [9, 10, 11, 11]


async def test_a_worker_fires_by_itself(database: Path) -> None:
    clock = FakeClock()
    async with opened(database, clock=clock, poll=0.05) as rd:
        ran = add(rd, redrive.cron("0 * * * *"))
        async with rd.worker(scheduler=False):
            clock.advance(2 * HOUR)
        async with rd.worker():

            async def seen() -> bool:
                return bool(await rd.store.docs("schedule"))

            await eventually(seen, "the schedule is seen")

            def fires() -> bool:
                clock.advance(20.0)
                return bool(ran)

            await eventually(fires, "the schedule fires")
        assert ran[0] and ran[0] > START + timedelta(hours=2), "the hours before it was seen are past"


# One job per slot ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def two(database: Path, clock: FakeClock, *schedules: Cron, other: Cron | None = None) -> AsyncIterator[Any]:
    async with opened(database, clock=clock) as one, opened(database, clock=clock) as another:
        add(one, *schedules)
        add(another, *([other] if other else schedules))
        yield one, another


async def test_two_processes_make_one_job(database: Path, clock: FakeClock) -> None:
    import asyncio

    async with two(database, clock, redrive.cron("* * * * *", overlap=True)) as apps:
        for _ in range(10):
            await asyncio.gather(*(look(app) for app in apps))
            clock.advance(MINUTE)
        assert len(await slots(apps[0])) == len(set(await slots(apps[0]))) == 9


async def test_a_restart_forgets_nothing(database: Path, clock: FakeClock) -> None:
    found: list[str] = []
    for _ in range(5):
        async with opened(database, clock=clock) as rd:
            add(rd, redrive.cron("0 * * * *", overlap=True))
            await look(rd)
            await look(rd)
            found = await slots(rd)
            clock.advance(HOUR)
    assert found == ["09:00", "10:00", "11:00", "12:00"]


@pytest.mark.parametrize("made", [0, 1, 2])
async def test_what_was_decided_is_done_by_whoever_comes_next(
    rd: Redrive, clock: FakeClock, made: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The process ends after its decision, with none, some or all of the jobs made."""
    add(rd, redrive.cron("0 * * * *", catch_up="all", overlap=True))
    await look(rd)
    clock.advance(2 * HOUR + 1)
    left = made

    async def dies(*job: Any) -> str:
        nonlocal left
        if not left:
            raise StoreUnavailable("killed")
        left -= 1
        return await rd._duties.enqueue_slot(*job)

    class Killed(Exception):
        """Here the process is gone."""

    class Store:
        def __getattr__(self, name: str) -> Any:
            return getattr(rd.store, name)

        async def apply(self, commits: list[Commit]) -> Any:
            if b'"job"' in (commits[0].puts[0].value or b""):
                raise Killed
            return await rd.store.apply(commits)

    with pytest.raises((StoreUnavailable, Killed)):
        await Schedules(_core(rd, Store()), dies).mind()
    assert len(await slots(rd)) == made
    assert any("nightly#0 failed" in said for said in warnings(caplog))
    await look(rd)
    assert await slots(rd) == ["09:00", "10:00"]
    (found,) = await rd.schedules()
    assert found.last_slot == (START + timedelta(hours=2)).timestamp()


async def test_a_decision_on_what_has_changed_meanwhile_does_not_count(
    rd: Redrive, clock: FakeClock, events: list[redrive.BusEvent]
) -> None:
    add(rd, redrive.cron("0 * * * *", overlap=True))
    await look(rd)
    old = await rd.store.docs("schedule")
    await pass_time(rd, clock, HOUR, HOUR)
    clock.advance(HOUR)

    class Slow:
        """Looked before somebody else moved the schedule on, and decides now."""

        def __getattr__(self, name: str) -> Any:
            return getattr(rd.store, name)

        async def docs(self, kind: str) -> Any:
            return old

    assert await Schedules(_core(rd, Slow()), rd._duties.enqueue_slot).mind() == 0
    assert await slots(rd) == ["09:00"]
    await look(rd)
    assert await slots(rd) == ["09:00", "10:00"]
    assert [event.type for event in events] == ["enqueued", "enqueued"], "nothing was missed"


async def test_a_clock_that_goes_back_runs_no_slot_twice(
    rd: Redrive, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    add(rd, redrive.cron("0 * * * *", overlap=True))
    await look(rd)
    await pass_time(rd, clock, 3 * HOUR, HOUR)
    clock._now -= 2 * HOUR
    await look(rd)
    assert any("went back" in said for said in warnings(caplog))
    await pass_time(rd, clock, 3 * HOUR, HOUR)
    assert await slots(rd) == ["09:00", "10:00", "11:00", "12:00"]


async def test_a_clock_that_was_years_ahead_does_not_silence_a_schedule(rd: Redrive, clock: FakeClock) -> None:
    add(rd, redrive.cron("0 * * * *", overlap=True))
    clock._now += 1000 * DAY
    await look(rd)
    clock._now -= 1000 * DAY
    await look(rd)
    await pass_time(rd, clock, 2 * HOUR, HOUR)
    assert await slots(rd) == ["09:00", "10:00"]


async def test_a_slot_that_has_its_job_with_another_payload_stays(
    rd: Redrive, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    add(rd, redrive.cron("0 * * * *", payload={"site": "new"}))
    await look(rd)
    key = "nightly#0@2027-01-15T09:00:00Z"
    first = await rd.enqueue("nightly", {"site": "old"}, idempotency_key=key)
    clock.advance(HOUR)
    await look(rd)
    (found,) = await rd.schedules()
    assert (found.job, found.last_slot) == (first.id, (START + timedelta(hours=1)).timestamp())
    assert any("another payload" in said for said in warnings(caplog))


# Missed slots --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected", "left_out"),
    [
        ({}, ["13:00"], 4),
        ({"catch_up": "latest", "overlap": True}, ["13:00"], 4),
        ({"catch_up": "skip"}, [], 5),
        ({"catch_up": "all", "overlap": True}, ["09:00", "10:00", "11:00", "12:00", "13:00"], 0),
        ({"catch_up": "all", "overlap": True, "cap": 2}, ["12:00", "13:00"], 3),
    ],
)
async def test_slots_that_nobody_was_there_for(
    rd: Redrive, clock: FakeClock, events: list[redrive.BusEvent], caplog: pytest.LogCaptureFixture,
    said: dict[str, Any], expected: list[str], left_out: int,
) -> None:  # fmt: skip
    add(rd, redrive.cron("0 * * * *", **said))
    await look(rd)
    clock.advance(5 * HOUR + ON_TIME + 1)
    await look(rd)
    await look(rd)
    assert await slots(rd) == expected
    told = [event for event in events if event.type == "schedule_skipped"]
    assert [(event.data or {})["left_out"] for event in told] == [left_out] * bool(left_out)
    assert [f"{left_out} slots from" in text for text in warnings(caplog)] == [True] * bool(left_out)
    clock.advance(HOUR)
    await look(rd)
    assert len(await slots(rd)) >= len(expected), "and it goes on"


async def test_skip_runs_what_is_on_time(rd: Redrive, clock: FakeClock) -> None:
    add(rd, redrive.cron("0 * * * *", catch_up="skip", overlap=True))
    await look(rd)
    clock.advance(3 * HOUR + ON_TIME / 2)
    await look(rd)
    assert await slots(rd) == ["11:00"]


async def test_all_without_overlap_come_one_after_the_other(rd: Redrive, clock: FakeClock) -> None:
    add(rd, redrive.cron("0 * * * *", catch_up="all", cap=3))
    await look(rd)
    clock.advance(5 * HOUR)
    for expected in ("11:00", "12:00", "13:00"):
        await look(rd)
        await look(rd)
        assert await slots(rd, state="waiting") == [expected], "the next waits for the one before"
        await rd.jobs.cancel((await rd.jobs.list(state="waiting")).jobs[0].id)
    await look(rd)
    assert await slots(rd) == ["11:00", "12:00", "13:00"]


async def test_a_year_of_missed_minutes_costs_no_more_than_its_cap(
    rd: Redrive, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    add(rd, redrive.cron("* * * * *", catch_up="all", overlap=True, cap=2))
    await look(rd)
    clock.advance(365 * DAY + 30)
    await look(rd)
    assert await slots(rd) == ["07:59", "08:00"]
    assert any("1000 or more slots" in text for text in warnings(caplog))


@pytest.mark.parametrize("line", ["* * * * *", "0 3 * * *", "30 2 * * *", "0 0 29 2 *", "*/7 9-17 * * MON-FRI"])
@pytest.mark.parametrize("most", [1, 10, 10_000])
def test_the_newest_slots_are_the_newest_of_all(line: str, most: int) -> None:
    until = datetime(2026, 11, 3, 12, 0, tzinfo=UTC).timestamp()
    after = until - 40 * DAY
    whole: list[float] = slots_between(line, "Europe/Rome", after, until, 10**9)
    assert slots_between(line, "Europe/Rome", after, until, most) == whole[-most:]
    assert whole == sorted(set(whole))
    assert all(after < slot <= until for slot in whole)


# Overlap -------------------------------------------------------------------------------------------------------------


async def _running(rd: Redrive) -> None:
    from redrive.core.store import Wanted

    assert (await rd.store.claim(Wanted(slots=1), "somebody", rd.clock.now())).jobs


async def _nothing(rd: Redrive) -> None: ...


@pytest.mark.parametrize(("state", "happens"), [("waiting", _nothing), ("running", _running)])
async def test_a_slot_is_skipped_while_an_earlier_job_is_open(
    rd: Redrive, clock: FakeClock, events: list[redrive.BusEvent], caplog: pytest.LogCaptureFixture, state: str,
    happens: Callable[[Redrive], Any],
) -> None:  # fmt: skip
    add(rd, redrive.cron("0 * * * *"))
    await look(rd)
    clock.advance(HOUR)
    await look(rd)
    await happens(rd)
    clock.advance(HOUR)
    await Schedules(rd.core, rd._duties.enqueue_slot).mind()
    (job,) = (await rd.jobs.list()).jobs
    assert job.state == state
    assert any(f"still {state}" in text and job.short_id in text for text in warnings(caplog))
    (told,) = [event for event in events if event.type == "schedule_skipped"]
    assert (told.task, told.queue) == ("nightly", "nightly")
    assert told.data and told.data["schedule"] == "nightly#0" and "10:00" in told.data["why"]
    (found,) = await rd.schedules()
    assert found.note and "skipped" in found.note and found.due_since is None


async def test_a_held_job_blocks_and_a_dead_one_does_not(rd: Redrive, clock: FakeClock) -> None:
    @rd.task("nightly", schedule=redrive.cron("0 * * * *"), max_attempts=1)
    async def nightly(ctx: Context) -> None:
        if ctx.slot and ctx.slot.hour == 9:
            raise ValueError("dies")
        raise redrive.OutcomeUnknown("perhaps")

    await look(rd)
    for _ in range(4):
        clock.advance(HOUR)
        await look(rd)
        await rd.drain()
    states = [job.state for job in reversed((await rd.jobs.list()).jobs)]
    assert states == ["dead", "held"]


async def test_an_older_job_that_came_back_blocks_as_well(rd: Redrive, clock: FakeClock) -> None:
    broken = True

    @rd.task("nightly", schedule=redrive.cron("0 * * * *"), max_attempts=1)
    async def nightly() -> None:
        if broken:
            raise PermissionError("not yours")

    await look(rd)
    for _ in range(2):
        clock.advance(HOUR)
        await look(rd)
        await rd.drain()
        broken = False
    (dead,) = (await rd.dead.list()).jobs
    await rd.dead.redrive(dead.id)
    clock.advance(HOUR)
    await look(rd)
    assert await slots(rd) == ["09:00", "10:00"]


async def test_other_jobs_of_the_task_do_not_block(rd: Redrive, clock: FakeClock) -> None:
    add(rd, redrive.cron("0 * * * *"), redrive.cron("0 * * * *"))
    await rd.enqueue("nightly")
    await look(rd)
    clock.advance(HOUR)
    await look(rd)
    assert len((await rd.jobs.list(reason="scheduled_job")).jobs) == 2


# Changes of the code -------------------------------------------------------------------------------------------------


async def test_a_changed_line_starts_from_now(database: Path, clock: FakeClock) -> None:
    async def deploy(line: str, tz: str = "UTC") -> list[str]:
        async with opened(database, clock=clock) as rd:
            add(rd, redrive.cron(line, tz=tz, overlap=True))
            await look(rd)
            await look(rd)
            return await slots(rd)

    await deploy("0 * * * *")
    clock.advance(90 * MINUTE)
    assert await deploy("15 * * * *") == [], "09:15 is past"
    clock.advance(60 * MINUTE)
    assert await deploy("15 * * * *") == ["10:15"]
    clock.advance(3 * HOUR)
    assert await deploy("0 * * * *") == ["10:15"], "back again: the hours in between were not its own"
    clock.advance(HOUR)
    assert await deploy("0 * * * *") == ["10:15", "14:00"]
    assert await deploy("0 * * * *", "Europe/Rome") == ["10:15", "14:00"]


async def test_during_a_deploy_old_and_new_line_both_fire(database: Path, clock: FakeClock) -> None:
    async with two(
        database, clock, redrive.cron("0 * * * *", overlap=True), other=redrive.cron("30 * * * *", overlap=True)
    ) as (old, new):
        await look(old)
        await look(new)
        for _ in range(3 * 6):
            clock.advance(10 * MINUTE)
            await look(old)
            await look(new)
        assert await slots(old) == ["08:30", "09:00", "09:30", "10:00", "10:30", "11:00"]


async def test_another_policy_goes_on_where_the_line_stood(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as rd:
        add(rd, redrive.cron("0 * * * *"))
        await look(rd)
    clock.advance(2 * HOUR)
    async with opened(database, clock=clock) as rd:
        add(rd, redrive.cron("0 * * * *", catch_up="all", overlap=True))
        await look(rd)
        assert await slots(rd) == ["09:00", "10:00"]


async def test_a_schedule_that_fails_does_not_stop_the_others(
    rd: Redrive, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    add(rd, redrive.cron("0 * * * *"), redrive.cron("0 * * * *"))
    await look(rd)
    await rd.store.apply([Commit(puts=(Put("schedule", "nightly#0", b"not ours"),))])
    clock.advance(HOUR)
    duties = rd.make_scheduler(rd.make_worker())
    await duties.tick()
    assert duties.errors == 1
    assert [job.key for job in (await rd.jobs.list()).jobs] == ["nightly#1@2027-01-15T09:00:00Z"]
    assert any("nightly#0 failed" in said for said in warnings(caplog))


# Refused at registration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "error", "field"),
    [
        (lambda: redrive.cron("61 * * * *"), InvalidOption, "schedule"),
        (lambda: redrive.cron("@reboot"), InvalidOption, "schedule"),
        (lambda: redrive.cron("0 0 30 2 *"), InvalidOption, "schedule"),
        (lambda: redrive.cron(""), InvalidOption, "schedule"),
        (lambda: redrive.cron("@daily", tz="Mars/Base"), InvalidOption, "schedule.tz"),
        (lambda: redrive.cron("@daily", tz="Europe"), InvalidOption, "schedule.tz"),
        (lambda: "every night", InvalidOption, "schedule"),
        (lambda: ["61 * * * *"], InvalidOption, "schedule"),
        (lambda: 3, InvalidOption, "schedule"),
        (lambda: redrive.cron("@daily"), InvalidPayload, "payload"),
        (lambda: redrive.cron("@daily", payload={"site": 3}), InvalidPayload, "payload"),
        (lambda: redrive.cron("@daily", payload={"site": "a", "more": 1}), InvalidPayload, "payload"),
        (lambda: redrive.cron("@daily", payload={"site": object()}), InvalidPayload, "payload.site"),
        (lambda: [redrive.cron("@daily", payload={"site": "a"}), redrive.cron("x")], InvalidOption, "schedule"),
    ],
)
async def test_what_could_never_run_is_refused(
    rd: Redrive, said: Callable[[], Any], error: type[redrive.InvalidInput], field: str
) -> None:
    with pytest.raises(error) as refused:

        @rd.task("picky", schedule=said())
        async def picky(site: str) -> None: ...

    assert refused.value.field == field
    assert "picky" not in rd.registry.handlers


# Looking -------------------------------------------------------------------------------------------------------------


async def test_a_list_of_what_stands_where(rd: Redrive, clock: FakeClock, database: Path) -> None:
    add(rd, redrive.cron("0 * * * *"), redrive.cron("0 3 * * *", tz="Europe/Rome"))
    first, second = await rd.schedules()
    assert (first.name, first.task, first.line, first.tz, first.job) == (
        "nightly#0",
        "nightly",
        "0 * * * *",
        "UTC",
        None,
    )
    assert first.next_slot == (START + timedelta(hours=1)).timestamp()
    assert (second.last_slot, second.next_slot) == (None, datetime(2027, 1, 16, 2, 0, tzinfo=UTC).timestamp())
    await look(rd)
    clock.advance(HOUR)
    await look(rd)
    await rd.drain()
    async with opened(database, clock=clock) as without_code:
        for app in (rd, without_code):
            found, _ = await app.schedules()
            (job,) = (await rd.jobs.list()).jobs
            assert (found.last_slot, found.job, found.state) == (clock.now(), job.id, "done")
            assert (found.next_slot, found.due_since) == (clock.now() + HOUR, None)
        clock.advance(2 * HOUR)
        found, _ = await without_code.schedules()
        assert found.due_since == (START + timedelta(hours=2)).timestamp(), "nobody fires it any more"
        assert found.public()["due_since"] == "2027-01-15T10:00:00.000Z"
        assert await without_code.forget_schedule("nightly#0")
        assert not await without_code.forget_schedule("nightly#0")
        assert [one.name for one in await without_code.schedules()] == ["nightly#1"]


# In users' tests -----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("T-3d")
async def test_a_schedule_that_no_worker_fires_is_a_need_for_every_process(database: Path, clock: FakeClock) -> None:
    """Without a worker its slot becomes no job: nothing is due, and nothing has failed."""
    async with opened(database, clock=clock) as rd, opened(database, clock=clock) as stranger:
        ran = add(rd, redrive.cron("0 2 * * *"))
        async with rd.worker():
            await eventually(lambda: has_begun(rd), "the schedule begins")
        assert (await stranger.health()).status == "healthy", "its slot is not due yet"
        clock.advance(3 * DAY)
        health = await stranger.health()
        assert [(need.kind, need.id, need.task) for need in health.needs] == [
            ("unattended", "unattended:schedule:nightly#0", "nightly")
        ]
        assert (health.status, health.exit_code) == ("degraded", 1)
        (issue,) = health.issues
        assert issue.startswith("schedule nightly#0 (0 2 * * *): a slot is due since 2027-01-16T02:00:00.000Z")
        assert not (await stranger.morning()).ok
        async with rd.worker():
            await eventually(lambda: bool(ran), "the next worker fires it")
        clock.advance(HOUR)
        assert await stranger.needs() == []
        clock.advance(DAY)
        assert [need.kind for need in await stranger.needs()] == ["unattended"]
        await stranger.forget_schedule("nightly#0")
        assert await stranger.needs() == []


@pytest.mark.behaviour("T-3d")
async def test_a_slot_that_waits_for_an_earlier_job_is_no_need(rd: Redrive, clock: FakeClock) -> None:
    add(rd, redrive.cron("0 2 * * *", catch_up="all"))
    await look(rd)
    clock.advance(DAY)
    await look(rd)
    clock.advance(DAY)
    needs = [need.id for need in await rd.needs()]
    assert needs == ["unattended:nightly/nightly"], "its job is due, and says that already"


async def has_begun(rd: Redrive) -> bool:
    from redrive.core.documents import SCHEDULE  # a new name: the other tests here also run on the source before it

    return bool(await SCHEDULE.all(rd.store))


async def test_the_harness_lets_schedules_fire_in_order(tmp_path: Path) -> None:
    rd = Redrive(tmp_path / "never-made.db")
    order: list[tuple[str, datetime | None]] = []

    @rd.task(schedule=redrive.cron("*/30 * * * *"))
    async def half(ctx: Context) -> None:
        order.append(("half", ctx.slot))
        if ctx.slot == START + timedelta(minutes=30):
            await later.options(delay=600).enqueue()

    @rd.task
    async def later() -> None:
        order.append(("later", None))

    async with harness(rd) as t:
        assert await t.advance(29 * MINUTE) == 0
        assert await t.advance(timedelta(minutes=61)) == 4
        half_past = START + timedelta(minutes=30)
        assert order == [("half", half_past), ("later", None)] + [
            ("half", half_past + timedelta(minutes=30 * n)) for n in (1, 2)
        ]
        assert [job.reason for job in await t.jobs(half)] == ["scheduled_job"] * 3


async def test_the_harness_fires_every_minute_of_a_long_time(tmp_path: Path, size: Callable[[int, int], int]) -> None:
    rd = Redrive(tmp_path / "never-made.db")

    @rd.task(schedule=redrive.cron("* * * * *"))
    async def often() -> None: ...

    minutes = size(30, 1_440)
    async with harness(rd) as t:
        assert await t.advance(minutes * MINUTE) == minutes


ROME = [
    ("30 2 * * *", "2026-03-29", ["01:00"]),  # does not exist: runs when the clocks have moved
    ("30 2 * * *", "2026-10-25", ["00:30"]),  # exists twice: runs the first time
    ("0 3 * * *", "2026-03-29", ["01:00"]),
    ("0 3 * * *", "2026-10-25", ["02:00"]),
    ("0,30 2 * * *", "2026-03-29", ["01:00"]),
]


@pytest.mark.parametrize(("line", "day", "expected"), ROME)
async def test_when_the_clocks_change_a_daily_slot_runs_once(
    tmp_path: Path, line: str, day: str, expected: list[str]
) -> None:
    from zoneinfo import ZoneInfo

    rd = Redrive(tmp_path / "never-made.db")
    ran = add(rd, redrive.cron(line, tz="Europe/Rome", overlap=True))
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Rome"))
    async with harness(rd, start=midnight.timestamp()) as t:
        await t.advance((midnight + timedelta(days=1)).timestamp() - midnight.timestamp())
    assert [slot.strftime("%H:%M") for slot in ran if slot] == expected


async def test_a_schedule_first_seen_in_the_hour_that_comes_twice(tmp_path: Path) -> None:
    """02:30 was there already, and the second one is not another."""
    rd = Redrive(tmp_path / "never-made.db")
    ran = add(rd, redrive.cron("30 2 * * *", tz="Europe/Rome"))
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time
    async with harness(rd, start=second.timestamp()) as t:
        await t.advance(DAY / 2)
        assert ran == []
        await t.advance(DAY)
    assert ran == [datetime(2026, 10, 26, 1, 30, tzinfo=UTC)]
