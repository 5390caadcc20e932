"""Probes for programs around the server: is it up, is it ready, and its numbers for Prometheus.

Names of numbers have their unit; labels are few and never hold a job's id. Numbers of the store are the same whichever
process is asked; numbers "in this process" are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from redrive.core.job import State
from redrive.doors.rest.answers import answer
from redrive.doors.rest.route import ApiRequest, Routes
from redrive.reports.needs import NeedKind
from redrive.reports.queue_numbers import QueueNumbers
from redrive.version import VERSION

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

routes: Final = Routes()
Up: Any = answer("Up", "The process answers.", status=Literal["ok"])


@routes.get("/healthz", Up, is_open=True)
async def healthz(request: ApiRequest) -> Any:
    """Tells whether the process answers."""
    return {"status": "ok"}


@routes.get("/readyz", Up, is_open=True)
async def readyz(request: ApiRequest) -> Any:
    """Tells whether the store can be read and written; 503 where it cannot."""
    await request.rd.check_store()
    return {"status": "ok"}


# -- numbers

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
"""Every metric by name: its type, and what it means."""
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Sample(NamedTuple):
    """One number, under a name and its labels."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


@routes.get("/metrics", str, media=MEDIA_TYPE)
async def metrics(request: ApiRequest) -> Any:
    """Gives numbers for Prometheus."""
    rd = request.rd
    samples = [*_queue_samples(await rd.numbers()), *await _store_samples(rd), *_process_samples(rd, request.feed)]
    by_name: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for sample in samples:
        by_name[sample.name].append(sample)
    return "".join(_write_metric(name, some) for name, some in by_name.items())


def _queue_samples(numbers: list[QueueNumbers]) -> Iterator[Sample]:
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


async def _store_samples(rd: Redrive) -> list[Sample]:
    counts = await rd.jobs.count(by=("queue", "lane"), state=State.dead)
    dead_letters = [
        Sample("redrive_dead_letters", number, {"queue": str(queue), "lane": str(lane or "manual")})
        for (queue, lane), number in sorted(counts.items(), key=str)
    ]
    breakers = [
        Sample("redrive_breaker_open", breaker.down, {"breaker": breaker.key}) for breaker in await rd.breakers()
    ]
    health = await rd.health()
    kinds = Counter(need.kind for need in health.needs)
    return [
        *dead_letters,
        *breakers,
        Sample("redrive_oldest_due_job_seconds", await rd.jobs.longest_due()),
        Sample("redrive_healthy", health.status == "healthy"),
        *(Sample("redrive_needs", kinds[kind], {"kind": kind}) for kind in get_args(NeedKind)),
        Sample("redrive_spooled_jobs", rd.spool.count()),
    ]


def _process_samples(rd: Redrive, feed: Feed) -> Iterator[Sample]:
    """Gives the numbers of this process alone."""
    for queue, counts in sorted(rd.bus.metrics().items()):
        for kind, number in sorted(counts.items()):
            yield Sample("redrive_events_total", number, {"queue": queue, "type": kind})
    workers = rd.local_workers
    yield Sample("redrive_attempts_total", sum(worker.made for worker in workers))
    yield Sample("redrive_workers", len(workers))
    yield Sample("redrive_subscriber_failures_total", rd.bus.subscriber_failures)
    yield Sample("redrive_feed_listeners", feed.listeners)
    yield Sample("redrive_build_info", 1, {"version": VERSION})


def _write_metric(name: str, samples: Iterable[Sample]) -> str:
    kind, about = METRICS[name]
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_write_labels(sample.labels)} {float(sample.value):.15g}" for sample in samples]
    return "\n".join(lines) + "\n"


def _write_labels(labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""
