"""A retry that does something else: from the failure to the input of the next attempt, on a real store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive.core.agents import Agent, Model
from redrive.core.job import Job, State
from redrive.retries.changes import tokens
from redrive.retries.decision import Bury, HoldBack, RetryLater
from tests import elsewhere
from tests.support import FakeClock, PassingTime, drain_until_over, eventually, opened, soon

Messages = list[dict[str, Any]]


class TooLong(Exception):
    def __init__(self) -> None:
        super().__init__("prompt is too long: 312000 tokens > 200000 maximum")


class WrongOutput(Exception):
    error_kind = "invalid_output"

    def __init__(self, doc: str = "{]") -> None:
        super().__init__("the answer is no JSON")
        self.doc = doc


def a_talk(turns: int = 20, words: int = 1_700) -> Messages:
    past = [
        {"role": role, "content": f"{number} " + "word " * words}
        for number in range(turns)
        for role in ("user", "assistant")
    ]
    return [{"role": "system", "content": "You write reports."}, *past, {"role": "user", "content": "Now the report."}]


def column(database: Path, name: str, job_id: str) -> bytes:
    """A column as it stands in the file, past everything that redrive makes of it."""
    connection = elsewhere.connected(database)
    try:
        ((found,),) = connection.execute(f"SELECT CAST({name} AS BLOB) FROM jobs WHERE id = ?", (job_id,)).fetchall()
    finally:
        connection.close()
    assert isinstance(found, bytes)
    return found


async def run_at_its_time(rd: redrive.Redrive, clock: FakeClock, handle: redrive.JobHandle[Any]) -> Job:
    """Run what is due now; then go on to when the job comes back."""
    await soon(rd.drain())
    job = await handle.refresh()
    if job.state is State.waiting:
        clock.advance(max(0.0, job.run_at - clock.now()))
    return job


# ---- smaller


@pytest.mark.behaviour("004-18", "004-22")
async def test_what_was_too_long_really_comes_back_shorter(
    rd: redrive.Redrive, clock: FakeClock, database: Path
) -> None:
    seen: list[Messages] = []

    @rd.task("answer")
    async def answer(messages: Messages, tone: str = "dry") -> str:
        seen.append(messages)
        if len(seen) == 1:
            raise TooLong
        return "done"

    handle = await answer.enqueue(a_talk(), tone="kind")
    before = column(database, "payload", handle.id)
    waiting = await run_at_its_time(rd, clock, handle)
    assert waiting.state is State.waiting
    assert waiting.run_at - waiting.updated_at == 10.0
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, job.attempts) == (State.done, 2)
    sizes = [tokens({"messages": messages}) or 0 for messages in seen]
    assert sizes[0] > 80_000 > sizes[1] > 40_000
    assert seen[1][-1]["content"].startswith("Now the report.")
    assert "core task" in json.dumps(seen[1]).lower()
    assert column(database, "payload", handle.id) == before
    assert job.arguments == {"messages": a_talk(), "tone": "kind"}


@pytest.mark.behaviour("004-20")
async def test_an_attempt_tells_cause_rule_strategy_changes_and_reason(rd: redrive.Redrive, clock: FakeClock) -> None:
    @rd.task("answer")
    async def answer(ctx: redrive.Context, messages: Messages) -> str:
        if ctx.attempt == 1:
            raise TooLong
        assert [change["change"] for change in ctx.changes] == ["compress_context", "add_instruction"]
        return "done"

    handle = await answer.enqueue(a_talk())
    await run_at_its_time(rd, clock, handle)
    await soon(rd.drain())
    first, second = (await handle.refresh()).history
    assert first.cause is not None
    assert (first.cause.detail, first.cause.rule) == ("context_overflow", "overflow_phrase")
    assert first.strategy == "compress_context+add_instruction"
    assert first.changes is None, "the first ran as it was enqueued"
    assert first.decision and "80,000" in first.decision and "10 s" in first.decision
    assert (first.outcome, first.tier) == ("failed", "delayed")
    assert [change["change"] for change in second.changes] == ["compress_context", "add_instruction"]
    lines = await rd.dead.diff(handle.id, 1, 2)
    assert lines and "tokens" in lines[0]
    assert await rd.dead.diff(handle.id, 2, 2) == []
    with pytest.raises(redrive.InvalidInput, match="7 is not a run"):
        await rd.dead.diff(handle.id, 1, 7)


@pytest.mark.behaviour("004-55", "C17")
async def test_failures_are_categorised_unless_a_queue_wants_plain_retries(clock: FakeClock, database: Path) -> None:
    """One store without settings, except for a queue that retries everything alike: each failure has a category."""

    class Forbidden(Exception):
        status_code = 403

    queues = {"plain": {"strategy": "plain", "max_attempts": 4}}
    async with opened(database, clock=clock, queues=queues) as rd:

        @rd.task("send")
        async def send(n: int) -> None:
            raise Forbidden("not yours") if n else ConnectionError("down")

        heals, final = await send.enqueue(0), await send.enqueue(1)
        alike = await send.options(queue="plain").enqueue(1)
        await drain_until_over(rd, clock)
        jobs = [await handle.refresh() for handle in (heals, final, alike)]
    assert [(job.category, job.detail, job.attempts) for job in jobs] == [
        ("transient", "network", 5), ("permanent", "authority", 1), ("permanent", "authority", 4),
    ]  # fmt: skip


@pytest.mark.behaviour("004-12")
async def test_too_long_again_is_a_dead_letter_that_says_so(rd: redrive.Redrive, clock: FakeClock) -> None:
    calls: list[int] = []

    @rd.task("answer")
    async def answer(messages: Messages) -> str:
        calls.append(1)
        raise TooLong

    handle = await answer.enqueue(a_talk())
    for _ in range(4):
        job = await run_at_its_time(rd, clock, handle)
    assert (job.state, job.because, job.lane, len(calls)) == (State.dead, "context_overflow", "delayed", 4)
    assert job.comes_back_at == job.updated_at + 600, "a smaller try is left for later"
    assert job.recommendation and "rungs=" in job.recommendation
    assert job.subclass == "Resource"


async def test_a_task_that_takes_no_change_is_not_tried_again(rd: redrive.Redrive) -> None:
    @rd.task("answer")
    async def answer(n: int) -> str:
        raise TooLong

    handle = await answer.enqueue(1)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, job.because, job.attempts) == (State.dead, "context_overflow", 1)
    assert job.recommendation and "adapt=redrive.Adapt(" in job.recommendation


async def test_the_place_can_be_declared(rd: redrive.Redrive, clock: FakeClock) -> None:
    seen: list[dict[str, Any]] = []

    @rd.task("answer", adapt=redrive.Adapt(messages="request.talk", instructions="request.rules"))
    async def answer(request: dict[str, Any]) -> str:
        seen.append(request)
        if len(seen) == 1:
            raise TooLong
        return "done"

    handle = await answer.enqueue({"talk": a_talk(), "rules": "Be fair."})
    await run_at_its_time(rd, clock, handle)
    await soon(rd.drain())
    assert (await handle.refresh()).state is State.done
    adapt = redrive.Adapt(messages="talk", instructions="rules")
    assert [(tokens(request, adapt) or 0) < 80_000 for request in seen] == [False, True]
    assert seen[1]["rules"].startswith("Be fair.") and "core task" in seen[1]["rules"].lower()


async def test_more_rungs_go_further_down(rd: redrive.Redrive, clock: FakeClock) -> None:
    sizes: list[int] = []

    @rd.task("answer", rungs=3)
    async def answer(messages: Messages) -> str:
        sizes.append(tokens({"messages": messages}) or 0)
        if len(sizes) < 4:
            raise TooLong
        return "done"

    handle = await answer.enqueue(a_talk())
    for _ in range(4):
        job = await run_at_its_time(rd, clock, handle)
    assert job.state is State.done
    assert sizes[0] > 80_000 > sizes[1] > 40_000 > sizes[2] > 20_000 > sizes[3] > 10_000


# ---- the application's own code


async def test_the_tasks_own_way_out(rd: redrive.Redrive, clock: FakeClock, database: Path) -> None:
    seen: list[str] = []

    @rd.task("answer")
    async def answer(ctx: redrive.Context, text: str) -> str:
        seen.append(text)
        if len(seen) == 1:
            raise TooLong
        return "done"

    @answer.on("context_overflow")
    async def shorter(payload: dict[str, Any]) -> dict[str, Any]:
        return {"text": payload["text"][:10]}

    handle = await answer.enqueue("x" * 5_000)
    before = column(database, "payload", handle.id)
    await run_at_its_time(rd, clock, handle)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, seen[1]) == (State.done, "x" * 10)
    assert column(database, "payload", handle.id) == before
    assert job.history[0].strategy == "edit"


def raises(payload: dict[str, Any]) -> Any:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    "way",
    [raises, lambda _: None, lambda _: "text", lambda _: {"messages": object()}, lambda _: {"wrong": 1},
     lambda payload: payload, lambda _: {"messages": [float("nan")]}],
    ids=["raises", "none", "no payload", "no JSON", "does not fit", "the same", "not a number"],
)  # fmt: skip
async def test_a_way_out_that_fails_leaves_it_to_the_table(
    rd: redrive.Redrive, clock: FakeClock, way: Callable[[dict[str, Any]], Any]
) -> None:
    @rd.task("answer")
    async def answer(ctx: redrive.Context, messages: Messages) -> str:
        if ctx.attempt == 1:
            raise TooLong
        return "done"

    answer.on("context_overflow")(way)
    handle = await answer.enqueue(a_talk())
    await run_at_its_time(rd, clock, handle)
    await soon(rd.drain())
    job = await handle.refresh()
    assert job.state is State.done
    assert job.history[0].strategy == "compress_context+add_instruction"


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_way_out_that_hangs_keeps_nobody_waiting(
    rd: redrive.Redrive, clock: FakeClock, caplog: pytest.LogCaptureFixture, plain: bool
) -> None:
    release = threading.Event()

    @rd.task("answer", timeout=0.05)
    async def answer(ctx: redrive.Context, messages: Messages) -> str:
        if ctx.attempt == 1:
            raise TooLong
        return "done"

    async def hang(payload: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    def block(payload: dict[str, Any]) -> None:
        release.wait(20)

    answer.on("context_overflow")(block if plain else hang)
    handle = await answer.enqueue(a_talk())
    await run_at_its_time(rd, clock, handle)
    release.set()
    await soon(rd.drain())
    assert (await handle.refresh()).state is State.done
    assert "its way out of context_overflow failed: TimeoutError('no answer within 0.05 s')" in caplog.text


async def test_the_way_out_sees_what_the_attempt_saw(rd: redrive.Redrive, clock: FakeClock) -> None:
    """A person's correction is not lost when the task then finds its own way."""
    seen: list[str] = []

    @rd.task("answer")
    async def answer(ctx: redrive.Context, text: str) -> str:
        seen.append(f"{text} {ctx.idempotency_key == ctx.job.id}")
        if len(seen) == 1:
            raise redrive.GiveUp("wrong name")
        if len(seen) == 2:
            raise TooLong
        return "done"

    @answer.on("context_overflow")
    def shorter(payload: dict[str, Any]) -> dict[str, Any]:
        return {"text": payload["text"][:5]}

    handle = await answer.enqueue("wrong and long")
    await soon(rd.drain())
    await rd.dead.edit(handle.id, {"text": "right and long"}, who="ann")
    await run_at_its_time(rd, clock, handle)
    await soon(rd.drain())
    assert (await handle.refresh()).state is State.done
    assert seen == ["wrong and long True", "right and long False", "right False"]


