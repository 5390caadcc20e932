"""`rd.notices`: what people are told, through which channels; pages; and the inboxes of sessions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from msgspec.structs import replace

from redrive.core.checks import check_limit, the_only
from redrive.core.commit import commit_in_parts, try_commit
from redrive.core.documents import INBOX, PAGE, WAITING, Kept, Kind
from redrive.core.job import CYCLE, Job, State
from redrive.core.notice import (
    ACKNOWLEDGED_FOR,
    DEFERRED,
    ESCALATED,
    OWNER,
    Message,
    Notice,
    Paged,
    is_dealt_with,
    page_due,
    waiting_key,
    with_words,
    write_page,
)
from redrive.core.outcome import shorten_result
from redrive.core.pain import Pain, read_subject
from redrive.core.store import Filter, Store
from redrive.core.view import Shown
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import InvalidInput
from redrive.jobs.publishing_store import publish_notice
from redrive.jobs.wait_for_job import read_result
from redrive.notices.courier import (
    SIGNAL,
    Channel,
    Courier,
    Receiver,
    by_function,
    channel_problems,
    channels_of,
    distinct,
    name_of,
    quoted_by,
    read_waiting,
)

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.notices.repeats import RepeatedActions

log = logging.getLogger("redrive.notify")
Sink = Callable[[Pain], Awaitable[None] | None]
LAST: Final = "last"
NOT_PAGED: Final = frozenset({"imported", "restored", "diverted"})
"""Dead letters that no failure of now has made: brought here, brought back, or put off by a script."""
Owned = dict[tuple[str, str, str | None], int]
"""Letters by inbox, kind of message and group."""
NOT_LEFT: Final = "The result is no longer kept."


class Notices:
    """The way to people. Session inboxes are read through `rd.sessions`."""

    def __init__(
        self,
        core: Core,
        repeats: RepeatedActions,
        signal_channels: Callable[[], Sequence[Channel]],
        channels: Sequence[Receiver],
        signals: Sequence[Sink],
    ) -> None:
        self._core = core
        self._repeats = repeats
        self._signal_channels = signal_channels
        self._channels = channels
        self._signals = signals
        self.quiet = False
        """For tests: channels are left alone, and what people would be told waits."""

    # -- telling people

    def courier(self) -> Courier | None:
        """Carries waiting notices to the channels of this process; None where it has none.

        A channel that cannot be used at all (a variable that is not set, Apprise missing) is a ConfigError.
        """
        if self.quiet:
            return None
        channels = channels_of(self._core.settings.notify.urls, self._channels)
        channels += self._signal_channels()
        channels += distinct(Channel(f"{SIGNAL}{name_of(sink)}", _as_signal(sink)) for sink in self._signals)
        return Courier(self._core.store, self._core.clock, channels) if channels else None

    async def deliver(self) -> int:
        """Tell now what waits, as far as the channels take it; how many messages they took. Workers do it always."""
        courier = self.courier()
        return await courier.deliver() if courier is not None else 0

    async def waiting(self) -> list[Notice]:
        """What people are still to be told, in order."""
        notices = [notice for _, notice in await read_waiting(self._core.store)]
        jobs = await quoted_by(self._core.store, notices)
        return [with_words(notice, jobs) for notice in notices]

    async def troubles(self) -> list[str]:
        """Channels that do not take anything, in words."""
        return await channel_problems(self._core.store)

    # -- pages

    async def look(self) -> bool:
        """Page a person when too many jobs died within the window; whether that was so. One process pages."""
        core, now, policy = self._core, self._core.clock.now(), self._core.settings.notify
        letters = await self._letters(now - policy.page_window, now)
        if sum(letters.values()) < policy.page_after:
            return False
        last = await PAGE.get(core.store, LAST)
        if not page_due(letters, last.value if last else None, now, policy):
            return False
        groups = await core.store.groups(fingerprints=[name for name in letters if name])
        notice = write_page(letters, groups, now, policy)
        paged = PAGE.put(LAST, Paged(now, tuple(letters)), last.version if last else 0)
        puts = [paged, WAITING.put(waiting_key(notice), notice)]
        if await try_commit(core.store, puts=puts, what="a person was paged") is None:
            return False
        said = with_words(notice, await quoted_by(core.store, [notice]))
        log.warning("%s: %s", said.title, said.text)
        publish_notice(self._core.bus, said)
        return True

    async def _letters(self, since: float, now: float) -> dict[str, int]:
        """By group: what died since then and waits for a person; what comes back by itself pages nobody.

        Counted only where the hours' numbers say that it may matter.
        """
        store, policy = self._core.store, self._core.settings.notify
        buried = sum(
            tally.number
            for tally in await store.tallies(since, now + 1.0)  # what happened just now, too
            if tally.move == "buried" and not tally.queue.startswith(CYCLE)
        )
        if buried < policy.page_after:
            return {}
        manual = Filter(states=(State.dead,), since=since, lane="manual")
        counted = await store.count(manual, by=("fingerprint", "because", "queue"), current=True)
        letters: dict[str, int] = {}
        for (fingerprint, because, queue), number in counted.items():
            if because not in NOT_PAGED and not str(queue).startswith(CYCLE):
                letters[fingerprint or ""] = letters.get(fingerprint or "", 0) + number
        return letters

    # -- inboxes

    async def inbox(self, session_id: str, *, unread: bool, limit: int) -> list[Notice]:
        check_limit(limit)
        found, jobs = await self._now(session_id)
        if unread:
            found = [notice for notice in found if notice.unread]
        found.sort(key=lambda notice: (notice.at, notice.id))
        return [await self._with_result(notice, jobs.get(notice.job_id or "")) for notice in found[:limit]]

    async def unread(self, session_id: str) -> int:
        """Counts what the session was told and has not seen."""
        return sum(notice.unread for notice in (await self._now(session_id))[0])

    async def _now(self, session_id: str) -> tuple[list[Notice], dict[str, Job]]:
        """Reads a session's notices as they stand now, and their jobs."""
        found = [kept.value for kept in await self._of(session_id)]
        jobs, owned = await self._jobs(found), await self._owned(found)
        return [_as_it_is_now(notice, jobs.get(notice.job_id or ""), owned) for notice in found], jobs

    async def inboxes(self) -> list[InboxView]:
        """Every session that was told something. Reads all messages, and the jobs whose answers are waited for."""
        found = [kept.value for kept in await INBOX.all(self._core.store)]
        open = [notice for notice in found if notice.status == "pending"]
        jobs, owned = await self._jobs([notice for notice in open if not _owed(notice)]), await self._owned(open)
        return inboxes(
            _as_it_is_now(notice, jobs.get(notice.job_id or ""), owned) if notice.status == "pending" else notice
            for notice in found
        )

    async def _owned(self, notices: Sequence[Notice]) -> Owned:
        """Count the dead letters of each group that its owners still have, once for each owner."""
        owned: Owned = {}
        for inbox, kind in {(n.session_id or "", n.kind) for n in notices if n.kind in (ESCALATED, DEFERRED)}:
            state, because = (State.held, DEFERRED) if kind == DEFERRED else (State.dead, None)
            chosen = Filter(states=(state,), because=because, owner=inbox.removeprefix(OWNER))
            for (fingerprint,), number in (await self._core.store.count(chosen, by=("fingerprint",))).items():
                owned[inbox, kind, fingerprint] = number
        return owned

    async def acknowledge(self, session_id: str, notice_id: str) -> Notice:
        """By its id, or a part of it that only one notice has. Safe to repeat."""
        matching = {kept.value.id: kept for kept in await self._of(session_id) if notice_id in kept.value.id}
        found = matching.get(notice_id) or the_only(list(matching.values()), notice_id, "notice_id")
        now = self._core.clock.now()

        def seen(notice: Notice | None) -> Notice | None:
            return notice if notice is None or notice.read_at is not None else replace(notice, read_at=now)

        read = await INBOX.update(self._core.store, found.key, seen) if found is not None else None
        if read is None:
            raise InvalidInput(field="notice_id", problem=f"{notice_id!r} is not in the inbox")
        return read

    async def _of(self, session_id: str) -> list[Kept[Notice]]:
        """A session's own: `a` has nothing of `a/b`."""
        found = await INBOX.all(self._core.store, f"{session_id}/")
        return [kept for kept in found if kept.value.session_id == session_id]

    async def _jobs(self, notices: Sequence[Notice]) -> dict[str, Job]:
        ids = list(dict.fromkeys(notice.job_id for notice in notices if notice.job_id))
        return {job.id: job for job in await self._core.store.get(ids)}

    async def _with_result(self, notice: Notice, job: Job | None) -> Notice:
        """What a job that ended well gave, read from the job itself: never a shortened copy of it."""
        if job is None or job.state is not State.done or notice.actionable:
            return notice
        text = await read_result(self._core.store, job)
        if text is None and job.payload is None:
            return msgspec.structs.replace(notice, text=f"{notice.text} {NOT_LEFT}")
        result, cut = shorten_result(msgspec.json.decode(text) if text else None, job.id)
        return msgspec.structs.replace(notice, result=result, truncated=cut)

    # -- upkeep

    async def prune(self) -> int:
        """Acknowledgements age out, read or not; actionable notices once they are dealt with; what nobody took goes
        last, and is told here.
        """
        before = await time_for_destroying(self._core.store, self._core.clock) - ACKNOWLEDGED_FOR
        old = [kept for kept in await INBOX.all(self._core.store) if kept.value.at < before]
        jobs = await self._jobs([kept.value for kept in old if kept.value.actionable])
        owned = await self._owned([kept.value for kept in old])
        now = [(key, _as_it_is_now(notice, jobs.get(notice.job_id or ""), owned)) for key, notice, _ in old]
        keys = [key for key, notice in now if notice.settled or not notice.actionable or notice.read_at is not None]
        await _drop(self._core.store, INBOX, keys)
        await self._repeats.prune(before + ACKNOWLEDGED_FOR)
        untold = [(key, notice) for key, notice in await read_waiting(self._core.store) if notice.at < before]
        if untold:
            log.warning(
                "%d notices found no channel that takes them for a week and are dropped: %s, …",
                len(untold),
                untold[0][1].title,
            )
            await _drop(self._core.store, WAITING, [key for key, _ in untold])
        return len(keys) + len(untold)


