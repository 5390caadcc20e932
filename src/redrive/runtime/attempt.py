"""One attempt, as a list of verbs: prepare → gate → perform → inspect → settle. One commit at the end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from typing import Any

import msgspec

from redrive.core.changes import apply, decode
from redrive.core.job import Budget, Failure, Job
from redrive.core.lifecycle import Transition
from redrive.core.payload import Blob, blob_from
from redrive.core.preflight import Conditions, NotReady, check, credentials, fits, still_wanted, surely_fits
from redrive.core.store import Commit, Store
from redrive.errors import InvalidPayload
from redrive.runtime.breakers import Breakers
from redrive.runtime.capture import capture, soft, timed_out
from redrive.runtime.clock import Clock
from redrive.runtime.context import BlockingContext, Context, LeaseLost, _current
from redrive.runtime.registry import HTTP_TASK, Handler, Registry
from redrive.runtime.settle import Settlement, signal_in
from redrive.runtime.threads import Threads

log = logging.getLogger("redrive.attempt")
ENV = "env:"


class Attempts:
    """Runs jobs and says what must be committed for each. Knows nothing of slots, claims or leases."""

    def __init__(self, store: Store, registry: Registry, clock: Clock, threads: Threads) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._threads = threads
        self.breakers = Breakers(store, clock)
        self.settlement = Settlement(registry, clock, self.breakers)

    def context_for(self, job: Job) -> Context | BlockingContext:
        handler = self._registry.handlers[job.task]
        kind = Context if handler.is_async else BlockingContext
        return kind(job, self._store, self._clock, idempotent=handler.idempotent)

    async def run(self, job: Job, context: Context | BlockingContext) -> Commit | None:
        """One attempt from start to end. None means that the job is no longer ours to settle."""
        handler = self._registry.handlers[job.task]
        try:
            arguments = await self._prepare(job, handler, context)
            parked = await self.breakers.gate(job, handler)
            if parked is not None:
                return Commit((parked,))
            value = await self._perform(handler, context, arguments)
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except Rejected as rejected:
            return Commit((self.settlement.rejected(job, rejected.verdict),))
        except BaseException as error:  # noqa: BLE001 - this is the place where failures are kept
            return await self._ended_by(error, job, handler, context)
        failure = _inspected(handler, value, job)
        if failure is not None:
            return await self.settlement.failed(job, handler, context, failure)
        return await self.settlement.succeeded(job, handler, context, value)

    async def _ended_by(
        self, error: BaseException, job: Job, handler: Handler, context: Context | BlockingContext
    ) -> Commit | None:
        """What an attempt that did not return has said."""
        if isinstance(error, LeaseLost) or (isinstance(error, asyncio.CancelledError) and context.cancelled):
            return None
        if isinstance(error, asyncio.CancelledError) and context._releasing:
            return Commit((self.settlement.released(job),))
        if isinstance(error, _TimedOut):
            return await self.settlement.failed(job, handler, context, timed_out(error.seconds))
        signal = signal_in(error)
        if signal is not None:
            return await self.settlement.signalled(job, handler, context, signal)
        return await self.settlement.failed(job, handler, context, capture(error))

    def settle_lost(self, job: Job, *, alone: bool) -> Transition:
        """A lapsed lease takes the same way as an exception."""
        return self.settlement.lost(job, self._registry.handlers.get(job.task), alone=alone)

    # -- prepare

    async def _prepare(self, job: Job, handler: Handler, context: Context | BlockingContext) -> dict[str, Any]:
        """The effective input, checked before a token is spent on it, as the task's arguments."""
        text = job.payload or "{}"
        if job.changes_json is not None:
            text = self._changed(job, handler, context)
        self._preflight(job, handler, text)
        blobs = await self._blobs(job) if '"$blob"' in text else None
        try:
            return handler.signature.arguments(text, blobs)
        except InvalidPayload as error:
            error.error_kind = "invalid_input"
            raise

    def _changed(self, job: Job, handler: Handler, context: Context | BlockingContext) -> str:
        """Payload plus changes; what the task cannot take is told, and not recorded as applied."""
        names = frozenset(name for name in ("model", "agent") if getattr(job, name) is not None)
        wanted = decode(job.changes_json)
        applied = apply(job.arguments, wanted, handler.adapt, self._registry.count, names=names)
        for change, why in applied.refused:
            log.warning("job %s (%s) runs without %r: %s", job.short_id, job.task, change, why)
        context._taken = applied.taken
        return msgspec.json.encode(applied.payload).decode()

    def _preflight(self, job: Job, handler: Handler, text: str) -> None:
        policy = self._registry.policy_for(job)
        verdict = still_wanted(job, policy, self._clock.now()) or credentials(missing(job, handler))
        if verdict is None and not surely_fits(text, self._registry.fleet, self._registry.count):
            conditions = Conditions(policy, self._registry.fleet, handler.adapt, self._registry.count)
            judged = fits(msgspec.json.decode(text), job.model, conditions)
            if isinstance(judged, NotReady):
                verdict = judged
            elif judged is not None:
                log.warning("job %s (%s): %s", job.short_id, job.task, "; ".join(judged.warnings))
        if verdict is not None:
            raise Rejected(verdict)

    async def _blobs(self, job: Job) -> dict[int, Blob]:
        documents = await self._store.docs("blob", f"{job.id}/")
        return {int(document.key.rpartition("/")[2]): blob_from(document.value) for document in documents}

    # -- perform

    async def _perform(self, handler: Handler, context: Context | BlockingContext, arguments: dict[str, Any]) -> Any:
        args = (context,) if handler.wants_context else ()
        token = _current.set(context)
        try:
            if isinstance(context, BlockingContext):
                return await self._in_thread(handler, context, args, arguments)
            limit = _limit(handler, context.remaining if context.job.options_json else None)
            if limit is None:
                return await handler.function(*args, **arguments)
            return await _within(limit, handler.function(*args, **arguments))
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
        limit = _limit(handler, context.remaining if context.job.options_json else None)
        late = loop.call_later(limit, _tell_late, context, handler, limit) if limit else None
        try:
            return await asyncio.shield(work)
        finally:
            if late is not None:
                late.cancel()


