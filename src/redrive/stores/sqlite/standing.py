"""A standing claim: an idle worker gets a job in the very commit that makes it due, without asking again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from redrive.core.store import Claim, Wanted


class Standing:
    """One idle worker's wish. The writer serves it, the worker's loop takes the answer or withdraws; never both."""

    def __init__(self, wanted: Wanted, worker: str, clock: Callable[[], float], woken: asyncio.Event) -> None:
        self.wanted = wanted
        self.worker = worker
        self.clock = clock
        self.claim: Claim | None = None
        self._woken = woken
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._begun = 0
        self._ended = 0
        self._over = False
        """Withdrawn, or served with jobs: nobody may serve it any more."""
        self._answered = asyncio.Event()

    # -- the writer's thread

    def begin(self) -> bool:
        """Whether the wish still stands; if so, it is being served from now on."""
        with self._lock:
            self._begun += not self._over
            return not self._over

    def end(self, claim: Claim | None) -> None:
        """Served with these jobs, or not at all: then the wish stands on."""
        if claim is not None:
            with self._lock:
                self._over = True
        self._loop.call_soon_threadsafe(self._answer, claim)

    # -- the worker's loop

    def _answer(self, claim: Claim | None) -> None:
        if claim is not None:
            self.claim = claim
            self._woken.set()
        self._ended += 1
        self._answered.set()

    async def withdraw(self) -> Claim | None:
        """The wish ends here. If it is being served this moment, the answer is waited for: no job is left behind."""
        with self._lock:
            self._over = True
            begun = self._begun
        while self._ended < begun:
            self._answered.clear()
            await self._answered.wait()
        return self.claim
