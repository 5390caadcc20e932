"""Makes one commit of a run: the moves of the next items, the overwritten values, and the documents to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from redrive.core import lifecycle
from redrive.core.commit import commit_each
from redrive.core.job import Job, Json, State
from redrive.core.lifecycle import Transition, is_deferred
from redrive.core.store import MAX_PARTS, Put
from redrive.deadletters import orders
from redrive.deadletters.bulk_run import UNDO, RedriveRun, RunItem, skipped, taken
from redrive.deadletters.orders import Order, list_forgotten, reason_to_recall
from redrive.deadletters.redrives.selection import judge_job, without_id
from redrive.deadletters.triage import ACT_BEFORE, NOT_APART, NOT_RESTORED, before_key, is_untouched, needs_its_own
from redrive.deadletters.verbs import ACTS, JOB_NOTE, VERBS, Back, Decided, take_back
from redrive.engine.workflow_steps import companions_of, is_step
from redrive.errors import JobError

if TYPE_CHECKING:
    from redrive.jobs.core import Core

SPARE: Final = 2
"""Number of parts of a commit that hold the run and its items."""
DOCUMENTS: Final = "documents"
"""Key, beside the fields that a move overwrote, of the job's documents as they were before the move."""
COUNTED: Final = ("redrive", "edit")
"""Verbs whose skipped jobs are counted by reason; other verbs keep the reason with each job."""
LETS_GO: Final = (State.discarded, State.purged)
"""States into which a workflow step takes other steps along, so that the step moves in a separate commit."""


class MovedItem(NamedTuple):
    """One item after its move, and what is written for the item."""

    item: RunItem
    move: Transition | None = None
    puts: tuple[Put, ...] = ()

    @property
    def parts(self) -> int:
        return (self.move is not None) + len(self.puts)


class Moves(NamedTuple):
    """Items, moves and documents of one commit."""

    items: tuple[RunItem, ...]
    transitions: tuple[Transition, ...]
    puts: tuple[Put, ...]

    @property
    def first_reason(self) -> str | None:
        return next((item.why for item in self.items if item.status == "skipped"), None)


