"""For agents: call a task and be told honestly how it stands. An operation is a job."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core import lifecycle
from redrive.core.checks import check_name, check_words
from redrive.core.job import Job, Json, State, iso
from redrive.core.lifecycle import Transition
from redrive.core.outcome import Outcome, outcome_of, shorten_result, unknown_outcome
from redrive.core.payload import check_kept, encode, encode_result
from redrive.core.policy import REASONS
from redrive.core.store import Filter, Store
from redrive.engine.attempt import inspected
from redrive.engine.context import session_of
from redrive.engine.inline_runs import Interrupted, OnTheSpot
from redrive.engine.interrupts import Interrupts, ends_a_process, on_a_persons_thread
from redrive.engine.probes import down, lacking
from redrive.engine.queue_pauses import paused
from redrive.engine.registry import Handler
from redrive.engine.threads import Raised, asked, finished
from redrive.errors import IllegalMove, InvalidOption, JobNotReady, StoreError
from redrive.failures.capture import capture
from redrive.jobs.enqueuer import Enqueuer, Prepared, SpoolUnusable, wants_back
from redrive.jobs.lookup import find_job, move_job
from redrive.jobs.publishing_store import add_notice
from redrive.jobs.tasks import Seconds, Task, read_seconds
from redrive.jobs.wait_for_job import read_result

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.notices.repeats import RepeatedActions

log = logging.getLogger("redrive.gateway")
WHO: Final = "gateway"
RECENT: Final = 20
LOOK: Final = 100
"""How many jobs one look for the next that is due reads."""
LONG_DUE: Final = 30 * 86_400.0


class Gateway:
    """`rd.call`, `rd.submit`, `rd.retry`, and the status of operations."""

    def __init__(self, core: Core, enqueuer: Enqueuer) -> None:
        self._core = core
        self._enqueuer = enqueuer
        self._spots: dict[asyncio.AbstractEventLoop, OnTheSpot] = {}
        self._late: dict[asyncio.AbstractEventLoop, set[asyncio.Task[Any]]] = {}
        """Calls that go on after their callers stopped waiting, by the event loop they run on."""

    def _spot(self) -> OnTheSpot:
        """The one of this event loop and the present store."""
        core, loop = self._core, asyncio.get_running_loop()
        spot = self._spots.get(loop)
        if spot is None or spot.store is not core.store:
            if spot is not None:
                self._retire(spot)
            spot = self._spots[loop] = OnTheSpot(core.store, core.registry, core.clock, "call", bus=core.bus)
        return spot

    def _retire(self, spot: OnTheSpot) -> None:
        """Its store was closed elsewhere: it stops once what it runs has come to its end, and its heart with it."""
        late = self._late.setdefault(asyncio.get_running_loop(), set())
        late.add(stopping := asyncio.create_task(_stopped_after(late - {asyncio.current_task()}, spot)))
        stopping.add_done_callback(late.discard)

    def cancelled(self, job_id: str) -> None:
        """Somebody in this process cancelled an operation: no need to wait for the heartbeat."""
        for loop, spot in list(self._spots.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(spot.cancelled, job_id)

    async def close(self) -> None:
        """Let what goes on behind callers that stopped waiting finish, for a while; then its jobs are given back."""
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
        stopped = await self._paused(prepared.job.queue)
        if handler is not None and stopped is None:
            prepared = msgspec.structs.replace(prepared, job=self._reserved(prepared.job))
        job, duplicate, spooled = await self._accept(prepared)
        if spooled:
            return outcome_of(job)
        if duplicate and wants_back(prepared, job):
            return await self.retry(job.id, timeout=timeout)
        if duplicate or handler is None:
            return await self.outcome(job)
        if stopped is not None:
            said = f"Queued, not done: {stopped}. Ask for the status of operation {job.short_id}, do not call it again."
            return msgspec.structs.replace(await self.outcome(job), message=said)
        return await self._within(self._run(job), job, limit)

    async def _accept(self, prepared: Prepared) -> tuple[Job, bool, bool]:
        """Accepts an operation. Where neither store nor spool can, the store's error is raised."""
        try:
            return await self._enqueuer.insert_one(prepared)
        except SpoolUnusable as unusable:
            raise unusable.store from unusable

    async def _paused(self, queue: str) -> str | None:
        """Why nothing starts in this queue now, in words. A store that does not answer is told of by accepting."""
        try:
            switch = await paused(self._core.store, queue)
        except (StoreError, OSError) as error:
            log.warning("the store did not say whether the queue %s is paused: %s", queue, error)
            return None
        if switch is None:
            return None
        return f"the queue {queue} is paused{f' ({switch.why})' if switch.why else ''}, and goes on when it is resumed"

    def _reserved(self, job: Job) -> Job:
        """Ours to run: no worker takes it before we have had the time to; if we die first, one does."""
        lease = self._core.registry.policy_for(job).lease or 90.0
        return msgspec.structs.replace(job, run_at=self._core.clock.now() + lease)

    async def _run(self, job: Job) -> Outcome:
        """It is accepted: whatever the store does from here on, the answer names it, lest it be made twice."""
        try:
            ran = await self._spot().run(job)
            return await self.outcome(ran.job, recovered=ran.recovered)
        except (StoreError, OSError) as error:
            log.warning("job %s (%s): its caller cannot be told how it stands: %s", job.short_id, job.task, error)
            return unknown_outcome(job.id, error)

    async def _within(self, work: Coroutine[Any, Any, Outcome], job: Job, limit: float | None) -> Outcome:
        """The answer, or after `limit` seconds word that it goes on without us."""
        going, late = asyncio.create_task(work), self._late.setdefault(asyncio.get_running_loop(), set())
        late.add(going)
        going.add_done_callback(late.discard)
        try:
            done, _ = await asyncio.wait([going], timeout=limit)
        except asyncio.CancelledError:
            if going.done() or not self._spot().leave(job.id):
                late.add(telling := asyncio.create_task(self._tell_session(going, job)))
                telling.add_done_callback(late.discard)
            raise
        if done or not self._spot().leave(job.id):
            return await _heard(going)
        return outcome_of(msgspec.structs.replace(job, state=State.running))

    async def _tell_session(self, going: asyncio.Task[Outcome], job: Job) -> None:
        """Writes the notice that the caller's answer would have replaced: the caller left while the end was written."""
        await asyncio.wait([going])
        if going.cancelled() or going.exception() is not None or going.result().status not in ("ok", "failed"):
            return  # it did not end here: the move that ends it tells the session
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
        """Nothing is stored of what changes nothing."""
        encoded = encode(dict(params), limit=self._core.settings.payload_limit)
        check_kept(params, encoded, handler.signature)
        arguments = handler.signature.arguments(encoded.text)
        token = session_of.set(session)
        back, value, interrupts = False, None, Interrupts(elsewhere=handler.is_async and on_a_persons_thread())
        interrupts.join()
        try:
            async with asyncio.timeout(limit if limit is not None else handler.timeout):
                missing, back = await lacking(handler.requires, self._core.clock)
                if missing:
                    raise down(missing, self._core.clock)
                value = await _called(handler, arguments)
            failure = inspected(handler, value, handler.name)
        except BaseException as error:
            if _is_the_callers(error, interrupts):
                raise
            failure = capture(error.error if isinstance(error, Raised) else error, now=self._core.clock.now())
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
        """Later, by a worker: one attempt. The answer is an operation to ask about."""
        name = task.name if isinstance(task, Task) else check_name("task", task)
        keyed = {"lease": REASONS["deferred_submit"].lease, **self._enqueuer.add_key(name, params, options)}
        prepared = self._enqueuer.prepare(self._enqueuer.plan(name, keyed, reason="deferred_submit"), params)
        job, duplicate, _ = await self._accept(prepared)
        if duplicate and wants_back(prepared, job):
            job = await self._enqueuer.bring_back(job.id, WHO, "submitted again")
        return await self.outcome(job)

    async def retry(self, operation_id: str, *, timeout: Seconds | None = None, who: str = WHO) -> Outcome:
        """Once more, with what was given the first time. What is done stays done."""
        check_words(who, None)
        limit = read_seconds(timeout, "timeout") if timeout is not None else None
        job = await find_job(self._core.store, operation_id)
        handler = self._core.registry.handlers.get(job.task)
        if job.state in (State.done, State.discarded, State.purged, State.running):
            return await self.outcome(job)
        if handler is None:
            raise InvalidOption(field="operation_id", problem=f"the task {job.task!r} is not known here")
        if (stopped := await self._paused(job.queue)) is not None:
            return msgspec.structs.replace(await self.outcome(job), message=f"Not tried: {stopped}. Try again then.")
        missing, back = await lacking(handler.requires, self._core.clock)
        if missing:
            said = f"Not tried: {down(missing, self._core.clock)}. Try again when it is there."
            return msgspec.structs.replace(await self.outcome(job), message=said)
        try:
            job = await self._due(job, who)
        except (JobNotReady, IllegalMove) as error:
            return Outcome("failed", job.id, message=str(error), error=job.error)
        if job.state is not State.waiting:
            return await self.outcome(job)
        outcome = await self._within(self._run(job), job, limit)
        return msgspec.structs.replace(outcome, registry_auto_recovered=outcome.registry_auto_recovered or back)

    async def _due(self, job: Job, who: str) -> Job:
        """Brought back where it is dead or parked; what waits for a person stays."""
        if job.state is State.dead:
            return await self._enqueuer.bring_back(job.id, who, "asked to retry")
        if job.state is State.held and job.because in ("circuit_open", "consent"):
            why = "asked to retry"
            if job.because == "circuit_open":
                await self._spot().attempts.breakers.send(job)
            return await move_job(self._core, job.id, lambda job, now: lifecycle.unblocked(job, now, who=who, why=why))
        return job

    async def outcome(self, job: Job, *, recovered: bool = False) -> Outcome:
        """How an operation stands, with its result as far as it fits."""
        full = (await find_job(self._core.store, job.id)) if job.state is not State.waiting or job.run else job
        text = await read_result(self._core.store, full) if full.state is State.done else None
        return outcome_of(full, msgspec.json.decode(text) if text else None, recovered=recovered)

    async def summary(self) -> dict[str, Json]:
        """The retry queue in one look: how many wait, when the next is due, and the latest operations."""
        store = self._core.store
        by_reason: dict[str, int] = {}
        recent: list[dict[str, Json]] = []
        due: list[float | None] = []
        for reason in ("retry", "deferred_submit", "scheduled_job"):
            queued = Filter(states=(State.waiting,), reason=reason)
            by_reason[reason] = (await store.count(queued)).get((), 0)
            recent += [_listed(job) for job in (await store.find(queued, limit=RECENT)).jobs]
            due.append(await _soonest(store, queued, self._core.clock.now()))
        soonest = min((at for at in due if at is not None), default=None)
        return {
            "queued": sum(by_reason.values()),
            "by_reason": by_reason,
            "next_retry_at": iso(soonest),
            "recent": recent,
        }


