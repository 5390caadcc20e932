"""(job, cause, policy, now) → Decision: tiny strategies, the first that decides wins.

There is one retry-or-bury rule in redrive, and it is `decide`. A lapsed lease comes here like any exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from redrive.core.job import Cause, Failure, Job, Lane
from redrive.core.policy import Policy, delay_after

UNKNOWN_TRIES: Final = 3
"""An error nobody knows is tried again at most twice: it may heal, and it may not."""
CRASHES_BEFORE_ALONE: Final = 2
RETRY_AFTER_JITTER: Final = 0.10
LONGEST_WAIT: Final = 365 * 86400.0


class RetryLater(msgspec.Struct, frozen=True):
    """Run again after `delay` seconds."""

    delay: float
    why: str
    costs_attempt: bool = True
    crashed: bool = False


class Bury(msgspec.Struct, frozen=True):
    """A dead letter: why, where it waits, and what a person can do."""

    because: str
    why: str
    recommendation: str
    lane: Lane = "manual"
    costs_attempt: bool = True
    crashed: bool = False


class Hold(msgspec.Struct, frozen=True):
    """Wait, visibly, for a person."""

    because: str
    why: str
    recommendation: str


Decision = RetryLater | Bury | Hold


class Case(msgspec.Struct, frozen=True):
    """Everything a strategy may look at."""

    job: Job
    failure: Failure
    cause: Cause
    policy: Policy
    now: float
    chance: float = 0.5
    idempotent: bool = False
    alone: bool = False

    @property
    def failures(self) -> int:
        """Failed attempts, this one included."""
        return self.job.attempts + 1

    @property
    def allowed(self) -> int:
        return self.job.allowed if self.job.allowed is not None else self.policy.max_attempts or 1


Strategy = Callable[[Case], Decision | None]


def decide(case: Case) -> Decision:
    """The one retry-or-bury rule."""
    for strategy in PLAIN if case.policy.strategy == "plain" else CATEGORIZED:
        decision = strategy(case)
        if decision is not None:
            return decision
    return _backoff(case)


def _lost(case: Case) -> Decision | None:
    """The worker died. Bystanders lose nothing; a job that kills its worker when alone is poison."""
    if case.failure.kind != "lease_expired":
        return None
    if case.alone:
        return Bury(
            "crash_loop",
            f"It ended its worker process {case.job.crashes + 1} times, the last time running alone.",
            "Look for what kills the process (memory, a native crash, sys.exit). Fix the task, then redrive.",
            crashed=True,
        )
    if case.policy.on_lost == "dead_letter":
        return Bury(
            "outcome_unknown",
            "Its worker died while it ran, and on_lost='dead_letter' forbids a second start.",
            "Check whether its effect landed: resolve it if so, redrive it if not.",
            crashed=True,
        )
    next_one = case.job.crashes + 1
    alone = " The next run is alone in its process." if next_one >= CRASHES_BEFORE_ALONE else ""
    return RetryLater(0.0, f"Its worker died (crash {next_one}).{alone}", costs_attempt=False, crashed=True)


def _gave_up(case: Case) -> Decision | None:
    if case.cause.detail != "gave_up":
        return None
    return Bury(
        "terminated",
        f"The task gave up: {case.failure.message}",
        case.failure.recommendation or "Fix what the message names, then redrive.",
    )


def _uncertain(case: Case) -> Decision | None:
    """The call was made and nobody knows whether it landed: only idempotent tasks may repeat it."""
    if case.cause.detail != "outcome_unknown" or case.idempotent:
        return None
    return Hold(
        "outcome_unknown",
        f"Nobody knows whether the effect landed: {case.failure.message}",
        "Look at the receiver. Then `redrive resolve ID --landed` or `--not-landed`. Or give the task a verifier.",
    )


def _too_old(case: Case) -> Decision | None:
    max_age, since = case.policy.max_age, case.job.first_failed_at
    if max_age is None or since is None:
        return None
    age = case.now - since - case.job.held_seconds
    if age <= max_age:
        return None
    return Bury(
        "too_old",
        f"It has been failing for {age:.0f} s, longer than max_age {max_age:.0f} s.",
        "Redrive it if it is still wanted, discard it if not.",
    )


def _exhausted(case: Case) -> Decision | None:
    if case.failures < case.allowed:
        return None
    return Bury(
        "attempts_exhausted",
        f"Failed {case.failures} of {case.allowed} allowed times; the last: {case.failure.summary}",
        _ADVICE.get(case.cause.detail, "Find out what the error means, fix it, then redrive."),
    )


def _permanent(case: Case) -> Decision | None:
    if case.cause.category != "permanent":
        return None
    lane: Lane = "delayed" if case.cause.heals == "later" else "manual"
    why = "not retried now; it comes back in an hour" if lane == "delayed" else "which waiting does not heal"
    return Bury(
        "permanent",
        f"Not retried: {case.failure.summary} is {case.cause.detail}, {why}.",
        _ADVICE.get(case.cause.detail, "Fix the cause, then redrive."),
        lane,
    )


def _unknown(case: Case) -> Decision | None:
    if case.cause.category != "unknown" or case.failures < UNKNOWN_TRIES:
        return None
    name = case.failure.error_class
    return Bury(
        "attempts_exhausted",
        f"Not retried further: {name} is not known to heal.",
        f"Add retry_on=({name},), give_up_on=({name},) or idempotent=True to the task; then redrive.",
    )


def _told_when(case: Case) -> Decision | None:
    """The failure said when to come back: the task's own word counts as it is, a server's up to the policy's cap."""
    after = case.cause.retry_after
    if after is None:
        return None
    most = LONGEST_WAIT if case.failure.kind == "signal" else case.policy.cap or after
    wait = min(after, max(most, 0.0)) * (1.0 + RETRY_AFTER_JITTER * case.chance)
    return RetryLater(wait, f"{case.cause.detail}: asked to wait {after:g} s.")


