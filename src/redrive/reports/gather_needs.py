"""Reads everything that reports/needs.py must know from the store. Changes nothing."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from redrive.core.job import Job, State
from redrive.core.lifecycle import DEFERRED
from redrive.core.store import Filter, LeftBehind
from redrive.deadletters.group import GroupView, lessons_by_group, view
from redrive.deadletters.group_alerts import Known, read_states
from redrive.engine.paging import read_pages
from redrive.engine.queue_pauses import read_paused_queues
from redrive.engine.trusted_time import read_clock_jump
from redrive.engine.worker_registry import (
    GONE_AFTER,
    PARKED,
    Announcement,
    count_unattended,
    count_unprobed,
    list_blocked_loops,
    list_living,
)
from redrive.flows.schedules import missed_schedules
from redrive.notices.courier import channel_problems
from redrive.reports.needs import (
    FOR_A_PERSON,
    LATE_AFTER,
    STALE_DAYS,
    STUCK_AFTER,
    Blocked,
    Pile,
    Snapshot,
    Stalled,
    Unfired,
    failing_days,
    list_stalled,
    stalled_limit,
)
from redrive.reports.queue_numbers import QueueNumbers
from redrive.scripts.cycle_records import cycle_findings
from redrive.scripts.cycle_rules import queue_of

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.jobs.spool import Spool
    from redrive.scripts.once import Effects

SHOWN: Final = 20
"""Needs of one kind that are listed one by one; the rest is merged into one need."""
RETURNING: Final = 500
"""Dead letters of a cycle's delayed lane that are read at a time."""
LOOKED_AT: Final = 100
"""Number of latest held jobs read to find the latest of each task, and of running jobs read to find stalled ones."""
SHORTEST: Final = 1.0
"""Shortest limit after which a job counts as stalled."""
DAY: Final = 86400.0
NEVER: Final = math.inf


class NeedScope(NamedTuple):
    """What is to be looked at: the whole store and its surroundings, or one queue."""

    core: Core
    spool: Spool
    effects: Effects
    queue: str | None
    workers: Sequence[Announcement]
    """The living workers."""


Fields = Mapping[str, Any]
"""Fields of a snapshot, as one gatherer has read them."""


async def look(
    core: Core,
    spool: Spool,
    effects: Effects,
    queues: Sequence[QueueNumbers],
    *,
    queue: str | None = None,
    since: float | None = None,
) -> Snapshot:
    """Reads everything that may need a person, in the whole store or in one queue. `since` tells fresh from old."""
    now = core.clock.now()
    workers = await list_living(core.store, now)
    ours = [one for one in queues if queue in (None, one.name)]
    seen = Snapshot(
        now,
        now - DAY if since is None else since,
        ours,
        known=frozenset().union(*(worker.tasks for worker in workers)),
    )
    scope = NeedScope(core, spool, effects, queue, workers)
    for number, gather in GATHERED:
        if not number or any(getattr(one, number) for one in ours):
            seen = replace(seen, **await gather(scope, seen))
    return seen


# -- dead letters


async def _gather_dead(scope: NeedScope, seen: Snapshot) -> Fields:
    """Reads the dead letters by lane and group; groups that a person chose to ignore are only counted."""
    store = scope.core.store
    counted = await store.count(Filter(states=(State.dead,), queue=scope.queue), by=("fingerprint", "lane"))
    delayed, manual = 0, Counter[str | None]()
    for (name, lane), number in counted.items():
        if lane == "delayed":
            delayed += number
        else:
            manual[name] += number
    states = await read_states(store, [name for name in manual if name is not None])
    ignored = [name for name, (state, _) in states.items() if state is not None and state.status == "ignored"]
    counts = {"delayed": delayed, "ignored": sum(manual.pop(name) for name in ignored)}
    piles = await _pile_groups(scope, seen, manual)
    return {**counts, "manual": piles, "groups": await _view_groups(scope.core, piles, states, seen.now)}


