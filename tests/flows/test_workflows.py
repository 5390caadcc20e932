"""Workflows: steps are jobs that wait for each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import (
    BlockingContext,
    Cancel,
    Context,
    InvalidInput,
    Job,
    JobDead,
    JobDiscarded,
    JobNotFound,
    KeyReused,
    Redrive,
    State,
    Task,
)
from redrive.core import lifecycle
from redrive.core.store import MAX_PARTS, Applied, Commit, Outcome, Store, Wanted
from redrive.flows.workflows import Workflow, WorkflowHandle
from tests.support import FakeClock, drain_until_over, eventually, opened, snapshot, soon


class Recording:
    """The real store, which remembers what it was asked to apply, and lets a test step in before."""

    before: Callable[[Sequence[Commit]], Awaitable[None]] | None = None

    def __init__(self, store: Store) -> None:
        self.store = store
        self.seen: list[Commit] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        if self.before is not None:
            await self.before(group)
        self.seen.extend(group)
        return await self.store.apply(group)


def record(rd: Redrive) -> Recording:
    store = Recording(rd.store)
    rd.core.holder.store = store  # type: ignore[assignment]
    return store


class Mill:
    """What a task depends on: broken until it is mended."""

    broken = True

    def mend(self) -> None:
        self.broken = False


def add_tasks(rd: Redrive) -> tuple[Task[..., Any], Task[..., Any], Mill]:
    """One that returns what it is given, one that does so when its mill is mended, and the mill."""
    mill = Mill()

    @rd.task
    async def give(value: Any = None) -> Any:
        return value

    @rd.task(max_attempts=2, base=10)
    async def fragile(value: Any = None) -> Any:
        if mill.broken:
            raise ConnectionError("the mill is broken")
        return value

    return give, fragile, mill


async def states(handle: WorkflowHandle) -> dict[str, str]:
    return {step.name: step.state for step in (await handle.status()).steps}


async def job_of(rd: Redrive, handle: WorkflowHandle, step: str) -> Job:
    return await rd.jobs.get(handle.steps[step])


def chain(rd: Redrive, *tasks: Task[..., Any]) -> Workflow:
    """One step after the other: a, b, c, …"""
    wf = rd.workflow("chain")
    last: Any = ()
    for name, task in zip("abcdefgh", tasks, strict=False):
        last = wf.add(task, after=last, name=name)
    return wf


# -- the way it is meant to be used


async def test_a_step_gets_what_others_returned(rd: Redrive) -> None:
    @rd.task
    async def write(topic: str) -> dict[str, Any]:
        return {"title": topic.title(), "pages": ["one", "two"]}

    @rd.task
    def review(ctx: BlockingContext, text: str, pages: list[str]) -> str:
        return f"{text}: {len(pages)} pages, after {sorted(ctx.results)}"

    @rd.task
    async def publish(ctx: Context, review: str) -> dict[str, Any]:
        return {"said": review, "results": ctx.results}

    wf = rd.workflow("article")
    draft = wf.add(write, topic="the sea")
    checked = wf.add(review, text=draft.output["title"], pages=draft.output.pages)
    wf.add(publish, checked.output)
    handle = await wf.start(idempotency_key="sea")
    assert (await handle.status()).state == "running"
    await soon(rd.drain())
    result = await handle.result(5)
    said = "The Sea: 2 pages, after ['write']"
    assert result["publish"]["said"] == said
    assert result["publish"]["results"] == {"write": {"title": "The Sea", "pages": ["one", "two"]}, "review": said}
    status = await handle.status()
    assert status.complete and status.text == "Workflow article is complete: 3 of 3 steps done."
    assert {step.attempts for step in status.steps} == {1}


async def test_nothing_is_written_before_the_start_and_all_of_it_at_once(rd: Redrive, database: Path) -> None:
    give, *_ = add_tasks(rd)
    before = snapshot(database)
    wf = chain(rd, give, give, give)
    assert snapshot(database) == before
    handle = await wf.start(session_id="s1")
    jobs = await rd.store.get(list(handle.steps.values()))
    assert [(job.state, job.because, job.session_id) for job in jobs] == [
        ("waiting", None, "s1"),
        ("held", "blocked", "s1"),
        ("held", "blocked", "s1"),
    ]
    assert {job.held_for for job in jobs[1:]} == {f"workflow:{handle.id}"}
    assert (await handle.status()).session_id == "s1"
    assert (await rd.stats())["accepted"] == 3


async def test_options_belong_to_the_task_of_a_step(rd: Redrive, clock: FakeClock) -> None:
    give, *_ = add_tasks(rd)
    wf = rd.workflow("options")
    first = wf.add(give.options(priority="high", agent="ada", session_id="mine"), "x")
    wf.add(give.options(delay=timedelta(minutes=5), queue="slow"), after=first, name="later")
    clock.advance(100)
    handle = await wf.start(session_id="ours")
    job = await job_of(rd, handle, "give")
    assert (job.priority_name, job.agent, job.session_id, job.run_at) == ("high", "ada", "mine", clock.now())
    await soon(rd.drain())
    later = await job_of(rd, handle, "later")
    assert (later.state, later.queue, later.run_at) == ("waiting", "slow", clock.now() + 300), "not before its time"
    clock.advance(300)
    await soon(rd.drain())
    assert await handle.result(5) == {"later": None}


async def test_a_workflow_belongs_to_the_session_that_starts_it(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)

    @rd.task
    async def plan(session_id: str | None = None) -> str:
        return (await chain(rd, give, give).start(session_id=session_id)).id

    inherited = await plan.options(session_id="s1").enqueue()
    said = await plan.options(session_id="s1").enqueue("s2")
    await soon(rd.drain())
    for handle, session in ((inherited, "s1"), (said, "s2")):
        started = await rd.workflows.get(await handle.result(5))
        assert {job.session_id for job in await rd.store.get(list(started.steps.values()))} == {session}
        assert (await started.status()).complete


async def test_names_are_made_where_none_is_given(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)
    wf = rd.workflow("names")
    assert [wf.add(give).name, wf.add(give).name, wf.add(give, name="x").name, wf.add(give).name] == [
        "give", "give-2", "x", "give-3",
    ]  # fmt: skip


async def test_a_step_is_named_without_asking_for_every_step_before_it(rd: Redrive) -> None:
    asked: list[object] = []

    class Asked(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            asked.append(name)
            return super().__contains__(name)

    give, *_ = add_tasks(rd)
    wf = rd.workflow("many")
    wf._steps = Asked()
    wf.add(give, name="give-7")
    assert [wf.add(give).name for _ in range(300)][-2:] == ["give-300", "give-301"]
    assert len(asked) < 2 * 301 + 2


async def test_a_task_may_be_known_by_its_name_alone(rd: Redrive) -> None:
    wf = rd.workflow("elsewhere")
    first = wf.add("unknown", {"n": 1})
    wf.add("unknown", text=first.output, after=[first])
    with pytest.raises(InvalidInput, match="name its arguments"):
        wf.add("unknown", 1, 2)
    handle = await wf.start()
    assert (await job_of(rd, handle, "unknown-2")).arguments == {"text": {"$output": "unknown", "path": []}}


async def test_large_results_and_blobs_reach_the_next_step(rd: Redrive) -> None:
    @rd.task
    async def grow(seed: redrive.Blob) -> str:
        return seed.data.decode() * 300_000

    @rd.task
    async def measure(text: str) -> int:
        return len(text)

    wf = rd.workflow("large")
    wf.add(measure, wf.add(grow, redrive.Blob(b"ab")).output)
    handle = await wf.start()
    await soon(rd.drain())
    assert await handle.result(5) == {"measure": 600_000}


# -- what is refused


REFUSED: dict[str, Callable[[Redrive, Workflow, Any], Any]] = {
    "no such step": lambda rd, wf, give: wf.add(give, after="nobody"),
    "circle": lambda rd, wf, give: (wf.add(give, after="y", name="x"), wf.add(give, after="x", name="y")),
    "two of one name": lambda rd, wf, give: (wf.add(give, name="x"), wf.add(give, name="x")),
    "bad name": lambda rd, wf, give: wf.add(give, name="x\n"),
    "not JSON": lambda rd, wf, give: wf.add(give, object()),
    "not a number": lambda rd, wf, give: wf.add(give, float("nan")),
    "no such argument": lambda rd, wf, give: wf.add(give, nonsense=1),
    "a key of its own": lambda rd, wf, give: wf.add(give.options(idempotency_key="k")),
    "looks like an output": lambda rd, wf, give: wf.add(give, {"$output": "give", "path": []}),
    "an output of another": lambda rd, wf, give: wf.add(give, rd.workflow("w").add(give, name="foreign").output),
    "an output of a namesake": lambda rd, wf, give: (
        wf.add(give, name="x"),
        wf.add(give, rd.workflow("w").add(give, name="x").output),
    ),
    "after a namesake": lambda rd, wf, give: (
        wf.add(give, name="x"),
        wf.add(give, after=rd.workflow("w").add(give, name="x")),
    ),
    "an output in a set": lambda rd, wf, give: wf.add(give, {wf.add(give).output}),
    "after is no step": lambda rd, wf, give: wf.add(give, after=[5]),
    "too large": lambda rd, wf, give: wf.add(give, "x" * 2_000_000),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_refused_changes_nothing(rd: Redrive, database: Path, what: str) -> None:
    give, *_ = add_tasks(rd)
    wf = rd.workflow("bad")
    before = snapshot(database)
    with pytest.raises(InvalidInput) as caught:
        REFUSED[what](rd, wf, give)
        await wf.start()
    assert caught.value.field and "\n" not in str(caught.value)
    assert snapshot(database) == before


@pytest.mark.parametrize(
    "start",
    [
        {},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 501},
        {"idempotency_key": b"x"},
        {"session_id": "a\nb"},
        {"session_id": 5},
    ],
    ids=str,
)
async def test_a_bad_start_changes_nothing(rd: Redrive, database: Path, start: dict[str, Any]) -> None:
    give, *_ = add_tasks(rd)
    wf = rd.workflow("bad")
    if start:
        wf.add(give)
    before = snapshot(database)
    with pytest.raises(InvalidInput):
        await wf.start(**start)
    assert snapshot(database) == before


async def test_an_argument_of_the_wrong_type_is_refused_where_it_can_be_known(rd: Redrive) -> None:
    @rd.task
    async def count(n: int) -> int:
        return n

    wf = rd.workflow("types")
    with pytest.raises(InvalidInput):
        wf.add(count, n="many")
    give, *_ = add_tasks(rd)
    wf.add(count, n=wf.add(give, "many").output)
    handle = await wf.start()
    await soon(rd.drain())
    assert await states(handle) == {"give": "DONE", "count": "FAILED"}
    assert (await job_of(rd, handle, "count")).because == "permanent"


# -- starting twice


async def test_a_repeated_start_is_the_same_workflow(rd: Redrive, database: Path) -> None:
    give, *_ = add_tasks(rd)
    first = await chain(rd, give, give).start(idempotency_key="k")
    before = snapshot(database)
    again = await chain(rd, give, give).start(idempotency_key="k")
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    assert snapshot(database) == before
    assert (await chain(rd, give, give).start()).id != (await chain(rd, give, give).start()).id
    assert (await chain(rd, give, give).start(idempotency_key="other")).id != first.id


async def test_a_key_stands_for_one_workflow(rd: Redrive, database: Path) -> None:
    give, *_ = add_tasks(rd)
    await chain(rd, give, give).start(idempotency_key="k")
    before = snapshot(database)
    other = rd.workflow("chain")
    other.add(give, "another input", name="a")
    for wf in (chain(rd, give, give, give), other):
        with pytest.raises(KeyReused, match="other steps or other inputs"):
            await wf.start(idempotency_key="k")
    assert snapshot(database) == before


async def test_of_two_different_ones_started_at_once_under_one_key_one_is_refused_and_never_runs(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)

    def made(names: str) -> Workflow:
        wf = rd.workflow("race")
        for name in names:
            wf.add(give, name, name=name)
        return wf

    answers = await asyncio.gather(
        *(made(names).start(idempotency_key="k") for names in ("abc", "axyz")), return_exceptions=True
    )
    (handle,) = [each for each in answers if isinstance(each, WorkflowHandle)]
    assert [type(each) for each in answers if each is not handle] == [KeyReused]
    await soon(rd.drain())
    assert (await handle.status()).complete
    for job in (await rd.jobs.list()).jobs:
        assert job.state == ("done" if job.id in handle.steps.values() else "discarded"), job


async def test_a_stranger_among_the_steps_is_not_run(rd: Redrive) -> None:
    """Its starter died before it could take it back."""
    ran: list[str] = []

    @rd.task
    async def note(who: str) -> None:
        ran.append(who)

    wf = rd.workflow("strangers")
    wf.add(note, "a step", name="a")
    handle = await wf.start(idempotency_key="k")
    own = await job_of(rd, handle, "a")
    fields = {name: getattr(own, name) for name in Job.__struct_fields__ if name != "history"}
    late = {"id": "feed" * 8, "payload": '{"who":"a stranger"}'}
    held = {"id": "beef" * 8, "state": State.held, "because": "blocked", "held_for": f"workflow:{handle.id}"}
    await rd.store.insert([Job(**{**fields, **late}), Job(**{**fields, **held})])
    await soon(rd.drain())
    assert ran == ["a step"]
    assert [(await rd.jobs.get(each["id"])).state for each in (late, held)] == ["discarded", "discarded"]


# -- failing


@pytest.mark.behaviour("003-65", "003-66")
async def test_a_retry_holds_its_dependents_up_and_its_success_lets_them_go(rd: Redrive, clock: FakeClock) -> None:
    give, fragile, mill = add_tasks(rd)
    handle = await chain(rd, give, fragile, give, give).start()
    await soon(rd.drain())
    assert await states(handle) == {"a": "DONE", "b": "RETRY_PENDING", "c": "PENDING", "d": "PENDING"}
    status = await handle.status()
    assert status.state == "running" and not status.step("c").available and status.step("b").available
    assert not await soon(rd.drain()), "nothing is available before its time"
    mill.mend()
    clock.advance(11)
    await soon(rd.drain())
    assert await states(handle) == dict.fromkeys("abcd", "DONE")
    assert (await job_of(rd, handle, "b")).attempts == 2


@pytest.mark.behaviour("003-67", "B18", "B29")
async def test_an_exhausted_step_blocks_says_why_and_goes_on_when_redriven(rd: Redrive, clock: FakeClock) -> None:
    give, fragile, mill = add_tasks(rd)
    wf = chain(rd, give, fragile, give, give)
    wf.add(give, name="beside")
    handle = await wf.start()
    await drain_until_over(rd, clock)
    assert await states(handle) == {"a": "DONE", "b": "FAILED", "c": "BLOCKED", "d": "BLOCKED", "beside": "DONE"}
    status = await handle.status()
    assert status.state == "blocked" and not status.complete
    assert [step.name for step in status.failed] == ["b"] and [step.name for step in status.blocked] == ["c", "d"]
    assert "step b failed (attempts_exhausted: ConnectionError: the mill is broken)" in status.text
    with pytest.raises(JobDead, match="step b failed") as caught:
        await handle.result(5)
    assert (caught.value.job_id, caught.value.reason) == (handle.steps["b"], "attempts_exhausted")
    assert (await rd.health()).status == "degraded"
    mill.mend()
    await rd.dead.redrive(handle.steps["b"])
    assert (await states(handle))["b"] == "PENDING" and (await handle.status()).state == "running"
    await soon(rd.drain())
    assert (await handle.status()).complete
    assert await handle.result(0) == {"d": None, "beside": None}


async def test_a_part_that_was_not_returned_ends_as_a_dead_letter_that_names_it(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)
    wf = rd.workflow("parts")
    wf.add(give, wf.add(give, {"text": "x"}).output["title"], name="user")
    handle = await wf.start()
    await soon(rd.drain())
    job = await job_of(rd, handle, "user")
    assert (job.state, job.because) == ("dead", "permanent") and "no 'title'" in str(job.error)


async def test_an_edited_step_still_gets_its_upstream_outputs(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)

    @rd.task
    async def join(text: str, tail: str) -> str:
        if tail == "bad":
            raise redrive.GiveUp("a bad tail")
        return text + tail

    wf = rd.workflow("edited")
    wf.add(join, wf.add(give, "head").output, "bad")
    handle = await wf.start()
    await soon(rd.drain())
    job = await job_of(rd, handle, "join")
    await rd.dead.edit(job.id, {**job.arguments, "tail": " and tail"})
    await soon(rd.drain())
    assert await handle.result(5) == {"join": "head and tail"}


async def test_a_result_that_is_no_longer_kept_is_told_not_guessed(rd: Redrive, clock: FakeClock) -> None:
    give, fragile, mill = add_tasks(rd)
    wf = rd.workflow("late")
    wf.add(fragile, wf.add(give, "text").output)
    handle = await wf.start()
    await drain_until_over(rd, clock)
    clock.advance(30 * 86400)
    await rd.store.prune(clock.now(), {}, 14 * 86400)
    mill.mend()
    await rd.dead.redrive(handle.steps["fragile"])
    await soon(rd.drain())
    job = await job_of(rd, handle, "fragile")
    assert job.state == "dead" and "no longer kept" in str(job.error)


@pytest.mark.parametrize("missing", ["a part", "the whole"])
async def test_an_edit_that_needs_no_output_does_not_wait_for_one(rd: Redrive, clock: FakeClock, missing: str) -> None:
    give, fragile, mill = add_tasks(rd)
    wf = rd.workflow("edited")
    first = wf.add(give, {"text": "x"})
    wf.add(give, wf.add(fragile, first.output["title"] if missing == "a part" else first.output).output)
    handle = await wf.start()
    await drain_until_over(rd, clock)
    if missing == "the whole":
        await rd.jobs.erase(handle.steps["give"])
    mill.mend()
    await rd.dead.edit(handle.steps["fragile"], {"value": "by hand"})
    await soon(rd.drain())
    assert await handle.result(5) == {"give-2": "by hand"}


# -- moving together


@pytest.mark.behaviour("003-66")
async def test_a_success_and_what_it_lets_go_are_one_commit(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)
    handle = await chain(rd, give, give).start()
    store = record(rd)
    await soon(rd.drain())
    (commit,) = [commit for commit in store.seen if len(commit.transitions) > 1]
    assert [(move.move, move.job.id) for move in commit.transitions] == [
        ("succeeded", handle.steps["a"]),
        ("unblocked", handle.steps["b"]),
    ]
    story = [(event.move, event.who, event.why) for event in await rd.jobs.story(handle.steps["b"])]
    assert story[:2] == [("enqueued", None, None), ("unblocked", "workflow", "step a is done")]


async def test_a_dependent_that_moved_meanwhile_does_not_cost_the_step_its_success(
    rd: Redrive, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the look and the write somebody cancels one of two dependents."""
    give, *_ = add_tasks(rd)
    wf = rd.workflow("race")
    first = wf.add(give, "kept", name="a")
    wf.add(give, after=first, name="b")
    wf.add(give, after=first, name="c")
    handle = await wf.start()
    store = record(rd)

    async def cancel_first(group: Sequence[Commit]) -> None:
        if any(len(commit.transitions) > 1 for commit in group):
            store.before = None
            await rd.jobs.cancel(handle.steps["c"])

    store.before = cancel_first
    made = await soon(rd.drain())
    assert store.before is None, "the race did not take place"
    assert made == 2, "nothing ran twice"
    assert await states(handle) == {"a": "DONE", "b": "DONE", "c": "DISCARDED"}
    assert (await job_of(rd, handle, "a")).result == "kept"
    assert "refused" not in caplog.text


