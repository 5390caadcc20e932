"""Makes the screen of `redrive top`: everything that matters at this moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from redrive.core.job import Job, iso
from redrive.core.store import Group
from redrive.deadletters.group import SHORT
from redrive.deadletters.new_groups import Newcomers
from redrive.reports.activity import Activity
from redrive.reports.health import Health
from redrive.reports.queue_numbers import QueueNumbers
from redrive.retries.breaker import Breaker

LOOKED_AT: Final = 200
"""Number of running jobs, the first enqueued, among which the longest-running are found."""
TOLD: Final = 3
"""Number of issues that fit into a sentence."""


class QueueGlance(msgspec.Struct, frozen=True):
    """One queue: its jobs, how fast they go, and its backlog over time."""

    name: str
    due: int
    later: int
    """Waiting jobs that are not due yet."""
    running: int
    held: int
    dead: int
    paused: bool
    coming: float
    """Jobs a minute that come in, are done, and fail (for good or to be tried again)."""
    done: float
    failing: float
    backlog: list[int]
    """Backlog minute by minute, the last is now."""


class RunningGlance(msgspec.Struct, frozen=True):
    """A running job, and for how long it has run."""

    id: str
    task: str
    queue: str
    agent: str | None
    run: int
    seconds: float
    worker: str | None


class TroubleGlance(msgspec.Struct, frozen=True):
    """An error group with recent deaths."""

    fingerprint: str
    what: str
    task: str
    queue: str
    dead: int
    buried: int
    last_at: float

    @property
    def short(self) -> str:
        return self.fingerprint[:SHORT]


class Glance(msgspec.Struct, frozen=True):
    """One frame of `redrive top`."""

    at: float
    health: Health
    sentence: str
    queues: list[QueueGlance]
    """Queues, the busiest first."""
    running: list[RunningGlance]
    """Running jobs, the longest-running first, as many as were asked for."""
    running_number: int
    troubles: list[TroubleGlance]
    """Groups, the latest first."""
    breakers: list[Breaker]
    """Breakers that are not closed."""
    activity: Activity
    new: Newcomers
    """Groups that are new since the last deploy, and in the last hour."""

    def public(self) -> dict[str, Any]:
        return {
            "at": iso(self.at),
            "status": self.health.status,
            "sentence": self.sentence,
            "total_pending": self.health.total_pending,
            "total_dead_letter": self.health.total_dead_letter,
            "issues": self.health.issues,
            "new": self.new.public(),
            "queues": [_round(queue) for queue in self.queues],
            "running": [msgspec.structs.asdict(job) | {"seconds": round(job.seconds, 3)} for job in self.running],
            "running_number": self.running_number,
            "troubles": [msgspec.structs.asdict(one) | {"last_at": iso(one.last_at)} for one in self.troubles],
            "breakers": [
                msgspec.to_builtins(breaker) | {"since": iso(breaker.since), "until": iso(breaker.until)}
                for breaker in self.breakers
            ],
        }


def _round(queue: QueueGlance) -> dict[str, Any]:
    rates = {name: round(getattr(queue, name), 2) for name in ("coming", "done", "failing")}
    return msgspec.structs.asdict(queue) | rates


def glance(
    now: float,
    health: Health,
    numbers: Sequence[QueueNumbers],
    activity: Activity,
    running: Sequence[Job],
    troubles: Sequence[Group],
    dead: Mapping[str, int],
    breakers: Sequence[Breaker],
    new: Newcomers,
) -> Glance:
    """Builds one frame. `dead` is the number of still dead jobs of each group."""
    queues = [_queue(one, activity) for one in numbers]
    return Glance(
        now,
        health,
        sentence(health, sum(one.unattended for one in numbers)),
        sorted(queues, key=_busy),
        [_running(job, now) for job in running],
        sum(one.running for one in numbers),
        [_trouble(group, dead.get(group.fingerprint, 0)) for group in troubles],
        [breaker for breaker in breakers if breaker.down],
        activity,
        new,
    )


def longest(running: Sequence[Job], number: int) -> list[Job]:
    """Sorts running jobs by how long they have run; callers pass the `LOOKED_AT` that were enqueued first."""
    return sorted(running, key=lambda job: job.started_at or 0.0)[:number]


def _queue(one: QueueNumbers, activity: Activity) -> QueueGlance:
    rates = {flow: activity.rate(one.name, flow) for flow in ("enqueued", "succeeded", "retried", "buried")}
    return QueueGlance(
        one.name, one.due, max(0, one.waiting - one.due), one.running, one.held, one.dead, one.paused,
        rates["enqueued"], rates["succeeded"], rates["retried"] + rates["buried"], activity.of(one.name).backlog,
    )  # fmt: skip


def _busy(queue: QueueGlance) -> tuple[bool, int, int, str]:
    """Returns the sort key of a queue: the busiest first, empty and idle queues last."""
    load = queue.due + queue.running + queue.held
    idle = not load and not queue.coming and not queue.done and not queue.failing
    return idle, -load, -queue.dead, queue.name


def _running(job: Job, now: float) -> RunningGlance:
    seconds = max(0.0, now - job.started_at) if job.started_at is not None else 0.0
    return RunningGlance(job.id, job.task, job.queue, job.agent, job.run, seconds, job.worker)


def _trouble(group: Group, dead: int) -> TroubleGlance:
    what = group.error or group.error_class or "not recorded"
    return TroubleGlance(group.fingerprint, what, group.task, group.queue, dead, group.buried, group.last_at)


def sentence(health: Health, unattended: int = 0) -> str:
    """Writes the health line. Due jobs without a worker are named before they count as a problem."""
    pending = f"{health.total_pending:,} pending"
    if health.status == "healthy":
        nobody = f"but no worker runs {unattended:,} of them: start a worker that knows their task"
        return f"Healthy: {pending}, {nobody if unattended else 'nothing needs you'}."
    issues = "; ".join(health.issues[:TOLD])
    more = f"; and {len(health.issues) - TOLD} more" if len(health.issues) > TOLD else ""
    return f"Degraded: {issues}{more}."
