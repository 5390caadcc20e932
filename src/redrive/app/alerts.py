"""The watch over error groups: judges what changed, and sees that an alert is told once, by one process, for good.

Judging and telling are moves of one document per group, by compare-and-set: of any number of processes that see the
same burials one judges, and one tells. What is owed stands in the document before anybody is told and leaves it only
after every sink has taken it, so a sink that fails, or a process that dies in the middle, means a repetition, never
silence. A process with nobody to tell (a command, a script without sinks) judges, and leaves the telling to another.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from redrive.app.namespace import TRIES
from redrive.app.watch import ON_THE_BUS, tell_sinks
from redrive.core.job import Job, State
from redrive.core.store import Applied, Commit, Filter, Group, Put, Store
from redrive.insight import groups as insight
from redrive.insight.groups import HOUR, Alert, GroupState, Owed
from redrive.insight.health import Pain
from redrive.runtime.bus import BusEvent
from redrive.runtime.living import living
from redrive.runtime.notify import SIGNAL

if TYPE_CHECKING:
    from redrive.app import Redrive

log = logging.getLogger("redrive.groups")
KIND: Final = "group"
OWED: Final = "group_alert"
"""A document under the fingerprint of each group with an alert to tell: most of the time there is none to read."""
LATE: Final = 120.0
"""A burial may be committed so long after the time it says."""
SWEEP_SECONDS: Final = 60.0
"""How often all groups are looked at: an import brings burials of long ago."""
TELLING_SECONDS: Final = 120.0
"""Whoever tells an alert has so long; then it is taken for dead, and another tells it."""
FEW: Final = 20

Known = tuple[GroupState | None, int]
"""What is known of a group, and the version it was read at."""
_NONE: Final[Known] = (None, 0)
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(GroupState).decode


async def read_states(store: Store, fingerprints: Sequence[str]) -> dict[str, Known]:
    """What was said and judged of these groups."""
    if len(fingerprints) > FEW:
        wanted = set(fingerprints)
        found = [document for document in await store.docs(KIND) if document.key in wanted]
    else:
        asked = [await store.doc(KIND, fingerprint) for fingerprint in fingerprints]
        found = [document for document in asked if document is not None]
    return {document.key: (decode(document.value), document.version) for document in found}


async def latest_letters(store: Store, fingerprints: Sequence[str]) -> dict[str, Job]:
    """The latest dead letter of each of these groups, where there is one: what it recommends is the group's advice."""
    found = await store.first([Filter(states=(State.dead,), fingerprint=name) for name in fingerprints])
    return {name: job for name, job in zip(fingerprints, found, strict=True) if job is not None}


def write(fingerprint: str, state: GroupState, version: int) -> Commit:
    """The document as it is from now on, if nobody was faster, and whether an alert is owed."""
    owed = Put(OWED, fingerprint, b"1" if state.owed else None)
    return Commit(puts=(Put(KIND, fingerprint, encode(state), version), owed))


class Verdict(NamedTuple):
    """What a look makes of a group; `new` where that is not what the document (of this version) says already."""

    group: Group
    state: GroupState
    version: int
    alert: Alert | None
    new: bool