class Rejected(Exception):
    """Preflight said no: the task is not called."""

    def __init__(self, verdict: NotReady) -> None:
        super().__init__(verdict.why)
        self.verdict = verdict


def missing(job: Job, handler: Handler | None) -> tuple[str, ...]:
    """Credentials that a job needs and this process does not have."""
    wanted = list(handler.credentials) if handler is not None else []
    if job.task == HTTP_TASK and isinstance(auth := job.arguments.get("auth"), str):
        wanted.append(auth)
    names = [name.removeprefix(ENV) for name in wanted]
    return tuple(name for name in names if not os.environ.get(name))


def preflight(job: Job, handler: Handler | None, registry: Registry, now: float) -> NotReady | tuple[str, ...]:
    """The check for whoever accepts or redrives a job, perhaps where no credentials are: a refusal, or warnings."""
    adapt = handler.adapt if handler else None
    names = frozenset(name for name in ("model", "agent") if getattr(job, name) is not None)
    payload = apply(job.arguments, decode(job.changes_json), adapt, registry.count, names=names).payload
    verdict = check(job, payload, Conditions(registry.policy_for(job), registry.fleet, adapt, registry.count), now)
    return verdict if isinstance(verdict, NotReady) else verdict.warnings


def _inspected(handler: Handler, value: object, job: Job) -> Failure | None:
    """A returned value that says that it failed."""
    policy = handler.result_policy
    if policy is True:
        return soft(value)
    if policy is False:
        return None
    try:
        said = policy(value)
    except Exception as error:  # noqa: BLE001 - the task has returned: its own result counts
        log.warning("job %s (%s): its result_policy failed: %r", job.short_id, job.task, error)
        return None
    return soft({"error": said} if isinstance(said, str) else said) if said else None


def _limit(handler: Handler, remaining: Budget | None) -> float | None:
    """The task's timeout, or what is left of the job's seconds."""
    limits = [limit for limit in (handler.timeout, remaining.seconds if remaining else None) if limit is not None]
    return min(limits, default=None)


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


def _tell_late(context: BlockingContext, handler: Handler, limit: float) -> None:
    context._cancelled = True
    log.warning(
        "job %s (%s) still runs after its timeout of %g s; a thread cannot be stopped, it was told by ctx.cancelled",
        context.job.short_id, handler.name, limit,
    )  # fmt: skip
