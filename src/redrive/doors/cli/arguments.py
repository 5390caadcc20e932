"""Defines the options that several commands share; reads filters, and payloads as JSON text, @file or - for a pipe."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from redrive.api.redrive import Redrive
from redrive.core.job import iso
from redrive.core.json_keys import RepeatedKey, unique
from redrive.core.times import earlier, read
from redrive.doors.cli import output
from redrive.doors.cli.problems import PAYLOAD_HINT, Refusal
from redrive.doors.cli.text import clean

F = TypeVar("F", bound=Callable[..., Any])
SPACE: Final = 4
"""How many times larger than the payload limit the text may be: it holds spaces that are not stored."""

# ---- options of several commands

why_option = click.option("--why", metavar="TEXT", help="The reason, kept in the timeline.")
yes_option = click.option("--yes", is_flag=True, help="Do it without asking.")
all_option = click.option("--all", "all_", is_flag=True, help="All dead letters.")
secrets_option = click.option(
    "--secrets", is_flag=True, help="Show what looks like a secret in payload and result, too."
)
key_option = click.option("--key", metavar="TEXT", help="Idempotency key: the same again gives the job that exists.")
session_option = click.option("--session", metavar="ID", help="Who asks: consent, costs and notices belong to it.")
timeout_option = click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(min=0), help="Wait so long; then the answer is its id."
)
cursor_option = click.option("--cursor", metavar="TEXT", help="Go on where the last page ended.")

# ---- which jobs


def _read_instant(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Read a time, or a span before now, as seconds since 1970."""
    if value is None:
        return None
    field = str(parameter.name).removeprefix("of_")
    return earlier(field, read(field, value), time.time())


FILTERS: Final[dict[str, tuple[str, str]]] = {
    "queue": ("NAME", "Of this queue."),
    "task": ("NAME", "Of this task."),
    "agent": ("NAME", "Who does the work."),
    "session": ("ID", "Who asked for it."),
    "lane": ("NAME", "manual (needs a person) or delayed (comes back by itself)."),
    "category": ("NAME", "transient, conditional, permanent, control or unknown."),
    "detail": ("NAME", "e.g. rate_limited, context_overflow, credentials."),
    "error_class": ("NAME", "e.g. TimeoutError."),
    "error_kind": ("NAME", "Any attempt failed with this kind, however it ended."),
    "group": ("ID", "One error group, by its id or a prefix."),
    "because": ("REASON", "e.g. attempts_exhausted, permanent, crash_loop."),
    "reason": ("NAME", "direct, retry, deferred_submit or scheduled_job."),
    "owner": ("NAME", "Who must take care of it."),
    "since": ("TIME", "Changed since then: 24h, 3d, or a time."),
    "until": ("TIME", "Changed before then."),
}
"""The metavar and the help of each filter."""


def filter_options(command: F) -> F:
    """Add the options that choose jobs; the command gets them as `filters`, named as `rd.dead` and `rd.jobs` do.

    `group` may be the beginning of a fingerprint, which `resolve_filters` completes. The parameters are called
    `of_agent` and so on, so that a command may have an option --agent of its own.
    """

    @functools.wraps(command)
    def gather(*args: Any, **given: Any) -> Any:
        filters = {name: value for name in FILTERS if (value := given.pop(f"of_{name}")) is not None}
        if "session" in filters:
            filters["session_id"] = filters.pop("session")
        return command(*args, filters=filters, **given)

    for name, (metavar, text) in reversed(FILTERS.items()):
        names = (f"--{name.replace('_', '-')}", *(["--fingerprint"] if name == "group" else []), f"of_{name}")
        callback = _read_instant if name in ("since", "until") else None
        gather = click.option(*names, metavar=metavar, callback=callback, help=text)(gather)
    return gather  # type: ignore[return-value]


async def resolve_filters(rd: Redrive, filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters as the verbs take them, with the whole fingerprint of a group."""
    await warn_of_unknown_queue(rd, filters.get("queue"))
    resolved = dict(filters)
    if (group := resolved.pop("group", None)) is not None:
        resolved["fingerprint"] = (await rd.groups.find(group, field="group")).fingerprint
    return resolved


async def warn_of_unknown_queue(rd: Redrive, queue: str | None) -> None:
    """Warn if a queue may be misspelt, because an empty answer would look like good news."""
    problem = await rd.queues.doubt(queue) if queue is not None else None
    if problem:
        output.print_warning(f"warning: queue {clean(queue)}: {clean(problem)}")


def describe_filters(filters: Mapping[str, Any]) -> str:
    """Format filters for a question or a report: `queue feedback, error_class TimeoutError`."""
    values = {name: iso(value) if name in ("since", "until") else value for name, value in filters.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())


# ---- payloads

payload_argument = click.argument("payload_text", metavar="[JSON | @FILE | -]", default="{}")


def read_payload(given: str, rd: Redrive) -> dict[str, Any]:
    """Read a JSON object that the app may take, or raise a Refusal that says what the text is instead."""
    value = _decode(_read_text(given, SPACE * rd.settings.payload_limit))
    if not isinstance(value, dict):
        raise Refusal(f"payload: must be a JSON object, not {_kind(value)}", PAYLOAD_HINT)
    return value


def _read_text(given: str, limit: int) -> bytes:
    if given == "-":
        return _check_size(sys.stdin.buffer.read(limit + 1), limit)
    if not given.startswith("@"):
        return given.encode(errors="surrogateescape")
    try:
        with Path(given[1:]).open("rb") as file:
            return _check_size(file.read(limit + 1), limit)
    except OSError as error:
        raise Refusal(f"payload: cannot read {given[1:]}: {error.strerror}", PAYLOAD_HINT) from None


def _check_size(text: bytes, limit: int) -> bytes:
    if len(text) > limit:
        raise Refusal(f"payload: is larger than {limit:,} bytes", "keep large parts elsewhere and send where they are")
    return text


def _decode(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=unique)
    except RepeatedKey as error:
        raise Refusal(f"payload: {error}", "remove one of the two: only one value can be kept") from None
    except RecursionError:
        raise Refusal("payload: is nested too deeply", "64 levels are allowed") from None
    except ValueError as error:
        raise Refusal(f"payload: is not JSON: {error}", PAYLOAD_HINT) from None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")
