"""Defines circuit breakers as values: what opens a breaker, which job probes, when the parked jobs come back.

A breaker stands for one downstream: a host, a model, a name the task gives, or an error group. While the breaker is
open, its jobs are parked visibly and use no attempt. One job at a time probes.

A rate limit with an end time opens a breaker at once until that time, so that other jobs do not run into the limit.
"""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from redrive.core.documents import Kind
from redrive.core.job import At, Cause, Failure, Job, iso
from redrive.failures.classify.classes import package_of

OPENING: Final = frozenset({"network", "timeout", "server_error", "rate_limited", "provider_overloaded", "contention"})
"""Causes that say something about the downstream rather than about the job."""
LONGEST_PAUSE: Final = 300.0
FASTEST_RELEASE: Final = 1000.0
PROBE_LASTS: Final = 900.0
"""Seconds without news after which a probe no longer counts."""
LIMITING: Final = frozenset({403, 429})
"""Statuses by which a server says that all callers with this credential must wait."""
_ALIKE: Final = ("anthropic", "openai", "google.genai", "mistralai", "cohere", "groq", "together", "github")
PROVIDERS: Final = {name: name for name in _ALIKE} | {"huggingface_hub": "huggingface", "githubkit": "github"}
"""Packages that call one provider only, each with the provider's name."""

Verdict = Literal["run", "probe", "park"]


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one breaker, as the store keeps it."""

    key: str
    state: Literal["open", "half_open", "closed"]
    cause: str
    since: At
    """When the breaker was opened, or closed."""
    pause: float
    """Seconds between the last failed probe and the next."""
    until: At
    """The earliest time of the next probe."""
    release: float
    """Jobs released per second after the breaker closed; doubles while nothing fails."""
    probe: str | None = None
    """The job that probes."""
    probes: int = 0
    job: str | None = None
    """The job that failed last."""
    error: str = ""
    """The failure message of `job`: only shown, never stored here, so that the message is erased in one place."""
    asked: float = 0.0
    """Seconds from `since` on for which the downstream asked callers to wait; 0 if the downstream is down instead."""
    callers: tuple[str, ...] = ()
    """Tasks, each with the model of its job, that are known to call only this downstream."""

    @property
    def down(self) -> bool:
        """Whether the downstream is not known to answer; a probe under way does not change this."""
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
    """Open a breaker until the time that the downstream asked for, or extend an open breaker.

    The breaker stays unchanged if the time makes no difference, or if another job is probing.
    """
    callers = before.callers if before is not None else ()
    callers = tuple(sorted({*callers, caller_of(job)})) if calls_one_provider(failure) else callers
    if before is None or not before.down:
        before = open_breaker(key, "rate_limited", job.id, now, pause=pause, release=release)
    elif before.probe not in (None, job.id) or (before.probe is None and now + asked <= before.until + 1.0):
        return before
    limit = {"state": "open", "cause": "rate_limited", "since": now, "until": now + asked, "asked": asked}
    return msgspec.structs.replace(before, **limit, probe=None, job=job.id, callers=callers)


def with_error(breaker: Breaker, job: Job | None) -> Breaker:
    """Fill in the message of the last failure if its job still has the message."""
    failures = [attempt.failure for attempt in job.history if attempt.failure is not None] if job is not None else []
    return msgspec.structs.replace(breaker, error=failures[-1].summary[:300] if failures else "")


def verdict(breaker: Breaker, job_id: str, now: float) -> Verdict:
    """Decide whether a claimed job that calls the breaker's downstream runs, probes or is parked."""
    if breaker.state == "closed" or breaker.probe == job_id:
        return "run"
    return "park" if waits(breaker, now) else "probe"


def waits(breaker: Breaker, now: float) -> bool:
    """Return whether a breaker waits for its time. A time further ahead than any pause is a clock error: ignored."""
    return 0 < breaker.until - now <= max(breaker.pause, PROBE_LASTS, breaker.asked)


def begin_probe(breaker: Breaker, job_id: str, now: float) -> Breaker:
    """Make this job the only probe of the breaker."""
    return msgspec.structs.replace(
        breaker, state="half_open", probe=job_id, probes=breaker.probes + 1, until=now + PROBE_LASTS
    )


def fail_probe(breaker: Breaker, job_id: str, now: float) -> Breaker:
    pause = min(breaker.pause * 2.0, LONGEST_PAUSE)
    return msgspec.structs.replace(
        breaker, state="open", probe=None, pause=pause, until=now + pause, job=job_id, asked=0.0
    )


def reopen(breaker: Breaker, now: float) -> Breaker:
    """Reopen the breaker after a probe without a result: the next goes at once, or after the requested wait."""
    until = max(now, min(breaker.since, now) + breaker.asked)
    return msgspec.structs.replace(breaker, state="open", probe=None, until=until)


def shows_recovery(breaker: Breaker, job: Job) -> bool:
    """Return whether a success of the job shows that the downstream answers again. A call that began before a rate
    limit shows nothing: a limit lets such calls through."""
    return not breaker.asked or breaker.probe == job.id or (job.started_at or 0.0) > breaker.since


def opens(failure: Failure, cause: Cause) -> bool:
    """Return whether a failure counts against the downstream. A conflict with a status, such as 409, does not: the
    service answers, and only one of its objects is taken."""
    return cause.detail in OPENING and not (cause.detail == "contention" and failure.status is not None)