async def test_a_way_out_is_for_failures_that_changes_heal(rd: redrive.Redrive) -> None:
    @rd.task("answer")
    async def answer(text: str) -> str:
        return text

    for detail in ("network", "nonsense"):
        with pytest.raises(redrive.InvalidOption, match="context_overflow"):
            answer.on(detail)


async def test_what_is_left_out_can_be_summarised(clock: FakeClock, database: Path) -> None:
    asked: list[tuple[int, int]] = []

    async def summarise(text: str, most: int) -> str:
        asked.append((len(text), most))
        return "Earlier they agreed on blue."

    async with opened(database, clock=clock, summarise=summarise) as rd:

        @rd.task("answer")
        async def answer(ctx: redrive.Context, messages: Messages) -> str:
            if ctx.attempt == 1:
                raise TooLong
            assert "agreed on blue" in json.dumps(messages)
            return "done"

        handle = await answer.enqueue(a_talk())
        await run_at_its_time(rd, clock, handle)
        await soon(rd.drain())
        job = await handle.refresh()
    assert job.state is State.done
    assert len(asked) == 1 and asked[0][0] > 10_000 and asked[0][1] == 8_000


@pytest.mark.parametrize("summary", [5, None, {"a": 1}, "word " * 500_000], ids=["number", "none", "dict", "too long"])
async def test_a_summary_that_is_none_is_left_out(clock: FakeClock, database: Path, summary: Any) -> None:
    async with opened(database, clock=clock, summarise=lambda text, most: summary) as rd:

        @rd.task("answer")
        async def answer(ctx: redrive.Context, messages: Messages) -> str:
            if ctx.attempt == 1:
                raise TooLong
            return str(tokens({"messages": messages}))

        handle = await answer.enqueue(a_talk())
        await run_at_its_time(rd, clock, handle)
        await soon(rd.drain())
        job = await handle.refresh()
        assert job.state is State.done, job.error
        assert int(await handle.result()) < 80_000