async def test_a_step_that_lost_its_lease_lets_nobody_go(rd: Redrive) -> None:
    """The control: where the step's own end does not count, nothing that comes with it does."""
    give, *_ = add_tasks(rd)
    handle = await chain(rd, give, give).start()
    store = record(rd)

    async def cancel_the_step(group: Sequence[Commit]) -> None:
        if any(len(commit.transitions) > 1 for commit in group):
            store.before = None
            job = await job_of(rd, handle, "a")
            await store.apply([Commit((lifecycle.cancelled(job, 0.0, who="x", why=None),))])

    store.before = cancel_the_step
    await soon(rd.drain())
    assert await states(handle) == {"a": "DISCARDED", "b": "DISCARDED"}


@pytest.mark.parametrize("number", [2, 7])
async def test_steps_that_end_together_do_not_miss_each_other(live: Redrive, number: int) -> None:
    """None of them sees that the others are done; nobody but the worker itself is there to notice."""
    inside = asyncio.Barrier(number)

    @live.task
    async def meet(n: int) -> int:
        await inside.wait()
        return n

    @live.task
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    wf = live.workflow("meeting")
    wf.add(add, [wf.add(meet, n).output for n in range(number)])
    handle = await wf.start()
    async with live.worker(scheduler=False):
        assert await soon(handle.result()) == {"add": sum(range(number))}


