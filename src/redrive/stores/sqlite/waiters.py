"""Who waits for a change of the store, in whatever event loop, and how they are woken from whatever thread."""

from __future__ import annotations

import asyncio

from redrive.stores.sqlite.handing import handed

Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class Waiters:
    """Counts changes: `mark` is the number of the last one, so that a change between two steps is not missed."""

    def __init__(self) -> None:
        self.mark = 0
        self._waiters: set[Waiter] = set()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def wake(self) -> None:
        """Something changed: tell everybody who waits, from any thread."""
        self.mark += 1
        for loop, event in list(self._waiters):
            if not handed(loop, event.set):
                self._waiters.discard((loop, event))

    async def wait(self, mark: int, seconds: float | None, woken: asyncio.Event | None = None) -> bool:
        """Sleep until something changed since the mark or `woken` is set (True), or so long (False)."""
        waiter = (asyncio.get_running_loop(), woken or asyncio.Event())
        self._waiters.add(waiter)
        try:
            if self.mark != mark:
                return True
            async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
                return await waiter[1].wait()
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
