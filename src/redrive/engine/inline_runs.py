"""Runs a job inline for a waiting caller: claims it by id, keeps its lease, writes its end before returning it.

A worker takes due jobs; a script's cycle and a caller of the gateway bring their own job. Where the decision says so,
a few retries run here at once; everything else is the same as for any job.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from redrive.core.commit import commit
from redrive.core.job import Ending, Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Claim, Commit, Lease, Put, Store, Wanted
from redrive.engine.attempt import UNMARKED, AttemptRunner
from redrive.engine.attempt_state import AttemptState
from redrive.engine.bus import Bus
from redrive.engine.clock import Clock
from redrive.engine.heartbeat import Heartbeats
from redrive.engine.interrupts import Interrupts, on_users_thread
from redrive.engine.loop import carry_through
from redrive.engine.registry import Handler, Registry
from redrive.engine.runners import GuardedCoroutine
from redrive.engine.threads import Threads
from redrive.errors import StoreBusy, StoreError, StoreFailed
from redrive.retries.decision import Sitting
from redrive.retries.strategy import CRASHES_BEFORE_ALONE, SPOT_TRIES

log = logging.getLogger("redrive.on_the_spot")
Wait = Callable[[float], Awaitable[None] | None]
"""Waits the given seconds between two inline tries."""
Beside = Callable[[Transition], list[Put]]
"""Makes further documents for the commit that ends an attempt."""
INSIST: Final = 20
AGAIN: Final = 0.5
"""How often, and after how many seconds, the write of a result is repeated."""


class Interrupted(Exception):
    """The interruption of a job by Ctrl-C or another signal; the job is given back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class InlineRun(msgspec.Struct, frozen=True):
    """The state of a job after its inline tries. Without a move the job was taken away or could not be claimed."""

    job: Job
    move: Transition | None = None
    value: Any = None
    """The return value of the function, unencoded."""
    recovered: bool = False
    """Whether a resource that the task needs was down and is back."""


def runs_on_another_loop(handler: Handler) -> bool:
    """Tells whether a task runs on an event loop in a user's thread; plain functions run in redrive's own threads."""
    return handler.is_async and on_users_thread()


