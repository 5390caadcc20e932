"""Watches error groups: judges new deaths, and writes alerts into the outbox of notices.

Judging writes one document per group by compare-and-set: of several processes that see the same deaths only one judges
them. The alert is in the same commit and waits in the outbox until every channel has it, so a process that dies, or has
no channel, loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from redrive.core.commit import apply_each, commit_in_parts
from redrive.core.documents import WAITING
from redrive.core.documents import Kind as DocumentKind
from redrive.core.job import Job, State
from redrive.core.notice import Level, Notice, waiting_key
from redrive.core.store import Applied, Commit, Filter, Group, Put, Store
from redrive.deadletters import group as insight
from redrive.deadletters.group import HOUR, Alert, GroupState, Kind, Suggestion
from redrive.engine.bus import BusEvent

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.groups")
GROUP_STATE: Final = DocumentKind[GroupState]("group", GroupState)
ALERT: Final = "group_"
"""Prefix of the kinds of notices that are alerts on groups."""
LEVELS: Final[Mapping[Kind, Level]] = {"new": "acknowledgement", "regressed": "actionable", "unignored": "actionable"}
"""Level of each alert: a new group is for information, a regressed one asks for action."""
LATE: Final = 120.0
"""Longest delay between the time that a death names and its commit."""
SWEEP_SECONDS: Final = 60.0
"""Seconds between checks of all groups, because an import brings old deaths."""
FEW: Final = 20

Known = tuple[GroupState | None, int]
"""State of a group, and the version at which the document was read."""
_NONE: Final[Known] = (None, 0)


async def read_states(store: Store, fingerprints: Sequence[str]) -> dict[str, Known]:
    """Reads the documents of these groups."""
    if len(fingerprints) > FEW:
        wanted = set(fingerprints)
        found = [
            GROUP_STATE.read(document) for document in await store.docs(GROUP_STATE.name) if document.key in wanted
        ]
    else:
        asked = [await GROUP_STATE.get(store, fingerprint) for fingerprint in fingerprints]
        found = [kept for kept in asked if kept is not None]
    return {kept.key: (kept.value, kept.version) for kept in found}


async def read_latest_dead_letters(store: Store, fingerprints: Sequence[str]) -> dict[str, Job]:
    """Reads the latest dead letter of each group, whose recommendation becomes the group's advice."""
    letters = await store.first([Filter(states=(State.dead,), fingerprint=name) for name in fingerprints])
    return {name: job for name, job in zip(fingerprints, letters, strict=True) if job is not None}


async def silence(store: Store, fingerprint: str) -> None:
    """Drops the unsent alerts of a group, because a person has dealt with it."""
    waiting = [kept for kept in await WAITING.all(store) if kept.value.fingerprint == fingerprint]
    puts = [WAITING.drop(kept.key) for kept in waiting if kept.value.kind.startswith(ALERT)]
    if puts:
        await commit_in_parts(store, puts, what=f"the alerts on group {fingerprint} were dropped")


class Verdict(NamedTuple):
    """Result of judging a group; `new` if the result differs from the document of this version."""

    group: Group
    state: GroupState
    version: int
    alert: Alert | None
    new: bool


