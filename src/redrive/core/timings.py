"""Sums up how long jobs waited for their start and how long they took. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

TimedBy = Literal["task", "queue"]
LAST: Final = 1000
"""So many of the last successes of one task or queue are measured."""


class Span(msgspec.Struct, frozen=True):
    """The median and the 95th percentile of some seconds, and of how many they are."""

    number: int
    p50: float
    p95: float


def span_of(seconds: Sequence[float]) -> Span | None:
    """Sums up seconds; None where there are none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return Span(len(ordered), ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))])


class Timing(msgspec.Struct, frozen=True):
    """How long the last successes of one task or queue waited, from the time they were due, and took."""

    name: str
    waited: Span | None
    took: Span | None


def timings_of(measured: Iterable[tuple[str, float, float]], last: int = LAST) -> list[Timing]:
    """Sums up what was measured (name, seconds waited, seconds taken), the newest first, by name.

    A clock that was set back gives negative seconds, and so does a job that a caller ran before it was due: they count
    as none.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for name, waited, took in measured:
        of_name = found.setdefault(name, [])
        if len(of_name) < last:
            of_name.append((max(0.0, waited), max(0.0, took)))
    return [
        Timing(name, span_of([waited for waited, _ in pairs]), span_of([took for _, took in pairs]))
        for name, pairs in sorted(found.items())
    ]
