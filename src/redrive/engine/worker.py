"""The worker: claims jobs for its free slots, runs them, hands the commits to the outbox."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from redrive.core.commit import apply_each, commit_each, try_commit
from redrive.core.job import Ending, Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Claim, Commit, Filter, Lease, Put, Store, Wanted
from redrive.engine.attempt import UNMARKED, AttemptRunner
from redrive.engine.attempt_state import AttemptState
from redrive.engine.blocked_loop import LoopRelief, has_waited_too_long
from redrive.engine.breakers import Breakers, downstream_of
from redrive.engine.bus import Bus
from redrive.engine.capacity import Slots
from redrive.engine.clock import Clock
from redrive.engine.deploys import note_version
from redrive.engine.heartbeat import Heartbeats
from redrive.engine.interrupts import Interrupts
from redrive.engine.loop import Loop
from redrive.engine.outbox import Outbox
from redrive.engine.queue_pauses import read_paused_queues
from redrive.engine.registry import Handler, Registry
from redrive.engine.runners import Key, Runners
from redrive.engine.threads import Threads
from redrive.engine.worker_registry import (
    ANNOUNCE_SECONDS,
    GONE_AFTER,
    Announcement,
    BlockedLoop,
    drop_announcement,
    put_announcement,
    put_arrival,
)
from redrive.engine.workflow_steps import LOOKED_AT
from redrive.errors import CommitUnknown, StoreError
from redrive.http.policy import HTTP_TASK
from redrive.retries.strategy import CRASHES_BEFORE_ALONE

log = logging.getLogger("redrive.worker")
POLL_SECONDS = 5.0
GRACE_SECONDS = 30.0
PAUSED_SECONDS = 1.0
NOT_KNOWN: Final[Mapping[str, Ending]] = {}
FLUSH_SECONDS = 5.0
"""Least seconds that a stopping worker gives the store to take the last results."""
LAST_SECONDS = 0.2
"""Least seconds for the last results where the store is on other machines and none of them answers."""
LATEST = 100
"""Number of latest deliveries that are read to know which hosts there are."""
TOLD_TO_END = "the worker was told to end while its event loop was blocked"


class Worker(Loop):
    """Runs jobs until stopped. Stopping waits for running jobs, then gives back the rest without burning an attempt.

    Where the store has stopped itself, stopping does not wait: no result could be stored, and the next process to open
    the store sees by the lock file that this one is gone and runs the jobs again.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        clock: Clock,
        *,
        concurrency: int = 100,
        queues: Iterable[str] | None = None,
        agents: Iterable[str] | None = None,
        agent_concurrency: int | None = None,
        agent_scope: str = "process",
        poll: float = POLL_SECONDS,
        grace: float = GRACE_SECONDS,
        heartbeats: bool = True,
        bus: Bus | None = None,
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
            agents_in_store=agent_scope == "store",
        )
        self._store = store
        self._registry = registry
        self._clock = clock
        self._poll = poll
        self._threads = Threads()
        self._attempts = AttemptRunner(store, registry, clock, self._threads, bus)
        self._attempts.stopping, self._attempts.dying = self._stopping.is_set, self._dies
        self._interrupts = Interrupts()
        self._is_signal = self._interrupts.explain
        settlement, resume = self._attempts.settlement, self._attempts.workflows.resume_after
        self.outbox = Outbox(store, self._settled, resume, settlement.broken)
        self._unsettled: dict[Key, Job] = {}
        """Finished jobs whose results are not yet on disk; their leases are kept until then."""
        self._runners = Runners(self.nudge)
        self._states: dict[Key, AttemptState] = {}
        """States of running attempts. A job that comes back while its cancelled attempt cleans up is here twice."""
        self._leases: dict[str, float] = {}
        self._synced_claims = False
        self._paused: frozenset[str] = frozenset()
        self._paused_at = float("-inf")
        self._alone: list[Job] = []
        """Claimed jobs that wait to have the process to themselves."""
        self._lone: str | None = None
        """Id of the job that has the process to itself now."""
        self._beats = heartbeats
        self.heart: Heartbeats | None = None
        self.relief: LoopRelief | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arriving = threading.Lock()
        """Held while claimed jobs arrive, and while the heartbeat thread decides that some have not."""
        self._refused: set[str | None] = set()
        """Tokens of claimed jobs that the heartbeat thread gave back before they arrived."""
        self._withdrawn: dict[Key, Job] = {}
        """Jobs with a slot that the heartbeat thread keeps from beginning."""
        self._since = clock.now()
        self._announced = float("-inf")
        self._enrolled: frozenset[str] | None = None
        """Tasks that this worker announced when it last joined the roster."""
        self._noted = False
        """Whether the store knows that this version of the application runs."""
        self.channels: Collection[str] = ()
        """Channels to people that a courier of this process serves."""
        self.made = 0
        """Attempts begun by this worker."""
        self._claims = 0
        self._quiet_claim = 0
        """Number of the last claim that found nothing due and began with nothing running and all results on disk."""
        self._learn_tasks()

    def _learn_tasks(self) -> None:
        """Reads the tasks in the registry: a notebook and a late import register tasks while a worker runs."""
        if len(self._registry.handlers) != len(self.slots.tasks):
            handlers = list(self._registry.handlers.values())  # another thread may register more meanwhile
            self._leases = self._task_leases(handlers)
            self._synced_claims = any(self._registry.starts_once(handler) for handler in handlers)
            self.slots.tasks = frozenset(handler.name for handler in handlers)
            named = {handler.name: handler.downstream for handler in handlers}
            self.slots.calls = {task: name for task, name in named.items() if name is not None}
            self._announced = float("-inf")

    def _dies(self) -> bool:
        """Tells whether the event loop cancels this worker. `stop` never does: something else ended the loop."""
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
        self._interrupts.join()
        if self.heart is None and self._beats:
            loop = asyncio.get_running_loop()
            relief = self.relief = LoopRelief(self, self._store)
            heart = self.heart = Heartbeats(
                self._store, loop, self._running, self._lost, named=self._named, helps=relief, now=self._clock.now
            )
            self._loop = loop
            heart.start()
        super().start()

    async def stop(self) -> None:
        """Stops claiming, waits for running jobs, gives back the rest and syncs every result."""
        began = time.monotonic()
        await super().stop()
        await self._say_stopping()
        await self._finish_or_release()
        try:
            async with asyncio.timeout(self._flush_seconds(began)):
                await self.outbox.flushed()
        except TimeoutError:
            log.critical("stopping with results the store would not take; their jobs will run again")
        if self.heart is not None:
            await self.heart.stop()
            self.heart = None
        await self._withdraw()
        self._threads.stop()
        self._interrupts.leave()
        self._attempts.settlement.logbook.sum_up()

    def _flush_seconds(self, began: float) -> float:
        """Returns the rest of the grace; at least some seconds if the store answers, else at least a moment."""
        left = self.grace - (time.monotonic() - began)
        return max(left, FLUSH_SECONDS if self._store.answers else LAST_SECONDS)

    async def _finish_or_release(self) -> None:
        """Waits for running jobs, cancels late ones, gives back those that do not stop: their result is refused."""
        begun = self._runners.running
        unstarted = [*self._alone, *(self._states.pop(key).job for key in self._runners.take_back())]
        self._alone.clear()
        for job in unstarted:
            self.slots.freed(job)
            self._hand_over(job, Commit((self._attempts.settlement.released(job),)))
        for state in self._states.values():
            state.sole = len(self._states) == 1
        await self._rest_within(0.0 if self._store.failed else self.grace)
        for key, task in list(begun.items()):
            self._states[key].releasing = True
            task.cancel()
        await self._rest_within(1.0)
        for state in list(self._states.values()):
            log.warning("job %s (%s) does not stop; it is given back", state.job.short_id, state.job.task)
            state.cancelled = True
            self._hand_over(state.job, Commit((self._attempts.give_back(state),)))

    async def _rest_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._runners.idle()
        except TimeoutError:
            return  # late jobs are cancelled next

    async def idle(self) -> None:
        """Waits until nothing runs and every result is on disk."""
        await self._runners.idle()
        await self.outbox.flushed()

    async def drained(self) -> bool:
        """Runs everything due; True when a claim made after the last result was on disk found nothing more."""
        await self.idle()
        seen = self._claims
        self.nudge()
        for _ in range(500):
            if self._quiet_claim > seen:
                return True
            await asyncio.sleep(0.001)  # lets other tasks run: a job that is to run alone has not begun
            if self.slots.running or self.failing is not None:
                return False
        return False

    # -- the round

    async def tick(self) -> float:
        self._learn_tasks()
        if self._clock.monotonic() - self._announced >= ANNOUNCE_SECONDS:
            await self._learn_queues()
            await self._announce()
        if self._alone and not self._runners and not self._unsettled:
            for job in self._alone[:1]:
                await self._begin_alone(job)
        if self.slots.free <= 0 or self._alone or self._lone is not None:
            return self._poll  # nudged when a slot is freed
        if self._runners.waiting and self.slots.free < self.slots.share:
            return self._poll  # waiting attempts soon begin or end: then one claim for many, not many for few
        self._claims = number = self._claims + 1
        quiet = not self._runners and not self._unsettled
        wanted = await self._wanted()
        await self._attempts.breakers.refresh()
        claim = await self._store.claim(wanted, self.id, self._clock.now())
        await self._take(claim)
        if not claim.jobs:
            if quiet and not claim.lapsed:  # settling those may have made them due
                self._quiet_claim = number
            await self._wait(claim, wanted)
        return 0.0

    async def _take(self, claim: Claim) -> None:
        if claim.jobs:
            self._interrupts.renew()
        with self._arriving:
            for job in claim.jobs:
                if job.token not in self._refused:
                    self._take_slot(job)
            self._runners.start()
        await self.settle_lapsed(claim.lapsed, claim.endings)

    async def _wanted(self) -> Wanted:
        paused, limited = await self.paused(), self._registry.limited()
        return self.slots.wanted(limited, paused, self._leases, self._clock.now(), synced=self._synced_claims)

    async def paused(self) -> frozenset[str]:
        """Returns the paused queues, read at most once a second; `refresh` asks for a new read."""
        now = self._clock.monotonic()
        if now - self._paused_at >= PAUSED_SECONDS:
            self._paused_at = now
            self._paused = frozenset(await read_paused_queues(self._store))
        return self._paused

    def refresh(self) -> None:
        """Has the paused queues read anew, as one was paused or resumed in this process."""
        self._paused_at = float("-inf")
        self.nudge()

    async def _wait(self, claim: Claim, wanted: Wanted) -> None:
        """Sleeps until a job is due, something changes or a slot is free; a job that becomes due is claimed here."""
        now = self._clock.now()
        until_due = claim.next_due - now if claim.next_due is not None else self._poll
        rate = self.slots.rate_pause(self._registry.limited(), now)
        poll = min(self._poll, PAUSED_SECONDS) if self._paused else self._poll
        seconds = max(0.0, min(until_due, poll, rate if rate is not None else poll))
        if seconds <= 0 or self._nudged.is_set():
            return
        hears = self.heart.hears if self.heart is not None else always
        found = await self._store.claim_next(wanted, self.id, self._clock.now, claim.mark, seconds, self._nudged, hears)
        if found is not None:
            await self._take(found)
            await asyncio.sleep(0)  # the claimed jobs begin before the next claim is prepared

    # -- jobs

    def _take_slot(self, job: Job) -> None:
        self.slots.taken(job, job.started_at or 0.0)
        if job.crashes >= CRASHES_BEFORE_ALONE:
            self._alone.append(job)
        else:
            self._begin(job)

    def _begin(self, job: Job) -> None:
        """Makes the state of an attempt and gives it to the runners."""
        key = job.id, job.token
        handler = self._registry.handlers[job.task]
        state = AttemptState(job, handler, self._store, self._clock, is_signal=self._is_signal)
        self._states[key] = state
        self.made += 1
        self._runners.add(key, job.task, self._one, job, state)

    async def _one(self, job: Job, state: AttemptState) -> None:
        try:
            commit = await self._attempts.run(state)
            if commit is not None:
                self._hand_over(job, commit)
            else:
                _log_taken_away(job)
        except asyncio.CancelledError:
            self._stopped(job, state)
        except StoreError as error:
            log.critical("job %s (%s) comes back when its lease ends: %s", job.short_id, job.task, error)
        except Exception as error:  # noqa: BLE001 - logged, and visible as a dead letter
            self._hand_over(job, Commit((self._attempts.settlement.broken(job, error),)))
        except BaseException:  # a signal interrupted it: attempts raise nothing else that ends a process
            self._hand_over(job, Commit((self._attempts.settlement.interrupted(job, "the process was told to end"),)))
            raise
        finally:
            del self._states[job.id, job.token]
            self.slots.freed(job)
            if job.id == self._lone:
                self._lone = None
            self._nudged.set()

    def _stopped(self, job: Job, state: AttemptState) -> None:
        """Gives back a job that was stopped while its end was being settled, e.g. by a user's slow verifier."""
        if state.cancelled:
            _log_taken_away(job)
            return
        why = "the worker stopped while its end was being settled"
        log.warning("job %s (%s) is given back: %s", job.short_id, job.task, why)
        self._hand_over(job, Commit((self._attempts.settlement.interrupted(job, why),), state.witness))

    def _hand_over(self, job: Job, commit: Commit) -> None:
        self._unsettled[job.id, job.token] = job
        self.outbox.add(commit)

    def _settled(self, applied: Sequence[Commit], refused: Sequence[Commit]) -> None:
        for commit in (*applied, *refused):
            for move in commit.transitions:
                self._unsettled.pop((move.job.id, move.job.token), None)
        if self._alone:
            self._nudged.set()

    async def resume_workflows(self, most: int | None = LOOKED_AT) -> bool:
        """Moves workflow steps that should have moved already; returns whether there were any."""
        return bool(await self._attempts.workflows.mind(most))

    async def _begin_alone(self, job: Job) -> None:
        """Runs a job that was running at two crashes alone in the process, after marking that in the store.

        While the store fails, the job goes on waiting and keeps its lease. If the store did not confirm the mark, the
        job is given back: the mark of a run that never began must not make it a dead letter.
        """
        marked = unsure = False
        try:
            marked = await self._attempts.alone(job)
        except CommitUnknown:
            unsure = True
        if not self._begins(job):
            return
        if marked:
            self._lone = job.id
            self._begin(job)
            self._runners.start()
            return
        self.slots.freed(job)
        if unsure:
            self._hand_over(job, Commit((self._attempts.settlement.released(job, UNMARKED),)))

    def _begins(self, job: Job) -> bool:
        """Removes a job from those that wait to run alone; False where the heartbeat thread has given the job back."""
        try:
            self._alone.remove(job)
        except ValueError:
            return False
        return True

    @property
    def breakers(self) -> Breakers:
        return self._attempts.breakers

    async def mind_breakers(self) -> bool:
        """Sends probes and releases parked jobs; returns whether any job moved, if only a probe."""
        return bool(await self._attempts.breakers.mind())

    async def settle_lapsed(self, jobs: list[Job], endings: Mapping[str, Ending] = NOT_KNOWN) -> None:
        """Settles jobs that lost their worker, on the normal failure path."""
        for job in jobs:
            if job.state is not State.running:
                continue  # another process has settled the job since it was found
            if any(job.id == ours.id and job.token == ours.token for ours in self._running()):
                continue  # the job still runs here: the heartbeat renews its lease or stops it
            transition = await self._attempts.lost(job, endings.get(job.id, "lapsed"))
            if await commit_each(self._store, [transition]):
                self._attempts.trace_lost(transition)

    # -- leases

    def _running(self) -> list[Job]:
        """Lists every job whose lease this worker must keep."""
        return [
            *(state.job for state in list(self._states.values())),
            *list(self._unsettled.values()),
            *list(self._alone),
        ]

    def _named(self, task: asyncio.Task[Any]) -> tuple[str, str | None]:
        """Returns the name of the asyncio task that occupies the event loop, and the job's id where it runs a job."""
        jobs = (id for (id, _), running in list(self._runners.running.items()) if running is task)
        return task.get_name(), next(jobs, None)

    def _lost(self, lease: Lease) -> None:
        """Stops an attempt whose lease is gone (cancelled, or expired while the machine slept)."""
        key = lease.job_id, lease.token
        state, task = self._states.get(key), self._runners.running.get(key)
        if state is not None and task is not None:
            state.cancelled = True
            task.cancel()

    def cancelled(self, job_id: str) -> None:
        """Stops the attempt of a job that was cancelled in this process: no need to wait for the heartbeat."""
        for state in list(self._states.values()):
            if state.job.id == job_id:
                self._lost(state.lease)

    # -- announcing

    async def _learn_queues(self) -> None:
        """Reads which queues this worker may claim from: those of its tasks, with a policy, or of jobs in the store."""
        stored = await self._store.count(Filter(), by=("queue", "task", "agent"))
        routes = [(str(queue), str(task), agent) for queue, task, agent in stored]
        taken = Wanted(0, self.slots.tasks, self.slots.queues, self.slots.agents)
        mine = [(queue, task) for queue, task, agent in routes if taken.takes(queue, task, agent)]
        self.slots.known_queues = self._registry.spoken_of().union(queue for queue, _ in mine)
        if any(task == HTTP_TASK for _, task in mine):
            latest = await self._store.find(Filter(task=HTTP_TASK), limit=LATEST)
            hosts = {host for job in latest.jobs if (host := downstream_of(job, None)) is not None}
            self.slots.known_hosts = frozenset(hosts)

    async def _announce(self) -> None:
        """Stores which tasks this worker knows, so that no job becomes a dead letter for lack of a worker."""
        before, self._announced = self._announced, self._clock.monotonic()
        puts: tuple[Put, ...] = (self.announcement(None),)
        if self._announced - before >= GONE_AFTER or self._enrolled != self.slots.tasks:
            puts = (*puts, put_arrival(self._clock.now()))
        await try_commit(self._store, puts=puts, what=f"worker {self.id} was announced")
        self._enrolled = self.slots.tasks
        if not self._noted and (version := self._registry.version) is not None:
            await note_version(self._store, version, self._since)
            self._noted = True

    def announcement(self, blocked: BlockedLoop | None) -> Put:
        slots = self.slots
        said = Announcement(
            slots.tasks,
            self._clock.now(),
            slots.total,
            slots.running,
            frozenset(self.channels),
            slots.queues,
            slots.agents,
            self._registry.stalled_after(),
            blocked,
            self._since,
            self._registry.version,
            self._stopping.is_set(),
        )
        return put_announcement(self.id, said)

    # -- while the event loop is blocked: called by the heartbeat thread

    def withdraw(self, silent: float) -> list[Job]:
        """Keeps unbegun jobs from beginning that have waited for some seconds, or for a third of a short lease."""
        states = {key: self._states.get(key) for key in self._runners.unbegun()}
        late = {
            key: state.job
            for key, state in states.items()
            if state is not None and has_waited_too_long(state.job, silent)
        }
        jobs = [late[key] for key in self._runners.withdraw(late)]
        jobs += [job for job in list(self._alone) if has_waited_too_long(job, silent) and self._begins(job)]
        self._withdrawn |= {(job.id, job.token): job for job in jobs}
        return jobs

    def refuse(self, claimed: Iterable[Job]) -> list[Job]:
        """Returns the claimed jobs that have not arrived; these jobs are not begun when they do."""
        with self._arriving:
            known = {(job.id, job.token) for job in self._running()}
            missing = [job for job in claimed if (job.id, job.token) not in known]
            self._refused |= {job.token for job in missing}
        return missing

    def release(self, job: Job, why: str) -> Transition:
        """Makes the move that gives an unbegun job back."""
        return self._attempts.settlement.released(job, why)

    def given_back(self, settled: Sequence[Key]) -> None:
        """Has the event loop free the slots of jobs that were given back, once the loop can."""
        self._later(self._free, settled)

    def _free(self, settled: Sequence[Key]) -> None:
        for key in settled:
            self._states.pop(key, None)
            if (job := self._withdrawn.pop(key, None)) is not None:
                self.slots.freed(job)
        self._runners.rest()
        self.nudge()

    def recovered(self) -> None:
        """Has the worker announced anew soon, as its event loop answers again."""
        self._announced = float("-inf")
        self.nudge()

    def hurry(self) -> None:
        """Has unbegun jobs given back at once if the event loop is blocked, as the process was told to end."""
        if self.relief is not None:
            self.relief.hurried = True

    async def abandon(self) -> None:
        """Commits results and gives back jobs on another loop, as the blocked one cannot; then the process ends.

        The job that blocks the loop still runs and has effects: that job is left to its lease.
        """
        await apply_each(self._store, [*self.outbox.waiting(), Commit(puts=(drop_announcement(self.id),))])
        blocking = self.heart.culprit().job_id if self.heart is not None else None
        begun = set(self._runners.running)
        moves = [
            self._attempts.settlement.interrupted(job, TOLD_TO_END) if key in begun else self.release(job, TOLD_TO_END)
            for job in self._running()
            if (key := (job.id, job.token)) not in self._unsettled and job.id != blocking
        ]
        await commit_each(self._store, moves)

    def _later(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    async def _say_stopping(self) -> None:
        """Announces that the worker stops, so that no job is blamed for the process's end, unless one asked for it."""
        running = list(self._states.values())
        if not running or any(state.signalled for state in running):
            return
        try:
            await self._announce()
        except Exception as error:  # noqa: BLE001 - if the process is killed now, its jobs are counted as crashed
            log.warning("worker %s could not say that it stops: %r", self.id, error)

    async def _withdraw(self) -> None:
        self._announced = float("-inf")
        try:
            await try_commit(self._store, puts=[drop_announcement(self.id)], what=f"worker {self.id} has left")
        except Exception:  # noqa: BLE001 - the announcement ages by itself
            log.warning("worker %s could not withdraw its announcement", self.id)


def always() -> bool:
    return True


def _log_taken_away(job: Job) -> None:
    log.warning("job %s (%s) was taken away while it ran: its result does not count", job.short_id, job.task)