class Mover:
    """Decides the move of each item, by the run's verb or by the way back of that verb."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def moves(self, run: RedriveRun, items: Sequence[RunItem], jobs: dict[str, Job], now: float) -> Moves:
        """Makes the moves of as many items, in order, as one commit holds."""
        order = None if run.verb == UNDO else self.order(run)
        if order is not None:
            items = _alone(run, items[: order.size], jobs)
            jobs = await self._recall(run, order, items, jobs)
        moved: list[MovedItem] = []
        for item in items:
            job = jobs.get(item.id)
            decides = (
                self._backwards(run, item, job, now) if order is None else self._forwards(run, order, item, job, now)
            )
            one = await decides
            if moved and SPARE + sum(other.parts for other in moved) + one.parts > MAX_PARTS:
                break
            moved.append(one)
        alone = moved[0].move if order is not None and len(moved) == 1 else None
        others = await companions_of(self._core.store, self._core.clock, alone)
        return _join_moves(moved, others)

    def order(self, run: RedriveRun) -> Order:
        """Makes the run's order again from the stored verb and words."""
        why = run.why
        if run.verb == "redrive":
            why = f"redrive {run.short_id}" + (f": {run.why}" if run.why else "")
        return orders.make_order(self._core, ACTS[run.verb], run.words, run.who, why)

    # -- forwards

    async def _forwards(self, run: RedriveRun, order: Order, item: RunItem, job: Job | None, now: float) -> MovedItem:
        if job is None:
            return MovedItem(skipped(item, "its record is gone"))
        decided = judge_job(order, job, now, unknown_too=run.unknown_too)
        if isinstance(decided, str):
            return MovedItem(skipped(item, without_id(decided, job) if run.verb in COUNTED else decided))
        if run.verb == "edit":
            return await self._forget_for_edit(item, job, decided, now)
        if ACTS[run.verb].final:
            return MovedItem(taken(item, job.run, now), decided.move, decided.puts)  # nothing is kept for undo
        return _keep_overwritten(item, job, decided, now)

    async def _forget_for_edit(self, item: RunItem, job: Job, decided: Decided, now: float) -> MovedItem:
        """Drops what was remembered for the old input, and keeps the documents with the item for undo."""
        gone = await list_forgotten(self._core.store, job)
        if gone.gone:
            many = len(gone.puts) + len(gone.gone)
            return MovedItem(skipped(item, f"has {many} remembered steps, which are too many: edit it by its id"))
        documents: list[Json] = []
        for put in gone.puts:
            document = await self._core.store.doc(put.kind, put.key)
            documents.append([put.kind, put.key, document.value.decode() if document is not None else None])
        return _keep_overwritten(item, job, decided._replace(puts=(*decided.puts, *gone.puts)), now, documents)

    async def _recall(
        self, run: RedriveRun, order: Order, items: Sequence[RunItem], jobs: dict[str, Job]
    ) -> dict[str, Job]:
        """Recalls deferred jobs before a verb that needs dead letters."""
        now, recalls = self._core.clock.now(), []
        for job in (jobs[item.id] for item in items if item.id in jobs):
            if not order.recalls or run.verb == "redrive" or not is_deferred(job):
                continue
            move = lifecycle.recalled(job, now, who=order.who, why=reason_to_recall(order))
            if isinstance(judge_job(order, move.after(job.version), now, unknown_too=run.unknown_too), Decided):
                recalls.append(move)
        if not recalls:
            return jobs
        done = [move.job.id for move in await commit_each(self._core.store, recalls)]
        return {**jobs, **{job.id: job for job in await self._core.store.get(done)}}

    # -- backwards

    async def _backwards(self, run: RedriveRun, item: RunItem, job: Job | None, now: float) -> MovedItem:
        verb = VERBS[str(run.said["verb"])]
        if verb.leaves is None:
            return MovedItem(taken(item, 0, now), None, (JOB_NOTE.drop(str(item.before[JOB_NOTE.name])),))
        if job is None:
            return MovedItem(skipped(item, "it is no more"))
        if not is_untouched(job, verb.name, item.at):
            return MovedItem(skipped(item, f"it was changed since: it is {job.state}"))
        before = dict(item.before)
        if item.apart:
            kept = await ACT_BEFORE.get(self._core.store, before_key(job.id))
            before = kept.value if kept is not None else {}
        documents = before.pop(DOCUMENTS, None) or ()
        why = run.why or f"{verb.name} taken back"
        try:
            move = take_back(verb, Back(job, before, now, run.who, why))
        except JobError as refused:
            return MovedItem(skipped(item, str(refused).removeprefix(f"job {job.short_id} ")))
        return MovedItem(taken(item, job.run, now), move, restore_documents(documents))


def restore_documents(documents: Sequence[tuple[str, str, str | None]]) -> tuple[Put, ...]:
    """Makes the puts that restore documents to their old values."""
    return tuple(Put(kind, key, None if text is None else text.encode()) for kind, key, text in documents)


def _keep_overwritten(
    item: RunItem, job: Job, decided: Decided, now: float, documents: Sequence[Json] = ()
) -> MovedItem:
    """Returns the item with the values that its move overwrites; job contents go into a document of the job."""
    move = decided.move
    if move is None:
        note = next((put.key for put in decided.puts if put.kind == JOB_NOTE.name), None)
        return MovedItem(taken(item, job.run, now, {JOB_NOTE.name: note}), None, decided.puts)
    if not needs_its_own(move):
        return MovedItem(taken(item, job.run, now, move.before(NOT_APART)), move, decided.puts)
    before = {**move.before(NOT_RESTORED), **({DOCUMENTS: list(documents)} if documents else {})}
    apart = msgspec.structs.replace(taken(item, job.run, now), apart=True)
    return MovedItem(apart, move, (*decided.puts, ACT_BEFORE.put(before_key(job.id), before)))


def _alone(run: RedriveRun, items: Sequence[RunItem], jobs: Mapping[str, Job]) -> Sequence[RunItem]:
    """Selects the items of one commit: a workflow step that takes others along is alone in its commit."""
    if ACTS[run.verb].leaves not in LETS_GO:
        return items
    steps = [place for place, item in enumerate(items) if item.id in jobs and is_step(jobs[item.id])]
    return items[: max(1, steps[0])] if steps else items


def _join_moves(found: Sequence[MovedItem], others: tuple[Transition, ...]) -> Moves:
    transitions = tuple(one.move for one in found if one.move is not None)
    puts = tuple(put for one in found for put in one.puts)
    room = MAX_PARTS - SPARE - len(transitions) - len(puts)
    return Moves(tuple(one.item for one in found), (*transitions, *others[:room]), puts)
