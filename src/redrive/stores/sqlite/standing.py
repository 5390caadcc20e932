"""A standing claim: an idle worker gets a job in the very commit that makes it due, without asking again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from redrive.core.job import Ending, Job
from redrive.core.store import Claim, Wanted
from redrive.stores.sqlite.handing import handed
from redrive.stores.sqlite.writer import Work

log = logging.getLogger("redrive.store")


class Found(NamedTuple):
    """What the writer found for a claim."""

    number: int
    read: Callable[[], Claim]
    """Puts the jobs together: the work of whoever asked, in their thread."""
    give_back: Work[int]
    """What the writer does where that fails; how many of them cannot be read."""


class Lapsed(NamedTuple):
    """Running jobs whose lease has ended, and what is known of their processes."""

    jobs: list[Job]
    endings: dict[str, Ending]


NONE_LAPSED = Lapsed([], {})


def nothing(lapsed: Lapsed, mark: int, next_due: float | None = None) -> Found:
    return Found(0, lambda: Claim([], lapsed.jobs, mark, next_due, lapsed.endings), lambda connection: 0)


class Standing:
    """One idle worker's wish. The writer serves it, the worker's loop takes the answer or withdraws; never both."""

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
        self._found: Found | None = None
        self._woken = woken
        self._hears = hears
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._begun = 0
        self._ended = 0
        self._over = False
        """Withdrawn, or served with jobs: nobody may serve it any more."""
        self._answered = asyncio.Event()

    # -- the writer's thread

    def begin(self) -> bool:
        """Whether the wish still stands and somebody could hear the answer; if so, it is being served from now on."""
        with self._lock:
            stands = not self._over and self._loop.is_running() and self._hears()
            self._begun += stands
            return stands

    def end(self, found: Found | None) -> None:
        """Served with these jobs, or not at all: then the wish stands on.

        What was claimed for a loop that was closed meanwhile has no heartbeat, and lapses when its lease ends.
        """
        if found is not None:
            with self._lock:
                self._over = True
        if not handed(self._loop, self._answer, found) and found is not None:
            log.warning(
                "%d jobs were claimed for worker %s, whose event loop was closed without stopping it: they come back"
                " when their leases end", found.number, self.worker,
            )  # fmt: skip

    # -- the worker's loop

    def _answer(self, found: Found | None) -> None:
        if found is not None:
            self._found = found
            self._woken.set()
        self._ended += 1
        self._answered.set()

    async def withdraw(self) -> Found | None:
        """The wish ends here. If it is being served this moment, the answer is waited for: no job is left behind."""
        with self._lock:
            self._over = True
            begun = self._begun
        while self._ended < begun:
            self._answered.clear()
            await self._answered.wait()
        return self._found
