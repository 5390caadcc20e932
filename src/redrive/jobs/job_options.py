"""Reads the options of a job and refuses those that make no sense. Nothing here reads a store or a clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from redrive.core.budget import check_budget
from redrive.core.checks import check_choice, is_text, optional_name
from redrive.core.job import PRIORITIES, OnDuplicate, OnLost, Options
from redrive.core.policy import check_fallback
from redrive.core.times import moment
from redrive.errors import InvalidOption
from redrive.jobs.tasks import read_seconds

OPTIONS: Final = frozenset(
    {"queue", "run_at", "delay", "priority", "idempotency_key", "session_id", "agent", "model", "max_attempts"}
    | {"lease", "max_age", "on_lost", "on_duplicate", "budget", "headers", "fallback", "fallback_after"}
    | {"message_type"}
)


def read_priority(name: object) -> int:
    """Turns the name of a priority into its number; 2 where none is given."""
    if name is None:
        return 2
    return PRIORITIES.index(check_choice("priority", name, PRIORITIES))


def read_run_at(options: Mapping[str, Any], now: float) -> float:
    """Works out when a job is due, from `run_at` or `delay`; now where neither is given."""
    at, delay = options.get("run_at"), options.get("delay")
    if at is not None and delay is not None:
        raise InvalidOption(field="delay", problem="give run_at or delay, not both")
    if delay is not None:
        return now + read_seconds(delay, "delay")
    return now if at is None else moment("run_at", at)


def write_options(options: Mapping[str, Any]) -> str | None:
    """Writes the options that are stored with a job as JSON; None where there are none."""
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
    """Reads an option that is a duration, in seconds; None where it is not given."""
    if options.get(field) is None:
        return None
    value = read_seconds(options[field], field)
    if value == 0:
        raise InvalidOption(field=field, problem="must be longer than 0 s")
    return value