async def _stopped_after(running: Collection[asyncio.Task[Any]], spot: OnTheSpot) -> None:
    try:
        if running:
            await asyncio.wait(running)
    finally:
        await spot.stop()


async def _soonest(store: Store, queued: Filter, now: float) -> float | None:
    """When the first of them is due, to the second, in some twenty looks; one of those that have been due for weeks."""

    async def by(at: float | None) -> float | None:
        page = await store.find(msgspec.structs.replace(queued, due_at=at), limit=LOOK, oldest=True)
        return min((job.run_at for job in page.jobs), default=None)

    nobody = now - LONG_DUE
    soonest = await by(nobody)
    if soonest is not None:
        return soonest
    soonest = await by(None)
    while soonest is not None and soonest - nobody > 1.0:
        middle = (nobody + soonest) / 2
        half = await by(middle)
        nobody, soonest = (middle, soonest) if half is None else (nobody, half)
    return soonest


def _is_the_callers(error: BaseException, interrupts: Interrupts) -> bool:
    """Whether the caller was cancelled or interrupted, so that the task has not failed."""
    if isinstance(error, asyncio.CancelledError):
        here = asyncio.current_task()
        return here is not None and here.cancelling() > 0
    return ends_a_process(error) and interrupts.explain(error)


async def _heard(going: asyncio.Task[Outcome]) -> Outcome:
    """The answer. An interrupt by a person reaches the caller as what it was."""
    try:
        return await going
    except Interrupted as interrupted:
        raise interrupted.error from None


