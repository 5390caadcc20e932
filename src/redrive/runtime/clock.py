"""Time and chance, in one place, so that everything else can be told what time it is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol

SLEW = 0.1
"""A step of the system's clock is absorbed at this rate, so that no delay fires much early or late because of it."""

_NOISE = 1e-6


class Clock(Protocol):
    """What the runtime knows of time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never jump."""

    def chance(self) -> float:
        """A number in [0, 1)."""


def _boottime() -> float:
    """Monotonic, and counts the time a laptop sleeps, where the system can say."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SystemClock:
    """The wall clock without its jumps: follows sleep at once and steps slowly, never by jumping itself."""

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = _boottime, slew: float = SLEW
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._slew = slew
        self._told = wall()
        self._at = steady()

    def now(self) -> float:
        wall, steady = self._wall(), self._steady()
        passed = steady - self._at
        self._at = steady
        straight = self._told + passed
        most = passed * self._slew + _NOISE
        if -most <= wall - straight <= most:
            self._told = wall
        else:
            self._told = straight + (most if wall > straight else -most)
        return self._told

    def monotonic(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return random.random()
