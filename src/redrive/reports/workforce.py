"""Describes workers as they announce themselves, and tasks as the store knows them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from redrive.core.job import At, Job
from redrive.core.store import Total
from redrive.core.timings import Span, TimedBy, Timing

FAILED: Final = frozenset({"retried", "buried"})
"""Moves that end a failed attempt."""


class RunningJob(msgspec.Struct, frozen=True):
    """A job that a worker runs."""

    id: str
    task: str
    since: At | None


class WorkerView(msgspec.Struct, frozen=True):
    """One living worker."""

    id: str
    heard_at: At
    since: At | None
    version: str | None
    concurrency: int
    running: tuple[RunningJob, ...]
    tasks: frozenset[str]
    queues: frozenset[str] | None
    """Queues of the worker; None: the worker takes jobs of every queue."""
    agents: frozenset[str] | None
    blocked: str | None
    """Task that blocks the event loop of the worker."""
    stopping: bool


def running_by_worker(jobs: Iterable[Job]) -> dict[str, tuple[RunningJob, ...]]:
    """Lists the running jobs of each worker, the oldest first."""
    running: dict[str, list[RunningJob]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: job.started_at or 0.0):
        running[job.worker or ""].append(RunningJob(job.id, job.task, job.started_at))
    return {worker: tuple(of_worker) for worker, of_worker in running.items()}


def failure_rate(succeeded: int, failed: int) -> float | None:
    """Returns the share of attempts that failed; None if there were no attempts."""
    return failed / (succeeded + failed) if succeeded or failed else None


class Paces(NamedTuple):
    """Attempts of the last day that succeeded and failed, and times of the last successes, of every task or queue."""

    succeeded: Mapping[str, int]
    failed: Mapping[str, int]
    timings: Mapping[str, Timing]

    def of(self, name: str) -> dict[str, Any]:
        """Returns the fields of a view that say how fast a task or a queue goes."""
        timing = self.timings.get(name, Timing(name, None, None))
        attempts = {"succeeded": self.succeeded.get(name, 0), "failed": self.failed.get(name, 0)}
        return {**attempts, "waited": timing.waited, "took": timing.took}


def sum_paces(totals: Iterable[Total], timings: Iterable[Timing], by: TimedBy) -> Paces:
    """Sums up how the attempts of every task or queue ended."""
    succeeded, failed = Counter[str](), Counter[str]()
    for total in totals:
        name: str = getattr(total, by)
        succeeded[name] += total.number * (total.move == "succeeded")
        failed[name] += total.number * (total.move in FAILED)
    return Paces(succeeded, failed, {timing.name: timing for timing in timings})


class TaskView(msgspec.Struct, frozen=True):
    """One task: its jobs by state, its attempts of the last day, and the number of workers that know the task."""

    SHOWN: ClassVar = ("failure_rate",)
    name: str
    queues: tuple[str, ...]
    waiting: int
    running: int
    held: int
    done: int
    dead: int
    workers: int
    """Living workers that know the task."""
    succeeded: int
    """Attempts of the last day that succeeded."""
    failed: int
    """Attempts of the last day that failed."""
    waited: Span | None
    """Seconds from the time the last successes were due until they started."""
    took: Span | None
    """Seconds from the start of the last successes until they were done."""

    @property
    def failure_rate(self) -> float | None:
        """The share of the last day's attempts that failed; None where there were none."""
        return failure_rate(self.succeeded, self.failed)
