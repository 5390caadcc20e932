"""Reports from a store in which things really happened: months, weeks, the failure log, activity, load, a glance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import InvalidOption
from redrive.core.notice import Message
from redrive.core.store import Commit
from redrive.engine.worker_registry import GONE_AFTER, Announcement, put_announcement
from redrive.reports.periods import headline, percent
from tests.fleet_hosts import HOUR, YEAR, Fleet, at
from tests.support import FakeClock, PassingTime, eventually, soon
from tests.web.serving import serving


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(at(2026, 2, 3, 9))


@pytest.fixture
async def fleet(database: Path, clock: FakeClock, preset: Any) -> AsyncIterator[Fleet]:
    async with redrive.Redrive(database, clock=clock, preset=preset) as rd:
        yield Fleet(rd, clock)


# ---- months and weeks


@pytest.mark.behaviour("004-17", "004-39", "004-41", "004-58", "C39")
async def test_the_table_of_a_year(fleet: Fleet) -> None:
    for month in YEAR:
        await fleet.live_a_month(2026, month)
    fleet.go_to(at(2026, 12, 23, 12))
    found = await fleet.rd.reports.monthly()
    assert [row.label for row in found.rows[:2]] == ["Feb 2026", "Mar 2026"]
    assert found.rows[-1].label == "Dec 2026 (1-23)"
    told = [(row.processed, row.died, percent(row.rate, 2), row.auto, row.human) for row in found.rows]
    assert told == [
        (1240, 14, "1.13 %", 8, 6),
        (2810, 11, "0.39 %", 9, 2),
        (3150, 12, "0.38 %", 10, 2),
        (2680, 9, "0.34 %", 8, 1),
        (2940, 10, "0.34 %", 9, 1),
        (3020, 11, "0.36 %", 10, 1),
        (2790, 10, "0.36 %", 9, 1),
        (2410, 9, "0.37 %", 8, 1),
        (2150, 12, "0.56 %", 9, 3),
        (1660, 11, "0.66 %", 9, 2),
        (1297, 9, "0.69 %", 7, 2),
    ]
    total = found.total
    assert (total.processed, total.died, percent(total.rate, 2)) == (26_147, 118, "0.45 %")
    assert (total.auto, percent(total.auto_share)) == (96, "81 %")
    assert (total.human, percent(total.human_share)) == (22, "19 %")
    assert [row.deferred for row in found.rows] == [0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2]
    first = len(YEAR)  # of each month, after an hour; a second later it is seen to be done, and the others follow
    assert total.auto_mttr == pytest.approx(HOUR + 2 * (96 - first) / 96)
    assert total.person_mttr == pytest.approx(4.2 * HOUR)
    assert total.open == 0


class Expired(Exception):
    status_code = 401


@pytest.mark.behaviour("004-39", "004-17", "C39")
async def test_the_row_of_a_month_that_a_worker_lived_through(database: Path, clock: FakeClock) -> None:
    """Default settings, a worker that runs by itself, a person who sees to what needs one: the books of that month."""
    async with redrive.Redrive(database, clock=clock) as rd:

        @rd.task
        async def work(ctx: redrive.Context, fate: str, n: int) -> str:
            if fate == "fine" or ctx.attempt > 1:
                return "done"
            if fate == "drops":
                raise ConnectionError("a blip")
            if fate == "expires":
                raise Expired("token expired")
            raise redrive.GiveUp("a person must decide")

        ids: dict[str, list[str]] = {
            fate: [(await work.enqueue(fate, n)).id for n in range(number)]
            for fate, number in (("fine", 20), ("drops", 3), ("expires", 2), ("gives up", 5))
        }

        async def all_at_their_end() -> bool:
            stats = (await rd.stats())["totals"]
            return (stats["waiting"], stats["running"], stats["dead"]) == (0, 0, 5)

        async with rd.worker():
            passing = PassingTime(clock)
            await passing.until(all_at_their_end, "all but five dead letters are done")
            redriven, edited, discarded, deferred, _ = ids["gives up"]
            await rd.dead.redrive(redriven, who="ada")
            await rd.dead.edit(edited, {"fate": "fine", "n": 99}, who="ada")
            await rd.dead.discard(discarded, who="ada", why="nobody needs it")
            await rd.dead.defer(deferred, owner="ada", until=timedelta(hours=2), who="ada")

            async def done() -> bool:
                return (await rd.stats())["totals"]["done"] == 27

            await passing.until(done, "what was brought back is done")
        (row,) = (await rd.reports.monthly()).rows
        async with serving(rd, worker=False) as served:
            told = await served.get("/v1/reports/monthly")
    assert (row.processed, row.died, row.auto, row.human, row.deferred) == (30, 7, 2, 5, 1)
    assert (row.rate, row.open) == (7 / 30, 0)
    assert row.died == row.auto + row.human + row.open
    assert row.person == 3, "one is put off, one has not been looked at"
    (shown,) = told["rows"]
    names = ("processed", "dead_letters", "rate", "auto_resolved", "human_required", "deferred")
    assert [shown[name] for name in names] == [30, 7, pytest.approx(7 / 30, abs=1e-5), 2, 5, 1]
    assert [told["total"][name] for name in names[:2]] == [30, 7]


async def test_a_job_that_died_in_one_month_and_was_done_in_the_next_is_processed_once(fleet: Fleet) -> None:
    fleet.go_to(at(2026, 2, 28, 12))
    await fleet.live(fine=9, gives_up=1)
    fleet.go_to(at(2026, 3, 2, 12))
    (letter,) = await fleet.letters()
    await fleet.rd.dead.redrive(letter, who="ada")
    await fleet.live(fine=4)
    february, march = (await fleet.rd.reports.monthly()).rows
    assert (february.processed, february.died, february.person, february.human) == (10, 1, 1, 1)
    assert (march.processed, march.died, march.person, march.human) == (4, 0, 0, 0)
    assert february.person_mttr == pytest.approx(2 * 86400.0)


async def test_what_comes_back_by_itself_is_open_and_needs_nobody(fleet: Fleet) -> None:
    await fleet.live(fine=5, expires=3, gives_up=2)
    total = (await fleet.rd.reports.monthly()).total
    assert (total.died, total.auto, total.human, total.open) == (5, 0, 2, 3)
    await fleet.bring_back()
    total = (await fleet.rd.reports.monthly()).total
    assert (total.died, total.auto, total.human, total.open) == (5, 3, 2, 0)
    assert total.person == 0  # nobody has seen to the two yet, which is what they need


@pytest.mark.behaviour("004-58")
async def test_what_comes_back_by_itself_is_auto_and_what_a_person_put_off_is_deferred(fleet: Fleet) -> None:
    rd = fleet.rd
    errors: dict[int, list[Exception]] = {
        1: [PermissionError("not yours")],
        2: [ConnectionError("down")],
        3: [ConnectionError("down")] * 2,
    }

    @rd.task(max_attempts=1, backoff="none")
    async def fetch(page: int) -> None:
        if errors[page]:
            raise errors[page].pop()

    async def die(page: int) -> str:
        job = await fetch.enqueue(page)
        await fleet.run()
        return job.id

    first = await die(1)
    await rd.dead.defer(first, owner="ada", until=timedelta(days=1), who="ada")
    total = (await rd.reports.monthly()).total
    assert (total.died, total.auto, total.human, total.deferred) == (1, 0, 1, 1)
    fleet.clock.advance(4.2 * HOUR)
    await rd.dead.recall(first, who="ada")
    await rd.dead.redrive(first, who="ada")
    await fleet.run()
    await die(2)
    fleet.clock.advance(600)
    await fleet.run()
    total = (await rd.reports.monthly()).total
    assert (total.processed, total.died, total.auto, total.human, total.deferred) == (2, 2, 1, 1, 1)
    assert total.auto_mttr == pytest.approx(600)
    assert total.person_mttr == pytest.approx(4.2 * HOUR)


async def test_a_job_that_comes_back_twice_died_once(fleet: Fleet) -> None:
    failures = iter([True] * 3 + [False])

    @fleet.rd.task(max_attempts=1, backoff="none")
    async def fetch() -> None:
        if next(failures):
            raise ConnectionError("down")

    job = await fetch.enqueue()
    await fleet.run()
    died = fleet.clock.now()
    while (await job.refresh()).state != "done":
        fleet.clock.advance(60)
        await fleet.run()
    assert (await job.refresh()).comebacks == 2
    total = (await fleet.rd.reports.monthly()).total
    assert (total.processed, total.died, total.auto, total.human, total.open) == (1, 1, 1, 0, 0)
    assert total.auto_mttr == pytest.approx(fleet.clock.now() - died), "from its first death"


async def test_what_is_let_go_took_a_person_and_what_is_restored_still_does(fleet: Fleet) -> None:
    await fleet.live(gives_up=3)
    first, second, third = await fleet.letters()
    await fleet.rd.dead.discard(first, who="ada")
    await fleet.rd.jobs.resolve(second, why="done by hand", who="ada")
    total = (await fleet.rd.reports.monthly()).total
    assert (total.processed, total.died, total.person, total.human, total.open) == (3, 3, 2, 3, 0)
    await fleet.rd.dead.restore(first, who="ada")
    total = (await fleet.rd.reports.monthly()).total
    assert (total.processed, total.died, total.person, total.human) == (3, 3, 1, 3)
    await fleet.rd.dead.purge([third], who="ada")
    assert (await fleet.rd.reports.monthly()).total.person == 2


async def test_a_letter_that_dies_again_is_one_dead_letter(fleet: Fleet) -> None:
    await fleet.live(gives_up=1)
    (letter,) = await fleet.letters()
    fleet._failed.clear()
    await fleet.rd.dead.redrive(letter, who="ada")
    await fleet.run()
    assert await fleet.letters() == [letter]
    total = (await fleet.rd.reports.monthly()).total
    assert (total.processed, total.died, total.human) == (1, 1, 1)
    assert (await fleet.rd.reports.failures()).buried == 2  # the log keeps every failure


@pytest.mark.parametrize(
    ("tz", "months"), [("UTC", ["2026-02"]), ("Europe/Rome", ["2026-03"]), ("America/New_York", ["2026-02"])]
)
async def test_months_are_those_of_a_calendar(fleet: Fleet, tz: str, months: list[str]) -> None:
    fleet.go_to(at(2026, 2, 28, 23, 10))  # past midnight in Rome
    await fleet.live(fine=2)
    found = await fleet.rd.reports.monthly(tz=tz)
    assert ([row.name for row in found.rows], found.total.processed) == (months, 2)


async def test_no_hour_is_lost_or_counted_twice_where_midnight_is_within_one(fleet: Fleet) -> None:
    """In Kolkata the month begins half an hour into an hour of UTC."""
    for minutes in (0, 20, 40, 65, 95):
        fleet.go_to(at(2026, 2, 28, 18) + 60.0 * minutes)
        await fleet.live(fine=1, gives_up=1)
    fleet.go_to(at(2026, 3, 5))
    found = await fleet.rd.reports.monthly(tz="Asia/Kolkata")
    assert [(row.name, row.processed, row.died) for row in found.rows] == [("2026-02", 6, 3), ("2026-03", 4, 2)]
    assert (found.total.processed, found.total.died) == (10, 5)


@pytest.mark.behaviour("004-30")
async def test_the_weekly_report_says_what_to_change(fleet: Fleet) -> None:
    """Weeks begin on Monday; causes are compared with the week before, strategies with how often they worked."""
    fleet.go_to(at(2026, 2, 4))
    await fleet.live(fine=10, gives_up=1)
    fleet.go_to(at(2026, 2, 11))
    await fleet.live(fine=20, gives_up=4, slow=3)
    fleet.clock.advance(600)
    await fleet.run()
    found = await fleet.rd.reports.weekly()
    assert [(row.name, row.processed, row.died) for row in found.rows] == [("2026-W06", 11, 1), ("2026-W07", 27, 4)]
    assert headline(found) == (
        "2026-W07 (from 09 Feb): 27 processed, 4 dead letters (14.81 %), 0 resolved by themselves, 4 for a person"
    )
    causes = {cause.detail: (cause.category, cause.failed, cause.buried, cause.more) for cause in found.causes}
    assert causes == {"gave_up": ("permanent", 4, 4, 3), "timeout": ("transient", 3, 0, 0)}
    (retry,) = found.strategies
    assert (retry.worked, retry.failed, retry.rate) == (3, 0, 1.0)


async def test_one_agent_one_queue_one_task(fleet: Fleet) -> None:
    await fleet.enqueue({"fine": 3, "gives_up": 1}, agent="cto", queue="a")
    await fleet.enqueue({"fine": 7}, agent="cso", queue="b")
    await fleet.run()
    found = await fleet.rd.reports.monthly()
    assert [(row.name, row.processed, row.died) for row in found.agents] == [("cto", 4, 1), ("cso", 7, 0)]
    parts: list[tuple[dict[str, Any], int]] = [
        ({"agent": "cto"}, 4), ({"queue": "b"}, 7), ({"task": "work"}, 11), ({"task": "x"}, 0),
    ]  # fmt: skip
    for said, processed in parts:
        assert (await fleet.rd.reports.monthly(**said)).total.processed == processed
        assert (await fleet.rd.reports.weekly(**said)).total.processed == processed


async def test_a_store_without_a_past_says_so(fleet: Fleet) -> None:
    found = await fleet.rd.reports.monthly()
    assert (len(found.rows), found.total.empty, found.agents, found.strategies) == (1, True, [], [])
    assert headline(found) == "Feb 2026 (1-3): nothing was processed"


# ---- the failure log


@pytest.mark.behaviour("004-34")
async def test_the_failure_log_by_agent_category_and_date(fleet: Fleet) -> None:
    for day, agent, fate in ((3, "cto", "gives_up"), (4, "cto", "slow"), (5, "cso", "gives_up"), (5, "cso", "slow")):
        fleet.go_to(at(2026, 2, day, 10))
        await fleet.enqueue({fate: day}, agent=agent)
        await fleet.run()
    log = fleet.rd.reports.failures
    every = await log()
    assert (every.failed, every.buried) == (17, 8)
    assert every.by("day") == {"2026-02-03": 3, "2026-02-04": 4, "2026-02-05": 10}
    assert every.by("agent") == {"cso": 10, "cto": 7}
    assert every.by("category") == {"transient": 9, "permanent": 8}
    assert [(line.day, line.agent, line.category, line.failed) for line in every.lines] == [
        ("2026-02-05", "cso", "permanent", 5),
        ("2026-02-05", "cso", "transient", 5),
        ("2026-02-04", "cto", "transient", 4),
        ("2026-02-03", "cto", "permanent", 3),
    ]
    assert (await log(agent="cto")).failed == 7
    assert (await log(category="permanent")).failed == 8
    assert (await log(date="2026-02-05")).failed == 10
    assert (await log(date=date(2026, 2, 4), category="transient", agent="cto")).failed == 4
    assert (await log(date=date(2026, 2, 4), category="permanent")).lines == []
    assert (await log(since=datetime(2026, 2, 4, tzinfo=UTC), until=datetime(2026, 2, 5, tzinfo=UTC))).failed == 4
    assert (await log(since=timedelta(hours=30))).failed == 14
    assert (await log(detail="timeout")).failed == (await log(detail="llm_provider_timeout")).failed == 9
    assert (await log(error_class="GiveUp", task="work", queue="work")).failed == 8


async def test_the_log_says_how_many_lines_it_left_out(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.reports.periods.LINES", 1)
    await fleet.live(gives_up=1)
    await fleet.rd.dead.add("k", {}, KeyError("x"), task="other")
    shown = (await fleet.rd.reports.failures()).public()
    assert (len(shown["lines"]), shown["more_lines"], shown["failed"]) == (1, 1, 2)


async def test_the_letters_that_are_left_come_with_the_log(fleet: Fleet) -> None:
    await fleet.live(gives_up=3)
    found = await fleet.rd.reports.failures(limit=2)
    assert ([job.id for job in found.letters], found.more_letters) == ((await fleet.letters())[:2], True)
    assert found.public()["letters"][0]["error"] == "GiveUp: a person must decide"
    none = await fleet.rd.reports.failures(category="transient")
    assert (none.letters, none.more_letters) == ([], False)


@pytest.mark.behaviour("004-37")
async def test_no_failure_ever_expires(fleet: Fleet) -> None:
    await fleet.live(fine=2, gives_up=2)
    fleet.clock.advance(300 * 86400.0)
    await fleet.rd.store.prune(fleet.clock.now(), {}, 14 * 86400.0)
    assert (await fleet.rd.reports.failures(since=timedelta(days=301))).buried == 2
    assert len(await fleet.letters()) == 2
    assert (await fleet.rd.reports.monthly()).total.died == 2


# ---- activity, load, a glance


@pytest.mark.behaviour("004-35")
async def test_activity_by_the_hour(fleet: Fleet) -> None:
    await fleet.live(fine=5, gives_up=1)
    fleet.clock.advance(HOUR)
    await fleet.enqueue({"fine": 4})
    fleet.clock.advance(HOUR)
    await fleet.live(fine=1)
    found = await fleet.rd.reports.activity(hours=4)
    assert (found.step, len(found.starts), found.starts[-1]) == (HOUR, 4, at(2026, 2, 3, 11))
    (series,) = found.queues
    assert series.flows["enqueued"] == [0, 6, 4, 1]
    assert series.flows["succeeded"] == [0, 5, 0, 5]
    assert series.flows["buried"] == [0, 1, 0, 0]
    assert series.backlog == [0, 0, 4, 0]
    assert found.total.backlog == series.backlog


async def test_activity_by_the_minute_and_queue(fleet: Fleet) -> None:
    await fleet.enqueue({"slow": 2}, queue="a")
    await fleet.enqueue({"fine": 3}, queue="b")
    fleet.clock.advance(60)
    await fleet.run()
    fleet.clock.advance(60)
    found = await fleet.rd.reports.activity(minutes=3)
    assert [(one.queue, one.backlog) for one in found.queues] == [("a", [2, 2, 2]), ("b", [3, 0, 0])]
    assert (found.of("a").flows["retried"], found.of("b").flows["succeeded"]) == ([0, 2, 0], [0, 3, 0])
    assert found.total.backlog == [5, 2, 2]
    one = await fleet.rd.reports.activity(minutes=3, queue="b")
    assert [series.queue for series in one.queues] == ["b"]
    assert (await fleet.rd.reports.activity(minutes=3, queue="nobody")).total.backlog == [0, 0, 0]


async def test_the_backlog_is_right_whatever_happens_to_jobs(fleet: Fleet) -> None:
    """Held, approved, buried, brought back, deferred, cancelled: each moment is what was there at that moment."""
    rd, seen = fleet.rd, []

    @rd.task(max_attempts=1)
    async def ask(ctx: redrive.Context, n: int) -> None:
        await ctx.approval("May I?")

    async def look() -> None:
        numbers = (await rd.stats())["totals"]
        seen.append(numbers["waiting"] + numbers["running"] + numbers["held"])
        fleet.clock.advance(60)

    await look()
    asked = [await ask.enqueue(n) for n in range(3)]
    await fleet.enqueue({"gives_up": 2, "expires": 2, "fine": 1})
    await look()
    await fleet.run()
    await look()
    await rd.jobs.approve(asked[0].id)
    await rd.jobs.cancel(asked[1].id)
    one, other = await fleet.letters()
    await rd.dead.redrive(one)
    await rd.dead.defer(other, owner="ada", until=timedelta(days=1))
    await look()
    await fleet.run()
    await look()
    await rd.dead.recall(other)
    await rd.dead.discard(other)
    await look()
    fleet.clock.advance(-60)
    assert (await rd.reports.activity(minutes=len(seen))).total.backlog == seen
    assert (await rd.reports.activity(hours=2)).total.backlog[-1] == seen[-1]


async def test_the_load_of_each_agent(fleet: Fleet) -> None:
    await fleet.enqueue({"fine": 3, "gives_up": 1, "slow": 2}, agent="cto")
    await fleet.enqueue({"fine": 2}, agent="cso", delay=HOUR)
    await fleet.enqueue({"fine": 1})
    await fleet.run()
    cso, cto, nobody = await fleet.rd.reports.load()
    assert (cto.agent, cto.waiting, cto.dead, cto.done, cto.retried, cto.buried) == ("cto", 2, 1, 3, 2, 1)
    assert (cto.mix, cto.failure_rate) == ({"transient": 2, "permanent": 1}, 0.25)
    assert (cso.agent, cso.waiting, cso.done, cso.failure_rate) == ("cso", 2, 0, None)
    assert (nobody.agent, nobody.done) == (None, 1)


async def test_agents_of_the_settings_are_named_before_they_work(database: Path) -> None:
    async with redrive.Redrive(database, agents={"scribe": redrive.Agent(("writing",))}) as rd:
        assert [load.agent for load in await rd.reports.load()] == ["scribe"]


async def test_a_glance(live: redrive.Redrive) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @live.task
    async def long(name: str) -> None:
        started.set()
        await go_on.wait()

    @live.task(max_attempts=1, comebacks=())
    async def broken() -> None:
        raise RuntimeError("the mill is broken")

    await live.enqueue("broken")
    await soon(live.drain())
    await live.queues.pause("quiet", new=True)
    job = await long.enqueue("first")
    await live.enqueue("later", delay=3600)
    async with live.worker():
        await soon(started.wait())
        await eventually(lambda: _runs(live), "the job to be seen running")
        found = await live.reports.glance()
        go_on.set()
    assert [running.id for running in found.running] == [job.id]
    assert (found.running_number, found.running[0].task, found.running[0].run) == (1, "long", 1)
    assert [(trouble.what, trouble.dead) for trouble in found.troubles] == [("RuntimeError: the mill is broken", 1)]
    queues = {queue.name: queue for queue in found.queues}
    assert (queues["broken"].dead, queues["later"].later, queues["later"].due, queues["quiet"].paused) == (
        1,
        1,
        0,
        True,
    )
    assert found.queues[0].name == "long"  # the busiest first
    assert queues["broken"].failing > 0
    assert (found.health.status, found.sentence) == ("degraded", "Degraded: broken: 1 dead letter.")
    assert found.public()["queues"][0]["backlog"][-1] == 1


async def _runs(rd: redrive.Redrive) -> bool:
    return bool((await rd.jobs.list(state="running")).jobs)


# ---- health, from a store in that state


@pytest.mark.preset("agent_os")
async def test_the_health_of_a_degraded_store(rd: redrive.Redrive) -> None:
    @rd.task(queue="analytics_ingest", max_attempts=1, comebacks=())
    async def ingest(n: int) -> None:
        raise RuntimeError("the warehouse is closed")

    await rd.enqueue_many("ingest", [{"n": n} for n in range(12)])
    await soon(rd.drain())
    await rd.enqueue_many("provision", [{"n": n} for n in range(35)], queue="identity_provision")
    await rd.enqueue_many("answer", [{"n": n} for n in range(12)], queue="feedback")
    found = await rd.health()
    assert (found.status, found.total_pending, found.total_dead_letter) == ("degraded", 47, 12)
    assert found.issues == ["analytics_ingest: 12 dead letters", "identity_provision: 35 pending (backed up)"]


async def test_due_jobs_whose_task_no_live_worker_knows_are_an_issue_once_a_restart_would_be_over(
    rd: redrive.Redrive, clock: FakeClock
) -> None:
    await rd.enqueue_many("greet", [{"n": n} for n in range(3)])
    await rd.enqueue("wave", queue="greet")
    assert (await rd.health()).status == "healthy"
    assert (await rd.reports.glance()).sentence == (
        "Healthy: 4 pending, but no worker runs 4 of them: start a worker that knows their task."
    )
    clock.advance(GONE_AFTER)
    said = put_announcement("w1", Announcement(frozenset({"redrive.http", "wave"}), clock.now()))
    await rd.store.apply([Commit(puts=(said,))])
    assert (await rd.health()).issues == ["greet: 3 jobs are due, and no live worker runs greet"]
    assert [queue.unattended for queue in await rd.numbers()] == [3]
    for_others = put_announcement("w2", Announcement(frozenset({"greet"}), clock.now(), queues=frozenset({"mail"})))
    await rd.store.apply([Commit(puts=(for_others,))])
    assert (await rd.health()).issues == [
        "greet: 3 jobs are due, and no live worker runs greet"
        " (live workers know it, but none of them takes it: see their queues and agents)"
    ]
    await rd.queues.pause("greet")
    assert (await rd.health()).status == "healthy"


# ---- telling people


async def test_a_report_and_a_morning_are_told_to_people(database: Path, clock: FakeClock) -> None:
    told: list[Message] = []
    async with redrive.Redrive(database, clock=clock, channels=[told.append]) as rd:
        fleet = Fleet(rd, clock)
        await fleet.live(fine=2)
        assert await rd.reports.notify(await rd.morning()) == 0  # a quiet day
        assert told == []
        await fleet.live(gives_up=1)
        assert await rd.reports.notify(await rd.morning()) == 1
        assert await rd.reports.notify(await rd.reports.monthly()) == 1
    morning, monthly = told
    assert (morning.kind, morning.actionable) == ("morning", True)
    assert morning.title == "2 done · 1 needs you · 1 structural change"
    assert "1 dead work: GiveUp: a person must decide" in morning.text
    assert "redrive dead show" in morning.text
    assert (monthly.kind, monthly.actionable) == ("monthly", False)
    assert monthly.title.startswith("Feb 2026 (1-3): 3 processed, 1 dead letter (33.33 %)")
    assert "Total: 3 processed, 1 dead (33.33 %), 0 auto, 1 human" in monthly.text


async def test_what_no_channel_takes_waits(fleet: Fleet) -> None:
    await fleet.live(gives_up=1)
    assert await fleet.rd.reports.notify(await fleet.rd.reports.weekly()) == 0
    assert [notice.kind for notice in await fleet.rd.notices.waiting()] == ["weekly"]


# ---- bad input


@pytest.mark.parametrize(
    ("verb", "said", "field"),
    [
        ("weekly", {"weeks": 0}, "weeks"),
        ("weekly", {"weeks": True}, "weeks"),
        ("monthly", {"months": 121}, "months"),
        ("monthly", {"tz": "Mars/Olympus"}, "tz"),
        ("monthly", {"tz": "../etc/passwd"}, "tz"),
        ("failures", {"date": "yesterday"}, "date"),
        ("failures", {"date": "2026-02-03", "since": 60.0}, "date"),
        ("failures", {"since": datetime(2026, 2, 3)}, "since"),  # noqa: DTZ001 - it is refused
        ("failures", {"since": timedelta(days=400)}, "since"),
        ("failures", {"since": -60.0}, "since"),
        ("failures", {"since": "8 hours ago"}, "since"),
        ("failures", {"since": float("nan")}, "since"),
        ("failures", {"since": datetime(1, 1, 1, tzinfo=UTC), "until": datetime(1, 1, 3, tzinfo=UTC)}, "since"),
        ("failures", {"date": "9999-12-31"}, "date"),
        ("failures", {"date": date(1, 1, 1)}, "date"),
        ("failures", {"date": datetime(2026, 2, 3, tzinfo=UTC)}, "date"),
        ("failures", {"colour": "red"}, "colour"),
        ("failures", {"limit": -1}, "limit"),
        ("activity", {"minutes": 1441}, "minutes"),
        ("activity", {"minutes": 5, "hours": 5}, "minutes"),
        ("activity", {"hours": 0}, "hours"),
        ("load", {"hours": "many"}, "hours"),
        ("glance", {"minutes": 1}, "minutes"),
    ],
)
async def test_bad_input_names_its_field(fleet: Fleet, verb: str, said: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        await getattr(fleet.rd.reports, verb)(**said)
    assert refused.value.field == field
