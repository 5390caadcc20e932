"""Any store, as the app uses it: what a move must tell is written in the move's own commit, whoever made the move.

Workers, the scheduler, people and other processes all move jobs through `apply`; so a notice can be neither lost nor
made twice, and a job that nobody has to hear of costs one look at its reason. Only where one commit moves so many jobs
that it has no room for all they tell does the rest follow in the next one: a crash between the two loses that rest.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec

from redrive.core.documents import INBOX, WAITING
from redrive.core.job import Job
from redrive.core.lifecycle import Transition
from redrive.core.notice import ESCALATED, Notice, escalates, escalation_for, notice_for, replaced_by, waiting_key
from redrive.core.store import MAX_PARTS, Applied, Commit, Inserted, Outcome, Put, Store
from redrive.engine.bus import Bus, BusEvent
from redrive.engine.written import written

log = logging.getLogger("redrive.notify")


class Noticing:
    """A store whose commits have notices beside them; `tell` hears which. All other verbs are the store's own."""

    def __init__(self, store: Store, tell: Callable[[Notice], None]) -> None:
        self._store = store
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        if name == "_store":  # a copy that is still empty
            raise AttributeError(name)
        return getattr(self._store, name)

    def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> Awaitable[list[Inserted]]:
        """Named because it is asked for every job, and a name that must be looked up twice costs as much as ten."""
        return self._store.insert(jobs, documents)

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        if not any(_matters(move) or escalates(move) for commit in group for move in commit.transitions):
            return await self._store.apply(group)
        notices = [_notices(commit) for commit in group]
        commits, overflowing = [], []
        for commit, found in zip(group, notices, strict=True):
            puts = [put for notice in found for put in puts_of(notice)] + _replaced(commit, found)
            room = max(0, MAX_PARTS - len(commit.transitions) - len(commit.puts) - len(commit.guards))
            commits.append(msgspec.structs.replace(commit, puts=(*commit.puts, *puts[:room])))
            overflowing.append(puts[room:])
        outcomes = await self._store.apply(commits)
        for outcome, found, late in zip(outcomes, notices, overflowing, strict=True):
            if isinstance(outcome, Applied):
                await self._write_late(late)
                self._told(found)
        return outcomes

    async def _write_late(self, puts: Sequence[Put]) -> None:
        """What did not fit beside the moves of one commit. Those stand, whatever becomes of it."""
        parts = [tuple(puts[start : start + MAX_PARTS]) for start in range(0, len(puts), MAX_PARTS)]
        for part in parts:
            try:
                (outcome,) = await self._store.apply([Commit(puts=part)])
            except Exception as error:  # noqa: BLE001 - whoever moved the jobs must not do it again
                log.critical("%d messages could not be written, their jobs have moved: %r", len(part), error)
            else:
                if not isinstance(outcome, Applied):
                    log.critical("%d messages may not be written, their jobs have moved: %r", len(part), outcome)

    def _told(self, notices: Sequence[Notice]) -> None:
        """Escalations are one message for many burials, which the bus has heard of."""
        for notice in notices:
            if notice.kind != ESCALATED:
                self._tell(notice)


def with_notices(store: Store, tell: Callable[[Notice], None]) -> Store:
    """The same store, whose commits tell whom they concern."""
    return cast("Store", Noticing(store, tell))


def publish_notice(bus: Bus, notice: Notice) -> None:
    """Says on this process's bus that a notice was committed."""
    names = ("id", "kind", "level", "audience", "session_id", "title", "text")
    data = {name: getattr(notice, name) for name in names}
    bus.publish(BusEvent("notice", notice.queue, notice.at, notice.job_id, notice.task, data=data))


async def add_notice(store: Store, bus: Bus, move: Transition) -> None:
    """Writes the notice of a move whose own commit has not told it."""
    notice = notice_for(move)
    if notice is not None:
        await written(store, f"{notice.session_id or 'somebody'} will be told", *puts_of(notice))
        publish_notice(bus, notice)


def puts_of(notice: Notice) -> list[Put]:
    """Into the session's inbox, and where people are to be told, among what waits for the channels."""
    puts = []
    if notice.audience != "user" and notice.session_id is not None:
        puts.append(INBOX.put(f"{notice.session_id}/{notice.id}", notice))
    if notice.audience != "session":
        puts.append(WAITING.put(waiting_key(notice), notice))
    return puts


def _replaced(commit: Commit, notices: Sequence[Notice]) -> list[Put]:
    """Drops what the session was told before: that a job comes back, where it is now told how that ended."""
    jobs = {move.job.id: move.job for move in commit.transitions}
    told = [(one, jobs[one.job_id]) for one in notices if one.session_id is not None and one.job_id in jobs]
    dropped = [(one, id) for one, job in told if (id := replaced_by(one, job)) is not None]
    return [INBOX.drop(f"{one.session_id}/{id}") for one, id in dropped]


def _notices(commit: Commit) -> list[Notice]:
    """Each once: an owner is told of a group once, however many of its jobs move."""
    found = [notice for move in commit.transitions if _matters(move) and (notice := _composed(move)) is not None]
    owned = filter(escalates, commit.transitions)
    found += [notice for move in owned if (notice := _composed(move, escalation_for)) is not None]
    return list({(notice.session_id, notice.id): notice for notice in found}.values())


def _matters(move: Transition) -> bool:
    """Plain jobs, which are most, tell nobody anything unless they have a question."""
    return move.job.reason != "direct" or move.move == "held_back" or "reason" in move.set


def _composed(move: Transition, compose: Callable[[Transition], Notice | None] = notice_for) -> Notice | None:
    """A notice that cannot be written must not cost the job its result."""
    try:
        return compose(move)
    except Exception:
        log.critical("job %s (%s): no notice could be made of %s", move.job.short_id, move.job.task, move.move,
                     exc_info=True)  # fmt: skip
        return None
