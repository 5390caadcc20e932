"""Describes workers as they announce themselves, and tasks as the store knows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, NamedTuple

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
    found: dict[str, list[RunningJob]] = {}
    for job in sorted(jobs, key=lambda job: job.started_at or 0.0):
        found.setdefault(job.worker or "", []).append(RunningJob(job.id, job.task, job.started_at))
    return {worker: tuple(running) for worker, running in found.items()}


def failure_rate(succeeded: int, failed: int) -> float | None:
    """Returns the share of attempts that failed; None if there were no attempts."""
    return failed / (succeeded + failed) if succeeded or failed else None


class AttemptCounts(NamedTuple):
    """Number of attempts in some time that succeeded, and that failed."""

    succeeded: int = 0
    failed: int = 0


def attempts_by(totals: Iterable[Total], by: TimedBy) -> dict[str, AttemptCounts]:
    """Sums up how the attempts of every task or queue ended."""
    found: dict[str, AttemptCounts] = {}
    for total in totals:
        name: str = getattr(total, by)
        before = found.get(name, AttemptCounts())
        done, failed = total.number * (total.move == "succeeded"), total.number * (total.move in FAILED)
        found[name] = AttemptCounts(before.succeeded + done, before.failed + failed)
    return found


class Paces(NamedTuple):
    """Attempts of the last day, and times of the last successes, of every task or queue."""

    attempts: Mapping[str, AttemptCounts]
    timings: Mapping[str, Timing]

    def of(self, name: str) -> tuple[AttemptCounts, Timing]:
        return self.attempts.get(name, AttemptCounts()), self.timings.get(name, Timing(name, None, None))


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


def task_counts(counted: Mapping[tuple[str | None, ...], int]) -> dict[str, dict[str, int]]:
    """Sums up jobs by task and state, from a count by task, queue and state."""
    found: dict[str, dict[str, int]] = {}
    for (task, _, state), number in counted.items():
        states = found.setdefault(str(task), {})
        states[str(state)] = states.get(str(state), 0) + number
    return found


def queues_of(counted: Mapping[tuple[str | None, ...], int]) -> dict[str, tuple[str, ...]]:
    """Lists the queues in which each task has jobs."""
    found: dict[str, set[str]] = {}
    for task, queue, _ in counted:
        found.setdefault(str(task), set()).add(str(queue))
    return {task: tuple(sorted(queues)) for task, queues in found.items()}