async def test_the_applications_counter_counts(clock: FakeClock, database: Path) -> None:
    async with opened(database, clock=clock, count_tokens=len) as rd:

        @rd.task("answer")
        async def answer(ctx: redrive.Context, prompt: str) -> int:
            if ctx.attempt == 1:
                raise TooLong
            return len(prompt)

        handle = await answer.enqueue("word " * 20_000)
        await run_at_its_time(rd, clock, handle)
        await soon(rd.drain())
        assert await handle.result() < 80_000


# ---- another model, another agent


@pytest.mark.behaviour("004-23", "004-22", "004-4")
async def test_another_model_and_agent_reach_the_task(clock: FakeClock, database: Path) -> None:
    agents = {"writer": Agent(("answer",), ("small", "big")), "editor": Agent(("answer",))}
    async with opened(database, clock=clock, agents=agents, models={"small": Model(other="strange")}) as rd:
        seen: list[tuple[str | None, str | None]] = []

        @rd.task("answer", rungs=3, max_attempts=9)
        async def answer(ctx: redrive.Context, prompt: str) -> str:
            seen.append((ctx.agent, ctx.model))
            if len(seen) <= 3:
                raise WrongOutput
            return "done"

        handle = await answer.options(agent="writer", model="small").enqueue("Write.")
        for _ in range(4):
            job = await run_at_its_time(rd, clock, handle)
        assert job.state is State.done
        assert seen == [("writer", "small")] * 3 + [("editor", "strange")]
        assert (job.agent, job.model) == ("editor", "strange")
        assert [attempt.model for attempt in job.history] == ["small", "small", "small", "strange"]


async def test_the_third_same_wrong_output_is_a_loop(rd: redrive.Redrive, clock: FakeClock) -> None:
    outputs = iter(["{]", "{]", "{]", "{]"])

    @rd.task("answer", rungs=5, max_attempts=9)
    async def answer(prompt: str) -> str:
        raise WrongOutput(next(outputs))

    handle = await answer.enqueue("Write.")
    for _ in range(3):
        job = await run_at_its_time(rd, clock, handle)
    causes = [attempt.cause.detail for attempt in job.history if attempt.cause]
    assert causes == ["invalid_output", "invalid_output", "hallucination_loop"]
    assert job.run_at - job.updated_at == 60.0
    assert job.history[2].strategy == "add_instruction+add_constraint"