async def _pile_groups(scope: NeedScope, seen: Snapshot, manual: Mapping[str | None, int]) -> list[Pile]:
    """Lists the manual lane by group, the largest first; groups beyond twenty are one pile per error class."""
    core, since = scope.core, seen.since
    numbers = {name: manual[name] for name in sorted(name for name in manual if name is not None)}
    largest = sorted(numbers, key=numbers.__getitem__, reverse=True)
    chosen = Filter(states=(State.dead,), queue=scope.queue, lane="manual")
    wanted = [(replace(chosen, fingerprint=name), numbers[name]) for name in largest[:SHOWN]]
    first = await core.store.first([group for group, _ in wanted], oldest=True) if wanted else []
    oldest = {job.fingerprint: job.updated_at for job in first if job is not None}
    fresh = await count_groups(core, replace(chosen, since=since)) if wanted else {}
    before = await count_groups(core, replace(chosen, since=2 * since - seen.now, until=since)) if wanted else {}
    piles = await _piles(core, wanted)
    if len(largest) > SHOWN:
        piles += await _merge_small_groups(core, chosen, {name: numbers[name] for name in largest[SHOWN:]})
    for place, pile in enumerate(piles):
        if pile.groups == 1:
            name = pile.sample.fingerprint
            added, added_before = fresh.get(name, 0), before.get(name, 0)
            piles[place] = replace(pile, fresh=added, before=added_before, oldest_at=oldest.get(name))
    return piles + (await _pile_ungrouped(core, chosen) if None in manual else [])


async def count_groups(core: Core, chosen: Filter) -> dict[str | None, int]:
    """Counts the chosen jobs by group."""
    return {name: number for (name,), number in (await core.store.count(chosen, by=("fingerprint",))).items()}


async def _pile_ungrouped(core: Core, chosen: Filter) -> list[Pile]:
    """Lists by task the dead letters without a group, such as a cancelled job that a person restored."""
    by = ("queue", "task", "error_class", "fingerprint")
    counted = await core.store.count(chosen, by=by)
    wanted = [
        (replace(chosen, queue=queue, task=task, error_class=error_class), number)
        for (queue, task, error_class, fingerprint), number in counted.items()
        if fingerprint is None
    ]
    return await _piles(core, wanted)


async def _merge_small_groups(core: Core, chosen: Filter, rest: dict[str, int]) -> list[Pile]:
    """Merges the small groups by error class, each shown by its latest dead letter."""
    classes: dict[str | None, list[str]] = {}
    for group in await core.store.groups():
        if group.fingerprint in rest:
            classes.setdefault(group.error_class, []).append(group.fingerprint)
    alike = {names[0]: names for names in classes.values()}
    sums = [(replace(chosen, fingerprint=name), sum(rest[each] for each in alike[name])) for name in alike]
    piles = await _piles(core, sums)
    return [replace(pile, groups=len(alike[name])) for pile in piles if (name := pile.sample.fingerprint) in alike]


async def _piles(core: Core, wanted: Sequence[tuple[Filter, int]]) -> list[Pile]:
    """Makes a pile of each filter with its latest job; none if its last job has just left."""
    first = await core.store.first([chosen for chosen, _ in wanted]) if wanted else []
    return await _with_stories(core, zip(first, (number for _, number in wanted), strict=True))


async def _with_stories(core: Core, latest: Iterable[tuple[Job | None, int]]) -> list[Pile]:
    there = [(job.id, number) for job, number in latest if job is not None]
    jobs = {job.id: job for job in await core.store.get([id for id, _ in there])} if there else {}
    return [Pile(number, jobs[id]) for id, number in there if id in jobs]


