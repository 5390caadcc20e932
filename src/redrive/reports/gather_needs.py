"""Reads everything that reports/needs.py must know from the store. Changes nothing."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from redrive.core.job import Job, State
from redrive.core.lifecycle import DEFERRED
from redrive.core.store import Filter, LeftBehind
from redrive.deadletters.group import GroupView, lessons_by_group, view
from redrive.deadletters.group_alerts import read_states
from redrive.engine.paging import read_pages
from redrive.engine.queue_pauses import read_paused_queues
from redrive.engine.trusted_time import read_clock_jump
from redrive.engine.worker_registry import (
    GONE_AFTER,
    PARKED,
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
from redrive.scripts.cycle_history import Finding
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
    start = now - DAY if since is None else since
    lanes = await _lanes(core, queue)
    ignored = await _ignored_groups(core, lanes)
    overdue = await _by_task(core, [Filter(states=(State.held,), because=DEFERRED, queue=queue, due_at=now)])
    deferred = await count_of(core, queue, State.held, because=DEFERRED)
    left = await _left_behind(core, queue, now)
    lost = frozenset(id for process in left if process.gone for id in process.jobs)
    seen = Snapshot(
        now,
        start,
        [one for one in queues if queue in (None, one.name)],
        await _manual(core, queue, lanes.without(ignored), start, now),
        await _held(core, queue),
        overdue,
        await _stuck(core, queue, now),
        await _stale(core, queue, now),
        await _unattended(core, queue, now),
        unprobed=await _unprobed(core, queue, now),
        oldest=next(iter(await core.store.overdue(now, queue)), None),
        known=frozenset().union(*(worker.tasks for worker in await list_living(core.store, now))),
        left_behind=left,
        list_stalled=await _stalled(core, queue, now, lost),
        cycles=await _cycles(core, queue, now),
        delayed=sum(lanes.delayed.values()),
        deferred=max(0, deferred - sum(pile.number for pile in overdue)),
        ignored=sum(lanes.manual[name] for name in ignored),
    )
    seen = replace(seen, groups=await _views(core, seen))
    return await _with_surroundings(core, spool, effects, seen) if queue is None else seen


async def _with_surroundings(core: Core, spool: Spool, effects: Effects, seen: Snapshot) -> Snapshot:
    """Adds what belongs to no queue: schedules, spool, disk, channels, blocked event loops, effects without jobs."""
    return replace(
        seen,
        blocked=[
            Blocked(worker, str(one), one.since, one.job_id)
            for worker, one in await list_blocked_loops(core.store, seen.now)
        ],
        unfired=await _unfired(core, seen),
        spooled=spool.count(),
        disk_free=_disk_free(spool),
        channels=await channel_problems(core.store),
        effects=await effects.open(),
        jump=await read_clock_jump(core.store),
    )


async def _cycles(core: Core, queue: str | None, now: float) -> list[Finding]:
    """Reads what is wrong with all cycles, or with the cycle of the given queue."""
    return [found for found in await cycle_findings(core.store, now) if queue in (None, queue_of(found.name))]


def _disk_free(spool: Spool) -> int | None:
    """Returns the free bytes beside the database, where its spool is; None where that cannot be known."""
    try:
        return shutil.disk_usage(spool.folder.parent).free
    except OSError:
        return None


async def count_of(core: Core, queue: str | None, state: State, **said: Any) -> int:
    """Counts the jobs in a state that match the other conditions."""
    return sum((await core.store.count(Filter(states=(state,), queue=queue, **said))).values())


# -- dead letters


class Lanes(NamedTuple):
    """Numbers of dead letters by group: in the manual lane, and in the delayed lane."""

    manual: dict[str | None, int]
    delayed: dict[str | None, int]

    def without(self, groups: Iterable[str]) -> Lanes:
        left_out = set(groups)
        return Lanes({name: number for name, number in self.manual.items() if name not in left_out}, self.delayed)


async def _lanes(core: Core, queue: str | None) -> Lanes:
    counted = await core.store.count(Filter(states=(State.dead,), queue=queue), by=("fingerprint", "lane"))
    delayed = {name: number for (name, lane), number in counted.items() if lane == "delayed"}
    manual: dict[str | None, int] = {}
    for (name, lane), number in counted.items():
        if lane != "delayed":
            manual[name] = manual.get(name, 0) + number
    return Lanes(manual, delayed)


async def _ignored_groups(core: Core, lanes: Lanes) -> set[str]:
    """Lists the groups of the manual lane that a person chose to ignore."""
    states = await read_states(core.store, [name for name in lanes.manual if name is not None])
    return {name for name, (state, _) in states.items() if state is not None and state.status == "ignored"}


async def by_group(core: Core, chosen: Filter) -> dict[str | None, int]:
    """Counts the chosen jobs by group."""
    return {name: number for (name,), number in (await core.store.count(chosen, by=("fingerprint",))).items()}


async def _manual(core: Core, queue: str | None, lanes: Lanes, since: float, now: float) -> list[Pile]:
    """Lists the manual lane by group, the largest first; groups beyond twenty are one pile per error class."""
    grouped = [(name, number) for name, number in lanes.manual.items() if name is not None]
    largest = sorted(grouped, key=lambda entry: (-entry[1], entry[0]))
    shown, rest = largest[:SHOWN], largest[SHOWN:]
    chosen = Filter(states=(State.dead,), queue=queue, lane="manual")
    wanted = [(replace(chosen, fingerprint=name), number) for name, number in shown]
    oldest = await _oldest_of(core, [of_group for of_group, _ in wanted])
    fresh = await by_group(core, replace(chosen, since=since)) if grouped else {}
    before = await by_group(core, replace(chosen, since=2 * since - now, until=since)) if grouped else {}
    piles = []
    for pile in await _piles(core, wanted) + await _rest(core, chosen, dict(rest)):
        name = pile.sample.fingerprint if pile.groups == 1 else None
        numbers = {"fresh": fresh.get(name, 0), "before": before.get(name, 0)} if name is not None else {}
        piles.append(replace(pile, oldest_at=oldest.get(name), **numbers))
    return piles + (await _ungrouped(core, chosen) if None in lanes.manual else [])


async def _oldest_of(core: Core, groups: Sequence[Filter]) -> dict[str | None, float]:
    """Reads since when the oldest dead letter of each group has been there."""
    found = await core.store.first(groups, oldest=True) if groups else []
    return {job.fingerprint: job.updated_at for job in found if job is not None}


async def _ungrouped(core: Core, chosen: Filter) -> list[Pile]:
    """Lists by task the dead letters without a group, such as a cancelled job that a person restored."""
    by = ("queue", "task", "error_class", "fingerprint")
    counted = await core.store.count(chosen, by=by)
    wanted = [
        (replace(chosen, queue=queue, task=task, error_class=error_class), number)
        for (queue, task, error_class, fingerprint), number in counted.items()
        if fingerprint is None
    ]
    return await _piles(core, wanted)


async def _rest(core: Core, chosen: Filter, rest: dict[str, int]) -> list[Pile]:
    """Merges the small groups by error class, each shown by its latest dead letter."""
    classes: dict[str | None, list[str]] = {}
    for group in await core.store.groups() if rest else ():
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
    found = {job.id: job for job in await core.store.get([id for id, _ in there])} if there else {}
    return [Pile(number, found[id]) for id, number in there if id in found]


async def _views(core: Core, seen: Snapshot) -> dict[str, GroupView]:
    """Reads the state and the lessons of the piles' groups."""
    piles = {pile.sample.fingerprint: pile for pile in seen.manual if pile.sample.fingerprint}
    names = list(piles)
    if not names:
        return {}
    states = await read_states(core.store, names)
    helped = lessons_by_group(await core.store.lessons(*names))
    views = {}
    for group in await core.store.groups(fingerprints=names):
        name = group.fingerprint
        state, _ = states.get(name, (None, 0))
        pile = piles[name]
        views[name] = view(group, state, pile.number, seen.now, helped.get(name, ()), letter=pile.sample)
    return views


