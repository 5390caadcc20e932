"""Runs the jobs of a script's cycle where the script runs, one after the other.

Every job goes through the store as a worker's jobs do: accepted, claimed, settled in one commit. So a script that is
killed in the middle loses nothing, and of several that run at once each job belongs to one.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import msgspec

from redrive.core import lifecycle
from redrive.core.commit import commit
from redrive.core.job import Job, State, keyed_id
from redrive.core.lifecycle import Transition
from redrive.core.store import Commit, Filter, Put
from redrive.engine.inline_runs import InlineRunner, Interrupted, Wait, runs_on_another_loop
from redrive.engine.interrupts import Interrupts, on_main_thread
from redrive.engine.paging import read_jobs
from redrive.engine.registry import Handler
from redrive.engine.threads import Threads, _serve
from redrive.errors import KeyReused
from redrive.failures.capture import capture
from redrive.jobs.core import Core
from redrive.jobs.dead_letter import move_documents, same_work, settles
from redrive.jobs.event_loop_thread import portal
from redrive.retries.strategy import CRASHES_BEFORE_ALONE
from redrive.scripts import cycle_rules
from redrive.scripts.cycle_records import RunRecord
from redrive.scripts.cycle_rules import CYCLE_NOTE, GOOD, CycleNote, Left, Status

log = logging.getLogger("redrive.cycle")
ROUNDS: Final = 10
"""How often a job's state may change while it is looked at before others have it."""
PAGE: Final = 500
SPELL: Final = 0.2
GRACE: Final = 5.0
"""How long an interrupted script waits for its job to be given back."""
R = TypeVar("R")


class Turn(msgspec.Struct, frozen=True):
    """How one job stands when its turn is over."""

    status: Status
    job: Job
    value: Any = None
    """What the function returned, where it ran here."""


# ---- where functions run


class _PollingQueue(queue.SimpleQueue[Any]):
    """A queue that waits in short spells: a Ctrl-C in the moment before a wait is seen only after it."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while True:
            try:
                return super().get(timeout=SPELL)
            except queue.Empty:
                continue


class CallingThread(Threads):
    """The thread that calls `run`: a script's functions run there, as if the script had called them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.on_main_thread = on_main_thread()
        self.work = self._work = _PollingQueue()
        self.idle = self._idle = threading.Semaphore(2**31 - 1)  # this thread always has time


_caller: ContextVar[CallingThread | None] = ContextVar("redrive_caller", default=None)


class CallingThreads(Threads):
    """Runs functions in the calling thread where one waits for them, else in a thread of redrive's."""

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        caller = _caller.get()
        return super().run(function) if caller is None else caller.run(function)


def _can_stop(handler: Handler) -> bool:
    """A coroutine can be stopped, and so can what runs in the calling thread; a thread of redrive's cannot."""
    return handler.is_async or _caller.get() is not None


def _elsewhere(handler: Handler) -> bool:
    caller = _caller.get()
    if not handler.is_async and caller is not None:
        return not caller.on_main_thread
    return runs_on_another_loop(handler)