async def test_different_wrong_outputs_are_no_loop(rd: redrive.Redrive, clock: FakeClock) -> None:
    calls: list[int] = []

    @rd.task("answer", rungs=5, max_attempts=9)
    async def answer(prompt: str) -> str:
        calls.append(1)
        raise WrongOutput("{" * len(calls))

    handle = await answer.enqueue("Write.")
    for _ in range(4):
        job = await run_at_its_time(rd, clock, handle)
    assert [attempt.cause.detail for attempt in job.history if attempt.cause] == ["invalid_output"] * 4


async def test_a_larger_model_that_the_payload_names(clock: FakeClock, database: Path) -> None:
    async with opened(database, clock=clock, models={"small": Model(larger="big")}) as rd:
        seen: list[str] = []

        @rd.task("answer")
        async def answer(messages: Messages, model: str) -> str:
            seen.append(model)
            if len(seen) == 1:
                raise TooLong
            return "done"

        handle = await answer.enqueue(a_talk(), "small")
        await run_at_its_time(rd, clock, handle)
        await soon(rd.drain())
        assert (await handle.refresh()).state is State.done
        assert seen == ["small", "big"]


# ---- quoting


@pytest.mark.parametrize("quoted", [False, True])
async def test_errors_are_quoted_only_where_the_task_allows_it(
    rd: redrive.Redrive, clock: FakeClock, quoted: bool
) -> None:
    seen: list[dict[str, Any]] = []

    @rd.task("answer", quote_errors=quoted)
    async def answer(system: str, messages: Messages) -> str:
        seen.append({"system": system, "messages": messages})
        if len(seen) == 1:
            raise WrongOutput
        return "done"

    handle = await answer.enqueue("Be kind.", [{"role": "user", "content": "Write."}])
    await run_at_its_time(rd, clock, handle)
    await soon(rd.drain())
    assert (await handle.refresh()).state is State.done
    assert ("no JSON" in json.dumps(seen[1]["messages"])) is quoted
    assert "no JSON" not in seen[1]["system"]
    assert "invalid_output" in json.dumps(seen[1])


async def test_the_taint_stays_through_a_redrive(rd: redrive.Redrive, clock: FakeClock) -> None:
    @rd.task("answer", quote_errors=True)
    async def answer(ctx: redrive.Context, prompt: str) -> str:
        raise WrongOutput

    handle = await answer.enqueue("Write.")
    for _ in range(4):
        await run_at_its_time(rd, clock, handle)
    job = await rd.dead.redrive(handle.id)
    assert [change["tainted"] for change in job.changes if change["change"] == "add_instruction"] == [True]


# ---- results that say that they failed


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ({"error": "connection refused"}, "network"), ({"success": False, "error_kind": "rate_limit"}, "rate_limited"),
        ({"stop_reason": "refusal", "content": []}, "refusal"),
        ({"choices": [{"finish_reason": "length", "message": {}}]}, "token_budget"),
        ({"error": "no", "transient": False}, "invalid_input"),
    ],
)  # fmt: skip
async def test_a_returned_failure_is_a_failure(rd: redrive.Redrive, value: dict[str, Any], detail: str) -> None:
    @rd.task("answer")
    async def answer(n: int) -> dict[str, Any]:
        return value

    handle = await answer.enqueue(1)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.detail, job.attempts) == (detail, 1)
    assert job.state in (State.waiting, State.dead)
    assert job.history[0].failure is not None and job.history[0].failure.kind == "soft"


async def test_the_result_policy_is_the_tasks(rd: redrive.Redrive) -> None:
    @rd.task("careless", result_policy=False)
    async def careless(n: int) -> dict[str, Any]:
        return {"error": "no"}

    @rd.task("strict", result_policy=lambda value: "the answer is empty" if not value["text"] else None)
    async def strict(text: str) -> dict[str, Any]:
        return {"text": text}

    @rd.task("precise", result_policy=lambda value: {"error": "slow down", "error_kind": "rate_limited"})
    async def precise(n: int) -> int:
        return n

    handles = [await careless.enqueue(1), await strict.enqueue(""), await strict.enqueue("x"), await precise.enqueue(1)]
    await soon(rd.drain())
    jobs = [await handle.refresh() for handle in handles]
    assert [job.state for job in jobs] == [State.done, State.waiting, State.done, State.waiting]
    assert jobs[1].error and "the answer is empty" in jobs[1].error
    assert jobs[3].detail == "rate_limited"


async def test_a_result_policy_that_raises_does_not_undo_the_work(rd: redrive.Redrive) -> None:
    calls: list[int] = []

    @rd.task("answer", result_policy=lambda value: value["missing"])
    async def answer(n: int) -> dict[str, int]:
        calls.append(n)
        return {"n": n}

    handle = await answer.enqueue(1)
    await soon(rd.drain())
    job = await handle.refresh()
    assert job.state is not State.running, "settled, one way or the other"
    assert len(calls) == 1


