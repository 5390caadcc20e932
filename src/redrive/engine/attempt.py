"""Runs one attempt in five steps: prepare → check may run → perform → inspect → settle. One commit at the end."""

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
from redrive.engine.attempt_state import AttemptState, running_attempt
from redrive.engine.breakers import Breakers
from redrive.engine.bus import Bus
from redrive.engine.clock import Clock
from redrive.engine.consents import Consents
from redrive.engine.context import NOBODY, LeaseLost, context_of, session_of
from redrive.engine.inputs import Inputs, Rejected
from redrive.engine.interrupts import ends_a_process
from redrive.engine.probes import find_missing, make_resource_down
from redrive.engine.registry import Handler, Registry
from redrive.engine.settle import Settlement, find_signal
from redrive.engine.threads import NOT_RUN, CarriedError, Threads, finish
from redrive.engine.tracing import Tracer, get_tracer
from redrive.engine.verify import Verifier
from redrive.engine.worker_registry import was_stopping
from redrive.engine.workflow_steps import WorkflowSteps, is_step
from redrive.errors import InvalidPayload, StoreError
from redrive.failures.capture import (
    capture,
    capture_name,
    capture_own_signal,
    capture_timeout,
    find_soft_failure,
    get_ready,
)
from redrive.failures.soft import NO_FAILURE
from redrive.http.policy import HTTP_TASK
from redrive.retries.preflight import FEW_IMAGES, surely_fits
from redrive.retries.strategy import CRASHES_BEFORE_ALONE

log = logging.getLogger("redrive.attempt")
STOP_SECONDS: Final = 1.0
"""How many seconds a task may clean up after its timeout before a warning says that the task goes on."""
UNMARKED: Final = "the store did not confirm that it was to run alone"


