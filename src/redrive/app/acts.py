"""Acts: what is done to dead letters, one or many at a time, and taking it back.

An act is decided job by job and written in chunks of one commit each: the moves, what they overwrote, and how far the
act has got. So an act that is killed on the way has moved exactly what it says, and can be repeated or taken back.
Documents: `act` is the act itself (under the job's id where it is about one job), `act_items` its chunks.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from redrive.app.filters import make_filter, means_unknown, said_of_many
from redrive.app.namespace import TRIES
from redrive.core import lifecycle
from redrive.core.checks import check_words, the_only
from redrive.core.documents import ACT, ACT_BEFORE, ACT_ITEMS, JOB_NOTE, REDRIVE, Kept
from redrive.core.job import Job, Json, State, new_id
from redrive.core.lifecycle import DEFERRED, Transition
from redrive.core.store import MAX_PARTS, Applied, Commit, Filter, Put, Stale
from redrive.core.triage import (
    ACTS_KEPT,
    ITEMS_KEPT,
    PAST,
    REFUSED_KEPT,
    Act,
    Acted,
    Chunk,
    Item,
    Note,
    Refused,
    needs_its_own,
    overwritten,
)
from redrive.errors import CommitUnknown, InvalidInput, JobError, StaleJob
from redrive.runtime.paging import pages
from redrive.runtime.trusted_time import time_for_destroying
from redrive.runtime.workflow import is_step

if TYPE_CHECKING:
    from redrive.app import Redrive

log = logging.getLogger("redrive.acts")
GROUP: Final = "group."
"""What is said of a group is an act, too: it stands in the group's own document, and its id begins so."""
SIZE: Final = 200
"""Jobs that are moved in one commit."""
SIZE_WITH_DOCUMENTS: Final = 80
"""The same, where each brings up to two documents."""
PAGE: Final = 1000
DROPPED_AT_ONCE: Final = 200

NOTHING: Final[Mapping[str, Json]] = {}
Arrow = Callable[[Job, float], "Transition | Decided"]


class Decided(NamedTuple):
    """What an act does to one job: a move, documents beside it, or documents alone."""

    move: Transition | None
    puts: tuple[Put, ...] = ()


class Order(NamedTuple):
    """What is to be done, by whom and why; `arrow` decides it for each job."""

    verb: str
    who: str
    why: str | None
    arrow: Arrow
    said: Mapping[str, Json] = NOTHING
    size: int = SIZE
    """Jobs in one commit: fewer where each brings documents of its own."""
    recalls: bool = True
    """Whether what is deferred is recalled for it: not for a note, nor by a machine, which leaves it put off."""
    unless: Callable[[Job], None] | None = None
    """Refuses what must be named: it does not go along with many others."""


class _Trial(NamedTuple):
    """One try at a chunk: what would be written, and which jobs would not move."""

    moves: list[Transition]
    items: list[Item]
    puts: list[Put]
    refused: list[Refused]


class _Few:
    """The first of those that did not move; the rest is a number."""

    def __init__(self) -> None:
        self.kept: list[Refused] = []

    def keep(self, refused: Sequence[Refused]) -> None:
        self.kept += refused[: REFUSED_KEPT - len(self.kept)]


