"""Traces with the real SDK: what was sent, every attempt, and what was decided, in one trace for the life of a job."""

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util._once import Once

import redrive
from redrive.core.store import Lease
from redrive.engine import tracing
from tests.receiver import answer, receiving
from tests.support import FakeClock, process, soon

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def set_provider(monkeypatch: pytest.MonkeyPatch, provider: trace.TracerProvider | None) -> None:
    """A program sets its provider once; each test is a program of its own."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    set_provider(monkeypatch, provider)
    yield provider
    provider.shutdown()


@pytest.fixture
def exporter(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def rd(tmp_path: Path, clock: FakeClock) -> AsyncIterator[redrive.Redrive]:
    async with redrive.Redrive(tmp_path / "jobs.db", clock=clock) as rd:
        yield rd


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def events(span: ReadableSpan) -> dict[str, dict[str, Any]]:
    return {event.name: dict(event.attributes or {}) for event in span.events}


async def test_a_job_is_sent_and_processed_in_the_trace_of_whoever_asked(
    rd: redrive.Redrive, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    @rd.task(queue="letters")
    async def write(topic: str) -> str:
        with provider.get_tracer("the task's own").start_as_current_span("model call"):
            return topic

    with provider.get_tracer("the application").start_as_current_span("request") as request:
        job = await write.options(session_id="s1").enqueue("rain")
    await soon(rd.drain())

    (send,), (attempt,), (inner,) = (
        named(exporter, name) for name in ("send letters", "process letters", "model call")
    )
    assert (send.kind, attempt.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert {trace_of(span) for span in (send, attempt, inner)} == {request.get_span_context().trace_id}
    assert send.parent is not None and send.parent.span_id == request.get_span_context().span_id
    assert attempt.parent is not None and attempt.parent.span_id == id_of(send)
    assert [link.context.span_id for link in attempt.links] == [id_of(send)]
    assert inner.parent is not None and inner.parent.span_id == id_of(attempt)
    for span, operation in ((send, "send"), (attempt, "process")):
        assert {
            "messaging.system": "redrive",
            "messaging.destination.name": "letters",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.message.id": job.id,
            "messaging.message.conversation_id": "s1",
            "messaging.redrive.task": "write",
        }.items() <= said(span).items()
    assert said(attempt)["messaging.redrive.message.retry_count"] == 0
    assert said(attempt)["messaging.redrive.move"] == "succeeded"
    assert attempt.status.status_code is StatusCode.UNSET
    assert "rain" not in str([said(send), said(attempt), events(attempt)])  # what a job carries stays in the store


async def test_retries_burial_and_redrive_stay_in_one_trace(
    rd: redrive.Redrive, exporter: InMemorySpanExporter, clock: FakeClock
) -> None:
    mood = {"fails": True}

    @rd.task(max_attempts=2, backoff="none")
    async def post(n: int) -> int:
        if mood["fails"]:
            raise TimeoutError("the receiver did not answer")
        return n

    job = await post.enqueue(1)
    await soon(rd.drain())
    clock.advance(60)
    await soon(rd.drain())
    assert (await job.refresh()).state == "dead"
    mood["fails"] = False
    await rd.dead.redrive(job.id, who="anna", why="it answers again")
    await soon(rd.drain())

    (send,), attempts = named(exporter, "send post"), named(exporter, "process post")
    assert [said(span)["messaging.redrive.move"] for span in attempts] == ["retried", "buried", "succeeded"]
    assert [said(span)["messaging.redrive.message.retry_count"] for span in attempts] == [0, 1, 2]
    assert {trace_of(span) for span in attempts} == {trace_of(send)}
    first, last, redriven = attempts
    for failed in (first, last):
        assert said(failed)["error.type"] == "timeout"  # our detail, not the name of a class
        assert failed.status.status_code is StatusCode.ERROR
        assert events(failed)["exception"]["exception.type"] == "builtins.TimeoutError"
    retried, buried = events(first)["retried"], events(last)["buried"]
    assert (retried["redrive.detail"], retried["redrive.category"]) == ("timeout", "transient")
    assert retried["redrive.why"] and retried["redrive.delay_seconds"] >= 0
    assert (buried["redrive.because"], buried["redrive.lane"]) == ("attempts_exhausted", "delayed")
    assert buried["redrive.group"] == retried["redrive.group"]
    assert redriven.status.status_code is StatusCode.UNSET and "error.type" not in said(redriven)


async def test_many_at_once_are_one_span_and_keep_its_context(
    rd: redrive.Redrive, exporter: InMemorySpanExporter
) -> None:
    @rd.task
    async def count(n: int) -> int:
        return n

    await rd.enqueue_many("count", [{"n": n} for n in range(5)])
    await soon(rd.drain())
    (send,), attempts = named(exporter, "send count"), named(exporter, "process count")
    assert said(send)["messaging.batch.message_count"] == 5
    assert "messaging.message.id" not in said(send)
    assert {span.parent.span_id for span in attempts if span.parent} == {id_of(send)}
    assert len(attempts) == 5


async def test_a_repeated_key_is_seen_as_such(rd: redrive.Redrive, exporter: InMemorySpanExporter) -> None:
    first = await rd.enqueue("elsewhere", {"n": 1}, idempotency_key="k")
    again = await rd.enqueue("elsewhere", {"n": 1}, idempotency_key="k")
    one, two = named(exporter, "send elsewhere")
    assert again.id == first.id == said(one)["messaging.message.id"] == said(two)["messaging.message.id"]
    assert "messaging.redrive.duplicates" not in said(one)
    assert said(two)["messaging.redrive.duplicates"] == 1


async def test_a_context_from_outside_is_continued(rd: redrive.Redrive, exporter: InMemorySpanExporter) -> None:
    """A caller in another language gives its traceparent as a header."""

    @rd.task
    async def noop() -> None: ...

    await rd.enqueue("noop", {}, headers={"traceparent": GIVEN})
    await soon(rd.drain())
    (send,), (attempt,) = named(exporter, "send noop"), named(exporter, "process noop")
    assert send.parent is not None and f"{send.parent.span_id:016x}" == GIVEN.split("-")[2]
    assert f"{trace_of(send):032x}" == f"{trace_of(attempt):032x}" == GIVEN.split("-")[1]


async def test_a_context_that_is_none_begins_a_trace(rd: redrive.Redrive, exporter: InMemorySpanExporter) -> None:
    @rd.task
    async def noop() -> None: ...

    await rd.enqueue("noop", {}, headers={"traceparent": "no\x7fsuch-thing"})
    await soon(rd.drain())
    (send,), (attempt,) = named(exporter, "send noop"), named(exporter, "process noop")
    assert send.parent is None
    assert attempt.parent is not None and attempt.parent.span_id == id_of(send)


async def test_what_is_current_where_a_worker_started_is_not_its_jobs_trace(
    rd: redrive.Redrive, exporter: InMemorySpanExporter, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rd.task
    async def noop() -> None: ...

    set_provider(monkeypatch, None)
    await noop.enqueue()  # by a program without traces
    set_provider(monkeypatch, provider)
    with provider.get_tracer("the program").start_as_current_span("main") as main:
        await soon(rd.drain())
    (attempt,) = named(exporter, "process noop")
    assert attempt.parent is None and not attempt.links
    assert trace_of(attempt) != main.get_span_context().trace_id


async def test_a_call_that_is_waited_for_is_in_the_callers_trace(
    rd: redrive.Redrive, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    @rd.task
    async def add(a: int, b: int) -> int:
        return a + b

    with provider.get_tracer("the agent").start_as_current_span("turn") as turn:
        outcome = await soon(rd.call(add, {"a": 1, "b": 2}))
    assert outcome.result == 3
    (send,), (attempt,) = named(exporter, "send add"), named(exporter, "process add")
    assert trace_of(send) == trace_of(attempt) == turn.get_span_context().trace_id


def test_a_script_and_its_cycle_are_in_the_scripts_trace(
    tmp_path: Path, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """Without an event loop: work is handed to a thread, and the trace goes with it."""
    rd = redrive.Redrive(tmp_path / "jobs.db")

    @rd.task
    async def later() -> None: ...

    def now() -> int:
        return 1

    with provider.get_tracer("the script").start_as_current_span("night") as night, rd.blocking():
        later.blocking.enqueue()
        with rd.cycle("nightly", quiet=True) as cycle:
            assert cycle.run(now).status == "done"
    (send,), (attempt,) = named(exporter, "send later"), named(exporter, "process cycle:nightly")
    for span in (send, attempt):
        assert span.parent is not None and span.parent.span_id == night.get_span_context().span_id


async def test_a_plain_function_sees_the_span_in_its_thread(
    rd: redrive.Redrive, exporter: InMemorySpanExporter
) -> None:
    seen: list[int] = []

    @rd.task
    def blocking() -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    await blocking.enqueue()
    await soon(rd.drain())
    (attempt,) = named(exporter, "process blocking")
    assert seen == [id_of(attempt)]


async def test_jobs_side_by_side_do_not_mix_their_spans(rd: redrive.Redrive, exporter: InMemorySpanExporter) -> None:
    seen: dict[int, int] = {}
    all_there = asyncio.Event()

    @rd.task
    async def meet(n: int) -> None:
        if len(seen) == 3:
            all_there.set()
        else:
            seen[n] = 0
        await all_there.wait()
        seen[n] = trace.get_current_span().get_span_context().span_id

    await rd.enqueue_many("meet", [{"n": n} for n in range(4)])
    await soon(rd.drain())
    assert set(seen.values()) == {id_of(span) for span in named(exporter, "process meet")}
    assert len(set(seen.values())) == 4


async def test_what_a_task_enqueues_is_a_part_of_its_attempt(
    rd: redrive.Redrive, exporter: InMemorySpanExporter
) -> None:
    @rd.task
    async def second() -> None: ...

    @rd.task
    async def first() -> None:
        await second.enqueue()

    await first.enqueue()
    await soon(rd.drain())
    (attempt,), (send,) = named(exporter, "process first"), named(exporter, "send second")
    assert send.parent is not None and send.parent.span_id == id_of(attempt)


async def test_every_step_of_a_workflow_is_in_the_trace_of_whoever_started_it(
    rd: redrive.Redrive, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    @rd.task
    async def write(topic: str) -> str:
        return topic

    @rd.task
    async def review(text: str) -> str:
        return text

    flow = rd.workflow("article")
    draft = flow.add(write, topic="rain")
    flow.add(review, text=draft.output)
    with provider.get_tracer("the editor").start_as_current_span("order") as order:
        await flow.start()
    await soon(rd.drain())
    steps = [*named(exporter, "process write"), *named(exporter, "process review")]
    assert len(steps) == 2
    assert {trace_of(span) for span in steps} == {order.get_span_context().trace_id}


async def test_the_receiver_of_a_delivery_is_told_which_attempt_it_is(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    async with (
        redrive.Redrive(tmp_path / "jobs.db", delivery={"allow": ["127.0.0.1"]}) as rd,
        receiving(answer("204 No Content")) as receiver,
    ):
        await rd.enqueue_http("POST", receiver.url(), json={})
        await soon(rd.drain())
    (attempt,), (seen,) = named(exporter, "process http"), receiver.requests
    _, trace_id, span_id, _ = seen.headers["traceparent"].split("-")
    assert (int(trace_id, 16), int(span_id, 16)) == (trace_of(attempt), id_of(attempt))


async def test_tokens_and_snoozes_are_told_and_are_no_errors(
    rd: redrive.Redrive, exporter: InMemorySpanExporter, clock: FakeClock
) -> None:
    tries: list[int] = []

    @rd.task
    async def ask(ctx: redrive.Context) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise redrive.Snooze(60)
        ctx.usage(input_tokens=7, output_tokens=3)

    await ask.enqueue()
    await soon(rd.drain())
    clock.advance(61)
    await soon(rd.drain())
    snoozed, done = named(exporter, "process ask")
    assert snoozed.status.status_code is StatusCode.UNSET and "error.type" not in said(snoozed)
    assert events(snoozed)["snoozed"]["redrive.delay_seconds"] == 60
    assert (said(done)["gen_ai.usage.input_tokens"], said(done)["gen_ai.usage.output_tokens"]) == (7, 3)


async def test_the_attempt_of_a_worker_that_died_is_told_by_the_one_that_finds_it(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    database = tmp_path / "jobs.db"
    dying = """
    import asyncio, sys, redrive
    rd = redrive.Redrive(sys.argv[1])

    @rd.task
    async def work():
        print("begun", flush=True)
        await asyncio.sleep(60)

    asyncio.run(rd.drain())
    """
    async with redrive.Redrive(database) as rd:

        @rd.task(lease=1.0)
        async def work() -> None: ...

        job = await work.options(lease=1.0).enqueue()
        with process(dying, database) as child:
            assert child.stdout is not None
            assert (await soon(asyncio.to_thread(child.stdout.readline))).strip() == "begun"
            child.kill()
            child.wait()
        async with rd.worker(concurrency=1):
            await soon(job.result())
    (send,), attempts = named(exporter, "send work"), named(exporter, "process work")
    lost, done = sorted(attempts, key=lambda span: said(span)["messaging.redrive.message.delivery_count"])
    assert said(lost)["error.type"] == "preempted"
    assert lost.status.status_code is StatusCode.ERROR
    assert "retried" in events(lost)
    assert said(done)["messaging.redrive.move"] == "succeeded"
    assert trace_of(lost) == trace_of(done) == trace_of(send)
    assert lost.start_time is not None and lost.end_time is not None and lost.start_time < lost.end_time


async def test_a_lost_lease_ends_the_span_as_an_error(rd: redrive.Redrive, exporter: InMemorySpanExporter) -> None:
    begun = asyncio.Event()

    @rd.task
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await work.enqueue()
    async with rd.worker(concurrency=1) as worker:
        await soon(begun.wait())
        running = await job.refresh()
        assert running.token is not None
        worker._lost(Lease(job.id, running.token))
        await soon(worker.idle())
    (attempt,) = named(exporter, "process work")
    assert said(attempt)["error.type"] == "preempted"
    assert "lease_lost" in events(attempt)


async def test_a_store_that_refuses_is_an_error_of_the_sending(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    rd = redrive.Redrive(tmp_path / "no such folder" / "jobs.db")
    with pytest.raises(redrive.StoreError):
        await rd.enqueue("work", {})
    (send,) = named(exporter, "send work")
    assert send.status.status_code is StatusCode.ERROR
    assert said(send)["error.type"] == "StoreUnavailable"


class Broken(SpanProcessor):
    """Raises wherever it is asked."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("on_start")


