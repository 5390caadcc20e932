"""Takes acts back, for jobs that have not changed since the act.

An act on one job is taken back in one commit. An act on many is taken back by a separate run, whose verb is `undo`
and whose items are those that the act moved, each with its old values; a worker continues a run whose process died.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core.checks import check_id, check_words
from redrive.core.commit import Proposal, decide_and_commit, try_commit
from redrive.core.job import Json, iso, new_id
from redrive.core.lifecycle import Transition
from redrive.core.store import Put
from redrive.deadletters.acts import GROUP, Acts
from redrive.deadletters.bulk_run import CHUNK, REDRIVE, UNDO, RedriveRun, RunItem
from redrive.deadletters.redrives.moves import restore_documents
from redrive.deadletters.triage import (
    ACT,
    ACT_BEFORE,
    ACT_ITEMS,
    CHUNK_KEY,
    GONE,
    ITEMS_KEPT,
    REFUSED_KEPT,
    Act,
    ActChunk,
    Acted,
    ActItem,
    Refused,
    before_key,
    is_untouched,
)
from redrive.deadletters.verbs import JOB_NOTE, VERBS, Back, take_back
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from redrive.deadletters.groups import Groups
    from redrive.deadletters.redrives import Redrives
    from redrive.deadletters.redrives.steps import Loaded
    from redrive.jobs.core import Core

TOO_LATE: Final = f"is older than {ITEMS_KEPT / 86400:.0f} days, and what was before is no longer known"


class _BegunElsewhere(Exception):
    """Another caller has begun to take the act back; this caller continues that run."""

    def __init__(self, undo_id: str) -> None:
        super().__init__(undo_id)
        self.undo_id = undo_id


class Undoing:
    """Puts jobs back where an act found them."""

    def __init__(self, core: Core, acts: Acts, redrives: Redrives, groups: Groups) -> None:
        self._core = core
        self._acts = acts
        self._redrives = redrives
        self._groups = groups

    async def undo(self, act_id: str, who: str, why: str | None) -> Acted:
        """Takes an act back: puts jobs that have not changed since back where they were, and reports the others.

        An act in progress is stopped first.
        """
        check_words(who, why)
        check_id("act", act_id)
        if act_id.startswith(GROUP):
            return await self._undo_group(act_id, who, why)
        act_id = await self._acts.whole_id(act_id)
        loaded = await self._redrives.run_of(act_id)
        if loaded is not None:
            return await self._undo_run(loaded.value, who, why)
        return await self._undo_act(act_id, who, why)

    # -- an act on many

    async def _undo_run(self, run: RedriveRun, who: str, why: str | None) -> Acted:
        """Takes an act on many back by another run; continues an unfinished undo run."""
        if problem := _why_not_run(run):
            raise InvalidInput(field="act", problem=problem)
        undo_id = run.undo_id or await self._begin(await self._redrives.stop_for_undo(run.id, who), who, why)
        undo = await self._redrives.carry(undo_id)
        await self._redrives.tell_undone(undo)
        acted = await self._acts.summarize(undo)
        return msgspec.structs.replace(acted, verb=UNDO, act_id=run.id)

    async def _begin(self, loaded: Loaded, who: str, why: str | None) -> str:
        run, now = loaded.value, self._core.clock.now()
        if run.undo_id is not None:
            return run.undo_id
        items = [item async for chunk in self._redrives.chunks(run) for item in _moved_items(chunk)]
        undo = RedriveRun(
            new_id(now, secrets.randbits(74)), "moving", who, why, now, f"act {run.id}", len(items),
            by_group=run.by_group, open_in=(0,) * -(-len(items) // CHUNK), verb=UNDO,
            said={"act": run.id, "verb": run.verb},
        )  # fmt: skip
        chunks = [tuple(items[start : start + CHUNK]) for start in range(0, len(items), CHUNK)]
        try:
            await self._redrives.launch(undo, chunks, beside=partial(self._name_undo_run, run.id, undo.id, who))
        except _BegunElsewhere as other:
            return other.undo_id
        return undo.id

    async def _name_undo_run(self, act_id: str, undo_id: str, who: str) -> tuple[Put]:
        """Writes the undo run's id into the act's run. Reads that run again, because workers keep updating it."""
        loaded = await self._redrives.run_of(act_id)
        if loaded is None:
            raise InvalidInput(field="act", problem=f"there is no act {act_id!r}")
        if loaded.value.undo_id is not None:
            raise _BegunElsewhere(loaded.value.undo_id)
        named = msgspec.structs.replace(loaded.value, undone_by=who, undo_id=undo_id)
        return (REDRIVE.put(act_id, named, loaded.version),)

    # -- an act on one job, or on a few in one commit

    async def _undo_act(self, act_id: str, who: str, why: str | None) -> Acted:
        act, version = await self._acts.read(act_id)
        if problem := _why_not(act):
            raise InvalidInput(field="act", problem=problem)
        refused: list[Refused] = []
        why = why or f"{act.verb} taken back"
        moved = 0
        for number in range(act.chunks):
            moved += await self._undo_chunk(act, number, who, why, refused)
        done = msgspec.structs.replace(act, undone_at=self._core.clock.now(), undone_by=who, undone=moved)
        what = f"act {act.id} was noted as taken back"
        put = ACT.put(done.id, done, version)  # refused if another act on this job has replaced it
        await try_commit(self._core.store, puts=[put], what=what)
        return Acted(UNDO, act.id, moved + len(refused), moved, refused[:REFUSED_KEPT])

    async def _undo_chunk(self, act: Act, number: int, who: str, why: str, refused: list[Refused]) -> int:
        key, about = CHUNK_KEY.format(act.id, number), f"act {act.id}"

        async def decide() -> Proposal[tuple[int, list[Refused]]]:
            read = await ACT_ITEMS.get(self._core.store, key)
            if read is None:
                raise InvalidInput(field="act", problem=TOO_LATE)
            chunk = read.value
            if chunk.undone_at is not None:
                return Proposal(about, (len(chunk.items), []))  # done already by an undo whose process was killed
            moves, puts, left = await self._backwards(act, chunk, who, why)
            now = self._core.clock.now()
            kept = tuple(item for item in chunk.items if item.job_id not in {one.job_id for one in left})
            done = ACT_ITEMS.put(key, ActChunk(chunk.at, kept, now), read.version)
            return Proposal(about, (len(kept), left), moves, (*puts, done), done="taken back")

        (moved, left), _ = await decide_and_commit(self._core.store, decide)
        refused += left
        return moved

    async def _backwards(
        self, act: Act, chunk: ActChunk, who: str, why: str
    ) -> tuple[list[Transition], list[Put], list[Refused]]:
        moves: list[Transition] = []
        puts: list[Put] = []
        left: list[Refused] = []
        jobs = {job.id: job for job in await self._core.store.get([item.job_id for item in chunk.items])}
        now = self._core.clock.now()
        for item in chunk.items:
            job = jobs.get(item.job_id)
            if VERBS[act.verb].leaves is None:
                puts.append(JOB_NOTE.drop(str(item.before[JOB_NOTE.name])))
            elif job is None:
                left.append(Refused(item.job_id, "it is no more"))
            elif not is_untouched(job, act.verb, chunk.at):
                left.append(Refused(job.id, f"it was changed since: it is {job.state}"))
            else:
                moves.append(take_back(VERBS[act.verb], Back(job, await self._before(item), now, who, why)))
                puts += restore_documents(item.documents)
        return moves, puts, left

    async def _before(self, item: ActItem) -> dict[str, Json]:
        kept = await ACT_BEFORE.get(self._core.store, before_key(item.job_id)) if item.apart else None
        return kept.value if kept is not None else item.before

    # -- acts on groups

    async def _undo_group(self, act_id: str, who: str, why: str | None) -> Acted:
        """Takes back the resolving or ignoring of a group by reopening it."""
        fingerprint = act_id.removeprefix(GROUP)
        view = await self._groups.show(fingerprint)
        if view.status == "unresolved":
            raise InvalidInput(field="act", problem="was taken back already: the group is open")
        await self._groups.reopen(fingerprint, who=who, why=why)
        return Acted(UNDO, act_id, 1, 1)


def _moved_items(items: Iterable[RunItem]) -> Iterable[RunItem]:
    """Converts the items that an act moved to items of the run that takes the act back."""
    for item in items:
        if item.status not in ("pending", "skipped"):
            yield RunItem(item.id, item.group, at=item.at, before=item.before, apart=item.apart)


def _why_not_run(run: RedriveRun) -> str | None:
    """Explains why an act on many cannot be taken back; None if it can."""
    if run.undone_at is not None:
        return f"was taken back already, by {run.undone_by} at {iso(run.undone_at)}"
    if run.verb not in VERBS:
        return "is a purge: what it removed is gone for good"
    return TOO_LATE if run.moved and not run.items_kept else None


def _why_not(act: Act) -> str | None:
    """Explains why an act cannot be taken back; None if it can."""
    if act.undone_at is not None:
        return f"was taken back already, by {act.undone_by} at {iso(act.undone_at)}"
    if act.verb == "purge":
        return "is a purge: what it removed is gone for good"
    if gone := act.said.get(GONE):
        return f"is an edit that has forgotten {gone} steps, which are too many to be put back"
    if not act.undoable:
        return f"is a {act.verb}, which cannot be taken back"
    return TOO_LATE if act.moved and not act.chunks else None
