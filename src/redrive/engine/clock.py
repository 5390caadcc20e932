"""Time and chance, in one place, so that everything else can be told what time it is."""

from __future__ import annotations

import random
import time
from functools import cache
from pathlib import Path
from typing import Final, Protocol

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What the runtime knows of time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never jump."""

    def chance(self) -> float:
        """A number in [0, 1)."""


class SystemClock:
    """The system's clock. Leases and pauses are measured on the steady one; only due times follow the wall clock.

    When the wall clock goes back, the scheduler gives jobs that were stamped in the future their delay anew.
    """

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return random.random()

    def uptime(self) -> float:
        """Seconds since the machine started, those of its sleep included: a laptop that slept has not jumped."""
        kind = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
        return time.monotonic() if kind is None else time.clock_gettime(kind)

    def boot(self) -> str | None:
        """Names the start of the machine, where the system has a name for it."""
        return _boot_id()


@cache
def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None
