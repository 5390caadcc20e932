"""Dead letters that come back by themselves: which do, which never, who is told, and how it is taken back."""

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Redrive
from redrive.core.agents import AgentFleet, Model
from redrive.core.job import CYCLE, Job, State
from redrive.retries.comebacks import FIRST
from tests.stored_jobs import a_job
from tests.support import FakeClock, eventually, opened, soon

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class Site:
    """What the task `fetch` calls. It fails with `error`, or answers where that is None."""

    def __init__(self, rd: Redrive, **options: Any) -> None:
        self.error: Exception | None = ConnectionError("the site is down")
        self.calls: list[int] = []
        options = {"max_attempts": 1, "breaker_after": 0, "base": 1.0} | options

        @rd.task("fetch", **options)
        async def fetch(page: int = 0) -> str:
            self.calls.append(page)
            if self.error is not None:
                raise type(self.error)(*self.error.args)  # one that was raised before looks like another trouble
            return "fetched"


async def dead(rd: Redrive, number: int = 1, **options: Any) -> list[str]:
    """Dead letters that come back by themselves."""
    ids = [(await rd.enqueue("fetch", {"page": page}, **options)).id for page in range(number)]
    await soon(rd.drain())
    assert {(job.state, job.lane) for job in await rd.store.get(ids)} == {(State.dead, "delayed")}
    return ids


async def pass_time(rd: Redrive, clock: FakeClock, seconds: float, step: float = 60.0) -> None:
    """Let time pass where somebody drains once a minute."""
    end = clock.now() + seconds
    while clock.now() < end:
        clock.advance(min(step, end - clock.now()))
        await soon(rd.drain())


async def got(rd: Redrive, id: str) -> Job:
    (job,) = await rd.store.get([id])
    return job


# ---- the acts


@pytest.mark.behaviour("004-59", "004-3")
async def test_a_group_that_came_back_counts_as_resolved_by_itself_and_who_and_why_is_kept(
    rd: Redrive, clock: FakeClock
) -> None:
    site = Site(rd)
    ids = await dead(rd, 3)
    site.error = None
    await pass_time(rd, clock, 15 * MINUTE)
    assert {job.state for job in await rd.store.get(ids)} == {State.done}
    back = [next(move for move in await rd.jobs.story(id) if move.move == "redriven") for id in ids]
    assert {(move.who, move.why) for move in back} == {("redrive", "It comes back by itself (comeback 1 of 4).")}
    acts = [(act.verb, act.who, act.why, act.moved) for act in reversed(await rd.dead.acts())]
    assert acts == [
        ("redrive", "redrive", "its time has come", 1),
        ("redrive", "redrive", "what it calls answers again", 2),
    ]
    total = (await rd.reports.monthly()).total
    assert (total.died, total.auto, total.human, total.open) == (3, 3, 0, 0)


async def test_a_comeback_can_be_taken_back(rd: Redrive, clock: FakeClock) -> None:
    Site(rd)
    (id,) = await dead(rd)
    clock.advance(10 * MINUTE)
    assert await rd.comebacks.work() == 1
    assert (await got(rd, id)).state is State.waiting
    (act,) = await rd.dead.acts()
    clock.advance(1)
    assert (await rd.dead.undo(act.id, who="ada")).moved == 1
    job = await got(rd, id)
    assert (job.state, job.lane, job.comes_back_at, job.comebacks) == (State.dead, "manual", None, 0)
    assert await rd.comebacks.work() == 0, "it is not off again"
    assert [event.who for event in await rd.jobs.story(id)][-2:] == ["redrive", "ada"]


@pytest.mark.parametrize("verb", ["manual", "delayed", "discard", "defer", "redrive"])
async def test_what_a_person_did_to_one_and_takes_back_leaves_its_time_as_it_was(
    rd: Redrive, clock: FakeClock, verb: str
) -> None:
    Site(rd)
    (id,) = await dead(rd)
    before = await got(rd, id)
    clock.advance(60)
    if verb in ("manual", "delayed"):
        await rd.dead.move_lane(id, verb, who="ada")
    elif verb == "defer":
        await rd.dead.defer(id, owner="bob", until=timedelta(days=1), who="ada")
    else:
        await getattr(rd.dead, verb)(id, who="ada")
    assert (await got(rd, id)).comes_back_at == (clock.now() + HOUR if verb == "delayed" else None)
    clock.advance(60)
    await rd.dead.undo(id, who="ada")
    after = await got(rd, id)
    assert (after.state, after.lane, after.comes_back_at, after.held_for) == (
        State.dead, "delayed", before.comes_back_at, before.held_for,
    )  # fmt: skip