class AttemptRunner:
    """Runs jobs and returns the commit of each. Slots, claims and leases are the worker's part."""

    def __init__(
        self, store: Store, registry: Registry, clock: Clock, threads: Threads, bus: Bus | None = None
    ) -> None:
        get_ready()
        self._store = store
        self._registry = registry
        self._clock = clock
        self._threads = threads
        self.breakers = Breakers(store, clock, bus)
        self.settlement = Settlement(store, registry, clock, self.breakers, Verifier(store, registry))
        self._short = min(registry.short, FEW_IMAGES)
        """Characters up to which a payload passes without a look at its contents."""
        self._inputs = Inputs(store, registry, clock)
        self._consents = Consents(store, clock)
        self.workflows = WorkflowSteps(store, clock)
        self._tracer = get_tracer()
        self.stopping: Callable[[], bool] = lambda: False
        """Tells whether the runner of these attempts was told to stop: an attempt that ends then has not failed."""
        self.dying: Callable[[], bool] = lambda: False
        """Tells whether the event loop of these attempts is ending."""

    def begin(self, job: Job) -> AttemptState:
        """Make the state of a new attempt."""
        return AttemptState(job, self._registry.handlers[job.task], self._store, self._clock)

    def run(self, state: AttemptState) -> Coroutine[Any, Any, Commit | None]:
        """Runs one attempt from start to end; returns None where this worker may no longer settle the job."""
        if self._tracer is not None:
            return self._run_traced(state, self._tracer)
        job = state.job
        return self._run_step(state) if job.options_json is not None and is_step(job) else self._run(state)

    async def _run_traced(self, state: AttemptState, tracer: Tracer) -> Commit | None:
        with tracer.attempt(state.job, somebody_waits=state.sitting is not None) as span:
            commit = await (self._run_step(state) if is_step(state.job) else self._run(state))
            tracer.settled(span, commit)
            return commit

    async def _run_step(self, state: AttemptState) -> Commit | None:
        """Run a step of a workflow; its dependents move in the same commit."""
        commit = await self._run(state)
        try:
            return await self.workflows.add_companions(commit) if commit is not None else None
        except StoreError as error:  # the end of the step is committed; the scheduler moves its dependents later
            job = state.job
            log.warning("job %s (%s): its dependents wait for the scheduler: %s", job.short_id, job.task, error)
            return commit

    async def _run(self, state: AttemptState) -> Commit | None:
        handler = state.handler
        try:
            if state.job.options_json is not None and is_step(state.job):
                stopped = await self.workflows.enter(state)
                if stopped is not None:
                    return Commit((stopped,))
            arguments = self._read_plain_input(state.job, handler)
            if arguments is None:
                arguments = await self._inputs.prepare(state)
            if handler.guarded or not self.breakers.calm:
                commit = await self._check_may_run(state)
                if commit is not None:
                    return commit
            value = await self._perform(state, arguments)
        except Rejected as rejected:
            return Commit((self.settlement.rejected(state.job, rejected.verdict),))
        except BaseException as raised:  # noqa: BLE001 - failures are recorded here
            error = raised.error if isinstance(raised, CarriedError) else raised
            if self._is_the_persons(error, state):
                raise error from None
            return await self._settle(error, state)
        return await self._settle_returned(value, state)

    def _read_plain_input(self, job: Job, handler: Handler) -> dict[str, Any] | None:
        """Reads the arguments of a job that needs no preparation, as most jobs; returns None for the others."""
        text = job.payload
        if text is None or job.changes_json is not None or handler.credentials or job.task == HTTP_TASK:
            return None
        if job.first_failed_at is not None and self._registry.policy_for(job).max_age is not None:
            return None
        if '"$blob"' in text or (len(text) > self._short and not surely_fits(text, self._registry.short)):
            return None
        try:
            return handler.signature.arguments(text)
        except InvalidPayload:
            return None  # `prepare` reports what is wrong with the payload

    async def _settle_returned(self, value: object, state: AttemptState) -> Commit | None:
        """Settle an attempt that returned. A value whose own methods end a process is a failure of its task."""
        try:
            plain = state.handler.result_policy is True and type(value) in NO_FAILURE
            failure = None if plain else inspect_result(state.handler, value, state.job.id)
            if failure is None:
                return await self.settlement.succeeded(state, value)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # raised by the value's own methods, or by a result_policy
            if self._is_the_persons(error, state):
                raise
            return await self._settle(error, state)
        return await self._settle(failure, state)

    async def _check_may_run(self, state: AttemptState) -> Commit | None:
        """Tells why the job cannot run now: no consent, a resource is missing or down, or its effects have landed."""
        job, handler = state.job, state.handler
        held = await self._consents.gate(state.stored or job, handler)  # stored: other steps' outputs are only named
        if held is not None:
            return Commit((held,))
        if handler.requires:
            missing, state.recovered = await find_missing(handler.requires, self._clock)
            if missing:
                landed = await self.settlement.landed(state)
                if landed is not None:
                    return landed
                raise make_resource_down(missing, self._clock)
        parked = await self.breakers.gate(job, handler)
        if parked is not None:
            return Commit((parked,))
        if handler.verifiable and job.history:
            return await self.settlement.looked(state)
        return None

    async def _settle(self, ending: BaseException | Failure, state: AttemptState) -> Commit | None:
        """Settles an attempt that failed. If settling raises, a plainer move settles the job: no failure is lost."""
        try:
            if isinstance(ending, Failure):
                return await self.settlement.failed(state, ending)
            return await self._settle_raised(ending, state)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self._is_the_persons(error, state):
                raise
            log.critical("job %s (%s): settling failed", state.job.short_id, state.job.task, exc_info=True)
            failure = ending if isinstance(ending, Failure) else self._capture(ending, state)
            return Commit((self.settlement.unsettled(state, failure, error),))

    def _capture(self, error: BaseException, state: AttemptState) -> Failure:
        """Captures what ended the attempt; an exception that interrupts the code reading it is kept by name only."""
        state.error = error
        try:
            return capture(error, now=self._clock.now())
        except KeyboardInterrupt as odd:
            if self._is_the_persons(odd, state):
                raise
            return capture_name(error)

    async def _settle_raised(self, error: BaseException, state: AttemptState) -> Commit | None:
        """Turn the exception that ended an attempt into a commit."""
        settlement = self.settlement
        if isinstance(error, LeaseLost) or (isinstance(error, asyncio.CancelledError) and state.cancelled):
            return None
        if self._is_stopped(error, state):
            if state.signalled is not None:
                return await settlement.failed(state, capture_own_signal(state.signalled))
            return Commit((settlement.interrupted(state.job, sole=state.sole),))
        if isinstance(error, asyncio.CancelledError) and self._loop_ends(state):
            return await self._settle_with_the_loop(error, state)
        if isinstance(error, _TimedOut):
            return await settlement.failed(state, capture_timeout(error.seconds))
        signal = find_signal(error)
        if signal is not None:
            return await settlement.signalled(state, signal)
        failure, witness = self._capture(error, state), getattr(error, "witness", None)
        return await settlement.failed(state, failure, witness=witness, asks_first=error is state.open_error)

    def _is_the_persons(self, error: BaseException, state: AttemptState) -> bool:
        """Tells whether an error must reach the user's program, because a signal and not the task caused the error."""
        is_signal = state.is_signal(error) and ends_a_process(error)
        return is_signal and state.signalled is None and not self.stopping()

    def _is_stopped(self, error: BaseException, state: AttemptState) -> bool:
        """Tells whether the attempt ends because its worker stops."""
        stops = state.releasing or self.stopping()
        return stops and (isinstance(error, asyncio.CancelledError) or ends_a_process(error))

    def _loop_ends(self, state: AttemptState) -> bool:
        """Tells whether the event loop ends or the caller was cancelled too, and not only this attempt."""
        waiting = state.awaited_by
        return self.dying() or (waiting is not None and waiting.cancelling() > 0)

    async def _settle_with_the_loop(self, error: asyncio.CancelledError, state: AttemptState) -> Commit:
        """Settles an attempt whose loop was cancelled. Without a signal, a task did that: this one, if it ran alone."""
        job = state.job
        if state.is_signal(error) or state.awaited_by is not None:
            return Commit((self.settlement.interrupted(job),))
        if job.crashes >= CRASHES_BEFORE_ALONE:
            return await self.settlement.failed(state, self._capture(error, state))
        return Commit((self.settle_lost(job, alone=False),))

    def give_back(self, state: AttemptState) -> Transition:
        """Ends an attempt that does not stop when its worker stops."""
        job = state.job
        if state.signalled is not None:
            return self.settle_lost(job, alone=job.crashes >= CRASHES_BEFORE_ALONE)
        return self.settlement.interrupted(job, sole=state.sole)

    async def lost(self, job: Job, ending: Ending = "lapsed") -> Transition:
        """Settles a job whose lease lapsed, as an exception would. The ALONE document tells whether it ran alone."""
        if ending != "frozen" and await was_stopping(self._store, job.worker):
            ending = "stopped"
        kept = await ALONE.get(self._store, f"{job.id}/")
        return self.settle_lost(job, alone=kept is not None and kept.value == job.run, ending=ending)

    def trace_lost(self, move: Transition) -> None:
        """Traces the move of a lost job, which its dead worker cannot trace; does nothing without a tracer."""
        if self._tracer is not None:
            self._tracer.lost(move)

    def settle_lost(self, job: Job, *, alone: bool, ending: Ending = "died") -> Transition:
        try:
            return self.settlement.lost(job, self._registry.handlers.get(job.task), alone=alone, ending=ending)
        except Exception as error:  # noqa: BLE001 - raising would keep the other lost jobs from being found
            return self.settlement.broken(job, error)

    async def alone(self, job: Job) -> bool:
        """Marks a job that will run alone in the process, before the job starts; False where the lease is lost."""
        mark = ALONE.put(f"{job.id}/", job.run)
        guard, what = Guard(Lease(job.id, job.token or "")), f"job {job.short_id} was marked to run alone"
        return await commit(self._store, puts=[mark], guards=[guard], what=what) is not None

    # -- perform

    async def _perform(self, state: AttemptState, arguments: dict[str, Any]) -> Any:
        handler = state.handler
        token, session = running_attempt.set(state), session_of.set(state.job.session_id or NOBODY)
        try:
            args = (context_of(state),) if handler.wants_context else ()
            if not handler.is_async:
                return await self._in_thread(state, args, arguments)
            limited = state.job.options_json is not None or state.job.queue in self._registry.queues
            limit = self._limit(state) if limited else handler.timeout
            if limit is not None:
                return await _within(limit, _to_end(handler.function(*args, **arguments)), state)
            value = await handler.function(*args, **arguments)
            return await finish(value) if isinstance(value, NOT_RUN) else value
        finally:
            running_attempt.reset(token)
            session_of.reset(session)
            state.context = None  # breaks the cycle of state and context, which only the garbage collector would free

    def _limit(self, state: AttemptState) -> float | None:
        """Finds the timeout of the task, else of the queue, cut to the seconds left in the job's budget."""
        timeout, job = state.handler.timeout, state.job
        if timeout is None and (queue := self._registry.queues.get(job.queue)) is not None:
            timeout = queue.timeout
        remaining = state.budget_left() if job.options_json else None
        if remaining is None:
            return timeout
        return min((limit for limit in (timeout, remaining.seconds) if limit is not None), default=None)

    async def _in_thread(self, state: AttemptState, args: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        """Runs a function in a thread, not killable: `ctx.cancelled` tells of the timeout, the result still counts."""
        state.loop = loop = asyncio.get_running_loop()
        call, function = contextvars.copy_context().run, state.handler.function
        work = self._threads.run(lambda: call(function, *args, **arguments))
        limit = self._limit(state)
        late = loop.call_later(limit, _tell_late, state, limit) if limit else None
        try:
            value = await asyncio.shield(work)
        finally:
            if late is not None:
                late.cancel()
            state.overran = limit if state.late else None
        if not isinstance(value, NOT_RUN):
            return value
        return await (finish(value) if limit is None else _within(limit, finish(value), state))


async def _to_end(work: Any) -> Any:
    return await finish(await work)


def inspect_result(handler: Handler, value: object, whose: str) -> Failure | None:
    """Returns the failure that a returned value reports; None where the value reports none."""
    policy = handler.result_policy
    if policy is True:
        return find_soft_failure(value)
    if policy is False:
        return None
    try:
        said = policy(value)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the task returned, so its result counts
        log.warning("%s: its result_policy failed: %r", whose, error)
        return None
    return find_soft_failure({"error": said} if isinstance(said, str) else said) if said else None


class _TimedOut(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s")
        self.seconds = seconds


async def _within(seconds: float, work: Any, state: AttemptState) -> Any:
    """Limits work by a timeout, which raises _TimedOut: a TimeoutError is one that the task itself raised."""
    limit = asyncio.timeout(seconds)
    late = asyncio.get_running_loop().call_later(seconds + STOP_SECONDS, _tell_unstopped, state, seconds)
    try:
        async with limit:
            value = await work
    except TimeoutError:
        if limit.expired():
            raise _TimedOut(seconds) from None
        raise
    except Exception:
        state.overran = seconds if limit.expired() else None
        raise
    finally:
        late.cancel()
    if limit.expired():
        state.overran = seconds
        _tell_unstopped(state, seconds)
    return value


def _tell_unstopped(state: AttemptState, limit: float) -> None:
    if state.late:
        return
    state.late = True
    why = "it was cancelled and caught that; let CancelledError pass"
    log.warning("job %s (%s) goes on after its timeout of %g s: %s", state.job.short_id, state.job.task, limit, why)


def _tell_late(state: AttemptState, limit: float) -> None:
    state.late = True
    why = "a thread cannot be stopped, it was told by ctx.cancelled"
    log.warning("job %s (%s) still runs after its timeout of %g s; %s", state.job.short_id, state.job.task, limit, why)
