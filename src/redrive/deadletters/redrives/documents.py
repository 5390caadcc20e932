"""What runs are written in: the run, its frozen items in chunks, and one document of which runs fly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from redrive.core.commit import commit, commit_in_parts
from redrive.core.lifecycle import Transition
from redrive.core.store import Put, Store
from redrive.deadletters import bulk as rules
from redrive.deadletters.bulk.run import REDRIVE, REDRIVE_FLIGHTS, REDRIVE_ITEMS, Flight, Flights, Item, RedriveRun

if TYPE_CHECKING:
    from redrive.jobs.core import Core

ALL: Final = "all"
FROZEN_AT_ONCE: Final = 25
"""Chunks that are written in one commit."""


class Loaded(NamedTuple):
    """A run, and the version it was read at."""

    run: RedriveRun
    version: int


class Chunk(NamedTuple):
    """Some items in a row, and the version they were read at."""

    number: int
    items: tuple[Item, ...]
    version: int


class Documents:
    """Reads them, and writes them only as they were read."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def _store(self) -> Store:
        return self._core.store

    # -- reading

    async def load(self, id: str) -> Loaded | None:
        kept = await REDRIVE.get(self._store, id)
        return Loaded(kept.value, kept.version) if kept is not None else None

    async def ids(self) -> list[str]:
        """Of every redrive there ever was, the latest first."""
        return sorted((document.key for document in await self._store.docs(REDRIVE.name)), reverse=True)

    async def latest(self, limit: int | None) -> list[RedriveRun]:
        documents = sorted(await self._store.docs(REDRIVE.name), key=lambda document: document.key, reverse=True)
        return [REDRIVE.decode(document.value) for document in documents[:limit]]

    async def chunk(self, id: str, number: int) -> Chunk | None:
        kept = await REDRIVE_ITEMS.get(self._store, _key(id, number))
        return Chunk(number, kept.value, kept.version) if kept is not None else None

    async def flights(self) -> tuple[Flights, int]:
        kept = await REDRIVE_FLIGHTS.get(self._store, ALL)
        return (kept.value, kept.version) if kept is not None else ({}, 0)

    # -- writing

    async def write_step(self, id: str, puts: Iterable[Put], moves: Iterable[Transition] = ()) -> bool:
        """Commits a step of a run; False where another process was faster, and nothing was written."""
        return await commit(self._store, moves, puts, what=f"a step of redrive {id} was taken") is not None

    async def freeze(self, id: str, chunks: Sequence[tuple[Item, ...]]) -> None:
        puts = [REDRIVE_ITEMS.put(_key(id, number), items) for number, items in enumerate(chunks)]
        await commit_in_parts(self._store, puts, what=f"the items of redrive {id} were frozen", size=FROZEN_AT_ONCE)

    async def drop_items(self, id: str) -> None:
        keys = [document.key for document in await self._store.docs(REDRIVE_ITEMS.name, f"{id}/")]
        drops = [REDRIVE_ITEMS.drop(key) for key in keys]
        await commit_in_parts(self._store, drops, what=f"the items of redrive {id} were dropped")

    async def drop(self, id: str) -> None:
        await self.write_step(id, [REDRIVE.drop(id)])

    async def save(self, run: RedriveRun, version: int) -> bool:
        """Writes the run, and what it still holds; False where another process was faster."""
        return await self.write_step(run.id, await self.puts_of(run, version))

    async def puts_of(self, run: RedriveRun, version: int) -> list[Put]:
        """Makes the parts that write a run, and its flight where that has changed."""
        put = REDRIVE.put(run.id, run, version)
        flights, read_at = await self.flights()
        flight = rules.flight_of(run, flights.get(run.id))
        return [put] if flight == flights.get(run.id) else [put, flown(flights, read_at, run.id, flight)]

    async def fly(self, id: str, known: Flight, flight: Flight | None) -> bool:
        """Changes a flight; False where it is not the known one any more."""
        flights, version = await self.flights()
        return flights.get(id) == known and await self.write_step(id, [flown(flights, version, id, flight)])

    async def tell_undone(self, undo: RedriveRun, now: float) -> None:
        """Writes into the run that was taken back how much of it was. Harmless to repeat."""

        def told(run: RedriveRun | None) -> RedriveRun | None:
            if run is None or run.undone_at is not None:
                return run
            return msgspec.structs.replace(run, undone=undo.moved, undone_at=now)

        await REDRIVE.update(self._store, str(undo.said["act"]), told)


def parts(chunk: Chunk, items: Sequence[Item], loaded: Loaded, run: RedriveRun) -> tuple[Put, Put]:
    """What a step writes beside its moves: its items and the run, if both are still as they were read."""
    return (
        REDRIVE_ITEMS.put(_key(run.id, chunk.number), tuple(items), chunk.version),
        REDRIVE.put(run.id, run, loaded.version),
    )


def flown(flights: Flights, version: int, id: str, flight: Flight | None) -> Put:
    """The flights as they were read, with this one as it is from now on."""
    others = {other: flying for other, flying in flights.items() if other != id}
    return REDRIVE_FLIGHTS.put(ALL, others if flight is None else {**others, id: flight}, version)


def _key(id: str, number: int) -> str:
    return f"{id}/{number:06d}"
