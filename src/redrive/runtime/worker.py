"""The worker: claims what fits its free slots, runs it, hands the commits to the outbox."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from redrive.core.job import Job, State
from redrive.core.store import Applied, Claim, Commit, Lease, Store, Unknown, Wanted
from redrive.core.strategy import CRASHES_BEFORE_ALONE
from redrive.errors import StoreError
from redrive.runtime.attempt import UNMARKED, Attempts
from redrive.runtime.bus import Bus, told
from redrive.runtime.clock import Clock
from redrive.runtime.context import BlockingContext, Context
from redrive.runtime.heart import Heart
from redrive.runtime.living import ANNOUNCE_SECONDS, Announcement, announced, withdrawn
from redrive.runtime.loop import Loop
from redrive.runtime.outbox import Outbox
from redrive.runtime.registry import Handler, Registry
from redrive.runtime.runners import Key, Runners
from redrive.runtime.slots import Slots
from redrive.runtime.switches import paused_queues
from redrive.runtime.threads import Threads
from redrive.runtime.workflow import LOOKED_AT

log = logging.getLogger("redrive.worker")
POLL_SECONDS = 5.0
GRACE_SECONDS = 30.0
PAUSED_SECONDS = 1.0
FLUSH_SECONDS = 5.0
"""The least time a stopping worker gives the store to take the last results."""


class Worker(Loop):
    """Runs jobs until stopped. Stopping waits for what runs, then gives back the rest without burning an attempt."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        bus: Bus,
        clock: Clock,
        *,
        concurrency: int = 100,
        queues: Iterable[str] | None = None,
        agents: Iterable[str] | None = None,
        agent_concurrency: int | None = None,
        poll: float = POLL_SECONDS,
        grace: float = GRACE_SECONDS,
        heartbeats: bool = True,
    ) -> None:
        super().__init__("worker")
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.grace = grace
        self.slots = Slots(
            concurrency,
            frozenset(),
            queues=frozenset(queues) if queues is not None else None,
            agents=frozenset(agents) if agents is not None else None,
            agent_limit=agent_concurrency,
        )
        self._store = store
        self._registry = registry
        self._bus = bus
        self._clock = clock
        self._poll = poll
        self._threads = Threads()
        self._attempts = Attempts(store, registry, clock, self._threads)
        self._attempts.stopping, self._attempts.dying = self._stopping.is_set, self._dies
        settlement, resume = self._attempts.settlement, self._attempts.workflows.resume_after
        self.outbox = Outbox(store, self._settled, resume, settlement.broken)
        self._unsettled: dict[Key, Job] = {}
        """Finished, and not yet on disk: their leases are kept until they are."""
        self._runners = Runners(self.nudge)
        self._contexts: dict[Key, Context | BlockingContext] = {}
        """Of what runs. A job may come back while an attempt that was cancelled cleans up: then it is here twice."""
        self._leases: dict[str, float] = {}
        self._synced_claims = False
        self._paused: frozenset[str] = frozenset()
        self._paused_at = float("-inf")
        self._alone: list[Job] = []
        """Claimed, and waiting to have the process to themselves."""
        self._lone: str | None = None
        """The job that has it now."""
        self._beats = heartbeats
        self.heart: Heart | None = None
        self._announced = float("-inf")
        self.channels: Collection[str] = ()
        """The ways to people that a courier of this process serves."""
        self.made = 0
        """Attempts begun by this worker."""
        self._claims = 0
        self._quiet_claim = 0
        """The number of the last that found nothing due and began in quiet: nothing running, all results on disk."""
        self._learn_tasks()

    def _learn_tasks(self) -> None:
        """What the registry knows by now: a notebook and a late import register tasks while a worker runs."""
        if len(self._registry.handlers) != len(self.slots.tasks):
            handlers = list(self._registry.handlers.values())  # another thread may register more meanwhile
            self._leases = self._task_leases(handlers)
            self._synced_claims = any(self._registry.starts_once(handler) for handler in handlers)
            self.slots.tasks = frozenset(handler.name for handler in handlers)
            self._announced = float("-inf")

    def _dies(self) -> bool:
        """Nobody stops this worker, and its event loop cancels everything: something ended the loop under it."""
        return self._task is not None and self._task.cancelling() > 0

    def _task_leases(self, handlers: Iterable[Handler]) -> dict[str, float]:
        leases = {}
        for handler in handlers:
            policy = self._registry.policy(handler.queue, handler.name, "direct", agent=False, options=None, job=None)
            if policy.lease is not None:
                leases[handler.name] = policy.lease
        return leases

    # -- life

    def start(self) -> None:
        if self.heart is None and self._beats:
            loop = asyncio.get_running_loop()
            self.heart = Heart(self._store, loop, self._running, self._lost, named=self._named)
            self.heart.start()
        super().start()

    async def stop(self) -> None:
        """Claim no more, wait for what runs, give back the rest, sync everything."""
        await super().stop()
        await self._finish_or_release()
        try:
            async with asyncio.timeout(max(self.grace, FLUSH_SECONDS)):
                await self.outbox.flushed()
        except TimeoutError:
            log.critical("stopping with results the store would not take; their jobs will run again")
        if self.heart is not None:
            await self.heart.stop()
            self.heart = None
        await self._withdraw()
        self._threads.stop()
        self._attempts.settlement.logbook.sum_up()

    async def _finish_or_release(self) -> None:
        """Wait for what runs, cancel what is late, give back what will not stop: its result will be refused."""
        begun = self._runners.running
        unstarted = [*self._alone, *(self._contexts.pop(key).job for key in self._runners.take_back())]
        self._alone.clear()
        for job in unstarted:
            self.slots.freed(job)
            self._hand_over(job, Commit((self._attempts.settlement.released(job),)))
        await self._rest_within(self.grace)
        for key, task in list(begun.items()):
            self._contexts[key]._releasing = True
            task.cancel()
        await self._rest_within(1.0)
        for context in list(self._contexts.values()):
            log.warning("job %s (%s) does not stop; it is given back", context.job.short_id, context.job.task)
            context._cancelled = True
            self._hand_over(context.job, Commit((self._attempts.settlement.interrupted(context.job),)))

    async def _rest_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._runners.idle()
        except TimeoutError:
            return  # what is late is dealt with next

    async def idle(self) -> None:
        """Nothing runs and every result is on disk."""
        await self._runners.idle()
        await self.outbox.flushed()

    async def drained(self) -> bool:
        """Let everything due run; True when a claim made after the last result was on disk found nothing more."""
        await self.idle()
        seen = self._claims
        self.nudge()
        for _ in range(500):
            if self._quiet_claim > seen:
                return True
            await asyncio.sleep(0.001)  # a turn for the others: a job that is to run alone has not begun
            if self.slots.running or self.failing is not None:
                return False
        return False

    # -- the round

    async def tick(self) -> float:
        self._learn_tasks()
        if self._clock.monotonic() - self._announced >= ANNOUNCE_SECONDS:
            await self._announce()
        if self._alone and not self._runners and not self._unsettled:
            await self._begin_alone(self._alone[0])
        if self.slots.free <= 0 or self._alone or self._lone is not None:
            return self._poll  # nudged when a slot is freed
        if self._runners.waiting and self.slots.free < self.slots.share:
            return self._poll  # most of them end in a moment, or have begun: then one claim for many, not many for few
        self._claims = number = self._claims + 1
        quiet = not self._runners and not self._unsettled
        wanted = await self._wanted()
        claim = await self._store.claim(wanted, self.id, self._clock.now())
        await self._take(claim)
        if not claim.jobs:
            self._quiet_claim = number if quiet else self._quiet_claim
            await self._wait(claim, wanted)
        return 0.0

    async def _take(self, claim: Claim) -> None:
        for job in claim.jobs:
            self._begin(job)
        await self.settle_lapsed(claim.lapsed)

    async def _wanted(self) -> Wanted:
        paused, limited = await self.paused(), self._registry.limited()
        return self.slots.wanted(limited, paused, self._leases, self._clock.now(), synced=self._synced_claims)

    async def paused(self) -> frozenset[str]:
        """Queues somebody paused, looked up at most once a second; `refresh` asks for a new look."""
        now = self._clock.monotonic()
        if now - self._paused_at >= PAUSED_SECONDS:
            self._paused_at = now
            self._paused = frozenset(await paused_queues(self._store))
        return self._paused

    def refresh(self) -> None:
        """A queue was paused or resumed in this process."""
        self._paused_at = float("-inf")
        self.nudge()

    async def _wait(self, claim: Claim, wanted: Wanted) -> None:
        """Sleep until something is due, changes or frees a slot; a job that becomes due here comes by itself."""
        now = self._clock.now()
        until_due = claim.next_due - now if claim.next_due is not None else self._poll
        rate = self.slots.rate_pause(self._registry.limited(), now)
        poll = min(self._poll, PAUSED_SECONDS) if self._paused else self._poll
        seconds = max(0.0, min(until_due, poll, rate if rate is not None else poll))
        if seconds <= 0 or self._nudged.is_set():
            return
        found = await self._store.claim_next(wanted, self.id, self._clock.now, claim.mark, seconds, self._nudged)
        if found is not None:
            await self._take(found)
            await asyncio.sleep(0)  # they begin before the next claim is prepared

    # -- jobs

    def _begin(self, job: Job) -> None:
        self.slots.taken(job, job.started_at or 0.0)
        if job.crashes >= CRASHES_BEFORE_ALONE:
            self._alone.append(job)
            return
        self._spawn(job)

    def _spawn(self, job: Job) -> None:
        key = job.id, job.token
        context = self._contexts[key] = self._attempts.context_for(job)
        self.made += 1
        self._runners.add(key, job.task, self._one, job, context)

    async def _one(self, job: Job, context: Context | BlockingContext) -> None:
        try:
            commit = await self._attempts.run(job, context)
            if commit is not None:
                self._hand_over(job, commit)
            else:
                _taken_away(job)
        except asyncio.CancelledError:
            self._stopped(job, context)
        except (SystemExit, KeyboardInterrupt):
            self._hand_over(job, Commit((self._attempts.settlement.interrupted(job, "the process was told to end"),)))
            raise
        except StoreError as error:
            log.critical("job %s (%s) comes back when its lease ends: %s", job.short_id, job.task, error)
        except Exception as error:  # noqa: BLE001 - told, and visible as a dead letter
            self._hand_over(job, Commit((self._attempts.settlement.broken(job, error),)))
        finally:
            del self._contexts[job.id, job.token]
            self.slots.freed(job)
            if job.id == self._lone:
                self._lone = None
            self._nudged.set()

    def _stopped(self, job: Job, context: Context | BlockingContext) -> None:
        """Stopped while its end was being settled, e.g. by somebody's slow verifier."""
        if context._cancelled:
            _taken_away(job)
            return
        why = "the worker stopped while its end was being settled"
        log.warning("job %s (%s) is given back: %s", job.short_id, job.task, why)
        self._hand_over(job, Commit((self._attempts.settlement.interrupted(job, why),), context._witness))

    def _hand_over(self, job: Job, commit: Commit) -> None:
        self._unsettled[job.id, job.token] = job
        self.outbox.add(commit)

    def _settled(self, applied: Sequence[Commit], refused: Sequence[Commit]) -> None:
        moves = [move for commit in applied for move in commit.transitions]
        for move in moves:
            self._unsettled.pop((move.job.id, move.job.token), None)
        for commit in refused:
            for move in commit.transitions:
                self._unsettled.pop((move.job.id, move.job.token), None)
        self._bus.publish_moves(moves)
        if self._alone:
            self._nudged.set()

    async def resume_workflows(self, most: int | None = LOOKED_AT) -> bool:
        """Whether steps of workflows moved that nobody else had moved."""
        moves = await self._attempts.workflows.mind(most)
        self._bus.publish_moves(moves)
        return bool(moves)

    async def _begin_alone(self, job: Job) -> None:
        """A job that was there at two crashes gets the process to itself, and the store knows before it starts.

        While the store fails it goes on waiting, and its lease is kept. If nobody knows whether the store knows, it is
        given back: the mark of a run that never began must not bury it.
        """
        outcome = await self._attempts.alone(job)
        self._alone.remove(job)
        if isinstance(outcome, Applied):
            self._lone = job.id
            self._spawn(job)
            return
        self.slots.freed(job)
        if isinstance(outcome, Unknown):
            self._hand_over(job, Commit((self._attempts.settlement.released(job, UNMARKED),)))

    async def mind_breakers(self) -> bool:
        """Whether parked jobs were let go, if only one that probes."""
        moves = await self._attempts.breakers.mind()
        self._bus.publish_moves(moves)
        return bool(moves)

    async def settle_lapsed(self, jobs: list[Job]) -> None:
        """Jobs whose worker died take the normal failure path."""
        for job in jobs:
            if job.state is not State.running:
                continue  # somebody else has settled it since it was found
            if any(job.id == ours.id and job.token == ours.token for ours in self._running()):
                continue  # ours and alive: the heart will see to it
            transition = await self._attempts.lost(job)
            (outcome,) = await self._store.apply([Commit((transition,))])
            if isinstance(outcome, Applied):
                self._attempts.trace_lost(transition)
                self._bus.publish(told(transition))

    # -- leases

    def _running(self) -> list[Job]:
        """Every job whose lease this worker must keep."""
        return [*(c.job for c in list(self._contexts.values())), *list(self._unsettled.values()), *list(self._alone)]

    def _named(self, task: asyncio.Task[Any]) -> str:
        """What the event loop is busy with, in words."""
        for (id, _), running in list(self._runners.running.items()):
            if running is task:
                return f"task {task.get_name()} (job {id[-8:]})"
        return f"task {task.get_name()}"

    def _lost(self, lease: Lease) -> None:
        """The lease is gone (cancelled, or expired while we slept): tell the task and stop it."""
        key = lease.job_id, lease.token
        context, task = self._contexts.get(key), self._runners.running.get(key)
        if context is not None and task is not None:
            context._cancelled = True
            task.cancel()

    def cancelled(self, job_id: str) -> None:
        """Somebody in this process cancelled a job: no need to wait for the heartbeat."""
        for context in list(self._contexts.values()):
            if context.job.id == job_id:
                self._lost(context._lease)

    # -- announcing

    async def _announce(self) -> None:
        """Tell the store which tasks this worker knows, so that nothing is buried for lack of a worker."""
        self._announced = self._clock.monotonic()
        slots = self.slots
        said = Announcement(
            slots.tasks,
            self._clock.now(),
            slots.total,
            slots.running,
            frozenset(self.channels),
            slots.queues,
            slots.agents,
        )
        await self._store.apply([Commit(puts=(announced(self.id, said),))])

    async def _withdraw(self) -> None:
        self._announced = float("-inf")
        try:
            await self._store.apply([Commit(puts=(withdrawn(self.id),))])
        except Exception:  # noqa: BLE001 - the announcement ages by itself
            log.warning("worker %s could not withdraw its announcement", self.id)


def _taken_away(job: Job) -> None:
    log.warning("job %s (%s) was taken away while it ran: its result does not count", job.short_id, job.task)