def _as_signal(sink: Callable[[Pain], object]) -> Callable[[Message], Awaitable[None]]:
    """A message for a function that takes signals: pains as they are, other notices with their title."""
    send = by_function(sink)

    async def told(message: Message) -> None:
        notice = message.notice
        if notice.severity:
            text = notice.text if message.count == 1 else f"{message.title}: {message.text}"
            await send(Pain(message.kind, notice.queue, notice.severity, text, read_subject(notice)))
        else:
            hurts = 1.0 if message.actionable else 0.5
            await send(Pain(message.kind, notice.queue, hurts, f"{message.title}: {message.text}"))

    return told


def _owed(notice: Notice) -> bool:
    """Whether it stands for all letters of a group that its owner has."""
    return notice.kind in (ESCALATED, DEFERRED) and notice.fingerprint is not None


def _as_it_is_now(notice: Notice, job: Job | None, owned: Owned) -> Notice:
    """Whether somebody still has to do something, and about how many."""
    if not _owed(notice):
        return msgspec.structs.replace(notice, settled=is_dealt_with(notice, job))
    number = owned.get((notice.session_id or "", notice.kind, notice.fingerprint), 0)
    more = f"{notice.text} {number} of this kind." if number > 1 else notice.text
    return msgspec.structs.replace(notice, settled=not number or notice.read_at is not None, text=more)