async def _view_groups(
    core: Core, piles: Sequence[Pile], states: Mapping[str, Known], now: float
) -> dict[str, GroupView]:
    """Reads the lessons of the piles' groups."""
    by_name = {pile.sample.fingerprint: pile for pile in piles if pile.sample.fingerprint}
    if not by_name:
        return {}
    helped = lessons_by_group(await core.store.lessons(*by_name))
    views = {}
    for group in await core.store.groups(fingerprints=[*by_name]):
        name, (state, _) = group.fingerprint, states.get(group.fingerprint, (None, 0))
        pile = by_name[name]
        views[name] = view(group, state, pile.number, now, helped.get(name, ()), letter=pile.sample)
    return views


# -- held jobs, and what should have come back


async def _gather_held(scope: NeedScope, seen: Snapshot) -> Fields:
    """Reads by task the jobs that are held for a person, and those that were deferred."""
    core, held = scope.core, Filter(states=(State.held,), queue=scope.queue)
    put_off = replace(held, because=DEFERRED)
    overdue = await _pile_by_task(core, [replace(put_off, due_at=seen.now)])
    deferred = sum((await core.store.count(put_off)).values())
    return {
        "held": await _pile_by_task(core, [replace(held, because=because) for because in FOR_A_PERSON]),
        "overdue": overdue,
        "deferred": max(0, deferred - sum(pile.number for pile in overdue)),
    }


async def _pile_by_task(core: Core, filters: Sequence[Filter]) -> list[Pile]:
    """Makes a pile of each task with its latest job.

    The latest jobs of all tasks mostly hold the latest of each; only the missing ones are asked for one by one.
    """
    piles: list[tuple[Job | None, int]] = []
    for chosen in filters:
        counted = await core.store.count(chosen, by=("queue", "task"))
        jobs = (await core.store.find(chosen, limit=LOOKED_AT)).jobs if counted else []
        latest: dict[tuple[str | None, ...], Job | None] = {(job.queue, job.task): job for job in reversed(jobs)}
        beyond = [key for key in counted if key not in latest]
        first = await core.store.first([replace(chosen, queue=queue, task=task) for queue, task in beyond])
        latest |= zip(beyond, first, strict=True)
        piles += [(latest[key], number) for key, number in counted.items()]
    return await _with_stories(core, piles)


async def _gather_returning(scope: NeedScope, seen: Snapshot) -> Fields:
    """Reads by task the dead letters that no process fetches, and those that are fetched and fail day after day."""
    core, until = scope.core, seen.now - STUCK_AFTER
    old = Filter(states=(State.dead,), lane="delayed", queue=scope.queue, until=until)
    late = await _find_late(scope, seen)
    piles = {_route(pile.sample): pile for pile in await _pile_by_task(core, [old, *late])}
    return {"stuck": _keep_largest(piles.values()), "stale": await _pile_stale(scope, seen)}


async def _find_late(scope: NeedScope, seen: Snapshot) -> list[Filter]:
    """Finds the routes of dead letters whose time to come back has passed and whose task no living worker knows.

    Only dead letters that a worker made count, as a worker notes what they call: one that a script recorded may wait
    for the next night of that script.
    """
    store, until = scope.core.store, seen.now - LATE_AFTER
    overdue = [group for group in await store.returning(until) if group.due and group.held_for is not None]
    paused = await read_paused_queues(store) if overdue else {}
    routes = {
        (group.queue, group.task)
        for group in overdue
        if scope.queue in (None, group.queue) and group.task not in seen.known and group.queue not in paused
    }
    return [Filter(states=(State.dead,), queue=queue, task=task, returns_by=until) for queue, task in sorted(routes)]


async def _pile_stale(scope: NeedScope, seen: Snapshot) -> list[Pile]:
    """Lists by task the jobs that are fetched and fail day after day. Only a job's history tells, so it is read."""
    piles: dict[tuple[str, str], Pile] = {}
    store, yesterday = scope.core.store, seen.now - DAY
    chosen = Filter(states=(State.dead,), lane="delayed", queue=scope.queue, since=seen.now - STUCK_AFTER)
    async for jobs in read_pages(store, chosen, RETURNING):
        old = [job.id for job in jobs if job.first_failed_at is None or job.first_failed_at < yesterday]
        for job in await store.get(old):
            if len(failing_days(job)) >= STALE_DAYS:
                pile = piles.get(_route(job)) or Pile(0, job)  # the latest comes first
                piles[_route(job)] = replace(pile, number=pile.number + 1)
    return _keep_largest(piles.values())


