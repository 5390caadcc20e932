"""Circuit breakers as values: what opens one, who may probe it, when its jobs come back.

A breaker stands for one thing that is called: a host, a model, a name the task gives, or an error group.
While it is open its jobs are parked where everybody sees them and burn no attempt. One job at a time probes.

A rate limit that says when it ends opens one at once, until then, so that other jobs do not run into the limit.
"""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from redrive.core.documents import Kind
from redrive.core.job import At, Cause, Failure, Job, iso
from redrive.failures.classify.classes import package_of

OPENING: Final = frozenset({"network", "timeout", "server_error", "rate_limited", "provider_overloaded", "contention"})
"""Causes that say something about what was called, rather than about the job."""
LONGEST_PAUSE: Final = 300.0
FASTEST_RELEASE: Final = 1000.0
PROBE_LASTS: Final = 900.0
"""A probe of which nothing was heard for so long no longer counts."""
LIMITING: Final = frozenset({403, 429})
"""Statuses by which a server says that everybody with this credential must wait."""
PROVIDERS: Final = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google.genai": "google.genai",
    "mistralai": "mistralai",
    "cohere": "cohere",
    "groq": "groq",
    "together": "together",
    "huggingface_hub": "huggingface",
    "github": "github",
    "githubkit": "github",
}
"""Packages that call one provider and nothing else, each with its name."""

Verdict = Literal["run", "probe", "park"]


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one breaker, as the store keeps it."""

    key: str
    state: Literal["open", "half_open", "closed"]
    cause: str
    since: At
    """When it was opened, or closed."""
    pause: float
    """Seconds between the last failed probe and the next."""
    until: At
    """No probe before this."""
    release: float
    """Jobs released per second after it closed; doubles while nothing fails."""
    probe: str | None = None
    """The job that is trying."""
    probes: int = 0
    job: str | None = None
    """The job that failed last."""
    error: str = ""
    """What that job's failure said: never kept here, only shown, so that it is erased in one place."""
    asked: float = 0.0
    """Seconds for which what is called asked to be left alone, from `since` on; 0 where it is down instead."""
    callers: tuple[str, ...] = ()
    """Tasks, each with the model of its job, that are known to call nothing else."""

    @property
    def down(self) -> bool:
        """Not known to answer; that a single job is trying does not change it."""
        return self.state != "closed"


BREAKER: Final = Kind[Breaker]("breaker", Breaker, unwritten=("error",))


def open_breaker(key: str, cause: str, job_id: str, now: float, *, pause: float, release: float) -> Breaker:
    return Breaker(key, "open", cause, now, pause, now + pause, release, job=job_id)


def leave_alone(
    key: str,
    job: Job,
    failure: Failure,
    now: float,
    asked: float,
    *,
    pause: float,
    release: float,
    before: Breaker | None = None,
) -> Breaker:
    """Opens a breaker until the time that was asked for, or puts off the end of one that is open.

    It stays as it is where that makes no difference, or where another job is looking at this moment.
    """
    callers = before.callers if before is not None else ()
    callers = tuple(sorted({*callers, caller_of(job)})) if calls_one_provider(failure) else callers
    if before is None or not before.down:
        return Breaker(
            key, "open", "rate_limited", now, pause, now + asked, release, job=job.id, asked=asked, callers=callers
        )
    if before.probe not in (None, job.id) or (before.probe is None and now + asked <= before.until + 1.0):
        return before
    return msgspec.structs.replace(
        before,
        state="open",
        cause="rate_limited",
        since=now,
        until=now + asked,
        probe=None,
        job=job.id,
        asked=asked,
        callers=callers,
    )


def with_error(breaker: Breaker, job: Job | None) -> Breaker:
    """Fills in what the last failure said, as far as its job still says it."""
    failures = [attempt.failure for attempt in job.history if attempt.failure is not None] if job is not None else []
    return msgspec.structs.replace(breaker, error=failures[-1].summary[:300] if failures else "")


def verdict(breaker: Breaker, job_id: str, now: float) -> Verdict:
    """What a job that calls the same thing does when it is claimed."""
    if breaker.state == "closed" or breaker.probe == job_id:
        return "run"
    return "park" if waits(breaker, now) else "probe"


def waits(breaker: Breaker, now: float) -> bool:
    """Tells whether a breaker waits for its time. A time further ahead than any pause comes from a wrong clock and does
    not count."""
    return 0 < breaker.until - now <= max(breaker.pause, PROBE_LASTS, breaker.asked)


def begin_probe(breaker: Breaker, job_id: str, now: float) -> Breaker:
    """This job tries, alone."""
    return msgspec.structs.replace(
        breaker, state="half_open", probe=job_id, probes=breaker.probes + 1, until=now + PROBE_LASTS
    )


def fail_probe(breaker: Breaker, job_id: str, now: float) -> Breaker:
    pause = min(breaker.pause * 2.0, LONGEST_PAUSE)
    return msgspec.structs.replace(
        breaker, state="open", probe=None, pause=pause, until=now + pause, job=job_id, asked=0.0
    )


def reopen(breaker: Breaker, now: float) -> Breaker:
    """The probe told nothing: the next may go at once, or when the time that was asked for is over."""
    until = max(now, min(breaker.since, now) + breaker.asked)
    return msgspec.structs.replace(breaker, state="open", probe=None, until=until)