async def test_its_tries_go_on_counting_and_are_no_grant(rd: Redrive, clock: FakeClock) -> None:
    Site(rd, max_attempts=3)
    (id,) = [(await rd.enqueue("fetch", {})).id]
    await pass_time(rd, clock, MINUTE, step=20.0)
    job = await got(rd, id)
    assert (job.state, job.attempts, job.allowed) == (State.dead, 3, 3)
    clock.advance(10 * MINUTE)
    await rd.comebacks.work()
    job = await got(rd, id)
    assert (job.state, job.attempts, job.allowed, job.comebacks, job.grants) == (State.waiting, 3, 5, 1, 0)
    await pass_time(rd, clock, 2 * MINUTE)
    job = await got(rd, id)
    assert (job.state, job.lane, job.attempts, job.comebacks) == (State.dead, "delayed", 5, 1)
    assert "comeback 2 of 4" in str(job.history[-1].decision)


@pytest.mark.behaviour("001-26", "001-29")
async def test_after_the_last_comeback_a_person_looks(rd: Redrive, clock: FakeClock) -> None:
    site = Site(rd, comebacks=(600, 1200))
    (id,) = await dead(rd)
    await pass_time(rd, clock, 2 * HOUR)
    job = await got(rd, id)
    assert (job.state, job.lane, job.comes_back_at, job.because) == (State.dead, "manual", None, "attempts_exhausted")
    assert len(site.calls) == 1 + 2 * 2
    assert "It came back by itself twice and failed again." in str(job.history[-1].decision)
    (need,) = (await rd.morning()).needs
    assert need.kind == "dead_manual"


# ---- the delayed lane of before


async def test_what_a_person_moves_to_the_delayed_lane_comes_back_after_an_hour(rd: Redrive, clock: FakeClock) -> None:
    site = Site(rd)
    site.error = PermissionError("not yours")
    ids = [(await rd.enqueue("fetch", {"page": page})).id for page in range(2)]
    await soon(rd.drain())
    assert {job.lane for job in await rd.store.get(ids)} == {"manual"}
    await rd.dead.move_lane(ids[0], "delayed", who="ada", why="the grant is on its way")
    site.error = None
    clock.advance(HOUR - 1)
    await soon(rd.drain())
    assert (await got(rd, ids[0])).state is State.dead
    clock.advance(1)
    await soon(rd.drain())
    assert [(job.state, job.grants) for job in await rd.store.get(ids)] == [(State.done, 0), (State.dead, 0)]


@pytest.mark.parametrize("said", [None, "delayed"])
async def test_what_was_recorded_elsewhere_comes_back_after_an_hour(
    rd: Redrive, clock: FakeClock, said: str | None
) -> None:
    site = Site(rd, max_attempts=5)
    site.error = None
    letter = await rd.dead.add("old", {"page": 7}, TimeoutError("late"), task="fetch", lane=said)
    assert (letter.lane, letter.comes_back_at) == ("delayed", clock.now() + HOUR)
    clock.advance(HOUR)
    await soon(rd.drain())
    job = await got(rd, letter.id)
    assert (job.state, job.grants, site.calls) == (State.done, 0, [7])


async def test_what_was_recorded_again_waits_an_hour_anew(rd: Redrive, clock: FakeClock) -> None:
    Site(rd, max_attempts=5)
    letter = await rd.dead.add("old", {"page": 7}, TimeoutError("late"), task="fetch")
    clock.advance(30 * MINUTE)
    again = await rd.dead.add("old", {"page": 7}, TimeoutError("late"), task="fetch")
    assert (again.id, again.lane, again.comes_back_at) == (letter.id, "delayed", clock.now() + HOUR)


async def test_letters_of_cycles_wait_for_their_script_and_hide_no_other(rd: Redrive, clock: FakeClock) -> None:
    site = Site(rd)
    (id,) = await dead(rd)
    trouble: dict[str, Any] = {
        "state": State.dead, "lane": "delayed", "because": "imported", "recommendation": "wait", "error": "down",
        "error_class": "ConnectionError", "category": "transient", "detail": "network", "attempts": 1,
    }  # fmt: skip
    cycles = [a_job(clock, task="fetch", **trouble | {"queue": f"{CYCLE}nightly"}) for _ in range(1_001)]
    await rd.store.insert(cycles)
    site.error = None
    clock.advance(10 * MINUTE)
    await soon(rd.drain())
    assert [(await got(rd, id)).state, (await got(rd, cycles[0].id)).state] == [State.done, State.dead]


