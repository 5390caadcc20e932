"""Which jobs: one set of options for every command that lists them or acts on them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from redrive.core.times import earlier, read
from redrive.doors.cli import output
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import clean

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

F = TypeVar("F", bound=Callable[..., Any])
NAMES: Final = {"session": "session_id"}
"""Options that the verbs know under another name."""


def filtered(command: F) -> F:
    """Adds the options; the command gets what was said as `filters`, named as `rd.dead` and `rd.jobs` name them.

    `group` may be the beginning of a fingerprint: `understood` finds the rest. The options keep out of the way of a
    command's own (`of_agent`, …).
    """

    @functools.wraps(command)
    def gathered(*args: Any, **said: Any) -> Any:
        chosen = {NAMES.get(name, name): value for name in FIELDS if (value := said.pop(f"of_{name}")) is not None}
        return command(*args, filters=chosen, **said)

    for option in reversed(OPTIONS):
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]


async def understood(rd: Redrive, filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters as the verbs take them: a group that was named by its beginning is found."""
    from redrive.errors import InvalidInput

    await doubt(rd, filters.get("queue"))
    said = dict(filters)
    group = said.pop("group", None)
    if group is None:
        return said
    try:
        return {**said, "fingerprint": (await rd.groups.find(group, field="group")).fingerprint}
    except InvalidInput as error:
        raise Problem(error.problem, "`redrive dead groups` lists them; a unique beginning is enough") from None


async def doubt(rd: Redrive, queue: str | None) -> None:
    """Says so where a queue may be misspelt: that nothing is found in it would be no good news."""
    problem = await rd.queues.doubt(queue) if queue is not None else None
    if problem:
        output.warn(f"warning: queue {clean(queue)}: {clean(problem)}")


def in_words(filters: Mapping[str, Any]) -> str:
    """`queue feedback, error_class TimeoutError`, for a question or a report."""
    from redrive.core.job import iso

    said = {name: iso(value) if name in ("since", "until") else value for name, value in filters.items()}
    return ", ".join(f"{name} {value}" for name, value in said.items())


def instant(text: str, field: str) -> float:
    """A time, or a span before now, in seconds since 1970."""
    return earlier(field, read(field, text), time.time())


def _instant(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    return None if value is None else instant(value, str(parameter.name).removeprefix("of_"))


OPTIONS: Final = (
    click.option("--queue", "of_queue", metavar="NAME", help="Of this queue."),
    click.option("--task", "of_task", metavar="NAME", help="Of this task."),
    click.option("--agent", "of_agent", metavar="NAME", help="Who does the work."),
    click.option("--session", "of_session", metavar="ID", help="Who asked for it."),
    click.option(
        "--lane", "of_lane", metavar="NAME", help="manual (needs a person) or delayed (comes back by itself)."
    ),
    click.option(
        "--category", "of_category", metavar="NAME", help="transient, conditional, permanent, control or unknown."
    ),
    click.option("--detail", "of_detail", metavar="NAME", help="e.g. rate_limited, context_overflow, credentials."),
    click.option("--error-class", "of_error_class", metavar="NAME", help="e.g. TimeoutError."),
    click.option(
        "--error-kind", "of_error_kind", metavar="NAME", help="Any attempt failed with this kind, however it ended."
    ),
    click.option("--group", "--fingerprint", "of_group", metavar="ID", help="One error group, by its id or a prefix."),
    click.option("--because", "of_because", metavar="REASON", help="e.g. attempts_exhausted, permanent, crash_loop."),
    click.option("--reason", "of_reason", metavar="NAME", help="direct, retry, deferred_submit or scheduled_job."),
    click.option("--owner", "of_owner", metavar="NAME", help="Who must take care of it."),
    click.option(
        "--since", "of_since", metavar="TIME", callback=_instant, help="Changed since then: 24h, 3d, or a time."
    ),
    click.option("--until", "of_until", metavar="TIME", callback=_instant, help="Changed before then."),
)
FIELDS: Final = (
    "queue", "task", "agent", "session", "lane", "category", "detail", "error_class", "error_kind", "group", "because",
    "reason", "owner", "since", "until",
)  # fmt: skip
