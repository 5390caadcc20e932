"""Moments as people give them: `until`, `since`, `run_at`. In Python a datetime or a span, at the doors a text.

A time without a zone is refused, unless the caller gives the zone that is meant.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from redrive.core.checks import is_number
from redrive.errors import InvalidOption

Given = datetime | timedelta | float
LONGEST: Final = 1e11
"""Seconds of a span: beyond it there are no years to write down."""
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC).timestamp()
LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""Of a moment: every zone can write it down."""
SHOWN: Final = 60
TIME: Final = "2031-05-17T07:00:00Z"
_UNITS: Final = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN: Final = re.compile(r"([0-9]{1,6})\s*(s|min|m|h|d|w)\s*")
SPANS_SHOWN: Final = '"90s", "5m", "2h", "1d" or "1h30m"'
"""How people may write durations."""


# ---- as Python gives them


def moment(field: str, said: object) -> float:
    """A datetime, in seconds since 1970."""
    if not isinstance(said, datetime):
        raise InvalidOption(field=field, problem=f"{said!r} is not a datetime")
    if said.tzinfo is None:
        raise InvalidOption(field=field, problem="is naive; give it a time zone, e.g. datetime.now(UTC)")
    if not EARLIEST <= said.timestamp() < LATEST:
        raise InvalidOption(field=field, problem=f"{said.isoformat()} cannot be written down in every time zone")
    return said.timestamp()


def later(field: str, said: object, now: float) -> float:
    """A datetime, or so long from now: in the future."""
    at = moment(field, said) if isinstance(said, datetime) else now + _seconds(field, said)
    if at <= now:
        raise InvalidOption(field=field, problem="is over already; give a time in the future")
    return at


def earlier(field: str, said: object, now: float) -> float:
    """A datetime, or so long ago. Nothing happened before 1970."""
    return max(0.0, moment(field, said) if isinstance(said, datetime) else now - _seconds(field, said))


def _seconds(field: str, said: object) -> float:
    number = said.total_seconds() if isinstance(said, timedelta) else said
    if isinstance(said, str):
        number = span_seconds(said)
    if is_number(number) and 0 <= number < LONGEST:
        return float(number)
    if isinstance(said, timedelta) and said > timedelta():
        raise InvalidOption(field=field, problem="is longer than three thousand years")
    problem = f"{said!r:.{SHOWN}} is no datetime, timedelta, number of seconds from 0 on, or text such as {SPANS_SHOWN}"
    raise InvalidOption(field=field, problem=problem)


def zone_of(field: str, name: str) -> tzinfo:
    """Returns the time zone of this name."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise InvalidOption(field=field, problem=f"{name!r} is not a time zone, such as Europe/Rome") from None


# ---- as the doors are told them


def read(field: str, text: str, *, zone: tzinfo | None = None) -> datetime | timedelta:
    """`24h`, `3d`, or a time. `zone` is that of times that say none."""
    if (seconds := span_seconds(text)) is not None:
        return timedelta(seconds=seconds)
    return _time(field, text, zone, f"neither a span nor a time; write it like 24h, 3d or {TIME}")


def span_seconds(text: str) -> float | None:
    """The seconds of a duration such as `90s`, `5m` or `1h30m`; None where the text is none."""
    total, at, text = 0.0, 0, text.strip()
    while at < len(text):
        part = _SPAN.match(text, at)
        if part is None:
            return None
        total, at = total + int(part[1]) * _UNITS[part[2]], part.end()
    return total if text else None


def read_time(field: str, text: str, *, zone: tzinfo | None = None) -> datetime:
    """A time alone."""
    return _time(field, text, zone, f"not a time; write it like {TIME}")


def _time(field: str, text: str, zone: tzinfo | None, otherwise: str) -> datetime:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidOption(field=field, problem=f"{text[:SHOWN]!r} is {otherwise}") from None
    if time.tzinfo is not None:
        return time
    if zone is None:
        raise InvalidOption(field=field, problem=f"{text[:SHOWN]!r} is naive: it has no time zone, as {TIME} has")
    return time.replace(tzinfo=zone)