def run_in_calling_thread(work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run work on the portal's event loop; functions that are no coroutines run in the thread that calls this."""
    caller, over = CallingThread(), threading.Event()

    async def on_the_portal() -> R:
        _caller.set(caller)
        try:
            return await work()
        finally:
            over.set()

    future = asyncio.run_coroutine_threadsafe(on_the_portal(), portal.start())
    future.add_done_callback(lambda _: caller.work.put(None))
    try:
        with Interrupts():
            _serve(caller.work, caller.idle)
    except BaseException:
        future.cancel()
        if not over.wait(GRACE):
            log.warning("the script was interrupted; its job is taken up when this process has ended")
        raise
    try:
        return future.result()
    except Interrupted as interrupted:
        raise interrupted.error from None


# ---- the cycle


class Turns:
    """Gives each job of one cycle its turn, once."""

    def __init__(self, core: Core, queue: str, cycle_id: str, record: RunRecord, wait: Wait | None) -> None:
        self.queue = queue
        self.cycle_id = cycle_id
        self.turns: dict[str, Turn] = {}
        """Every job that had its turn here, or is known to have had it elsewhere, by its id."""
        self.skipped = 0
        """Calls for jobs that are counted already, and dead letters of what was done meanwhile."""
        self.brought_back = 0
        self._record = record
        self._store = core.store
        self._registry = core.registry
        self._clock = core.clock
        self._spot = InlineRunner(
            core.store,
            core.registry,
            core.clock,
            "cycle",
            threads=CallingThreads(),
            wait=wait,
            can_stop=_can_stop,
            elsewhere=_elsewhere,
            interrupted="the script was interrupted",
        )
        self._known: set[str] = set()
        self._dead_letters: defaultdict[str, list[str]] = defaultdict(list)
        """Dead letters of earlier cycles, by the key of their note."""
        self._had_turn: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """The jobs of a (task, job_id) that had their turn here, or have it elsewhere."""
        self._asked: set[str] = set()
        """Jobs that the script has asked for."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._door = asyncio.Condition()
        self._inside = 0
        self._lone = False
        self._suspects = 0
        """Jobs that wait to have the process to themselves."""

    @property
    def ended(self) -> int:
        """The number of jobs that have had their turn: those that were given back have not."""
        return sum(turn.job.state not in (State.waiting, State.running) for turn in self.turns.values())

    async def end(self) -> None:
        """Look once more at the jobs that ran elsewhere, and stop the threads."""
        await self._spot.stop()
        elsewhere = [id for id, turn in self.turns.items() if turn.status == "running_elsewhere"]
        for job in await self._store.get(elsewhere) if elsewhere else []:
            self.turns[job.id] = Turn("skipped" if job.state is State.done else cycle_rules.status_of(job), job)

    # -- one job

    async def run(self, job: Job, documents: Sequence[Put], handler: Handler, ignore: Collection[str] = ()) -> Turn:
        """Give this job its turn, after the jobs that the same task left behind in earlier cycles."""
        await self.bring_back(handler)
        job_id, _ = cycle_rules.names_of(job)
        key = cycle_rules.note_key(self.queue, job.task, job_id)
        async with self._locks[key]:
            note = await self._note(key)
            known = await self._known_jobs(key, note, job)
            same = [other for other in known if cycle_rules.same_input(other, job, handler.signature, ignore)]
            taken = known[0] if known and not same and cycle_rules.was_asked(note, self.cycle_id) else None
            accepted = same[0] if same else taken or await self._insert(job, documents)
            if taken or not cycle_rules.same_input(accepted, job, handler.signature, ignore):
                turn = await self._refuse(job, documents, accepted)
            else:
                note = await self._note_asking(key, note, accepted)
                turn = await self._turn(accepted, handler, key, note)
            self._asked.add(turn.job.id)
            return turn

    async def _known_jobs(self, key: str, note: CycleNote | None, job: Job) -> list[Job]:
        """Read the jobs of this (task, job_id) that have had this cycle's turn, or have it now.

        Where none is of an earlier cycle, nothing need be read: the insert finds this cycle's own job.
        """
        earlier = [id for id in (*cycle_rules.turns_in(note, self.cycle_id), *self._had_turn[key]) if id != job.id]
        return await self._store.get(list(dict.fromkeys([job.id, *earlier]))) if earlier else []

    async def _insert(self, job: Job, documents: Sequence[Put]) -> Job:
        """Insert a job durably; return the one that is there already where this cycle has had it before."""
        (inserted,) = await self._store.insert([job], documents)
        return inserted.job

    async def _note_asking(self, key: str, note: CycleNote | None, job: Job) -> CycleNote | None:
        """Note that the script asked for an earlier cycle's job, so that another input is refused from then on."""
        job_id, cycle_id = cycle_rules.names_of(job)
        once_for_ever = job.key == cycle_rules.key_of(self.queue, job.task, job_id, None)
        if cycle_id == self.cycle_id or once_for_ever or cycle_rules.was_asked(note, self.cycle_id):
            return note
        asked = cycle_rules.after_asking(note, job, self.cycle_id)
        await commit(self._store, puts=[CYCLE_NOTE.put(key, asked)], what=f"{key} was asked for by this script")
        return asked

    async def _refuse(self, job: Job, documents: Sequence[Put], known: Job) -> Turn:
        """Keep an input that this cycle refuses as a dead letter: it is neither dropped nor run."""
        job_id, cycle_id = cycle_rules.names_of(job)
        where = f"in cycle {cycle_id}" if cycle_id else "for ever"
        problem = (
            f"{job_id!r} stands for another input {where} (job {known.short_id}); this one was kept and did not run"
        )
        dead = cycle_rules.conflicting(job, capture(KeyReused(field="job_id", problem=problem)), self._clock.now())
        (inserted,) = await self._store.insert([dead], move_documents(dead.id, documents))
        if not inserted.duplicate:
            log.warning("job %s (%s) is a dead letter: %s", dead.short_id, dead.task, dead.error)
        return self._count(inserted.job)

    async def _turn(self, job: Job, handler: Handler, key: str, note: CycleNote | None) -> Turn:
        """Run a job if it can run now; else return how it stands."""
        self._had_turn[key][job.id] = None
        for _ in range(ROUNDS):
            if job.state is State.waiting and job.run_at <= self._clock.now():
                return await self._try(job, key, note)
            if job.state is State.held and job.because == "circuit_open" and job.id not in self.turns:
                job = await self._move(lifecycle.unblocked(job, self._clock.now(), who=self._who))
            elif job.state is State.running and await self._is_lapsed(job):
                job = await self._recover(job, key, note)
            else:
                break
        return self._count(job)

    def _count(self, job: Job, value: object = None, *, ran: bool = False) -> Turn:
        """Count every job once; a second call for a job that is done counts as already done."""
        status = cycle_rules.status_of(job)
        if status != "done" or ran:
            turn = self.turns[job.id] = Turn(status, job, value)
            return turn
        turn = Turn("skipped", job)
        before = self.turns.get(job.id)
        if before is None or before.status not in GOOD:
            self.turns[job.id] = turn
        elif job.id in self._asked:  # one that came back here ran before the script asked for it
            self.skipped += 1
        return turn

    @property
    def _who(self) -> str:
        return f"{self.queue} {self.cycle_id}"

    # -- what earlier cycles left

    async def bring_back(self, handler: Handler) -> None:
        """Give the jobs that a function left in earlier cycles their turn, the oldest first, once for each function."""
        async with self._locks[handler.name]:
            if handler.name in self._known:
                return
            dead = Filter(states=(State.dead,), queue=self.queue, task=handler.name)
            async for job in read_jobs(self._store, dead, PAGE, oldest=True):
                self._dead_letters[cycle_rules.note_key(self.queue, job.task, cycle_rules.names_of(job)[0])].append(
                    job.id
                )
            for job in await self._left_behind(handler.name):
                await self._resume(job, handler)
            self._known.add(handler.name)

    async def _left_behind(self, task: str) -> list[Job]:
        await self._spot.look_for_lapsed()
        chosen = (
            Filter(states=(State.running,), queue=self.queue, task=task),
            Filter(states=(State.waiting,), queue=self.queue, task=task, due_at=self._clock.now()),
            Filter(states=(State.held,), queue=self.queue, task=task, because="circuit_open"),
            Filter(states=(State.dead,), queue=self.queue, task=task, lane="delayed"),
        )
        ids = [job.id for filter in chosen async for job in read_jobs(self._store, filter, PAGE, oldest=True)]
        return sorted(await self._store.get(ids), key=lambda job: job.created_at)

    async def _resume(self, job: Job, handler: Handler) -> None:
        job_id, own = cycle_rules.names_of(job)
        key = cycle_rules.note_key(self.queue, job.task, job_id)
        async with self._locks[key]:
            note = await self._note(key)
            if job.state is State.running and await self._is_lapsed(job):
                job = await self._recover(job, key, note)
            if job.state is State.running:
                self._had_turn[key][job.id] = None  # another process runs it
                return
            if await self._has_had_turn(job, key, note):
                return
            if job.state is State.dead and job.lane == "delayed":
                most = self._registry.policy_for(job).max_attempts or 1
                why = "the delayed lane comes back in the next cycle"
                pulled = lifecycle.pulled(job, self._clock.now(), max_attempts=most, who=self._who, why=why)
                job = await self._move(pulled)
            turn = await self._turn(job, handler, key, note)
            self.brought_back += own != self.cycle_id and turn.status != "running_elsewhere"

    async def _has_had_turn(self, job: Job, key: str, note: CycleNote | None) -> bool:
        """Say whether a job was done or failed in this cycle. A dead letter whose work was done is resolved."""
        if job.id in cycle_rules.turns_in(note, self.cycle_id) or cycle_rules.names_of(job)[1] == self.cycle_id:
            return job.state is State.dead
        if not await self._done_already(job, key, note):
            return False
        if job.state is State.dead:
            await self._resolve(job, f"the same job was done in cycle {self.cycle_id}")
            self.skipped += 1
        return job.state in (State.dead, State.waiting)

    async def _done_already(self, job: Job, key: str, note: CycleNote | None) -> bool:
        """Say whether another job with the same input was done in this cycle; another input is other work."""
        job_id, _ = cycle_rules.names_of(job)
        keys = [cycle_rules.key_of(self.queue, job.task, job_id, cycle) for cycle in (self.cycle_id, None)]
        ids = [
            *(keyed_id(self.queue, own) for own in keys),
            *cycle_rules.turns_in(note, self.cycle_id),
            *self._had_turn[key],
        ]
        others = [other for other in await self._store.get(list(dict.fromkeys(ids))) if other.id != job.id]
        return any(other.state is State.done and same_work(job, other) for other in others)

    async def _resolve_dead_letters(self, job: Job, key: str) -> None:
        """Resolve the dead letters of earlier cycles whose work this job did; other arguments are other work."""
        for dead in await self._store.get(self._dead_letters[key]) if self._dead_letters[key] else []:
            if settles(job, dead):
                self._dead_letters[key].remove(dead.id)
                await self._resolve(dead, f"the same job succeeded in cycle {self.cycle_id}")

    # -- on the spot

    async def _try(self, job: Job, key: str, note: CycleNote | None) -> Turn:
        """Run a job, and again for as long as the decision is to try again here and now."""
        async with self._room(job):
            ran = await self._spot.run(job, lambda move: self._remember(move, key, note), self._note_interrupted)
        done = ran.move is not None
        if done and ran.job.state is State.done:
            await self._resolve_dead_letters(ran.job, key)
        return self._count(ran.job, ran.value, ran=done)

    def _note_interrupted(self, job: Job) -> None:
        self.turns[job.id] = Turn(cycle_rules.status_of(job), job)

    @asynccontextmanager
    async def _room(self, job: Job) -> AsyncIterator[None]:
        """Give the process to a job alone that was there at two crashes."""
        alone = job.crashes >= CRASHES_BEFORE_ALONE
        async with self._door:
            await self._enter(alone=alone)
        try:
            yield
        finally:
            async with self._door:
                self._inside -= 1
                self._lone = False
                self._door.notify_all()

    async def _enter(self, *, alone: bool) -> None:
        """Wait for room. A job that must be alone goes first; until then no other begins."""
        self._suspects += alone
        try:
            await self._door.wait_for(lambda: not (self._inside if alone else self._lone or self._suspects))
        finally:
            self._suspects -= alone
        self._inside += 1
        self._lone = alone

    def _remember(self, move: Transition, key: str, note: CycleNote | None) -> list[Put]:
        """Make the documents that the next call or cycle reads, for the commit that ends this turn."""
        after = move.after(0)
        if move.to is State.done:
            kept = cycle_rules.after_success(note, after, self.cycle_id)
        elif move.move in ("buried", "held_back"):
            kept = cycle_rules.after_failure(note, after, self.cycle_id)
        else:
            return []
        puts = [self._record.progress(self.ended + (after.id not in self.turns))]
        if kept is None and note is None:
            return puts
        return [*puts, CYCLE_NOTE.put(key, kept) if kept is not None else CYCLE_NOTE.drop(key)]

    # -- the store

    async def _note(self, key: str) -> CycleNote | None:
        kept = await CYCLE_NOTE.get(self._store, key)
        return kept.value if kept is not None else None

    async def _move(self, move: Transition, puts: Sequence[Put] = ()) -> Job:
        """Commit a move; return the job after it, or as another process has made it meanwhile."""
        return await self._spot.committed(Commit((move,), tuple(puts)))

    async def _resolve(self, job: Job, why: str) -> None:
        await self._move(lifecycle.resolved(job, self._clock.now(), who=self._who, why=why))

    async def _is_lapsed(self, job: Job) -> bool:
        if job.id not in self._spot.lapsed:
            await self._spot.look_for_lapsed()
        return job.id in self._spot.lapsed and self._spot.lapsed[job.id].token == job.token

    async def _recover(self, job: Job, key: str, note: CycleNote | None) -> Job:
        """Settle a job that lost its process as any failure is settled."""
        self._spot.lapsed.pop(job.id)
        move = await self._spot.attempts.lost(job, self._spot.endings.pop(job.id, "lapsed"))
        return await self._move(move, self._remember(move, key, note))

    # -- at the end

    async def left(self) -> list[Left]:
        """Count the jobs in this cycle's queue that had no turn here."""
        counts = Counter[tuple[str, Status]]()
        for state, by in LEFT_BY.items():
            counted = await self._store.count(Filter(states=(state,), queue=self.queue), by=("task", by))
            for (task, how), number in counted.items():
                counts[str(task), _left_status(state, how)] += number
        return cycle_rules.left_over(counts, [(turn.job.task, turn.status) for turn in self.turns.values()])


LEFT_BY: Final = {State.dead: "lane", State.held: "because", State.waiting: "state", State.running: "state"}


def _left_status(state: State, how: str | None) -> Status:
    if state is State.running:
        return "running_elsewhere"
    return "diverted" if state is State.waiting or how in ("delayed", "circuit_open") else "needs_you"
