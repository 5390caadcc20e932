"""An event loop in a thread of its own, for callers without one (scripts, Django, Jupyter cells)."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from redrive.errors import RedriveError

T = TypeVar("T")


class Portal:
    """Runs coroutines from synchronous code. One thread per process, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._pid = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._ready()
        if threading.get_ident() == self._thread:
            work.close()
            raise RedriveError("this code runs in redrive's own event loop, which cannot wait for itself: use await")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _ready(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._loop.run_forever, name="redrive-portal", daemon=True)
                thread.start()
                self._thread = thread.ident
                atexit.register(self._loop.call_soon_threadsafe, self._loop.stop)
            return self._loop


portal = Portal()
