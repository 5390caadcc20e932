"""What breaks machines and what breaks models, as it really happens in a task, and what is decided about each."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pydantic
import pytest

from redrive import Adapt, Redrive
from redrive.core.agents import Agent, Model
from tests.support import FakeClock, PassingTime, eventually, opened, soon


class Answered(Exception):
    """An HTTP client's error, as most libraries make it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status


class Report(pydantic.BaseModel):
    title: str


def call_a_closed_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    socket.create_connection(("127.0.0.1", port), timeout=10)


def write_while_another_writes(folder: Path) -> None:
    writer = sqlite3.connect(folder / "index.db", isolation_level=None)
    try:
        writer.execute("BEGIN IMMEDIATE")
        sqlite3.connect(folder / "index.db", timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
    finally:
        writer.close()


def insert_it_twice(_: Path) -> None:
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE notes (id UNIQUE)")
    for _id in (7, 7):
        table.execute("INSERT INTO notes VALUES (?)", (_id,))


def too_long(_: Path) -> None:
    raise Answered(400, "prompt is too long: 312000 tokens > 200000 maximum")


def not_allowed(_: Path) -> None:
    raise Answered(403, "Must have admin rights to Repository.")


Breaks = Callable[[Path], Any]
MACHINES: dict[str, tuple[Breaks, str, str]] = {
    "nobody listens": (lambda _: call_a_closed_port(), "transient", "network"),
    "no answer": (lambda _: asyncio.Event().wait(), "transient", "timeout"),
    "locked": (write_while_another_writes, "transient", "contention"),
    "schema": (insert_it_twice, "permanent", "invalid_input"),
    "poison": (lambda _: None + 1, "permanent", "bug"),  # type: ignore[operator]
    "authority": (not_allowed, "permanent", "authority"),
}
MODELS: dict[str, tuple[Breaks, str, str]] = {
    "context exhausted": (too_long, "conditional", "context_overflow"),
    "output cut off": (
        lambda _: {"choices": [{"finish_reason": "length", "message": {"content": "half a re"}}]},
        "conditional",
        "token_budget",
    ),
    "wrong answer": (lambda _: Report.model_validate_json('{"headline": 1}'), "conditional", "invalid_output"),
    "no JSON": (lambda _: json.loads("Sure! Here is {"), "conditional", "invalid_output"),
    "confused": (lambda _: {"error": "it spoke as the user", "error_kind": "model_confusion"}, "conditional",
                 "model_confusion"),
    "valid but impossible": (
        lambda _: {"success": False, "error_kind": "impossible_task", "message": "there is no such repository"},
        "permanent",
        "impossible_task",
    ),
}  # fmt: skip


@pytest.mark.behaviour("004-1", "004-15")
async def test_what_breaks_machines_and_what_breaks_models_is_told_apart(
    live: Redrive, database: Path, tmp_path: Path
) -> None:
    """Each really happens, under a worker with default settings, in one task, which says where its prompt is."""

    @live.task(timeout=0.2, adapt=Adapt(prompt="what"))
    async def work(what: str) -> Any:
        breaks, _, _ = (MACHINES | MODELS)[what]
        result = breaks(tmp_path)
        return await result if asyncio.iscoroutine(result) else result

    ids = {what: (await work.enqueue(what)).id for what in MACHINES | MODELS}
    async with opened(database) as stranger:  # does not know the task, so that nothing refuses what it cannot take
        ids["serialisation"] = (await stranger.enqueue("work", {"wat": 1})).id

    async def all_failed() -> bool:
        return all([(await live.jobs.get(id)).history for id in ids.values()])

    async with live.worker():
        await eventually(all_failed, "each has failed")
    causes = {what: (await live.jobs.get(id)).history[0].cause for what, id in ids.items()}
    assert {what: (cause.category, cause.detail) for what, cause in causes.items() if cause} == {
        **{what: (category, detail) for what, (_, category, detail) in (MACHINES | MODELS).items()},
        "serialisation": ("permanent", "invalid_input"),
    }


@pytest.mark.behaviour("004-15")
async def test_the_third_same_wrong_output_is_a_loop_by_default(rd: Redrive, clock: FakeClock) -> None:
    """Default settings give a wrong answer two more tries. The same answer a third time is a loop, and has a try of
    its own; a third answer that is wrong in another way is not. A person's redrive begins the count anew."""
    number = count(1)

    @rd.task
    async def technical_writing(prompt: str, stubborn: bool) -> None:
        Report.model_validate_json(json.dumps({"headline": 0 if stubborn else next(number)}))

    same, different = await technical_writing.enqueue("Write.", True), await technical_writing.enqueue("Write.", False)
    passing = PassingTime(clock)

    async def both_dead() -> bool:
        return {(await job.refresh()).state for job in (same, different)} == {"dead"}

    async with rd.worker():
        await passing.until(both_dead, "both are dead letters")
        assert [(await job.refresh()).attempts for job in (same, different)] == [4, 4]
        for job in (same, different):
            await rd.dead.redrive(job.id, who="ada")
        await passing.until(both_dead, "both are dead letters again")
    details = [[attempt.cause.detail for attempt in (await job.refresh()).history if attempt.cause] for job in
               (same, different)]  # fmt: skip
    assert details[0] == ["invalid_output", "invalid_output", "hallucination_loop", "hallucination_loop"] * 2
    assert set(details[1]) == {"invalid_output"}
    looped = (await same.refresh()).history[2]
    assert looped.cause is not None
    assert (looped.cause.category, looped.strategy) == ("conditional", "add_instruction+add_constraint")
    assert "60 s" in str(looped.decision)


# ---- what is decided


TALK: list[dict[str, str]] = [
    {"role": "system", "content": "You write reports."},
    *({"role": role, "content": f"{n} " + "word " * 1_700} for n in range(20) for role in ("user", "assistant")),
    {"role": "user", "content": "Now the report."},
]
WRITER = {"writer": Agent(("report",), ("small", "big")), "editor": Agent(("report",))}
Decided = tuple[float, str | None, str | None, str | None]
"""How long it waits, what is changed, and who tries it next with which model."""
DECISIONS: dict[str, tuple[Callable[[], Any], list[Decided]]] = {
    "transient": (
        lambda: Answered(503, "back soon"),
        [(30.0, None, "writer", "small"), (60.0, None, "writer", "small")],
    ),
    "too long": (
        lambda: Answered(400, "prompt is too long: 312000 tokens > 200000 maximum"),
        [
            (10.0, "compress_context+add_instruction+set_model", "writer", "big"),
            *[(10.0, "compress_context", "writer", "big")] * 2,
        ],
    ),
    "cut off": (
        lambda: {"stop_reason": "max_tokens"},
        [
            (10.0, "simplify_task+add_instruction", "writer", "small"),
            *[(10.0, "simplify_task", "writer", "small")] * 2,
        ],
    ),
    "wrong": (
        lambda: {"error": "no title", "error_kind": "invalid_output"},
        [
            *[(120.0, "add_instruction", "writer", "small")] * 2,
            (60.0, "add_instruction+add_constraint+set_agent+set_model", "editor", "big"),
        ],
    ),
    "forbidden": (lambda: Answered(403, "Must have admin rights to Repository."), []),
}  # fmt: skip


@pytest.mark.behaviour("004-19", "004-20")
@pytest.mark.parametrize("what", DECISIONS)
async def test_a_decision_follows_from_the_failure_the_attempt_and_the_job(
    database: Path, clock: FakeClock, what: str
) -> None:
    """A job that fails in one way for ever: each wait, each change, who tries it with which model, and how often."""
    fails, expected = DECISIONS[what]
    async with opened(database, clock=clock, preset="seven_agents", agents=WRITER) as rd:

        @rd.task
        async def report(messages: list[dict[str, str]], model: str = "", max_tokens: int = 1001) -> Any:
            if isinstance(failure := fails(), Exception):
                raise failure
            return failure

        handle = await report.options(agent="writer", model="small").enqueue(TALK)
        decided: list[Decided] = []
        for _ in range(10):
            await soon(rd.drain())
            job = await handle.refresh()
            if job.state != "waiting":
                break
            strategy = job.history[-1].strategy if job.changes else None
            decided.append((job.run_at - clock.now(), strategy, job.agent, job.model))
            clock.advance(job.run_at - clock.now())
        assert decided == expected
        assert (job.state, job.attempts) == ("dead", len(expected) + 1)
        assert all(attempt.decision for attempt in job.history), "every attempt keeps why"
        assert job.arguments["messages"] == TALK, "the input stays as it was"
        if isinstance(error := fails(), Exception):
            assert rd.explain(error).cause.detail == job.detail


@pytest.mark.behaviour("004-20")
async def test_the_same_failure_of_another_task_is_decided_by_what_that_task_can_take(
    database: Path, clock: FakeClock
) -> None:
    """Too long once more: one task has messages to compress, the other has nothing that could be changed."""
    async with opened(database, clock=clock, models={"small": Model(larger="big")}) as rd:

        @rd.task
        async def talk(messages: list[dict[str, str]]) -> None:
            raise Answered(400, "prompt is too long: 312000 tokens > 200000 maximum")

        @rd.task
        async def fetch(page: int) -> None:
            raise Answered(400, "prompt is too long: 312000 tokens > 200000 maximum")

        changed, buried = await talk.enqueue(TALK), await fetch.enqueue(1)
        await soon(rd.drain())
        assert [((await job.refresh()).state, (await job.refresh()).detail) for job in (changed, buried)] == [
            ("waiting", "context_overflow"), ("dead", "context_overflow"),
        ]  # fmt: skip