def _route(job: Job) -> tuple[str, str]:
    return job.queue, job.task


def _keep_largest(piles: Iterable[Pile]) -> list[Pile]:
    """Keeps the twenty largest piles and merges the others into one."""
    most = sorted(piles, key=lambda pile: (-pile.number, *_route(pile.sample)))
    shown, beyond = most[:SHOWN], most[SHOWN:]
    if not beyond:
        return shown
    return [*shown, replace(beyond[0], number=sum(pile.number for pile in beyond), groups=len(beyond))]


# -- work that does not move


async def _gather_due(scope: NeedScope, seen: Snapshot) -> Fields:
    """Reads by task the due jobs that no living worker runs, and the oldest, which may be due for too long."""
    oldest = next(iter(await scope.core.store.overdue(seen.now, scope.queue)), None)
    piles = await _pile_unattended(scope, seen) if any(queue.unattended for queue in seen.queues) else []
    if oldest is not None and seen.now - oldest.run_at >= STUCK_AFTER:
        piles += [Pile(1, oldest)] * (_route(oldest) not in {_route(pile.sample) for pile in piles})
    return {"oldest": oldest, "unattended": piles}


async def _pile_unattended(scope: NeedScope, seen: Snapshot) -> list[Pile]:
    """Lists due jobs that no living worker runs, by task, the most first; tasks beyond twenty are one pile.

    A worker that is being restarted is back within GONE_AFTER.
    """
    store, due_by = scope.core.store, seen.now - GONE_AFTER
    counted = await count_unattended(store, seen.now, GONE_AFTER)
    left = {route: number for route, number in counted.items() if scope.queue in (None, route[0])}
    most = sorted(left, key=lambda route: (-left[route], route))
    shown, beyond = most[:SHOWN], most[SHOWN:]
    first = await asyncio.gather(*(store.overdue(due_by, queue, task=task) for queue, task in most[: SHOWN + 1]))
    piles = [Pile(left[route], job) for route, jobs in zip(shown, first, strict=False) for job in jobs]
    if beyond:
        number = sum(left[route] for route in beyond)
        piles += [Pile(number, job, groups=len(beyond)) for job in first[-1]]
    return piles


async def _gather_parked(scope: NeedScope, seen: Snapshot) -> Fields:
    """Reads by task the parked jobs whose downstream no living worker could probe.

    Where jobs of the same task are due, the need of those jobs says already that no worker runs the task.
    """
    told = {_route(pile.sample) for pile in seen.unattended}
    counted = await count_unprobed(scope.core.store, seen.now, GONE_AFTER)
    wanted = [
        (replace(PARKED, queue=queue, task=task), number)
        for (queue, task), number in counted.items()
        if scope.queue in (None, queue) and (queue, task) not in told
    ]
    return {"unprobed": _keep_largest(await _piles(scope.core, wanted))}


async def _gather_running(scope: NeedScope, seen: Snapshot) -> Fields:
    """Reads the running jobs that no living process renews, and those without progress."""
    left = await _find_left_behind(scope, seen)
    lost = frozenset(id for process in left if process.gone for id in process.jobs)
    return {"left_behind": left, "list_stalled": await _find_stalled(scope, seen, lost)}


