"""One attempt, as a list of verbs: prepare → may it run? → perform → inspect → settle. One commit at the end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from redrive.core.commit import commit
from redrive.core.documents import ALONE
from redrive.core.job import Ending, Failure, Job
from redrive.core.lifecycle import Transition
from redrive.core.store import Commit, Guard, Lease, Store
from redrive.engine.breakers import Breakers
from redrive.engine.bus import Bus
from redrive.engine.clock import Clock
from redrive.engine.consents import Consents
from redrive.engine.context import NOBODY, BlockingContext, Context, LeaseLost, _current, session_of
from redrive.engine.inputs import Inputs, Rejected
from redrive.engine.interrupts import ends_a_process
from redrive.engine.probes import down, lacking
from redrive.engine.registry import Handler, Registry
from redrive.engine.settle import Settlement, signal_in
from redrive.engine.threads import NOT_RUN, Raised, Threads, finished
from redrive.engine.tracing import Tracer, tracer
from redrive.engine.verify import Verifier
from redrive.engine.worker_registry import was_stopping
from redrive.engine.workflow_steps import Workflows, is_step
from redrive.errors import StoreError
from redrive.failures.capture import bare, capture, signalled_itself, soft, timed_out
from redrive.retries.strategy import CRASHES_BEFORE_ALONE

log = logging.getLogger("redrive.attempt")
"""Documents that say which run of a job had its process to itself."""
STOP_SECONDS: Final = 1.0
"""How long a task may clean up after its timeout before it is said that it goes on."""
UNMARKED: Final = "the store did not confirm that it was to run alone"


class Attempts:
    """Runs jobs and says what must be committed for each. Knows nothing of slots, claims or leases."""

    def __init__(
        self, store: Store, registry: Registry, clock: Clock, threads: Threads, bus: Bus | None = None
    ) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._threads = threads
        self.breakers = Breakers(store, clock, bus)
        self.settlement = Settlement(store, registry, clock, self.breakers, Verifier(store, registry))
        self._inputs = Inputs(store, registry, clock)
        self._consents = Consents(store, clock)
        self.workflows = Workflows(store, clock)
        self._tracer = tracer()
        self.stopping: Callable[[], bool] = lambda: False
        """Whoever runs these attempts was told to stop: no failure of those that run."""
        self.dying: Callable[[], bool] = lambda: False
        """The event loop ends under them."""

    def context_for(self, job: Job) -> Context | BlockingContext:
        handler = self._registry.handlers[job.task]
        kind = Context if handler.is_async else BlockingContext
        return kind(job, self._store, self._clock, idempotent=handler.idempotent)

    def run(self, job: Job, context: Context | BlockingContext) -> Coroutine[Any, Any, Commit | None]:
        """One attempt from start to end. None means that the job is no longer ours to settle."""
        if self._tracer is not None:
            return self._run_traced(job, context, self._tracer)
        return self._run_step(job, context) if is_step(job) else self._run(job, context)

    async def _run_traced(self, job: Job, context: Context | BlockingContext, tracer: Tracer) -> Commit | None:
        with tracer.attempt(job, somebody_waits=context._sitting is not None) as span:
            commit = await (self._run_step(job, context) if is_step(job) else self._run(job, context))
            tracer.settled(span, commit)
            return commit

    async def _run_step(self, job: Job, context: Context | BlockingContext) -> Commit | None:
        """The dependents of a step move with it."""
        commit = await self._run(job, context)
        try:
            return await self.workflows.accompanied(commit) if commit is not None else None
        except StoreError as error:  # the step's own end counts; its dependents are looked after from time to time
            log.warning("job %s (%s): its dependents wait for the scheduler: %s", job.short_id, job.task, error)
            return commit

    async def _run(self, job: Job, context: Context | BlockingContext) -> Commit | None:
        handler = self._registry.handlers[job.task]
        try:
            if is_step(job):
                entered = await self.workflows.enter(job, context)
                if isinstance(entered, Transition):
                    return Commit((entered,))
                job = entered
            arguments = self._inputs.quick(job, handler)
            if arguments is None:
                arguments = await self._inputs.prepare(job, handler, context)
            if handler.guarded or not self.breakers.calm:
                stopped = await self._stopped(job, handler, context)
                if stopped is not None:
                    return stopped
            value = await self._perform(handler, context, arguments)
        except Rejected as rejected:
            return Commit((self.settlement.rejected(job, rejected.verdict),))
        except BaseException as raised:  # noqa: BLE001 - this is the place where failures are kept
            error = raised.error if isinstance(raised, Raised) else raised
            if self._is_the_persons(error, context):
                raise error from None
            return await self._ended(error, job, handler, context)
        return await self._returned(value, job, handler, context)

    async def _returned(
        self, value: object, job: Job, handler: Handler, context: Context | BlockingContext
    ) -> Commit | None:
        """What an attempt that returned has said. A value that ends whoever looks at it is its task's failure."""
        try:
            failure = inspected(handler, value, job.id)
            if failure is None:
                return await self.settlement.succeeded(job, handler, context, value)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # raised by the value's own methods, or by a result_policy
            if self._is_the_persons(error, context):
                raise
            return await self._ended(error, job, handler, context)
        return await self._ended(failure, job, handler, context)

    async def _stopped(self, job: Job, handler: Handler, context: Context | BlockingContext) -> Commit | None:
        """Why it does not run now, if so: no consent, something is missing or down, or its effects landed already."""
        held = await self._consents.gate(context.job, handler)  # as people see it: outputs of other steps named
        if held is not None:
            return Commit((held,))
        if handler.requires:
            missing, context._recovered = await lacking(handler.requires, self._clock)
            if missing:
                landed = await self.settlement.landed(job, handler, context)
                if landed is not None:
                    return landed
                raise down(missing, self._clock)
        parked = await self.breakers.gate(job, handler)
        if parked is not None:
            return Commit((parked,))
        if handler.verifiable and job.history:
            return await self.settlement.looked(job, handler, context)
        return None

    async def _ended(
        self, how: BaseException | Failure, job: Job, handler: Handler, context: Context | BlockingContext
    ) -> Commit | None:
        """There is no path to silence: whatever goes wrong while a failure is settled, the job is settled."""
        try:
            if isinstance(how, Failure):
                return await self.settlement.failed(job, handler, context, how)
            return await self._ended_by(how, job, handler, context)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self._is_the_persons(error, context):
                raise
            log.critical("job %s (%s): settling failed", job.short_id, job.task, exc_info=True)
            failure = how if isinstance(how, Failure) else self._captured(how, context)
            return Commit((self.settlement.unsettled(job, handler, context, failure, error),))

    def _captured(self, error: BaseException, context: Context | BlockingContext) -> Failure:
        """What ended the attempt; an exception that interrupts whoever reads it is known by its name."""
        context._error = error
        try:
            return capture(error, now=self._clock.now())
        except KeyboardInterrupt as odd:
            if self._is_the_persons(odd, context):
                raise
            return bare(error)

    async def _ended_by(
        self, error: BaseException, job: Job, handler: Handler, context: Context | BlockingContext
    ) -> Commit | None:
        """What an attempt that did not return has said."""
        if isinstance(error, LeaseLost) or (isinstance(error, asyncio.CancelledError) and context._cancelled):
            return None
        if self._is_stopped(error, context):
            if context._signalled is not None:
                return await self.settlement.failed(job, handler, context, signalled_itself(context._signalled))
            return Commit((self.settlement.interrupted(job, sole=context._sole),))
        if isinstance(error, asyncio.CancelledError) and self._loop_ends(context):
            return await self._ended_with_the_loop(error, job, handler, context)
        if isinstance(error, _TimedOut):
            return await self.settlement.failed(job, handler, context, timed_out(error.seconds))
        signal = signal_in(error)
        if signal is not None:
            return await self.settlement.signalled(job, handler, context, signal)
        failure, witness = self._captured(error, context), getattr(error, "witness", None)
        asks_first = error is context._open_error
        return await self.settlement.failed(job, handler, context, failure, witness=witness, asks_first=asks_first)

    def _is_the_persons(self, error: BaseException, context: Context | BlockingContext) -> bool:
        """Whether it must reach the person's program, because a signal and not the task is behind it."""
        told = context._interrupts is not None and context._interrupts.explain(error)
        return told and ends_a_process(error) and context._signalled is None and not self.stopping()

    def _is_stopped(self, error: BaseException, context: Context | BlockingContext) -> bool:
        """Whether the attempt ends because its worker does."""
        ends = isinstance(error, asyncio.CancelledError) or ends_a_process(error)
        return ends and (context._releasing or self.stopping())

    def _loop_ends(self, context: Context | BlockingContext) -> bool:
        """Whether not only this attempt was cancelled, but also what runs it or waits for it."""
        waiting = context._awaited_by
        return self.dying() or (waiting is not None and waiting.cancelling() > 0)

    async def _ended_with_the_loop(
        self, error: BaseException, job: Job, handler: Handler, context: Context | BlockingContext
    ) -> Commit:
        """Everything on the event loop was cancelled. If no signal did that, a task did; alone, this one has."""
        told = context._interrupts is not None and context._interrupts.told
        if told or context._awaited_by is not None:
            return Commit((self.settlement.interrupted(job),))
        if job.crashes >= CRASHES_BEFORE_ALONE:
            return await self.settlement.failed(job, handler, context, self._captured(error, context))
        return Commit((self.settle_lost(job, alone=False),))

    def give_back(self, job: Job, context: Context | BlockingContext) -> Transition:
        """The end of an attempt that does not stop when its worker does."""
        if context._signalled is not None:
            return self.settle_lost(job, alone=job.crashes >= CRASHES_BEFORE_ALONE)
        return self.settlement.interrupted(job, sole=context._sole)

    async def lost(self, job: Job, ending: Ending = "lapsed") -> Transition:
        """A lapsed lease takes the same way as an exception. Whether it was alone, its worker had written before."""
        if ending != "frozen" and await was_stopping(self._store, job.worker):
            ending = "stopped"
        kept = await ALONE.get(self._store, f"{job.id}/")
        return self.settle_lost(job, alone=kept is not None and kept.value == job.run, ending=ending)

    def trace_lost(self, move: Transition) -> None:
        """What a dead worker cannot tell any more, where somebody listens."""
        if self._tracer is not None:
            self._tracer.lost(move)

    def settle_lost(self, job: Job, *, alone: bool, ending: Ending = "died") -> Transition:
        try:
            return self.settlement.lost(job, self._registry.handlers.get(job.task), alone=alone, ending=ending)
        except Exception as error:  # noqa: BLE001 - it would keep all others that are lost from being found
            return self.settlement.broken(job, error)

    async def alone(self, job: Job) -> bool:
        """Marks, before it starts, a job that has the process to itself; False where the lease is lost."""
        mark = ALONE.put(f"{job.id}/", job.run)
        guard, what = Guard(Lease(job.id, job.token or "")), f"job {job.short_id} was marked to run alone"
        return await commit(self._store, puts=[mark], guards=[guard], what=what) is not None

    # -- perform

    async def _perform(self, handler: Handler, context: Context | BlockingContext, arguments: dict[str, Any]) -> Any:
        args = (context,) if handler.wants_context else ()
        token, session = _current.set(context), session_of.set(context.job.session_id or NOBODY)
        try:
            if isinstance(context, BlockingContext):
                return await self._in_thread(handler, context, args, arguments)
            limit = self._limit(handler, context)
            if limit is not None:
                return await _within(limit, _to_end(handler.function(*args, **arguments)), context)
            value = await handler.function(*args, **arguments)
            return await finished(value) if isinstance(value, NOT_RUN) else value
        finally:
            _current.reset(token)
            session_of.reset(session)

    def _limit(self, handler: Handler, context: Context | BlockingContext) -> float | None:
        """The timeout of the task, else of the queue; or what is left of the job's seconds."""
        timeout, job = handler.timeout, context.job
        if timeout is None and (queue := self._registry.queues.get(job.queue)) is not None:
            timeout = queue.timeout
        remaining = context.remaining if job.options_json else None
        if remaining is None:
            return timeout
        return min((limit for limit in (timeout, remaining.seconds) if limit is not None), default=None)

    async def _in_thread(
        self, handler: Handler, context: BlockingContext, args: tuple[Any, ...], arguments: dict[str, Any]
    ) -> Any:
        """A thread cannot be killed: at its timeout it is told (`ctx.cancelled`), and what it returns still counts."""
        loop = asyncio.get_running_loop()
        context._loop = loop
        call = contextvars.copy_context().run
        work = self._threads.run(lambda: call(handler.function, *args, **arguments))
        limit = self._limit(handler, context)
        late = loop.call_later(limit, _tell_late, context, handler, limit) if limit else None
        try:
            value = await asyncio.shield(work)
        finally:
            if late is not None:
                late.cancel()
            context._overran = limit if context._late else None
        if not isinstance(value, NOT_RUN):
            return value
        return await (finished(value) if limit is None else _within(limit, finished(value), context))


