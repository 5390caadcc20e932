"""Reads the workers, the tasks, and how fast tasks and queues go, for every door."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from redrive.core.job import State
from redrive.core.store import Filter
from redrive.core.timings import TimedBy
from redrive.engine.paging import read_pages
from redrive.engine.worker_registry import WORKER, list_living
from redrive.reports.workforce import Paces, TaskView, WorkerView, running_by_worker, sum_paces

if TYPE_CHECKING:
    from redrive.jobs.core import Core

DAY: Final = 86400.0
PAGE: Final = 1000


async def paces(core: Core, by: TimedBy) -> Paces:
    """Reads attempt counts and timings of every task or queue, in bounded time."""
    now = core.clock.now()
    totals = await core.store.totals(now - DAY, now + 3600.0)
    return sum_paces(totals, await core.store.timings(by), by)


async def workers(core: Core) -> list[WorkerView]:
    """Lists every living worker and the jobs that the worker runs, the longest-lived worker first."""
    store, now = core.store, core.clock.now()
    running = running_by_worker(
        [job async for page in read_pages(store, Filter((State.running,)), PAGE) for job in page]
    )
    views = [
        WorkerView(
            id=kept.key,
            heard_at=announcement.at,
            running=running.get(kept.key, ()),
            blocked=str(announcement.blocked) if announcement.blocked is not None else None,
            **{name: getattr(announcement, name) for name in ANNOUNCED},
        )
        for kept in await WORKER.all(store)
        if (announcement := kept.value).lives(now)
    ]
    return sorted(views, key=lambda view: (view.since or 0.0, view.id))


async def tasks(core: Core) -> list[TaskView]:
    """Lists every task that has jobs, or that a living worker or this process knows, by name."""
    store, now = core.store, core.clock.now()
    counts, queues = defaultdict[str, Counter[str]](Counter), defaultdict[str, set[str]](set)
    for (task, queue, state), number in (await store.count(Filter(), by=("task", "queue", "state"))).items():
        counts[str(task)][str(state)] += number
        queues[str(task)].add(str(queue))
    announced = [worker.tasks for worker in await list_living(store, now)]
    names = sorted({*counts, *core.registry.handlers, *(task for known in announced for task in known)})
    pace = await paces(core, "task")
    return [
        TaskView(
            name=name,
            queues=tuple(sorted(queues[name])) or (core.registry.queue_of_task(name),),
            workers=sum(name in known for known in announced),
            **pace.of(name) | {state: counts[name][state] for state in STATES},
        )
        for name in names
    ]


ANNOUNCED: Final = ("since", "version", "concurrency", "tasks", "queues", "agents", "stopping")
"""What a worker says of itself and is shown as it is."""
STATES: Final = ("waiting", "running", "held", "done", "dead")
"""The states in which the jobs of a task are counted."""
