"""`rd.jobs`: reads and moves single jobs, whatever their state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from redrive.core import lifecycle
from redrive.core.checks import check_limit, check_words, suggestion
from redrive.core.commit import commit_in_parts
from redrive.core.documents import INVESTIGATED
from redrive.core.effects import EffectRecord
from redrive.core.job import Job, Json, State
from redrive.core.lifecycle import Transition
from redrive.core.redact import redact, redact_text
from redrive.core.store import Event, Filter, MoveFilter, MovePage, Page, Put
from redrive.deadletters.filters import make_filter
from redrive.deadletters.orders import send_back
from redrive.engine.consents import Consents
from redrive.engine.effects import put_effect, read_effects
from redrive.engine.paging import read_jobs
from redrive.engine.verify import put_nothing_landed
from redrive.engine.worker_registry import list_living
from redrive.errors import IllegalMove, InvalidInput
from redrive.jobs.core import DEFAULT_WHO, find_job, move_job
from redrive.jobs.tasks import JobHandle, Seconds
from redrive.jobs.wait_for_job import follow_events, read_result, wait_for_result
from redrive.notices.sessions import Sessions, check_asks, decide_no

if TYPE_CHECKING:
    from redrive.api.dead import Dead
    from redrive.api.gateway import Gateway
    from redrive.api.workers import Workers
    from redrive.jobs.core import Core
    from redrive.notices.repeats import RepeatedActions
    from redrive.scripts.import_export import Exported, Target

PAGE: Final = 1000
SEARCH_PAGE: Final = 500
MOST_SEARCHED: Final = 20_000
TOGETHER: Final = 200
"""How many effects are closed in the commit that moves their job."""


class Searched(NamedTuple):
    """The jobs that a search found, and how many it looked at."""

    page: Page
    looked_at: int


def _has(job: Job, text: str) -> bool:
    """Whether a job's input or last error has this text, whatever its case."""
    wanted = text.casefold()
    escaped = msgspec.json.encode(text).decode()[1:-1].casefold()
    return wanted in (job.error or "").casefold() or escaped in (job.payload or "").casefold()


def _mask(job: Job) -> Job:
    """Masks what looks like a secret in a job's input and error, as the job is shown."""
    try:
        payload = msgspec.json.encode(redact(msgspec.json.decode(job.payload or "null"))).decode()
    except msgspec.MsgspecError:  # a disk has damaged it
        payload = ""
    return msgspec.structs.replace(job, payload=payload, error=redact_text(job.error or ""))