class InlineRunner:
    """Runs single jobs in this process."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        clock: Clock,
        sitting: Sitting,
        *,
        threads: Threads | None = None,
        wait: Wait | None = None,
        can_stop: Callable[[Handler], bool] = lambda handler: handler.is_async,
        elsewhere: Callable[[Handler], bool] = runs_on_another_loop,
        interrupted: str = "whoever waited was interrupted",
        bus: Bus | None = None,
    ) -> None:
        self.store = store
        self._store = store
        self._registry = registry
        self._clock = clock
        self._sitting = sitting
        self._wait: Wait = wait or asyncio.sleep
        self._can_stop = can_stop
        self._elsewhere = elsewhere
        """Tells whether a task runs in a user's thread that is not the main one."""
        self._why = interrupted
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.attempts = AttemptRunner(store, registry, clock, threads or Threads(), bus)
        self.lapsed: dict[str, Job] = {}
        """Jobs that lost their worker, as reported by the claims."""
        self.endings: dict[str, Ending] = {}
        """How the processes of those workers ended, where known."""
        self._heart: Heartbeats | None = None
        self._running: dict[str, tuple[AttemptState, asyncio.Task[Commit | None]]] = {}
        self._left: set[str] = set()
        """Jobs whose caller no longer waits."""
        self._settling: dict[str, Job] = {}
        """Finished jobs whose end is not on disk yet; their leases are kept until it is."""

    async def stop(self) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            await heart.stop()
        self.attempts.settlement.logbook.sum_up()

    async def run(
        self, job: Job, beside: Beside = lambda move: [], interrupted: Callable[[Job], None] = lambda job: None
    ) -> InlineRun:
        """Runs the job, and again as long as the decision is to retry immediately.

        `interrupted` gets the job as it stands when an interruption ends this call with an exception.
        """
        try:
            return await self._run_and_retry(job, beside, interrupted)
        finally:
            self._left.discard(job.id)

    async def _run_and_retry(self, job: Job, beside: Beside, interrupted: Callable[[Job], None]) -> InlineRun:
        ran, recovered = InlineRun(job), False
        for tries in range(1, SPOT_TRIES + 1):
            claimed = await self.claim(ran.job)
            if claimed is None:
                return InlineRun(await self.fresh(job), ran.move, ran.value, recovered)
            ran = await self._try_once(claimed, tries, beside, interrupted)
            recovered = recovered or ran.recovered
            ran = msgspec.structs.replace(ran, recovered=recovered)
            if ran.move is None or not retries_inline(ran.move):
                return ran
            await self._pause(max(0.0, ran.job.run_at - self._clock.now()))
        return ran

    def leave(self, job_id: str) -> bool:
        """Treats the job as an ordinary one, because its caller stopped waiting; the session gets its end.

        False while the end of the job is being written: the caller gets that end by waiting a moment longer.
        """
        if job_id in self._settling:
            return False
        self._left.add(job_id)
        state, _ = self._running.get(job_id, (None, None))
        if state is not None:
            state.sitting = None
        return True

    async def _pause(self, seconds: float) -> None:
        waited = self._wait(seconds)
        if inspect.isawaitable(waited):
            await waited

    async def claim(self, job: Job) -> Job | None:
        """Claims exactly this job, due or not; None where the job does not wait."""
        lease = self._registry.policy_for(job).lease or 90.0
        synced = self._registry.starts_once(self._registry.handlers[job.task], job)
        wanted = Wanted(slots=1, ids=(job.id,), lease=lease, synced=synced)
        claim = await self._store.claim(wanted, self.worker, self._clock.now())
        self._note_lapsed(claim)
        if not claim.jobs:
            return None
        (claimed,) = claim.jobs
        if claimed.crashes >= CRASHES_BEFORE_ALONE and not await self._alone(claimed):
            return None
        return claimed

    async def _alone(self, job: Job) -> bool:
        """Marks in the store, before its start, a job that was running at two crashes.

        If it is unknown whether the mark was written, the job is given back: the mark of a run that never began must
        not make the job a dead letter.
        """
        try:
            return await self.attempts.alone(job)
        except (StoreError, OSError) as error:
            log.warning("job %s (%s) is given back: %s: %s", job.short_id, job.task, UNMARKED, error)
            await self._give_back(job, UNMARKED)
            return False
        except BaseException:
            await self._give_back(job, self._why)
            raise

    async def _give_back(self, job: Job, why: str) -> None:
        """Gives back a job that has not begun, and keeps its lease until that is on disk."""
        self._settling[job.id] = job
        self._beat()
        await carry_through(self._settled(job, Commit((self.attempts.settlement.released(job, why),))))

    # -- one attempt

    async def _try_once(self, job: Job, tries: int, beside: Beside, interrupted: Callable[[Job], None]) -> InlineRun:
        """Runs one attempt and commits its end."""
        state = self.attempts.begin(job)
        state.sitting, state.tries = None if job.id in self._left else self._sitting, tries
        commit, interruption = await self._perform(state)
        if commit is None:
            log.warning("job %s (%s) was taken away while it ran: its result does not count", job.short_id, job.task)
            return InlineRun(await self.fresh(job))
        move, *others = commit.transitions
        move = _mark_answered(move, state)
        commit = msgspec.structs.replace(commit, transitions=(move, *others), puts=(*commit.puts, *beside(move)))
        self._settling[job.id] = job  # from here on the caller cannot leave: the answer alone reports the end
        settling = asyncio.create_task(self._settled(job, commit))
        after = await asyncio.shield(settling)  # finishes even if the caller is cancelled
        if interruption is not None:
            interrupted(after)
            raise interruption
        return InlineRun(after, move, state.value, state.recovered)

    async def _settled(self, job: Job, commit: Commit) -> Job:
        """Commits the end of a job, and keeps the lease until the end is on disk."""
        try:
            return await self.committed(commit)
        finally:
            del self._settling[job.id]

    async def _perform(self, state: AttemptState) -> tuple[Commit | None, BaseException | None]:
        """Runs the attempt in a separate task, so that an interruption gives the job back instead of losing it."""
        asked: list[BaseException] = []
        interrupts = Interrupts(elsewhere=self._elsewhere(state.handler))
        state.awaited_by, state.is_signal = asyncio.current_task(), interrupts.explain
        with interrupts:
            return await self._watch(state, asked)

    async def _watch(
        self, state: AttemptState, asked: list[BaseException]
    ) -> tuple[Commit | None, BaseException | None]:
        job = state.job
        work = asyncio.create_task(GuardedCoroutine(self._run_to_end(state, asked)), name=job.task)
        self._running[job.id] = (state, work)
        self._beat()
        try:
            try:
                commit = await asyncio.shield(work)
            except asyncio.CancelledError as cancelled:
                if work.cancelled() and (state.cancelled or state.late):
                    return None, None  # the lease was lost before it began
                return await self._stop_or_await(state, work), cancelled
            return commit, Interrupted(asked[0]) if asked else None
        finally:
            del self._running[job.id]

    async def _run_to_end(self, state: AttemptState, asked: list[BaseException]) -> Commit | None:
        try:
            return await self.attempts.run(state)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - raised by the caller; here it would end the event loop
            asked.append(error)
            return Commit((self.attempts.settlement.interrupted(state.job, self._why),))

    async def _stop_or_await(self, state: AttemptState, work: asyncio.Task[Commit | None]) -> Commit | None:
        """Ends an attempt whose caller was cancelled: stops a coroutine, waits for the result of a thread."""
        if self._can_stop(state.handler):
            state.releasing = True
            work.cancel()
        try:
            return await work
        except asyncio.CancelledError:  # it had not begun
            return Commit((self.attempts.settlement.released(state.job, self._why),))

    # -- the store

    async def fresh(self, job: Job) -> Job:
        jobs = await self._store.get([job.id])
        return jobs[0] if jobs else job

    async def committed(self, end: Commit) -> Job:
        """Commits the end of a job, insistently; returns the job after it, or as another process has changed it."""
        move = end.transitions[0]
        what = f"job {move.job.short_id} was {move.move}"
        problem: Exception = StoreBusy(f"other processes kept changing what goes along with it: whether {what} is open")
        for _ in range(INSIST):
            try:
                applied = await commit(self._store, end.transitions, end.puts, end.guards, what=what)
            except StoreFailed:
                raise
            except (StoreError, OSError) as error:
                problem = error
            else:
                if applied is not None:
                    return move.after(applied.fences[0])
                if len(end.transitions) == 1:
                    return await self.fresh(move.job)
                end = msgspec.structs.replace(end, transitions=(move,))  # the other jobs of this commit moved meanwhile
                continue
            log.warning(
                "job %s (%s) waits for the store to take its end: %s", move.job.short_id, move.job.task, problem
            )
            await asyncio.sleep(AGAIN)  # repeating is safe: a commit that was applied after all is stale then
        raise problem

    # -- leases

    def _beat(self) -> None:
        if self._heart is None:
            self._heart = Heartbeats(
                self._store, asyncio.get_running_loop(), self._list_leased, self._lost, now=self._clock.now
            )
            self._heart.start()

    def _list_leased(self) -> list[Job]:
        return [*(state.job for state, _ in list(self._running.values())), *list(self._settling.values())]

    def _lost(self, lease: Lease) -> None:
        """Stops an attempt whose job was cancelled, or whose lease expired while the machine slept."""
        state, work = self._running.get(lease.job_id, (None, None))
        if state is not None and work is not None and state.job.token == lease.token:
            state.cancelled = True
            work.cancel()

    def cancelled(self, job_id: str) -> None:
        """Stops the attempt of a job that was cancelled in this process."""
        state, _ = self._running.get(job_id, (None, None))
        if state is not None:
            self._lost(state.lease)

    async def look_for_lapsed(self) -> None:
        claim = await self._store.claim(Wanted(slots=0), self.worker, self._clock.now())
        self._note_lapsed(claim)

    def _note_lapsed(self, claim: Claim) -> None:
        self.lapsed.update((job.id, job) for job in claim.lapsed)
        self.endings.update(claim.endings)


def _mark_answered(move: Transition, state: AttemptState) -> Transition:
    """Marks an end that is the answer to a waiting caller. The reason of the job stays as callers know it."""
    if state.sitting != "call" or move.to not in (State.done, State.dead):
        return move
    return msgspec.structs.replace(move, answered=True)


def retries_inline(move: Transition) -> bool:
    """Tells whether the decision was to retry immediately."""
    return move.move == "retried" and move.attempt is not None and move.attempt.tier == "immediate"
