"""What happens in the store, whoever does it: one reader for everybody who listens, and none while nobody does.

The feed reads committed moves, not this process's bus, so it sees workers in other processes within a second. Whoever
watches a busy queue wants to see that it is busy, not every move: a tick has at most a hundred and says that more was
skipped. `every=True` gets everything. Who does not keep up is dropped and comes back with the last cursor it has seen.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core.store import Event
from redrive.retries.breaker import Breaker

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

log = logging.getLogger("redrive.feed")
PACE: Final = 0.5
"""Seconds between two looks at the store."""
TOGETHER: Final = 100
"""Moves that a tick shows at most, unless somebody wants every one."""
PAGE: Final = 1_000
BEHIND: Final = 20
"""Ticks that may wait for a listener before it is dropped."""


class Tick(msgspec.Struct, frozen=True):
    """What happened since the last one. `cursor` continues after it; `skipped`: there was more than is shown."""

    cursor: str
    events: list[Event]
    skipped: bool = False
    breakers: list[Breaker] = []
    """Those that opened or closed, as they are now."""


class _Listener:
    """One who listens, and what waits for it."""

    def __init__(self, *, every: bool) -> None:
        self.every = every
        self.ticks: asyncio.Queue[tuple[int, Tick] | None] = asyncio.Queue()
        """Each with the number of the look that found it."""
        self.dropped = False

    def give(self, look: int, tick: Tick) -> None:
        if self.dropped:
            return
        if self.ticks.qsize() >= BEHIND:
            self.dropped = True
            log.warning("a listener of the feed does not keep up and is dropped; it may come back with its cursor")
            self.ticks.put_nowait(None)  # after what it was given: it ends where it can go on
        else:
            self.ticks.put_nowait((look, tick if self.every else _shown(tick)))

    def end(self) -> None:
        """At once, whatever still waits."""
        self.dropped = True
        while self.ticks.qsize():
            self.ticks.get_nowait()
        self.ticks.put_nowait(None)


def _shown(tick: Tick) -> Tick:
    if len(tick.events) <= TOGETHER:
        return tick
    return Tick(tick.cursor, tick.events[:TOGETHER], skipped=True, breakers=tick.breakers)


class Feed:
    """`async for tick in feed.listen()`; the reader lives while somebody does."""

    def __init__(self, rd: Redrive, *, pace: float = PACE) -> None:
        self._rd = rd
        self._pace = pace
        self._listeners: set[_Listener] = set()
        self._reader: asyncio.Task[None] | None = None
        self._cursor = ""
        """Where the reader's next tick begins."""
        self._looked = 0
        """How often it has read to the end."""
        self._down: dict[str, bool] | None = None
        """Which breakers were down at the last look; None before the first."""
        self._closed = False
        self._failing = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def now(self) -> str:
        """The cursor of this moment: nothing before it is told to who begins there."""
        return (await self._rd.store.events(None))[-1].cursor

    async def check(self, cursor: str) -> None:
        """Raises InvalidInput where it is no cursor of this feed."""
        await self._rd.store.events(cursor, limit=1)

    async def listen(self, after: str | None = None, *, every: bool = False) -> AsyncGenerator[Tick, None]:
        """Ticks from now on, or after a cursor. The first says where it begins. Ends when the feed is closed."""
        place = await self.now() if after is None else after
        if every and after is not None:
            async with aclosing(self._history(place)) as pages:
                async for tick in pages:
                    place = tick.cursor
                    yield tick
        start = place if after is None else await self.now()
        listener = _Listener(every=every)
        try:
            seen = await self._before(self._add(listener, start), start)
            async with aclosing(self._since(place, every=every)) as missed:
                async for tick in missed:
                    seen.update(map(_identity, tick.events))
                    yield tick
            last = self._looked + 2  # the look after the present one is the last that can find any of these
            while not self._closed and (heard := await listener.ticks.get()) is not None:
                look, tick = heard
                if look > last:
                    seen.clear()
                events = [event for event in tick.events if _identity(event) not in seen] if seen else tick.events
                if events or tick.skipped or tick.breakers:
                    yield Tick(tick.cursor, events, tick.skipped, tick.breakers)
        finally:
            self._listeners.discard(listener)

    async def _history(self, cursor: str) -> AsyncGenerator[Tick, None]:
        """Whole pages of what was missed, read before anything waits for the listener: it may be long."""
        while not self._closed and len(events := await self._rd.store.events(cursor, limit=PAGE)) >= PAGE:
            cursor = events[-1].cursor
            yield Tick(cursor, events)

    async def _before(self, cursor: str, start: str) -> set[tuple[object, ...]]:
        """What the reader, where it was under way already, will tell of the time before a listener began."""
        seen: set[tuple[object, ...]] = set()
        more = cursor != start
        while more:
            events = await self._rd.store.events(cursor, limit=PAGE)
            seen.update(map(_identity, events))
            cursor = events[-1].cursor if events else cursor
            more = len(events) >= PAGE
        return seen

    async def _since(self, cursor: str, *, every: bool) -> AsyncGenerator[Tick, None]:
        """What was missed before the reader's first tick: all of it, or its beginning and that there was more."""
        limit = PAGE if every else TOGETHER + 1
        while not self._closed:
            events = await self._rd.store.events(cursor, limit=limit)
            more = len(events) >= limit
            if not every:
                end = await self.now() if more else events[-1].cursor if events else cursor
                yield Tick(end, events[:TOGETHER], skipped=more)
                return
            cursor = events[-1].cursor if events else cursor
            yield Tick(cursor, events)
            if not more:
                return

    def close(self) -> None:
        """Every stream ends now."""
        self._closed = True
        if self._reader is not None:
            self._reader.cancel()
        for listener in self._listeners:
            listener.end()

    def _add(self, listener: _Listener, start: str) -> str:
        """Its ticks begin before it reads what it has missed, so that nothing falls between the two. Says where."""
        self._listeners.add(listener)
        if self._closed:
            listener.end()
        elif self._reader is None or self._reader.done():
            self._cursor = start
            self._reader = asyncio.create_task(self._read(), name="redrive-feed")
        return self._cursor

    # -- the one reader

    async def _read(self) -> None:
        """Twice a second while somebody listens."""
        self._down = None
        while self._listeners and not self._closed:
            try:
                await self._look()
                await self._look_at_breakers()
                self._looked += 1
                self._failing = False
            except Exception as error:  # noqa: BLE001 - told once; the next look may succeed
                self._tell(error)
            if _server_leaves():
                self.close()
                return
            await asyncio.sleep(self._pace)

    def _tell(self, error: Exception) -> None:
        if not self._failing:
            log.warning("the feed cannot read the store and tries on: %r", error)
        self._failing = True

    async def _look(self) -> None:
        """Hand out what is new."""
        if any(listener.every for listener in self._listeners):
            await self._look_at_all()
        elif events := await self._rd.store.events(self._cursor, limit=TOGETHER + 1):
            self._give(Tick(await self.now() if len(events) > TOGETHER else events[-1].cursor, events))

    async def _look_at_breakers(self) -> None:
        """Hand out those that opened or closed since the last look, in whatever process that happened."""
        breakers = await self._rd.breakers()
        before, self._down = self._down, {breaker.key: breaker.down for breaker in breakers}
        if before is None:
            return
        if changed := [breaker for breaker in breakers if breaker.down != before.get(breaker.key, False)]:
            self._give(Tick(self._cursor, [], breakers=changed))

    async def _look_at_all(self) -> None:
        """Page by page; those who want only a glimpse get the first page's."""
        shown = False
        while events := await self._rd.store.events(self._cursor, limit=PAGE):
            self._give(Tick(events[-1].cursor, events), only_every=shown)
            shown = True
            if len(events) < PAGE:
                break
            await asyncio.sleep(0)  # who keeps up has a turn between two pages

    def _give(self, tick: Tick, *, only_every: bool = False) -> None:
        self._cursor = tick.cursor
        for listener in tuple(self._listeners):
            if listener.every or not only_every:
                listener.give(self._looked + 1, tick)


def _identity(event: Event) -> tuple[object, ...]:
    """The same move, however the cursor beside it was reached."""
    return (event.job_id, event.move, event.at, event.run, event.attempts)


def _server_leaves() -> bool:
    """Whether the server around us was told to stop. It waits for open streams, so they must end by themselves."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