def shows_answer(failure: Failure, cause: Cause) -> bool:
    """Return whether a failure proves that the downstream is up: it has a status, a code or a model's output."""
    if failure.kind == "signal":
        return False
    if cause.category == "conditional" or failure.status is not None:
        return True
    return failure.rpc_code is not None or failure.rpc_status is not None


def from_elsewhere(key: str, failure: Failure) -> bool:
    """Return whether an answer is known to come from another host or provider than the breaker's."""
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
    """Close a breaker: parked jobs are released from now on, at a bounded rate."""
    return msgspec.structs.replace(breaker, state="closed", probe=None, since=now, asked=0.0, callers=())


def release_parked(breaker: Breaker, now: float) -> tuple[int, Breaker]:
    """Return how many parked jobs may run by now, and the new breaker: each round is twice as fast, up to a bound."""
    number, faster = compute_pace(breaker.release, breaker.since, now)
    return number, msgspec.structs.replace(breaker, since=now, release=faster)


def compute_pace(release: float, since: float, now: float) -> tuple[int, float]:
    """Return how many jobs a rate allows by now, and the rate of the next round: twice as fast, up to a bound."""
    number = int(release * max(0.0, now - since))
    return min(number, int(FASTEST_RELEASE)), min(release * 2.0, FASTEST_RELEASE)


def in_words(breaker: Breaker, parked: int) -> str:
    """Describe a breaker: `host api.example.com:443 is down, 150 parked (network, since …)`."""
    what = f"{name_of_key(breaker.key)} {describe_state(breaker)}"
    return f"{what}, {parked} parked ({breaker.cause}, since {iso(breaker.since)})"


def describe_state(breaker: Breaker) -> str:
    """Describe the breaker's state as the rest of a sentence that begins with the breaker's name."""
    if not breaker.asked:
        return "is down"
    return f"asked to be left alone until {iso(breaker.since + breaker.asked)}"


def name_of_key(key: str) -> str:
    """Write a breaker's key for a sentence: `host:x:443` → `host x:443`."""
    kind, _, name = key.partition(":")
    return f"{kind} {name}" if kind in ("host", "model", "group", "provider") and name else key


def host_of(url: str) -> str | None:
    """Return the breaker key of an HTTP request: host and port."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return None
    return f"host:{parts.hostname}:{port}" if parts.hostname else None


def key_of(job: Job, *, downstream: str | None, failure: Failure | None, fingerprint: str | None) -> str | None:
    """Return the key of a job's breaker: the declared downstream, else the model, else the failure's host or group."""
    if downstream is not None:
        return downstream
    if job.model is not None:
        return f"model:{job.model}"
    if failure is not None and failure.host is not None:
        return f"host:{failure.host}"
    return f"group:{fingerprint}" if fingerprint is not None else None


def limited_key(downstream: str | None, failure: Failure | None) -> str | None:
    """Return the key of the breaker that a rate limit opens: the declared downstream, else the host or provider."""
    if downstream is not None or failure is None:
        return downstream
    host = first_host(failure)
    if host is not None:
        return f"host:{host}"
    provider = provider_of(failure)
    return f"provider:{provider}" if provider is not None else None


def first_host(failure: Failure) -> str | None:
    """Return the first host that the failure or a failure in its chain names."""
    return next((link.host for link in failure.chain() if link.host is not None), None)


def provider_of(failure: Failure) -> str | None:
    """Return the provider that the raising library calls, if that library calls no other one."""
    packages = (package_of(name) for link in failure.chain() for name in link.types)
    return next((PROVIDERS[package] for package in packages if package in PROVIDERS), None)


def calls_one_provider(failure: Failure) -> bool:
    """Return whether the task's other jobs call the same: a task asks one provider, but fetches from many hosts."""
    return provider_of(failure) is not None or any(link.model_call and link.host for link in failure.chain())


def caller_of(job: Job) -> str:
    """Write a job's task, and its model if it has one."""
    return f"{job.task} {job.model}" if job.model is not None else job.task


def wait_for_all(failure: Failure, cause: Cause, max_wait: float | None) -> float | None:
    """Return the seconds for which a rate limit tells all callers to wait, at most `max_wait`; None if it does not."""
    if cause.detail != "rate_limited" or not cause.retry_after:
        return None
    statuses = [link.status for link in failure.chain() if link.status is not None]
    if statuses and not LIMITING.intersection(statuses) and not any(map(_has_spent, failure.chain())):
        return None
    return cause.retry_after if max_wait is None else min(cause.retry_after, max_wait)


def _has_spent(failure: Failure) -> bool:
    """Return whether a header says that a limit is used up."""
    named = [value.strip() for name, value in failure.headers.items() if "limit" in name and "remaining" in name]
    return "0" in named


class FailureCounts:
    """Counts of failures in a row for each downstream of a process, shared by its workers, also successive ones."""

    __slots__ = ("troubles", "windows")

    def __init__(self) -> None:
        self.windows: dict[str, Window] = {}
        self.troubles: dict[str, set[str]] = {}
        """The error groups that are counted for each task."""


class Window:
    """Failures in a row of one downstream, by cause. A success ends the row."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def failed(self, cause: str, now: float, window: float) -> int:
        """Record a failure and return how many failures with this cause are inside the window."""
        times = [at for at in self._times.get(cause, ()) if at > now - window][-999:]
        self._times[cause] = [*times, now]
        return len(times) + 1
