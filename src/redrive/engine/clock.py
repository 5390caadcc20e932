"""Provides time and random numbers in one place, so that tests can replace both."""

from __future__ import annotations

import random
import time
from functools import cache
from pathlib import Path
from typing import Final, Protocol

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """The source of time and random numbers for the runtime."""

    def now(self) -> float:
        """Returns the seconds since the epoch."""

    def monotonic(self) -> float:
        """Returns the seconds of a clock that never jumps."""

    def chance(self) -> float:
        """Returns a random number in [0, 1)."""


class SystemClock:
    """The system's clocks. Leases and pauses are measured on the steady clock; only due times follow the wall clock.

    When the wall clock goes back, the scheduler gives jobs that were stamped in the future their delay anew.
    """

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    chance = staticmethod(random.random)

    def uptime(self) -> float:
        """Returns the seconds since the machine started, sleep included: a laptop that slept has not jumped."""
        kind = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
        return time.monotonic() if kind is None else time.clock_gettime(kind)

    def boot(self) -> str | None:
        """Returns the id of this boot of the machine, where the system has one."""
        return _boot_id()


@cache
def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None
