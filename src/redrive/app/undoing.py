"""Taking an act back: chunk by chunk, as it was done, and only what nobody has touched since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from redrive.app.acts import GROUP, SIZE, Acts, before_key, items_key, put_act
from redrive.app.namespace import TRIES
from redrive.core.checks import check_id, check_words
from redrive.core.documents import ACT_BEFORE, ACT_ITEMS, JOB_NOTE
from redrive.core.job import Json, iso
from redrive.core.lifecycle import Transition
from redrive.core.store import Applied, Commit, Put
from redrive.core.triage import GONE, ITEMS_KEPT, REFUSED_KEPT, Act, Acted, Chunk, Item, Refused, taken_back, untouched
from redrive.errors import InvalidInput, StaleJob

if TYPE_CHECKING:
    from redrive.app import Redrive

TOO_LATE: Final = f"is older than {ITEMS_KEPT / 86400:.0f} days, and what was before is no longer known"


class Undoing:
    """Puts jobs back where an act found them."""

    def __init__(self, app: Redrive, acts: Acts) -> None:
        self._app = app
        self._acts = acts

    async def undo(self, act_id: str, who: str, why: str | None) -> Acted:
        """Every job that nobody has touched since goes back to where it was; the others are told.

        An act that still goes on is stopped first.
        """
        check_words(who, why)
        check_id("act", act_id)
        if act_id.startswith(GROUP):
            return await self._undo_group(act_id, who, why)
        act, version = await self._stopped(act_id, who)
        refused: list[Refused] = []
        said = why or f"{act.verb} taken back"
        moved = 0
        for number in range(act.chunks):
            moved += await self._undo_chunk(act, number, who, said, refused)
        done = msgspec.structs.replace(act, undone_at=self._app.clock.now(), undone_by=who, undone=moved)
        await self._app.store.apply([Commit(puts=(put_act(done, version),))])  # unless another act stands there by now
        return Acted("undo", act.id, moved + len(refused), moved, refused[:REFUSED_KEPT])

    async def _stopped(self, act_id: str, who: str) -> tuple[Act, int]:
        """The act and the version of its document: as it will stay, because an act that goes on finds it changed."""
        for _ in range(TRIES * SIZE):
            act, version = await self._acts.read(act_id)
            if problem := _why_not(act):
                raise InvalidInput(field="act", problem=problem)
            if act.finished:
                return act, version
            act = msgspec.structs.replace(act, undone_by=who)
            (outcome,) = await self._app.store.apply([Commit(puts=(put_act(act, version),))])
            if isinstance(outcome, Applied):
                return act, version + 1
        raise StaleJob("the act keeps going on; try again", job_id="")

    async def _undo_chunk(self, act: Act, number: int, who: str, why: str, refused: list[Refused]) -> int:
        key = items_key(act.id, number)
        for _ in range(TRIES * SIZE):
            read = await ACT_ITEMS.get(self._app.store, key)
            if read is None:
                raise InvalidInput(field="act", problem=TOO_LATE)
            chunk = read.value
            if chunk.undone_at is not None:
                return len(chunk.items)  # an undo that was killed has done this
            moves, puts, left = await self._backwards(act, chunk, who, why)
            now = self._app.clock.now()
            kept = tuple(item for item in chunk.items if item.job_id not in {one.job_id for one in left})
            done = ACT_ITEMS.put(key, Chunk(chunk.at, kept, now), read.version)
            (outcome,) = await self._app.store.apply([Commit(tuple(moves), (*puts, done))])
            if isinstance(outcome, Applied):
                refused += left
                return len(kept)
        raise StaleJob("these jobs keep changing; try again", job_id=act.job_id or "")

    async def _backwards(
        self, act: Act, chunk: Chunk, who: str, why: str
    ) -> tuple[list[Transition], list[Put], list[Refused]]:
        moves: list[Transition] = []
        puts: list[Put] = []
        left: list[Refused] = []
        jobs = {job.id: job for job in await self._app.store.get([item.job_id for item in chunk.items])}
        now = self._app.clock.now()
        for item in chunk.items:
            job = jobs.get(item.job_id)
            if act.verb == JOB_NOTE.name:
                puts.append(JOB_NOTE.drop(str(item.before[JOB_NOTE.name])))
            elif job is None:
                left.append(Refused(item.job_id, "it is no more"))
            elif not untouched(job, act.verb, chunk):
                left.append(Refused(job.id, f"it was changed since: it is {job.state}"))
            else:
                moves.append(taken_back(job, act.verb, await self._before(item), now, who, why))
                puts += [Put(kind, key, None if text is None else text.encode()) for kind, key, text in item.documents]
        return moves, puts, left

    async def _before(self, item: Item) -> dict[str, Json]:
        kept = await ACT_BEFORE.get(self._app.store, before_key(item.job_id)) if item.apart else None
        return kept.value if kept is not None else item.before

    async def _undo_group(self, act_id: str, who: str, why: str | None) -> Acted:
        """What was said of a group is taken back by reopening it."""
        fingerprint = act_id.removeprefix(GROUP)
        view = await self._app.groups.show(fingerprint)
        if view.status == "unresolved":
            raise InvalidInput(field="act", problem="was taken back already: the group is open")
        await self._app.groups.reopen(fingerprint, who=who, why=why)
        return Acted("undo", act_id, 1, 1)


def _why_not(act: Act) -> str | None:
    """Why an act cannot be taken back, whatever became of its jobs."""
    if act.undone_at is not None:
        return f"was taken back already, by {act.undone_by} at {iso(act.undone_at)}"
    if act.verb == "purge":
        return "is a purge: what it removed is gone for good"
    if gone := act.said.get(GONE):
        return f"is an edit that has forgotten {gone} steps, which are too many to be put back"
    if not act.undoable:
        return f"is a {act.verb}, which cannot be taken back"
    return TOO_LATE if act.moved and not act.chunks else None