# -- held jobs, and what should have come back


async def _held(core: Core, queue: str | None) -> list[Pile]:
    return await _by_task(
        core, [Filter(states=(State.held,), because=because, queue=queue) for because in FOR_A_PERSON]
    )


async def _by_task(core: Core, filters: Sequence[Filter]) -> list[Pile]:
    """Makes a pile of each task with its latest job.

    The latest jobs of all tasks mostly hold the latest of each; only the missing ones are asked for one by one.
    """
    piles: list[tuple[Job | None, int]] = []
    for chosen in filters:
        counted = await core.store.count(chosen, by=("queue", "task"))
        jobs = (await core.store.find(chosen, limit=LOOKED_AT)).jobs if counted else []
        latest: dict[tuple[str | None, ...], Job | None] = {(job.queue, job.task): job for job in reversed(jobs)}
        beyond = [key for key in counted if key not in latest]
        asked = await core.store.first([replace(chosen, queue=queue, task=task) for queue, task in beyond])
        latest |= zip(beyond, asked, strict=True)
        piles += [(latest[key], number) for key, number in counted.items()]
    return await _with_stories(core, piles)


async def _stuck(core: Core, queue: str | None, now: float) -> list[Pile]:
    """Lists by task the dead letters that should come back by themselves but that no process fetches."""
    until, late = now - STUCK_AFTER, await _late(core, queue, now)
    old = Filter(states=(State.dead,), lane="delayed", queue=queue, until=until)
    piles = {(pile.sample.queue, pile.sample.task): pile for pile in await _by_task(core, [old, *late])}
    return _largest(list(piles.values()))


