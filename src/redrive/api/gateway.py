"""Runs a task for an agent and answers how it stands. An operation is a job."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from redrive.core import lifecycle
from redrive.core.checks import check_name, check_words
from redrive.core.job import Job, Json, State, iso
from redrive.core.lifecycle import Transition
from redrive.core.outcome import Outcome, outcome_of, shorten_result, unknown_outcome
from redrive.core.payload import check_kept, encode, encode_result
from redrive.core.policy import REASONS
from redrive.core.store import Filter, Store
from redrive.engine.attempt import inspect_result
from redrive.engine.context import session_of
from redrive.engine.inline_runs import InlineRunner, Interrupted
from redrive.engine.interrupts import Interrupts, ends_a_process, on_users_thread
from redrive.engine.probes import find_missing, make_resource_down
from redrive.engine.queue_pauses import read_pause
from redrive.engine.registry import Handler
from redrive.engine.threads import CarriedError, ask, finish
from redrive.errors import IllegalMove, InvalidOption, JobNotReady, StoreError
from redrive.failures.capture import capture
from redrive.jobs.core import find_job, move_job
from redrive.jobs.enqueuer import Enqueuer, SpoolUnusable, wants_back
from redrive.jobs.job_options import Prepared
from redrive.jobs.publishing_store import add_notice
from redrive.jobs.tasks import Seconds, Task, read_seconds
from redrive.jobs.wait_for_job import read_result

if TYPE_CHECKING:
    from redrive.api.workers import Workers
    from redrive.jobs.core import Core
    from redrive.notices.repeats import RepeatedActions

log = logging.getLogger("redrive.gateway")
T = TypeVar("T")
WHO: Final = "gateway"
RECENT: Final = 20
LOOK: Final = 100
"""How many jobs one look for the next due job reads."""
LONG_DUE: Final = 30 * 86_400.0


class Gateway:
    """Carries out `rd.call`, `rd.submit` and `rd.retry`, and reads the status of operations."""

    def __init__(self, core: Core, enqueuer: Enqueuer) -> None:
        self._core = core
        self._enqueuer = enqueuer
        self._spots: dict[asyncio.AbstractEventLoop, InlineRunner] = {}
        self._late: dict[asyncio.AbstractEventLoop, set[asyncio.Task[Any]]] = {}
        """Calls that go on after their callers stopped waiting, by the event loop they run on."""

    def _spot(self) -> InlineRunner:
        """Return what runs jobs in this event loop on the present store."""
        core, loop = self._core, asyncio.get_running_loop()
        spot = self._spots.get(loop)
        if spot is None or spot.store is not core.store:
            if spot is not None:
                self._retire(spot)
            spot = self._spots[loop] = InlineRunner(core.store, core.registry, core.clock, "call", bus=core.bus)
        return spot

    def _retire(self, spot: InlineRunner) -> None:
        """Stop one whose store was closed elsewhere, once the calls that it runs have ended."""
        others = self._late.get(asyncio.get_running_loop(), set()) - {asyncio.current_task()}
        self._go_on(_stop_after(others, spot))

    def _go_on(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that may go on after its caller stopped waiting."""
        task, late = asyncio.create_task(work), self._late.setdefault(asyncio.get_running_loop(), set())
        late.add(task)
        task.add_done_callback(late.discard)
        return task

    def cancelled(self, job_id: str) -> None:
        """Stop an operation that was cancelled in this process, without waiting for the heartbeat."""
        for loop, spot in list(self._spots.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(spot.cancelled, job_id)

    async def close(self) -> None:
        """Wait a while for calls whose callers stopped waiting; then give their jobs back."""
        here = asyncio.get_running_loop()
        late = self._late.pop(here, set())
        for loop in [loop for loop in list(self._late) if loop.is_closed()]:
            self._late.pop(loop, None)
        if late:
            _, pending = await asyncio.wait(late, timeout=self._core.settings.grace)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        for loop, spot in list(self._spots.items()):
            if loop is here or loop.is_closed():
                del self._spots[loop]
                await spot.stop()

    async def call(
        self, task: Task[Any, Any] | str, params: Mapping[str, Json], *, timeout: Seconds | None, **options: Any
    ) -> Outcome:
        """Run it now and here; what fails and may heal is queued, and the answer says so."""
        name = task.name if isinstance(task, Task) else check_name("task", task)
        if late := options.keys() & {"delay", "run_at"}:
            raise InvalidOption(field=min(late), problem="a call runs now; submit it, or enqueue it, for later")
        limit = read_seconds(timeout, "timeout") if timeout is not None else None
        handler = self._core.registry.handlers.get(name)
        plan = self._enqueuer.plan(name, self._enqueuer.add_key(name, params, options), reason="retry")
        if handler is not None and handler.read_only:
            return await self._read(handler, params, limit, plan.fields.get("session_id"))
        prepared = self._enqueuer.prepare(plan, params)
        stopped = await self._why_paused(prepared.job.queue)
        if handler is not None and stopped is None:
            prepared = replace(prepared, job=self._reserve(prepared.job))
        job, duplicate, spooled = await self._accept(prepared)
        if spooled:
            return outcome_of(job)
        if duplicate and wants_back(prepared, job):
            return await self.retry(job.id, timeout=timeout)
        if duplicate or handler is None:
            return await self.outcome(job)
        if stopped is not None:
            then = f"Ask for the status of operation {job.short_id}, do not call it again."
            return replace(await self.outcome(job), message=f"Queued, not done: {stopped}. {then}")
        return await self._wait(self._run(job), job, limit)

    async def _accept(self, prepared: Prepared) -> tuple[Job, bool, bool]:
        """Accept an operation. Where neither store nor spool can, the store's error is raised."""
        try:
            return await self._enqueuer.insert_one(prepared)
        except SpoolUnusable as unusable:
            raise unusable.store from unusable

    async def _why_paused(self, queue: str) -> str | None:
        """Say why nothing starts in this queue now. A store that does not answer fails at the next write anyway."""
        try:
            switch = await read_pause(self._core.store, queue)
        except (StoreError, OSError) as error:
            log.warning("the store did not say whether the queue %s is paused: %s", queue, error)
            return None
        if switch is None:
            return None
        return f"the queue {queue} is paused{f' ({switch.why})' if switch.why else ''}, and goes on when it is resumed"

    def _reserve(self, job: Job) -> Job:
        """Keep workers from a job for as long as its lease; if this process dies first, a worker takes it then."""
        lease = self._core.registry.policy_for(job).lease or 90.0
        return replace(job, run_at=self._core.clock.now() + lease)

    async def _run(self, job: Job) -> Outcome:
        """Run an accepted job. Whatever the store does now, the answer names the job, so that it is not made twice."""
        try:
            ran = await self._spot().run(job)
            return await self.outcome(ran.job, recovered=ran.recovered)
        except (StoreError, OSError) as error:
            log.warning("job %s (%s): its caller cannot be told how it stands: %s", job.short_id, job.task, error)
            return unknown_outcome(job.id, error)

    async def _wait(self, work: Coroutine[Any, Any, Outcome], job: Job, limit: float | None) -> Outcome:
        """Wait for the answer; after `limit` seconds answer that the job goes on."""
        going = self._go_on(work)
        try:
            done, _ = await asyncio.wait([going], timeout=limit)
        except asyncio.CancelledError:
            if going.done() or not self._spot().leave(job.id):
                self._go_on(self._tell_session(going, job))
            raise
        if done or not self._spot().leave(job.id):
            return await _answer(going)
        return outcome_of(replace(job, state=State.running))

    async def _tell_session(self, going: asyncio.Task[Outcome], job: Job) -> None:
        """Write the notice that the answer would have replaced: the caller left while the end was written."""
        await asyncio.wait([going])
        if going.cancelled() or going.exception() is not None or going.result().status not in ("ok", "failed"):
            return  # the job did not end here: the move that ends it tells the session
        try:
            ended = await find_job(self._core.store, job.id)
            if ended.state in (State.done, State.dead):
                how = "succeeded" if ended.state is State.done else "buried"
                move = Transition(how, ended, ended.state, ended.updated_at, {})
                await add_notice(self._core.store, self._core.bus, move)
        except (StoreError, OSError) as error:
            log.warning("job %s (%s): its session cannot be told of its end: %s", job.short_id, job.task, error)

    async def _read(
        self, handler: Handler, params: Mapping[str, Json], limit: float | None, session: str | None
    ) -> Outcome:
        """Run a task that changes nothing, without storing a job."""
        encoded = encode(dict(params), limit=self._core.settings.payload_limit)
        check_kept(params, encoded, handler.signature)
        arguments = handler.signature.arguments(encoded.text)
        token = session_of.set(session)
        back, value, interrupts = False, None, Interrupts(elsewhere=handler.is_async and on_users_thread())
        interrupts.join()
        try:
            async with asyncio.timeout(limit if limit is not None else handler.timeout):
                missing, back = await find_missing(handler.requires, self._core.clock)
                if missing:
                    raise make_resource_down(missing, self._core.clock)
                value = await _call(handler, arguments)
            failure = inspect_result(handler, value, handler.name)
        except BaseException as error:
            if _is_the_callers(error, interrupts):
                raise
            failure = capture(error.error if isinstance(error, CarriedError) else error, now=self._core.clock.now())
        finally:
            interrupts.leave()
            session_of.reset(token)
        if failure is not None:
            kind = self._core.registry.cause_of(failure, handler).detail
            return Outcome(
                "failed",
                message=f"It failed: {failure.summary}",
                error=failure.summary,
                error_kind=kind,
                registry_auto_recovered=back,
            )
        text, problem = encode_result(value)
        if problem:
            log.warning("%s: %s", handler.name, problem)
        shown, cut = shorten_result(msgspec.json.decode(text) if text else None, None)
        return Outcome("ok", result=shown, message="Done.", truncated=cut, registry_auto_recovered=back)

    async def submit(self, task: Task[Any, Any] | str, params: Mapping[str, Json], **options: Any) -> Outcome:
        name = task.name if isinstance(task, Task) else check_name("task", task)
        keyed = {"lease": REASONS["deferred_submit"].lease, **self._enqueuer.add_key(name, params, options)}
        prepared = self._enqueuer.prepare(self._enqueuer.plan(name, keyed, reason="deferred_submit"), params)
        job, duplicate, _ = await self._accept(prepared)
        if duplicate and wants_back(prepared, job):
            job = await self._enqueuer.bring_back(job.id, WHO, "submitted again")
        return await self.outcome(job)

    async def retry(self, operation_id: str, *, timeout: Seconds | None = None, who: str = WHO) -> Outcome:
        check_words(who, None)
        limit = read_seconds(timeout, "timeout") if timeout is not None else None
        job = await find_job(self._core.store, operation_id)
        handler = self._core.registry.handlers.get(job.task)
        if job.state in (State.done, State.discarded, State.purged, State.running):
            return await self.outcome(job)
        if handler is None:
            raise InvalidOption(field="operation_id", problem=f"the task {job.task!r} is not known here")
        if (stopped := await self._why_paused(job.queue)) is not None:
            return replace(await self.outcome(job), message=f"Not tried: {stopped}. Try again then.")
        missing, back = await find_missing(handler.requires, self._core.clock)
        if missing:
            message = f"Not tried: {make_resource_down(missing, self._core.clock)}. Try again when it is there."
            return replace(await self.outcome(job), message=message)
        try:
            job = await self._bring_back(job, who)
        except (JobNotReady, IllegalMove) as error:
            return Outcome("failed", job.id, message=str(error), error=job.error)
        if job.state is not State.waiting:
            return await self.outcome(job)
        outcome = await self._wait(self._run(job), job, limit)
        return replace(outcome, registry_auto_recovered=outcome.registry_auto_recovered or back)

    async def _bring_back(self, job: Job, who: str) -> Job:
        """Bring a job back that is dead or parked; one that waits for a person stays."""
        why = "asked to retry"
        if job.state is State.dead:
            return await self._enqueuer.bring_back(job.id, who, why)
        if job.state is State.held and job.because in ("circuit_open", "consent"):
            if job.because == "circuit_open":
                await self._spot().attempts.breakers.send(job)
            return await move_job(self._core, job.id, lambda job, now: lifecycle.unblocked(job, now, who=who, why=why))
        return job

    async def outcome(self, job: Job, *, recovered: bool = False) -> Outcome:
        """Return how an operation stands, with its result as far as it fits."""
        full = (await find_job(self._core.store, job.id)) if job.state is not State.waiting or job.run else job
        text = await read_result(self._core.store, full) if full.state is State.done else None
        return outcome_of(full, msgspec.json.decode(text) if text else None, recovered=recovered)

    async def summary(self) -> dict[str, Json]:
        """Sum up the retry queue: how many operations wait, when the next is due, and the latest ones."""
        store = self._core.store
        by_reason: dict[str, int] = {}
        recent: list[dict[str, Json]] = []
        due: list[float | None] = []
        for reason in ("retry", "deferred_submit", "scheduled_job"):
            queued = Filter(states=(State.waiting,), reason=reason)
            by_reason[reason] = (await store.count(queued)).get((), 0)
            recent += [_show(job) for job in (await store.find(queued, limit=RECENT)).jobs]
            due.append(await _next_due(store, queued, self._core.clock.now()))
        soonest = min((at for at in due if at is not None), default=None)
        return {
            "queued": sum(by_reason.values()),
            "by_reason": by_reason,
            "next_retry_at": iso(soonest),
            "recent": recent,
        }


async def _stop_after(running: Collection[asyncio.Task[Any]], spot: InlineRunner) -> None:
    try:
        if running:
            await asyncio.wait(running)
    finally:
        await spot.stop()


async def _next_due(store: Store, queued: Filter, now: float) -> float | None:
    """Finds when the first of these jobs is due, to the second, by some twenty looks at a few jobs each."""

    async def due_by(at: float | None) -> float | None:
        page = await store.find(replace(queued, due_at=at), limit=LOOK, oldest=True)
        return min((job.run_at for job in page.jobs), default=None)

    none_before = now - LONG_DUE
    soonest = await due_by(none_before)
    if soonest is not None:
        return soonest
    soonest = await due_by(None)
    while soonest is not None and soonest - none_before > 1.0:
        middle = (none_before + soonest) / 2
        half = await due_by(middle)
        none_before, soonest = (middle, soonest) if half is None else (none_before, half)
    return soonest


def _is_the_callers(error: BaseException, interrupts: Interrupts) -> bool:
    """Whether the caller was cancelled or interrupted, so that the task has not failed."""
    if isinstance(error, asyncio.CancelledError):
        here = asyncio.current_task()
        return here is not None and here.cancelling() > 0
    return ends_a_process(error) and interrupts.explain(error)


async def _answer(going: asyncio.Task[Outcome]) -> Outcome:
    """Waits for the answer. A person's interrupt reaches the caller as the error that it was."""
    try:
        return await going
    except Interrupted as interrupted:
        raise interrupted.error from None


async def _call(handler: Handler, arguments: dict[str, Any]) -> Any:
    """Calls a task's function; a plain function runs in a thread of its own."""
    if handler.is_async:
        return await finish(await handler.function(**arguments))
    return await ask(functools.partial(handler.function, **arguments))


def _show(job: Job) -> dict[str, Json]:
    retry = {"status": f"queued_{job.reason}", "retry_at": iso(job.run_at), "max_retries": job.allowed}
    return {**outcome_of(job).public(), **retry, "task": job.task}


class AgentMethods:
    """The methods of Redrive for agents. Every answer is observed, so that a session which repeats itself is warned."""

    core: Core
    _gateway: Gateway
    _repeats: RepeatedActions
    _workers: Workers

    async def call(
        self,
        task: Task[Any, Any] | str,
        params: Mapping[str, Json] | None = None,
        *,
        timeout: Seconds | None = None,
        **options: Any,
    ) -> Outcome:
        """Run a task now and here, and return how it stands: done, queued for a retry (which is not done), or failed.

        The operation is on disk before the task starts, unless the task is `read_only=True`. After `timeout` seconds
        the answer is the operation's id; the task goes on.
        """
        self._workers.load()
        given = {} if params is None else params
        made = self._gateway.call(task, given, timeout=timeout, **options)
        return await self._repeats.watch(made, task, given, options.get("session_id"))

    async def submit(
        self, task: Task[Any, Any] | str, params: Mapping[str, Json] | None = None, **options: Any
    ) -> Outcome:
        """Have a worker run a task later, in one attempt. The answer is an operation to ask about."""
        self._workers.load()
        given = {} if params is None else params
        made = self._gateway.submit(task, given, **options)
        return await self._repeats.watch(made, task, given, options.get("session_id"))

    async def retry(self, operation_id: str, *, timeout: Seconds | None = None, who: str = WHO) -> Outcome:
        """Try an operation once more, by its id alone, with its first input. What is done stays done."""
        self._workers.load()
        return await self._repeats.watch_retry(self._gateway.retry(operation_id, timeout=timeout, who=who))

    async def outcome(self, operation_id: str) -> Outcome:
        """Return how an operation stands, as `call` would, with its result."""
        return await self._gateway.outcome(await find_job(self.core.store, operation_id))

    async def operations(self) -> dict[str, Json]:
        """Count the operations that wait for a retry or a worker, with the next due time and the latest of them."""
        return await self._gateway.summary()
