"""The morning page: quiet when it can be, and each structural change told on its first day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redrive
from redrive import InvalidOption, OutcomeUnknown
from redrive.core.store import Commit, Tally
from redrive.engine.worker_registry import GONE_AFTER, Announcement, put_announcement
from redrive.reports.morning import (
    DAY,
    HOUR,
    Delta,
    Morning,
    Spike,
    compare,
    headline,
    in_lines,
    in_words,
    rank,
    sum_moves,
    window_start,
    windows,
)
from redrive.reports.needs import STALE_DAYS, lasting
from tests.support import FakeClock, soon

NOW = 1_800_000_000.0
"""08:00 UTC sharp."""


def tally(error_class: str, number: int, ago: float, move: str = "buried", queue: str = "q") -> Tally:
    return Tally((NOW - ago) // HOUR * HOUR, queue, "t", None, move, error_class, "", number)


def page(
    *tallies: Tally, spike: Spike | None = None, known: frozenset[str] = frozenset(), queue: str | None = None
) -> Morning:
    here, before = (
        sum_moves([one for one in tallies if start <= one.hour < end], queue) for start, end in windows(NOW, NOW - DAY)
    )
    deltas = compare(here, before, known, spike or Spike())
    left = frozenset(delta.error_class for delta in deltas)
    numbers: dict[str, Any] = dict.fromkeys(("delayed", "retrying", "parked", "ignored"), 0)
    numbers |= {"done": here.done, "failed": sum(here.failed.values())}
    return Morning(since=NOW - DAY, until=NOW, needs=[], deltas=rank(deltas, left), queue=queue, **numbers)


def change(found: Morning, error_class: str) -> Delta:
    return next(delta for delta in found.deltas if delta.error_class == error_class)


# -- the day before


@pytest.mark.behaviour("001-39")
@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        (0, 1, "steady"),
        (0, 2, "steady"),
        (0, 3, "spike"),
        (2, 4, "steady"),
        (2, 5, "spike"),
        (3, 6, "spike"),
        (4, 7, "steady"),
        (10, 15, "steady"),
        (10, 20, "spike"),
        (5, 0, "steady"),
    ],
)
def test_at_least_three_more_and_twice_as_many_is_a_structural_change(before: int, now: int, kind: str) -> None:
    found = page(tally("E", before, 30 * HOUR), tally("E", now, HOUR), known=frozenset({"E"}))
    assert (change(found, "E").kind, change(found, "E").more) == (kind, now - before)
    assert found.ok == (kind == "steady")


@pytest.mark.behaviour("001-40")
@pytest.mark.parametrize(
    ("more", "times", "kind"), [(1, 1.0, "spike"), (3, 1.5, "spike"), (3, 2.0, "steady"), (9, 1.0, "steady")]
)
def test_the_threshold_is_configurable(more: int, times: float, kind: str) -> None:
    found = page(tally("E", 6, 30 * HOUR), tally("E", 10, HOUR), spike=Spike(more, times))
    assert change(found, "E").kind == kind


@pytest.mark.behaviour("001-39")
def test_a_class_that_never_happened_is_new_and_one_that_did_is_not() -> None:
    found = page(tally("Fresh", 1, HOUR), tally("Old", 1, HOUR), known=frozenset({"Old"}))
    assert [(delta.error_class, delta.kind) for delta in found.deltas] == [("Fresh", "new"), ("Old", "steady")]
    assert "never seen before" in in_words(found.deltas[0])
    found = page(tally("Fresh", 1, HOUR), tally("Old", 1, 30 * HOUR))
    assert [(delta.error_class, delta.kind) for delta in found.deltas] == [("Fresh", "new"), ("Old", "steady")]


def test_imports_count_as_failures_and_retries_do_not() -> None:
    found = page(tally("E", 2, HOUR, "imported"), tally("E", 40, HOUR, "retried"), tally("E", 1, HOUR))
    assert (found.failed, change(found, "E").now) == (3, 3)


def test_success_is_what_was_done_and_what_was_resolved() -> None:
    found = page(tally("", 40, HOUR, "succeeded"), tally("", 1, HOUR, "resolved"), tally("", 9, 30 * HOUR, "succeeded"))
    assert (found.done, found.ok) == (41, True)
    assert headline(found) == "quiet: 41 done, nothing needs you"


def test_one_pipeline_alone() -> None:
    found = page(tally("E", 9, HOUR, queue="a"), tally("E", 1, HOUR, queue="b"), queue="b")
    assert change(found, "E").now == 1


@given(now=st.floats(1e9, 2e9), span=st.floats(60.0, 40 * DAY))
def test_two_windows_of_one_length_lie_side_by_side(now: float, span: float) -> None:
    start = window_start(now, now - span)
    assert start % HOUR == 0 and start <= now
    assert span <= (now // HOUR + 1) * HOUR - start + HOUR
    here, before = windows(now, now - span)
    assert before[1] == here[0] == start and before[0] % HOUR == 0
    hours = [start + n * HOUR for n in range(-1000, 1000) if start + n * HOUR <= now]
    numbers = [sum(1 for hour in hours if begin <= hour < end) for begin, end in (here, before)]
    assert numbers[0] == numbers[1] == sum(1 for hour in hours if start <= hour)


@given(st.dictionaries(st.sampled_from("ABC"), st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_the_deltas_add_up(counts: dict[str, tuple[int, int]]) -> None:
    tallies = [
        tally(name, number, ago)
        for name, pair in counts.items()
        for number, ago in zip(pair, (HOUR, 30 * HOUR), strict=True)
    ]
    found = page(*(one for one in tallies if one.number))
    assert found.failed == sum(now for now, _ in counts.values()) == sum(delta.now for delta in found.deltas)
    assert sum(delta.before for delta in found.deltas) == sum(before for _, before in counts.values())


# -- what the store says


async def fail(rd: redrive.Redrive, key: str, error: BaseException, **said: Any) -> None:
    await rd.dead.add(key, {"key": key}, error, **said)


@pytest.mark.behaviour("001-38", "001-37")
async def test_a_quiet_day_is_one_line(rd: redrive.Redrive) -> None:
    @rd.task
    async def work(n: int) -> None: ...

    await rd.enqueue_many("work", [{"n": n} for n in range(41)])
    await soon(rd.drain())
    found = await rd.morning()
    assert found.ok and found.needs == [] and found.changes == []
    assert headline(found) == "quiet: 41 done, nothing needs you"


@pytest.mark.behaviour("N-4")
async def test_a_new_kind_of_error_is_told_until_nothing_of_it_is_left(rd: redrive.Redrive, clock: FakeClock) -> None:
    healed = False

    @rd.task(max_attempts=1, comebacks=())
    async def work() -> None:
        if not healed:
            raise KeyError("contract")

    handle = await work.enqueue()
    await soon(rd.drain())
    before = await rd.morning()
    assert not before.ok and [delta.error_class for delta in before.changes] == ["KeyError"]
    healed = True
    await rd.dead.redrive(handle.id, why="the contract is known now")
    await soon(rd.drain())
    found = await rd.morning()
    assert found.ok and found.changes == [] and [delta.cured for delta in found.deltas] == [True]
    assert headline(found) == "quiet: 1 done, 1 cured, nothing needs you"
    assert in_lines(found) == ["cured: KeyError: 1, new, none is left"]


async def test_a_kind_of_error_that_is_being_retried_is_not_cured(rd: redrive.Redrive, clock: FakeClock) -> None:
    @rd.task(max_attempts=2, comebacks=(), base=600)
    async def work() -> None:
        raise ConnectionError("reset")

    gone = await work.enqueue()
    await soon(rd.drain())
    clock.advance(3000)
    await soon(rd.drain())
    await rd.dead.discard(gone.id, why="not needed")
    assert (await rd.morning()).changes == []
    await work.enqueue()
    await soon(rd.drain())
    assert [delta.error_class for delta in (await rd.morning()).changes] == ["ConnectionError"]


async def test_an_empty_store_is_quiet(rd: redrive.Redrive) -> None:
    assert headline(await rd.morning()) == "quiet: 0 done, nothing needs you"


@pytest.mark.behaviour("001-27")
async def test_only_the_manual_lane_needs_eyes(rd: redrive.Redrive, clock: FakeClock) -> None:
    for n in range(3):
        await fail(rd, f"slow-{n}", TimeoutError("slow"), task="fetch")
    clock.advance(25 * HOUR)
    await fail(rd, "slow-9", TimeoutError("slow"), task="fetch")
    for n in range(2):
        await fail(rd, f"bad-{n}", KeyError("schema"), task="publish")
    found = await rd.morning()
    assert [(need.kind, need.count, need.task, need.error_class) for need in found.needs] == [
        ("dead_manual", 2, "publish", "KeyError")
    ]
    assert found.delayed == 4
    assert found.needs[0].action and found.needs[0].command.startswith("redrive dead list --fingerprint ")
    assert headline(found) == "0 done · 4 come back by themselves, the next now · 2 need you · 1 structural change"


@pytest.mark.behaviour("001-37")
async def test_each_trouble_is_one_line_with_what_to_do(rd: redrive.Redrive) -> None:
    for n in range(5):
        await fail(rd, f"a-{n}", KeyError(f"field {n}"), task="publish")
    await fail(rd, "b", PermissionError("no"), task="upload")
    found = await rd.morning()
    assert [(need.count, need.error_class) for need in found.needs] == [(5, "KeyError"), (1, "PermissionError")]
    (lone,) = (await rd.dead.list(key="b")).jobs
    assert found.needs[1].command == f"redrive dead show {lone.short_id}"
    assert found.waiting_for_you == 6


async def test_beyond_twenty_troubles_the_numbers_still_add_up(rd: redrive.Redrive) -> None:
    for n in range(30):
        await fail(rd, f"a-{n}", KeyError("x"), task=f"task-{n}")
    found = await rd.morning()
    assert (len(found.needs), found.waiting_for_you) == (21, 30)


@pytest.mark.behaviour("001-39", "001-40")
async def test_each_structural_change_is_told_on_its_first_day(rd: redrive.Redrive, clock: FakeClock) -> None:
    """Ten days with one timeout each; on the fifth a contract changes, on the eighth the timeouts multiply."""
    told: dict[int, list[tuple[str, str]]] = {}
    for day in range(10):
        await fail(rd, f"t-{day}", TimeoutError("slow"))
        if day >= 5:
            await fail(rd, f"k-{day}", KeyError("new_field"))
        if day >= 8:
            for n in range(5):
                await fail(rd, f"more-{day}-{n}", TimeoutError("slow"))
        clock.advance(HOUR)
        told[day] = [(delta.error_class, delta.kind) for delta in (await rd.morning()).changes]
        clock.advance(23 * HOUR)
    assert {day: said for day, said in told.items() if said} == {
        0: [("TimeoutError", "new")],
        5: [("KeyError", "new")],
        8: [("TimeoutError", "spike")],
    }


async def test_what_comes_back_after_a_quiet_day_is_not_new(rd: redrive.Redrive, clock: FakeClock) -> None:
    await fail(rd, "a", TimeoutError("slow"))
    clock.advance(5 * DAY)
    await fail(rd, "b", TimeoutError("slow"))
    assert [delta.kind for delta in (await rd.morning()).deltas] == ["steady"]


@pytest.mark.behaviour("001-6")
async def test_a_job_that_fails_day_after_day_is_named(rd: redrive.Redrive, clock: FakeClock) -> None:
    """It would come back by itself for ever; after three days somebody hears of it."""
    for day in range(STALE_DAYS):
        await fail(rd, "report", TimeoutError("slow"), task="fetch")
        found = await rd.morning()
        assert [need.kind for need in found.needs] == ([] if day < STALE_DAYS - 1 else ["dead_manual"])
        clock.advance(DAY)
    assert lasting(found.needs[0]) == "failing on 3 days since 2027-01-15"
    assert found.needs[0].action.startswith("Waiting does not heal it.")


@pytest.mark.behaviour("001-6")
async def test_a_manual_letter_says_on_how_many_days_it_failed(rd: redrive.Redrive, clock: FakeClock) -> None:
    for _ in range(2):
        await fail(rd, "report", KeyError("x"))
        clock.advance(DAY)
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.days, lasting(need)) == ("dead_manual", 2, "failing on 2 days since 2027-01-15")


async def test_what_should_come_back_and_does_not_is_told(rd: redrive.Redrive, clock: FakeClock) -> None:
    """The delayed lane must not be a place where things are forgotten."""
    await fail(rd, "report", TimeoutError("slow"), task="fetch")
    clock.advance(25 * HOUR)
    assert (await rd.morning()).needs == []
    clock.advance(2 * HOUR)
    (need,) = (await rd.morning()).needs
    assert need.kind == "deferred_overdue" and "no process fetches it" in need.action


async def test_all_that_nobody_fetches_are_counted_by_task(rd: redrive.Redrive, clock: FakeClock) -> None:
    lines = [{"job_id": f"s{n}", "payload": {}, "task": "fetch", "error_class": "TimeoutError"} for n in range(501)]
    lines += [{"job_id": f"o{n}", "payload": {}, "task": f"t{n}", "error_class": "TimeoutError"} for n in range(22)]
    assert (await rd.dead.import_([msgspec.json.encode(line).decode() for line in lines])).imported == 523
    clock.advance(27 * HOUR)
    found = await rd.morning()
    assert {need.kind for need in found.needs} == {"deferred_overdue"} and len(found.needs) == 21
    assert (found.needs[0].task, found.needs[0].count, found.waiting_for_you) == ("fetch", 501, 523)
    assert found.needs[0].command == "redrive dead list --lane delayed --task fetch --queue fetch"
    rest = found.needs[-1]
    assert (rest.count, rest.command) == (3, "redrive dead list --lane delayed") and "of 3 more tasks" in rest.what


async def test_all_that_do_not_heal_are_counted_behind_however_many_that_may(
    rd: redrive.Redrive, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.reports.gather_needs.RETURNING", 3)
    for day in range(STALE_DAYS):
        clock.advance(DAY if day else 0)
        for n in range(5):
            await fail(rd, f"report-{n}", TimeoutError("slow"), task="fetch")
    for n in range(8):
        await fail(rd, f"young-{n}", TimeoutError("slow"), task="fetch")
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.count, need.days) == ("dead_manual", 5, STALE_DAYS)
    assert need.command == "redrive dead list --lane delayed --task fetch --queue fetch"


async def test_a_job_that_nobody_runs_is_told(rd: redrive.Redrive, clock: FakeClock) -> None:
    young = await rd.enqueue("work", {"n": 1})
    clock.advance(GONE_AFTER - 1)
    await rd.enqueue("later", {}, delay=40 * DAY)
    found = await rd.morning()
    assert found.ok and found.oldest_waiting is not None and found.oldest_waiting.id == young.id
    clock.advance(1)
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.job_id) == ("unattended", young.id) and "Start a worker" in need.action
    assert need.command == f"redrive status {young.id[-8:]}"
    assert need.what == "due since 2027-01-15T08:00:00.000Z, and no live worker runs it"
    assert (await rd.morning(queue="work")).needs == [need] and (await rd.morning(queue="later")).ok


async def test_the_tasks_beyond_twenty_that_nobody_runs_are_one_line(rd: redrive.Redrive, clock: FakeClock) -> None:
    for task in range(23):
        for _ in range(2 if task == 7 else 1):
            await rd.enqueue(f"work{task:02}")
    clock.advance(HOUR)
    needs = (await rd.morning()).needs
    assert len(needs) == 21 and sum(need.count for need in needs) == 24
    assert (needs[0].task, needs[0].count) == ("work07", 2)
    last = needs[-1]
    assert (
        last.what.startswith("of 3 more tasks are due, such as one") and last.command == "redrive jobs --state waiting"
    )


async def test_jobs_whose_task_no_live_worker_knows_are_told_after_an_hour(
    rd: redrive.Redrive, clock: FakeClock
) -> None:
    """A worker that knows nothing of them, as a dashboard's, does not make the morning quiet."""
    jobs = [await rd.enqueue("work", {"n": n}) for n in range(3)]
    clock.advance(HOUR)
    await say(rd, "redrive.http")
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.count, need.job_id) == ("unattended", 3, jobs[0].id)
    assert need.what == "due, such as one due since 2027-01-15T08:00:00.000Z, and no live worker runs them"
    assert need.command == "redrive jobs --state waiting --task work --queue work"
    await say(rd, "work")
    assert (await rd.morning()).ok
    clock.advance(26 * HOUR)
    await say(rd, "work")
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.count, need.job_id) == ("unattended", 1, jobs[0].id), "known, and still not run"


