"""One attempt, as a list of verbs: prepare → perform → settle. Pure functions in a row, one commit at the end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any

from redrive.core import lifecycle
from redrive.core.classify import classify
from redrive.core.fingerprint import fingerprint
from redrive.core.job import Attempt, Cause, Failure, Job, Usage
from redrive.core.lifecycle import Transition
from redrive.core.payload import Blob, blob_from, encode_result
from redrive.core.store import Commit, Put, Store
from redrive.core.strategy import Case, Decision, Hold, RetryLater, decide
from redrive.errors import Cancel, GiveUp, InvalidPayload, Retry, Signal, Snooze
from redrive.runtime.capture import capture, lost, timed_out
from redrive.runtime.clock import Clock
from redrive.runtime.context import BlockingContext, Context, Held, LeaseLost, _current
from redrive.runtime.registry import Handler, Registry
from redrive.runtime.threads import Threads

log = logging.getLogger("redrive.attempt")
RESULT_INLINE = 256 * 1024
"""Larger results are stored beside the job."""
RESULT_APART = '{"$result":"stored apart"}'


class Attempts:
    """Runs jobs and says what must be committed for each. Knows nothing of slots, claims or leases."""

    def __init__(self, store: Store, registry: Registry, clock: Clock, threads: Threads) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._threads = threads

    def context_for(self, job: Job) -> Context | BlockingContext:
        handler = self._registry.handlers[job.task]
        kind = Context if handler.is_async else BlockingContext
        return kind(job, self._store, self._clock, idempotent=handler.idempotent)

    async def run(self, job: Job, context: Context | BlockingContext) -> Commit | None:
        """One attempt from start to end. None means that the job is no longer ours to settle."""
        handler = self._registry.handlers[job.task]
        try:
            arguments = await self._prepare(job, handler)
            value = await self._perform(handler, context, arguments)
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - this is the place where failures are kept
            return self._ended_by(error, job, handler, context)
        return self._succeeded(job, context, value)

    def _ended_by(
        self, error: BaseException, job: Job, handler: Handler, context: Context | BlockingContext
    ) -> Commit | None:
        """What an attempt that did not return has said."""
        if isinstance(error, LeaseLost) or (isinstance(error, asyncio.CancelledError) and context.cancelled):
            return None
        if isinstance(error, asyncio.CancelledError) and context._releasing:
            return Commit((self.released(job),))
        if isinstance(error, _TimedOut):
            return self._failed(job, handler, context, timed_out(error.seconds))
        signal = _signal_in(error)
        if signal is not None:
            return self._signalled(job, handler, context, signal)
        return self._failed(job, handler, context, capture(error))

    # -- prepare and perform

    async def _prepare(self, job: Job, handler: Handler) -> dict[str, Any]:
        payload = job.payload or "{}"
        blobs = await self._blobs(job) if '"$blob"' in payload else None
        try:
            return handler.signature.arguments(payload, blobs)
        except InvalidPayload as error:
            error.error_kind = "invalid_input"
            raise

    async def _blobs(self, job: Job) -> dict[int, Blob]:
        documents = await self._store.docs("blob", f"{job.id}/")
        return {int(document.key.rpartition("/")[2]): blob_from(document.value) for document in documents}

    async def _perform(self, handler: Handler, context: Context | BlockingContext, arguments: dict[str, Any]) -> Any:
        args = (context,) if handler.wants_context else ()
        token = _current.set(context)
        try:
            if isinstance(context, BlockingContext):
                return await self._in_thread(handler, context, args, arguments)
            if handler.timeout is None:
                return await handler.function(*args, **arguments)
            return await _within(handler.timeout, handler.function(*args, **arguments))
        finally:
            _current.reset(token)

    async def _in_thread(
        self, handler: Handler, context: BlockingContext, args: tuple[Any, ...], arguments: dict[str, Any]
    ) -> Any:
        """A thread cannot be killed: at its timeout it is told (`ctx.cancelled`), and what it returns still counts."""
        loop = asyncio.get_running_loop()
        context._loop = loop
        call = contextvars.copy_context().run
        work = self._threads.run(lambda: call(handler.function, *args, **arguments))
        late = loop.call_later(handler.timeout, _tell_late, context, handler) if handler.timeout else None
        try:
            return await asyncio.shield(work)
        finally:
            if late is not None:
                late.cancel()

    # -- settle

    def _succeeded(self, job: Job, context: Context | BlockingContext, value: object) -> Commit:
        now = self._clock.now()
        text, problem = encode_result(value)
        if problem:
            log.warning("job %s (%s): %s", job.short_id, job.task, problem)
        plain = context._usage is None and job.changes_json is None
        attempt = None if plain else self._attempt(job, "done", now, context._usage)
        if text is not None and len(text) > RESULT_INLINE:
            put = Put("result", f"{job.id}/", text.encode())
            return Commit((lifecycle.succeeded(job, now, RESULT_APART, attempt),), (put,))
        return Commit((lifecycle.succeeded(job, now, text, attempt),))

    def _signalled(self, job: Job, handler: Handler, context: Context | BlockingContext, signal: Signal) -> Commit:
        now = self._clock.now()
        if isinstance(signal, Snooze):
            attempt = self._attempt(job, "snoozed", now, context._usage, decision=str(signal))
            return Commit((lifecycle.snoozed(job, now, run_at=now + signal.seconds, attempt=attempt),))
        if isinstance(signal, Cancel):
            attempt = self._attempt(job, "cancelled", now, context._usage, decision=signal.reason)
            return Commit((lifecycle.cancelled(job, now, who=job.task, why=signal.reason, attempt=attempt),))
        if isinstance(signal, Held):
            log.warning("job %s (%s) is held: %s", job.short_id, job.task, signal)
            attempt = self._attempt(job, "held", now, context._usage, decision=str(signal))
            held = lifecycle.held_back(
                job, now, because=signal.because, why=str(signal), recommendation=signal.recommendation, attempt=attempt
            )
            return Commit((held,))
        return self._failed(job, handler, context, capture(signal))

    def released(self, job: Job) -> Transition:
        """Given back at shutdown: costs no attempt."""
        now = self._clock.now()
        return lifecycle.released(job, now, self._attempt(job, "released", now, None, decision="the worker stopped"))

    def _failed(self, job: Job, handler: Handler, context: Context | BlockingContext, failure: Failure) -> Commit:
        return Commit((self.settle(job, handler, failure, context._usage),))

    def settle_lost(self, job: Job, *, alone: bool) -> Transition:
        """A lapsed lease takes the same way as an exception."""
        return self.settle(job, self._registry.handlers.get(job.task), lost(job.worker), None, alone=alone)

    def settle(
        self, job: Job, handler: Handler | None, failure: Failure, usage: Usage | None, *, alone: bool = False
    ) -> Transition:
        """Failure → cause → decision → transition."""
        now, policy = self._clock.now(), self._registry.policy_for(job)
        cause = classify(failure, handler.rules if handler else ())
        idempotent = handler.idempotent if handler else False
        case = Case(job, failure, cause, policy, now, self._clock.chance(), idempotent, alone)
        decision = decide(case)
        outcome = "lost" if failure.kind == "lease_expired" else "failed"
        group = fingerprint(failure, job.task, job.model)
        attempt = self._attempt(job, outcome, now, usage, failure, cause, decision.why, group)
        log.warning(
            "job %s (%s, attempt %d): %s | %s", job.short_id, job.task, case.failures, failure.summary, decision.why
        )
        return transition_for(case, decision, attempt)

    def _attempt(
        self,
        job: Job,
        outcome: str,
        now: float,
        usage: Usage | None,
        failure: Failure | None = None,
        cause: Cause | None = None,
        decision: str | None = None,
        group: str | None = None,
    ) -> Attempt:
        changes = job.changes if job.changes_json else None
        return Attempt(
            job.run, outcome, job.started_at, now, job.worker, job.agent, job.model, changes, failure, cause, group,
            decision, usage,
        )  # fmt: skip


def transition_for(case: Case, decision: Decision, attempt: Attempt) -> Transition:
    """A decision as the move that the store will write."""
    job, now, failure, cause = case.job, case.now, case.failure, case.cause
    group = attempt.fingerprint
    if isinstance(decision, RetryLater):
        return lifecycle.retried(
            job, now, run_at=now + decision.delay, allowed=case.allowed, failure=failure, cause=cause,
            fingerprint=group, attempt=attempt, costs_attempt=decision.costs_attempt, crashed=decision.crashed,
        )  # fmt: skip
    if isinstance(decision, Hold):
        return lifecycle.held_back(
            job, now, because=decision.because, why=decision.why, recommendation=decision.recommendation,
            failure=failure, cause=cause, fingerprint=group, attempt=attempt,
        )  # fmt: skip
    return lifecycle.buried(
        job, now, because=decision.because, why=decision.why, recommendation=decision.recommendation,
        lane=decision.lane, failure=failure, cause=cause, fingerprint=group, attempt=attempt, allowed=case.allowed,
        costs_attempt=decision.costs_attempt, crashed=decision.crashed,
    )  # fmt: skip


def _signal_in(error: BaseException) -> Signal | None:
    """The signal that was raised, also from inside a TaskGroup; the strongest where there are several."""
    if isinstance(error, Signal):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [signal for member in error.exceptions if (signal := _signal_in(member)) is not None]
    return min(found, key=_strength, default=None)


def _strength(signal: Signal) -> int:
    order = (GiveUp, Cancel, Held, Retry, Snooze)
    return next((place for place, kind in enumerate(order) if isinstance(signal, kind)), len(order))


class _TimedOut(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s")
        self.seconds = seconds


async def _within(seconds: float, work: Any) -> Any:
    """Our own timeout, told apart from a TimeoutError that the task itself raised."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise _TimedOut(seconds) from None
        raise


def _tell_late(context: BlockingContext, handler: Handler) -> None:
    context._cancelled = True
    log.warning(
        "job %s (%s) still runs after its timeout of %g s; a thread cannot be stopped, it was told by ctx.cancelled",
        context.job.short_id, handler.name, handler.timeout,
    )  # fmt: skip