async def _to_end(work: Any) -> Any:
    return await finished(await work)


def inspected(handler: Handler, value: object, whose: str) -> Failure | None:
    """A returned value that says that it failed."""
    policy = handler.result_policy
    if policy is True:
        return soft(value)
    if policy is False:
        return None
    try:
        said = policy(value)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the task has returned: its own result counts
        log.warning("%s: its result_policy failed: %r", whose, error)
        return None
    return soft({"error": said} if isinstance(said, str) else said) if said else None


class _TimedOut(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s")
        self.seconds = seconds


async def _within(seconds: float, work: Any, context: Context | BlockingContext) -> Any:
    """Our own timeout, told apart from a TimeoutError that the task itself raised."""
    limit = asyncio.timeout(seconds)
    late = asyncio.get_running_loop().call_later(seconds + STOP_SECONDS, _tell_unstopped, context, seconds)
    try:
        async with limit:
            value = await work
    except TimeoutError:
        if limit.expired():
            raise _TimedOut(seconds) from None
        raise
    except Exception:
        context._overran = seconds if limit.expired() else None
        raise
    finally:
        late.cancel()
    if limit.expired():
        context._overran = seconds
        _tell_unstopped(context, seconds)
    return value


def _tell_unstopped(context: Context | BlockingContext, limit: float) -> None:
    if context._late:
        return
    context._late = True
    log.warning(
        "job %s (%s) goes on after its timeout of %g s: it was cancelled and caught that; let CancelledError pass",
        context.job.short_id, context.job.task, limit,
    )  # fmt: skip


def _tell_late(context: BlockingContext, handler: Handler, limit: float) -> None:
    context._late = True
    log.warning(
        "job %s (%s) still runs after its timeout of %g s; a thread cannot be stopped, it was told by ctx.cancelled",
        context.job.short_id, handler.name, limit,
    )  # fmt: skip
