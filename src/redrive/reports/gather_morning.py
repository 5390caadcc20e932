"""Reads the data of `rd.morning()`: the list of needs, and what changed since the period before. Changes nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core.job import State
from redrive.core.store import Filter, Group, Tally
from redrive.core.times import earlier
from redrive.errors import InvalidOption
from redrive.reports import gather_needs as app_needs
from redrive.reports.morning import (
    DAY,
    HOUR,
    SHOWN,
    Morning,
    Seen,
    Spike,
    morning,
    unheard_of,
    window_start,
    without_cured,
)
from redrive.reports.needs import needs

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.reports.watch import Watch

LONGEST: Final = 366 * DAY


async def look(
    core: Core,
    watch: Watch,
    since: timedelta | datetime | float | None = None,
    *,
    queue: str | None = None,
    spike: int | Spike | None = None,
) -> Morning:
    """Builds the morning page. `since` is a span (seconds or timedelta) or an instant with a zone."""
    now = core.clock.now()
    start = _start(since, now)
    threshold = _spike(spike)
    numbers = await watch.numbers()
    snapshot = await watch.snapshot(numbers, queue=queue, since=start)
    mine = [one for one in numbers if queue in (None, one.name)]
    seen = Seen(
        now,
        start,
        await _tallies(core, now, start),
        needs=needs(snapshot),
        delayed=snapshot.delayed,
        next_back=min((one.next_back for one in mine if one.next_back is not None), default=None),
        retrying=sum(one.retrying for one in mine),
        parked=sum(one.parked for one in mine),
        oldest=snapshot.oldest,
        queue=queue,
        deferred=snapshot.deferred,
        cured=await _list_cured(core, queue, start, now),
        ignored=snapshot.ignored,
    )
    page = morning(msgspec.structs.replace(seen, known_classes=await _known_classes(core, seen)), threshold)
    return without_cured(page, await _remaining_classes(core, page)) if page.changes else page


async def _tallies(core: Core, now: float, since: float) -> list[Tally]:
    """Reads the moves since `since` and in as much time before: two sums, however many hours."""
    start = window_start(now, since)
    length = now // HOUR * HOUR + HOUR - start
    here = await core.store.tallies(start, now + 1.0, whole=True)
    return here + await core.store.tallies(start - length, start, whole=True)


def _start(since: timedelta | datetime | float | None, now: float) -> float:
    start = earlier("since", DAY if since is None else since, now)
    if not 0 < now - start <= LONGEST:
        raise InvalidOption(field="since", problem="must be in the past, a year ago at most")
    return start


def _spike(said: int | Spike | None) -> Spike:
    spike = said if isinstance(said, Spike) else Spike() if said is None else Spike(said)
    if spike.more < 1 or spike.times < 1:
        raise InvalidOption(field="spike", problem=f"{spike.more} more, {spike.times:g} times: both must be at least 1")
    return spike


async def _list_cured(core: Core, queue: str | None, since: float, now: float) -> list[Group]:
    """Lists groups that had deaths in the period before, none since, and no job left."""
    groups = await core.store.groups(since=2 * since - now)
    silent = [group for group in groups if group.last_at < since and queue in (None, group.queue)]
    if not silent:
        return []
    left = await app_needs.by_group(core, Filter(states=(State.dead,), queue=queue))
    left |= await app_needs.by_group(core, Filter(states=(State.held,)))
    return [group for group in silent if group.fingerprint not in left][:SHOWN]


async def _remaining_classes(core: Core, page: Morning) -> frozenset[str]:
    """Reads the error classes of dead jobs; those of retrying jobs too, if the dead do not cover all changes."""
    dead = await _classes(core, Filter(states=(State.dead,), queue=page.queue))
    if {delta.error_class for delta in page.changes} <= dead:
        return dead
    return dead | await _classes(core, Filter(states=(State.waiting,), queue=page.queue, failed=True))


async def _classes(core: Core, chosen: Filter) -> frozenset[str]:
    return frozenset(str(name or "unknown") for (name,) in await core.store.count(chosen, by=("error_class",)))


async def _known_classes(core: Core, seen: Seen) -> frozenset[str]:
    """Reads the error classes that happened before the window, if the window before lacks a class of the window."""
    if not unheard_of(seen):
        return frozenset()
    start = window_start(seen.now, seen.since)
    return frozenset(group.error_class or "unknown" for group in await core.store.groups() if group.first_at < start)
