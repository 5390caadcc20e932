"""Time and chance, in one place, so that everything else can be told what time it is."""

from __future__ import annotations

import random
import time
from typing import Protocol


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
