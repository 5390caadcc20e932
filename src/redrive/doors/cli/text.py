"""Words for people. Whatever comes from a job is shown as text, never as something a terminal would obey."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from redrive.core.words import duration

if TYPE_CHECKING:
    from redrive.core.timings import Span
    from redrive.reports.queue_numbers import QueueView
    from redrive.reports.workforce import TaskView

PACE: Final = ("wait p50", "wait p95", "took p50", "took p95", "failed")
"""The columns of `pace`."""
UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def clean(text: object) -> str:
    """Text on one line, without control characters."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in said)


def one_line(text: object) -> str:
    return clean(" ".join(str(text).split()))


def short(text: object, width: int = 60) -> str:
    """The first line's worth of a text."""
    said = one_line(text)
    return said if len(said) <= width else said[: width - 1] + "…"


def ago(at: float | None, now: float | None = None) -> str:
    """An instant as people say it: `5 min ago`, `in 30 s`, `now`."""
    if at is None:
        return ""
    away = at - (time.time() if now is None else now)
    said = span(abs(away))
    if said == "0 s":
        return "now"
    return f"in {said}" if away > 0 else f"{said} ago"


def due(at: float, now: float | None = None) -> str:
    """When something is to run: `runs in 30 s`, or `due 25 s ago` where it should have run by now."""
    said = ago(at, now)
    return f"due {said}" if said.endswith(" ago") else f"runs {said}"


def span(seconds: float) -> str:
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def pace(view: TaskView | QueueView) -> tuple[str, ...]:
    """How long the last successes waited and took, and the day's share of failed attempts; empty where not known."""
    rate = f"{view.failure_rate:.0%}" if view.failure_rate is not None else ""
    return (*_percentiles(view.waited), *_percentiles(view.took), rate)


def _percentiles(span: Span | None) -> tuple[str, str]:
    return (duration(span.p50), duration(span.p95)) if span is not None else ("", "")