def shows_recovery(breaker: Breaker, job: Job) -> bool:
    """Whether a success of the job shows that it answers again. What was under way when it asked to be left alone
    shows nothing: a limit lets through what began before."""
    return not breaker.asked or breaker.probe == job.id or (job.started_at or 0.0) > breaker.since


def opens(failure: Failure, cause: Cause) -> bool:
    """Say whether a failure counts against what was called. A conflict with a status, as 409 is, does not: a service
    that answers so is there, and only one of its objects is taken."""
    return cause.detail in OPENING and not (cause.detail == "contention" and failure.status is not None)


def shows_answer(failure: Failure, cause: Cause) -> bool:
    """Whether a failure proves that what was called is there: it sent a status or a code, or a model's output."""
    if failure.kind == "signal":
        return False
    if cause.category == "conditional" or failure.status is not None:
        return True
    return failure.rpc_code is not None or failure.rpc_status is not None


def from_elsewhere(key: str, failure: Failure) -> bool:
    """Whether an answer is known to come from another host or provider than the one that this breaker stands for."""
    kind, _, name = key.partition(":")
    host, provider = first_host(failure), provider_of(failure)
    if kind == "host" and host is not None:
        return host.partition(":")[0] != name.partition(":")[0]
    if kind == "host":
        return provider is not None and provider.partition(".")[0] not in name
    if kind != "provider":
        return False
    return provider != name if provider is not None else host is not None and name.partition(".")[0] not in host


def close_breaker(breaker: Breaker, now: float) -> Breaker:
    """Closes a breaker: parked jobs are released from now on, at a bounded rate."""
    return msgspec.structs.replace(breaker, state="closed", probe=None, since=now, asked=0.0, callers=())


def release_parked(breaker: Breaker, now: float) -> tuple[int, Breaker]:
    """How many parked jobs may go by now, and the breaker after that: each round twice as fast, up to a bound."""
    number, faster = compute_pace(breaker.release, breaker.since, now)
    return number, msgspec.structs.replace(breaker, since=now, release=faster)


def compute_pace(release: float, since: float, now: float) -> tuple[int, float]:
    """How many jobs a rate allows by now, and the rate of the next round: twice as fast, up to a bound."""
    number = int(release * max(0.0, now - since))
    return min(number, int(FASTEST_RELEASE)), min(release * 2.0, FASTEST_RELEASE)


def in_words(breaker: Breaker, parked: int) -> str:
    """`host api.example.com:443 is down, 150 parked (network, since …)`."""
    what = f"{name_of_key(breaker.key)} {describe_state(breaker)}"
    return f"{what}, {parked} parked ({breaker.cause}, since {iso(breaker.since)})"


def describe_state(breaker: Breaker) -> str:
    """What is the matter, as the rest of a sentence that begins with its name."""
    if not breaker.asked:
        return "is down"
    return f"asked to be left alone until {iso(breaker.since + breaker.asked)}"


def name_of_key(key: str) -> str:
    """A breaker's key as a sentence says it: `host:x:443` → `host x:443`."""
    kind, _, name = key.partition(":")
    return f"{kind} {name}" if kind in ("host", "model", "group", "provider") and name else key


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


def limited_key(downstream: str | None, failure: Failure | None) -> str | None:
    """The breaker that a rate limit opens: what the task says that it calls, else the host, else the provider."""
    if downstream is not None or failure is None:
        return downstream
    host = first_host(failure)
    if host is not None:
        return f"host:{host}"
    provider = provider_of(failure)
    return f"provider:{provider}" if provider is not None else None


def first_host(failure: Failure) -> str | None:
    """The host that the failure, or one that it wraps, names."""
    return next((link.host for link in failure.chain() if link.host is not None), None)


def provider_of(failure: Failure) -> str | None:
    """Names the provider that the raising library calls, where it calls no other."""
    packages = (package_of(name) for link in failure.chain() for name in link.types)
    return next((PROVIDERS[package] for package in packages if package in PROVIDERS), None)


def calls_one_provider(failure: Failure) -> bool:
    """Whether other jobs of the task call the same: a task asks one provider, and fetches pages from many hosts."""
    return provider_of(failure) is not None or any(link.model_call and link.host for link in failure.chain())


def caller_of(job: Job) -> str:
    """A task, and the model that its job is for."""
    return f"{job.task} {job.model}" if job.model is not None else job.task


def wait_for_all(failure: Failure, cause: Cause, max_wait: float | None) -> float | None:
    """Seconds for which a rate limit asks everybody to stay away, at most `max_wait`; None where it does not."""
    if cause.detail != "rate_limited" or not cause.retry_after:
        return None
    statuses = [link.status for link in failure.chain() if link.status is not None]
    if statuses and not LIMITING.intersection(statuses) and not any(map(_has_spent, failure.chain())):
        return None
    return cause.retry_after if max_wait is None else min(cause.retry_after, max_wait)


def _has_spent(failure: Failure) -> bool:
    """Whether a header says that nothing remains of a limit."""
    named = [value.strip() for name, value in failure.headers.items() if "limit" in name and "remaining" in name]
    return "0" in named


class FailureCounts:
    """Failures in a row of everything that a process calls. Its workers count together, one after the other too."""

    __slots__ = ("troubles", "windows")

    def __init__(self) -> None:
        self.windows: dict[str, Window] = {}
        self.troubles: dict[str, set[str]] = {}
        """The groups that are counted for each task."""


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
