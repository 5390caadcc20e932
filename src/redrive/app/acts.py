"""Acts: what is done to dead letters, one or many at a time, and taking it back.

An act is decided job by job and written in chunks of one commit each: the moves, what they overwrote, and how far the
act has got. So an act that is killed on the way has moved exactly what it says, and can be repeated or taken back.
Documents: `act` is the act itself (under the job's id where it is about one job), `act_items` its chunks.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from redrive.app.accept import check_name
from redrive.core import lifecycle
from redrive.core.job import Job, Json, State, iso, new_id
from redrive.core.lifecycle import DEFERRED, Transition
from redrive.core.store import MAX_PARTS, Applied, Commit, Document, Filter, Page, Put, Stale
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
    overwritten,
    taken_back,
    untouched,
)
from redrive.errors import CommitUnknown, InvalidInput, InvalidOption, JobError, StaleJob

if TYPE_CHECKING:
    from redrive.app import Redrive

log = logging.getLogger("redrive.acts")
ACT: Final = "act"
ITEMS: Final = "act_items"
NOTE: Final = "note"
GROUP: Final = "group."
"""What is said of a group is an act, too: it stands in the group's own document, and its id begins so."""
SIZE: Final = 200
"""Jobs that are moved in one commit."""
TRIES: Final = 5
LEAST_PART: Final = 3
LONGEST_TEXT: Final = 1000
SAMPLE: Final = 5
DROPPED_AT_ONCE: Final = 200
TOO_LATE: Final = f"is older than {ITEMS_KEPT / 86400:.0f} days, and what was before is no longer known"

NOTHING: Final[Mapping[str, Json]] = {}
Arrow = Callable[[Job, float], "Transition | Decided"]
_encode = msgspec.json.Encoder().encode
_act = msgspec.json.Decoder(Act).decode
_chunk = msgspec.json.Decoder(Chunk).decode


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
    """Whether what is deferred is recalled for it; a machine leaves alone what somebody has put off."""


class PurgePlan(msgspec.Struct, frozen=True):
    """What a purge would remove for good. `token` stands for exactly these, and confirms it."""

    number: int
    token: str
    sample: tuple[Job, ...] = ()

    def public(self) -> dict[str, Json]:
        sample = [
            {"id": job.id, "task": job.task, "queue": job.queue, "error": job.error, "died_at": iso(job.died_at)}
            for job in self.sample
        ]
        return {"number": self.number, "token": self.token, "sample": sample}


class _Trial(NamedTuple):
    """One try at a chunk: what would be written, and which jobs would not move."""

    moves: list[Transition]
    items: list[Item]
    puts: list[Put]
    refused: list[Refused]