async def say(rd: redrive.Redrive, *tasks: str) -> None:
    """As a worker that knows these tasks does."""
    said = put_announcement("w1", Announcement(frozenset(tasks), rd.clock.now()))
    await rd.store.apply([Commit(puts=(said,))])


async def test_a_held_job_that_waits_for_a_person_needs_one(rd: redrive.Redrive) -> None:
    @rd.task
    async def pay() -> None:
        raise OutcomeUnknown("the line went dead")

    await rd.enqueue("pay")
    await soon(rd.drain())
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.count, need.task, need.what) == (
        "outcome_unknown",
        1,
        "pay",
        "OutcomeUnknown: the line went dead",
    )
    assert need.command.startswith("redrive status ")
    await rd.enqueue("pay")
    await soon(rd.drain())
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.count, need.what) == ("outcome_unknown", 2, "such as: OutcomeUnknown: the line went dead")
    assert need.command == "redrive jobs --state held --because outcome_unknown --task pay --queue pay"


async def test_a_question_stands_on_the_page_as_it_was_asked(rd: redrive.Redrive) -> None:
    @rd.task
    async def refund(ctx: redrive.Context) -> None:
        await ctx.approval("Refund 900 €?")

    await rd.enqueue("refund")
    await soon(rd.drain())
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.what) == ("approval", "It asks: Refund 900 €?")


