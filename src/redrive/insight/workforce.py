"""Who runs jobs and what they run: workers as they announce themselves, tasks as the store knows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from redrive.core.job import At, Job


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
    """None: it takes jobs of every queue."""
    agents: frozenset[str] | None
    blocked: str | None
    """What blocks its event loop."""
    stopping: bool


def running_by_worker(jobs: Iterable[Job]) -> dict[str, tuple[RunningJob, ...]]:
    """The running jobs of each worker, the oldest first."""
    found: dict[str, list[RunningJob]] = {}
    for job in sorted(jobs, key=lambda job: job.started_at or 0.0):
        found.setdefault(job.worker or "", []).append(RunningJob(job.id, job.task, job.started_at))
    return {worker: tuple(running) for worker, running in found.items()}


class Span(msgspec.Struct, frozen=True):
    """How long the last successes of a task took, in seconds."""

    number: int
    p50: float
    p95: float


def span_of(durations: Sequence[float]) -> Span | None:
    """The median and the 95th percentile; None where nothing succeeded yet."""
    if not durations:
        return None
    ordered = sorted(durations)
    return Span(len(ordered), ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))])


class TaskView(msgspec.Struct, frozen=True):
    """One task: what the store holds of it, how it went in the last day, and who knows it."""

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
    took: Span | None

    @property
    def failure_rate(self) -> float | None:
        """The share of the last day's attempts that failed; None where there were none."""
        attempts = self.succeeded + self.failed
        return self.failed / attempts if attempts else None


def task_counts(counted: Mapping[tuple[str | None, ...], int]) -> dict[str, dict[str, int]]:
    """Jobs by task and state, from a count by task, queue and state."""
    found: dict[str, dict[str, int]] = {}
    for (task, _, state), number in counted.items():
        states = found.setdefault(str(task), {})
        states[str(state)] = states.get(str(state), 0) + number
    return found


def queues_of(counted: Mapping[tuple[str | None, ...], int]) -> dict[str, tuple[str, ...]]:
    """The queues in which each task has jobs."""
    found: dict[str, set[str]] = {}
    for task, queue, _ in counted:
        found.setdefault(str(task), set()).add(str(queue))
    return {task: tuple(sorted(queues)) for task, queues in found.items()}