class Acts:
    """Does what was ordered, and takes it back."""

    def __init__(self, app: Redrive) -> None:
        self._app = app

    # -- one job

    async def one(self, order: Order, id: str, puts: Sequence[Put] = ()) -> Job:
        """Load, decide, commit; decided anew when somebody was faster. A deferred job is recalled first."""
        check_words(order.who, order.why)
        job = await self._app.jobs.get(id)
        for _ in range(TRIES):
            now = self._app.clock.now()
            if _is_deferred(job) and order.verb != "recall":
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
        recalls = _is_deferred(job) and order.verb != "recall"
        dead = lifecycle.recalled(job, now, who=order.who, why=order.why).after(job.version) if recalls else job
        _decided(order, dead, now)
        return job

    async def _written(self, order: Order, job: Job, decided: Decided, puts: Sequence[Put], now: float) -> Job | None:
        """The job as it then is; None where somebody was faster."""
        move, others = decided.move, await self._companions(decided.move)
        note = _put_note(job, decided)
        before = overwritten(move, whole=True) if move is not None else {NOTE: note}
        act = Act(
            job.id, order.verb, now, order.who, order.why, dict(order.said), job_id=job.id, number=1, moved=1, chunks=1
        )
        kept = () if order.verb == "purge" else (_put_items(job.id, 0, Chunk(now, (Item(job.id, before),))),)
        whole = (*puts, *decided.puts, _put_act(act), *kept)
        moves = (() if move is None else (move,)) + others[: MAX_PARTS - 1 - len(whole)]
        (outcome,) = await self._app.store.apply([Commit(moves, whole)])
        if isinstance(outcome, Applied):
            self._app.bus.publish_moves(moves)
            return move.after(outcome.fences[0]) if move is not None else job
        if isinstance(outcome, Stale):
            return None
        raise CommitUnknown(f"nobody knows whether job {job.short_id} was {PAST[order.verb]}: look again")

    async def _recall(self, job: Job, order: Order) -> Job:
        move = lifecycle.recalled(job, self._app.clock.now(), who=order.who, why=_recalled_for(order))
        (outcome,) = await self._app.store.apply([Commit((move,))])
        if isinstance(outcome, Applied):
            self._app.bus.publish_moves([move])
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
        now = self._app.clock.now()
        act = Act(
            new_id(now, secrets.randbits(74)), order.verb, now, order.who, order.why, dict(order.said),
            msgspec.to_builtins(chosen) if chosen is not None else {}, finished=False,
        )  # fmt: skip
        found = await self._found(ids) if chosen is None else ()
        refused: list[Refused] = []
        await self._app.store.apply([Commit(puts=(_put_act(act),))])
        pages = _batches(found, order.size) if chosen is None else self._pages(chosen, order.size)
        async for page in pages:
            act = await self._do(order, act, page, refused)
        act = msgspec.structs.replace(act, finished=True)
        await self._app.store.apply([Commit(puts=(_put_act(act),))])
        return Acted(order.verb, act.id, act.number, act.moved, refused[:REFUSED_KEPT])

    def chosen(self, verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> Filter | None:
        """The filter that was meant; None where ids were given."""
        from redrive.app.namespaces import make_filter

        said = {name: value for name, value in filters.items() if value is not None}
        if isinstance(ids, str):
            raise InvalidInput(field="ids", problem="is a list of ids, not a text")
        if ids and (said or all):
            raise InvalidInput(field="ids", problem="give ids or a filter, not both")
        if not ids and not said and not all:
            raise InvalidInput(field="filter", problem="an empty filter means everything, which needs all=True")
        if "state" in said or "states" in said:
            raise InvalidInput(field="state", problem=f"is not a filter here: {verb} knows which jobs it is for")
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

    async def _found(self, ids: Sequence[str]) -> list[str]:
        """Every id in full; a part that only one job has is enough."""
        known = {job.id for start in range(0, len(ids), SIZE) for job in await self._get(ids[start : start + SIZE])}
        return list(dict.fromkeys([id if id in known else (await self._app.jobs.get(id)).id for id in ids]))

    async def _get(self, ids: Sequence[str]) -> list[Job]:
        return await self._app.store.get(ids)

    async def _pages(self, chosen: Filter, size: int) -> AsyncIterator[list[str]]:
        """What moves goes to the front of the listing, behind the cursor: nothing is seen twice."""
        cursor = None
        while True:
            page: Page = await self._app.store.find(chosen, cursor, size)
            if page.jobs:
                yield [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return

    async def _do(self, order: Order, act: Act, ids: Sequence[str], refused: list[Refused]) -> Act:
        """One page: steps of workflows each on their own, because others move with them; the rest together."""
        act = msgspec.structs.replace(act, number=act.number + len(ids))
        jobs = {job.id: job for job in await self._get(ids)}
        refused += [Refused(id, "it is no more") for id in ids if id not in jobs]
        await self._recall_first(order, jobs)
        steps = [job for job in jobs.values() if _is_of_workflow(job)]
        plain = [job for job in jobs.values() if not _is_of_workflow(job)]
        for together in ([plain] if plain else []) + [[step] for step in steps]:
            act = await self._commit(order, act, together, refused)
        return act

    async def _recall_first(self, order: Order, jobs: dict[str, Job]) -> None:
        """Deferred ones become dead letters again, as far as the order can then be done."""
        now = self._app.clock.now()
        recalls = []
        for job in jobs.values():
            if order.verb == "recall" or not order.recalls or not _is_deferred(job):
                continue
            move = lifecycle.recalled(job, now, who=order.who, why=_recalled_for(order))
            try:
                _decided(order, move.after(job.version), now)
            except JobError:
                continue  # it stays deferred, and the act tells why
            recalls.append(move)
        outcomes = await self._app.store.apply([Commit((move,)) for move in recalls]) if recalls else []
        done = [move for move, outcome in zip(recalls, outcomes, strict=True) if isinstance(outcome, Applied)]
        self._app.bus.publish_moves(done)
        jobs.update({job.id: job for job in await self._get([move.job.id for move in done])})

    async def _commit(self, order: Order, act: Act, jobs: Sequence[Job], refused: list[Refused]) -> Act:
        """All that can move in one commit. Whoever was changed meanwhile is decided anew, a few times."""
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
            key = _items_key(act.id, act.chunks)
            kept = Put(ITEMS, key, _encode(Chunk(now, tuple(trial.items))), 0)
            puts = (*trial.puts, _put_act(after), kept)
            moves = (*trial.moves, *others[: MAX_PARTS - len(trial.moves) - len(puts)])
            (outcome,) = await self._app.store.apply([Commit(moves, puts)])
            if isinstance(outcome, Applied) or (not isinstance(outcome, Stale) and await self._has(key)):
                self._app.bus.publish_moves(moves)
                refused += told
                return after
            await self._again(outcome.job_id if isinstance(outcome, Stale) else None, left, stale, given_up)
        raise StaleJob("these jobs keep changing; try again", job_id=jobs[0].id)

    async def _has(self, key: str) -> bool:
        """A commit of which nobody knew whether it was written: its document says so."""
        return await self._app.store.doc(ITEMS, key) is not None

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

    # -- taking back

    async def undo(self, act_id: str, who: str, why: str | None) -> Acted:
        """Every job that nobody has touched since goes back to where it was; the others are told."""
        check_words(who, why)
        if act_id.startswith(GROUP):
            return await self._undo_group(act_id, who, why)
        act = await self.act(act_id)
        if act.undone_at is not None:
            raise InvalidInput(
                field="act", problem=f"was taken back already, by {act.undone_by} at {iso(act.undone_at)}"
            )
        if not act.undoable:
            raise InvalidInput(field="act", problem=_why_not(act))
        if act.moved and not act.chunks:
            raise InvalidInput(field="act", problem=TOO_LATE)
        refused: list[Refused] = []
        said = why or f"{act.verb} taken back"
        moved = 0
        for number in range(act.chunks):
            moved += await self._undo_chunk(act, number, who, said, refused)
        now = self._app.clock.now()
        done = msgspec.structs.replace(await self.act(act.id), undone_at=now, undone_by=who, undone=moved)
        await self._app.store.apply([Commit(puts=(_put_act(done),))])
        return Acted("undo", act.id, moved + len(refused), moved, refused[:REFUSED_KEPT])

    async def _undo_chunk(self, act: Act, number: int, who: str, why: str, refused: list[Refused]) -> int:
        key = _items_key(act.id, number)
        for _ in range(TRIES * SIZE):
            document = await self._app.store.doc(ITEMS, key)
            if document is None:
                raise InvalidInput(field="act", problem=TOO_LATE)
            chunk = _chunk(document.value)
            if chunk.undone_at is not None:
                return len(chunk.items)  # an undo that was killed has done this
            moves, puts, left = await self._backwards(act, chunk, who, why)
            now = self._app.clock.now()
            kept = tuple(item for item in chunk.items if item.job_id not in {one.job_id for one in left})
            done = Put(ITEMS, key, _encode(Chunk(chunk.at, kept, now)), document.version)
            (outcome,) = await self._app.store.apply([Commit(tuple(moves), (*puts, done))])
            if isinstance(outcome, Applied):
                self._app.bus.publish_moves(moves)
                refused += left
                return len(kept)
        raise StaleJob("these jobs keep changing; try again", job_id=act.job_id or "")

    async def _backwards(
        self, act: Act, chunk: Chunk, who: str, why: str
    ) -> tuple[list[Transition], list[Put], list[Refused]]:
        moves: list[Transition] = []
        puts: list[Put] = []
        left: list[Refused] = []
        jobs = {job.id: job for job in await self._get([item.job_id for item in chunk.items])}
        now = self._app.clock.now()
        for item in chunk.items:
            job = jobs.get(item.job_id)
            if act.verb == NOTE:
                puts.append(Put(NOTE, str(item.before[NOTE]), None))
            elif job is None:
                left.append(Refused(item.job_id, "it is no more"))
            elif not untouched(job, act.verb, chunk):
                left.append(Refused(job.id, f"it was changed since: it is {job.state}"))
            else:
                moves.append(taken_back(job, act.verb, item.before, now, who, why))
        return moves, puts, left

    async def _undo_group(self, act_id: str, who: str, why: str | None) -> Acted:
        """What was said of a group is taken back by reopening it."""
        fingerprint = act_id.removeprefix(GROUP)
        view = await self._app.groups.show(fingerprint)
        if view.status == "unresolved":
            raise InvalidInput(field="act", problem="was taken back already: the group is open")
        await self._app.groups.reopen(fingerprint, who=who, why=why)
        return Acted("undo", act_id, 1, 1)

    # -- what was done

    async def act(self, act_id: str) -> Act:
        """By its id; for an act on one job, that job's id or a part of it."""
        document = await self._app.store.doc(ACT, act_id)
        if document is None:
            document = await self._by_part(act_id)
        if document is None and await self._app.store.doc("redrive", act_id) is not None:
            raise InvalidInput(field="act", problem="is a redrive of many: `redrive redrives cancel` stops it")
        if document is None:
            raise InvalidInput(field="act", problem=f"there is no act {act_id!r}")
        return _act(document.value)

    async def _by_part(self, part: str) -> Document | None:
        if len(part) < LEAST_PART:
            return None
        found = [document for document in await self._app.store.docs(ACT) if part in document.key]
        if len(found) > 1:
            raise InvalidInput(field="act", problem=f"{part!r} is the part of several ids; give more of it")
        return found[0] if found else None

    async def latest(self, limit: int) -> list[Act]:
        """The latest first: what was done to jobs, and what was said of groups that still holds."""
        acts = [_act(document.value) for document in await self._app.store.docs(ACT)]
        acts += await self._said_of_groups()
        return sorted(acts, key=lambda act: (-act.at, act.id))[:limit]

    async def _said_of_groups(self) -> Iterable[Act]:
        from redrive.app.alerts import KIND
        from redrive.app.alerts import decode as decode_state

        for_now = []
        for document in await self._app.store.docs(KIND):
            state = decode_state(document.value)
            spoken = [said for said in state.story if said.what.startswith(("resolved", "ignored"))]
            if state.status == "unresolved" or not spoken:
                continue
            last, verb = spoken[-1], "resolve_group" if state.status == "resolved" else "ignore_group"
            for_now.append(
                Act(
                    f"{GROUP}{document.key}",
                    verb,
                    last.at,
                    last.who,
                    last.why,
                    {"group": document.key},
                    number=1,
                    moved=1,
                )
            )
        return for_now

    async def notes(self, id: str) -> Sequence[Note]:
        """What was written beside a job, in order."""
        job = await self._app.jobs.get(id)
        documents = await self._app.store.docs(NOTE, f"{job.id}/")
        return [msgspec.json.decode(document.value, type=Note) for document in documents]

    async def prune(self) -> int:
        """Acts can be taken back for a month and looked up for a year."""
        now = self._app.clock.now()
        puts: list[Put] = []
        for document in await self._app.store.docs(ACT):
            act = _act(document.value)
            if now - act.at > ITEMS_KEPT and act.chunks:
                puts += [Put(ITEMS, _items_key(act.id, number), None) for number in range(act.chunks)]
                puts.append(_put_act(msgspec.structs.replace(act, chunks=0)))
            if now - act.at > (ITEMS_KEPT if act.job_id else ACTS_KEPT):
                puts.append(Put(ACT, act.id, None))
        for start in range(0, len(puts), DROPPED_AT_ONCE):
            await self._app.store.apply([Commit(puts=tuple(puts[start : start + DROPPED_AT_ONCE]))])
        return len(puts)

    # -- purging

    async def purge_plan(self, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> PurgePlan:
        """Counts, and names exactly what would go. Changes nothing."""
        found = await self.purgeable(ids, filters, all=all)
        sample = await self._get(found[:SAMPLE])
        return PurgePlan(len(found), token_of(found), tuple(sample))

    async def purgeable(self, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> list[str]:
        chosen = self.chosen("purge", ids, filters, all=all)
        if chosen is None:
            return await self._found(ids)
        return [id async for page in self._pages(chosen, 1000) for id in page]

    async def purge(self, ids: Sequence[str], who: str, why: str | None, confirm: str | None) -> int:
        """Exactly these, and only if they are those that were counted."""
        if confirm is not None and confirm != token_of(ids):
            problem = "does not stand for these dead letters: look again how many there are, then confirm that"
            raise InvalidInput(field="confirm", problem=problem)
        for start in range(0, len(ids), SIZE):
            now = self._app.clock.now()
            for job in await self._get(ids[start : start + SIZE]):  # judged before anything is removed
                lifecycle.purged(job, now, who=who, why=why)
        if not ids:
            return 0
        acted = await self.many(
            Order("purge", who, why, lambda job, now: lifecycle.purged(job, now, who=who, why=why)), ids
        )
        gone = 0
        for start in range(0, len(ids), SIZE):
            gone += await self._app.store.erase(ids[start : start + SIZE])
        return acted.moved


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
        before = overwritten(decided.move) if decided.move is not None else {NOTE: _put_note(job, decided)}
        trial.items.append(Item(job.id, before))
    return trial


def _put_note(job: Job, decided: Decided) -> str | None:
    return next((put.key for put in decided.puts if put.kind == NOTE), None)


def _is_deferred(job: Job) -> bool:
    return job.state is State.held and job.because == DEFERRED


def _is_of_workflow(job: Job) -> bool:
    return job.options_json is not None and job.options.workflow is not None


def _recalled_for(order: Order) -> str:
    return f"to be {PAST[order.verb]}" + (f": {order.why}" if order.why else "")


def _why_not(act: Act) -> str:
    if act.verb == "purge":
        return "is a purge: what it removed is gone for good"
    if act.said.get("repeat"):
        return "is an edit that has forgotten effects, so that they are done again: that cannot be taken back"
    return f"is a {act.verb}, which cannot be taken back"


def check_words(who: object, why: object) -> None:
    check_name("who", who)
    if why is not None and (not isinstance(why, str) or len(why) > LONGEST_TEXT):
        raise InvalidOption(field="why", problem=f"must be a text of at most {LONGEST_TEXT} characters")


def token_of(ids: Iterable[str]) -> str:
    """Stands for exactly these jobs, in any order, and for nothing but purging them."""
    digest = hashlib.sha256(b"purge")
    for id in sorted(ids):
        digest.update(id.encode())
    return digest.hexdigest()[:16]


async def _batches(ids: Sequence[str], size: int) -> AsyncIterator[list[str]]:
    for start in range(0, len(ids), size):
        yield list(ids[start : start + size])


def _items_key(act_id: str, number: int) -> str:
    return f"{act_id}/{number:06d}"


def _put_items(act_id: str, number: int, chunk: Chunk) -> Put:
    return Put(ITEMS, _items_key(act_id, number), _encode(chunk))


def _put_act(act: Act) -> Put:
    return Put(ACT, act.id, _encode(act))
