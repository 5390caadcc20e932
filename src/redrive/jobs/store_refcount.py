"""Counts the users of the store: the first one makes it, the last one closes it.

Closed under a worker, the file would say that this process has gone, and others would run its jobs again.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from redrive.config import Settings
from redrive.engine.bus import Bus
from redrive.engine.clock import Clock
from redrive.engine.loop import carry_through
from redrive.engine.trusted_time import meet_clock
from redrive.jobs.open_store import make_store
from redrive.jobs.publishing_store import wrap_store

if TYPE_CHECKING:
    from redrive.core.store import Store


class StoreHolder:
    """Makes, lends and closes the store of one process, to users on any thread or event loop."""

    def __init__(self, settings: Settings, clock: Clock, bus: Bus) -> None:
        self.settings = settings
        self.clock = clock
        self.store: Store | None = None
        """The open store; None before the first use and after the store was closed."""
        self.before_close: list[Callable[[], Awaitable[None]]] = []
        """What must end before the store does."""
        self.on_close: list[Callable[[], None]] = []
        """What is told, without waiting, that the store is closed now."""
        self._bus = bus
        self._lock = threading.Lock()
        """Held for a few steps only, and never across an await: event loops take it, too."""
        self._users = 0
        self._closes = False
        """One of the users that left wants the store closed."""
        meet_clock(clock)

    # -- making and replacing it

    def make(self) -> Store:
        """Make the store once, however many threads ask for it at the same time."""
        with self._lock:
            if self.store is None:
                self.store = self.make_store(self.settings.url, self.clock)
            return self.store

    def make_store(self, url: str, clock: Clock) -> Store:
        """Make a store whose commits write their notices and are published on the bus."""
        settings = self.settings if url == self.settings.url else msgspec.structs.replace(self.settings, url=url)
        return wrap_store(make_store(settings, clock), self._bus)

    def use(self, store: Store | None, clock: Clock) -> None:
        """Use another store and clock from now on (redrive.testing)."""
        self.store, self.clock = store, clock
        meet_clock(clock)

    # -- using and closing it

    def enter(self) -> bool:
        """Count a user; returns whether the store was not open: then this user should want it closed when it leaves."""
        with self._lock:
            self._users += 1
            return self.store is None

    async def leave(self, *, closes: bool) -> None:
        """Close the store when its last user leaves, where any of them wanted that."""
        with self._lock:
            self._users -= 1
            self._closes = self._closes or closes
            if self._users or not self._closes:
                return
        await carry_through(self._close_unused())

    async def _close_unused(self) -> None:
        await self._end_services()
        with self._lock:
            if self._users:
                return  # another user came meanwhile, and will close it
            self._closes = False
            store = self._put_away()
        if store is not None:
            await store.close()

    async def join(self) -> bool:
        """Count a user and opens the store; the answer is that of `enter`."""
        first = self.enter()
        try:
            await self.open()
        except BaseException:
            await self.leave(closes=first)
            raise
        return first

    @asynccontextmanager
    async def hold(self, *, closes: bool) -> AsyncIterator[None]:
        """Keep the store open while the block runs; afterwards want it closed, or leave that to other users."""
        await self.join()
        try:
            yield
        finally:
            await self.leave(closes=closes)

    async def open(self) -> None:
        await (self.store or self.make()).open()

    async def close(self) -> None:
        """Finish accepted writes and close the store, also while others use it. The next use makes it anew."""
        await carry_through(self._close())

    async def _close(self) -> None:
        await self._end_services()
        if (store := self._put_away()) is not None:
            await store.close()

    async def _end_services(self) -> None:
        for end in self.before_close:
            await end()

    def _put_away(self) -> Store | None:
        for tell in self.on_close:
            tell()
        store, self.store = self.store, None
        return store