# ---- with a change


@pytest.mark.behaviour("004-3")
async def test_what_worked_against_the_group_is_what_a_comeback_changes(rd: Redrive, clock: FakeClock) -> None:
    models: list[str] = []
    rd.registry.fleet = AgentFleet(rd.registry.fleet.agents, {"small": Model(other="large")})

    @rd.task("answer", max_attempts=3)
    async def answer(model: str, prompt: str = "x") -> str:
        models.append(model)
        if model == "small":
            error = RuntimeError("I cannot help with that")
            error.error_kind = "refusal"  # type: ignore[attr-defined]
            raise error
        return "yes"

    for _ in range(2):  # in the way of any worker it is learned that another model helps
        await rd.enqueue("answer", {"model": "small"})
        await pass_time(rd, clock, 5 * MINUTE)
    assert models == ["small", "large"] * 2
    job = await rd.enqueue("answer", {"model": "small"}, max_attempts=1)
    await soon(rd.drain())
    (letter,) = (await rd.dead.list()).jobs
    assert (letter.lane, letter.comes_back_at) == ("delayed", clock.now() + 10 * MINUTE)
    clock.advance(10 * MINUTE)
    assert await rd.comebacks.work() == 1
    changed = await got(rd, job.id)
    assert (changed.state, changed.model) == (State.waiting, "large")
    clock.advance(1)
    (act,) = await rd.dead.acts()
    assert (await rd.dead.undo(act.id)).moved == 1
    back = await got(rd, job.id)
    assert (back.state, back.model, back.changes_json) == (State.dead, None, None), "no change of the comeback is left"


# ---- hands off


async def test_where_consent_has_run_out_a_person_gets_it(rd: Redrive, clock: FakeClock) -> None:
    site = Site(rd, consent=True)
    handle = await rd.enqueue("fetch", {}, session_id="s")
    await soon(rd.drain())
    await rd.jobs.approve(handle.id, who="ada")
    await soon(rd.drain())
    assert (await got(rd, handle.id)).lane == "delayed"
    for grant in await rd.sessions.grants("s"):
        await rd.sessions.revoke("s", grant.id)
    await pass_time(rd, clock, 3 * DAY, step=HOUR)
    job = await got(rd, handle.id)
    assert (job.state, job.lane, len(site.calls)) == (State.dead, "manual", 1)
    assert (await rd.jobs.story(handle.id))[-1].why == (
        "It does not come back by itself: the consent that it needs has run out."
    )


async def _uncertain(key: str) -> None:
    raise TimeoutError("no answer")


NEVER = ("open effect", "manual", "outcome unknown", "restored", "put off", "discarded")


@pytest.mark.parametrize("what", NEVER)
async def test_what_no_machine_may_decide_stays_where_it_is(rd: Redrive, clock: FakeClock, what: str) -> None:
    options: dict[str, Any] = {"retry_policy": "manual"} if what == "manual" else {}
    ran: list[int] = []

    @rd.task("fetch", max_attempts=1, breaker_after=0, **options)
    async def fetch(ctx: redrive.Context) -> None:
        ran.append(1)
        if what == "open effect":
            with contextlib.suppress(TimeoutError):
                await ctx.once("post", _uncertain)
        if what == "outcome unknown":
            raise redrive.OutcomeUnknown("no answer")
        raise ConnectionError("the site is down")

    job = await rd.enqueue("fetch", {})
    await soon(rd.drain())
    if what == "restored":
        await rd.dead.discard(job.id, who="ada")
        await rd.dead.restore(job.id, who="ada")
    elif what == "put off":
        await rd.dead.defer(job.id, owner="bob", until=timedelta(days=30), who="ada")
    elif what == "discarded":
        await rd.dead.discard(job.id, who="ada")
    before = await got(rd, job.id)
    assert before.comes_back_at is None and (before.state is not State.dead or before.lane == "manual")
    await pass_time(rd, clock, 2 * DAY, step=HOUR)
    assert (await got(rd, job.id)).version == before.version
    assert len(ran) == 1


