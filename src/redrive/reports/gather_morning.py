"""Reads the data of `rd.morning()`: the list of needs, and what changed since the period before. Changes nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core.job import State
from redrive.core.store import Filter
from redrive.core.times import earlier
from redrive.errors import InvalidOption
from redrive.reports.gather_needs import count_groups
from redrive.reports.morning import (
    DAY,
    SHOWN,
    Cured,
    Morning,
    Spike,
    compare,
    describe_cured,
    rank,
    sum_moves,
    windows,
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
    start = max(0.0, now - DAY) if since is None else _check_since(since, now)
    threshold = Spike() if spike is None else _check_spike(spike)
    numbers = await watch.numbers()
    seen = await watch.snapshot(numbers, queue=queue, since=start)
    mine = [one for one in numbers if queue in (None, one.name)]
    lately, formerly = windows(now, start)
    here = sum_moves(await core.store.tallies(*lately, whole=True), queue)
    before = sum_moves(await core.store.tallies(*formerly, whole=True), queue)
    unheard_of = here.failed.keys() - before.failed.keys()
    deltas = compare(here, before, await _read_known_classes(core, lately[0]) if unheard_of else _NONE, threshold)
    changed = {delta.error_class for delta in deltas if delta.structural}
    return Morning(
        since=start,
        until=now,
        done=here.done,
        failed=sum(here.failed.values()),
        delayed=seen.delayed,
        next_back=min((one.next_back for one in mine if one.next_back is not None), default=None),
        retrying=sum(one.retrying for one in mine),
        parked=sum(one.parked for one in mine),
        ignored=seen.ignored,
        needs=needs(seen),
        deltas=rank(deltas, await _read_remaining_classes(core, queue, changed) if changed else _NONE),
        oldest_waiting=seen.oldest,
        queue=queue,
        deferred=seen.deferred,
        cured=await _list_cured(core, queue, start, now),
    )


_NONE: Final = frozenset[str]()


def _check_since(since: timedelta | datetime | float, now: float) -> float:
    start = earlier("since", since, now)
    if not 0 < now - start <= LONGEST:
        raise InvalidOption(field="since", problem="must be in the past, a year ago at most")
    return start


def _check_spike(given: int | Spike) -> Spike:
    spike = given if isinstance(given, Spike) else Spike(given)
    if spike.more < 1 or spike.times < 1:
        raise InvalidOption(field="spike", problem=f"{spike.more} more, {spike.times:g} times: both must be at least 1")
    return spike


async def _list_cured(core: Core, queue: str | None, since: float, now: float) -> list[Cured]:
    """Lists groups that had deaths in the period before, none since, and no job left."""
    groups = await core.store.groups(since=2 * since - now)
    silent = [group for group in groups if group.last_at < since and queue in (None, group.queue)]
    if not silent:
        return []
    left = await count_groups(core, Filter(states=(State.dead,), queue=queue))
    left |= await count_groups(core, Filter(states=(State.held,)))
    return [describe_cured(group) for group in silent if group.fingerprint not in left][:SHOWN]


async def _read_remaining_classes(core: Core, queue: str | None, changed: set[str]) -> frozenset[str]:
    """Reads the error classes of dead jobs; those of retrying jobs too, if the dead do not cover all changes."""
    left = set[str]()
    for chosen in (Filter(states=(State.dead,)), Filter(states=(State.waiting,), failed=True)):
        if not changed <= left:
            counted = await core.store.count(msgspec.structs.replace(chosen, queue=queue), by=("error_class",))
            left.update(str(name or "unknown") for (name,) in counted)
    return frozenset(left)


async def _read_known_classes(core: Core, start: float) -> frozenset[str]:
    """Reads the error classes that happened before the window."""
    return frozenset(group.error_class or "unknown" for group in await core.store.groups() if group.first_at < start)