async def test_a_question_goes_before_the_failures_that_came_before_it(rd: redrive.Redrive) -> None:
    @rd.task("refund; touch x", backoff="none", retry_on=(ValueError,))
    async def refund(ctx: redrive.Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        await ctx.approval("Refund?")

    for _ in range(2):
        await rd.enqueue("refund; touch x")
    await soon(rd.drain())
    (need,) = (await rd.morning()).needs
    assert (need.count, need.what) == (2, "such as: It asks: Refund?")
    assert need.command == (
        "redrive jobs --state held --because approval --task 'refund; touch x' --queue 'refund; touch x'"
    )


async def test_who_waits_for_consent_says_so_whatever_failed_before(rd: redrive.Redrive) -> None:
    @rd.task("pay", consent=True, max_attempts=1)
    async def pay(n: int) -> None:
        raise ValueError("the line went dead")

    job = await rd.enqueue("pay", {"n": 1}, session_id="ada")
    await soon(rd.drain())
    (need,) = (await rd.morning()).needs
    assert (need.count, need.what) == (1, "asks for consent to pay, for session ada")
    await rd.jobs.approve(job.id)
    await soon(rd.drain())
    await rd.dead.edit(job.id, {"n": 3})
    await soon(rd.drain())
    again = await rd.jobs.get(job.id)
    assert (again.because, len(again.history)) == ("consent", 1), "it ran, failed, and asks for what is new"
    (need,) = (await rd.morning()).needs
    assert (need.count, need.what) == (1, "asks for consent to pay, for session ada")
    await rd.enqueue("pay", {"n": 2})
    await soon(rd.drain())
    (need,) = (await rd.morning()).needs
    assert (need.count, need.what) == (2, "such as: asks for consent to pay")
    assert need.command == "redrive jobs --state held --because consent --task pay --queue pay"


async def test_an_ignored_trouble_needs_nobody(rd: redrive.Redrive, clock: FakeClock) -> None:
    await fail(rd, "a", KeyError("known"), task="publish")
    clock.advance(2 * DAY)
    (need,) = (await rd.morning()).needs
    await rd.groups.ignore(str(need.fingerprint), why="known")
    found = await rd.morning()
    assert (found.ok, found.ignored) == (True, 1)


async def test_all_ignored_letters_are_counted_and_make_room_for_the_others(rd: redrive.Redrive) -> None:
    for n in range(25):
        await fail(rd, f"a-{n}", KeyError("x"), task=f"old-{n}")
        await fail(rd, f"b-{n}", KeyError("x"), task=f"old-{n}")
    for group in await rd.groups.list():
        await rd.groups.ignore(group.fingerprint, why="known")
    await fail(rd, "c", KeyError("x"), task="new")
    found = await rd.morning()
    assert (found.ignored, [(need.count, need.task) for need in found.needs]) == (50, [(1, "new")])
    assert found.needs[0].fingerprint and found.needs[0].course == "new", "by itself, not as one of the small ones"


async def test_jobs_that_are_retried_are_a_number(rd: redrive.Redrive, clock: FakeClock) -> None:
    @rd.task
    async def work() -> None:
        raise ConnectionError("down")

    await rd.enqueue("work")
    await soon(rd.drain())
    found = await rd.morning()
    assert (found.retrying, found.ok) == (1, True)
    while (await rd.jobs.list(state="waiting")).jobs:
        clock.advance(30)
        await soon(rd.drain())
    found = await rd.morning()
    assert (found.retrying, found.delayed, found.needs) == (0, 1, []), "it comes back by itself"
    clock.advance(600)
    await soon(rd.drain())
    found = await rd.morning()
    assert (found.retrying, found.delayed, found.needs) == (1, 0, []), "it is back"
    for _ in range(60):
        clock.advance(3600)
        await soon(rd.drain())
    assert [need.count for need in (await rd.morning()).needs] == [1], "after the last comeback"


async def test_what_waits_beside_the_store_is_told(rd: redrive.Redrive) -> None:
    rd.spool.folder.mkdir()
    (rd.spool.folder / "1.jsonl").write_text("{}\n")
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.count) == ("spooled", 1)