async def _find_left_behind(scope: NeedScope, seen: Snapshot) -> list[LeftBehind]:
    """Lists by process the running jobs that no living process renews; given a queue, only the jobs of that queue."""
    store, queue = scope.core.store, scope.queue
    left = await store.left_behind(seen.now)
    if queue is None or not left:
        return left
    jobs = await store.get([id for process in left for id in process.jobs])
    ours = {job.id: job.task for job in jobs if job.queue == queue}
    kept = [(process, tuple(id for id in process.jobs if id in ours)) for process in left]
    return [replace(process, jobs=ids, tasks=tuple(sorted({ours[id] for id in ids}))) for process, ids in kept if ids]


async def _find_stalled(scope: NeedScope, seen: Snapshot, lost: frozenset[str]) -> list[Stalled]:
    """Lists running jobs without progress, judged by the limit of their task, or by how long the task usually takes.

    Jobs in `lost` do not run any more: another need reports that their process is gone.
    """
    store, now = scope.core.store, seen.now
    silent = await store.quiet(now - SHORTEST, LOOKED_AT + len(lost))
    quiet = [one for one in silent if scope.queue in (None, one.job.queue) and one.job.id not in lost]
    given = _read_limits(scope, [one.job for one in quiet])
    limits = dict(given)
    for task in {one.job.task for one in quiet if one.job.id not in given and now - one.since > stalled_limit(())}:
        usual = stalled_limit(await store.durations(task))
        limits |= {one.job.id: usual for one in quiet if one.job.task == task and one.job.id not in given}
    return list_stalled(quiet, limits, now)


def _read_limits(scope: NeedScope, jobs: Sequence[Job]) -> dict[str, float]:
    """Returns `stalled_after` of each job, as this process or a living worker has it."""
    announced: dict[str, float | None] = {}
    for worker in scope.workers:
        announced |= worker.stalled_after
    limits = {}
    for job in jobs:
        limit = scope.core.registry.policy_for(job).stalled_after
        if limit is None and job.task in announced:
            limit = NEVER if announced[job.task] is None else announced[job.task]
        if limit is not None:
            limits[job.id] = limit
    return limits


# -- cycles, and what belongs to no queue


async def _gather_surroundings(scope: NeedScope, seen: Snapshot) -> Fields:
    """Reads the cycles, and what belongs to no queue: schedules, spool, disk, channels, event loops, effects.

    A schedule counts where no live worker knows its task. Else its slot waits for an earlier job, or the code no
    longer has it.
    """
    store, now = scope.core.store, seen.now
    cycles = [cycle for cycle in await cycle_findings(store, now) if scope.queue in (None, queue_of(cycle.name))]
    if scope.queue is not None:
        return {"cycles": cycles}
    loops = await list_blocked_loops(store, now)
    late = await missed_schedules(store, now - GONE_AFTER, now)
    return {
        "cycles": cycles,
        "blocked": [Blocked(worker, str(loop), loop.since, loop.job_id) for worker, loop in loops],
        "unfired": [
            Unfired(one.name, one.task, one.line, one.due_since)
            for one in late
            if one.due_since is not None and one.task not in seen.known
        ],
        "spooled": scope.spool.count(),
        "disk_free": _find_free_bytes(scope.spool),
        "channels": await channel_problems(store),
        "effects": await scope.effects.open(),
        "jump": await read_clock_jump(store),
    }


def _find_free_bytes(spool: Spool) -> int | None:
    """Returns the free bytes beside the database, where its spool is; None where that cannot be known."""
    import shutil  # brings every compression library

    try:
        return shutil.disk_usage(spool.folder.parent).free
    except OSError:
        return None


GATHERED: Final[tuple[tuple[str, Callable[[NeedScope, Snapshot], Awaitable[Fields]]], ...]] = (
    ("dead", _gather_dead),
    ("held", _gather_held),
    ("comes_back", _gather_returning),
    ("due", _gather_due),
    ("parked", _gather_parked),
    ("running", _gather_running),
    ("", _gather_surroundings),
)
"""How the fields of a snapshot are read, each by what was read before it. The store is asked only where a queue has a
number of this name; `WORDED` in needs.py says how each field is worded."""
