"""Traces the sending of a job and each of its attempts, by OpenTelemetry's conventions for messaging.

A job keeps the context it was sent in (`traceparent`) for as long as it lives. So each of its attempts, in any process,
after any number of retries and redrives, is a span of the sender's trace.

A program without traces pays nothing. opentelemetry is never imported first from here: a program that wants traces has
imported it and has set a tracer provider before it starts a worker. Without a provider there is no tracer and no span.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from redrive.core.job import Attempt, Job, Options
from redrive.core.lifecycle import Transition
from redrive.core.store import Commit, Inserted

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.util.types import AttributeValue

T = TypeVar("T")
log = logging.getLogger("redrive.tracing")
SYSTEM: Final = "redrive"
TRACEPARENT: Final = "traceparent"
LOST: Final = "preempted"
"""Error type of an attempt whose worker, or whose lease, is gone."""
_FAILED: Final = frozenset({"failed", "lost"})
"""Outcomes of attempts that are errors, whether or not a retry follows. A held or snoozed attempt is no error."""

Attributes = dict[str, "AttributeValue"]


def call_safely(act: Callable[..., T], *said: object) -> T | None:
    """Calls `act` and logs what it raises: an error in a span processor must not harm the work."""
    try:
        return act(*said)
    except Exception as error:  # noqa: BLE001 - a foreign span processor may raise anything
        log.warning("a trace is incomplete, the work goes on: %r", error)
        return None


class TracedJobs(msgspec.Struct, frozen=True):
    """Jobs about to be inserted, each with the trace context of its sending."""

    span: trace.Span | None
    jobs: list[Job]

    def accepted(self, inserted: Sequence[Inserted]) -> None:
        """Records on the span the id of a single job, and how many jobs had a repeated key and thus exist already."""
        if self.span is None:
            return
        if len(inserted) == 1:
            self.span.set_attribute("messaging.message.id", inserted[0].job.id)
        if duplicates := sum(each.duplicate for each in inserted):
            self.span.set_attribute("messaging.redrive.duplicates", duplicates)


class Tracer:
    """Makes redrive's spans with one tracer provider."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.provider = provider
        self._tracer = provider.get_tracer(SYSTEM)
        self._trace = trace
        self._contexts = context
        self._wire = TraceContextTextMapPropagator()

    # -- sending

    @contextmanager
    def sending(self, jobs: Sequence[Job]) -> Iterator[TracedJobs]:
        """Opens one span for jobs enqueued together; the span gets the error if the store does not take the jobs."""
        span = call_safely(self._send, jobs)
        with self._current(span):
            traceparent = self.traceparent() if span is not None else None
            try:
                yield TracedJobs(span, [_stamp(job, traceparent) for job in jobs] if traceparent else list(jobs))
            except Exception as error:
                if span is not None:
                    call_safely(self._failed, span, type(error).__name__, str(error))
                raise

    def _send(self, jobs: Sequence[Job]) -> trace.Span:
        queues = {job.queue for job in jobs}
        queue = queues.pop() if len(queues) == 1 else None
        alone = len(jobs) == 1
        attributes = _describe_job(jobs[0]) if alone else {"messaging.batch.message_count": len(jobs)}
        return self._tracer.start_span(
            f"send {queue}" if queue else "send",
            context=self._find_callers_context(jobs),
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_describe_queue(queue, "send") | attributes,
        )

    @contextmanager
    def _current(self, span: trace.Span | None) -> Iterator[None]:
        """Makes the span current while the block runs, so that spans opened there become its children, then ends it."""
        if span is None:
            yield
            return
        token = self._contexts.attach(self._trace.set_span_in_context(span))
        try:
            yield
        finally:
            self._contexts.detach(token)
            call_safely(span.end)

    def _find_callers_context(self, jobs: Sequence[Job]) -> TraceContext | None:
        """Returns the context that the caller named in the headers; None, for the current one, if a span is current."""
        if self._trace.get_current_span().get_span_context().is_valid:
            return None
        return self._creation(jobs[0]) if jobs else None

    def _creation(self, job: Job) -> TraceContext | None:
        """Returns the context in which the job was sent; None if it is not known."""
        traceparent = job.readable_options.traceparent if job.options_json else None
        if traceparent is None:
            return None
        context = self._wire.extract({TRACEPARENT: traceparent})
        return context if self._trace.get_current_span(context).get_span_context().is_valid else None

    def traceparent(self) -> str | None:
        """Returns the traceparent of the current span, as a header carries it."""
        carrier: dict[str, str] = {}
        self._wire.inject(carrier)
        return carrier.get(TRACEPARENT)

    # -- attempts

    @contextmanager
    def attempt(self, job: Job, *, somebody_waits: bool) -> Iterator[trace.Span | None]:
        """Opens the span of one attempt. Without a sender's trace, the span joins the trace of a caller that waits."""
        span = call_safely(self._begin, job, somebody_waits)
        with self._current(span):
            yield span

    def _begin(self, job: Job, somebody_waits: bool, started_at: float | None = None) -> trace.Span:
        creation = self._creation(job)
        links = [self._trace.Link(self._trace.get_current_span(creation).get_span_context())] if creation else None
        return self._tracer.start_span(
            f"process {job.queue}",
            # A span that happens to be current in a worker has nothing to do with the job.
            context=creation or (None if somebody_waits else self._contexts.Context()),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_describe_queue(job.queue, "process") | _describe_job(job) | _describe_run(job),
            links=links,
            start_time=None if started_at is None else _nanoseconds(started_at),
        )

    def settled(self, span: trace.Span | None, commit: Commit | None) -> None:
        """Records on the span, as an event, how the attempt ended and what was decided."""
        if span is not None and span.is_recording():
            call_safely(self._settled, span, commit)

    def _settled(self, span: trace.Span, commit: Commit | None) -> None:
        if commit is None:
            self._failed(span, LOST, "the lease was lost: the result does not count")
            span.add_event("lease_lost")
        elif commit.transitions:
            self._add_decision(span, commit.transitions[0])

    def lost(self, move: Transition) -> None:
        """Writes the span of a dead worker's attempt, in the process that found it: the worker's own span is lost."""
        call_safely(self._lost, move)

    def _lost(self, move: Transition) -> None:
        span = self._begin(move.job, False, move.job.started_at)
        self._add_decision(span, move)
        span.end(_nanoseconds(move.at))

    def _add_decision(self, span: trace.Span, move: Transition) -> None:
        attempt = move.attempt
        span.set_attribute("messaging.redrive.move", move.move)
        if attempt is not None:
            self._told(span, attempt)
        if move.move != "succeeded" or attempt is not None:
            span.add_event(move.move, _describe_decision(move), _nanoseconds(move.at))

    def _told(self, span: trace.Span, attempt: Attempt) -> None:
        if attempt.usage is not None:
            span.set_attribute("gen_ai.usage.input_tokens", attempt.usage.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", attempt.usage.output_tokens)
        failure = attempt.failure
        if failure is None:
            return
        kind = failure.types[0] if failure.types else failure.kind
        span.add_event("exception", {"exception.type": kind, "exception.message": failure.message})
        if attempt.outcome in _FAILED:
            self._failed(span, attempt.cause.detail if attempt.cause else "unknown", failure.summary)

    def _failed(self, span: trace.Span, detail: str, why: str) -> None:
        span.set_attribute("error.type", detail)
        span.set_status(self._trace.StatusCode.ERROR, why)


API: Final = "opentelemetry.trace"
"""The module that a program with traces has imported."""
_tracer: Tracer | None = None


def get_tracer() -> Tracer | None:
    """Returns the tracer, if this program has a tracer provider by now. Without opentelemetry: one dict lookup."""
    global _tracer
    api = sys.modules.get(API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    if _tracer is None or _tracer.provider is not provider:
        _tracer = Tracer(provider)
    return _tracer


def get_traceparent() -> str | None:
    """Returns the traceparent of the attempt that runs here, for the services it calls; None without a tracer."""
    tracer = get_tracer()
    return None if tracer is None else tracer.traceparent()


def _stamp(job: Job, traceparent: str) -> Job:
    options = msgspec.structs.replace(job.options, traceparent=traceparent) if job.options_json else None
    said = options or Options(traceparent=traceparent)
    return msgspec.structs.replace(job, options_json=msgspec.json.encode(said).decode())


def _describe_queue(queue: str | None, operation: str) -> Attributes:
    facts: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    return facts if queue is None else facts | {"messaging.destination.name": queue}


def _describe_job(job: Job) -> Attributes:
    facts = {
        "messaging.message.id": job.id,
        "messaging.message.conversation_id": job.session_id,
        "messaging.message.body.size": len(job.payload or ""),
        "messaging.redrive.task": job.task,
        "messaging.redrive.agent": job.agent,
        "messaging.redrive.model": job.model,
    }
    return _drop_unknown(facts)


def _describe_run(job: Job) -> Attributes:
    return _drop_unknown(
        {
            "messaging.client.id": job.worker,
            "messaging.redrive.message.delivery_count": job.run,
            "messaging.redrive.message.retry_count": job.attempts,
        }
    )


def _describe_decision(move: Transition) -> Attributes:
    """Describes what was decided, and why, in redrive's own terms, never with the job's payload."""
    attempt, cause = move.attempt, move.attempt.cause if move.attempt else None
    facts: dict[str, object] = {
        "why": move.why,
        "category": cause.category if cause else None,
        "detail": cause.detail if cause else None,
        "rule": cause.rule if cause else None,
        "strategy": attempt.strategy if attempt else None,
        "group": attempt.fingerprint if attempt else None,
        "because": move.set.get("because"),
        "lane": move.set.get("lane"),
        "delay_seconds": _compute_delay(move),
    }
    return _drop_unknown({f"redrive.{name}": value for name, value in facts.items()})


def _compute_delay(move: Transition) -> float | None:
    run_at = move.set.get("run_at")
    return max(0.0, run_at - move.at) if isinstance(run_at, float | int) else None


def _drop_unknown(said: Mapping[str, object]) -> Attributes:
    return {name: value for name, value in said.items() if isinstance(value, str | bool | int | float)}


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
