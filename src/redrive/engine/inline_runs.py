"""Running a job where somebody waits for it: claimed by its id, its lease kept, its end on disk before it is told.

A worker takes what is due; a script's cycle and a caller of the gateway bring their own. A few tries on the spot are
made here where the decision says so; everything else is the same as for any job.
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
"""Spends the seconds between two tries on the spot."""
Beside = Callable[[Transition], list[Put]]
"""Documents that go into the commit which ends an attempt."""
INSIST: Final = 20
AGAIN: Final = 0.5
"""So often, and after so many seconds, the store is asked again to take a result."""


class Interrupted(Exception):
    """A person interrupted the job, by Ctrl-C or another signal: the job is given back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class InlineRun(msgspec.Struct, frozen=True):
    """How a job stands after its tries here. No move: it was taken away, or could not be claimed."""

    job: Job
    move: Transition | None = None
    value: Any = None
    """What the function returned, as it is."""
    recovered: bool = False
    """Something the task needs was away and is back."""


def runs_on_another_loop(handler: Handler) -> bool:
    """Whether a coroutine runs on an event loop in a person's other thread; plain functions have threads of ours."""
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
        """Whether a task runs in a thread of the person's that is not the main one."""
        self._why = interrupted
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.attempts = AttemptRunner(store, registry, clock, threads or Threads(), bus)
        self.lapsed: dict[str, Job] = {}
        """Jobs that lost their worker, as the claims have told."""
        self.endings: dict[str, Ending] = {}
        """What is known of those workers' processes."""
        self._heart: Heartbeats | None = None
        self._running: dict[str, tuple[AttemptState, asyncio.Task[Commit | None]]] = {}
        self._left: set[str] = set()
        """Jobs for which nobody waits any more."""
        self._settling: dict[str, Job] = {}
        """Finished, and not yet on disk: their leases are kept until they are."""

    async def stop(self) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            await heart.stop()
        self.attempts.settlement.logbook.sum_up()

    async def run(
        self, job: Job, beside: Beside = lambda move: [], interrupted: Callable[[Job], None] = lambda job: None
    ) -> InlineRun:
        """Run it, and again for as long as the decision is to try again here and now.

        `interrupted` hears how the job stands where this ends with an exception: it was told to stop.
        """
        try:
            return await self._tried(job, beside, interrupted)
        finally:
            self._left.discard(job.id)

    async def _tried(self, job: Job, beside: Beside, interrupted: Callable[[Job], None]) -> InlineRun:
        ran, recovered = InlineRun(job), False
        for tries in range(1, SPOT_TRIES + 1):
            claimed = await self.claim(ran.job)
            if claimed is None:
                return InlineRun(await self.fresh(job), ran.move, ran.value, recovered)
            ran = await self._attempted(claimed, tries, beside, interrupted)
            recovered = recovered or ran.recovered
            ran = msgspec.structs.replace(ran, recovered=recovered)
            if ran.move is None or not retries_inline(ran.move):
                return ran
            await self._pause(max(0.0, ran.job.run_at - self._clock.now()))
        return ran

    def leave(self, job_id: str) -> bool:
        """Whoever waited has gone: from now on it is a job like any other, whose end is told to the session.

        False where its end is being written this moment: whoever wants to go hears it if he stays.
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
        """This very job, due or not; None where it does not wait."""
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
        """Whether the store knows, before it starts, that a job which was there at two crashes is about to.

        If nobody knows whether it does, the job is given back: the mark of a run that never began must not bury it.
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
        """It has not begun. Its lease is kept until this is on disk."""
        self._settling[job.id] = job
        self._beat()
        await carry_through(self._settled(job, Commit((self.attempts.settlement.released(job, why),))))

    # -- one attempt

    async def _attempted(self, job: Job, tries: int, beside: Beside, interrupted: Callable[[Job], None]) -> InlineRun:
        """One attempt and its commit."""
        state = self.attempts.begin(job)
        state.sitting, state.tries = None if job.id in self._left else self._sitting, tries
        commit, interruption = await self._perform(state)
        if commit is None:
            log.warning("job %s (%s) was taken away while it ran: its result does not count", job.short_id, job.task)
            return InlineRun(await self.fresh(job))
        move, *others = commit.transitions
        move = _mark_answered(move, state)
        commit = msgspec.structs.replace(commit, transitions=(move, *others), puts=(*commit.puts, *beside(move)))
        self._settling[job.id] = job  # from here on whoever waited cannot leave: the answer is what tells of the end
        settling = asyncio.create_task(self._settled(job, commit))
        after = await asyncio.shield(settling)  # carried through, whatever happens to the caller meanwhile
        if interruption is not None:
            interrupted(after)
            raise interruption
        return InlineRun(after, move, state.value, state.recovered)

    async def _settled(self, job: Job, commit: Commit) -> Job:
        """Its lease is kept until its end is on disk."""
        try:
            return await self.committed(commit)
        finally:
            del self._settling[job.id]

    async def _perform(self, state: AttemptState) -> tuple[Commit | None, BaseException | None]:
        """Run it as a task of its own, so that whatever stops us gives the job back instead of leaving it behind."""
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
        except BaseException as error:  # noqa: BLE001 - told outside; through the event loop it would end that
            asked.append(error)
            return Commit((self.attempts.settlement.interrupted(state.job, self._why),))

    async def _stop_or_await(self, state: AttemptState, work: asyncio.Task[Commit | None]) -> Commit | None:
        """End an attempt whose caller was cancelled: stop a coroutine, wait for the result of a thread."""
        if self._can_stop(state.handler):
            state.releasing = True
            work.cancel()
        try:
            return await work
        except asyncio.CancelledError:  # it had not begun
            return Commit((self.attempts.settlement.released(state.job, self._why),))

    # -- the store

    async def fresh(self, job: Job) -> Job:
        found = await self._store.get([job.id])
        return found[0] if found else job

    async def committed(self, end: Commit) -> Job:
        """The job after this commit, or as somebody else has made it meanwhile. The store is asked insistently."""
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
                end = msgspec.structs.replace(end, transitions=(move,))  # those beside it moved meanwhile
                continue
            log.warning(
                "job %s (%s) waits for the store to take its end: %s", move.job.short_id, move.job.task, problem
            )
            await asyncio.sleep(AGAIN)  # repeating is safe: what landed after all is stale then
        raise problem

    # -- leases

    def _beat(self) -> None:
        if self._heart is None:
            self._heart = Heartbeats(
                self._store, asyncio.get_running_loop(), self._leased, self._lost, now=self._clock.now
            )
            self._heart.start()

    def _leased(self) -> list[Job]:
        return [*(state.job for state, _ in list(self._running.values())), *list(self._settling.values())]

    def _lost(self, lease: Lease) -> None:
        """Cancelled by somebody, or expired while we slept: tell the function and stop it."""
        state, work = self._running.get(lease.job_id, (None, None))
        if state is not None and work is not None and state.job.token == lease.token:
            state.cancelled = True
            work.cancel()

    def cancelled(self, job_id: str) -> None:
        """Somebody here cancelled it."""
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
    """Marks the end that the waiting caller is answered with. The job's reason stays what callers were told."""
    if state.sitting != "call" or move.to not in (State.done, State.dead):
        return move
    return msgspec.structs.replace(move, answered=True)


def retries_inline(move: Transition) -> bool:
    """Whether the decision was to try again here and now."""
    return move.move == "retried" and move.attempt is not None and move.attempt.tier == "immediate"
