"""Takes one step of a run: moves some items, reads the results of those moved before, and changes the run's state.

A chunk is moved in one commit: its jobs' moves, what became of its items, and the run's new numbers, all of them only
if chunk and run are still as they were read. So any process may take a step, several may
take one at once, and each may be killed at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from redrive.core.commit import commit, commit_in_parts
from redrive.core.documents import Kept
from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Put, Store
from redrive.deadletters import bulk_progress, bulk_run
from redrive.deadletters.bulk_run import REDRIVE, REDRIVE_ITEMS, UNDO, Flight, Flights, RedriveRun, RunItem
from redrive.deadletters.redrives.moves import Mover
from redrive.deadletters.verbs import PURGE
from redrive.engine.bus import BusEvent
from redrive.errors import StoreError

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.redrives")
STALE_CHUNKS: Final = 5
"""Number of chunks lost to faster processes after which a step ends."""
MOVED_CHUNKS: Final = 20
"""Most commits of moves in one step of all redrives together; each redrive may make at least one."""
LOOKED_CHUNKS: Final = 10
"""Most chunks whose open items one step of all redrives together checks; each redrive checks at least one."""
FREEZING_SECONDS: Final = 300.0
"""Age after which an unfinished start counts as dead, and the documents that the start wrote are dropped."""
GIVEN_UP: Final = Flight(0.0)


class _LookProgress(NamedTuple):
    """Progress of the search for ended jobs: serves only to take chunks in turn and to avoid useless reads."""

    last: int = -1
    """Chunk after which the next check begins."""
    moment: str = ""
    """Cursor of the events feed when a check found nothing for the first time."""
    in_vain: int = 0
    """Number of chunks checked since."""


class Steps:
    """Takes the steps of runs. Any process may take the next one."""

    def __init__(self, core: Core, documents: Documents) -> None:
        self._core = core
        self._documents = documents
        self._mover = Mover(core)
        self._looks: dict[str, _LookProgress] = {}

    async def take(self, id: str, *, among: int = 1, thorough: bool = False) -> int:
        """Takes one step; returns the number of changes. The limits of a step are shared `among` so many redrives."""
        moved = await self._move_some(id, max(1, MOVED_CHUNKS // among))
        ended = await self._settle_some(id, None if thorough else max(1, LOOKED_CHUNKS // among))
        return moved + ended + await self._turn(id)

    async def _turn(self, id: str) -> int:
        loaded = await self._documents.load(id)
        if loaded is None:
            return 0
        run = bulk_progress.advance(loaded.value, self._core.clock.now())
        if run.verb == UNDO and run.over:
            await self._documents.tell_undone(run, self._core.clock.now())
        if run is loaded.value:
            return 0
        if run.over:
            self._looks.pop(id, None)
        return await self._announce(loaded, run)

    async def _announce(self, loaded: Loaded, run: RedriveRun) -> int:
        """Logs and publishes a new state of the run. A state that needs a person is logged as a warning."""
        if not await self._documents.save(run, loaded.version):
            return 0
        if run.state != loaded.value.state and (run.brings_back or run.state == "paused"):
            level = logging.WARNING if run.state == "paused" or run.failed_again else logging.INFO
            log.log(level, "redrive %s is %s", run.id, run.text)
            data = {"id": run.id, "state": run.state, "text": run.text}
            self._core.bus.publish(BusEvent(f"redrive_{run.state}", "", self._core.clock.now(), data=data))
        return 1

    # -- moving

    async def _move_some(self, id: str, most: int) -> int:
        """Moves chunk after chunk, as far as rate and canary allow, up to the limit of one step."""
        took = stale = 0
        for _ in range(most):
            loaded = await self._documents.load(id)
            if loaded is None or not (room := bulk_progress.room(loaded.value, self._core.clock.now())):
                break
            moved = await self.move_chunk(loaded, room)
            took, stale = took + moved, stale + (not moved)
            if stale == STALE_CHUNKS:
                break  # other processes move the same items; the next step tries again
        return took

    async def move_chunk(self, loaded: Loaded, room: int) -> int:
        """Moves the next items of one chunk in one commit; returns how many, 0 if another process was faster."""
        run, now = loaded.value, self._core.clock.now()
        number, offset = divmod(run.position, bulk_run.CHUNK)
        chunk = await self._documents.chunk(run.id, number)
        if chunk is None:
            raise StoreError(f"chunk {number} of redrive {run.id} is gone; cancel it, and start another for the rest")
        asked = chunk.value[offset : offset + room]
        moves = await self._mover.moves(run, asked, await self._jobs(asked), now)
        took = len(moves.items)
        after = (*chunk.value[:offset], *moves.items, *chunk.value[offset + took :])
        noted = bulk_progress.record_items(run, number, chunk.value, after, now, took=took)
        if bulk_progress.defective(run, noted):
            return await self._stop(loaded, moves.first_reason)
        written = parts(chunk, after, loaded, noted)
        if not await self._documents.write_step(run.id, (*moves.puts, *written), moves.transitions):
            return 0
        return took

    async def _jobs(self, items: Sequence[RunItem]) -> dict[str, Job]:
        return {job.id: job for job in await self._core.store.get([item.id for item in items])}

    async def _stop(self, loaded: Loaded, why: str | None) -> int:
        """Pauses the run automatically, with the items unchanged."""
        paused = bulk_progress.paused(loaded.value, self._core.clock.now(), bulk_progress.REDRIVE, why)
        return await self._announce(loaded, paused) if paused is not None else 0

    # -- results of moved items

    async def _settle_some(self, id: str, most: int | None) -> int:
        """Checks chunks with open items, in turn; stops if all were checked in vain and no job has moved since."""
        loaded = await self._documents.load(id)
        if loaded is None or not loaded.value.open:
            return 0
        moment = (await self._core.store.events(None))[-1].cursor
        look = self._looks.get(id, _LookProgress())
        if look.moment != moment:
            look = _LookProgress(look.last, moment)
        turns = bulk_progress.turns(loaded.value, look.last)
        changes = 0
        for number in turns[:most]:
            if look.in_vain >= len(turns):
                break
            changes += (changed := await self._settle_chunk(id, number))
            look = _LookProgress(number, "" if changed else look.moment, 0 if changed else look.in_vain + 1)
        self._looks[id] = look
        return changes

    async def _settle_chunk(self, id: str, number: int) -> int:
        loaded, chunk = await self._documents.load(id), await self._documents.chunk(id, number)
        if loaded is None or chunk is None:
            return 0
        jobs = await self._jobs([item for item in chunk.value if item.status == "moved"])
        if loaded.value.verb == PURGE.name:
            await self._core.store.erase([job.id for job in jobs.values() if job.state is State.purged])
        after = tuple(bulk_run.settled(item, jobs.get(item.id)) for item in chunk.value)
        changed = sum(old.status != new.status for old, new in zip(chunk.value, after, strict=True))
        if not changed:
            return 0
        noted = bulk_progress.record_items(loaded.value, number, chunk.value, after, self._core.clock.now())
        written = await self._documents.write_step(id, parts(chunk, after, loaded, noted))
        return changed if written else 0

    # -- dropping documents

    async def clear(self, id: str, flight: Flight) -> int:
        """Drops the documents of a start that died on the way. Such a start has moved nothing.

        The flight is marked as given up first, so that a start that was only slow notices, and dropped last.
        """
        if flight != GIVEN_UP:
            if self._core.clock.now() - flight.at < FREEZING_SECONDS:
                return 0
            if not await self._documents.fly(id, flight, GIVEN_UP):
                return 0
        await self._documents.drop_items(id)
        return int(await self._documents.fly(id, GIVEN_UP, None))


ALL: Final = "all"
FROZEN_AT_ONCE: Final = 25
"""Number of chunks that one commit writes."""


Loaded = Kept[RedriveRun]
KeptItems = Kept[tuple[RunItem, ...]]
"""Consecutive items of a run."""


class Documents:
    """Reads the documents of runs, and writes each only if its version is unchanged."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def _store(self) -> Store:
        return self._core.store

    # -- reading

    async def load(self, id: str) -> Loaded | None:
        return await REDRIVE.get(self._store, id)

    async def ids(self) -> list[str]:
        """Lists the ids of all runs, the latest first."""
        return sorted((document.key for document in await self._store.docs(REDRIVE.name)), reverse=True)

    async def latest(self) -> list[RedriveRun]:
        """Reads all runs, the latest first."""
        return [kept.value for kept in reversed(await REDRIVE.all(self._store))]

    async def chunk(self, id: str, number: int) -> KeptItems | None:
        return await REDRIVE_ITEMS.get(self._store, _key(id, number))

    async def flights(self) -> tuple[Flights, int]:
        kept = await bulk_run.REDRIVE_FLIGHTS.get(self._store, ALL)
        return (kept.value, kept.version) if kept is not None else ({}, 0)

    # -- writing

    async def write_step(self, id: str, puts: Iterable[Put], moves: Iterable[Transition] = ()) -> bool:
        """Commits a step of a run; False if another process was faster, and nothing was written."""
        return await commit(self._store, moves, puts, what=f"a step of redrive {id} was taken") is not None

    async def freeze(self, id: str, chunks: Sequence[tuple[RunItem, ...]]) -> None:
        puts = [REDRIVE_ITEMS.put(_key(id, number), items) for number, items in enumerate(chunks)]
        await commit_in_parts(self._store, puts, what=f"the items of redrive {id} were frozen", size=FROZEN_AT_ONCE)

    async def drop_items(self, id: str) -> None:
        keys = [document.key for document in await self._store.docs(REDRIVE_ITEMS.name, f"{id}/")]
        drops = [REDRIVE_ITEMS.drop(key) for key in keys]
        await commit_in_parts(self._store, drops, what=f"the items of redrive {id} were dropped")

    async def drop(self, id: str) -> None:
        await self.write_step(id, [REDRIVE.drop(id)])

    async def save(self, run: RedriveRun, version: int) -> bool:
        """Writes the run and its flight; False if another process was faster."""
        return await self.write_step(run.id, await self.puts_of(run, version))

    async def puts_of(self, run: RedriveRun, version: int) -> list[Put]:
        """Makes the puts of a run, and of its flight if the flight has changed."""
        put = REDRIVE.put(run.id, run, version)
        flights, read_at = await self.flights()
        flight = bulk_run.flight_of(run, flights.get(run.id))
        return [put] if flight == flights.get(run.id) else [put, flown(flights, read_at, run.id, flight)]

    async def fly(self, id: str, known: Flight, flight: Flight | None) -> bool:
        """Changes a flight; False if the flight is no longer the known one."""
        flights, version = await self.flights()
        return flights.get(id) == known and await self.write_step(id, [flown(flights, version, id, flight)])

    async def tell_undone(self, undo: RedriveRun, now: float) -> None:
        """Writes into a run the number of jobs that were taken back. Harmless to repeat."""

        def told(run: RedriveRun | None) -> RedriveRun | None:
            if run is None or run.undone_at is not None:
                return run
            return msgspec.structs.replace(run, undone=undo.moved, undone_at=now)

        await REDRIVE.update(self._store, str(undo.said["act"]), told)


def parts(chunk: KeptItems, items: Sequence[RunItem], loaded: Loaded, run: RedriveRun) -> tuple[Put, Put]:
    """Makes the puts of a step beside its moves: the items and the run, if both are unchanged since they were read."""
    return REDRIVE_ITEMS.put(chunk.key, tuple(items), chunk.version), REDRIVE.put(run.id, run, loaded.version)


def flown(flights: Flights, version: int, id: str, flight: Flight | None) -> Put:
    """Makes the put of all flights, with this flight changed, or dropped if None."""
    others = {other: flying for other, flying in flights.items() if other != id}
    return bulk_run.REDRIVE_FLIGHTS.put(ALL, others if flight is None else {**others, id: flight}, version)


def _key(id: str, number: int) -> str:
    return f"{id}/{number:06d}"
