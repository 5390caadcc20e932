"""Circuit breakers as values: what opens one, who may probe it, when its jobs come back.

A breaker stands for one thing that is called: a host, a model, a name the task gives, or a trouble (a fingerprint).
While it is open its jobs are parked where everybody sees them and burn no attempt. One job at a time probes.
"""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from redrive.core.job import Cause, Failure, Job

OPENING: Final = frozenset({"network", "timeout", "server_error", "rate_limited", "provider_overloaded"})
"""Causes that say something about what was called, rather than about the job."""
LONGEST_PAUSE: Final = 300.0
FASTEST_RELEASE: Final = 1000.0
PROBE_LASTS: Final = 900.0
"""A probe of which nothing was heard for so long no longer counts."""

Verdict = Literal["run", "probe", "park"]


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one breaker, as the store keeps it."""

    key: str
    state: Literal["open", "half_open", "closed"]
    cause: str
    since: float
    """When it was opened, or closed."""
    pause: float
    """Seconds between the last failed probe and the next."""
    until: float
    """No probe before this."""
    release: float
    """Jobs let go per second after it closed; doubles while nothing fails."""
    probe: str | None = None
    """The job that is trying."""
    probes: int = 0
    error: str = ""
    """What the last failure said."""

    @property
    def down(self) -> bool:
        """Not known to answer; that a single job is trying does not change it."""
        return self.state != "closed"


def opened(key: str, cause: str, error: str, now: float, *, pause: float, release: float) -> Breaker:
    return Breaker(key, "open", cause, now, pause, now + pause, release, error=error[:300])


def verdict(breaker: Breaker, job_id: str, now: float) -> Verdict:
    """What a job that calls the same thing does when it is claimed."""
    if breaker.state == "closed" or breaker.probe == job_id:
        return "run"
    return "park" if waits(breaker, now) else "probe"


def waits(breaker: Breaker, now: float) -> bool:
    """Until its time. One further ahead than any pause was written by a clock that was wrong: it binds nobody."""
    return 0 < breaker.until - now <= max(breaker.pause, PROBE_LASTS)


def probing(breaker: Breaker, job_id: str, now: float) -> Breaker:
    """This job tries, alone."""
    return msgspec.structs.replace(
        breaker, state="half_open", probe=job_id, probes=breaker.probes + 1, until=now + PROBE_LASTS
    )


def probe_failed(breaker: Breaker, error: str, now: float) -> Breaker:
    pause = min(breaker.pause * 2.0, LONGEST_PAUSE)
    return msgspec.structs.replace(breaker, state="open", probe=None, pause=pause, until=now + pause, error=error[:300])


def reopened(breaker: Breaker, now: float) -> Breaker:
    """The probe told nothing: the next may go at once."""
    return msgspec.structs.replace(breaker, state="open", probe=None, until=now)


def answered(failure: Failure, cause: Cause) -> bool:
    """Whether a failure proves that what was called is there: it sent a status or a code, or a model's output."""
    if failure.kind == "signal":
        return False
    if cause.category == "conditional" or failure.status is not None:
        return True
    return failure.rpc_code is not None or failure.rpc_status is not None


def closed(breaker: Breaker, now: float) -> Breaker:
    """It answers again: parked jobs are let go from now on, at a bounded rate."""
    return msgspec.structs.replace(breaker, state="closed", probe=None, since=now)


def releasing(breaker: Breaker, now: float) -> tuple[int, Breaker]:
    """How many parked jobs may go by now, and the breaker after that: each round twice as fast, up to a bound."""
    number = int(breaker.release * max(0.0, now - breaker.since))
    faster = min(breaker.release * 2.0, FASTEST_RELEASE)
    return min(number, int(FASTEST_RELEASE)), msgspec.structs.replace(breaker, since=now, release=faster)


def host_of(url: str) -> str | None:
    """The breaker of an HTTP request: its host and port."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return None
    return f"host:{parts.hostname}:{port}" if parts.hostname else None


def key_of(job: Job, *, downstream: str | None, failure: Failure | None, fingerprint: str | None) -> str | None:
    """The breaker a job depends on: what it says that it calls, else what its last failure tells of it."""
    if downstream is not None:
        return downstream
    if job.model is not None:
        return f"model:{job.model}"
    if failure is not None and failure.host is not None:
        return f"host:{failure.host}"
    return f"group:{fingerprint}" if fingerprint is not None else None


class Window:
    """Failures in a row of one thing that is called, by cause. A success ends the row."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def failed(self, cause: str, now: float, window: float) -> int:
        """How many of this cause there are by now, inside the window."""
        times = [at for at in self._times.get(cause, ()) if at > now - window][-999:]
        self._times[cause] = [*times, now]
        return len(times) + 1