async def test_more_dependents_than_fit_into_a_commit(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)
    wf = rd.workflow("wide")
    first = wf.add(give, 1, name="first")
    wf.add(give, [wf.add(give, first.output, name=f"s{n}").output for n in range(450)], name="last")
    handle = await wf.start()
    store = record(rd)
    await soon(rd.drain())
    assert await handle.result(5) == {"last": [1] * 450}
    parts = [len(commit.transitions) + len(commit.puts) + len(commit.guards) for commit in store.seen]
    assert 100 < max(parts) <= MAX_PARTS


async def test_the_scheduler_moves_what_a_dead_process_left(rd: Redrive) -> None:
    """The step's end was written, and nothing else: its dependents move all the same, one way or the other."""
    give, *_ = add_tasks(rd)
    handles = [await chain(rd, give, give, give).start() for _ in range(2)]
    done, gone = [await job_of(rd, handle, "a") for handle in handles]
    (running,) = (await rd.store.claim(Wanted(1, ids=(done.id,)), "w", rd.clock.now())).jobs
    outcomes = await rd.store.apply([
        Commit((lifecycle.succeeded(running, rd.clock.now(), "1"),)),
        Commit((lifecycle.cancelled(gone, rd.clock.now(), who="x", why=None),)),
    ])  # fmt: skip
    assert all(isinstance(outcome, Applied) for outcome in outcomes)
    worker = rd.make_worker()
    await rd.make_scheduler(worker).tick()
    assert [(await job_of(rd, handles[0], step)).state for step in "bc"] == ["waiting", "held"]
    assert await states(handles[1]) == dict.fromkeys("abc", "DISCARDED")
    assert not await worker.resume_workflows()
    await soon(rd.drain())
    assert (await handles[0].status()).complete and (await handles[1].status()).state == "discarded"


