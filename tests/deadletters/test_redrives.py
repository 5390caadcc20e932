"""Bulk redrives on a real store: planned, frozen, judged by a canary, paced, steered, and moved once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive import InvalidInput, JobNotFound, Redrive
from redrive.core.store import Commit, Put
from redrive.deadletters.bulk_progress import SETTLES_SECONDS
from redrive.deadletters.bulk_run import CHUNK, RedriveRun
from redrive.deadletters.redrives import selection, steps
from tests.support import FakeClock, eventually, may_have_landed, opened, soon


class Mill:
    """Tasks that fail while they are broken."""

    def __init__(self, rd: Redrive) -> None:
        self.broken = True
        self.ran: list[int] = []

        @rd.task(max_attempts=1, comebacks=())
        async def grind(n: int) -> int:
            if self.broken:
                raise RuntimeError("the mill is broken")
            self.ran.append(n)
            return n

        @rd.task(max_attempts=1, comebacks=())
        async def bake(n: int) -> int:
            if self.broken:
                raise ValueError("the oven is cold")
            self.ran.append(n)
            return n

        @rd.task(max_attempts=1, comebacks=())
        async def pay(ctx: redrive.Context, n: int) -> int:
            ctx.usage(input_tokens=100, output_tokens=50, cost=0.25)
            if self.broken:
                raise RuntimeError("no money")
            return n


@pytest.fixture
def mill(rd: Redrive) -> Mill:
    return Mill(rd)


async def die(rd: Redrive, number: int, task: str = "grind", **options: Any) -> list[str]:
    many = await rd.enqueue_many(task, [{"n": n} for n in range(number)], **options)
    await soon(rd.drain())
    return [id for id in many.ids if id]


async def states(rd: Redrive, ids: Sequence[str]) -> list[str]:
    return [str(job.state) for job in await rd.store.get(ids)]


async def redriven(rd: Redrive, id: str) -> int:
    return sum(event.move == "redriven" for event in await rd.store.story(id))


async def test_what_may_have_landed_is_skipped_unless_it_is_named(rd: Redrive, mill: Mill) -> None:
    plain, first, second = (
        await die(rd, 1),
        await may_have_landed(rd, "grind", n=7),
        await may_have_landed(rd, "grind", n=8),
    )
    plan = await rd.redrives.plan(all=True)
    assert (plan.number, plan.moving, list(plan.skipped.values())) == (3, 1, [2])
    assert "unknown outcome" in next(iter(plan.skipped))
    run = await rd.redrives.start(all=True, why="mended")
    await rd.redrives.advance()
    run = await rd.redrives.get(run.id)
    assert (run.moved, run.skipped, run.skipped_because) == (1, 2, plan.skipped)
    assert await states(rd, [*plain, first, second]) == ["waiting", "dead", "dead"]
    await rd.redrives.start([first], why="it did not land")
    await rd.redrives.advance()
    assert await states(rd, [first, second]) == ["waiting", "dead"]
    assert (await rd.redrives.plan(because="outcome_unknown")).moving == 1
    await rd.redrives.start(because="outcome_unknown", why="none of them landed")
    await rd.redrives.advance()
    assert await states(rd, [second]) == ["waiting"]


async def restored(rd: Redrive) -> str:
    id = await may_have_landed(rd, "grind", n=7)
    await rd.dead.discard(id)
    return (await rd.dead.restore(id)).id


async def diverted(rd: Redrive) -> str:
    return (await rd.dead.add("7", {"n": 7}, redrive.OutcomeUnknown("no answer"), task="grind")).id


async def imported(rd: Redrive) -> str:
    line = {"job_id": "7", "task": "grind", "payload": {"n": 7}, "error_class": "redrive.errors.OutcomeUnknown"}
    await rd.dead.import_([json.dumps(line)])
    return (await rd.dead.list()).jobs[0].id


@pytest.mark.parametrize("told", [restored, diverted, imported])
async def test_what_may_have_landed_is_known_by_whatever_way_it_came(
    rd: Redrive, mill: Mill, told: Callable[[Redrive], Awaitable[str]]
) -> None:
    id = await told(rd)
    assert (await rd.redrives.plan(all=True)).moving == 0
    assert (await rd.redrives.plan([id])).moving == 1
    assert (await rd.redrives.plan(detail="outcome_unknown")).moving == 1


async def test_no_verb_for_many_lets_run_again_what_may_have_landed(rd: Redrive, mill: Mill) -> None:
    id = await may_have_landed(rd, "grind", n=7)
    for acted in (await rd.dead.reassign(agent="bob", all=True), await rd.dead.move_lane(lane="delayed", all=True)):
        assert (acted.moved, [refused.job_id for refused in acted.refused]) == (0, [id])
        assert "unknown outcome" in acted.refused[0].why
    assert (await rd.dead.move_lane(lane="manual", all=True)).moved == 1  # to people it may go
    assert (await rd.dead.move_lane(lane="delayed", because="outcome_unknown")).moved == 1
    assert (await rd.dead.reassign(agent="bob", ids=[id])).moved == 1


async def all_items(rd: Redrive, id: str) -> list[Any]:
    found, cursor = [], None
    while True:
        page = await rd.redrives.items(id, cursor)
        found += page.items
        if page.cursor is None:
            return found
        cursor = page.cursor


async def refused(field: str, work: Any, *words: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        await work
    assert caught.value.field == field
    for word in words:
        assert word in str(caught.value)
    return caught.value


# ---- the plan


async def test_a_plan_says_what_would_move_and_changes_nothing(rd: Redrive, mill: Mill) -> None:
    await die(rd, 3)
    await die(rd, 2, "bake", queue="oven")
    before = await rd.store.events("")
    plan = await rd.redrives.plan(all=True)
    assert (plan.number, plan.moving, plan.skipped, plan.chosen) == (5, 5, {}, "all dead letters")
    assert [(group.task, group.error_class, group.number) for group in plan.groups] == [
        ("grind", "RuntimeError", 3),
        ("bake", "ValueError", 2),
    ]
    assert plan.queues == {"grind": 3, "oven": 2}
    assert plan.estimate is None and plan.running == () and plan.warnings == ()
    assert await rd.store.events("") == before and await rd.redrives.list() == []
    assert msgspec.json.decode(msgspec.json.encode(plan.public()))["moving"] == 5


async def test_a_plan_counts_what_would_be_skipped_and_why(rd: Redrive, mill: Mill) -> None:
    """Out of grants, gone already, or refused before it starts: told in the plan, not found out by dying again."""
    worn, fresh, done = await die(rd, 3)
    for _ in range(3):
        await rd.dead.redrive(worn)
        await soon(rd.drain())
    mill.broken = False
    await rd.dead.redrive(done)
    await soon(rd.drain())
    plan = await rd.redrives.plan([worn, fresh, done[-8:]])
    assert (plan.number, plan.moving) == (3, 1)
    assert sorted(plan.skipped.values()) == [1, 1]
    words = " | ".join(plan.skipped)
    assert "was redriven with fresh attempts 3 times already" in words
    assert "is done; only a dead job can be redriven" in words


async def test_a_plan_estimates_from_what_was_used_before(rd: Redrive, mill: Mill) -> None:
    await die(rd, 4, "pay")
    await die(rd, 4)
    estimate = (await rd.redrives.plan(task="pay")).estimate
    assert estimate is not None and (estimate.tokens, estimate.cost, estimate.reported) == (600, 1.0, 4)
    mixed = (await rd.redrives.plan(all=True)).estimate
    assert mixed is not None and (mixed.tokens, mixed.sampled, mixed.reported) == (600, 8, 4)
    assert (await rd.redrives.plan(task="grind")).estimate is None


async def test_an_estimate_without_a_plan_looks_at_both_ends(
    rd: Redrive, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "SAMPLE", 10)
    await die(rd, 95, "pay")
    estimate = await rd.redrives.estimate(95, task="pay")
    assert estimate is not None and (estimate.sampled, estimate.reported, estimate.tokens) == (10, 10, 95 * 150)
    assert await rd.redrives.estimate(5, task="grind") is None
    with pytest.raises(InvalidInput):
        await rd.redrives.estimate(5, colour="red")


async def test_an_estimate_looks_at_some_and_speaks_of_all(
    rd: Redrive, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "SAMPLE", 10)
    await die(rd, 95, "pay")
    estimate = (await rd.redrives.plan(task="pay")).estimate
    assert estimate is not None and estimate.sampled == 10 and estimate.tokens == 95 * 150


async def test_a_plan_warns_of_a_paused_queue(rd: Redrive, mill: Mill) -> None:
    await die(rd, 1)
    await rd.queues.pause("grind")
    assert (await rd.redrives.plan(all=True)).warnings == ("queue grind is paused: what is moved waits there",)


async def test_a_plan_of_nothing_is_empty_and_cannot_be_started(rd: Redrive, mill: Mill) -> None:
    assert (await rd.redrives.plan(queue="nowhere")).number == 0
    await refused("filter", rd.redrives.start(queue="nowhere"), "no dead letters match queue nowhere")
    assert await rd.store.doc("redrive_flights", "all") is None


# ---- choosing


async def test_everything_must_be_said(rd: Redrive, mill: Mill) -> None:
    (id,) = await die(rd, 1)
    for verb in (rd.redrives.plan, rd.redrives.start):
        await refused("filter", verb(), "needs all=True")
        await refused("filter", verb(queue=None), "needs all=True")
        await refused("ids", verb([id], queue="grind"), "not both")
        await refused("ids", verb(id), "list of ids")
        await refused("state", verb(state="waiting"), "only dead letters")
        await refused("colour", verb(colour="red"), "is not a filter")
        with pytest.raises(JobNotFound):
            await verb(["nosuchjob"])
    assert await states(rd, [id]) == ["dead"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("canary", {"canary": -1}),
        ("canary", {"canary": 1.5}),
        ("canary", {"canary": True}),
        ("pass_rate", {"pass_rate": 0}),
        ("pass_rate", {"pass_rate": 1.01}),
        ("pass_rate", {"pass_rate": float("nan")}),
        ("rate", {"rate": 0}),
        ("rate", {"rate": -3}),
        ("rate", {"rate": float("inf")}),
        ("who", {"who": ""}),
        ("why", {"why": "x" * 1001}),
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    rd: Redrive, mill: Mill, field: str, said: dict[str, Any]
) -> None:
    (id,) = await die(rd, 1)
    await refused(field, rd.redrives.start(all=True, **said))
    assert await states(rd, [id]) == ["dead"] and await rd.redrives.list() == []


async def test_more_than_it_can_hold_is_refused(rd: Redrive, mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MOST_ITEMS", 3)
    ids = await die(rd, 4)
    await refused("filter", rd.redrives.plan(all=True), "more than 3")
    await refused("ids", rd.redrives.plan(ids), "4 are more than 3")


async def test_a_token_is_for_exactly_what_was_planned(rd: Redrive, mill: Mill) -> None:
    await die(rd, 2)
    plan = await rd.redrives.plan(task="grind")
    more = await die(rd, 1)
    await refused("token", rd.redrives.start(task="grind", token=plan.token), "plan again")
    assert await rd.redrives.list() == [] and await states(rd, more) == ["dead"]
    token = (await rd.redrives.plan(task="grind")).token
    assert (await rd.redrives.start(task="grind", token=token)).total == 3


async def test_filters_choose_and_are_told_in_words(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    await die(rd, 2)
    clock.advance(3600)
    late = await die(rd, 1, "bake")
    since = clock.now() - 60
    assert (await rd.redrives.plan(since=since)).number == 1
    run = await rd.redrives.start(task="bake", since=since)
    assert run.chosen == f"task bake, since {redrive.core.job.iso(since)}" and run.total == 1
    await soon(rd.drain())
    assert [item.id for item in await all_items(rd, run.id)] == late


# ---- moving


async def test_it_moves_all_of_them_and_tells_what_became_of_each(rd: Redrive, mill: Mill) -> None:
    grinds, bakes = await die(rd, 450), await die(rd, 50, "bake")
    mill.broken = False
    run = await rd.redrives.start(all=True, who="ada", why="oiled it")
    assert (run.state, run.total, run.left) == ("moving", 500, 500)
    await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.moved, run.succeeded, run.open, run.left) == ("finished", 500, 500, 0, 0)
    assert {group.task: (group.number, group.succeeded) for group in run.by_group} == {
        "grind": (450, 450),
        "bake": (50, 50),
    }
    assert set(await states(rd, [*grinds, *bakes])) == {"done"}
    items = await all_items(rd, run.id)
    assert {item.id for item in items} == {*grinds, *bakes} and {item.status for item in items} == {"succeeded"}
    (event,) = [event for event in await rd.store.story(bakes[0]) if event.move == "redriven"]
    assert (event.who, event.why) == ("ada", f"redrive {run.short_id}: oiled it")


async def test_what_fails_again_is_told(rd: Redrive, mill: Mill) -> None:
    ids = await die(rd, 5)
    run = await rd.redrives.start(ids)
    await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.succeeded, run.failed_again) == ("finished", 0, 5)
    (item, *_) = await all_items(rd, run.id)
    assert (item.status, item.why) == ("failed_again", "attempts_exhausted: RuntimeError")
    assert set(await states(rd, ids)) == {"dead"}


async def test_the_oldest_go_first(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    ids = []
    for _ in range(3):
        ids += await die(rd, 1)
        clock.advance(10)
    run = await rd.redrives.start(all=True, rate=1.0)
    await rd.redrives.advance()
    assert await states(rd, ids) == ["waiting", "dead", "dead"]
    assert [item.id for item in await all_items(rd, run.id)] == ids


async def test_the_list_is_frozen_when_it_starts(rd: Redrive, mill: Mill) -> None:
    """What dies later belongs to nobody's redrive; what is no longer dead is skipped, and says why."""
    first, second, third = await die(rd, 3)
    run = await rd.redrives.start(task="grind")
    later = await rd.enqueue("grind", {"n": 9})
    await rd.dead.discard(first)
    await rd.dead.redrive(second)
    mill.broken = False
    await rd.redrives.advance()
    run = await rd.redrives.get(run.id)
    assert (run.total, run.moved, run.skipped) == (3, 1, 2)
    assert sorted(run.skipped_because) == [
        "is discarded; only a dead job can be redriven",
        "is waiting; only a dead job can be redriven",
    ]
    assert await redriven(rd, third) == 1 and await redriven(rd, second) == 1
    assert await redriven(rd, later.id) == 0