async def _called(handler: Handler, arguments: dict[str, Any]) -> Any:
    """A plain function runs in a thread: nobody else has to wait for it."""
    if handler.is_async:
        return await finished(await handler.function(**arguments))
    return await asked(functools.partial(handler.function, **arguments))


def _listed(job: Job) -> dict[str, Json]:
    said = {"status": f"queued_{job.reason}", "retry_at": iso(job.run_at), "max_retries": job.allowed}
    return {**outcome_of(job).public(), **said, "task": job.task}


Params = Mapping[str, Json]


class Operations:
    """Answers `rd.call`, `rd.submit` and `rd.retry`; every answer is observed."""

    def __init__(self, core: Core, gateway: Gateway, repeats: RepeatedActions, load: Callable[[], None]) -> None:
        self._core = core
        self._gateway = gateway
        self._repeats = repeats
        self._load = load

    async def call(
        self, task: Task[Any, Any] | str, params: Params | None, timeout: Seconds | None, options: Mapping[str, Any]
    ) -> Outcome:
        self._load()
        given = {} if params is None else params
        made = self._gateway.call(task, given, timeout=timeout, **options)
        return await self._repeats.watched(made, task, given, options.get("session_id"))

    async def submit(self, task: Task[Any, Any] | str, params: Params | None, options: Mapping[str, Any]) -> Outcome:
        self._load()
        given = {} if params is None else params
        made = self._gateway.submit(task, given, **options)
        return await self._repeats.watched(made, task, given, options.get("session_id"))

    async def retry(self, operation_id: str, timeout: Seconds | None, who: str) -> Outcome:
        self._load()
        return await self._repeats.watched_retry(self._gateway.retry(operation_id, timeout=timeout, who=who))

    async def outcome(self, operation_id: str) -> Outcome:
        return await self._gateway.outcome(await find_job(self._core.store, operation_id))