@pytest.mark.parametrize("value", [{"error": "no", "transient": False}, {"error": "something odd"}])
async def test_what_a_letter_recommends_can_be_done(
    rd: redrive.Redrive, clock: FakeClock, value: dict[str, Any]
) -> None:
    """There is no exception to name in retry_on= where none was raised."""

    @rd.task("answer")
    async def answer(n: int) -> dict[str, Any]:
        return value

    handle = await answer.enqueue(1)
    for _ in range(4):
        job = await run_at_its_time(rd, clock, handle)
    assert job.state is State.dead
    assert job.recommendation and "SoftFailure" not in job.recommendation


# ---- deciding cannot fail


def never(failures: int) -> float:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "backoff",
    [never, lambda n: float("nan"), lambda n: float("inf"), lambda n: -5.0, lambda n: None, lambda n: "soon"],
    ids=["raises", "nan", "inf", "negative", "none", "text"],
)  # fmt: skip
async def test_a_backoff_that_makes_no_sense_is_slow_and_safe(
    rd: redrive.Redrive, clock: FakeClock, backoff: Any
) -> None:
    @rd.task("answer", backoff=backoff)
    async def answer(n: int) -> int:
        raise ConnectionError("reset")

    handle = await answer.enqueue(1)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, job.attempts) == (State.waiting, 1)
    assert 1.0 <= job.run_at - clock.now() <= 300.0


# ---- budgets over all attempts


@pytest.mark.parametrize(
    ("budget", "spends"),
    [
        (redrive.Budget(tokens=100), {"input_tokens": 30, "output_tokens": 10}),
        (redrive.Budget(output_tokens=30), {"input_tokens": 1_000, "output_tokens": 10}),
        (redrive.Budget(cost=0.25), {"cost": 0.1}),
    ],
    ids=["tokens", "output tokens", "money"],
)  # fmt: skip
async def test_a_budget_is_shared_by_all_attempts(
    rd: redrive.Redrive, clock: FakeClock, budget: redrive.Budget, spends: dict[str, Any]
) -> None:
    left: list[redrive.Budget | None] = []

    @rd.task("answer", max_attempts=50)
    async def answer(ctx: redrive.Context, n: int) -> int:
        left.append(ctx.remaining)
        ctx.usage(**spends)
        raise ConnectionError("reset")

    handle = await answer.options(budget=budget).enqueue(1)
    for _ in range(10):
        job = await run_at_its_time(rd, clock, handle)
        if job.state is State.dead:
            break
    assert (job.state, job.because, job.attempts) == (State.dead, "budget_exhausted", 3)
    assert left[0] == budget
    assert [found for found in left if found is None] == []
    shrinking = [
        next(value for value in msgspec.structs.astuple(found) if value is not None) for found in left if found
    ]
    assert shrinking == sorted(shrinking, reverse=True) and len(set(shrinking)) == 3
    assert job.recommendation and "Budget" in job.recommendation

    await rd.dead.redrive(handle.id)
    await soon(rd.drain())
    again = await handle.refresh()
    assert (again.state, again.attempts) == (State.waiting, 4), "brought back by a person, it starts afresh"
    assert left[3] == budget


async def test_a_budget_of_seconds_ends_the_attempt_and_the_job(live: redrive.Redrive) -> None:
    import asyncio

    @live.task("answer", max_attempts=50, base=0.0, cap=0.0)
    async def answer(ctx: redrive.Context, n: int) -> int:
        await asyncio.sleep(60)
        return n

    handle = await answer.options(budget=redrive.Budget(seconds=0.2)).enqueue(1)

    async def over() -> bool:
        await live.drain()
        return (await handle.refresh()).state is State.dead

    await eventually(over, "the budget's end")
    job = await handle.refresh()
    assert job.because == "budget_exhausted"
    assert job.attempts <= 2


async def test_without_a_budget_nothing_is_left_or_missing(rd: redrive.Redrive) -> None:
    @rd.task("answer")
    async def answer(ctx: redrive.Context, n: int) -> bool:
        return ctx.remaining is None

    handle = await answer.enqueue(1)
    await soon(rd.drain())
    assert await handle.result() is True


# ---- before it starts


