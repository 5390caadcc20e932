"""The standing claim: an idle worker gets a job in the very commit that makes the job due, without asking again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

import apsw

from redrive.core.job import Ending, Job
from redrive.core.store import Claim, Wanted
from redrive.stores.sqlite.wakeups import call_in_loop

log = logging.getLogger("redrive.store")


class Claimed(NamedTuple):
    """What the writer has claimed for a caller."""

    number: int
    read: Callable[[], Claim]
    """Decodes the jobs, in the thread of the caller of the claim."""
    give_back: Callable[[apsw.Connection], int]
    """Runs in the writer where decoding fails; returns how many of the jobs cannot be read."""


class Lapsed(NamedTuple):
    """Running jobs whose lease has ended, and what is known of their processes."""

    jobs: list[Job]
    endings: dict[str, Ending]


NONE_LAPSED = Lapsed([], {})


def claim_nothing(lapsed: Lapsed, mark: int, next_due: float | None = None) -> Claimed:
    """Make the answer to a claim that got no jobs."""
    return Claimed(0, lambda: Claim([], lapsed.jobs, mark, next_due, lapsed.endings), lambda connection: 0)


_LOOP_CLOSED = (
    "%d jobs were claimed for worker %s, whose event loop was closed without stopping it: they come back when their"
    " leases end"
)


class StandingClaim:
    """The standing claim of one idle worker. The writer serves it, or the worker withdraws it; never both."""

    def __init__(
        self,
        wanted: Wanted,
        worker: str,
        clock: Callable[[], float],
        woken: asyncio.Event,
        hears: Callable[[], bool] = lambda: True,
    ) -> None:
        self.wanted = wanted
        self.worker = worker
        self.clock = clock
        self._claimed: Claimed | None = None
        self._woken = woken
        self._hears = hears
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._begun = 0
        self._ended = 0
        self._over = False
        """Withdrawn, or served with jobs: it is not served any more."""
        self._answered = asyncio.Event()

    # -- the writer's thread

    def begin(self) -> bool:
        """Whether the claim still stands and its worker can hear the answer; if so, it is being served from now on."""
        with self._lock:
            stands = not self._over and self._loop.is_running() and self._hears()
            self._begun += stands
            return stands

    def end(self, claimed: Claimed | None) -> None:
        """Answer with these jobs, or with None: then the claim stands on."""
        if claimed is not None:
            with self._lock:
                self._over = True
        if not call_in_loop(self._loop, self._answer, claimed) and claimed is not None:
            log.warning(_LOOP_CLOSED, claimed.number, self.worker)

    # -- the worker's loop

    def _answer(self, claimed: Claimed | None) -> None:
        if claimed is not None:
            self._claimed = claimed
            self._woken.set()
        self._ended += 1
        self._answered.set()

    async def withdraw(self) -> Claimed | None:
        """End the claim. If it is being served this moment, wait for the answer, so that no claimed job is lost."""
        with self._lock:
            self._over = True
            begun = self._begun
        while self._ended < begun:
            self._answered.clear()
            await self._answered.wait()
        return self._claimed