async def test_what_may_have_landed_is_not_promised_a_comeback(rd: Redrive) -> None:
    @rd.task("fetch", max_attempts=1, breaker_after=0)
    async def fetch(ctx: redrive.Context) -> None:
        await ctx.once("post", _uncertain)

    job = await rd.enqueue("fetch", {})
    await soon(rd.drain())
    why = (await got(rd, job.id)).history[-1].decision
    assert "It does not come back by itself" in why and "It comes back by itself" not in why, why


async def test_a_process_without_the_code_of_a_task_leaves_it_and_says_that_it_is_late(
    rd: Redrive, clock: FakeClock
) -> None:
    Site(rd)
    (id,) = await dead(rd)
    del rd.registry.handlers["fetch"]
    before = await got(rd, id)
    await pass_time(rd, clock, 21 * MINUTE)
    assert (await got(rd, id)).version == before.version
    (need,) = (await rd.morning()).needs
    assert need.count == 1 and "fetch" in need.sentence, need


# ---- more than one process


async def test_two_processes_bring_each_back_once(rd: Redrive, database: Path, clock: FakeClock) -> None:
    site = Site(rd)
    ids = await dead(rd, 30)
    async with opened(database, clock=clock) as other:
        Site(other).error = None
        site.error = None
        clock.advance(10 * MINUTE)
        assert sum(await asyncio.gather(rd.comebacks.work(), other.comebacks.work())) == 1, "one goes first"
        assert len(await FIRST.all(rd.store)) == 1
        for _ in range(30):
            await asyncio.gather(soon(rd.drain()), soon(other.drain()))
            clock.advance(1)
    jobs = await rd.store.get(ids)
    assert {(job.state, job.comebacks, job.attempts) for job in jobs} == {(State.done, 1, 2)}
    moves = [[event.move for event in await rd.jobs.story(id)].count("redriven") for id in ids]
    assert moves == [1] * 30


async def test_a_worker_brings_back_by_itself(database: Path) -> None:
    async with opened(database) as rd:
        site = Site(rd, comebacks=(0.05,))
        handle = await rd.enqueue("fetch", {})
        await soon(rd.drain())
        site.error = None
        async with rd.worker():

            async def done() -> bool:
                return (await handle.refresh()).state is State.done

            await eventually(done, "it came back and is done")
        assert [event.who for event in await rd.jobs.story(handle.id) if event.move == "redriven"] == ["redrive"]


# ---- people


async def test_nobody_is_paged_for_what_comes_back(database: Path, clock: FakeClock) -> None:
    heard: list[str] = []

    async def phone(message: Any) -> None:
        heard.append(f"{message.kind}: {message.title}")

    async with opened(database, clock=clock, channels=[phone]) as rd:
        site = Site(rd)
        await dead(rd, 40)
        await soon(rd.drain())
        health = await rd.health()
        assert health.issues == ["fetch: 40 come back by themselves, the next in 10 min"]
        assert (health.needs, health.comes_back, health.exit_code) == ([], 40, 0)
        assert (await rd.morning()).needs == []
        site.error = None
        await pass_time(rd, clock, 15 * MINUTE)
        assert (await rd.stats())["totals"]["done"] == 40
        assert (await rd.health()).issues == []
    assert [line for line in heard if "page" in line] == []


# ---- turning it off


@pytest.mark.parametrize(
    ("instance", "task"),
    [({"comebacks": ()}, {}), ({"triage": False}, {}), ({"queues": {"fetch": {"comebacks": ()}}}, {}),
     ({}, {"comebacks": ()})],
    ids=["instance", "its old name", "queue", "task"],
)  # fmt: skip
async def test_it_is_on_unless_somebody_turns_it_off(
    database: Path, clock: FakeClock, instance: dict[str, Any], task: dict[str, Any]
) -> None:
    async with opened(database, clock=clock, **instance) as rd:
        Site(rd, **task)
        handle = await rd.enqueue("fetch", {})
        await soon(rd.drain())
        job = await got(rd, handle.id)
        assert (job.state, job.lane, job.comes_back_at) == (State.dead, "manual", None)
        assert "comes back" not in str(job.recommendation)


@pytest.mark.parametrize("table", [(0,), (-1,), (600, 60), (600, 600), "10 min", (float("inf"),)])
def test_an_impossible_table_is_refused(table: Any) -> None:
    with pytest.raises(redrive.ConfigError, match="comebacks"):
        Redrive(":memory:", comebacks=table)
    with pytest.raises(redrive.InvalidOption, match="comebacks"):
        Redrive(":memory:").task("work", comebacks=table)(lambda: None)
