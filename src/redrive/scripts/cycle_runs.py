"""A script's cycle: runs jobs where the script runs, one after the other, and leaves none of them in the dark.

Everything goes through the store as a worker's jobs do: accepted, claimed, settled in one commit. So a script that is
killed in the middle loses nothing, and of several that run at once each job belongs to one.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from redrive.core import lifecycle
from redrive.core.commit import commit
from redrive.core.job import Job, State, keyed_id
from redrive.core.lifecycle import Transition
from redrive.core.store import Commit, Filter, Put, Store
from redrive.engine.clock import Clock
from redrive.engine.inline_runs import OnTheSpot, Wait, on_another_loop
from redrive.engine.interrupts import on_main_thread
from redrive.engine.paging import pages
from redrive.engine.registry import Handler, Registry
from redrive.engine.threads import Threads, _serve
from redrive.errors import KeyReused
from redrive.failures.capture import capture
from redrive.jobs.dead_letter import move_documents, same_work, settles
from redrive.retries.strategy import CRASHES_BEFORE_ALONE
from redrive.scripts.cycle_records import RunRecord
from redrive.scripts.cycle_rules import (
    CYCLE_NOTE,
    GOOD,
    CycleNote,
    Left,
    Status,
    after_asking,
    after_failure,
    after_success,
    conflicting,
    key_of,
    left_over,
    names_of,
    note_key,
    same_input,
    status_of,
    turns_in,
    was_asked,
)

log = logging.getLogger("redrive.cycle")
ROUNDS: Final = 10
"""How often a job's state may change under our eyes before we let others have it."""
PAGE: Final = 500
SPELL: Final = 0.2


class Turn(msgspec.Struct, frozen=True):
    """How one job stands when its turn is over."""

    status: Status
    job: Job
    value: Any = None
    """What the function returned, where it ran here."""


# ---- where functions run


class _Attentive(queue.SimpleQueue[Any]):
    """Waits in short spells: a Ctrl-C in the moment before a wait is seen only after it."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while True:
            try:
                return super().get(timeout=SPELL)
            except queue.Empty:
                continue


class CallingThread(Threads):
    """The thread of whoever calls: a script's functions run there, as if it had called them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.on_main_thread = on_main_thread()
        self._work = _Attentive()
        self._idle = threading.Semaphore(2**31 - 1)  # it always has time: it waits for nothing else

    def serve(self) -> None:
        """Do what comes until `finish`."""
        _serve(self._work, self._idle)

    def finish(self) -> None:
        self._work.put(None)


_caller: ContextVar[CallingThread | None] = ContextVar("redrive_caller", default=None)


class CallingThreads(Threads):
    """The caller's own thread where one waits for us, else one of ours."""

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        caller = _caller.get()
        return super().run(function) if caller is None else caller.run(function)


def _can_stop(handler: Handler) -> bool:
    """A coroutine can be stopped, and so can what runs in a caller's own thread; a thread of ours cannot."""
    return handler.is_async or _caller.get() is not None


def _elsewhere(handler: Handler) -> bool:
    """A plain function runs in the thread of whoever called."""
    caller = _caller.get()
    if not handler.is_async and caller is not None:
        return not caller.on_main_thread
    return on_another_loop(handler)


def called_from(caller: CallingThread) -> None:
    """From here on, in this task, functions run in that thread."""
    _caller.set(caller)


# ---- the cycle


