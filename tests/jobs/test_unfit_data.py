"""Data that does not fit: a crawler's and a model's are told apart, and each gets advice that helps."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pydantic
import pytest

import redrive
from redrive import Adapt, Redrive
from redrive.core.advice import COMES_BACK
from redrive.core.job import Job
from redrive.failures.capture import capture
from tests.support import FakeClock, drain_until_over, only_job, soon

PAGE = b"<html><body>Are you a robot?</body></html>"
LOOK = "Look at what the source sent"


@pytest.fixture
async def page() -> AsyncIterator[str]:
    """The address of a server that answers every request with a page."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + PAGE)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prices"


async def first_cause(rd: Redrive) -> tuple[str, str]:
    cause = (await only_job(rd)).history[0].cause
    assert cause is not None
    return cause.category, cause.detail


@pytest.mark.behaviour("R-5g")
async def test_a_crawler_that_got_a_page_is_told_to_look_at_it(rd: Redrive, clock: FakeClock, page: str) -> None:
    @rd.task
    async def crawl(url: str) -> Any:
        async with httpx2.AsyncClient(trust_env=False) as client:
            return (await client.get(url)).json()

    await crawl.enqueue(page)
    await drain_until_over(rd, clock)
    job = await only_job(rd)
    assert await first_cause(rd) == ("unknown", "unknown")
    assert (job.state, job.attempts) == ("dead", 3), "tried like anything unknown, never re-prompted"
    assert job.recommendation is not None and job.recommendation.removeprefix(COMES_BACK).startswith(LOOK)
    assert "HTML" in job.recommendation and "model" not in job.recommendation.partition("If a model")[0]
    assert not [attempt for attempt in job.history if attempt.changes], "there is nothing that a model was told"


class Order(pydantic.BaseModel):
    amount: int


@pytest.mark.behaviour("R-5g")
@pytest.mark.parametrize("declared", ["adapt", "model parameter", "way", "model", "agent", "messages", "prompt"])
async def test_a_task_that_says_it_asks_a_model_is_believed(clock: FakeClock, tmp_path: Path, declared: str) -> None:
    async with redrive.Redrive(tmp_path / "jobs.db", clock=clock) as rd:
        await _enqueued(rd, declared)
        await soon(rd.drain())
        assert await first_cause(rd) == ("conditional", "invalid_output")


async def _enqueued(rd: Redrive, declared: str) -> None:
    """A job of a task that reads what a model wrote, and says in one way only that a model wrote it."""
    options: dict[str, Any] = {"adapt": Adapt(prompt="question")} if declared == "adapt" else {}
    if declared == "model parameter":

        @rd.task("order")
        async def with_model(question: str, model: str = "small") -> int:
            return Order.model_validate_json('{"amount": "many"}').amount
    elif declared in ("messages", "prompt"):

        @rd.task("order")
        async def with_prompt(messages: Any = None, prompt: str = "") -> Any:
            return json.loads("Sure! Here is {")
    else:

        @rd.task("order", **options)
        async def plain(question: str) -> Any:
            return json.loads("Sure! Here is {")

        if declared == "way":
            plain.on("invalid_output")(lambda job: None)
    talk = [{"role": "user", "content": "An order, as JSON."}]
    given = {"messages": {"messages": talk}, "prompt": {"prompt": "An order."}}.get(declared, {"question": "An order?"})
    await rd.enqueue("order", given, **{declared: "x"} if declared in ("model", "agent") else {})


@pytest.mark.behaviour("R-5g")
async def test_explain_tells_them_apart(rd: Redrive) -> None:
    @rd.task
    async def crawl(url: str) -> None: ...

    @rd.task
    async def write(prompt: str) -> None: ...

    error = json.JSONDecodeError("Expecting value", "<html>", 0)
    assert [rd.explain(error, task).cause.detail for task in (crawl, write)] == ["unknown", "invalid_output"]
    assert rd.explain(error).cause.rule == "unfit_data"


@pytest.mark.behaviour("R-5h")
async def test_an_expired_token_says_when_it_comes_back(rd: Redrive) -> None:
    class Refused(Exception):
        status_code = 401

    @rd.task
    async def publish() -> None:
        raise Refused("token has expired")

    await publish.enqueue()
    await soon(rd.drain())
    job = await rd.jobs.get((await rd.dead.list()).jobs[0].id)
    assert (job.detail, job.lane) == ("credentials_expired", "delayed")
    assert job.comes_back_at is not None and "comes back by itself in about 1 h" in str(job.history[-1].decision)
    assert str(job.recommendation).startswith("Refresh the expired token.")


@pytest.mark.behaviour("R-5d")
async def test_a_task_without_memory_waits_for_room_a_few_times_and_then_uses_its_attempts(
    rd: Redrive, clock: FakeClock
) -> None:
    met: list[int] = []

    @rd.task(max_attempts=2)
    async def load() -> None:
        met.append(1)
        raise MemoryError

    await load.enqueue()
    await soon(rd.drain())
    job: Job = await only_job(rd)
    assert (job.state, job.attempts) == ("waiting", 0)
    await drain_until_over(rd, clock)
    job = await only_job(rd)
    assert (job.state, job.attempts, job.detail, len(met)) == ("dead", 2, "own_limits", 5)
    assert "memory" in str(job.recommendation)


@pytest.mark.behaviour("R-5g")
def test_a_package_of_the_application_that_is_called_agents_is_no_model_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents.py").write_text("import json\n\n\nclass Crawler:\n    def read(self, page):\n"
                                        "        return json.loads(page)\n")  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "agents", types.ModuleType("agents"))  # restored at the end
    del sys.modules["agents"]
    crawler = importlib.import_module("agents").Crawler()
    with pytest.raises(ValueError) as caught:
        crawler.read("<html>")
    assert not capture(caught.value).model_asked
