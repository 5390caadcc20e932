"""Reads the workers, the tasks, and how fast tasks and queues go, for every door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.core.job import State
from redrive.core.store import Filter
from redrive.core.timings import TimedBy
from redrive.engine.paging import read_pages
from redrive.engine.worker_registry import WORKER, list_living
from redrive.reports.workforce import (
    Paces,
    TaskView,
    WorkerView,
    attempts_by,
    queues_of,
    running_by_worker,
    task_counts,
)

if TYPE_CHECKING:
    from redrive.jobs.core import Core

DAY: Final = 86400.0
PAGE: Final = 1000


async def paces(core: Core, by: TimedBy) -> Paces:
    """Reads attempt counts and timings of every task or queue, in bounded time."""
    now = core.clock.now()
    totals = await core.store.totals(now - DAY, now + 3600.0)
    return Paces(attempts_by(totals, by), {timing.name: timing for timing in await core.store.timings(by)})


async def workers(core: Core) -> list[WorkerView]:
    """Lists every living worker and the jobs that the worker runs, the longest-lived worker first."""
    store, now = core.store, core.clock.now()
    running = running_by_worker(
        [job async for page in read_pages(store, Filter((State.running,)), PAGE) for job in page]
    )
    views = [
        WorkerView(
            id=kept.key,
            heard_at=said.at,
            since=said.since,
            version=said.version,
            concurrency=said.concurrency,
            running=running.get(kept.key, ()),
            tasks=said.tasks,
            queues=said.queues,
            agents=said.agents,
            blocked=str(said.blocked) if said.blocked is not None else None,
            stopping=said.stopping,
        )
        for kept in await WORKER.all(store)
        if (said := kept.value).lives(now)
    ]
    return sorted(views, key=lambda view: (view.since or 0.0, view.id))


async def tasks(core: Core) -> list[TaskView]:
    """Lists every task that has jobs, or that a living worker or this process knows, by name."""
    store, now = core.store, core.clock.now()
    counted = await store.count(Filter(), by=("task", "queue", "state"))
    counts, queues = task_counts(counted), queues_of(counted)
    announced = [worker.tasks for worker in await list_living(store, now)]
    found = await paces(core, "task")
    names = sorted({*counts, *core.registry.handlers, *(task for known in announced for task in known)})
    return [
        _task(
            name, queues.get(name, ()) or (core.registry.queue_of_task(name),), counts.get(name, {}), announced, found
        )
        for name in names
    ]


def _task(
    name: str, queues: tuple[str, ...], counts: dict[str, int], announced: list[frozenset[str]], found: Paces
) -> TaskView:
    attempts, timing = found.of(name)
    return TaskView(
        name=name,
        queues=queues,
        **{state: counts.get(state, 0) for state in STATES},
        workers=sum(name in known for known in announced),
        succeeded=attempts.succeeded,
        failed=attempts.failed,
        waited=timing.waited,
        took=timing.took,
    )


STATES: Final = ("waiting", "running", "held", "done", "dead")
"""The states in which the jobs of a task are counted."""