async def test_every_workflow_is_looked_at_in_turn(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)
    handles = [await chain(rd, give, give).start() for _ in range(7)]
    for handle in handles:
        job = await job_of(rd, handle, "a")
        await rd.store.apply([Commit((lifecycle.cancelled(job, rd.clock.now(), who="x", why=None),))])
    worker = rd.make_worker()
    rounds = [await worker.resume_workflows(3) for _ in range(4)]
    assert rounds == [True, True, True, False]
    assert {(await handle.status()).state for handle in handles} == {"discarded"}


async def test_trouble_with_the_look_at_dependents_is_not_the_step_s(
    rd: Redrive, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    give, *_ = add_tasks(rd)
    handle = await chain(rd, give, give).start()

    async def fails(*_: object) -> Any:
        raise redrive.StoreError("no reader")

    from redrive.engine.workflow_steps import WorkflowSteps

    with monkeypatch.context() as patched:
        patched.setattr(WorkflowSteps, "companions", fails)
        patched.setattr(WorkflowSteps, "_left_by", fails)
        patched.setattr(WorkflowSteps, "mind", lambda *_: _nothing())
        with caplog.at_level(logging.WARNING):
            await soon(rd.drain())
    assert await states(handle) == {"a": "DONE", "b": "PENDING"}
    assert "move later" in caplog.text and "no reader" in caplog.text
    await soon(rd.drain())
    assert (await handle.status()).complete


async def _nothing() -> list[Any]:
    return []


# -- letting go, resolving, bringing back


async def test_letting_a_step_go_lets_go_what_waits_for_it(rd: Redrive, clock: FakeClock) -> None:
    give, fragile, *_ = add_tasks(rd)
    wf = chain(rd, fragile, give, give)
    wf.add(give, name="beside")
    handle = await wf.start()
    await drain_until_over(rd, clock)
    store = record(rd)
    await rd.dead.discard(handle.steps["a"], who="ada", why="not worth it")
    assert [[move.move for move in commit.transitions] for commit in store.seen] == [
        ["discarded", "cancelled", "cancelled"]
    ]
    assert await states(handle) == {**dict.fromkeys("abc", "DISCARDED"), "beside": "DONE"}
    assert [(e.who, e.why) for e in await rd.jobs.story(handle.steps["c"])][-1] == ("ada", "its step a was let go")
    with pytest.raises(JobDiscarded, match="discarded: a, b, c"):
        await handle.result(5)


@pytest.mark.parametrize("how", ["cancel waiting", "cancel held", "purge", "signal"])
async def test_other_ways_to_let_go(rd: Redrive, clock: FakeClock, how: str) -> None:
    give, fragile, mill = add_tasks(rd)

    @rd.task
    async def leave() -> None:
        raise Cancel("no longer wanted")

    handle = await chain(rd, leave if how == "signal" else fragile, give, give).start()
    if how == "cancel waiting":
        await rd.jobs.cancel(handle.steps["a"])
    elif how == "cancel held":
        await rd.jobs.cancel(handle.steps["b"])
        mill.mend()
    elif how == "purge":
        await drain_until_over(rd, clock)
        await rd.dead.purge([handle.steps["a"]])
    assert how == "signal" or (await states(handle))["c"] == "DISCARDED", "at once, before anybody looked"
    await soon(rd.drain())
    first = "DONE" if how == "cancel held" else "DISCARDED"
    assert await states(handle) == {"a": first, "b": "DISCARDED", "c": "DISCARDED"}
    assert (await handle.status()).state == "discarded"


async def test_a_task_that_lets_itself_go_takes_its_dependents_along_in_one_commit(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)

    @rd.task
    async def leave() -> None:
        raise Cancel("no longer wanted")

    await chain(rd, leave, give, give).start()
    store = record(rd)
    await soon(rd.drain())
    (commit,) = [commit for commit in store.seen if len(commit.transitions) > 1]
    assert [move.move for move in commit.transitions] == ["cancelled"] * 3


async def test_a_step_that_a_person_resolves_lets_its_dependents_go_on(rd: Redrive, clock: FakeClock) -> None:
    give, fragile, *_ = add_tasks(rd)
    handle = await chain(rd, fragile, give).start()
    await drain_until_over(rd, clock)
    await rd.jobs.resolve(handle.steps["a"], why="it did land", who="ada")
    assert (await job_of(rd, handle, "b")).state == "waiting", "at once"
    await soon(rd.drain())
    assert (await handle.status()).complete


async def test_a_step_brought_back_too_early_waits_again(rd: Redrive, clock: FakeClock) -> None:
    """Its upstream is not done: it is not run, and costs no attempt."""
    give, fragile, mill = add_tasks(rd)
    handle = await chain(rd, fragile, give).start()
    await drain_until_over(rd, clock)
    await rd.jobs.cancel(handle.steps["b"])
    await rd.dead.restore(handle.steps["b"])
    await rd.dead.redrive(handle.steps["b"])
    await soon(rd.drain())
    job = await job_of(rd, handle, "b")
    assert (job.state, job.because, job.attempts) == ("held", "blocked", 0)
    assert (await states(handle))["b"] == "BLOCKED"
    mill.mend()
    await rd.dead.redrive(handle.steps["a"])
    await soon(rd.drain())
    assert (await handle.status()).complete


async def test_steps_that_were_let_go_come_back_as_the_status_says(rd: Redrive, clock: FakeClock) -> None:
    """Taking back the discard of one step does not bring back those behind it, so it must be told how they come."""
    give, fragile, mill = add_tasks(rd)
    handle = await chain(rd, give, fragile, give, give).start()
    await drain_until_over(rd, clock)
    await rd.dead.discard(handle.steps["b"])
    await rd.dead.undo(handle.steps["b"], who="ann")
    mill.mend()
    await rd.dead.redrive(handle.steps["b"])
    await soon(rd.drain())
    for step in ("c", "d"):
        told, id = (await handle.status()).text, handle.steps[step][-8:]
        assert f"to go on with {step}, `redrive dead restore {id}`, then `redrive dead redrive {id}`" in told
        await rd.dead.restore(handle.steps[step])
        assert "None" not in (await handle.status()).text
        await rd.dead.redrive(handle.steps[step])
        await soon(rd.drain())
    assert (await handle.status()).complete


async def test_cancelling_the_whole(rd: Redrive, clock: FakeClock) -> None:
    give, fragile, *_ = add_tasks(rd)
    wf = chain(rd, fragile, give)
    wf.add(give.options(delay=1e6), name="much later")
    wf.add(give, name="done before")
    handle = await wf.start()
    for _ in range(2):
        await soon(rd.drain())
        clock.advance(30)
    status = await handle.cancel("no longer wanted")
    assert status.state == "discarded"
    assert await states(handle) == {
        "a": "DISCARDED", "b": "DISCARDED", "much later": "DISCARDED", "done before": "DONE",
    }  # fmt: skip


# -- finding them


async def test_workflows_are_found_by_their_id_or_a_step_s(rd: Redrive, clock: FakeClock) -> None:
    give, fragile, *_ = add_tasks(rd)
    handle = await chain(rd, fragile, give).start()
    clock.advance(5)
    other = rd.workflow("other")
    other.add(give)
    newer = await other.start()
    for id in (handle.id, handle.id[-8:], handle.steps["b"], handle.steps["b"][-10:]):
        assert (await rd.workflows.get(id)).id == handle.id
    assert [status.id for status in await rd.workflows.list()] == [newer.id, handle.id]
    assert [status.id for status in await rd.workflows.list(name="chain")] == [handle.id]
    assert len(await rd.workflows.list(limit=1)) == 1
    plain = await give.enqueue()
    for id in ("ffffffff", plain.id):
        with pytest.raises(JobNotFound):
            await rd.workflows.get(id)
    with pytest.raises(InvalidInput):
        await rd.workflows.list(limit=0)


@pytest.mark.behaviour("B29")
async def test_another_process_can_see_and_finish_what_one_has_started(database: Path, clock: FakeClock) -> None:
    """Nothing about a workflow lives in the memory of the process that started it."""
    async with opened(database, clock=clock) as one:
        give, fragile, mill = add_tasks(one)
        mill.mend()
        handle = await chain(one, give, fragile, give).start(idempotency_key="k")
    async with opened(database, clock=clock) as other:
        *_, mill = add_tasks(other)
        found = await other.workflows.get(handle.id)
        assert (await found.status()).text == "Workflow chain is running: 0 of 3 steps done; to come: a, b, c."
        await drain_until_over(other, clock)
        assert (await found.status()).state == "blocked"
        mill.mend()
        await other.dead.redrive(found.steps["b"])
        await soon(other.drain())
        assert (await found.status()).complete


async def test_waiting_ends_when_time_is_up(rd: Redrive) -> None:
    give, *_ = add_tasks(rd)
    handle = await chain(rd, give).start()
    with pytest.raises(TimeoutError, match=r"not over after 0\.01 s.* to come: a"):
        await handle.result(0.01)


async def test_who_waits_is_told_as_it_happens(live: Redrive) -> None:
    give, *_ = add_tasks(live)
    handle = await chain(live, give, give, give).start()
    waiting = asyncio.create_task(handle.result())
    async with live.worker():
        await eventually(waiting.done, "the result")
    assert await waiting == {"c": None}


async def test_steps_run_in_the_harness(rd: Redrive) -> None:
    give, fragile, mill = add_tasks(rd)
    mill.mend()
    async with redrive.testing.harness(rd) as t:
        t.fail_next(fragile, TimeoutError())
        handle = await chain(rd, give, fragile, give).start()
        await t.advance(600)
        assert (await handle.status()).complete
