"""`rd.notices`: tells people through their channels, and pages a person when too many jobs die."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from redrive.core.commit import commit_in_parts, try_commit
from redrive.core.documents import PAGE, WAITING
from redrive.core.job import CYCLE, State
from redrive.core.notice import ACKNOWLEDGED_FOR, Message, Notice, Paged, page_due, waiting_key, with_words, write_page
from redrive.core.pain import Pain, read_subject
from redrive.core.store import Filter
from redrive.engine.trusted_time import time_for_destroying
from redrive.jobs.publishing_store import publish_notice
from redrive.notices.courier import (
    SIGNAL,
    Channel,
    Courier,
    Receiver,
    channel_problems,
    channels_of,
    name_apart,
    name_of,
    quoted_by,
    read_waiting,
    send_by,
)

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.notices.repeats import RepeatedActions
    from redrive.notices.sessions import Sessions

log = logging.getLogger("redrive.notify")
Sink = Callable[[Pain], Awaitable[None] | None]
LAST: Final = "last"
NOT_PAGED: Final = frozenset({"imported", "restored", "diverted"})
"""Why dead letters are dead that no failure of now has made: they were imported, restored, or recorded by a script."""


class Notices:
    """Tells people what happened. `rd.sessions` reads the inboxes of sessions."""

    def __init__(
        self,
        core: Core,
        sessions: Sessions,
        repeats: RepeatedActions,
        signal_channels: Callable[[], Sequence[Channel]],
        channels: Sequence[Receiver],
        signals: Sequence[Sink],
    ) -> None:
        self._core = core
        self._sessions = sessions
        self._repeats = repeats
        self._signal_channels = signal_channels
        self._channels = channels
        self._signals = signals
        self.quiet = False
        """For tests: no channel is called, and notices wait."""

    # -- telling people

    def courier(self) -> Courier | None:
        """Make what carries waiting notices to the channels of this process; None where it has no channel.

        A channel that cannot be used at all (a variable that is not set, Apprise missing) is a ConfigError.
        """
        if self.quiet:
            return None
        channels = channels_of(self._core.settings.notify.urls, self._channels)
        channels += self._signal_channels()
        channels += name_apart(Channel(f"{SIGNAL}{name_of(sink)}", _send_as_signal(sink)) for sink in self._signals)
        return Courier(self._core.store, self._core.clock, channels) if channels else None

    async def deliver(self) -> int:
        """Send the notices that wait, as workers do; return how many messages the channels took."""
        courier = self.courier()
        return await courier.deliver() if courier is not None else 0

    async def waiting(self) -> list[Notice]:
        """List the notices that some channel has not taken yet, in order."""
        notices = [notice for _, notice in await read_waiting(self._core.store)]
        jobs = await quoted_by(self._core.store, notices)
        return [with_words(notice, jobs) for notice in notices]

    async def troubles(self) -> list[str]:
        """Name the channels that take nothing, in words."""
        return await channel_problems(self._core.store)

    # -- pages

    async def look(self) -> bool:
        """Page a person when too many jobs died within the window; return whether this process did."""
        core, now, policy = self._core, self._core.clock.now(), self._core.settings.notify
        died = await self._count_died(now - policy.page_window, now)
        if sum(died.values()) < policy.page_after:
            return False
        last = await PAGE.get(core.store, LAST)
        if not page_due(died, last.value if last else None, now, policy):
            return False
        groups = await core.store.groups(fingerprints=[name for name in died if name])
        notice = write_page(died, groups, now, policy)
        paged = PAGE.put(LAST, Paged(now, tuple(died)), last.version if last else 0)
        puts = [paged, WAITING.put(waiting_key(notice), notice)]
        if await try_commit(core.store, puts=puts, what="a person was paged") is None:
            return False
        whole_notice = with_words(notice, await quoted_by(core.store, [notice]))
        log.warning("%s: %s", whole_notice.title, whole_notice.text)
        publish_notice(self._core.bus, whole_notice)
        return True

    async def _count_died(self, since: float, now: float) -> dict[str, int]:
        """Count by group the jobs that died since then and wait for a person. What comes back by itself pages nobody.

        The jobs are counted only where the sums of the hours say that they may be enough.
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
        died: dict[str, int] = {}
        for (fingerprint, because, queue), number in counted.items():
            if because not in NOT_PAGED and not str(queue).startswith(CYCLE):
                died[fingerprint or ""] = died.get(fingerprint or "", 0) + number
        return died

    # -- upkeep

    async def prune(self) -> int:
        """Drop old notices of inboxes, and those that no channel took for a week; return how many."""
        now = await time_for_destroying(self._core.store, self._core.clock)
        before = now - ACKNOWLEDGED_FOR
        pruned = await self._sessions.prune(before)
        await self._repeats.prune(now)
        untold = [(key, notice) for key, notice in await read_waiting(self._core.store) if notice.at < before]
        if untold:
            what = "%d notices found no channel that takes them for a week and are dropped: %s, …"
            log.warning(what, len(untold), untold[0][1].title)
            drops = [WAITING.drop(key) for key, _ in untold]
            await commit_in_parts(self._core.store, drops, what="old notices were dropped")
        return pruned + len(untold)


def _send_as_signal(sink: Callable[[Pain], object]) -> Callable[[Message], Awaitable[None]]:
    """Sends messages to a function that takes signals: pains as they are, other notices with their title."""
    send = send_by(sink)

    async def send_pain(message: Message) -> None:
        notice = message.notice
        if notice.severity:
            text = notice.text if message.count == 1 else f"{message.title}: {message.text}"
            await send(Pain(message.kind, notice.queue, notice.severity, text, read_subject(notice)))
        else:
            hurts = 1.0 if message.actionable else 0.5
            await send(Pain(message.kind, notice.queue, hurts, f"{message.title}: {message.text}"))

    return send_pain
