"""A task that goes on after its timeout is said: in the log while it runs, and on its attempt."""

import asyncio
import logging
import threading
from contextlib import suppress

import pytest

import redrive
from redrive import BlockingContext, Context, Redrive
from tests.support import eventually, soon


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    return [record.getMessage() for record in told if "goes on after its timeout of" in record.getMessage()]


@pytest.mark.behaviour("T-10e")
async def test_a_task_that_swallows_its_timeout_is_said(live: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    """It is told while the task still runs, and its attempt says so although its result counts."""
    go = asyncio.Event()

    @live.task(timeout=0.05)
    async def stubborn(ctx: Context) -> bool:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await go.wait()
        return ctx.cancelled

    job = await stubborn.enqueue()
    async with live.worker():
        await eventually(lambda: bool(_said(caplog)), "the log says that it goes on")
        go.set()
        assert await soon(job.result()) is True, "the task can ask whether its time is over"
    (said,) = _said(caplog)
    assert "stubborn" in said and job.id[-8:] in said
    (attempt,) = (await live.jobs.get(job.id)).history
    assert attempt.outcome == "done"
    assert attempt.decision == "It went on after its timeout of 0.05 s; how it ended counts."


@pytest.mark.behaviour("T-10e")
async def test_a_task_that_fails_after_its_timeout_says_both(live: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    @live.task(timeout=0.05, max_attempts=1)
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("no time to clean up") from None

    job = await stubborn.enqueue()
    await soon(live.drain())
    (attempt,) = (await live.jobs.get(job.id)).history
    assert attempt.failure is not None and attempt.failure.message == "no time to clean up"
    assert attempt.decision is not None and attempt.decision.endswith("timeout of 0.05 s; how it ended counts.")


@pytest.mark.behaviour("T-10e")
async def test_a_plain_function_that_outlasts_its_timeout_is_said(live: Redrive) -> None:
    @live.task(timeout=0.05)
    def stubborn(ctx: BlockingContext) -> None:
        while not ctx.cancelled:
            threading.Event().wait(0.005)

    job = await stubborn.enqueue()
    await soon(live.drain())
    (attempt,) = (await live.jobs.get(job.id)).history
    assert (attempt.outcome, attempt.decision) == (
        "done", "It went on after its timeout of 0.05 s; how it ended counts.",
    )  # fmt: skip


async def test_a_task_that_obeys_its_timeout_is_not_said(live: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    @live.task(timeout=0.05, max_attempts=1)
    async def obedient() -> None:
        await asyncio.Event().wait()

    job = await obedient.enqueue()
    await soon(live.drain())
    (attempt,) = (await live.jobs.get(job.id)).history
    assert attempt.failure is not None and attempt.failure.kind == "timeout"
    assert "went on" not in (attempt.decision or "") and _said(caplog) == []


@pytest.mark.behaviour("T-6c")
@pytest.mark.preset("agent_os")
async def test_a_preset_queue_bounds_an_attempt_whose_task_says_nothing(live: Redrive) -> None:
    queues = redrive.PRESETS["agent_os"].queues
    assert {name: policy.timeout for name, policy in queues.items()} == {
        **dict.fromkeys(queues, 60.0),
        **dict.fromkeys(("learning_capture", "conversation_index", "graph_write", "knowledge_ingest"), 600.0),
        "session_promotion": 600.0,
    }
    live.registry.configure("feedback", redrive.Policy(timeout=0.05, max_attempts=1))

    @live.task(queue="feedback")
    async def hangs() -> None:
        await asyncio.Event().wait()

    @live.task(queue="feedback", timeout=20)
    async def patient() -> str:
        await asyncio.sleep(0.1)
        return "done"

    bounded, own = await hangs.enqueue(), await patient.enqueue()
    await soon(live.drain())
    job = await bounded.refresh()
    assert job.state == "dead" and "its timeout of 0.05 s" in str(job.error)
    assert await own.result(5) == "done", "what the task says goes before"
