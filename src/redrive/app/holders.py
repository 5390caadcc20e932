"""Who needs the store: it stays open until the last of them has left.

Closed under a worker, the file would say that this process has gone, and others would run its jobs again.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from redrive.runtime.loop import carried_through

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.store import Store


class Holders:
    """Workers, blocks and cycles of this process, on whatever event loop or thread."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._lock = threading.Lock()
        """Held for a few steps only, and never across an await: event loops take it, too."""
        self._number = 0
        self._closes = False
        """One of those who left wants it closed."""

    def come(self) -> bool:
        """Whether nobody had opened the store: then whoever comes should want it closed when they leave."""
        with self._lock:
            self._number += 1
            return self._app._store is None

    def make(self) -> Store:
        """The store, once, however many threads ask for it at the same time."""
        with self._lock:
            if self._app._store is None:
                self._app._store = self._app._make_store(self._app.settings.url, self._app.clock)
            return self._app._store

    async def leave(self, *, closes: bool) -> None:
        """The last to leave closes the store, where any of them wanted that."""
        with self._lock:
            self._number -= 1
            self._closes = self._closes or closes
            if self._number or not self._closes:
                return
        await carried_through(self._close())

    async def _close(self) -> None:
        await self._app._close_services()
        with self._lock:
            if self._number:
                return  # somebody came meanwhile, and will close it
            self._closes = False
            store = self._app._put_away()
        if store is not None:
            await store.close()

    async def join(self) -> bool:
        """Come, and open the store."""
        nobody = self.come()
        try:
            await self._app.open()
        except BaseException:
            await self.leave(closes=nobody)
            raise
        return nobody

    @asynccontextmanager
    async def staying(self) -> AsyncIterator[None]:
        """The store is open here; to close it is somebody else's wish."""
        await self.join()
        try:
            yield
        finally:
            await self.leave(closes=False)
