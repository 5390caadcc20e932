"""`rd.morning()`: asks the store what insight/morning.py needs to know. Reads; changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from redrive.app.alerts import read_states
from redrive.core.job import Job, State
from redrive.core.lifecycle import DEFERRED
from redrive.core.moments import earlier
from redrive.core.store import Filter, Group, Tally
from redrive.errors import InvalidOption
from redrive.insight.groups import GroupView, lessons_by_group, view
from redrive.insight.morning import (
    DAY,
    FOR_A_PERSON,
    HOUR,
    SHOWN,
    STALE_DAYS,
    STUCK_AFTER,
    Morning,
    Pile,
    Seen,
    Spike,
    failing_days,
    morning,
    unheard_of,
    window_start,
)
from redrive.runtime.living import unattended
from redrive.runtime.paging import pages

if TYPE_CHECKING:
    from redrive.app import Redrive

RETURNING: Final = 500
"""So many letters of the delayed lane are read at a time for ones that do not heal."""
LOOKED_AT: Final = 100
"""So many held jobs, the latest, are looked at for the latest of each task."""
FEW: Final = 20_000
"""Waiting jobs up to which it costs next to nothing to ask how many of them have failed before."""
LONGEST: Final = 366 * DAY


async def look(
    app: Redrive,
    since: timedelta | datetime | float | None = None,
    *,
    queue: str | None = None,
    spike: int | Spike | None = None,
) -> Morning:
    """`since` is a span (seconds or timedelta) or an instant with a zone."""
    now = app.clock.now()
    start = _start(since, now)
    threshold = _spike(spike)
    lanes = await _lanes(app, queue)
    ignored = await _ignored(app, lanes)
    seen = Seen(
        now,
        start,
        await _tallies(app, now, start),
        frozenset(),
        await _manual(app, queue, lanes.without(ignored), start, now),
        await _held(app, queue),
        await _stuck(app, queue, now),
        await _stale(app, queue, now),
        sum(lanes.delayed.values()),
        await _retrying(app, queue),
        await _oldest(app, queue, now),
        await _unattended(app, queue, now),
        app.spool.count() if queue is None else 0,
        queue=queue,
        deferred=await _count(app, queue, State.held, because=DEFERRED),
        overdue=await _overdue(app, queue, now),
        cured=await _cured(app, queue, lanes, start, now),
        ignored=sum(lanes.manual[name] for name in ignored),
    )
    known, groups = await _known_classes(app, seen), await _views(app, seen)
    return morning(replace(seen, known_classes=known, groups=groups), threshold)


async def _tallies(app: Redrive, now: float, since: float) -> list[Tally]:
    """What happened since then, and in as much time before: two sums, however many hours."""
    start = window_start(now, since)
    length = now // HOUR * HOUR + HOUR - start
    here = await app.store.tallies(start, now + 1.0, whole=True)
    return here + await app.store.tallies(start - length, start, whole=True)


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


async def _count(app: Redrive, queue: str | None, state: State, **said: Any) -> int:
    return sum((await app.store.count(Filter(states=(state,), queue=queue, **said))).values())


class Lanes(NamedTuple):
    """The dead letters by trouble: in the manual lane, and in the delayed one."""

    manual: dict[str | None, int]
    delayed: dict[str | None, int]

    @property
    def troubles(self) -> set[str | None]:
        return self.manual.keys() | self.delayed.keys()

    def without(self, troubles: Set[str]) -> Lanes:
        return Lanes({name: number for name, number in self.manual.items() if name not in troubles}, self.delayed)


async def _lanes(app: Redrive, queue: str | None) -> Lanes:
    counted = await app.store.count(Filter(states=(State.dead,), queue=queue), by=("fingerprint", "lane"))
    delayed = {name: number for (name, lane), number in counted.items() if lane == "delayed"}
    manual: dict[str | None, int] = {}
    for (name, lane), number in counted.items():
        if lane != "delayed":
            manual[name] = manual.get(name, 0) + number
    return Lanes(manual, delayed)


async def _ignored(app: Redrive, lanes: Lanes) -> set[str]:
    """Troubles of the manual lane that somebody said nobody need see to."""
    states = await read_states(app.store, [name for name in lanes.manual if name is not None])
    return {name for name, (state, _) in states.items() if state is not None and state.status == "ignored"}


async def _by_trouble(app: Redrive, chosen: Filter) -> dict[str | None, int]:
    return {name: number for (name,), number in (await app.store.count(chosen, by=("fingerprint",))).items()}


async def _manual(app: Redrive, queue: str | None, lanes: Lanes, since: float, now: float) -> list[Pile]:
    """The manual lane by trouble, the largest piles first; what is beyond the twenty largest is one pile per class."""
    grouped = [(name, number) for name, number in lanes.manual.items() if name is not None]
    largest = sorted(grouped, key=lambda entry: (-entry[1], entry[0]))
    shown, rest = largest[:SHOWN], largest[SHOWN:]
    chosen = Filter(states=(State.dead,), queue=queue, lane="manual")
    wanted = [(replace(chosen, fingerprint=name), number) for name, number in shown]
    oldest = await _oldest_of(app, [of_trouble for of_trouble, _ in wanted])
    fresh = await _by_trouble(app, replace(chosen, since=since))
    before = await _by_trouble(app, replace(chosen, since=2 * since - now, until=since))
    piles = []
    for pile in await _piles(app, wanted) + await _rest(app, chosen, dict(rest)):
        name = pile.sample.fingerprint if pile.troubles == 1 else None
        numbers = {"fresh": fresh.get(name, 0), "before": before.get(name, 0)} if name is not None else {}
        piles.append(replace(pile, oldest_at=oldest.get(name), **numbers))
    return piles + (await _ungrouped(app, chosen) if None in lanes.manual else [])


async def _oldest_of(app: Redrive, troubles: Sequence[Filter]) -> dict[str | None, float]:
    """Since when the one that lies there for longest does, for each."""
    found = await app.store.first(troubles, oldest=True)
    return {job.fingerprint: job.updated_at for job in found if job is not None}


async def _ungrouped(app: Redrive, chosen: Filter) -> list[Pile]:
    """Letters that no failure of theirs put into a group, such as a cancelled job that somebody restored: by task."""
    by = ("queue", "task", "error_class", "fingerprint")
    counted = await app.store.count(chosen, by=by)
    wanted = [
        (replace(chosen, queue=queue, task=task, error_class=error_class), number)
        for (queue, task, error_class, fingerprint), number in counted.items()
        if fingerprint is None
    ]
    return await _piles(app, wanted)


async def _rest(app: Redrive, chosen: Filter, rest: dict[str, int]) -> list[Pile]:
    """The small troubles by the class of their error; the latest of them speaks for a class."""
    classes: dict[str | None, list[str]] = {}
    for group in await app.store.groups() if rest else ():
        if group.fingerprint in rest:
            classes.setdefault(group.error_class, []).append(group.fingerprint)
    alike = {names[0]: names for names in classes.values()}
    sums = [(replace(chosen, fingerprint=name), sum(rest[each] for each in alike[name])) for name in alike]
    piles = await _piles(app, sums)
    return [replace(pile, troubles=len(alike[name])) for pile in piles if (name := pile.sample.fingerprint) in alike]


async def _piles(app: Redrive, wanted: Sequence[tuple[Filter, int]]) -> list[Pile]:
    """Each with its latest job; nothing where the last of them has left this moment."""
    first = await app.store.first([chosen for chosen, _ in wanted])
    return await _with_stories(app, zip(first, (number for _, number in wanted), strict=True))


async def _with_stories(app: Redrive, latest: Iterable[tuple[Job | None, int]]) -> list[Pile]:
    there = [(job.id, number) for job, number in latest if job is not None]
    found = {job.id: job for job in await app.store.get([id for id, _ in there])}
    return [Pile(number, found[id]) for id, number in there if id in found]


async def _overdue(app: Redrive, queue: str | None, now: float) -> list[Pile]:
    """Deferred jobs whose time has come, and that nobody has recalled."""
    return await _by_task(app, [Filter(states=(State.held,), because=DEFERRED, queue=queue, due_at=now)])


async def _held(app: Redrive, queue: str | None) -> list[Pile]:
    return await _by_task(app, [Filter(states=(State.held,), because=because, queue=queue) for because in FOR_A_PERSON])


async def _by_task(app: Redrive, filters: Sequence[Filter]) -> list[Pile]:
    """The latest of all of them are mostly the latest of each; only what is not among those is asked for by itself."""
    piles: list[tuple[Job | None, int]] = []
    for chosen in filters:
        counted = await app.store.count(chosen, by=("queue", "task"))
        jobs = (await app.store.find(chosen, limit=LOOKED_AT)).jobs if counted else []
        latest: dict[tuple[str | None, ...], Job | None] = {(job.queue, job.task): job for job in reversed(jobs)}
        beyond = [key for key in counted if key not in latest]
        asked = await app.store.first([replace(chosen, queue=queue, task=task) for queue, task in beyond])
        latest |= zip(beyond, asked, strict=True)
        piles += [(latest[key], number) for key, number in counted.items()]
    return await _with_stories(app, piles)


async def _cured(app: Redrive, queue: str | None, lanes: Lanes, since: float, now: float) -> list[Group]:
    """Troubles of the time before that buried nothing since and have nothing left."""
    groups = await app.store.groups(since=2 * since - now)
    silent = [group for group in groups if group.last_at < since and queue in (None, group.queue)]
    if not silent:
        return []
    left = lanes.troubles | (await _by_trouble(app, Filter(states=(State.held,)))).keys()
    return [group for group in silent if group.fingerprint not in left][:SHOWN]


async def _stuck(app: Redrive, queue: str | None, now: float) -> list[Pile]:
    """What should come back by itself and is fetched by nobody, by task."""
    until = now - STUCK_AFTER
    return _largest(await _by_task(app, [Filter(states=(State.dead,), lane="delayed", queue=queue, until=until)]))


async def _stale(app: Redrive, queue: str | None, now: float) -> list[Pile]:
    """What is fetched and fails day after day, by task. Only their stories tell, so that each is read."""
    found: dict[tuple[str, str], Pile] = {}
    chosen = Filter(states=(State.dead,), lane="delayed", queue=queue, since=now - STUCK_AFTER)
    async for jobs in pages(app.store, chosen, RETURNING):
        for job in await app.store.get([job.id for job in jobs]):
            if len(failing_days(job)) >= STALE_DAYS:
                pile = found.get((job.queue, job.task)) or Pile(0, job)  # the latest comes first
                found[job.queue, job.task] = replace(pile, number=pile.number + 1)
    return _largest(list(found.values()))


def _largest(piles: Sequence[Pile]) -> list[Pile]:
    """The twenty largest; what is beyond is one pile."""
    most = sorted(piles, key=lambda pile: (-pile.number, pile.sample.queue, pile.sample.task))
    shown, beyond = most[:SHOWN], most[SHOWN:]
    if not beyond:
        return shown
    return [*shown, replace(beyond[0], number=sum(pile.number for pile in beyond), troubles=len(beyond))]


async def _retrying(app: Redrive, queue: str | None) -> int | None:
    """Waiting after a failure; None where so many wait that asking would cost."""
    if await _count(app, queue, State.waiting) > FEW:
        return None
    by_class = await app.store.count(Filter(states=(State.waiting,), queue=queue), by=("error_class",))
    return sum(number for (error_class,), number in by_class.items() if error_class is not None)


async def _oldest(app: Redrive, queue: str | None, now: float) -> Job | None:
    """The due job that has been due for longest."""
    return next(iter(await app.store.overdue(now, queue)), None)


async def _unattended(app: Redrive, queue: str | None, now: float) -> list[Pile]:
    """What no living worker would run, by task, the most first; what is beyond twenty tasks is one pile.

    A worker that is being restarted is back within the hour.
    """
    left = {
        route: number for route, number in (await unattended(app.store, now, HOUR)).items() if queue in (None, route[0])
    }
    most = sorted(left, key=lambda route: (-left[route], route))
    shown, beyond = most[:SHOWN], most[SHOWN:]
    piles = await _due(app, {route: left[route] for route in shown}, now - HOUR)
    if beyond:
        rest = await _due(app, {beyond[0]: sum(left[route] for route in beyond)}, now - HOUR)
        piles += [replace(pile, troubles=len(beyond)) for pile in rest]
    return piles


async def _due(app: Redrive, numbers: Mapping[tuple[str, str], int], at: float) -> list[Pile]:
    """Each with the one that has been there for longest."""
    found = await asyncio.gather(*(app.store.overdue(at, queue, task=task) for queue, task in numbers))
    return [Pile(number, job) for jobs, number in zip(found, numbers.values(), strict=True) for job in jobs]


async def _known_classes(app: Redrive, seen: Seen) -> frozenset[str]:
    """Which of today's classes had happened before; asked only where the day before did not have them."""
    if not unheard_of(seen):
        return frozenset()
    start = window_start(seen.now, seen.since)
    return frozenset(group.error_class or "unknown" for group in await app.store.groups() if group.first_at < start)


async def _views(app: Redrive, seen: Seen) -> dict[str, GroupView]:
    """What people said of the piles' troubles, and what helped against them."""
    names = list({pile.sample.fingerprint for pile in seen.manual if pile.sample.fingerprint})
    states = await read_states(app.store, names)
    piles = {pile.sample.fingerprint: pile for pile in seen.manual}
    helped = lessons_by_group(await app.store.lessons(*names))
    views = {}
    for group in await app.store.groups(fingerprints=names):
        name = group.fingerprint
        state, _ = states.get(name, (None, 0))
        pile = piles[name]
        views[name] = view(group, state, pile.number, seen.now, helped.get(name, ()), letter=pile.sample)
    return views