class GroupWatch:
    """Judges the groups of the whole store."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store: Store | None = None
        self._judged: dict[str, int] = {}
        self._latest = 0.0
        self._swept = float("-inf")

    async def look(self) -> None:
        """Judges every group with new deaths."""
        now = self._core.clock.now()
        if changed := await self._list_changed(now):
            await self._judge(changed, now)

    async def _list_changed(self, now: float) -> list[Group]:
        """Lists the groups with deaths that this process has not seen judged."""
        store, steady = self._core.store, self._core.clock.monotonic()
        if store is not self._store:
            self._store, self._latest, self._swept = store, 0.0, float("-inf")
            self._judged.clear()
        sweep = steady - self._swept >= SWEEP_SECONDS
        groups = await store.groups(0.0 if sweep else self._latest - LATE)
        if sweep:
            self._swept = steady
        self._latest = min(now, max([self._latest, *(group.last_at for group in groups)]))
        return [group for group in groups if self._judged.get(group.fingerprint) != group.buried]

    # -- judging

    async def _judge(self, groups: Sequence[Group], now: float) -> None:
        """Judges the groups and commits the results. If another process was faster, the next call decides again."""
        known = await read_states(self._core.store, [group.fingerprint for group in groups])
        verdicts = [await self._verdict(group, known.get(group.fingerprint, _NONE), now) for group in groups]
        fresh = [verdict for verdict in verdicts if verdict.new]
        told = [await self._compose_alert(verdict, now) for verdict in fresh]
        states = [GROUP_STATE.put(one.group.fingerprint, one.state, one.version) for one in fresh]
        commits = [Commit(puts=(put, *map(_waiting, notices))) for put, notices in zip(states, told, strict=True)]
        outcomes = [outcome for _, outcome in await apply_each(self._core.store, commits)]
        judged = zip(fresh, told, outcomes, strict=True)
        won = [(verdict, notices) for verdict, notices, outcome in judged if isinstance(outcome, Applied)]
        for group, *_ in (*(verdict for verdict, _ in won), *(verdict for verdict in verdicts if not verdict.new)):
            self._judged[group.fingerprint] = group.buried
        for verdict, notices in won:
            if verdict.alert is not None:
                await self._announce(verdict.group, verdict.alert, notices[0])

    async def _verdict(self, group: Group, known: Known, now: float) -> Verdict:
        (state, version), recent, code = known, 0, None
        if state is not None and state.ignored_rate is not None:
            recent = await self._recent(group, state, now)
        if state is not None and state.resolved_in is not None:
            code = await self._version(group)
        judged, alert = insight.judge(group, state, now, recent, code)
        return Verdict(group, judged, version, alert, judged is not state)

    async def _recent(self, group: Group, state: GroupState, now: float) -> int:
        """Counts the deaths of the last hour: jobs that are still dead, or deaths since the last look if more."""
        last_hour = Filter(states=(State.dead,), fingerprint=group.fingerprint, since=now - HOUR)
        still_dead = sum((await self._core.store.count(last_hour)).values())
        return max(still_dead, group.buried - state.seen_buried if now - state.seen_at <= HOUR else 0)

    async def _version(self, group: Group) -> str | None:
        """Returns the code version that ran the group's latest dead letter, if known."""
        jobs = await self._core.store.get([group.sample])
        return jobs[0].history[-1].version if jobs and jobs[0].history else None

    async def _compose_alert(self, verdict: Verdict, now: float) -> list[Notice]:
        """Composes the alert on a group, as a list of one notice; usually empty."""
        group, alert = verdict.group, verdict.alert
        if alert is None:
            return []
        text = insight.message(alert, group, await self._suggest(group))
        hurts = insight.severity(alert.kind, await self._dead(group))
        title, level = text.partition("; ")[0][:200], LEVELS[alert.kind]
        return [
            Notice(
                f"{group.fingerprint}.{ALERT}{alert.kind}", f"{ALERT}{alert.kind}", level, "user", title, text, now,
                group.queue, group.task, group.sample, fingerprint=group.fingerprint, severity=hurts,
            )
        ]  # fmt: skip

    async def _suggest(self, group: Group) -> Suggestion:
        store = self._core.store
        letter = (await read_latest_dead_letters(store, [group.fingerprint])).get(group.fingerprint)
        return insight.suggest(group, await store.lessons(group.fingerprint), letter=letter)

    async def _dead(self, group: Group) -> int:
        dead = Filter(states=(State.dead,), fingerprint=group.fingerprint)
        return sum((await self._core.store.count(dead)).values())

    async def _announce(self, group: Group, alert: Alert, notice: Notice) -> None:
        """Logs a committed alert and publishes it on the bus."""
        log.warning("%s", notice.text)
        suggestion = await self._suggest(group)
        data = {
            "kind": alert.kind,
            "fingerprint": alert.fingerprint,
            "error_class": alert.error_class,
            "count": alert.buried,
            "dead": await self._dead(group),
            "severity": notice.severity,
            "message": notice.text,
            "suggestion": suggestion.public(),
        }
        self._core.bus.publish(BusEvent("group_alert", alert.queue, notice.at, group.sample, alert.task, data=data))


def _waiting(notice: Notice) -> Put:
    return WAITING.put(waiting_key(notice), notice)