class Turns:
    """Gives each job of one cycle its turn, once."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        clock: Clock,
        *,
        queue: str,
        cycle_id: str,
        record: RunRecord,
        wait: Wait | None = None,
    ) -> None:
        self.queue = queue
        self._record = record
        self.cycle_id = cycle_id
        self.entries: dict[str, Turn] = {}
        """Every job that had its turn here, or is known to have had it elsewhere, by its id."""
        self.skipped = 0
        """Calls for jobs that are counted already, and dead letters of what was done meanwhile."""
        self.brought_back = 0
        self._store = store
        self._registry = registry
        self._clock = clock
        self._spot = OnTheSpot(
            store,
            registry,
            clock,
            "cycle",
            threads=CallingThreads(),
            wait=wait,
            can_stop=_can_stop,
            elsewhere=_elsewhere,
            interrupted="the script was interrupted",
        )
        self._known: set[str] = set()
        self._letters: defaultdict[str, list[str]] = defaultdict(list)
        """Dead letters of earlier cycles, by what they are letters of."""
        self._had_turn: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """Which jobs of a (task, job_id) had their turn here, or have it elsewhere."""
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
        """Count the jobs that have had their turn: those that were given back have not."""
        return sum(entry.job.state not in (State.waiting, State.running) for entry in self.entries.values())

    async def end(self) -> None:
        """Look once more for what ran elsewhere; let go of threads."""
        await self._spot.stop()
        elsewhere = [id for id, entry in self.entries.items() if entry.status == "running_elsewhere"]
        for job in await self._store.get(elsewhere) if elsewhere else []:
            self.entries[job.id] = Turn("skipped" if job.state is State.done else status_of(job), job)

    # -- one job

    async def run(self, job: Job, documents: Sequence[Put], handler: Handler, ignore: Collection[str] = ()) -> Turn:
        """This job's turn; first, that of what the same task left behind in earlier cycles."""
        await self.bring_back(handler)
        job_id, _ = names_of(job)
        key = note_key(self.queue, job.task, job_id)
        async with self._locks[key]:
            note = await self._note(key)
            found = await self._found(key, note, job)
            same = [known for known in found if same_input(known, job, handler.signature, ignore)]
            taken = found[0] if found and not same and was_asked(note, self.cycle_id) else None
            stands = same[0] if same else taken or await self._accept(job, documents)
            if taken or not same_input(stands, job, handler.signature, ignore):
                return await self._refused(job, documents, stands)
            note = await self._noted_asking(key, note, stands)
            return self._asked_for(await self._turn(stands, handler, key, note))

    def _asked_for(self, entry: Turn) -> Turn:
        self._asked.add(entry.job.id)
        return entry

    async def _found(self, key: str, note: CycleNote | None, job: Job) -> list[Job]:
        """Jobs of this (task, job_id) that have had this cycle's turn, or have it now; this cycle's own job among them.

        Without any of an earlier cycle the insert finds the own one, and nothing need be read here.
        """
        earlier = [id for id in (*turns_in(note, self.cycle_id), *self._had_turn[key]) if id != job.id]
        return await self._store.get(list(dict.fromkeys([job.id, *earlier]))) if earlier else []

    async def _accept(self, job: Job, documents: Sequence[Put]) -> Job:
        """On disk from here on; the one that is there already where this cycle has had it before."""
        (inserted,) = await self._store.insert([job], documents)
        return inserted.job

    async def _noted_asking(self, key: str, note: CycleNote | None, stands: Job) -> CycleNote | None:
        """Remember in the store that the script asked for what an earlier cycle left: another input is refused then."""
        if names_of(stands)[1] == self.cycle_id or self._is_for_ever(stands) or was_asked(note, self.cycle_id):
            return note
        asked = after_asking(note, stands, self.cycle_id)
        await commit(self._store, puts=[CYCLE_NOTE.put(key, asked)], what=f"{key} was asked for by this script")
        return asked

    def _is_for_ever(self, job: Job) -> bool:
        return job.key == key_of(self.queue, job.task, names_of(job)[0], None)

    async def _refused(self, job: Job, documents: Sequence[Put], known: Job) -> Turn:
        """Keep an input that this cycle refuses as a dead letter: it is neither dropped nor run."""
        job_id, cycle_id = names_of(job)
        where = f"in cycle {cycle_id}" if cycle_id else "for ever"
        problem = (
            f"{job_id!r} stands for another input {where} (job {known.short_id}); this one was kept and did not run"
        )
        letter = conflicting(job, capture(KeyReused(field="job_id", problem=problem)), self._clock.now())
        (inserted,) = await self._store.insert([letter], move_documents(letter.id, documents))
        if not inserted.duplicate:
            log.warning("job %s (%s) is a dead letter: %s", letter.short_id, letter.task, letter.error)
        return self._asked_for(self._counted(inserted.job))

    async def _turn(self, job: Job, handler: Handler, key: str, note: CycleNote | None) -> Turn:
        """Run it if it can run now; else say how it stands."""
        self._had_turn[key][job.id] = None
        for _ in range(ROUNDS):
            if job.state is State.waiting and job.run_at <= self._clock.now():
                return await self._tried(job, key, note)
            if job.state is State.held and job.because == "circuit_open" and job.id not in self.entries:
                job = await self._moved(lifecycle.unblocked(job, self._clock.now(), who=self._who))
            elif job.state is State.running and await self._is_lapsed(job):
                job = await self._recovered(job, key, note)
            else:
                break
        return self._counted(job)

    def _counted(self, job: Job, value: object = None, *, ran: bool = False) -> Turn:
        """Count every job once: one that ran when it came back is asked for only afterwards.

        A second call for a job that is done counts as already done.
        """
        status = status_of(job)
        if status != "done" or ran:
            entry = self.entries[job.id] = Turn(status, job, value)
            return entry
        entry = Turn("skipped", job)
        before = self.entries.get(job.id)
        if before is None or before.status not in GOOD:
            self.entries[job.id] = entry
        elif job.id in self._asked:
            self.skipped += 1
        return entry

    @property
    def _who(self) -> str:
        return f"{self.queue} {self.cycle_id}"

    # -- what earlier cycles left

    async def bring_back(self, handler: Handler) -> None:
        """The first time a function is known: what it left behind has its turn first, the oldest before the others."""
        async with self._locks[handler.name]:
            if handler.name in self._known:
                return
            async for letter in self._each(Filter(states=(State.dead,), queue=self.queue, task=handler.name)):
                self._letters[note_key(self.queue, letter.task, names_of(letter)[0])].append(letter.id)
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
        found = [job.id for filter in chosen async for job in self._each(filter)]
        return sorted(await self._store.get(found), key=lambda job: job.created_at)

    async def _each(self, filter: Filter) -> AsyncIterator[Job]:
        async for page in pages(self._store, filter, PAGE, oldest=True):
            for job in page:
                yield job

    async def _resume(self, job: Job, handler: Handler) -> None:
        job_id, own = names_of(job)
        key = note_key(self.queue, job.task, job_id)
        async with self._locks[key]:
            note = await self._note(key)
            if job.state is State.running and await self._is_lapsed(job):
                job = await self._recovered(job, key, note)
            if job.state is State.running:
                self._had_turn[key][job.id] = None  # somebody else is at it
                return
            if await self._has_had_turn(job, key, note):
                return
            if job.state is State.dead and job.lane == "delayed":
                most = self._registry.policy_for(job).max_attempts or 1
                job = await self._moved(
                    lifecycle.pulled(
                        job,
                        self._clock.now(),
                        max_attempts=most,
                        who=self._who,
                        why="the delayed lane comes back in the next cycle",
                    )
                )
            entry = await self._turn(job, handler, key, note)
            self.brought_back += own != self.cycle_id and entry.status != "running_elsewhere"

    async def _has_had_turn(self, job: Job, key: str, note: CycleNote | None) -> bool:
        """Done or failed in this cycle already. A letter of what was done meanwhile needs nobody any more."""
        if job.id in turns_in(note, self.cycle_id) or names_of(job)[1] == self.cycle_id:
            return job.state is State.dead
        if not await self._done_already(job, key, note):
            return False
        if job.state is State.dead:
            why = f"the same job was done in cycle {self.cycle_id}"
            await self._moved(lifecycle.resolved(job, self._clock.now(), who=self._who, why=why))
            self.skipped += 1
        return job.state in (State.dead, State.waiting)

    async def _done_already(self, job: Job, key: str, note: CycleNote | None) -> bool:
        """Say whether another job with the same input was done in this cycle; another input is other work."""
        job_id, _ = names_of(job)
        keys = [key_of(self.queue, job.task, job_id, cycle) for cycle in (self.cycle_id, None)]
        ids = [*(keyed_id(self.queue, own) for own in keys), *turns_in(note, self.cycle_id), *self._had_turn[key]]
        others = [other for other in await self._store.get(list(dict.fromkeys(ids))) if other.id != job.id]
        return any(other.state is State.done and same_work(job, other) for other in others)

    async def _close_letters(self, job: Job, key: str) -> None:
        """What was done needs no letters of earlier cycles; those with other arguments are other work."""
        for letter in await self._store.get(self._letters[key]) if self._letters[key] else []:
            if settles(job, letter):
                self._letters[key].remove(letter.id)
                why = f"the same job succeeded in cycle {self.cycle_id}"
                await self._moved(lifecycle.resolved(letter, self._clock.now(), who=self._who, why=why))

    # -- on the spot

    async def _tried(self, job: Job, key: str, note: CycleNote | None) -> Turn:
        """Run it, and again for as long as the decision is to try again here and now."""
        async with self._room(job):
            ran = await self._spot.run(job, lambda move: self._remembered(move, key, note), self._interrupted)
        done = ran.move is not None
        if done and ran.job.state is State.done:
            await self._close_letters(ran.job, key)
        return self._counted(ran.job, ran.value, ran=done)

    def _interrupted(self, job: Job) -> None:
        """How it stands is known to the summary, also where the script ends here."""
        self.entries[job.id] = Turn(status_of(job), job)

    @asynccontextmanager
    async def _room(self, job: Job) -> AsyncIterator[None]:
        """A job that was there at two crashes gets the process to itself."""
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
        """Whoever must be alone goes first; until then nobody else begins."""
        self._suspects += alone
        try:
            await self._door.wait_for(lambda: not (self._inside if alone else self._lone or self._suspects))
        finally:
            self._suspects -= alone
        self._inside += 1
        self._lone = alone

    def _remembered(self, move: Transition, key: str, note: CycleNote | None) -> list[Put]:
        """What the next call or the next cycle must know, in the commit that ends this turn."""
        after = move.after(0)
        if move.to is State.done:
            kept = after_success(note, after, self.cycle_id)
        elif move.move in ("buried", "held_back"):
            kept = after_failure(note, after, self.cycle_id)
        else:
            return []
        puts = [self._record.progress(self.ended + (after.id not in self.entries))]
        if kept is None and note is None:
            return puts
        return [*puts, CYCLE_NOTE.put(key, kept) if kept is not None else CYCLE_NOTE.drop(key)]

    # -- the store

    async def _note(self, key: str) -> CycleNote | None:
        kept = await CYCLE_NOTE.get(self._store, key)
        return kept.value if kept is not None else None

    async def _moved(self, move: Transition, puts: Sequence[Put] = ()) -> Job:
        """The job after this move, or as somebody else has made it meanwhile."""
        return await self._spot.committed(Commit((move,), tuple(puts)))

    # -- leases

    async def _is_lapsed(self, job: Job) -> bool:
        if job.id not in self._spot.lapsed:
            await self._spot.look_for_lapsed()
        return job.id in self._spot.lapsed and self._spot.lapsed[job.id].token == job.token

    async def _recovered(self, job: Job, key: str, note: CycleNote | None) -> Job:
        """It lost its process: the same way as any failure."""
        self._spot.lapsed.pop(job.id)
        move = await self._spot.attempts.lost(job, self._spot.endings.pop(job.id, "lapsed"))
        return await self._moved(move, self._remembered(move, key, note))

    # -- at the end

    async def left(self) -> list[Left]:
        """What stands in this cycle's queue and had no turn here."""
        found = Counter[tuple[str, Status]]()
        for state, by in (
            (State.dead, "lane"),
            (State.held, "because"),
            (State.waiting, "state"),
            (State.running, "state"),
        ):
            counted = await self._store.count(Filter(states=(state,), queue=self.queue), by=("task", by))
            for (task, how), number in counted.items():
                found[str(task), _left_status(state, how)] += number
        return left_over(found, [(entry.job.task, entry.status) for entry in self.entries.values()])


def _left_status(state: State, how: str | None) -> Status:
    if state is State.running:
        return "running_elsewhere"
    return "diverted" if state is State.waiting or how in ("delayed", "circuit_open") else "needs_you"
