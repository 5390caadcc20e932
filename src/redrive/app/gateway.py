"""For agents: call a task and be told honestly how it stands. An operation is a job."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.app.following import result_text
from redrive.core import lifecycle
from redrive.core.job import Job, Json, State, iso
from redrive.core.outcome import Outcome, outcome_of, shortened
from redrive.core.store import Filter
from redrive.errors import InvalidOption, JobNotReady
from redrive.runtime.attempt import inspected
from redrive.runtime.capture import capture
from redrive.runtime.on_the_spot import OnTheSpot
from redrive.runtime.probes import down, lacking
from redrive.runtime.registry import Handler
from redrive.tasks import Seconds, Task, seconds

if TYPE_CHECKING:
    from redrive.app import Redrive

log = logging.getLogger("redrive.gateway")
WHO: Final = "gateway"
RECENT: Final = 20


class Gateway:
    """`rd.call`, `rd.submit`, `rd.retry`, and the status of operations."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._spots: dict[asyncio.AbstractEventLoop, OnTheSpot] = {}
        self._late: set[asyncio.Task[Outcome]] = set()
        """Calls that go on after their callers stopped waiting."""

    def _spot(self) -> OnTheSpot:
        app, loop = self._app, asyncio.get_running_loop()
        spot = self._spots.get(loop)
        if spot is None:
            spot = self._spots[loop] = OnTheSpot(app.store, app.registry, app.bus, app.clock, "call")
        return spot

    async def close(self) -> None:
        """Finish what goes on behind callers that stopped waiting."""
        if self._late:
            await asyncio.gather(*self._late, return_exceptions=True)
        for spot in self._spots.values():
            await spot.stop()
        self._spots.clear()

    async def call(
        self, task: Task[Any, Any] | str, params: Mapping[str, Json], *, timeout: Seconds | None, **options: Any
    ) -> Outcome:
        """Run it now and here; what fails and may heal is queued, and the answer says so."""
        name = task if isinstance(task, str) else task.name
        limit = seconds(timeout, "timeout") if timeout is not None else None
        handler = self._app.registry.handlers.get(name)
        if handler is not None and handler.read_only:
            return await self._read(handler, params, limit)
        prepared = self._app._desk.prepare(self._app._desk.plan(name, options), params)
        if handler is None:
            job, _, _ = await self._app._desk.accept(prepared)
            return outcome_of(job)
        reserved = msgspec.structs.replace(prepared, job=self._reserved(prepared.job))
        job, duplicate, _ = await self._app._desk.accept(reserved)
        return await self.outcome(job) if duplicate else await self._within(self._run(job), job, limit)

    def _reserved(self, job: Job) -> Job:
        """Ours to run: no worker takes it before we have had the time to; if we die first, one does."""
        lease = self._app.registry.policy_for(job).lease or 90.0
        return msgspec.structs.replace(job, run_at=self._app.clock.now() + lease)

    async def _run(self, job: Job) -> Outcome:
        ran = await self._spot().run(job)
        return await self.outcome(ran.job, recovered=ran.recovered)

    async def _within(self, work: Coroutine[Any, Any, Outcome], job: Job, limit: float | None) -> Outcome:
        """The answer, or after `limit` seconds word that it goes on without us."""
        going = asyncio.create_task(work)
        self._late.add(going)
        going.add_done_callback(self._late.discard)
        done, _ = await asyncio.wait([going], timeout=limit)
        if done:
            return await going
        self._spot().leave(job.id)
        return outcome_of(msgspec.structs.replace(job, state=State.running))

    async def _read(self, handler: Handler, params: Mapping[str, Json], limit: float | None) -> Outcome:
        """Nothing is stored of what changes nothing."""
        try:
            async with asyncio.timeout(limit):
                missing, back = await lacking(handler.requires, self._app.clock)
                if missing:
                    raise down(missing)
                found = handler.function(**handler.signature.arguments(msgspec.json.encode(dict(params)).decode()))
                value = await found if inspect.isawaitable(found) else found
        except Exception as error:  # noqa: BLE001 - told to whoever called
            failure = capture(error, now=self._app.clock.now())
            return Outcome("failed", message=f"It failed: {failure.summary}", error=failure.summary)
        soft = inspected(handler, value, handler.name)
        if soft is not None:
            return Outcome("failed", message=f"It failed: {soft.summary}", error=soft.summary)
        shown, cut = shortened(value, handler.name)
        return Outcome("ok", result=shown, message="Done.", truncated=cut, registry_auto_recovered=back)

    async def submit(self, task: Task[Any, Any] | str, params: Mapping[str, Json], **options: Any) -> Outcome:
        """Later, by a worker: one attempt. The answer is an operation to ask about."""
        name = task if isinstance(task, str) else task.name
        prepared = self._app._desk.prepare(self._app._desk.plan(name, options, reason="deferred_submit"), params)
        job, _, _ = await self._app._desk.accept(prepared)
        return await self.outcome(job)

    async def retry(self, operation_id: str, *, timeout: Seconds | None = None, who: str = WHO) -> Outcome:
        """Once more, with what was given the first time. What is done stays done."""
        job = await self._app.jobs.get(operation_id)
        handler = self._app.registry.handlers.get(job.task)
        if job.state in (State.done, State.discarded, State.purged, State.running):
            return await self.outcome(job)
        if handler is None:
            raise InvalidOption(field="operation_id", problem=f"the task {job.task!r} is not known here")
        missing, back = await lacking(handler.requires, self._app.clock)
        if missing:
            return Outcome("held", job.id, message=f"Not tried: {down(missing)}. Try again when it is there.")
        if job.state is State.dead:
            try:
                job = await self._app.dead.redrive(job.id, who=who, why="asked to retry")
            except JobNotReady as error:
                return Outcome("failed", job.id, message=str(error), error=job.error)
        elif job.state is State.held:
            if job.because != "circuit_open":
                return await self.outcome(job)
            job = await self._app.jobs._move(
                job.id, lambda job, now: lifecycle.unblocked(job, now, who=who, why="asked to retry")
            )
        limit = seconds(timeout, "timeout") if timeout is not None else None
        outcome = await self._within(self._run(job), job, limit)
        return msgspec.structs.replace(outcome, registry_auto_recovered=outcome.registry_auto_recovered or back)

    async def outcome(self, job: Job, *, recovered: bool = False) -> Outcome:
        """How an operation stands, with its result as far as it fits."""
        full = (await self._app.jobs.get(job.id)) if job.state is not State.waiting or job.run else job
        text = await result_text(self._app, full) if full.state is State.done else None
        return outcome_of(full, msgspec.json.decode(text) if text else None, recovered=recovered)

    async def summary(self) -> dict[str, Json]:
        """The retry queue in one look: how many wait, when the next is due, and the latest operations."""
        store = self._app.store
        by_reason: dict[str, int] = {}
        recent: list[dict[str, Json]] = []
        for reason in ("retry", "deferred_submit", "scheduled_job"):
            queued = Filter(states=(State.waiting,), reason=reason)
            by_reason[reason] = (await store.count(queued)).get((), 0)
            recent += [_listed(job) for job in (await store.find(queued, limit=RECENT)).jobs]
        due = min((one["retry_at"] for one in recent), default=None)
        return {"queued": sum(by_reason.values()), "by_reason": by_reason, "next_retry_at": due, "recent": recent}


def _listed(job: Job) -> dict[str, Json]:
    said = {"status": f"queued_{job.reason}", "retry_at": iso(job.run_at), "max_retries": job.allowed}
    return {**outcome_of(job).public(), **said, "task": job.task}