def _backoff(case: Case) -> Decision:
    wait = delay_after(case.policy, case.failures, case.chance)
    return RetryLater(wait, f"{case.cause.detail}: attempt {case.failures} of {case.allowed}, again in {wait:.1f} s.")


CATEGORIZED: Final[tuple[Strategy, ...]] = (
    _lost,
    _gave_up,
    _uncertain,
    _exhausted,
    _too_old,
    _permanent,
    _unknown,
    _told_when,
)
PLAIN: Final[tuple[Strategy, ...]] = (_lost, _gave_up, _uncertain, _exhausted, _too_old, _told_when)
"""`strategy = "plain"`: every failure is retried until the attempts are used up."""

_ADVICE: Final[dict[str, str]] = {
    "network": "See whether the receiver is up and reachable, then redrive.",
    "timeout": "See whether the receiver is slow or the timeout too short, then redrive.",
    "server_error": "The receiver is failing. Redrive when it is healthy again.",
    "rate_limited": "Lower the queue's rate or concurrency, then redrive.",
    "provider_overloaded": "The provider is overloaded. Redrive later or with another model.",
    "contention": "Something else holds the resource. Redrive when it is free.",
    "credentials": "Renew the credentials, then redrive.",
    "credentials_expired": "Refresh the expired token; it comes back by itself, or redrive it now.",
    "authority": "Give the needed permission, or let another agent do it, then redrive.",
    "invalid_input": "The input is refused as it stands. Correct it, then redrive, or discard it.",
    "invalid_output": "Look at what the model answered; tighten the prompt or the schema, then redrive.",
    "data_integrity": "What it refers to is gone or not there. Restore it or discard the job.",
    "quota": "Raise the quota or top up the balance, then redrive.",
    "bug": "This is a programming error. Fix the code, deploy, then redrive.",
    "context_overflow": "The prompt is too long. Shorten the context or split the task, then redrive.",
}
