"""The numbers for Prometheus: names with their unit, few labels, and never a job's id among them.

What is counted in the store is the same whichever process is asked; what happened "in this process" is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import redrive
from redrive.core.job import State
from redrive.core.store import Filter
from redrive.insight.health import QueueNumbers

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.doors.web.feed import Feed

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATES: Final = tuple(str(state) for state in State)


class Sample(NamedTuple):
    value: float
    labels: Mapping[str, str] = {}


class Metric(NamedTuple):
    """One name with all its samples."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Iterable[Sample]


async def metrics(rd: Redrive, feed: Feed | None = None) -> str:
    """The page that a scraper reads."""
    numbers = await rd.numbers()
    found = [
        *_queues(numbers),
        *await _dead_letters(rd),
        *await _waiting(rd),
        *await _surroundings(rd),
        *_process(rd, feed),
    ]
    return "".join(_written(metric) for metric in found)


def _queues(numbers: list[QueueNumbers]) -> list[Metric]:
    by_state = [
        Sample(getattr(queue, state), {"queue": queue.name, "state": state}) for queue in numbers for state in STATES
    ]
    due = [Sample(queue.due, {"queue": queue.name}) for queue in numbers]
    paused = [Sample(queue.paused, {"queue": queue.name}) for queue in numbers]
    stalled = [Sample(len(queue.stalled), {"queue": queue.name}) for queue in numbers]
    accepted = [
        Sample(sum(getattr(queue, state) for state in (*STATES, "forgotten")), {"queue": queue.name})
        for queue in numbers
    ]
    return [
        Metric("redrive_jobs", "gauge", "Jobs in the store by queue and state.", by_state),
        Metric("redrive_due_jobs", "gauge", "Jobs that wait and could run now.", due),
        Metric("redrive_queue_paused", "gauge", "1 where nothing is taken from the queue.", paused),
        Metric("redrive_stalled_jobs", "gauge", "Jobs that run for longer than their queue thinks right.", stalled),
        Metric("redrive_accepted_jobs_total", "counter", "Jobs that the store has ever taken in.", accepted),
    ]


async def _dead_letters(rd: Redrive) -> list[Metric]:
    counted = await rd.store.count(Filter(states=(State.dead,)), by=("queue", "lane"))
    lanes = [
        Sample(number, {"queue": str(queue), "lane": str(lane or "manual")})
        for (queue, lane), number in sorted(counted.items(), key=str)
    ]
    return [Metric("redrive_dead_letters", "gauge", "Dead letters by the lane they wait in; manual needs eyes.", lanes)]


async def _waiting(rd: Redrive) -> list[Metric]:
    now = rd.clock.now()
    overdue = await rd.store.overdue(now)
    oldest = max((now - job.run_at for job in overdue), default=0.0)
    told = "For how long the job that waits longest has been due."
    return [Metric("redrive_oldest_due_job_seconds", "gauge", told, [Sample(max(0.0, oldest))])]


async def _surroundings(rd: Redrive) -> list[Metric]:
    breakers = [Sample(one.state != "closed", {"breaker": one.key}) for one in await rd.breakers()]
    healthy = (await rd.health()).status == "healthy"
    return [
        Metric("redrive_healthy", "gauge", "1 where nothing needs eyes.", [Sample(healthy)]),
        Metric("redrive_breaker_open", "gauge", "1 while what is behind it is taken to be down.", breakers),
        Metric("redrive_spooled_jobs", "gauge", "Jobs that wait beside the store.", [Sample(rd.spool.count())]),
    ]


def _process(rd: Redrive, feed: Feed | None) -> list[Metric]:
    """Of this process alone."""
    events = [
        Sample(number, {"queue": queue, "type": kind})
        for queue, counts in sorted(rd.bus.metrics().items())
        for kind, number in sorted(counts.items())
    ]
    workers = [worker for _, worker in rd._workers]
    listeners = feed.listeners if feed else 0
    failures = "Subscribers of this process that raised."
    return [
        Metric("redrive_events_total", "counter", "What happened in this process.", events),
        Metric("redrive_attempts_total", "counter", "Attempts that this process has begun.",
               [Sample(sum(worker.made for worker in workers))]),
        Metric("redrive_workers", "gauge", "Workers in this process.", [Sample(len(workers))]),
        Metric("redrive_subscriber_failures_total", "counter", failures, [Sample(rd.bus.subscriber_failures)]),
        Metric("redrive_feed_listeners", "gauge", "Who watches the live feed.", [Sample(listeners)]),
        Metric("redrive_build_info", "gauge", "The version that answers.",
               [Sample(1, {"version": redrive.__version__})]),
    ]  # fmt: skip


def _written(metric: Metric) -> str:
    lines = [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
    lines += [f"{metric.name}{_labels(sample.labels)} {float(sample.value):.15g}" for sample in metric.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