async def _late(core: Core, queue: str | None, now: float) -> list[Filter]:
    """Finds the routes of dead letters whose time to come back has passed and whose task no living worker knows.

    Only dead letters that a worker made count, as a worker notes what they call: one that a script recorded may wait
    for the next night of that script.
    """
    overdue = [
        group
        for group in await core.store.returning(now - LATE_AFTER)
        if group.due and group.held_for is not None and queue in (None, group.queue)
    ]
    if not overdue:
        return []
    known = frozenset[str]().union(*(worker.tasks for worker in await list_living(core.store, now)))
    paused = await read_paused_queues(core.store)
    routes = {(one.queue, one.task) for one in overdue if one.task not in known and one.queue not in paused}
    return [
        Filter(states=(State.dead,), queue=of_queue, task=task, returns_by=now - LATE_AFTER)
        for of_queue, task in sorted(routes)
    ]


async def _stale(core: Core, queue: str | None, now: float) -> list[Pile]:
    """Lists by task the jobs that are fetched and fail day after day. Only a job's history tells, so it is read."""
    found: dict[tuple[str, str], Pile] = {}
    chosen = Filter(states=(State.dead,), lane="delayed", queue=queue, since=now - STUCK_AFTER)
    async for jobs in read_pages(core.store, chosen, RETURNING):
        for job in await core.store.get([job.id for job in jobs if _failed_before(job, now - DAY)]):
            if len(failing_days(job)) >= STALE_DAYS:
                pile = found.get((job.queue, job.task)) or Pile(0, job)  # the latest comes first
                found[job.queue, job.task] = replace(pile, number=pile.number + 1)
    return _largest(list(found.values()))


def _failed_before(job: Job, at: float) -> bool:
    return job.first_failed_at is None or job.first_failed_at < at


def _largest(piles: Sequence[Pile]) -> list[Pile]:
    """Keeps the twenty largest piles and merges the others into one."""
    most = sorted(piles, key=lambda pile: (-pile.number, pile.sample.queue, pile.sample.task))
    shown, beyond = most[:SHOWN], most[SHOWN:]
    if not beyond:
        return shown
    return [*shown, replace(beyond[0], number=sum(pile.number for pile in beyond), groups=len(beyond))]


# -- work that does not move