@pytest.mark.behaviour("001-2")
async def test_pipelines_share_a_store_and_can_be_looked_at_alone(rd: redrive.Redrive) -> None:
    for site in ("one", "two", "three", "four"):
        await fail(rd, site, KeyError(site), task="publish", queue=site)
    assert (await rd.morning()).waiting_for_you == 4
    found = await rd.morning(queue="three")
    assert [(need.count, need.queue) for need in found.needs] == [(1, "three")]
    assert found.queue == "three"
    assert (await rd.morning(queue="five")).ok


async def test_since_is_a_span_or_an_instant(rd: redrive.Redrive, clock: FakeClock) -> None:
    await fail(rd, "a", KeyError("x"))
    clock.advance(5 * HOUR)
    for since in (8 * HOUR, timedelta(hours=8), datetime.fromtimestamp(clock.now() - 8 * HOUR, UTC)):
        assert (await rd.morning(since)).failed == 1
    assert (await rd.morning(HOUR)).failed == 0
    for wrong in (0, -5, timedelta(days=4000), datetime.fromtimestamp(clock.now(), UTC).replace(tzinfo=None)):
        with pytest.raises(InvalidOption, match="since"):
            await rd.morning(wrong)
    with pytest.raises(InvalidOption, match="spike"):
        await rd.morning(spike=0)


async def test_looking_changes_nothing(rd: redrive.Redrive, database: Path) -> None:
    from tests.support import snapshot

    await fail(rd, "a", KeyError("x"))
    before = snapshot(database)
    for _ in range(2):
        await rd.morning()
    assert snapshot(database) == before


async def test_the_page_as_json(rd: redrive.Redrive) -> None:
    await fail(rd, "a", KeyError("x"))
    await rd.enqueue("work", {})
    body = msgspec.json.decode(msgspec.json.encode((await rd.morning()).public()))
    assert (body["ok"], body["failed"], body["needs"][0]["count"]) == (False, 1, 1)
    assert body["deltas"] == [
        {"error_class": "KeyError", "now": 1, "before": 0, "kind": "new", "cured": False, "more": 1, "structural": True}
    ]
    assert body["since"].endswith("Z") and body["needs"][0]["since"].endswith("Z")
    assert body["oldest_waiting"]["task"] == "work"
