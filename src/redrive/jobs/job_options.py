"""Reads the options of jobs, refuses those that make no sense, and plans and makes the jobs of one enqueue call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, get_args

import msgspec

from redrive.core.budget import check_budget
from redrive.core.checks import KEY_LIMIT, check_choice, check_name, check_range, is_text, optional_name
from redrive.core.job import PRIORITIES, Job, OnDuplicate, OnLost, Options, Reason, State, hash_payload, keyed_id
from redrive.core.option_hints import hint_for_job
from redrive.core.policy import MOST_ATTEMPTS, check_fallback
from redrive.core.store import Put
from redrive.core.times import moment
from redrive.engine.registry import Handler, Registry
from redrive.errors import InvalidOption
from redrive.jobs.tasks import read_seconds

OPTIONS: Final = frozenset(
    {"queue", "run_at", "delay", "priority", "idempotency_key", "session_id", "agent", "model", "max_attempts"}
    | {"lease", "max_age", "on_lost", "on_duplicate", "budget", "headers", "fallback", "fallback_after"}
    | {"message_type"}
)


def read_priority(name: object) -> int:
    """Turn the name of a priority into its number; 2 where none is given."""
    if name is None:
        return 2
    return PRIORITIES.index(check_choice("priority", name, PRIORITIES))


def read_run_at(options: Mapping[str, Any], now: float) -> float:
    """Work out when a job is due, from `run_at` or `delay`; now where neither is given."""
    at, delay = options.get("run_at"), options.get("delay")
    if at is not None and delay is not None:
        raise InvalidOption(field="delay", problem="give run_at or delay, not both")
    if delay is not None:
        return now + read_seconds(delay, "delay")
    return now if at is None else moment("run_at", at)


def write_options(options: Mapping[str, Any]) -> str | None:
    """Write the options that are stored with a job as JSON; None where there are none."""
    _check_choices(options)
    headers = _check_headers(options.get("headers"))
    own = Options(
        read_duration(options, "lease"),
        read_duration(options, "max_age"),
        options.get("on_lost"),
        check_budget(options["budget"]) if options.get("budget") is not None else None,
        headers,
        headers.get("traceparent"),
        optional_name("message_type", options.get("message_type")),
    )
    return None if own == Options() else msgspec.json.encode(own).decode()


def _check_choices(options: Mapping[str, Any]) -> None:
    for field, choices in (("on_lost", OnLost), ("on_duplicate", OnDuplicate)):
        if options.get(field) is not None:
            check_choice(field, options[field], get_args(choices))
    if options.get("fallback") is not None:
        check_fallback("fallback", options["fallback"])


def _check_headers(headers: object) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping) or not all(is_text(k) and is_text(v) for k, v in headers.items()):
        raise InvalidOption(field="headers", problem="must map texts to texts")
    return dict(headers)


def read_duration(options: Mapping[str, Any], field: str) -> float | None:
    """Read an option that is a duration, in seconds; None where it is not given."""
    if options.get(field) is None:
        return None
    value = read_seconds(options[field], field)
    if value == 0:
        raise InvalidOption(field=field, problem="must be longer than 0 s")
    return value


class Fallback(NamedTuple):
    """What is done where the store cannot take a job."""

    way: Any
    """Whether there is a fallback at all; or the function that does the work where the spool cannot take the job."""
    after: float
    """Seconds that the store has."""


class EnqueuePlan(NamedTuple):
    """What all jobs of one task and one set of options have in common."""

    task: str
    queue: str
    handler: Handler | None
    options: Mapping[str, Any]
    allowed: int | None
    """How many attempts a job has; None where neither the options nor a known task say it."""
    fields: dict[str, Any]
    on_duplicate: str
    fallback: Fallback


def make_plan(registry: Registry, task: str, options: Mapping[str, Any], reason: Reason) -> EnqueuePlan:
    """Check everything that does not depend on the payload."""
    check_name("task", task)
    if unknown := options.keys() - OPTIONS:
        hint = hint_for_job(min(unknown), OPTIONS | {"within"})
        raise InvalidOption(field=min(unknown), problem=f"is not an option of a job: {hint}")
    handler = registry.handlers.get(task)
    queue = options["queue"] if options.get("queue") is not None else handler.queue if handler else task
    check_name("queue", queue)
    agent = options.get("agent") is not None
    policy = registry.policy(queue, task, reason, agent=agent, options=None, job=None)
    allowed = policy.max_attempts if handler is not None else None
    if options.get("max_attempts") is not None:
        allowed = check_range("max_attempts", options["max_attempts"], 1, MOST_ATTEMPTS)
    fields = _read_fields(options, reason) if options or reason != "direct" else {}
    way, after = options.get("fallback"), read_duration(options, "fallback_after")
    fallback = Fallback(policy.fallback if way is None else way, after or policy.fallback_after or 0.0)
    return EnqueuePlan(
        task, queue, handler, options, allowed, fields, options.get("on_duplicate") or "return", fallback
    )


def _read_fields(options: Mapping[str, Any], reason: Reason) -> dict[str, Any]:
    """Read the fields of a job that its options name, and why it is there."""
    return {
        "agent": optional_name("agent", options.get("agent")),
        "priority": read_priority(options.get("priority")),
        "key": optional_name("idempotency_key", options.get("idempotency_key"), KEY_LIMIT),
        "session_id": optional_name("session_id", options.get("session_id")),
        "model": optional_name("model", options.get("model")),
        "options_json": write_options(options),
        "reason": reason,
    }


def make_job(plan: EnqueuePlan, id: str, now: float, payload: str) -> Job:
    key = plan.fields["key"]
    return Job(
        id=id if key is None else keyed_id(plan.queue, key),
        queue=plan.queue,
        task=plan.task,
        state=State.waiting,
        run_at=read_run_at(plan.options, now),
        version=1,
        created_at=now,
        updated_at=now,
        payload=payload,
        allowed=plan.allowed,
        payload_hash=None if key is None else hash_payload(payload, plan.task),
        **plan.fields,
    )


class Prepared(msgspec.Struct, frozen=True):
    """A job that may be inserted, with what goes beside it."""

    job: Job
    documents: list[Put]
    on_duplicate: str
    fallback: Fallback
    warnings: tuple[str, ...] = ()
    """Advice of preflight; the worker decides."""


def merge_fallbacks(prepared: Collection[Prepared]) -> Fallback:
    """Merge the fallbacks of several jobs: there is one where each job has one, within the longest of their times."""
    fallbacks = [job.fallback for job in prepared]
    return Fallback(all(fallback.way for fallback in fallbacks), max((f.after for f in fallbacks), default=0.0))