class Jobs:
    """Reads and moves single jobs, whatever their state."""

    def __init__(
        self, core: Core, workers: Workers, gateway: Gateway, sessions: Sessions, repeats: RepeatedActions, dead: Dead
    ) -> None:
        self._core = core
        self._workers = workers
        self._gateway = gateway
        self._sessions = sessions
        self._repeats = repeats
        self._dead = dead

    async def get(self, id: str) -> Job:
        """Read a job with its history. A part of the id is enough where it is unique."""
        return await find_job(self._core.store, id)

    async def get_many(self, ids: Sequence[str]) -> Sequence[Job]:
        """Read jobs by their whole ids; unknown ids are left out."""
        return await self._core.store.get(ids)

    async def longest_due(self) -> float:
        """Measure for how many seconds the due job that was accepted first has been due; 0 where none is."""
        now = self._core.clock.now()
        page = await self._core.store.find(Filter(states=(State.waiting,), due_at=now), limit=1, oldest=True)
        return max((now - job.run_at for job in page.jobs), default=0.0)

    async def events(self, after: str | None, limit: int = 1000) -> Sequence[Event]:
        """List the committed moves of all jobs after a cursor, in order; after None, only where the log ends now."""
        return await self._core.store.events(after, limit)

    async def story(self, id: str) -> Sequence[Event]:
        """List every move of a job, with who and why, from the beginning."""
        return await self._core.store.story((await find_job(self._core.store, id)).id)

    async def list(self, *, limit: int = 100, cursor: str | None = None, **filters: Any) -> Page:
        """List jobs, newest first. Filters: state, queue, task, agent, session_id, key, category, detail, …"""
        return await self._core.store.find(make_filter(filters), cursor, check_limit(limit))

    async def count(self, *, by: Sequence[str] = (), **filters: Any) -> dict[tuple[str | None, ...], int]:
        """Count jobs by any of queue, task, agent, state and the other filters. Takes the filters of `list`."""
        return await self._core.store.count(make_filter(filters), by)

    async def moves(self, chosen: MoveFilter, *, limit: int = 50, cursor: str | None = None) -> MovePage:
        """List the moves of jobs in a stretch of time, newest first, as far as they are kept."""
        return await self._core.store.moves(chosen, cursor, check_limit(limit))

    async def latest_moves(self, limit: int = 50) -> Sequence[Event]:
        """List the last committed moves of all jobs, newest first."""
        return await self._core.store.latest(check_limit(limit))

    async def export_completed(
        self, path: Target = None, *, overwrite: bool = False, append: bool = False, **filters: Any
    ) -> Exported:
        """Write the ids of done jobs, one per line, the oldest first: a list that `dead.import_(completed=…)` reads.

        The id is the one that the other program gave (its `job_id`, the idempotency key), else the job's own. Takes the
        filters of `list`.
        """
        from redrive.scripts import import_export

        chosen = make_filter({**filters, "state": State.done})
        return await import_export.export_completed(self._core, path, chosen, overwrite=overwrite, append=append)

    async def search(
        self, text: str, *, limit: int = 50, cursor: str | None = None, secrets: bool = True, **filters: Any
    ) -> Searched:
        """Find jobs whose input or last error has this text, newest first. Takes the filters of `list`.

        Without `secrets` only the masked text is searched, so that a search cannot guess a secret letter by letter. One
        search looks at no more than the newest 20,000 jobs that match the filters; its cursor looks further back. A
        search reads in pages and stops once `limit` jobs were found, so that it may return a few more than `limit`.
        """
        if not text:
            raise InvalidInput(field="text", problem="is empty; give some letters to look for")
        chosen, matching, looked_at = make_filter(filters), list[Job](), 0
        check_limit(limit)
        while True:
            page = await self._core.store.find(chosen, cursor, SEARCH_PAGE)
            looked_at += len(page.jobs)
            matching += [job for job in page.jobs if _has(job, text) and (secrets or _has(_mask(job), text))]
            cursor = page.cursor
            if cursor is None or len(matching) >= limit or looked_at >= MOST_SEARCHED:
                return Searched(Page(matching, cursor, page.as_of), looked_at)

    async def waits_for_worker(self, job: Job) -> str | None:
        """Say that no live worker takes a job, and which task may be meant instead; None where one takes it."""
        workers = await list_living(self._core.store, self._core.clock.now())
        if any(worker.takes(job.queue, job.task, job.agent) for worker in workers):
            return None
        announced = frozenset[str]().union(*(worker.tasks for worker in workers))
        if job.task in announced:
            return f"no live worker takes the task {job.task!r} in queue {job.queue!r}: the job waits until one does"
        done = await self._core.store.count(Filter(states=(State.done,)), by=("task",))
        known = announced | self._core.registry.handlers.keys() | {str(task) for (task,) in done}
        meant = suggestion(job.task, known - {job.task})
        problem = f"no live worker announces the task {job.task!r}: the job waits until one does"
        return f"{problem}; {meant}" if meant else problem

    async def cancel(self, id: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> Job:
        """Cancel a job. A running task sees ctx.cancelled; what it still returns does not count."""
        check_words(who, why)
        job = await move_job(self._core, id, lambda job, now: lifecycle.cancelled(job, now, who=who, why=why))
        self._stop_here(job.id)
        return job

    def _stop_here(self, id: str) -> None:
        """Tell the workers of this process that a job was cancelled; others notice at their next heartbeat."""
        self._workers.tell(lambda worker: worker.cancelled(id))
        self._gateway.cancelled(id)

    async def result(self, id: str) -> Json:
        """Read the whole result of a done job, however long; None where it has none."""
        text = await self.result_json(await self.get(id))
        return msgspec.json.decode(text) if text else None

    async def result_json(self, job: Job) -> str | None:
        """Read the whole result of a job as JSON, also where it is stored apart and where a disk has damaged it."""
        return await read_result(self._core.store, job)

    async def result_of(self, handle: JobHandle[Any], timeout: Seconds | None) -> Any:
        """Wait for the end of a handle's job, as `handle.result()` does."""
        return await wait_for_result(self._core, handle, timeout)

    def events_of(self, job_id: str) -> AsyncIterator[Event]:
        """Yield what is committed about a job from now on, as `handle.events()` does."""
        return follow_events(self._core, job_id)

    async def approve(self, id: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> Job:
        """Answer yes to what a held job asks for: consent to exactly this, or its question. The job goes on."""
        check_words(who, why)
        job = await find_job(self._core.store, id)
        puts = await self._sessions.make_approval(job, who, why)

        def arrow(job: Job, now: float) -> Transition:
            check_asks(job)
            return lifecycle.unblocked(job, now, who=who, why=why)

        return await move_job(self._core, job.id, arrow, puts)

    async def reject(self, id: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> Job:
        """Answer no. A job that needed consent is discarded; a task that asked a question goes on with the answer."""
        check_words(who, why)
        job = await find_job(self._core.store, id)
        puts = await self._sessions.make_rejection(job, who, why)
        return await move_job(self._core, job.id, lambda job, now: decide_no(job, now, who, why), puts)

    async def effects(self, id: str | None = None, *, agent: str | None = None) -> Sequence[EffectRecord]:
        """List the effects outside, as far as they are known: of one job, or of all, by agent."""
        job_id = (await find_job(self._core.store, id)).id if id is not None else None
        return [effect for effect in await read_effects(self._core.store, job_id) if agent in (None, effect.agent)]

    async def resolve(self, id: str, *, why: str, who: str = DEFAULT_WHO, landed: bool = True) -> Job:
        """Resolve an unknown outcome by hand. Landed: the job is done. Not landed: the job runs again."""
        check_words(who, why)
        if landed:
            return await move_job(self._core, id, lambda job, now: lifecycle.resolved(job, now, who=who, why=why))
        job = await find_job(self._core.store, id)
        if job.state is State.held and job.because == lifecycle.DEFERRED:
            job = await self._dead.recall(job.id, who=who, why=why)

        def again(job: Job, now: float) -> Transition:
            lifecycle.check_legal("resolved", job)
            if job.state is State.held:
                return lifecycle.unblocked(job, now, who=who, why=why)
            return send_back(self._core, job, now, who, why)

        puts = [*put_nothing_landed(job), *await self._note_absent(job, f"{who}: {why}")]
        if len(puts) > TOGETHER:
            again(job, self._core.clock.now())  # raises before anything is written where the move is refused
        what = f"the effects of job {job.short_id} were noted as absent"
        await commit_in_parts(self._core.store, puts[TOGETHER:], what=what)
        return await move_job(self._core, job.id, again, puts[:TOGETHER])

    async def _note_absent(self, job: Job, note: str) -> Sequence[Put]:
        """Close a job's open effects by hand: they did not land."""
        now = self._core.clock.now()
        return [
            put_effect(job.id, msgspec.structs.replace(effect, status="absent", at=now, note=note))
            for effect in await read_effects(self._core.store, job.id)
            if effect.status in ("intended", "unknown")
        ]

    async def erase(self, id: str | None = None, *, session_id: str | None = None, who: str = DEFAULT_WHO) -> int:
        """Erase the contents of a job or of all jobs of a session, for privacy; live jobs are cancelled first.

        Investigations that `[signals]` has started for these jobs are erased, too: they were given the jobs' errors.
        """
        check_words(who, None)
        if (id is None) == (session_id is None):
            raise InvalidInput(field="erase", problem="give a job id or session_id=, one of them")
        if id is not None:
            jobs = [await find_job(self._core.store, id)]
        else:
            jobs = [job async for job in read_jobs(self._core.store, Filter(session_id=session_id), PAGE)]
        jobs += await self._investigations([job.id for job in jobs])
        for job in jobs:
            await self._end(job, who)
        if session_id is not None:
            await Consents(self._core.store, self._core.clock).forget(session_id)
            await self._repeats.forget(session_id)
        return await self._core.store.erase([job.id for job in jobs])

    async def lingering(self) -> Sequence[str]:
        """List where erased contents can still be read, and what ends that; empty once they are gone.

        On a fleet that is the log with its snapshots, and every replica that has not read the erasure.
        """
        return await self._core.store.lingering()

    async def _investigations(self, ids: Sequence[str]) -> Sequence[Job]:
        """Read the jobs that a pain started and gave the words of these jobs."""
        store = self._core.store
        started = {kept.value for id in ids for kept in await INVESTIGATED.all(store, f"{id}.")}
        return await store.get(sorted(started.difference(ids)))

    async def _end(self, job: Job, who: str) -> None:
        """Cancel a live job and purge a dead one."""

        def end(job: Job, now: float) -> Transition:
            arrow = lifecycle.purged if job.state is State.dead else lifecycle.cancelled
            return arrow(job, now, who=who, why=lifecycle.ERASED)

        if job.state not in (State.waiting, State.running, State.held, State.dead):
            return
        try:
            await move_job(self._core, job.id, end)
        except IllegalMove:
            return  # the job has ended meanwhile
        self._stop_here(job.id)
