"""One step of a run: move some items, look what became of those moved before, and do what follows from it.

A chunk is moved in one commit: its jobs' moves, what became of its items, and the run's new numbers, all of them only
if chunk and run are still as they were read. So it does not matter who takes a step, how many take one at once, or
when they are killed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from redrive.core.job import Job, State
from redrive.deadletters import bulk as rules
from redrive.deadletters.bulk.run import CHUNK, Flight, Item, RedriveRun
from redrive.deadletters.redrives.documents import Documents, Loaded, parts
from redrive.deadletters.redrives.moves import Mover
from redrive.deadletters.verbs import PURGE
from redrive.engine.bus import BusEvent
from redrive.errors import StoreError

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.redrives")
STALE_CHUNKS: Final = 5
"""After so many chunks that other processes were faster with, a step ends."""
MOVED_CHUNKS: Final = 20
"""Commits of moves that one step of all redrives together makes, at most; each of them may make one."""
LOOKED_CHUNKS: Final = 10
"""Chunks whose open items one step of all of them looks at, likewise."""
FREEZING_SECONDS: Final = 300.0
"""A start that has not come to its end by then has died on the way; what it wrote is cleared away."""
GIVEN_UP: Final = Flight(0.0)


class _Look(NamedTuple):
    """How looking for what has ended goes: only a matter of taking turns and of not looking in vain."""

    last: int = -1
    """The chunk after which the next look begins."""
    moment: str = ""
    """Where the feed of moves stood when nothing was found for the first time."""
    in_vain: int = 0
    """How many chunks were looked at since."""


class Steps:
    """Takes steps, in whatever process."""

    def __init__(self, core: Core, documents: Documents) -> None:
        self._core = core
        self._documents = documents
        self._mover = Mover(core)
        self._looks: dict[str, _Look] = {}

    async def take(self, id: str, *, among: int = 1, thorough: bool = False) -> int:
        """How much changed. `among` so many redrives a step has to be shared."""
        moved = await self._move_some(id, max(1, MOVED_CHUNKS // among))
        settled = await self._settle_some(id, None if thorough else max(1, LOOKED_CHUNKS // among))
        return moved + settled + await self._turn(id)

    async def _turn(self, id: str) -> int:
        loaded = await self._documents.load(id)
        if loaded is None:
            return 0
        run = rules.turned(loaded.run, self._core.clock.now())
        if run.verb == rules.UNDO and run.over:
            await self._documents.tell_undone(run, self._core.clock.now())
        if run is loaded.run:
            return 0
        if run.over:
            self._looks.pop(id, None)
        return await self._changed(loaded, run)

    async def _changed(self, loaded: Loaded, run: RedriveRun) -> int:
        """Written, and told by whoever wrote it. That it needs a person is a warning; that it is over is not."""
        if not await self._documents.save(run, loaded.version):
            return 0
        if run.state != loaded.run.state and (run.brings_back or run.state == "paused"):
            level = logging.WARNING if run.state == "paused" or run.failed_again else logging.INFO
            log.log(level, "redrive %s is %s", run.id, run.text)
            said = {"id": run.id, "state": run.state, "text": run.text}
            self._core.bus.publish(BusEvent(f"redrive_{run.state}", "", self._core.clock.now(), data=said))
        return 1

    # -- moving

    async def _move_some(self, id: str, most: int) -> int:
        """Chunk after chunk, as far as rate and canary allow, until this step has had its share."""
        took = stale = 0
        for _ in range(most):
            loaded = await self._documents.load(id)
            if loaded is None or not (room := rules.room(loaded.run, self._core.clock.now())):
                break
            moved = await self.move_chunk(loaded, room)
            took, stale = took + moved, stale + (not moved)
            if stale == STALE_CHUNKS:
                break  # others are at work on the same items; the next step looks again
        return took

    async def move_chunk(self, loaded: Loaded, room: int) -> int:
        """The next items of one chunk, in one commit; how many were taken, 0 when somebody else was faster."""
        run, now = loaded.run, self._core.clock.now()
        number, offset = divmod(run.position, CHUNK)
        chunk = await self._documents.chunk(run.id, number)
        if chunk is None:
            raise StoreError(f"chunk {number} of redrive {run.id} is gone; cancel it, and start another for the rest")
        asked = chunk.items[offset : offset + room]
        moves = await self._mover.moves(run, asked, await self._jobs(asked), now)
        took = len(moves.items)
        after = (*chunk.items[:offset], *moves.items, *chunk.items[offset + took :])
        noted = rules.noted(run, number, chunk.items, after, now, took=took)
        if rules.defective(run, noted):
            return await self._stop(loaded, moves.first_reason)
        written = parts(chunk, after, loaded, noted)
        if not await self._documents.write_step(run.id, (*moves.puts, *written), moves.transitions):
            return 0
        return took

    async def _jobs(self, items: Sequence[Item]) -> dict[str, Job]:
        return {job.id: job for job in await self._core.store.get([item.id for item in items])}

    async def _stop(self, loaded: Loaded, why: str | None) -> int:
        """Paused by itself, with the items as they were."""
        paused = rules.paused(loaded.run, self._core.clock.now(), rules.REDRIVE, why)
        return await self._changed(loaded, paused) if paused is not None else 0

    # -- looking what became of them

    async def _settle_some(self, id: str, most: int | None) -> int:
        """In turn, only chunks that have open items, and none while nothing at all has moved in the store."""
        loaded = await self._documents.load(id)
        if loaded is None or not loaded.run.open:
            return 0
        moment = (await self._core.store.events(None))[-1].cursor
        look = self._looks.get(id, _Look())
        if look.moment != moment:
            look = _Look(look.last, moment)
        turns = rules.turns(loaded.run, look.last)
        found = 0
        for number in turns[:most]:
            if look.in_vain >= len(turns):
                break
            found += (changed := await self._settle_chunk(id, number))
            look = _Look(number, "" if changed else look.moment, 0 if changed else look.in_vain + 1)
        self._looks[id] = look
        return found

    async def _settle_chunk(self, id: str, number: int) -> int:
        loaded, chunk = await self._documents.load(id), await self._documents.chunk(id, number)
        if loaded is None or chunk is None:
            return 0
        jobs = await self._jobs([item for item in chunk.items if item.status == "moved"])
        if loaded.run.verb == PURGE.name:
            await self._core.store.erase([job.id for job in jobs.values() if job.state is State.purged])
        after = tuple(rules.settled(item, jobs.get(item.id)) for item in chunk.items)
        changed = sum(old.status != new.status for old, new in zip(chunk.items, after, strict=True))
        if not changed:
            return 0
        noted = rules.noted(loaded.run, number, chunk.items, after, self._core.clock.now())
        written = await self._documents.write_step(id, parts(chunk, after, loaded, noted))
        return changed if written else 0

    # -- clearing away

    async def clear(self, id: str, flight: Flight) -> int:
        """What a start that died on the way left behind. Nothing of it was ever moved.

        It is given up first, so that a start that was only slow finds that out, and forgotten last.
        """
        if flight != GIVEN_UP:
            if self._core.clock.now() - flight.at < FREEZING_SECONDS:
                return 0
            if not await self._documents.fly(id, flight, GIVEN_UP):
                return 0
        await self._documents.drop_items(id)
        return int(await self._documents.fly(id, GIVEN_UP, None))
