"""Reads who runs jobs and which tasks there are, for every door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.core.job import State
from redrive.core.store import Filter, Total
from redrive.insight.workforce import (
    TaskView,
    WorkerView,
    queues_of,
    running_by_worker,
    span_of,
    task_counts,
)
from redrive.runtime.living import WORKER, living
from redrive.runtime.paging import pages

if TYPE_CHECKING:
    from redrive.app.core import Core

DAY: Final = 86400.0
PAGE: Final = 1000
MEASURED: Final = 200
"""Tasks whose durations are read: with more, the others show none."""
FAILED: Final = frozenset({"retried", "buried"})
"""The moves that end a failed attempt."""


async def workers(core: Core) -> list[WorkerView]:
    """Every living worker and what it runs, the longest-lived first."""
    store, now = core.store, core.clock.now()
    running = running_by_worker([job async for page in pages(store, Filter((State.running,)), PAGE) for job in page])
    views = [
        WorkerView(
            id=kept.key, heard_at=said.at, since=said.since, version=said.version, concurrency=said.concurrency,
            running=running.get(kept.key, ()), tasks=said.tasks, queues=said.queues, agents=said.agents,
            blocked=str(said.blocked) if said.blocked is not None else None, stopping=said.stopping,
        )
        for kept in await WORKER.all(store)
        if (said := kept.value).lives(now)
    ]  # fmt: skip
    return sorted(views, key=lambda view: (view.since or 0.0, view.id))


async def tasks(core: Core) -> list[TaskView]:
    """Every task that has jobs, or that a living worker or this process knows, by name."""
    store, now = core.store, core.clock.now()
    counted = await store.count(Filter(), by=("task", "queue", "state"))
    counts, queues = task_counts(counted), queues_of(counted)
    announced = [worker.tasks for worker in await living(store, now)]
    totals = await store.totals(now - DAY, now + 3600.0)
    names = sorted({*counts, *core.registry.handlers, *(task for known in announced for task in known)})
    return [
        TaskView(
            name=name, queues=queues.get(name, ()) or (core.registry.queue_of_task(name),),
            **{state: counts.get(name, {}).get(state, 0) for state in ("waiting", "running", "held", "done", "dead")},
            workers=sum(name in known for known in announced),
            succeeded=_moves(totals, name, frozenset({"succeeded"})),
            failed=_moves(totals, name, FAILED),
            took=span_of(await store.durations(name)) if place < MEASURED else None,
        )
        for place, name in enumerate(names)
    ]  # fmt: skip


def _moves(totals: list[Total], task: str, moves: frozenset[str]) -> int:
    return sum(total.number for total in totals if total.task == task and total.move in moves)
