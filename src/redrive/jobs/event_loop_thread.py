"""Runs an event loop in another thread, for callers without one (scripts, Django, Jupyter cells)."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from redrive.engine.interrupts import LoopThread
from redrive.engine.threads import CarriedError
from redrive.errors import RedriveError

T = TypeVar("T")


async def _carry_over(work: Coroutine[Any, Any, T]) -> T:
    """Carry what would end the portal's event loop over to the thread that waits."""
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        raise CarriedError(error) from None


class Portal:
    """Runs coroutines from synchronous code. One thread per process, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._pid = os.getpid()
        self.over = False
        """The process is ending: the event loop has stopped."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.over:
            work.close()
            raise RedriveError("the process is ending: redrive's own event loop has stopped")
        loop = self.start()
        if threading.get_ident() == self._thread:
            work.close()
            raise RedriveError("this code runs in redrive's own event loop, which cannot wait for itself: use await")
        try:
            return asyncio.run_coroutine_threadsafe(_carry_over(work), loop).result()
        except CarriedError as raised:
            raise raised.error from None

    def start(self) -> asyncio.AbstractEventLoop:
        """Start the event loop unless it runs."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                thread = LoopThread(target=self._loop.run_forever, name="redrive-portal", daemon=True)
                thread.start()
                self._thread = thread.ident
                atexit.register(self._end, self._loop)
            return self._loop

    def runs_here(self) -> bool:
        """Whether this code runs on the portal's event loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over = True
        loop.call_soon_threadsafe(loop.stop)


portal = Portal()