async def _drop(store: Store, kind: Kind[Notice], keys: Sequence[str]) -> None:
    await commit_in_parts(store, [kind.drop(key) for key in keys], what="old notices were dropped")


class InboxView(Shown, msgspec.Struct, frozen=True):
    """One session's messages in numbers, and the latest of them."""

    HIDDEN: ClassVar = ("latest",)
    SHOWN: ClassVar = ("latest.at", "latest.title")
    RENAMED: ClassVar = {"latest.at": "latest_at", "latest.title": "latest"}
    session: str
    messages: int
    unread: int
    pending: int
    """Unread ones that ask for something."""
    latest: Notice


def inboxes(notices: Iterable[Notice]) -> list[InboxView]:
    """Every session that was told something: first those that are asked, then those with something unread."""
    by_session: dict[str, list[Notice]] = {}
    for notice in notices:
        by_session.setdefault(notice.session_id or "", []).append(notice)
    views = [_view(session, told) for session, told in by_session.items()]
    return sorted(views, key=lambda one: (not one.pending, not one.unread, -one.latest.at))


def _view(session: str, notices: Sequence[Notice]) -> InboxView:
    unread = sum(notice.unread for notice in notices)
    pending = sum(notice.status == "pending" for notice in notices)
    return InboxView(session, len(notices), unread, pending, max(notices, key=lambda notice: notice.at))
