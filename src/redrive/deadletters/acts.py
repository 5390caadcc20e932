"""Carries out acts on dead letters, one or many at a time, and lists past acts.

An act on one job is one commit: the move, what it overwrote, and the act itself. An act on many is a run (redrives/):
the jobs are frozen when the run begins and moved in commits of up to 200; any worker continues a run whose process was
killed. Documents: `act` and `act_items` for one job, `redrive` and `redrive_items` for many.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.checks import the_only
from redrive.core.commit import Proposal, commit_in_parts, decide_and_commit
from redrive.core.job import Job, new_id
from redrive.core.store import Put
from redrive.deadletters.bulk_run import RedriveRun
from redrive.deadletters.filters import filter_of_many
from redrive.deadletters.orders import SIZE, Order
from redrive.deadletters.triage import (
    ACT,
    ACT_BEFORE,
    ACT_ITEMS,
    ACTS_KEPT,
    CHUNK_KEY,
    ITEMS_KEPT,
    NOT_APART,
    NOT_RESTORED,
    REFUSED_KEPT,
    Act,
    ActChunk,
    Acted,
    ActItem,
    Refused,
    before_key,
    needs_its_own,
)
from redrive.deadletters.verbs import JOB_NOTE, Decided, Note, Verb
from redrive.engine.paging import read_pages
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import InvalidInput, JobError, StaleJob
from redrive.jobs.core import find_job

if TYPE_CHECKING:
    from redrive.deadletters.redrives import Redrives
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.acts")
GROUP: Final = "group."
"""Prefix of the ids of acts on groups; such an act is kept in the group's own document."""
PAGE: Final = 1000


