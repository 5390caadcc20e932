"""The numbers for Prometheus: names with their unit, few labels, and never a job's id among them.

What is counted in the store is the same whichever process is asked; what happened "in this process" is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

import redrive
from redrive.core.job import State
from redrive.core.store import Filter
from redrive.reports.needs import NeedKind
from redrive.reports.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATES: Final = tuple(str(state) for state in State)
Kind = Literal["gauge", "counter"]

METRICS: Final[Mapping[str, tuple[Kind, str]]] = {
    "redrive_jobs": ("gauge", "Jobs in the store by queue and state."),
    "redrive_due_jobs": ("gauge", "Jobs that wait and could run now."),
    "redrive_oldest_due_job_seconds": ("gauge", "For how long the due job that was accepted first has been due."),
    "redrive_queue_paused": ("gauge", "1 where nothing is taken from the queue."),
    "redrive_pending_jobs": ("gauge", "Jobs that are due, wait for a retry, or are parked by a breaker."),
    "redrive_retrying_jobs": ("gauge", "Jobs that wait after a failed attempt."),
    "redrive_parked_jobs": ("gauge", "Jobs that wait until what they call answers again."),
    "redrive_needs": ("gauge", "What needs a person, by kind; see redrive health."),
    "redrive_dead_letters": ("gauge", "Dead letters by the lane they wait in; manual needs eyes."),
    "redrive_accepted_jobs_total": ("counter", "Jobs that the store has ever taken in."),
    "redrive_healthy": ("gauge", "1 where nothing needs eyes."),
    "redrive_breaker_open": ("gauge", "1 while what is behind it is taken to be down."),
    "redrive_spooled_jobs": ("gauge", "Jobs that wait beside the store."),
    "redrive_events_total": ("counter", "What happened in this process."),
    "redrive_attempts_total": ("counter", "Attempts that the workers of this process have begun."),
    "redrive_workers": ("gauge", "Workers in this process."),
    "redrive_subscriber_failures_total": ("counter", "Subscribers of this process that raised."),
    "redrive_feed_listeners": ("gauge", "Who watches the live feed of this process."),
    "redrive_build_info": ("gauge", "The version that answers."),
}
"""Every name there is: its type, and what it means."""


class Sample(NamedTuple):
    """One number, under a name and its labels."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


async def metrics(rd: Redrive, feed: Feed | None = None) -> str:
    """The page that a scraper reads."""
    numbers = await rd.numbers()
    samples = [*_queues(numbers), *await _store(rd), *_process(rd, feed)]
    by_name: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for sample in samples:
        by_name[sample.name].append(sample)
    return "".join(_written(name, found) for name, found in by_name.items())


def _queues(numbers: list[QueueNumbers]) -> Iterator[Sample]:
    for queue in numbers:
        of = {"queue": queue.name}
        for state in STATES:
            yield Sample("redrive_jobs", getattr(queue, state), {**of, "state": state})
        yield Sample("redrive_due_jobs", queue.due, of)
        yield Sample("redrive_queue_paused", queue.paused, of)
        yield Sample("redrive_pending_jobs", queue.pending, of)
        yield Sample("redrive_retrying_jobs", queue.retrying, of)
        yield Sample("redrive_parked_jobs", queue.parked, of)
        accepted = sum(getattr(queue, kind) for kind in (*STATES, "forgotten"))
        yield Sample("redrive_accepted_jobs_total", accepted, of)


async def _store(rd: Redrive) -> list[Sample]:
    counted = await rd.store.count(Filter(states=(State.dead,)), by=("queue", "lane"))
    letters = [
        Sample("redrive_dead_letters", number, {"queue": str(queue), "lane": str(lane or "manual")})
        for (queue, lane), number in sorted(counted.items(), key=str)
    ]
    breakers = [
        Sample("redrive_breaker_open", breaker.down, {"breaker": breaker.key}) for breaker in await rd.breakers()
    ]
    health = await rd.health()
    kinds = Counter(need.kind for need in health.needs)
    return [
        *letters,
        *breakers,
        Sample("redrive_oldest_due_job_seconds", await _oldest(rd)),
        Sample("redrive_healthy", health.status == "healthy"),
        *(Sample("redrive_needs", kinds[kind], {"kind": kind}) for kind in get_args(NeedKind)),
        Sample("redrive_spooled_jobs", rd.spool.count()),
    ]


async def _oldest(rd: Redrive) -> float:
    now = rd.clock.now()
    page = await rd.store.find(Filter(states=(State.waiting,), due_at=now), limit=1, oldest=True)
    return max((now - job.run_at for job in page.jobs), default=0.0)


def _process(rd: Redrive, feed: Feed | None) -> Iterator[Sample]:
    """Of this process alone."""
    for queue, counts in sorted(rd.bus.metrics().items()):
        for kind, number in sorted(counts.items()):
            yield Sample("redrive_events_total", number, {"queue": queue, "type": kind})
    workers = rd.local_workers
    yield Sample("redrive_attempts_total", sum(worker.made for worker in workers))
    yield Sample("redrive_workers", len(workers))
    yield Sample("redrive_subscriber_failures_total", rd.bus.subscriber_failures)
    yield Sample("redrive_feed_listeners", feed.listeners if feed is not None else 0)
    yield Sample("redrive_build_info", 1, {"version": redrive.__version__})


def _written(name: str, samples: Iterable[Sample]) -> str:
    kind, about = METRICS[name]
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(sample.labels)} {float(sample.value):.15g}" for sample in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
