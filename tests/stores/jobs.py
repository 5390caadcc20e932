"""Jobs, attempts and moves in one line each, for tests of stores and of the lifecycle."""

from __future__ import annotations

import itertools
from typing import Any

from redrive.core import lifecycle
from redrive.core.job import Attempt, Failure, Job, State, hash_payload, keyed_id, new_id
from redrive.core.lifecycle import Transition
from redrive.failures.classify import classify
from redrive.failures.fingerprint import fingerprint

T0 = 1_000_000.0
"""The time at which these stories begin."""
_numbers = itertools.count(1)


def a_job(queue: str = "feedback", task: str = "post", **fields: Any) -> Job:
    """A new waiting job, due at T0."""
    number = next(_numbers)
    given: dict[str, Any] = {
        "id": new_id(T0 + number, number),
        "queue": queue,
        "task": task,
        "agent": None,
        "state": State.waiting,
        "priority": 2,
        "run_at": T0,
        "version": 1,
        "created_at": T0,
        "updated_at": T0,
        "payload": f'{{"n":{number}}}',
    }
    return Job(**{**given, **fields})


def keyed(key: str, queue: str = "feedback", payload: str = '{"n":0}', **fields: Any) -> Job:
    """A job that owns an idempotency key."""
    hashed = hash_payload(payload, fields.get("task", "post"))
    return a_job(queue, id=keyed_id(queue, key), key=key, payload=payload, payload_hash=hashed, **fields)


def a_dead_job(**fields: Any) -> Job:
    """A failure that happened elsewhere, as it is imported."""
    trouble = {
        "because": "imported",
        "lane": "manual",
        "recommendation": "Look at it.",
        "error": "ValueError: no",
        "error_class": "ValueError",
        "category": "unknown",
        "detail": "unknown",
        "attempts": 3,
    }
    return a_job(state=State.dead, **{**trouble, **fields})


def an_attempt(job: Job, outcome: str = "done", at: float = T0 + 2, **fields: Any) -> Attempt:
    return Attempt(job.run, outcome, job.started_at, at, job.worker, **fields)


A_FAILURE = Failure("exception", ("builtins.ConnectionError",), "connection reset", frames=("shop:pay:3",))


def success(job: Job, at: float = T0 + 2, result: str | None = '"ok"') -> Transition:
    return lifecycle.succeeded(job, at, result, an_attempt(job, at=at))


def retry(job: Job, at: float = T0 + 2, *, run_at: float | None = None, failure: Failure = A_FAILURE) -> Transition:
    cause = classify(failure)
    attempt = an_attempt(job, "failed", at, failure=failure, cause=cause, decision="again")
    return lifecycle.retried(
        job,
        at,
        run_at=at if run_at is None else run_at,
        allowed=5,
        failure=failure,
        cause=cause,
        fingerprint=fingerprint(failure, job.task),
        attempt=attempt,
    )


def burial(job: Job, at: float = T0 + 2, *, failure: Failure = A_FAILURE, **how: Any) -> Transition:
    cause = classify(failure)
    attempt = an_attempt(job, "failed", at, failure=failure, cause=cause) if job.state is State.running else None
    given: dict[str, Any] = {
        "because": "attempts_exhausted",
        "why": "no more tries",
        "recommendation": "Look at it.",
        "failure": failure,
        "cause": cause,
        "fingerprint": fingerprint(failure, job.task),
        "attempt": attempt,
        "allowed": 5,
    }
    return lifecycle.buried(job, at, **{**given, **how})


def hold(job: Job, at: float = T0 + 2, because: str = "approval") -> Transition:
    return lifecycle.held_back(job, at, because=because, why="asks first", recommendation="Answer it.")


def redrive(job: Job, at: float = T0 + 3) -> Transition:
    return lifecycle.redriven(job, at, max_attempts=5, who="ann", why="fixed", run_at=at)
