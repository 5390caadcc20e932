"""Reads how long a failure asks to wait, in seconds, from the places where libraries and servers write the wait.

Pure: functions that need a clock take `now`. A value that is not a finite, sensible number counts as None; no wait is
negative.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

LONGEST: Final = 366 * 86_400.0
"""Longest wait that is believed: a longer one must mean something else."""
_DURATION: Final = re.compile(
    r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_RETRY_DELAY: Final = re.compile(r"retry_?delay[\"']?\s*[:=]\s*[\"'](\d{1,9}(?:\.\d{1,9})?)s[\"']", re.IGNORECASE)
_ASKED: Final = re.compile(r"(?:try again|retry|wait)(?: in| after| for)? (?:about |another |at least )?(?=\d)")
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([a-z]{1,12}),? ?")
_UNITS: Final = {
    word: seconds
    for words, seconds in (
        ("ms millisecond milliseconds", 0.001),
        ("s sec secs second seconds", 1.0),
        ("m min mins minute minutes", 60.0),
        ("h hr hrs hour hours", 3600.0),
    )
    for word in words.split()
}
_EPOCH: Final = 100_000_000.0
"""Numbers above this are instants, not spans."""


def finite(seconds: float) -> float | None:
    """Returns seconds that can be waited, else None."""
    if not math.isfinite(seconds) or seconds > LONGEST:
        return None
    return max(0.0, seconds)


def number(text: str) -> float | None:
    try:
        return float(text) if len(text) <= 40 else None
    except ValueError:
        return None


def duration(text: str) -> float | None:
    """Reads `34s`, `6m0s`, `20ms`, `1h2m`: spans as Google and OpenAI write them."""
    match = _DURATION.fullmatch(text.strip()) if 0 < len(text) <= 40 else None
    if match is None or not any(match.groups()):
        return None
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups())
    return finite(hours * 3600 + minutes * 60 + seconds + millis / 1000)


def instant(text: str) -> float | None:
    """Reads an HTTP date or an RFC 3339 time as seconds since 1970. A time without a zone is UTC."""
    from email.utils import parsedate_to_datetime  # slow to import, and dates are rare

    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            time = parse(text.strip()[:64])
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
        try:
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    return None


def wait_of(value: object, now: float) -> float | None:
    """Reads seconds from a `retry_after`: a number, a span, an instant, or a text of one of these."""
    if isinstance(value, timedelta):
        return finite(value.total_seconds())
    if isinstance(value, datetime):
        return _until(value.isoformat(), now)
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return finite(float(value))
        except OverflowError:
            return None
    return _span(value, now) if isinstance(value, str) else None


def _span(text: str, now: float) -> float | None:
    """Reads seconds from a text: a number, a span with units, or a date."""
    seconds = number(text)
    if seconds is not None:
        return finite(seconds)
    spelled = duration(text)
    return spelled if spelled is not None else _until(text, now)


def _until(text: str, now: float) -> float | None:
    at = instant(text)
    return None if at is None else finite(at - now)


def _reset(text: str, now: float) -> float | None:
    """Reads a reset: an instant since 1970 in seconds or milliseconds, else any form of `retry-after`."""
    seconds = number(text)
    if seconds is None or not math.isfinite(seconds) or seconds < _EPOCH:
        return _span(text, now)
    return finite((seconds / 1000 if seconds > _EPOCH * 1000 else seconds) - now)


def _retry_after_ms(headers: Mapping[str, str], now: float, limited: bool) -> float | None:
    text = headers.get("retry-after-ms") or headers.get("x-ms-retry-after-ms")
    millis = number(text) if text else None
    return None if millis is None else finite(millis / 1000)


def _retry_after(headers: Mapping[str, str], now: float, limited: bool) -> float | None:
    text = headers.get("retry-after")
    return _span(text, now) if text else None


def _read_exhausted(headers: Mapping[str, str], now: float, limited: bool) -> float | None:
    """Reads `x-ratelimit-reset` and similar headers of limits of which nothing remains."""
    waits = [
        _reset(headers[reset], now)
        for reset, remaining in _limits(headers)
        if not reset.startswith("anthropic-") and headers.get(remaining, "").strip() == "0"
    ]
    return _take_longest(waits)


def _anthropic(headers: Mapping[str, str], now: float, limited: bool) -> float | None:
    """Reads the resets of Anthropic. Every answer has resets, so they count only for a rate limit."""
    if not limited:
        return None
    resets = [
        (_until(headers[reset], now), headers.get(remaining, "").strip())
        for reset, remaining in _limits(headers)
        if reset.startswith("anthropic-")
    ]
    spent = _take_longest(wait for wait, remaining in resets if remaining == "0")
    known = [wait for wait, _ in resets if wait is not None]
    return spent if spent is not None else min(known, default=None)


def _limits(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Lists (header of the reset, header of what remains) for every limit in the headers."""
    return [
        (name, name.removesuffix("-after").replace("reset", "remaining"))
        for name in headers
        if "limit" in name and "reset" in name
    ]


def _take_longest(waits: Iterable[float | None]) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


_PLACES: Final[tuple[Callable[[Mapping[str, str], float, bool], float | None], ...]] = (
    _retry_after_ms,
    _retry_after,
    _read_exhausted,
    _anthropic,
)


def header_wait(headers: Mapping[str, str], now: float, *, limited: bool) -> float | None:
    """Returns the wait from the first header that has one. `limited`: the failure is a rate limit."""
    if not headers:
        return None
    for place in _PLACES:
        wait = place(headers, now, limited)
        if wait is not None:
            return wait
    return None


def delay_in_text(text: str) -> float | None:
    """Reads Google's `"retryDelay": "34s"` where a library kept only the text of the answer."""
    match = _RETRY_DELAY.search(text)
    return finite(float(match[1])) if match else None


def wait_in_words(text: str) -> float | None:
    """Reads `try again in 1m30s`, `retry after 56 seconds` in the lower-case message of a rate limit."""
    asked = _ASKED.search(text)
    if asked is None:
        return None
    total, at = 0.0, asked.end()
    while (part := _PART.match(text, at)) is not None and part[2] in _UNITS:
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return finite(total) if at > asked.end() else None