class Acts:
    """Carries out orders on dead letters and lists acts. undo.py takes acts back."""

    def __init__(self, core: Core, redrives: Redrives) -> None:
        self._core = core
        self._redrives = redrives

    # -- many

    async def many(
        self,
        verb: Verb,
        words: Mapping[str, Any],
        ids: Sequence[str] = (),
        filters: Mapping[str, Any] | None = None,
        *,
        all: bool = False,
        who: str,
        why: str | None = None,
    ) -> Acted:
        """Freezes the jobs as a run and carries the run to its end. A worker continues the run if this process dies."""
        runs = self._redrives
        run = await runs.begin(verb, words, ids, filters or {}, all=all, who=who, why=why)
        if run.total:
            run = await runs.carry(run.id)
        return await self.summarize(run)

    async def summarize(self, run: RedriveRun) -> Acted:
        """Summarizes what became of the jobs of a run, with the first hundred that did not move."""
        refused: list[Refused] = []
        if run.skipped or run.left:
            stopped = f"{run.undone_by or 'another process'} took the act back meanwhile"
            stopped = run.reason or "it is paused" if run.state == "paused" else stopped
            async for items in self._redrives.chunks(run):
                refused += [Refused(one.id, one.why or "") for one in items if one.status == "skipped"]
                refused += [Refused(one.id, stopped) for one in items if one.status == "pending"]
                if len(refused) >= REFUSED_KEPT:
                    break
        return Acted(run.verb, run.id, run.total, run.moved, refused[:REFUSED_KEPT])

    async def together(self, order: Order, ids: Sequence[str]) -> int:
        """Moves a few jobs by a program's order, up to `order.size` in one commit; returns how many moved.

        Each commit is a separate, atomic act. A job that the order refuses is left alone.
        """
        return sum(
            [
                await self._in_one_commit(order, ids[start : start + order.size])
                for start in range(0, len(ids), order.size)
            ]
        )

    async def _in_one_commit(self, order: Order, ids: Sequence[str]) -> int:
        async def decide() -> Proposal[int]:
            now = self._core.clock.now()
            decided = _decide_each(order, await self._core.store.get(ids), now)
            return _act_on(order, decided, len(ids), now) if decided else Proposal("act", 0)

        try:
            moved, _ = await decide_and_commit(self._core.store, decide)
        except StaleJob:
            return 0  # other processes keep changing these jobs
        return moved

    # -- the jobs that a verb would act on

    async def matching(self, verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> int:
        chosen = filter_of_many(verb, ids, filters, all=all)
        if chosen is None:
            return len(await self._find_ids(ids))
        return sum((await self._core.store.count(chosen)).values())

    async def meant(self, verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> list[str]:
        """Lists the ids of the jobs that a verb would act on now."""
        chosen = filter_of_many(verb, ids, filters, all=all)
        if chosen is None:
            return await self._find_ids(ids)
        return [job.id async for jobs in read_pages(self._core.store, chosen, PAGE) for job in jobs]

    async def _find_ids(self, ids: Sequence[str]) -> list[str]:
        """Completes each id; a part that only one job's id contains is enough."""
        known: set[str] = set()
        for start in range(0, len(ids), SIZE):
            known |= {job.id for job in await self._core.store.get(ids[start : start + SIZE])}
        return list(dict.fromkeys([id if id in known else (await find_job(self._core.store, id)).id for id in ids]))

    # -- past acts

    async def whole_id(self, part: str) -> str:
        """Finds the id of an act by a part that only one act's id contains. An act on one job has the job's id."""
        if await ACT.get(self._core.store, part) or await self._redrives.run_of(part):
            return part
        known = [kept.key for kept in await ACT.all(self._core.store)]
        known += [run.id for run in await self._redrives.acts()]
        whole = the_only([id for id in known if part in id], part, "act")
        if whole is None:
            raise InvalidInput(field="act", problem=f"there is no act {part!r}")
        return whole

    async def read(self, act_id: str) -> tuple[Act, int]:
        """Reads an act that is one commit, and the version of the act's document."""
        kept = await ACT.get(self._core.store, act_id)
        if kept is None:
            raise InvalidInput(field="act", problem=f"there is no act {act_id!r}")
        return kept.value, kept.version

    async def latest(self, limit: int) -> list[Act]:
        """Lists the latest acts first: acts on jobs, and the resolving or ignoring of groups that still holds."""
        acts = [kept.value for kept in await ACT.all(self._core.store)]
        acts += [act_of(run) for run in await self._redrives.acts()]
        acts += await self._acts_on_groups()
        return sorted(acts, key=lambda act: (-act.at, act.id))[:limit]

    async def _acts_on_groups(self) -> Iterable[Act]:
        from redrive.deadletters.group_alerts import GROUP_STATE

        for_now = []
        for fingerprint, state, _ in await GROUP_STATE.all(self._core.store):
            spoken = [event for event in state.story if event.what.startswith(("resolved", "ignored"))]
            if state.status == "unresolved" or not spoken:
                continue
            last, verb = spoken[-1], "resolve_group" if state.status == "resolved" else "ignore_group"
            named = {"group": fingerprint}
            for_now.append(Act(GROUP + fingerprint, verb, last.at, last.who, last.why, named, number=1, moved=1))
        return for_now

    async def notes(self, id: str) -> Sequence[Note]:
        """Lists the notes on a job, oldest first."""
        job = await find_job(self._core.store, id)
        return [kept.value for kept in await JOB_NOTE.all(self._core.store, f"{job.id}/")]

    async def prune(self) -> int:
        """Drops what undo needs, and acts on one job, after a month, others after a year; redrive scorecards stay."""
        now = await time_for_destroying(self._core.store, self._core.clock)
        puts: list[Put] = []
        for _, act, _ in await ACT.all(self._core.store):
            if now - act.at > ITEMS_KEPT and act.chunks:
                puts += [ACT_ITEMS.drop(CHUNK_KEY.format(act.id, number)) for number in range(act.chunks)]
                puts.append(ACT.put(act.id, msgspec.structs.replace(act, chunks=0)))
            if now - act.at > (ITEMS_KEPT if act.job_id else ACTS_KEPT):
                puts.append(ACT.drop(act.id))
        await commit_in_parts(self._core.store, puts, what="old acts were dropped")
        return len(puts) + await self._prune_runs(now)

    async def _prune_runs(self, now: float) -> int:
        old = [run for run in await self._redrives.every() if run.over and now - run.at > ITEMS_KEPT]
        dropped = 0
        for run in old:
            whole = now - run.at > ACTS_KEPT and not run.brings_back
            if run.items_kept or whole:
                await self._redrives.forget(run, whole=whole)
                dropped += 1
        return dropped


def act_of(run: RedriveRun) -> Act:
    """Converts a run to an act: what was done, to how many jobs, and whether the act can be taken back."""
    return Act(
        run.id, run.verb, run.at, run.who, run.why, run.said, run.filter, number=run.total, moved=run.moved,
        refused=run.skipped, chunks=len(run.open_in) if run.items_kept else 0, finished=not run.left,
        undone=run.undone, undone_at=run.undone_at, undone_by=run.undone_by,
    )  # fmt: skip


def _decide_each(order: Order, jobs: Iterable[Job], now: float) -> list[tuple[Job, Decided]]:
    decisions = []
    for job in jobs:
        try:
            decided = order.decide(job, now)
            decisions.append((job, decided if isinstance(decided, Decided) else Decided(decided)))
        except JobError as refused:
            log.info("job %s is left alone: %s", job.short_id, refused)
    return decisions


def _act_on(order: Order, decided: Sequence[tuple[Job, Decided]], number: int, now: float) -> Proposal[int]:
    """Makes one commit of all moves, the values that the moves overwrite, and the act."""
    puts = {(put.kind, put.key): put for _, one in decided for put in one.puts}
    items = []
    for job, one in decided:
        if one.move is not None and needs_its_own(one.move):
            apart = ACT_BEFORE.put(before_key(job.id), one.move.before(NOT_RESTORED))
            puts[apart.kind, apart.key] = apart
            items.append(ActItem(job.id, apart=True))
        elif one.move is not None:
            items.append(ActItem(job.id, one.move.before(NOT_APART)))
    moves = tuple(one.move for _, one in decided if one.move is not None)
    id, words, refused = new_id(now, secrets.randbits(74)), dict(order.words), number - len(moves)
    act = Act(
        id, order.verb, now, order.who, order.why, words, number=number, moved=len(moves), refused=refused, chunks=1
    )
    kept = ACT_ITEMS.put(CHUNK_KEY.format(act.id, 0), ActChunk(now, tuple(items)))
    return Proposal(f"act {act.id}", len(decided), moves, (*puts.values(), ACT.put(act.id, act), kept), done="done")