async def _unattended(core: Core, queue: str | None, now: float) -> list[Pile]:
    """Lists due jobs that no living worker runs, by task, the most first; tasks beyond twenty are one pile.

    A worker that is being restarted is back within GONE_AFTER.
    """
    counted = await count_unattended(core.store, now, GONE_AFTER)
    left = {route: number for route, number in counted.items() if queue in (None, route[0])}
    most = sorted(left, key=lambda route: (-left[route], route))
    shown, beyond = most[:SHOWN], most[SHOWN:]
    piles = await _due(core, {route: left[route] for route in shown}, now - GONE_AFTER)
    if beyond:
        rest = await _due(core, {beyond[0]: sum(left[route] for route in beyond)}, now - GONE_AFTER)
        piles += [replace(pile, groups=len(beyond)) for pile in rest]
    return piles


async def _unprobed(core: Core, queue: str | None, now: float) -> list[Pile]:
    """Lists by task the parked jobs whose downstream no living worker could probe."""
    left = await count_unprobed(core.store, now, GONE_AFTER)
    routes = {route: number for route, number in left.items() if queue in (None, route[0])}
    wanted = [(replace(PARKED, queue=name, task=task), number) for (name, task), number in routes.items()]
    return _largest(await _piles(core, wanted))


async def _unfired(core: Core, seen: Snapshot) -> list[Unfired]:
    """Lists schedules with a due slot that no worker has taken and whose task no live worker knows.

    Where a live worker knows the task, the slot waits for an earlier job, or the code no longer has the schedule.
    """
    late = await missed_schedules(core.store, seen.now - GONE_AFTER, seen.now)
    return [
        Unfired(one.name, one.task, one.line, one.due_since)
        for one in late
        if one.due_since is not None and one.task not in seen.known
    ]


async def _due(core: Core, numbers: Mapping[tuple[str, str], int], at: float) -> list[Pile]:
    """Makes a pile of each route with the job that has been due for longest."""
    found = await asyncio.gather(*(core.store.overdue(at, queue, task=task) for queue, task in numbers))
    return [Pile(number, job) for jobs, number in zip(found, numbers.values(), strict=True) for job in jobs]


async def _left_behind(core: Core, queue: str | None, now: float) -> list[LeftBehind]:
    """Lists by process the running jobs that no living process renews; given a queue, only the jobs of that queue."""
    found = await core.store.left_behind(now)
    if queue is None or not found:
        return found
    jobs = await core.store.get([id for process in found for id in process.jobs])
    ours = {job.id: job.task for job in jobs if job.queue == queue}
    kept = [(process, tuple(id for id in process.jobs if id in ours)) for process in found]
    return [replace(process, jobs=ids, tasks=tuple(sorted({ours[id] for id in ids}))) for process, ids in kept if ids]


async def _stalled(core: Core, queue: str | None, now: float, lost: frozenset[str]) -> list[Stalled]:
    """Lists running jobs without progress, judged by the limit of their task, or by how long the task usually takes.

    Jobs in `lost` do not run any more: another need reports that their process is gone.
    """
    found = await core.store.quiet(now - SHORTEST, LOOKED_AT + len(lost))
    quiet = [one for one in found if queue in (None, one.job.queue) and one.job.id not in lost]
    said = await _read_limits(core, [one.job for one in quiet], now)
    limits = dict(said)
    for task in {one.job.task for one in quiet if one.job.id not in said and now - one.since > stalled_limit(())}:
        usual = stalled_limit(await core.store.durations(task))
        limits |= {one.job.id: usual for one in quiet if one.job.task == task and one.job.id not in said}
    return list_stalled(quiet, limits, now)


async def _read_limits(core: Core, jobs: Sequence[Job], now: float) -> dict[str, float]:
    """Returns `stalled_after` of each job, as this process or a living worker has it."""
    if not jobs:
        return {}
    announced: dict[str, float | None] = {}
    for worker in await list_living(core.store, now):
        announced |= worker.stalled_after
    limits = {}
    for job in jobs:
        limit = core.registry.policy_for(job).stalled_after
        if limit is None and job.task in announced:
            limit = NEVER if announced[job.task] is None else announced[job.task]
        if limit is not None:
            limits[job.id] = limit
    return limits