class Acts:
    """Does what was ordered, and says what was done. Taking it back stands in undoing.py."""

    def __init__(self, app: Redrive) -> None:
        self._app = app

    # -- one job

    async def one(self, order: Order, id: str, puts: Sequence[Put] = ()) -> Job:
        """Load, decide, commit; decided anew when somebody was faster. A deferred job is recalled first.

        `puts` overwrite documents of the job; what stood there comes back with it when the act is taken back.
        """
        check_words(order.who, order.why)
        job = await self._app.jobs.get(id)
        for _ in range(TRIES):
            now = self._app.clock.now()
            if order.recalls and _is_deferred(job):
                _decided(order, lifecycle.recalled(job, now, who=order.who, why=order.why).after(job.version), now)
                job = await self._recall(job, order)
                continue
            decided = _decided(order, job, now)
            moved = await self._written(order, job, decided, puts, now)
            if moved is not None:
                return moved
            job = await self._app.jobs.get(job.id)
        raise StaleJob(f"job {job.short_id} keeps changing; try again", job_id=job.id)

    async def checked(self, order: Order, id: str) -> Job:
        """The job, if the order can be carried out as things are; else the refusal. Changes nothing."""
        check_words(order.who, order.why)
        job, now = await self._app.jobs.get(id), self._app.clock.now()
        recalls = order.recalls and _is_deferred(job)
        dead = lifecycle.recalled(job, now, who=order.who, why=order.why).after(job.version) if recalls else job
        _decided(order, dead, now)
        return job

    async def _written(self, order: Order, job: Job, decided: Decided, puts: Sequence[Put], now: float) -> Job | None:
        """The job as it then is; None where somebody was faster."""
        move, others = decided.move, await self._companions(decided.move)
        note = _put_note(decided)
        before = overwritten(move, whole=True) if move is not None else {JOB_NOTE.name: note}
        act = Act(
            job.id, order.verb, now, order.who, order.why, dict(order.said), job_id=job.id, number=1, moved=1, chunks=1
        )
        item = Item(job.id, before, tuple([await self._document(put) for put in puts]))
        kept = ACT_ITEMS.put(items_key(job.id, 0), Chunk(now, (item,)))
        whole = (*puts, *decided.puts, put_act(act), kept)
        moves = (() if move is None else (move,)) + others[: MAX_PARTS - 1 - len(whole)]
        (outcome,) = await self._app.store.apply([Commit(moves, whole)])
        if isinstance(outcome, Applied):
            return move.after(outcome.fences[0]) if move is not None else job
        if isinstance(outcome, Stale):
            return None
        raise CommitUnknown(f"nobody knows whether job {job.short_id} was {PAST[order.verb]}: look again")

    async def _document(self, put: Put) -> tuple[str, str, str | None]:
        """What stands where something will be written."""
        document = await self._app.store.doc(put.kind, put.key)
        return put.kind, put.key, document.value.decode() if document is not None else None

    async def _recall(self, job: Job, order: Order) -> Job:
        move = lifecycle.recalled(job, self._app.clock.now(), who=order.who, why=_recalled_for(order))
        await self._app.store.apply([Commit((move,))])
        return await self._app.jobs.get(job.id)

    async def _companions(self, move: Transition | None) -> tuple[Transition, ...]:
        return await self._app.workflows.companions(move) if move is not None else ()

    # -- many

    async def many(
        self, order: Order, ids: Sequence[str] = (), filters: Mapping[str, Any] | None = None, *, all: bool = False
    ) -> Acted:
        """Ids are all found before any of them moves; a filter means what it matches as the act goes through it."""
        check_words(order.who, order.why)
        chosen = self.chosen(order.verb, ids, filters or {}, all=all)
        if order.unless is not None and not means_unknown(ids, filters or {}):
            order = order._replace(arrow=_but_not(order.unless, order.arrow))
        now = self._app.clock.now()
        act = Act(
            new_id(now, secrets.randbits(74)), order.verb, now, order.who, order.why, dict(order.said),
            msgspec.to_builtins(chosen) if chosen is not None else {}, finished=False,
        )  # fmt: skip
        found = await self._found(ids) if chosen is None else ()
        refused = _Few()
        await self._app.store.apply([Commit(puts=(put_act(act),))])
        parts = _batches(found, order.size) if chosen is None else self._pages(chosen, order.size)
        async for part in parts:
            act = await self._do(order, act, part, refused)
            if act.undone_by is not None:
                break
        await self._app.store.apply([Commit(puts=(_goes_on(act, msgspec.structs.replace(act, finished=True)),))])
        return Acted(order.verb, act.id, act.number, act.moved, refused.kept)

    def chosen(self, verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> Filter | None:
        """The filter that was meant; None where ids were given."""
        said = said_of_many(verb, ids, filters, all=all)
        if ids:
            return None
        if verb == "recall":
            if said.get("because") not in (None, DEFERRED):
                raise InvalidInput(field="because", problem="only what is deferred can be recalled")
            return make_filter({**said, "state": "held", "because": DEFERRED})
        return make_filter({**said, "state": "discarded" if verb == "restore" else "dead"})

    async def matching(self, verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> int:
        chosen = self.chosen(verb, ids, filters, all=all)
        if chosen is None:
            return len(await self._found(ids))
        return sum((await self._app.store.count(chosen)).values())

    async def meant(self, verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> list[str]:
        """The ids of all that a verb would be about, as things are now."""
        chosen = self.chosen(verb, ids, filters, all=all)
        if chosen is None:
            return await self._found(ids)
        return [id async for page in self._pages(chosen, PAGE) for id in page]

    async def _found(self, ids: Sequence[str]) -> list[str]:
        """Every id in full; a part that only one job has is enough."""
        known = {job.id for start in range(0, len(ids), SIZE) for job in await self._get(ids[start : start + SIZE])}
        return list(dict.fromkeys([id if id in known else (await self._app.jobs.get(id)).id for id in ids]))

    async def _get(self, ids: Sequence[str]) -> list[Job]:
        return await self._app.store.get(ids)

    async def _pages(self, chosen: Filter, size: int) -> AsyncIterator[list[str]]:
        """What moves goes to the front of the listing, behind the cursor: nothing is seen twice."""
        async for jobs in pages(self._app.store, chosen, size):
            yield [job.id for job in jobs]

    async def _do(self, order: Order, act: Act, ids: Sequence[str], refused: _Few) -> Act:
        """One page: steps of workflows each on their own, because others move with them; the rest together."""
        act = msgspec.structs.replace(act, number=act.number + len(ids))
        jobs = {job.id: job for job in await self._get(ids)}
        gone = [Refused(id, "it is no more") for id in ids if id not in jobs]
        refused.keep(gone)
        act = msgspec.structs.replace(act, refused=act.refused + len(gone))
        await self._recall_first(order, jobs)
        steps = [job for job in jobs.values() if is_step(job)]
        plain = [job for job in jobs.values() if not is_step(job)]
        for together in ([plain] if plain else []) + [[step] for step in steps]:
            act = await self._commit(order, act, together, refused)
            if act.undone_by is not None:
                break
        return act

    async def _recall_first(self, order: Order, jobs: dict[str, Job]) -> None:
        """Deferred ones become dead letters again, as far as the order can then be done."""
        now = self._app.clock.now()
        recalls = []
        for job in jobs.values():
            if not order.recalls or not _is_deferred(job):
                continue
            move = lifecycle.recalled(job, now, who=order.who, why=_recalled_for(order))
            try:
                _decided(order, move.after(job.version), now)
            except JobError:
                continue  # it stays deferred, and the act tells why
            recalls.append(move)
        outcomes = await self._app.store.apply([Commit((move,)) for move in recalls]) if recalls else []
        done = [move for move, outcome in zip(recalls, outcomes, strict=True) if isinstance(outcome, Applied)]
        jobs.update({job.id: job for job in await self._get([move.job.id for move in done])})

    async def _commit(self, order: Order, act: Act, jobs: Sequence[Job], refused: _Few) -> Act:
        """All that can move in one commit. Whoever was changed meanwhile is decided anew, a few times.

        Nothing moves any more once somebody takes the act back: it is then returned as it was.
        """
        left, stale = {job.id: job for job in jobs}, dict.fromkeys((job.id for job in jobs), 0)
        given_up: list[Refused] = []
        for _ in range(TRIES * len(jobs) + 1):
            now = self._app.clock.now()
            trial = _tried(order, left.values(), now)
            told = [*given_up, *trial.refused]
            others = await self._companions(trial.moves[0]) if len(jobs) == 1 and trial.moves else ()
            after = msgspec.structs.replace(
                act, moved=act.moved + len(trial.items), refused=act.refused + len(told), chunks=act.chunks + 1
            )
            key = items_key(act.id, act.chunks)
            kept = ACT_ITEMS.put(key, Chunk(now, tuple(trial.items)), 0)
            puts = (*trial.puts, _goes_on(act, after), kept)
            moves = (*trial.moves, *others[: MAX_PARTS - len(trial.moves) - len(puts)])
            (outcome,) = await self._app.store.apply([Commit(moves, puts)])
            if isinstance(outcome, Applied) or await self._has(key):
                refused.keep(told)
                return after
            if (stopped := await self.act(act.id)).undone_by is not None:
                return _stopped(act, stopped, jobs, refused)
            await self._again(outcome.job_id if isinstance(outcome, Stale) else None, left, stale, given_up)
        raise StaleJob("these jobs keep changing; try again", job_id=jobs[0].id)

    async def _has(self, key: str) -> bool:
        """Whether a commit was written of which nobody knew: its document says so."""
        return await self._app.store.doc(ACT_ITEMS.name, key) is not None

    async def _again(
        self, changed: str | None, left: dict[str, Job], stale: dict[str, int], given_up: list[Refused]
    ) -> None:
        """What is there now, of the jobs that are still to be moved."""
        if changed in stale:
            stale[changed] += 1
            if stale[changed] >= TRIES:
                del left[changed]
                given_up.append(Refused(changed, "it keeps changing"))
                return
        fresh = {job.id: job for job in await self._get([changed] if changed in left else list(left))}
        left.update(fresh)

    # -- what was done

    async def act(self, act_id: str) -> Act:
        """By its id; for an act on one job, that job's id or a part of it."""
        return (await self.read(act_id))[0]

    async def read(self, act_id: str) -> tuple[Act, int]:
        """The same, with the version of its document."""
        kept = await ACT.get(self._app.store, act_id)
        if kept is None:
            kept = await self._by_part(act_id)
        if kept is None and await REDRIVE.get(self._app.store, act_id) is not None:
            raise InvalidInput(field="act", problem="is a redrive of many: `redrive redrives cancel` stops it")
        if kept is None:
            raise InvalidInput(field="act", problem=f"there is no act {act_id!r}")
        return kept.value, kept.version

    async def _by_part(self, part: str) -> Kept[Act] | None:
        return the_only([kept for kept in await ACT.all(self._app.store) if part in kept.key], part, "act")

    async def latest(self, limit: int) -> list[Act]:
        """The latest first: what was done to jobs, and what was said of groups that still holds."""
        acts = [kept.value for kept in await ACT.all(self._app.store)]
        acts += await self._said_of_groups()
        return sorted(acts, key=lambda act: (-act.at, act.id))[:limit]

    async def _said_of_groups(self) -> Iterable[Act]:
        from redrive.app.alerts import GROUP_STATE

        for_now = []
        for fingerprint, state, _ in await GROUP_STATE.all(self._app.store):
            spoken = [said for said in state.story if said.what.startswith(("resolved", "ignored"))]
            if state.status == "unresolved" or not spoken:
                continue
            last, verb = spoken[-1], "resolve_group" if state.status == "resolved" else "ignore_group"
            named = {"group": fingerprint}
            for_now.append(Act(GROUP + fingerprint, verb, last.at, last.who, last.why, named, number=1, moved=1))
        return for_now

    async def notes(self, id: str) -> Sequence[Note]:
        """What was written beside a job, in order."""
        job = await self._app.jobs.get(id)
        return [kept.value for kept in await JOB_NOTE.all(self._app.store, f"{job.id}/")]

    async def prune(self) -> int:
        """Acts can be taken back for a month and looked up for a year."""
        now = await time_for_destroying(self._app.store, self._app.clock)
        puts: list[Put] = []
        for _, act, _ in await ACT.all(self._app.store):
            if now - act.at > ITEMS_KEPT and act.chunks:
                puts += [ACT_ITEMS.drop(items_key(act.id, number)) for number in range(act.chunks)]
                puts.append(put_act(msgspec.structs.replace(act, chunks=0)))
            if now - act.at > (ITEMS_KEPT if act.job_id else ACTS_KEPT):
                puts.append(ACT.drop(act.id))
        for start in range(0, len(puts), DROPPED_AT_ONCE):
            await self._app.store.apply([Commit(puts=tuple(puts[start : start + DROPPED_AT_ONCE]))])
        return len(puts)


# -- deciding


def _decided(order: Order, job: Job, now: float) -> Decided:
    found = order.arrow(job, now)
    return found if isinstance(found, Decided) else Decided(found)


def _tried(order: Order, jobs: Iterable[Job], now: float) -> _Trial:
    trial = _Trial([], [], [], [])
    for job in jobs:
        try:
            decided = _decided(order, job, now)
        except JobError as error:
            trial.refused.append(Refused(job.id, str(error)))
            continue
        trial.puts.extend(decided.puts)
        if decided.move is not None:
            trial.moves.append(decided.move)
        trial.items.append(_item(job, decided, trial.puts))
    return trial


def _but_not(refuse: Callable[[Job], None], arrow: Arrow) -> Arrow:
    def sparing(job: Job, now: float) -> Transition | Decided:
        refuse(job)
        return arrow(job, now)

    return sparing


def _item(job: Job, decided: Decided, puts: list[Put]) -> Item:
    """What the act overwrites; what tells of the job's contents goes to a document of the job itself."""
    if decided.move is None:
        return Item(job.id, {JOB_NOTE.name: _put_note(decided)})
    if needs_its_own(decided.move):
        puts.append(ACT_BEFORE.put(before_key(job.id), overwritten(decided.move, whole=True)))
        return Item(job.id, apart=True)
    return Item(job.id, overwritten(decided.move))


def _put_note(decided: Decided) -> str | None:
    return next((put.key for put in decided.puts if put.kind == JOB_NOTE.name), None)


def _is_deferred(job: Job) -> bool:
    return job.state is State.held and job.because == DEFERRED


def _recalled_for(order: Order) -> str:
    return f"to be {PAST[order.verb]}" + (f": {order.why}" if order.why else "")


async def _batches(ids: Sequence[str], size: int) -> AsyncIterator[list[str]]:
    for start in range(0, len(ids), size):
        yield list(ids[start : start + size])


def items_key(act_id: str, number: int) -> str:
    return f"{act_id}/{number:06d}"


def before_key(job_id: str) -> str:
    """What the latest act on many has overwritten of this job's contents."""
    return f"{job_id}/before"


def put_act(act: Act, expect: int | None = None) -> Put:
    return ACT.put(act.id, act, expect)


def _goes_on(act: Act, after: Act) -> Put:
    """An act on many that got further, unless somebody takes it back: its document was written once when it began and
    once with each chunk."""
    return put_act(after, 1 + act.chunks)


def _stopped(act: Act, stopped: Act, jobs: Sequence[Job], refused: _Few) -> Act:
    """Taken back while it went on: what it had not moved yet stays."""
    refused.keep([Refused(job.id, f"{stopped.undone_by} took the act back meanwhile") for job in jobs])
    return msgspec.structs.replace(stopped, number=act.number, refused=act.refused + len(jobs))