@pytest.mark.behaviour("004-42", "004-44", "004-46", "004-47", "C36")
@pytest.mark.preset("seven_agents")
async def test_what_no_model_could_read_costs_neither_a_call_nor_an_attempt(rd: redrive.Redrive) -> None:
    calls: list[int] = []

    @rd.task("answer")
    async def answer(prompt: str) -> str:
        calls.append(1)
        return "done"

    handle = await answer.enqueue("x" * (200_001 * 7 // 2))
    assert any("200,001" in warning for warning in handle.warnings)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, job.because, job.attempts, job.lane) == (State.dead, "preflight_rejected", 0, "manual")
    assert (job.detail, job.owner, calls, job.history) == ("context_overflow", "ceo", [], ())
    assert job.recommendation and "2 subtasks" in job.recommendation
    assert job.error and "200,001" in job.error and "150,000" in job.error

    with pytest.raises(redrive.JobNotReady, match="2 subtasks"):
        await rd.dead.redrive(handle.id)
    assert (await handle.refresh()).state is State.dead
    with pytest.raises(redrive.JobNotReady):
        await rd.dead.edit(handle.id, {"prompt": "x" * 1_000_000})
    await rd.dead.edit(handle.id, {"prompt": "Write."})
    await soon(rd.drain())
    assert (await handle.refresh()).state is State.done
    assert calls == [1]


@pytest.mark.behaviour("004-45", "004-46", "004-43")
@pytest.mark.parametrize(
    ("size", "model", "warned", "runs"),
    [
        (120_000, None, False, True), (120_001, None, True, True), (150_000, None, True, True),
        (150_001, None, True, False),
        (150_001, "claude-opus-4-1", True, True), (144_000, "claude-opus-4-1", False, True),
        (180_001, "claude-opus-4-1", True, False),
    ],
)  # fmt: skip
async def test_the_edges_of_what_a_model_may_read(
    clock: FakeClock, database: Path, size: int, model: str | None, warned: bool, runs: bool
) -> None:
    async with opened(database, clock=clock, count_tokens=len) as rd:

        @rd.task("answer")
        async def answer(prompt: str) -> str:
            return "done"

        handle = await answer.options(model=model).enqueue("x" * size)
        assert bool(handle.warnings) is warned
        await soon(rd.drain())
        assert (await handle.refresh()).state is (State.done if runs else State.dead)


async def test_models_of_the_settings_are_measured(clock: FakeClock, database: Path, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text('[models.tiny]\ncontext = 10\nlarger = "claude-opus-4-1"\n')
    async with opened(database, clock=clock) as rd:

        @rd.task("answer")
        async def answer(prompt: str) -> str:
            return "done"

        handle = await answer.options(model="tiny").enqueue("word " * 30)
        await soon(rd.drain())
        assert (await handle.refresh()).because == "preflight_rejected"


async def test_a_missing_credential_is_seen_before_the_call(
    rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rd.task("answer", credentials=["env:SOME_KEY", "OTHER_KEY"])
    async def answer(n: int) -> str:
        return "done"

    monkeypatch.setenv("OTHER_KEY", "x")
    monkeypatch.delenv("SOME_KEY", raising=False)
    handle = await answer.enqueue(1)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, job.because, job.detail, job.attempts) == (State.dead, "preflight_rejected", "credentials", 0)
    assert job.recommendation and "SOME_KEY" in job.recommendation and "OTHER_KEY" not in job.recommendation
    monkeypatch.setenv("SOME_KEY", "y")
    await rd.dead.redrive(handle.id)
    await soon(rd.drain())
    assert (await handle.refresh()).state is State.done


# ---- a person changes the input


async def test_an_edit_keeps_the_payload_and_gets_a_key_of_its_own(rd: redrive.Redrive, database: Path) -> None:
    keys: list[str] = []

    @rd.task("post")
    async def post(ctx: redrive.Context, title: str, body: str = "") -> str:
        keys.append(ctx.idempotency_key)
        if title == "Wrong":
            raise redrive.GiveUp("no such title")
        return title

    handle = await post.options(idempotency_key="post_1").enqueue("Wrong", "text")
    await soon(rd.drain())
    before = column(database, "payload", handle.id)
    with pytest.raises(redrive.InvalidPayload):
        await rd.dead.edit(handle.id, {"tilte": "Right"})
    with pytest.raises(redrive.InvalidPayload):
        await rd.dead.edit(handle.id, {"title": float("nan")})
    assert (await handle.refresh()).state is State.dead
    job = await rd.dead.edit(handle.id, {"title": "Right", "body": "text"}, who="ann", why="a typo")
    assert (job.state, job.key) == (State.waiting, "post_1")
    await soon(rd.drain())
    assert await handle.result() == "Right"
    assert keys[0] == "post_1" and keys[1] != "post_1" and keys[1].startswith("post_1")
    assert column(database, "payload", handle.id) == before
    lines = await rd.dead.diff(handle.id, 1, 2)
    assert any("Wrong" in line and "Right" in line for line in lines) and not any("body" in line for line in lines)
    story = await rd.jobs.story(handle.id)
    assert [(event.who, event.why) for event in story if event.move == "redriven"] == [("ann", "a typo")]
    repeated = await post.options(idempotency_key="post_1").enqueue("Wrong", "text")
    assert repeated.duplicate


async def test_an_edit_without_blobs_of_its_own_is_refused_or_keeps_them(rd: redrive.Redrive) -> None:
    @rd.task("post")
    async def post(file: redrive.Blob) -> str:
        if file.data == b"old":
            raise redrive.GiveUp("wrong file")
        return bytes(file.data).decode()

    handle = await post.enqueue(redrive.Blob(b"old"))
    await soon(rd.drain())
    try:
        await rd.dead.edit(handle.id, {"file": redrive.Blob(b"new")})
    except redrive.InvalidInput:
        assert (await handle.refresh()).state is State.dead
        return
    await soon(rd.drain())
    assert await handle.result() == "new"


# ---- effects


async def test_an_unknown_error_of_a_task_with_effects_waits_for_a_person(rd: redrive.Redrive) -> None:
    class Odd(Exception):
        pass

    def define(name: str, **options: Any) -> Any:
        @rd.task(name, effects=[redrive.Effect("charge", lambda payload, witness: None)], **options)
        async def pay(n: int) -> str:
            raise Odd("what now")

        return pay

    careful, idempotent = define("careful"), define("idempotent", idempotent=True)
    handles = [await careful.enqueue(1), await idempotent.enqueue(1)]
    await soon(rd.drain())
    jobs = [await handle.refresh() for handle in handles]
    assert [job.state for job in jobs] == [State.dead, State.waiting]
    assert jobs[0].lane == "manual" and jobs[0].recommendation and "idempotent=True" in jobs[0].recommendation


# ---- what would happen


class Odd(Exception):
    pass


async def what_happens(rd: redrive.Redrive, task: str, payload: dict[str, Any]) -> Job:
    handle = await rd.enqueue(task, payload)
    await soon(rd.drain())
    return await handle.refresh()


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("reset"), TimeoutError(), TypeError("x"), Odd("odd"), TooLong(), WrongOutput(),
        redrive.GiveUp("no"), redrive.Retry(after=7), redrive.OutcomeUnknown("perhaps"), PermissionError("no"),
        ExceptionGroup("several", [ConnectionError("a"), TypeError("b")]), redrive.Snooze(30), redrive.Cancel("enough"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_explaining_tells_what_really_happens(
    rd: redrive.Redrive, clock: FakeClock, error: BaseException
) -> None:
    @rd.task("answer")
    async def answer(messages: Messages) -> str:
        raise error

    payload = {"messages": a_talk() if isinstance(error, TooLong) else []}
    told = rd.explain(error, answer, payload)
    job = await what_happens(rd, "answer", payload)
    (attempt,) = job.history
    if isinstance(error, redrive.Cancel):
        assert job.state is State.discarded
        assert "discarded" in str(told) or "cancel" in str(told).lower()
        return
    if isinstance(error, redrive.Snooze):
        assert (job.state, job.attempts) == (State.waiting, 0)
        assert isinstance(told.decision, RetryLater) and not told.decision.costs_attempt
        assert told.decision.delay == job.run_at - clock.now()
        return
    assert told.cause == attempt.cause
    assert told.decision.why == attempt.decision
    match told.decision:
        case RetryLater(delay=delay):
            assert (job.state, job.run_at - clock.now()) == (State.waiting, pytest.approx(delay))
        case Bury(because=because, lane=lane):
            assert (job.state, job.because, job.lane) == (State.dead, because, lane)
        case HoldBack(because=because):
            assert (job.state, job.because) == (State.held, because)
    assert told.cause.detail in str(told) and told.rule in str(told)


async def test_explaining_knows_the_tasks_own_way(rd: redrive.Redrive) -> None:
    @rd.task("answer")
    async def answer(text: str) -> str:
        raise TooLong

    @answer.on("context_overflow")
    def shorter(payload: dict[str, Any]) -> dict[str, Any]:
        return {"text": payload["text"][:1]}

    told = rd.explain(TooLong(), answer, {"text": "long"})
    job = await what_happens(rd, "answer", {"text": "long"})
    assert job.state is State.waiting
    assert isinstance(told.decision, RetryLater), str(told)


async def test_explaining_promises_no_change_to_a_task_that_takes_none(rd: redrive.Redrive) -> None:
    @rd.task("count")
    async def count(n: int) -> str:
        raise TooLong

    told = rd.explain(TooLong(), count)
    job = await what_happens(rd, "count", {"n": 1})
    assert job.state is State.dead
    assert isinstance(told.decision, Bury), str(told)


async def test_explaining_needs_a_known_task(rd: redrive.Redrive) -> None:
    with pytest.raises(redrive.InvalidOption, match="nobody"):
        rd.explain(ValueError(), "nobody")
    assert rd.explain(ConnectionError("x")).cause.detail == "network"


# ---- the application's rules


class Teapot(Exception):
    pass


async def test_rules_of_ones_own_go_in_front(clock: FakeClock, database: Path, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text('[[rules]]\nclass = "KeyError"\nmessage = "lock"\ndetail = "contention"\n')
    async with opened(database, clock=clock) as rd:
        assert rd.explain(KeyError("x")).cause.detail == "unknown"
        told = rd.explain(KeyError("locked"))
        assert (told.cause.detail, told.cause.rule) == ("contention", "redrive.toml rules[0]")

        rd.classify_rule(Teapot, "rate_limited")
        assert rd.explain(Teapot()).cause.detail == "rate_limited"

        @rd.classify_rule
        def odd(failure: redrive.Failure) -> str | None:
            return "needs_human" if "ask ann" in failure.message else None

        @rd.classify_rule(name="broken")
        def broken(failure: redrive.Failure) -> str | None:
            raise RuntimeError

        told = rd.explain(ConnectionError("ask ann"))
        assert (told.cause.detail, told.cause.rule) == ("needs_human", "odd")

        @rd.task("brew", retry_on=(Teapot,))
        async def brew(n: int) -> int:
            raise Teapot

        handle = await brew.enqueue(1)
        await soon(rd.drain())
        (attempt,) = (await handle.refresh()).history
        assert attempt.cause is not None and attempt.cause.rule == "retry_on", "the task's own word goes first"


@pytest.mark.parametrize(("rule", "detail"), [(Teapot, "nonsense"), (Teapot, None), ("Teapot", "network"), (5, None)])
async def test_a_rule_that_says_nothing_is_refused(rd: redrive.Redrive, rule: Any, detail: str | None) -> None:
    with pytest.raises(redrive.InvalidOption):
        rd.classify_rule(rule, detail)


def test_bad_rules_in_the_file_are_refused(tmp_path: Path, database: Path) -> None:
    for text in ('[[rules]]\nclass = "X"\ndetail = "nonsense"\n', '[[rules]]\ndetail = "network"\n'):
        (tmp_path / "redrive.toml").write_text(text)
        with pytest.raises(redrive.ConfigError, match="rules"):
            redrive.Redrive(database)


async def test_an_uncertain_write_is_not_repeated_because_a_base_class_may_be(rd: redrive.Redrive) -> None:
    class WriteTimeout(redrive.OutcomeUnknown, TimeoutError):
        pass

    @rd.task("post", retry_on=(TimeoutError,))
    async def post(n: int) -> int:
        raise WriteTimeout("sent, no answer")

    handle = await post.enqueue(1)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, job.because) == (State.held, "outcome_unknown")


# ---- a life, told in a fleet's words


async def moves_of(rd: redrive.Redrive, job_id: str) -> list[tuple[str, State]]:
    return [(event.move, event.state) for event in await rd.jobs.story(job_id)]


@pytest.mark.behaviour("004-5", "004-7", "004-9", "C31")
@pytest.mark.preset("seven_agents")
async def test_published_delivered_failed_redelivered_and_dead(rd: redrive.Redrive, clock: FakeClock) -> None:
    seen: list[State] = []

    @rd.task("review")
    async def review(ctx: redrive.Context, n: int) -> int:
        seen.append((await rd.jobs.get(ctx.job.id)).state)
        raise ConnectionError("reset")

    handle = await review.options(agent="cto").enqueue(1)
    for _ in range(3):
        await run_at_its_time(rd, clock, handle)
    assert await moves_of(rd, handle.id) == [
        ("enqueued", State.waiting), ("retried", State.waiting), ("retried", State.waiting), ("buried", State.dead),
    ]  # fmt: skip
    assert seen == [State.running] * 3
    job = await rd.dead.redrive(handle.id)
    assert (job.state, job.id) == (State.waiting, handle.id)
    with pytest.raises(redrive.IllegalMove):
        await rd.dead.redrive(handle.id)


@pytest.mark.behaviour("004-7")
async def test_what_has_ended_stays_ended(rd: redrive.Redrive) -> None:
    @rd.task("review")
    async def review(n: int) -> int:
        return n

    handle = await review.enqueue(1)
    await soon(rd.drain())
    assert await moves_of(rd, handle.id) == [("enqueued", State.waiting), ("succeeded", State.done)]
    for move in (rd.dead.redrive, rd.dead.discard, rd.jobs.cancel, rd.dead.restore):
        with pytest.raises(redrive.IllegalMove):
            await move(handle.id)


@pytest.mark.behaviour("004-10")
@pytest.mark.preset("seven_agents")
async def test_a_task_that_gives_up_is_not_run_again(rd: redrive.Redrive) -> None:
    @rd.task("deploy")
    async def deploy(n: int) -> int:
        raise redrive.GiveUp("change freeze until Monday", recommendation="Deploy on Monday.")

    handle = await deploy.options(agent="devops").enqueue(1)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, job.because, job.attempts, job.owner) == (State.dead, "terminated", 1, "ceo")
    assert (job.recommendation, "change freeze" in (job.error or "")) == ("Deploy on Monday.", True)


@pytest.mark.behaviour("004-11")
@pytest.mark.preset("seven_agents")
async def test_what_no_agent_of_the_fleet_handles_is_a_dead_letter(rd: redrive.Redrive, clock: FakeClock) -> None:
    """Workers of two agents live. A message of a kind that none of them knows is not dropped, and says what to do."""

    @rd.task("code_review")
    async def code_review(n: int) -> int:
        return n

    known = await code_review.options(agent="cto").enqueue(1)
    lost = await rd.enqueue("vulnerability_scan", {"host": "a.example"}, agent="cso")
    passing = PassingTime(clock)

    async def is_dead() -> bool:
        return (await lost.refresh()).state is State.dead

    async with rd.worker(agents=["cto"]), rd.worker(agents=["cso"]):
        await passing.until(is_dead, "it is a dead letter")
        assert (await known.refresh()).state is State.done
    job = await lost.refresh()
    assert (job.because, job.attempts, job.agent, job.lane) == ("unroutable", 0, "cso", "manual")
    assert job.arguments == {"host": "a.example"}
    assert job.recommendation and "vulnerability_scan" in job.recommendation
    assert [letter.id for letter in (await rd.dead.list(agent="cso")).jobs] == [lost.id]


@pytest.mark.behaviour("001-28")
@pytest.mark.parametrize("name", ["TimeoutError", "ConnectionError", "RateLimitError"])
async def test_three_names_that_everybody_knows(rd: redrive.Redrive, name: str) -> None:
    error = {"TimeoutError": TimeoutError, "ConnectionError": ConnectionError}.get(name) or type(name, (Exception,), {})

    @rd.task("call")
    async def call(n: int) -> int:
        raise error("later")

    handle = await call.enqueue(1)
    await soon(rd.drain())
    job = await handle.refresh()
    assert (job.state, job.category) == (State.waiting, "transient")
