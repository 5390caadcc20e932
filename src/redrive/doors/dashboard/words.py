"""Times, numbers, states and small drawings, as the pages show them. Pure: `now` is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from redrive.core.redact import redact_text
from redrive.core.words import clipped as clipped
from redrive.core.words import counted as counted
from redrive.core.words import duration, few
from redrive.core.words import number as number
from redrive.core.words import plain as plain
from redrive.reports.timeline import reason

MOMENT: Final = 0.001
"""The precision of times in addresses, in seconds."""


def ago(at: float | None, now: float) -> str:
    """`5 min ago`, `in 30 s`, `now`; empty where there is no instant."""
    if at is None:
        return ""
    away = at - now
    if abs(away) < 0.5:
        return "now"
    return f"in {span(away)}" if away > 0 else f"{span(-away)} ago"


def span(seconds: float | None) -> str:
    """`90 s`, `5 min`, `1.5 h`, `3 d`; empty where there are none."""
    return "" if seconds is None else duration(seconds)


class Instant(str):
    """An instant in UTC that keeps its number: the page shows it in the reader's time zone."""

    __slots__ = ("at",)
    at: float


def exact(at: float | None) -> str:
    """The instant itself, for facts and titles."""
    if at is None:
        return ""
    instant = Instant(f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC")
    instant.at = at
    return instant


def is_instant(value: object) -> bool:
    return isinstance(value, Instant)


def clock_time(at: float | None) -> str:
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def iso(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def until_iso(at: float) -> str:
    """The end of a time to which this instant still belongs."""
    return iso(at + MOMENT)


def masked(text: str | None) -> str:
    """What a person or a task wrote, without what looks like a secret."""
    return redact_text(text) if text else ""


def brief(value: float | None) -> str:
    """`12.3k`, `1.2M`: where the size matters and the last digit does not."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{few(value / (1000 if unit == 'k' else size))}{unit}"
    return number(value)


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Make a sentence of a text: a capital letter first, a full stop last."""
    return capitalise(text) if text.endswith((".", "!", "?")) else f"{capitalise(text)}."


def percent(part: float, whole: float) -> str:
    if not whole:
        return "–"
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 9.95 or share == int(share) else f"{share:.1f} %"


# -- drawings, as numbers for SVG attributes


def spark_line(values: Sequence[float], width: float = 96.0, height: float = 20.0) -> str:
    """The `d` of a path through the values, the first at the left edge, zero at the bottom."""
    if not values:
        return ""
    top = max(values) or 1.0
    levels = {value: f" {height - 1 - (height - 2) * value / top:.1f}" for value in set(values)}
    places = _places(len(values), width)
    return "M" + " L".join([place + levels[value] for place, value in zip(places, values, strict=True)])


@lru_cache(maxsize=64)
def _places(number: int, width: float) -> tuple[str, ...]:
    """Places at equal distances from the left edge to the right one."""
    step = width / max(number - 1, 1)
    return tuple(f"{index * step:.1f}" for index in range(number))


def shares(parts: Sequence[tuple[str, float]], width: float = 100.0) -> list[dict[str, Any]]:
    """Rectangles side by side, as wide as their part of the whole; no part is invisibly narrow."""
    whole = sum(value for _, value in parts)
    rectangles: list[dict[str, Any]] = []
    left = 0.0
    for name, value in parts:
        if value <= 0:
            continue
        size = width * value / whole
        rectangles.append({"name": name, "value": value, "x": round(left, 3), "width": round(max(size, 0.6), 3)})
        left += size
    return rectangles


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "span": span,
    "exact": exact,
    "iso": iso,
    "until_iso": until_iso,
    "number": number,
    "brief": brief,
    "counted": counted,
    "percent": percent,
    "plain": plain,
    "reason": reason,
    "clipped": clipped,
    "masked": masked,
    "spark_line": spark_line,
    "shares": shares,
}