class BrokenAtTheEnd(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("on_end")


@pytest.mark.parametrize("processor", [Broken, BrokenAtTheEnd])
async def test_whoever_listens_cannot_harm_the_work(
    rd: redrive.Redrive, provider: TracerProvider, processor: type[SpanProcessor], caplog: pytest.LogCaptureFixture
) -> None:
    provider.add_span_processor(processor())
    ran: list[int] = []

    @rd.task
    async def work() -> None:
        ran.append(1)

    with caplog.at_level(logging.WARNING):
        job = await work.enqueue()
        await soon(rd.drain())
    assert (await job.refresh()).state == "done"
    assert ran == [1]
    assert "a trace is incomplete" in caplog.text


async def test_a_trace_that_is_not_sampled_is_carried_on_as_such(
    rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    provider, exporter = TracerProvider(sampler=ALWAYS_OFF), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    set_provider(monkeypatch, provider)

    @rd.task
    async def noop() -> None: ...

    job = await noop.enqueue()
    await soon(rd.drain())
    assert exporter.get_finished_spans() == ()
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[02]", (await job.refresh()).options.traceparent or "")
    provider.shutdown()


async def test_without_a_provider_nothing_is_kept_and_nothing_is_made(
    rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_provider(monkeypatch, None)
    assert tracing.get_tracer() is None
    assert tracing.get_traceparent() is None
    job = await rd.enqueue("elsewhere", {})
    assert (await job.refresh()).options_json is None


def test_opentelemetry_is_not_imported_by_redrive() -> None:
    code = """
import asyncio, sys, redrive

async def main():
    async with redrive.Redrive(sys.argv[1]) as rd:
        @rd.task
        async def noop(): ...
        await noop.enqueue()
        assert await rd.drain() == 1

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    done = subprocess.run(
        [sys.executable, "-c", code, ":memory:"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
