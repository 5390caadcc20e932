"""Models that fail in each of the ways that a change heals, and answer well once they get exactly that change.

Everything but the model and the time is real, and nothing is set but who does what: a job with an agent has three
attempts, 30 s doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pydantic
import pytest

import redrive
from redrive.core.agents import Agent
from redrive.core.job import Job
from redrive.retries.changes import tokens
from redrive.testing import Harness, harness

FLEET = {"writer": Agent(("report",), ("small", "big")), "editor": Agent(("report",))}
TALK: list[dict[str, str]] = [
    {"role": "system", "content": "You write reports."},
    *({"role": role, "content": f"{n} " + "word " * 1_700} for n in range(20) for role in ("user", "assistant")),
    {"role": "user", "content": "Now the report."},
]
LONG = 3600.0


class Answered(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status


class Report(pydantic.BaseModel):
    title: str


class Asked:
    """What a model was asked with."""

    def __init__(self, ctx: redrive.Context, messages: list[dict[str, str]], model: str, max_tokens: int) -> None:
        self.size = tokens({"messages": messages}) or 0
        self.text = "\n".join(message["content"] for message in messages).lower()
        self.agent, self.model, self.max_tokens = ctx.agent, model, max_tokens


Model = Callable[[Asked], Any]


@pytest.fixture
def rd(tmp_path: Path) -> redrive.Redrive:
    return redrive.Redrive(tmp_path / "never-made.db", preset="seven_agents", agents=FLEET)


async def ask(rd: redrive.Redrive, t: Harness, model: Model, within: float = LONG) -> Job:
    """One job for the model, with the settings that every job of an agent has, and all the time it takes."""

    @rd.task
    async def report(
        ctx: redrive.Context, messages: list[dict[str, str]], model_name: str = "small", max_tokens: int = 1001
    ) -> Any:
        return model(Asked(ctx, messages, ctx.model or model_name, max_tokens))

    handle = await report.options(agent="writer", model="small").enqueue(TALK)
    await t.advance(within)
    return await handle.refresh()


def details(job: Job) -> list[str]:
    return [attempt.cause.detail for attempt in job.history if attempt.cause is not None]


def reads_at_most(limit: int) -> Model:
    def answers(asked: Asked) -> str:
        if asked.size > limit:
            raise Answered(400, f"prompt is too long: {asked.size} tokens > {limit} maximum")
        assert "focus on the core task" in asked.text
        return "the report"

    return answers


@pytest.mark.behaviour("004-18", "004-22", "R-3a")
@pytest.mark.parametrize(("limit", "rungs"), [(80_000, 1), (40_000, 2), (20_000, 3)])
async def test_an_overflow_heals_with_as_much_compression_as_it_takes(
    rd: redrive.Redrive, limit: int, rungs: int
) -> None:
    async with harness(rd) as t:
        job = await ask(rd, t, reads_at_most(limit))
    assert (job.state, details(job)) == ("done", ["context_overflow"] * rungs)
    assert (job.model, job.arguments["messages"]) == ("big", TALK)
    assert (job.attempts, job.allowed) == (rungs + 1, 3 + rungs), "each changed try was on top"


def stubborn(asked: Asked) -> Any:
    """Gives one wrong answer again and again; another agent with another model gives a right one."""
    right = asked.agent == "editor" and asked.model == "big" and "validate the answer" in asked.text
    return Report.model_validate_json('{"title": "Tides"}' if right else '{"headline": "Tides"}').model_dump()


@pytest.mark.behaviour("004-15", "004-18", "004-23", "R-3a")
async def test_a_loop_is_left_by_another_agent_with_another_model(rd: redrive.Redrive) -> None:
    async with harness(rd) as t:
        job = await ask(rd, t, stubborn)
    assert (job.state, job.agent, job.model) == ("done", "editor", "big")
    assert details(job) == ["invalid_output", "invalid_output", "hallucination_loop"]
    asked = [attempt.strategy for attempt in job.history]
    assert asked[:3] == ["add_instruction", "add_instruction", "add_instruction+add_constraint+set_agent+set_model"]


@pytest.mark.behaviour("004-15", "004-23", "R-3a")
async def test_a_confused_model_that_says_the_same_thrice_is_a_loop_too(rd: redrive.Redrive) -> None:
    def speaks_as_the_user(asked: Asked) -> Any:
        if asked.agent == "editor":
            return "the report"
        return {"error": "it spoke as the user", "error_kind": "model_confusion"}

    async with harness(rd) as t:
        job = await ask(rd, t, speaks_as_the_user)
    assert (job.state, details(job)) == ("done", ["model_confusion", "model_confusion", "hallucination_loop"])


@pytest.mark.behaviour("004-18", "004-24", "R-3a")
@pytest.mark.parametrize(("limit", "rungs"), [(600, 1), (360, 2)])
async def test_a_spent_budget_heals_with_a_shorter_answer(rd: redrive.Redrive, limit: int, rungs: int) -> None:
    def answers(asked: Asked) -> Any:
        if asked.max_tokens > limit:
            return {"stop_reason": "max_tokens", "content": [{"type": "text", "text": "The rep"}]}
        assert "be concise" in asked.text
        return "the report"

    async with harness(rd) as t:
        job = await ask(rd, t, answers)
    assert (job.state, details(job), job.agent, job.model) == ("done", ["token_budget"] * rungs, "writer", "small")


@pytest.mark.behaviour("004-26", "R-3a")
async def test_confusion_heals_with_one_more_try(rd: redrive.Redrive) -> None:
    number = count(1)

    def answers(asked: Asked) -> Any:
        confused = {"error": "it spoke as the user", "error_kind": "model_confusion"}
        return confused if next(number) == 1 else "the report"

    async with harness(rd) as t:
        job = await ask(rd, t, answers)
    assert (job.state, details(job)) == ("done", ["model_confusion"])
    assert job.history[0].decision == "model_confusion: tried again in 120 s, unchanged."


@pytest.mark.behaviour("R-3a")
async def test_an_outage_before_it_takes_no_changed_try_away(rd: redrive.Redrive) -> None:
    """Two of three attempts are gone, and the third shows that the prompt is too long."""
    number = count(1)

    def answers(asked: Asked) -> Any:
        if next(number) <= 2:
            raise ConnectionError("connection reset by peer")
        return reads_at_most(40_000)(asked)

    async with harness(rd) as t:
        job = await ask(rd, t, answers)
    assert (job.state, details(job)) == ("done", ["network", "network", "context_overflow", "context_overflow"])
    assert (job.attempts, job.allowed) == (5, 5)


@pytest.mark.behaviour("R-3b", "R-3c")
async def test_what_no_change_heals_says_so_and_a_person_gives_it_the_whole_ladder_again(tmp_path: Path) -> None:
    """Nothing of before the redrive is held against it: neither the wrong outputs nor the changed tries."""
    rd = redrive.Redrive(tmp_path / "never-made.db", agents=FLEET, comebacks=())
    said: list[str | None] = []

    def never_right(asked: Asked) -> Any:
        said.append(asked.agent)
        return Report.model_validate_json('{"headline": "Tides"}')

    async with harness(rd) as t:
        job = await ask(rd, t, never_right)
        assert (job.state, job.because, len(said)) == ("dead", "changes_used_up", 4)
        assert "after 3 changed tries" in str(job.history[-1].decision) and "rungs=" in str(job.recommendation)
        await rd.dead.redrive(job.id, who="ada")
        await t.advance(LONG)
        job = await rd.jobs.get(job.id)
    assert (job.state, job.because) == ("dead", "changes_used_up")
    assert details(job) == ["invalid_output", "invalid_output", "hallucination_loop", "hallucination_loop"] * 2


@pytest.mark.behaviour("R-4b")
async def test_the_waits_before_changed_tries_can_be_set_for_a_task_and_a_queue(tmp_path: Path) -> None:
    queues = {"slow": {"changed_after": {"invalid_output": 30}}}
    rd = redrive.Redrive(tmp_path / "never-made.db", queues=queues)

    @rd.task(changed_after={"invalid_output": 5})
    async def quick(prompt: str) -> Any:
        return Report.model_validate_json("{}")

    @rd.task(queue="slow")
    async def slow(prompt: str) -> Any:
        return Report.model_validate_json("{}")

    async with harness(rd) as t:
        handles = [await quick.enqueue("Write."), await slow.enqueue("Write.")]
        await t.run()
        waiting = [await handle.refresh() for handle in handles]
    assert [job.run_at - job.updated_at for job in waiting] == [5.0, 30.0]


@pytest.mark.behaviour("R-4c")
async def test_a_caller_waits_a_second_for_a_changed_try(rd: redrive.Redrive) -> None:
    number = count(1)

    @rd.task
    async def quick(prompt: str) -> Any:
        return Report.model_validate_json("{}" if next(number) == 1 else '{"title": "Tides"}').title

    async with harness(rd) as t:
        outcome = await rd.call("quick", {"prompt": "Write."})
        assert outcome.status == "queued_for_retry"
        await t.advance(1)
        assert (await rd.outcome(outcome.operation_id or "")).result == "Tides"
