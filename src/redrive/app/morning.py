"""`rd.morning()`: asks the store what insight/morning.py needs to know. Reads; changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.app.alerts import read_states
from redrive.core.job import Job, State
from redrive.core.store import Filter
from redrive.errors import InvalidOption
from redrive.insight.groups import GroupView, view
from redrive.insight.morning import (
    DAY,
    FOR_A_PERSON,
    SHOWN,
    Morning,
    Pile,
    Seen,
    Spike,
    morning,
    unheard_of,
    window_start,
)

if TYPE_CHECKING:
    from redrive.app import Redrive

RETURNING: Final = 1_000
"""So many letters of the delayed lane, the oldest first, are looked at for ones that do not heal."""
OLDEST: Final = 100
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
    seen = Seen(
        now,
        start,
        await app.store.tallies(window_start(now, start) - (now - start) - 3600.0, now + 1.0),
        frozenset(),
        await _manual(app, queue),
        await _held(app, queue),
        await _returning(app, queue),
        await _count(app, queue, State.dead, lane="delayed"),
        await _retrying(app, queue),
        await _oldest(app, queue, now),
        app.spool.count() if queue is None else 0,
        queue=queue,
    )
    known, groups = await _known_classes(app, seen), await _views(app, seen)
    return morning(msgspec.structs.replace(seen, known_classes=known, groups=groups), threshold)


def _start(since: timedelta | datetime | float | None, now: float) -> float:
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise InvalidOption(field="since", problem=f"{since} has no time zone")
        start = since.timestamp()
    else:
        span = DAY if since is None else since.total_seconds() if isinstance(since, timedelta) else float(since)
        start = now - span
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


async def _manual(app: Redrive, queue: str | None) -> list[Pile]:
    """The manual lane by trouble, the largest piles first; what is beyond the twenty largest is one pile per class."""
    by = ("fingerprint", "queue", "task", "error_class")
    counted = await app.store.count(Filter(states=(State.dead,), queue=queue, lane="manual"), by=by)
    largest = sorted(counted.items(), key=lambda entry: (-entry[1], str(entry[0])))
    piles = []
    for (fingerprint, of_queue, task, error_class), number in largest[:SHOWN]:
        one = Filter(
            states=(State.dead,), lane="manual", fingerprint=fingerprint, queue=of_queue, task=task,
            error_class=error_class,
        )  # fmt: skip
        piles += await _pile(app, one, number)
    rest: dict[str | None, int] = {}
    for (_, _, _, error_class), number in largest[SHOWN:]:
        rest[error_class] = rest.get(error_class, 0) + number
    for error_class, number in rest.items():
        piles += await _pile(
            app, Filter(states=(State.dead,), lane="manual", queue=queue, error_class=error_class), number
        )
    return piles


async def _pile(app: Redrive, chosen: Filter, number: int) -> list[Pile]:
    """With its latest job; nothing where the last of them has left this moment."""
    latest = (await app.store.find(chosen, limit=1)).jobs
    return [Pile(number, job) for job in await app.store.get([job.id for job in latest])]


async def _held(app: Redrive, queue: str | None) -> list[Pile]:
    piles = []
    for because in FOR_A_PERSON:
        chosen = Filter(states=(State.held,), because=because, queue=queue)
        for (of_queue, task), number in (await app.store.count(chosen, by=("queue", "task"))).items():
            piles += await _pile(app, msgspec.structs.replace(chosen, queue=of_queue, task=task), number)
    return piles


async def _returning(app: Redrive, queue: str | None) -> Sequence[Job]:
    chosen = Filter(states=(State.dead,), lane="delayed", queue=queue)
    page = await app.store.find(chosen, limit=RETURNING, oldest=True)
    return await app.store.get([job.id for job in page.jobs])


async def _retrying(app: Redrive, queue: str | None) -> int | None:
    """Waiting after a failure; None where so many wait that asking would cost."""
    if await _count(app, queue, State.waiting) > FEW:
        return None
    by_class = await app.store.count(Filter(states=(State.waiting,), queue=queue), by=("error_class",))
    return sum(number for (error_class,), number in by_class.items() if error_class is not None)


async def _oldest(app: Redrive, queue: str | None, now: float) -> Job | None:
    """Of the due jobs that came first, the one that has been due for longest."""
    page = await app.store.find(Filter(states=(State.waiting,), queue=queue, due_at=now), limit=OLDEST, oldest=True)
    return min(page.jobs, key=lambda job: job.run_at, default=None)


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
    piles = {pile.sample.fingerprint: pile.number for pile in seen.manual}
    views = {}
    for group in await app.store.groups(fingerprints=names):
        state, _ = states.get(group.fingerprint, (None, 0))
        lessons = await app.store.lessons(group.fingerprint)
        views[group.fingerprint] = view(group, state, piles.get(group.fingerprint, 0), seen.now, lessons)
    return views