async def test_what_would_die_again_at_once_is_skipped(database: Path, clock: FakeClock) -> None:
    """The rules of a single redrive hold: preflight, and no more grants than there are."""
    async with opened(database, clock=clock, models={"small": {"context": 1000}}) as rd:

        @rd.task(max_attempts=1, comebacks=())
        async def answer(prompt: str, model: str = "small") -> str:
            raise RuntimeError("no")

        short = await rd.enqueue("answer", {"prompt": "hello"})
        long = await rd.enqueue("answer", {"prompt": "word " * 5000})
        await soon(rd.drain())
        run = await rd.redrives.start(task="answer")
        await rd.redrives.advance()
        run = await rd.redrives.get(run.id)
        assert (run.moved, run.skipped) == (1, 1)
        (reason,) = run.skipped_because
        assert reason.startswith("would die again: Not started: about")
        assert await states(rd, [short.id, long.id]) == ["waiting", "dead"]


async def test_an_item_that_cannot_be_judged_does_not_stop_the_others(
    database: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As large as it takes for its tokens to be counted, and then the counter breaks."""
    poisoned = False

    def count(text: str) -> int:
        if poisoned and "poison" in text:
            raise LookupError("no such word")
        return len(text) // 100

    async with opened(database, clock=clock, count_tokens=count) as rd:

        @rd.task(max_attempts=1, comebacks=())
        async def answer(prompt: str) -> str:
            raise RuntimeError("no")

        for prompt in ("fine", "poison " * 100_000, "also fine"):
            await rd.enqueue("answer", {"prompt": prompt})
        await soon(rd.drain())
        run = await rd.redrives.start(all=True)
        poisoned = True
        assert (await rd.redrives.plan(all=True)).moving == 2
        await rd.redrives.advance()
        run = await rd.redrives.get(run.id)
        assert (run.moved, run.skipped_because) == (2, {"cannot be judged: LookupError": 1})
        assert "cannot be judged" in caplog.text


async def test_where_nothing_can_be_judged_it_pauses_instead_of_skipping_all(database: Path, clock: FakeClock) -> None:
    """The counter is broken, not the items: they are still to be moved once it works again."""
    poisoned = False

    def count(text: str) -> int:
        if poisoned:
            raise LookupError("no words")
        return 1

    async with opened(database, clock=clock, count_tokens=count) as rd:

        @rd.task(max_attempts=1, comebacks=())
        async def answer(prompt: str) -> str:
            raise RuntimeError("no")

        await rd.enqueue_many("answer", [{"prompt": f"{n} " + "x" * 300_000} for n in range(15)])
        await soon(rd.drain())
        run = await rd.redrives.start(all=True)
        poisoned = True
        await rd.redrives.advance()
        run = await rd.redrives.get(run.id)
        assert (run.state, run.skipped, run.left) == ("paused", 0, 15)
        assert run.reason == "paused by redrive: cannot be judged: LookupError"
        poisoned = False
        await rd.redrives.resume(run.id)
        await rd.redrives.advance()
        assert (await rd.redrives.get(run.id)).moved == 15


async def test_a_record_that_is_gone_is_skipped(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    ids = await die(rd, 2)
    run = await rd.redrives.start(ids)
    await rd.dead.discard(ids[0])
    await rd.store.prune(clock.now() + 2.0, {}, default=1.0, keys=1.0)
    assert await states(rd, ids) == ["dead"]
    await rd.redrives.advance()
    assert (await rd.redrives.get(run.id)).skipped_because == {"its record is gone": 1}


async def test_effects_that_landed_are_not_repeated(rd: Redrive) -> None:
    posted: list[str] = []
    healed = False

    @rd.task(max_attempts=1)
    async def post(ctx: redrive.Context, n: int) -> None:
        await ctx.once("post", posted.append)
        if not healed:
            raise RuntimeError("after the post")

    await die(rd, 3, "post")
    healed = True
    run = await rd.redrives.start(task="post")
    await soon(rd.drain())
    assert (await rd.redrives.get(run.id)).succeeded == 3
    assert len(posted) == len(set(posted)) == 3


async def test_the_queues_own_limits_hold(database: Path) -> None:
    """All are moved at once, and still only two run at a time."""
    async with opened(database, queues={"grind": {"concurrency": 2}}) as rd:
        broken, at_once, most = True, 0, 0

        @rd.task(max_attempts=1, comebacks=())
        async def grind(n: int) -> None:
            nonlocal at_once, most
            if broken:
                raise RuntimeError("no")
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            at_once -= 1

        await die(rd, 20)
        broken = False
        run = await rd.redrives.start(task="grind")
        await soon(rd.drain())
        assert (await rd.redrives.get(run.id)).succeeded == 20 and most == 2


async def test_the_policy_of_today_holds(database: Path, clock: FakeClock) -> None:
    """The attempts that are granted are those that the task gives now."""
    async with opened(database, clock=clock) as rd:
        Mill(rd)
        (id,) = await die(rd, 1)
    async with opened(database, clock=clock) as rd:

        @rd.task(max_attempts=4, backoff="none")
        async def grind(n: int) -> None:
            raise ConnectionError("again")

        await rd.redrives.start([id])
        await soon(rd.drain())
        (job,) = await rd.store.get([id])
        assert (job.state, job.attempts, job.allowed) == ("dead", 5, 5)


async def test_one_that_was_brought_back_by_somebody_else_failed_for_us(rd: Redrive, mill: Mill) -> None:
    """It died again and a person redrove it before anybody looked: that is not ours to count as a success."""
    (id,) = await die(rd, 1)
    run = await rd.redrives.start([id])
    await rd.redrives.advance()
    async with rd.worker(scheduler=False):
        await eventually(lambda: _is(rd, id, "dead"))
    await rd.dead.redrive(id)
    await rd.redrives.advance()
    run = await rd.redrives.get(run.id)
    assert (run.state, run.failed_again, run.open) == ("finished", 1, 0)


async def _is(rd: Redrive, id: str, state: str) -> bool:
    return await states(rd, [id]) == [state]


async def test_what_was_let_go_meanwhile_is_neither_success_nor_failure(rd: Redrive, mill: Mill) -> None:
    (id,) = await die(rd, 1)
    run = await rd.redrives.start([id])
    await rd.redrives.advance()
    await rd.jobs.cancel(id)
    await rd.redrives.advance()
    run = await rd.redrives.get(run.id)
    assert (run.state, run.discarded, run.succeeded, run.failed_again) == ("finished", 1, 0, 0)


async def test_after_a_day_it_ends_and_says_what_is_open(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    ids = await die(rd, 2)
    await rd.queues.pause("grind")
    run = await rd.redrives.start(ids)
    await rd.redrives.advance()
    await soon(rd.drain())
    assert (await rd.redrives.get(run.id)).state == "settling"
    clock.advance(SETTLES_SECONDS)
    await rd.redrives.advance()
    run = await rd.redrives.get(run.id)
    assert (run.state, run.open) == ("finished", 2) and run.story[-1].why == "2 still open"
    assert await rd.redrives.advance() == 0


async def test_the_same_id_twice_is_one_item(rd: Redrive, mill: Mill) -> None:
    (id,) = await die(rd, 1)
    run = await rd.redrives.start([id, id[-8:], id])
    assert run.total == 1


async def test_ids_that_are_not_dead_are_skipped_with_their_reason(rd: Redrive, mill: Mill) -> None:
    waiting = await rd.enqueue("grind", {"n": 1}, delay=60)
    run = await rd.redrives.start([waiting.id])
    await rd.redrives.advance()
    run = await rd.redrives.get(run.id)
    assert (run.state, run.skipped, run.moved) == ("finished", 1, 0)


# ---- pace


async def test_no_more_move_in_a_second_than_allowed(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    ids = await die(rd, 40)
    mill.broken = False
    run = await rd.redrives.start(all=True, rate=10.0)
    moved = []
    for _ in range(6):
        for _ in range(3):
            await rd.redrives.advance()
        moved.append((await rd.redrives.get(run.id)).moved)
        clock.advance(1.0)
    assert moved == [1, 11, 21, 31, 40, 40]
    assert (await states(rd, ids)).count("waiting") == 40


async def test_the_rate_holds_over_chunks_and_long_waits(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    await die(rd, 2 * CHUNK + 50)
    run = await rd.redrives.start(all=True, rate=100.0)
    await rd.redrives.advance()
    clock.advance(86_400)
    await rd.redrives.advance()
    assert (await rd.redrives.get(run.id)).moved == 1 + 200, "a night's pause is not made up for at once"


async def test_a_drain_moves_what_is_due_and_ends(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    await die(rd, 5)
    mill.broken = False
    run = await rd.redrives.start(all=True, rate=1.0)
    assert await soon(rd.drain()) == 1
    for _ in range(4):
        clock.advance(1.0)
        assert await soon(rd.drain()) == 1
    assert (await rd.redrives.get(run.id)).state == "finished"


# ---- the canary


async def test_a_canary_that_passes_lets_the_rest_follow(rd: Redrive, mill: Mill) -> None:
    await die(rd, 300)
    mill.broken = False
    run = await rd.redrives.start(task="grind", canary=3)
    await rd.redrives.advance()
    run = await rd.redrives.get(run.id)
    assert (run.state, run.moved) == ("canary", 3)
    await rd.redrives.advance()
    assert (await rd.redrives.get(run.id)).moved == 3, "the rest waits for the verdict"
    await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.succeeded) == ("finished", 300)
    assert run.canary is not None and (run.canary.verdict, run.canary.succeeded) == ("passed", 3)
    assert [said.what for said in run.story] == ["started", "canary passed", "finished"]


async def test_a_canary_that_fails_pauses_it_and_nothing_else_moves(rd: Redrive, mill: Mill) -> None:
    ids = await die(rd, 20)
    run = await rd.redrives.start(task="grind", canary=3, who="ada")
    await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.moved, run.failed_again, run.left) == ("paused", 3, 3, 17)
    assert run.reason is not None and run.reason.startswith("the canary failed: 0 of")
    assert run.canary is not None and run.canary.verdict == "failed"
    mill.broken = False
    await soon(rd.drain())
    assert sum([await redriven(rd, id) for id in ids]) == 3


async def test_what_needs_a_person_is_told(rd: Redrive, mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    rd.subscribe("redrive_*", told.append)
    await die(rd, 20)
    await die(rd, 1, "bake")
    run = await rd.redrives.start(task="grind", canary=3)
    await rd.redrives.start(task="bake")
    assert {run.state for run in await rd.redrives.live()} == {"canary", "moving"}
    caplog.clear()
    await soon(rd.drain())
    warned = [record.getMessage() for record in caplog.records if record.name == "redrive.redrives"]
    assert [text for text in warned if run.id in text] == [
        f"redrive {run.id} is {(await rd.redrives.get(run.id)).text}"
    ]
    assert [live.state for live in await rd.redrives.live()] == ["paused"]
    assert ("redrive_paused", run.id) in [(event.type, event.data["id"]) for event in told]
    assert "redrive_finished" in [event.type for event in told]


async def test_after_the_cure_a_second_canary_goes_first(rd: Redrive, mill: Mill) -> None:
    await die(rd, 20)
    run = await rd.redrives.start(task="grind", canary=3)
    await soon(rd.drain())
    mill.broken = False
    run = await rd.redrives.resume(run.id, who="ada", why="oiled it")
    assert run.state == "canary"
    await rd.redrives.advance()
    assert (await rd.redrives.get(run.id)).moved == 6
    await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.moved, run.succeeded, run.failed_again) == ("finished", 20, 17, 3)


async def test_a_person_may_go_on_without_another_canary(rd: Redrive, mill: Mill) -> None:
    await die(rd, 20)
    run = await rd.redrives.start(task="grind", canary=3)
    await soon(rd.drain())
    assert (await rd.redrives.resume(run.id, canary=0)).state == "moving"
    await soon(rd.drain())
    assert (await rd.redrives.get(run.id)).failed_again == 20


async def test_a_canary_may_fail_a_little(rd: Redrive) -> None:
    @rd.task(max_attempts=1)
    async def odd(n: int) -> None:
        if n == 0 or not healed:
            raise RuntimeError("odd")

    healed = False
    await die(rd, 30, "odd")
    healed = True
    run = await rd.redrives.start(task="odd", canary=5, pass_rate=0.8)
    await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.failed_again, run.succeeded) == ("finished", 1, 29)


async def test_a_canary_has_some_of_every_group(rd: Redrive, mill: Mill) -> None:
    await die(rd, 30)
    bakes = await die(rd, 2, "bake")
    run = await rd.redrives.start(all=True, canary=2)
    await rd.redrives.advance()
    assert (await states(rd, bakes)).count("waiting") == 1
    assert [group.moved for group in (await rd.redrives.get(run.id)).by_group] == [1, 1]


async def test_a_canary_is_made_of_what_moved(rd: Redrive, mill: Mill) -> None:
    """What has meanwhile been discarded proves nothing: the canary takes the next ones."""
    ids = await die(rd, 10)
    run = await rd.redrives.start(ids, canary=2)
    for id in ids[:3]:
        await rd.dead.discard(id)
    await rd.redrives.advance()
    run = await rd.redrives.get(run.id)
    assert (run.state, run.skipped, run.moved) == ("canary", 3, 2)


# ---- one at a time


async def test_only_one_redrive_moves_a_group(rd: Redrive, mill: Mill) -> None:
    ids, bakes = await die(rd, 3), await die(rd, 1, "bake")
    first = await rd.redrives.start(task="grind", canary=1)
    plan = await rd.redrives.plan(all=True)
    assert plan.running == (first.id,)
    await refused("redrive", rd.redrives.start(all=True), first.id, "still moving group")
    await refused("redrive", rd.redrives.start(ids[2:]), first.id)
    other = await rd.redrives.start(bakes)
    assert {run.id for run in await rd.redrives.list()} == {first.id, other.id}
    await rd.redrives.cancel(first.id)
    assert (await rd.redrives.start(task="grind")).total == 3


async def test_a_group_says_which_redrive_has_it(rd: Redrive, mill: Mill) -> None:
    ids, bakes = await die(rd, 3), await die(rd, 1, "bake")
    fingerprint = (await rd.jobs.get(ids[0])).fingerprint or ""
    assert await rd.redrives.of_group(fingerprint) is None
    first = await rd.redrives.start(task="grind", canary=1)
    for _ in range(25):  # many later ones elsewhere do not hide it
        await rd.redrives.cancel((await rd.redrives.start(bakes)).id)
    found = await rd.redrives.of_group(fingerprint)
    assert found is not None and found.id == first.id
    await rd.redrives.pause(first.id)
    stopped = await rd.redrives.of_group(fingerprint)
    assert stopped is not None and stopped.state == "paused"
    await rd.redrives.cancel(first.id)
    assert await rd.redrives.of_group(fingerprint) is None


async def test_a_group_is_free_again_when_all_of_it_has_moved(rd: Redrive, mill: Mill) -> None:
    await die(rd, 3)
    first = await rd.redrives.start(task="grind")
    await rd.redrives.advance()
    assert (await rd.redrives.get(first.id)).state == "settling"
    await die(rd, 1)
    assert (await rd.redrives.get(first.id)).failed_again == 3
    assert (await rd.redrives.start(task="grind")).total == 4


async def test_of_two_that_start_at_once_one_is_refused(
    rd: Redrive, mill: Mill, database: Path, clock: FakeClock
) -> None:
    await die(rd, 5)
    async with opened(database, clock=clock) as elsewhere:
        found = await asyncio.gather(
            *(each.redrives.start(task="grind") for each in (rd, elsewhere, rd)), return_exceptions=True
        )
    runs = [run for run in found if isinstance(run, RedriveRun)]
    errors = [error for error in found if isinstance(error, InvalidInput)]
    assert (len(runs), len(errors)) == (1, 2)
    assert all(runs[0].id in str(error) for error in errors)


async def test_a_start_that_died_on_the_way_is_cleared(
    rd: Redrive, mill: Mill, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group is free again after a while, and what it wrote is gone. It never moved anything."""
    ids = await die(rd, 5)

    async def die_here(*_: object) -> None:
        raise KeyError("killed")

    monkeypatch.setattr(rd.redrives, "_launch", die_here)
    with pytest.raises(KeyError):
        await rd.redrives.start(task="grind")
    monkeypatch.undo()
    assert len(await rd.store.docs("redrive_items")) == 1 and await rd.redrives.list() == []
    await refused("redrive", rd.redrives.start(task="grind"), "still moving")
    assert await rd.redrives.advance() == 0
    clock.advance(steps.FREEZING_SECONDS)
    assert await rd.redrives.advance() == 1
    assert await rd.store.docs("redrive_items") == [] and set(await states(rd, ids)) == {"dead"}
    assert (await rd.redrives.start(task="grind")).total == 5


async def test_a_start_that_was_only_slow_hears_that_it_was_given_up(
    rd: Redrive, mill: Mill, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await die(rd, 5)
    real = rd.redrives._documents.freeze

    async def slowly(*said: Any) -> None:
        await real(*said)
        clock.advance(steps.FREEZING_SECONDS)
        await rd.redrives.advance()

    monkeypatch.setattr(rd.redrives._documents, "freeze", slowly)
    with pytest.raises(redrive.StoreUnavailable, match="taken for dead"):
        await rd.redrives.start(task="grind")
    assert await rd.redrives.list() == [] and set(await states(rd, ids)) == {"dead"}


# ---- steering


async def test_pause_and_resume(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    await die(rd, 10)
    mill.broken = False
    run = await rd.redrives.start(all=True, rate=2.0)
    await rd.redrives.advance()
    run = await rd.redrives.pause(run.short_id, who="bob", why="lunch")
    assert (run.state, run.reason) == ("paused", "paused by bob: lunch")
    clock.advance(60)
    await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.moved, run.succeeded) == ("paused", 1, 1), "what was moved goes on, nothing else moves"
    run = await rd.redrives.resume(run.id, who="ada")
    assert (run.state, run.reason) == ("moving", None)
    for _ in range(10):
        clock.advance(1)
        await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.succeeded) == ("finished", 10)
    assert [(said.what, said.who, said.why) for said in run.story[:3]] == [
        ("started", "api", None),
        ("paused", "bob", "lunch"),
        ("resumed", "ada", None),
    ]


async def test_cancel_leaves_the_rest_dead_and_counts_what_was_moved(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    ids = await die(rd, 10)
    mill.broken = False
    run = await rd.redrives.start(all=True, rate=3.0)
    await rd.redrives.advance()
    clock.advance(1)
    await rd.redrives.advance()
    run = await rd.redrives.cancel(run.id, who="bob", why="enough")
    assert (run.state, run.moved, run.left, run.over) == ("cancelled", 4, 6, False)
    clock.advance(60)
    await soon(rd.drain())
    run = await rd.redrives.get(run.id)
    assert (run.state, run.succeeded, run.left, run.over) == ("cancelled", 4, 6, True)
    assert (await states(rd, ids)).count("dead") == 6
    assert await rd.redrives.advance() == 0


async def test_steering_what_is_over_is_refused(rd: Redrive, mill: Mill) -> None:
    await die(rd, 1)
    run = await rd.redrives.start(all=True)
    await refused("redrive", rd.redrives.resume(run.id), "is moving: it cannot be resumed")
    await rd.redrives.cancel(run.id)
    for verb in (rd.redrives.pause, rd.redrives.resume, rd.redrives.cancel):
        await refused("redrive", verb(run.id), "is cancelled")
        await refused("redrive", verb("nosuchredrive"), "there is no redrive 'nosuchredrive'")
        await refused("who", verb(run.id, who=""))
    await refused("canary", rd.redrives.resume(run.id, canary=-1))


# ---- looking


async def test_found_by_a_part_of_its_id(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    await die(rd, 1)
    await die(rd, 1, "bake")
    first = await rd.redrives.start(task="grind")
    clock.advance(1)
    second = await rd.redrives.start(task="bake")
    assert (await rd.redrives.get(first.short_id)).id == first.id
    await refused("redrive", rd.redrives.get(first.id[:4]), "several ids")
    await refused("redrive", rd.redrives.get("zz"), "there is no redrive")
    assert [run.id for run in await rd.redrives.list()] == [second.id, first.id]
    assert [run.id for run in await rd.redrives.list(limit=1)] == [second.id]
    await refused("limit", rd.redrives.list(limit=0))


async def test_items_page_by_page(rd: Redrive, mill: Mill) -> None:
    ids = await die(rd, CHUNK + 1)
    run = await rd.redrives.start(ids)
    page = await rd.redrives.items(run.id)
    assert len(page.items) == CHUNK and page.cursor is not None
    rest = await rd.redrives.items(run.id, page.cursor)
    assert len(rest.items) == 1 and rest.cursor is None
    assert [item.id for item in (*page.items, *rest.items)] == ids
    assert page.items[0].status == "pending" and page.items[0].task == "grind"
    await refused("cursor", rd.redrives.items(run.id, "x"))
    assert (await rd.redrives.items(run.id, "99")).items == []


# ---- who carries it on


async def test_a_worker_carries_it_on_by_itself(live: Redrive) -> None:
    mill = Mill(live)
    ids = await die(live, 30)
    mill.broken = False
    run = await live.redrives.start(task="grind", canary=2)
    async with live.worker():
        await eventually(lambda: _finished(live, run.id), "the redrive")
    assert set(await states(live, ids)) == {"done"}


async def _finished(rd: Redrive, id: str) -> bool:
    return (await rd.redrives.get(id)).state == "finished"


async def test_following_moves_without_a_worker_and_ends_where_jobs_need_one(live: Redrive) -> None:
    Mill(live)
    ids = await die(live, 5)
    run = await live.redrives.start(task="grind")
    async with asyncio.timeout(20):
        seen = [run async for run in live.redrives.follow(run.short_id)]
    assert seen[-1].state == "settling" and set(await states(live, ids)) == {"waiting"}


async def test_following_ends_when_it_is_paused(rd: Redrive, mill: Mill) -> None:
    await die(rd, 5)
    run = await rd.redrives.start(task="grind")
    await rd.redrives.pause(run.id)
    seen = [run async for run in rd.redrives.follow(run.id)]
    assert [run.state for run in seen] == ["paused"]


async def test_many_at_once_move_each_item_once(rd: Redrive, mill: Mill, database: Path, clock: FakeClock) -> None:
    """Steps taken at the same time by several instances on one file: each item is moved by one of them."""
    ids = await die(rd, 3 * CHUNK)
    run = await rd.redrives.start(task="grind")
    async with opened(database, clock=clock) as one, opened(database, clock=clock) as two:
        for _ in range(30):
            await soon(asyncio.gather(*(each.redrives.advance() for each in (rd, one, two, rd))))
            if (await rd.redrives.get(run.id)).state == "settling":
                break
    run = await rd.redrives.get(run.id)
    assert (run.state, run.moved, run.open) == ("settling", 600, 600)
    assert {await redriven(rd, id) for id in ids} == {1}


async def test_only_some_open_items_are_looked_at_in_a_step(
    rd: Redrive, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turn: every step reads a few chunks, and none that has nothing open."""
    ids = await die(rd, 4 * CHUNK)
    run = await rd.redrives.start(ids)
    monkeypatch.setattr(steps, "LOOKED_CHUNKS", 1)
    await rd.redrives.advance()
    real, read = rd.store.get, []

    async def get(asked: Sequence[str]) -> list[Any]:
        read.append(tuple(asked))
        return await real(asked)

    monkeypatch.setattr(rd.store, "get", get)
    for _ in range(4):
        assert await rd.redrives.advance() == 0
    assert [len(asked) for asked in read] == [CHUNK] * 3 and len(set(read)) == 3
    assert ids[0] not in read[0], "the step that moved them has looked at the first chunk"
    await rd.enqueue("bake", {"n": 1}, delay=60)
    await rd.redrives.advance()
    assert len(read) == 4, "something happened in the store: it may concern us"
    for id in ids[:CHUNK]:
        await rd.jobs.cancel(id)
    while (await rd.redrives.get(run.id)).discarded < CHUNK:
        await rd.redrives.advance()
    read.clear()
    for _ in range(6):
        await rd.redrives.advance()
    assert ids[0] not in {id for asked in read for id in asked}


async def test_items_of_long_ago_are_forgotten_and_scorecards_stay(rd: Redrive, mill: Mill, clock: FakeClock) -> None:
    ids = await die(rd, 3)
    old = await rd.redrives.start(ids)
    await soon(rd.drain())
    clock.advance(rd.settings.retention - 1)
    await rd.redrives.start(ids[:1])
    assert len((await rd.redrives.items(old.id)).items) == 3
    await soon(rd.drain())
    clock.advance(2)
    await rd.redrives.start(ids[1:2])
    forgotten = await rd.redrives.items(old.id)
    assert (forgotten.items, forgotten.cursor, forgotten.kept) == ([], None, False)
    kept = await rd.redrives.get(old.id)
    assert (kept.state, kept.failed_again) == ("finished", 3)
    assert {document.key[:32] for document in await rd.store.docs("redrive_items")}.isdisjoint({old.id})


async def test_what_an_error_says_is_shown_and_not_kept(rd: Redrive, mill: Mill) -> None:
    """Erasing a job erases what it said: no copy of it stands in a redrive."""
    (id,) = await die(rd, 1)
    run = await rd.redrives.start([id])
    await soon(rd.drain())
    assert (await rd.redrives.get(run.id)).by_group[0].error == "RuntimeError: the mill is broken"
    written = [*await rd.store.docs("redrive"), *await rd.store.docs("redrive_items")]
    assert written and not any(b"mill" in document.value for document in written)
    await rd.jobs.erase(id)
    assert (await rd.redrives.get(run.id)).by_group[0].error is None


async def test_a_redrive_whose_items_are_lost_says_so_and_can_be_cancelled(
    rd: Redrive, mill: Mill, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on."""
    await die(rd, 1)
    bakes = await die(rd, 1, "bake")
    broken = await rd.redrives.start(task="grind")
    await rd.redrives.start(task="bake")
    await rd.store.apply([Commit(puts=(Put("redrive_items", f"{broken.id}/000000", None),))])
    with pytest.raises(redrive.StoreError, match="chunk 0 of redrive"):
        await rd.redrives.advance()
    assert broken.id in caplog.text and await states(rd, bakes) == ["waiting"]
    await rd.redrives.cancel(broken.id)
    await rd.redrives.advance()


@pytest.mark.parametrize("field", ["since", "until", "due_at"])
async def test_a_time_that_is_none_is_refused(rd: Redrive, mill: Mill, field: str) -> None:
    await die(rd, 1)
    said: dict[str, Any] = {field: timedelta(hours=1)}
    await refused(field, rd.redrives.plan(**said), "seconds since 1970")