class GroupWatch:
    """Looks at the groups of the whole store."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._store: Store | None = None
        self._judged: dict[str, int] = {}
        self._latest = 0.0
        self._swept = float("-inf")
        self._heard: dict[Alert, set[int]] = {}

    async def look(self) -> None:
        """One round: judge every group with new burials, then tell what is owed, from now or from before."""
        now, listened_to = self._app.clock.now(), await self._listened_to()
        if changed := await self._changed(now):
            await self._judge(changed, now, listened_to=listened_to)
        if listened_to:
            await self._tell_owed()

    async def _listened_to(self) -> bool:
        """Whether this process has somebody for whom alerts are: a sink; or a subscriber that asks for them by name,
        unless a living worker has a sink, from which it would be taken."""
        if self._app.signals:
            return True
        asked = any(pattern.partition(".")[0] == "group_alert" for pattern in self._app.bus.patterns)
        return asked and not await self._sinks_elsewhere()

    async def _sinks_elsewhere(self) -> bool:
        workers = await living(self._app.store, self._app.clock.now())
        return any(channel.startswith(SIGNAL) for worker in workers for channel in worker.channels)

    async def _changed(self, now: float) -> list[Group]:
        """The groups with burials that this process has not seen judged."""
        store, steady = self._app.store, self._app.clock.monotonic()
        if store is not self._store:
            self._store, self._latest, self._swept = store, 0.0, float("-inf")
            self._judged.clear()
        sweep = steady - self._swept >= SWEEP_SECONDS
        found = await store.groups(0.0 if sweep else self._latest - LATE)
        if sweep:
            self._swept = steady
        self._latest = min(now, max([self._latest, *(group.last_at for group in found)]))
        return [group for group in found if self._judged.get(group.fingerprint) != group.buried]

    # -- judging

    async def _judge(self, groups: Sequence[Group], now: float, *, listened_to: bool) -> None:
        """Commits what the burials mean. Where somebody else was faster, or nobody knows, the next look sees to it."""
        known = await read_states(self._app.store, [group.fingerprint for group in groups])
        verdicts = [await self._verdict(group, known.get(group.fingerprint, _NONE), now) for group in groups]
        fresh = [verdict for verdict in verdicts if verdict.new]
        commits = [write(verdict.group.fingerprint, verdict.state, verdict.version) for verdict in fresh]
        outcomes = await self._app.store.apply(commits) if commits else []
        won = [verdict for verdict, outcome in zip(fresh, outcomes, strict=True) if isinstance(outcome, Applied)]
        for group, *_ in (*won, *(verdict for verdict in verdicts if not verdict.new)):
            self._judged[group.fingerprint] = group.buried
        for verdict in won:
            if verdict.alert is not None:
                await self._announce(verdict.group, verdict.alert, now, listened_to=listened_to)

    async def _verdict(self, group: Group, known: Known, now: float) -> Verdict:
        (state, version), recent, code = known, 0, None
        if state is not None and state.ignored_rate is not None:
            recent = await self._recent(group, state, now)
        if state is not None and state.resolved_in is not None:
            code = await self._version(group)
        judged, alert = insight.judge(group, state, now, recent, code)
        return Verdict(group, judged, version, alert, judged is not state)

    async def _recent(self, group: Group, state: GroupState, now: float) -> int:
        """Burials of the last hour: what is still dead of them, or what came since the last look if that is more."""
        last_hour = Filter(states=(State.dead,), fingerprint=group.fingerprint, since=now - HOUR)
        still_dead = sum((await self._app.store.count(last_hour)).values())
        return max(still_dead, group.buried - state.seen_buried if now - state.seen_at <= HOUR else 0)

    async def _version(self, group: Group) -> str | None:
        """Which version of the code made the latest burial, where that is known."""
        found = await self._app.store.get([group.sample])
        return found[0].history[-1].version if found and found[0].history else None

    async def _announce(self, group: Group, alert: Alert, now: float, *, listened_to: bool) -> None:
        """Into the log in any case; on this process's bus, too, where it is not told to anybody here by name."""
        letter = (await latest_letters(self._app.store, [group.fingerprint])).get(group.fingerprint)
        log.warning("%s", insight.message(alert, group, insight.suggest(group, (), letter=letter)))
        if not listened_to:
            await self._signal(group, alert, set(), now)

    # -- telling

    async def _tell_owed(self) -> None:
        """Each alert that nobody has told to the end yet, wherever it was judged. Whoever claims it tells it."""
        owed = {marker.key for marker in await self._app.store.docs(OWED)}
        self._heard = {alert: heard for alert, heard in self._heard.items() if alert.fingerprint in owed}
        silent: set[int] = set()
        for fingerprint in sorted(owed):
            state, version = (await read_states(self._app.store, [fingerprint])).get(fingerprint, _NONE)
            groups, now = await self._app.store.groups(fingerprints=[fingerprint]), self._app.clock.now()
            if state is None or state.owed is None or not groups or _being_told(state.owed, now):
                continue
            claimed = insight.telling(state, state.owed, now + TELLING_SECONDS)
            (outcome,) = await self._app.store.apply([write(fingerprint, claimed, version)])
            if isinstance(outcome, Applied):
                await self._tell(groups[0], state.owed.alert, now, silent)

    async def _tell(self, group: Group, alert: Alert, now: float, silent: set[int]) -> None:
        """On the bus and to every sink; each sink that took it is spared when another must be told again."""
        heard = self._heard.setdefault(alert, set())
        pain = await self._signal(group, alert, heard, now)
        delivered = await tell_sinks(self._app, pain, heard, silent)
        if await self._settle(alert, now, delivered=delivered) and delivered:
            self._heard.pop(alert, None)

    async def _signal(self, group: Group, alert: Alert, heard: set[int], now: float) -> Pain:
        """The alert as a signal for sinks; this process's bus hears of it on the way, once."""
        store = self._app.store
        letter = (await latest_letters(store, [group.fingerprint])).get(group.fingerprint)
        suggestion = insight.suggest(group, await store.lessons(group.fingerprint), letter=letter)
        dead = sum((await store.count(Filter(states=(State.dead,), fingerprint=group.fingerprint))).values())
        text, hurts = insight.message(alert, group, suggestion), insight.severity(alert.kind, dead)
        if ON_THE_BUS not in heard:
            heard.add(ON_THE_BUS)
            data = {
                "kind": alert.kind, "fingerprint": alert.fingerprint, "error_class": alert.error_class,
                "count": alert.buried, "dead": dead, "severity": hurts, "message": text,
                "suggestion": suggestion.public(),
            }  # fmt: skip
            self._app.bus.publish(BusEvent("group_alert", alert.queue, now, group.sample, alert.task, data=data))
        return Pain(f"group_{alert.kind}", alert.queue, hurts, text)

    async def _settle(self, alert: Alert, now: float, *, delivered: bool) -> bool:
        """Remember what came of the telling, whatever else was said of the group meanwhile."""
        for _ in range(TRIES):
            state, version = (await read_states(self._app.store, [alert.fingerprint])).get(alert.fingerprint, _NONE)
            if state is None:
                return True
            after = insight.told(state, alert, now, delivered=delivered)
            (outcome,) = await self._app.store.apply([write(alert.fingerprint, after, version)])
            if isinstance(outcome, Applied):
                return True
        log.warning("what came of the alert on group %s could not be kept; it may be repeated", alert.fingerprint)
        return False


def _being_told(owed: Owed, now: float) -> bool:
    """Somebody is at it. A time much further away than anybody takes is a clock's mistake and binds nobody."""
    return now < owed.telling_until <= now + 2 * TELLING_SECONDS
