"""Wraps a store so that every committed move writes its notices and is published on the bus of this process.

All jobs move through `apply`, so no path can forget either. A notice is written in the commit of its move, as far as
there is room: the rest follows in the next commit, and a crash between the two loses it. The bus hears of a job once
per commit, by its last move, after the commit is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from inspect import isfunction
from typing import Any, Final, NamedTuple, cast

import msgspec

from redrive.core.commit import commit
from redrive.core.documents import INBOX, WAITING
from redrive.core.job import Job
from redrive.core.lifecycle import Transition
from redrive.core.notice import ESCALATED, TELLING, Notice, escalation_for, find_replaced, notice_for, waiting_key
from redrive.core.store import MAX_PARTS, Applied, Commit, Inserted, Outcome, Put, Store
from redrive.engine.bus import Bus, BusEvent

log = logging.getLogger("redrive.notify")
_PLAIN_VERBS: Final = tuple(
    name
    for name, member in vars(Store).items()
    if isfunction(member) and not name.startswith("_") and name not in ("insert", "apply")
)
"""The verbs of a store that the wrapper passes on as they are."""


class PublishingStore:
    """Writes the notices of what `apply` commits, and publishes what it and `insert` commit.

    All other verbs are the wrapped store's own.
    """

    def __init__(self, store: Store, bus: Bus) -> None:
        self._store = store
        self._bus = bus
        # bound here, because `__getattr__` would cost every read and claim a call of its own
        self.__dict__.update({verb: getattr(store, verb) for verb in _PLAIN_VERBS})

    def __getattr__(self, name: str) -> Any:
        if name == "_store":  # a copy that is still empty
            raise AttributeError(name)
        return getattr(self._store, name)

    async def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> list[Inserted]:
        inserted = await self._store.insert(jobs, documents)
        self._bus.publish_new([new.job for new in inserted if not new.duplicate])
        return inserted

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        tells = any(  # most moves are of plain jobs and name no owner
            move.job.reason != "direct" or move.move in TELLING or "reason" in move.set or move.set.get("owner")
            for change in group
            for move in change.transitions
        )
        wholes = [_add_notices(change) for change in group] if tells else []
        outcomes = await self._store.apply([whole.commit for whole in wholes] if tells else group)
        if tells:
            await self._follow(wholes, outcomes)
        moves: list[Transition] = []
        for change, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Applied):
                several = len(change.transitions) > 1
                moves += {move.job.id: move for move in change.transitions}.values() if several else change.transitions
        if moves:
            self._bus.publish_moves(moves)
        return outcomes

    async def _follow(self, wholes: Sequence[CommitAndNotices], outcomes: Sequence[Outcome]) -> None:
        """Write the notices that did not fit, and publish all but escalations: of these dead letters the bus hears."""
        for (_, notices, late), outcome in zip(wholes, outcomes, strict=True):
            if isinstance(outcome, Applied):
                await self._write_late(late)
                for notice in notices:
                    if notice.kind != ESCALATED:
                        publish_notice(self._bus, notice)

    async def _write_late(self, puts: Sequence[Put]) -> None:
        """Write what did not fit beside the moves of a commit. The moves stand, whatever becomes of it."""
        for start in range(0, len(puts), MAX_PARTS):
            part = puts[start : start + MAX_PARTS]
            try:
                await commit(self._store, puts=part, what=f"{len(part)} messages were written")
            except Exception as error:  # noqa: BLE001 - the caller that moved the jobs must not do it again
                log.critical("%d messages could not be written, their jobs have moved: %r", len(part), error)


def wrap_store(store: Store, bus: Bus) -> Store:
    """Return the store, wrapped so that its commits write their notices and are published on this bus."""
    return cast("Store", PublishingStore(store, bus))


class CommitAndNotices(NamedTuple):
    """A commit with its notices, as far as there was room, and the rest that must follow."""

    commit: Commit
    notices: list[Notice]
    late: Sequence[Put]


def _add_notices(change: Commit) -> CommitAndNotices:
    """Add its notices to a commit, each once: an owner is told of a group once, however many of its jobs move."""
    made = [_compose(move, compose) for compose in (notice_for, escalation_for) for move in change.transitions]
    notices = list({(notice.session_id, notice.id): notice for notice in made if notice is not None}.values())
    puts = [put for notice in notices for put in make_puts(notice)] + _drop_replaced(change, notices)
    room = max(0, MAX_PARTS - len(change.transitions) - len(change.puts) - len(change.guards))
    return CommitAndNotices(msgspec.structs.replace(change, puts=(*change.puts, *puts[:room])), notices, puts[room:])


def publish_notice(bus: Bus, notice: Notice) -> None:
    """Publish a committed notice on this process's bus."""
    names = ("id", "kind", "level", "audience", "session_id", "title", "text")
    data = {name: getattr(notice, name) for name in names}
    bus.publish(BusEvent("notice", notice.queue, notice.at, notice.job_id, notice.task, data=data))


async def add_notice(store: Store, bus: Bus, move: Transition) -> None:
    """Write the notice of a move whose own commit has not written it."""
    notice = notice_for(move)
    if notice is not None:
        await commit(store, puts=make_puts(notice), what=f"{notice.session_id or 'a person'} will be told")
        publish_notice(bus, notice)


def make_puts(notice: Notice) -> list[Put]:
    """Make the parts that write a notice: into the session's inbox, and for people into the channels' outbox."""
    puts = []
    if notice.audience != "user" and notice.session_id is not None:
        puts.append(INBOX.put(f"{notice.session_id}/{notice.id}", notice))
    if notice.audience != "session":
        puts.append(WAITING.put(waiting_key(notice), notice))
    return puts


def _drop_replaced(change: Commit, notices: Sequence[Notice]) -> list[Put]:
    """Drop the older notices that these replace: that a job comes back, where a session now hears how that ended."""
    jobs = {move.job.id: move.job for move in change.transitions}
    replaced = [
        (notice.session_id, find_replaced(notice, job))
        for notice in notices
        if notice.session_id is not None and (job := jobs.get(notice.job_id or ""))
    ]
    return [INBOX.drop(f"{session_id}/{id}") for session_id, id in replaced if id is not None]


def _compose(move: Transition, compose: Callable[[Transition], Notice | None]) -> Notice | None:
    """Make the notice of a move. A notice that cannot be made must not cost the job its result."""
    try:
        return compose(move)
    except Exception:
        job = move.job
        log.critical("job %s (%s): no notice could be made of %s", job.short_id, job.task, move.move, exc_info=True)
        return None
