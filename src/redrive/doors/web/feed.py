"""The live feed: one reader of committed moves for all listeners, and the answer that streams them.

The feed reads the store, not this process's bus, so it sees workers in other processes within a second. The reader runs
while there are listeners. A tick shows at most a hundred moves and says that more were skipped; `every=True` gets all.
A listener that does not keep up is dropped, and may come back with the last cursor it has seen.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core.store import Event
from redrive.doors.web.tokens import LET_IN
from redrive.retries.breaker import Breaker

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from redrive.api.redrive import Redrive

log = logging.getLogger("redrive.feed")
PACE: Final = 0.5
"""Seconds between two reads of the store."""
TOGETHER: Final = 100
"""Moves that a tick shows at most, unless a listener wants every one."""
PAGE: Final = 1_000
BEHIND: Final = 20
"""Ticks that may wait for a listener before it is dropped."""


class Tick(msgspec.Struct, frozen=True):
    """The moves since the last tick. `cursor` continues after them; `skipped`: there were more than are shown."""

    cursor: str
    events: Sequence[Event]
    skipped: bool = False
    breakers: list[Breaker] = []
    """The breakers that opened or closed, as they are now."""


class _Listener:
    """Keeps the ticks that wait for one listener."""

    def __init__(self, *, every: bool) -> None:
        self.every = every
        self.ticks: asyncio.Queue[tuple[int, Tick] | None] = asyncio.Queue()
        """Each with the number of the read that found it."""
        self.dropped = False

    def give(self, number: int, tick: Tick) -> None:
        if self.dropped:
            return
        if self.ticks.qsize() >= BEHIND:
            self.dropped = True
            log.warning("a listener of the feed does not keep up and is dropped; it may come back with its cursor")
            self.ticks.put_nowait(None)  # after the ticks before: the listener can go on from there
        else:
            self.ticks.put_nowait((number, tick if self.every else _shorten(tick)))

    def end(self) -> None:
        """Ends the listener at once and drops the ticks that wait for it."""
        self.dropped = True
        while self.ticks.qsize():
            self.ticks.get_nowait()
        self.ticks.put_nowait(None)


def _shorten(tick: Tick) -> Tick:
    if len(tick.events) <= TOGETHER:
        return tick
    return Tick(tick.cursor, tick.events[:TOGETHER], skipped=True, breakers=tick.breakers)


class Feed:
    """Gives ticks to listeners: `async for tick in feed.listen()`."""

    def __init__(self, rd: Redrive, *, pace: float = PACE) -> None:
        self._rd = rd
        self._pace = pace
        self._listeners: set[_Listener] = set()
        self._reader: asyncio.Task[None] | None = None
        self._cursor = ""
        """Where the reader's next tick begins."""
        self._reads = 0
        """How often the reader has read to the end."""
        self._down: dict[str, bool] | None = None
        """Which breakers were down at the last read; None before the first."""
        self._closed = False
        self._failing = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def now(self) -> str:
        """Reads the cursor of this moment: a listener that begins there gets nothing from before."""
        return (await self._rd.jobs.events(None))[-1].cursor

    async def check(self, cursor: str) -> None:
        """Raises InvalidInput where this is no cursor of the feed."""
        await self._rd.jobs.events(cursor, limit=1)

    async def listen(self, after: str | None = None, *, every: bool = False) -> AsyncGenerator[Tick, None]:
        """Gives ticks from now on, or after a cursor, until the feed is closed. The first says where it begins."""
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
            last = self._reads + 2  # the read after the present one is the last that can find any of these
            while not self._closed and (waiting := await listener.ticks.get()) is not None:
                number, tick = waiting
                if number > last:
                    seen.clear()
                events = [event for event in tick.events if _identity(event) not in seen] if seen else tick.events
                if events or tick.skipped or tick.breakers:
                    yield Tick(tick.cursor, events, tick.skipped, tick.breakers)
        finally:
            self._listeners.discard(listener)

    async def _history(self, cursor: str) -> AsyncGenerator[Tick, None]:
        """Reads whole pages of missed moves before any tick waits for the listener: there may be many."""
        while not self._closed and len(events := await self._rd.jobs.events(cursor, limit=PAGE)) >= PAGE:
            cursor = events[-1].cursor
            yield Tick(cursor, list(events))

    async def _before(self, cursor: str, start: str) -> set[tuple[object, ...]]:
        """Identifies the moves from before a listener began that a running reader will still give to it."""
        seen: set[tuple[object, ...]] = set()
        more = cursor != start
        while more:
            events = await self._rd.jobs.events(cursor, limit=PAGE)
            seen.update(map(_identity, events))
            cursor = events[-1].cursor if events else cursor
            more = len(events) >= PAGE
        return seen

    async def _since(self, cursor: str, *, every: bool) -> AsyncGenerator[Tick, None]:
        """Reads the moves missed before the reader's first tick: all, or the first hundred and that there were more."""
        limit = PAGE if every else TOGETHER + 1
        while not self._closed:
            events = await self._rd.jobs.events(cursor, limit=limit)
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
        """Ends every stream now."""
        self._closed = True
        if self._reader is not None:
            self._reader.cancel()
        for listener in self._listeners:
            listener.end()

    def _add(self, listener: _Listener, start: str) -> str:
        """Registers a listener before it reads the moves it has missed, so that none is lost between; says where."""
        self._listeners.add(listener)
        if self._closed:
            listener.end()
        elif self._reader is None or self._reader.done():
            self._cursor = start
            self._reader = asyncio.create_task(self._read(), name="redrive-feed")
        return self._cursor

    # -- the one reader

    async def _read(self) -> None:
        """Reads the store twice a second while there are listeners."""
        self._down = None
        while self._listeners and not self._closed:
            try:
                await self._read_moves()
                await self._read_breakers()
                self._reads += 1
                self._failing = False
            except Exception as error:  # noqa: BLE001 - logged once; the next read may succeed
                self._warn(error)
            if _server_stops():
                self.close()
                return
            await asyncio.sleep(self._pace)

    def _warn(self, error: Exception) -> None:
        if not self._failing:
            log.warning("the feed cannot read the store and keeps trying: %r", error)
        self._failing = True

    async def _read_moves(self) -> None:
        """Gives new moves to the listeners."""
        if any(listener.every for listener in self._listeners):
            await self._read_all()
        elif events := await self._rd.jobs.events(self._cursor, limit=TOGETHER + 1):
            self._give(Tick(await self.now() if len(events) > TOGETHER else events[-1].cursor, events))

    async def _read_breakers(self) -> None:
        """Gives the breakers that opened or closed since the last read, in any process."""
        breakers = await self._rd.breakers()
        before, self._down = self._down, {breaker.key: breaker.down for breaker in breakers}
        if before is None:
            return
        if changed := [breaker for breaker in breakers if breaker.down != before.get(breaker.key, False)]:
            self._give(Tick(self._cursor, [], breakers=changed))

    async def _read_all(self) -> None:
        """Gives all new moves page by page; listeners that do not want every move get the first page."""
        shown = False
        while events := await self._rd.jobs.events(self._cursor, limit=PAGE):
            self._give(Tick(events[-1].cursor, events), only_every=shown)
            shown = True
            if len(events) < PAGE:
                break
            await asyncio.sleep(0)  # listeners that keep up have a turn between two pages

    def _give(self, tick: Tick, *, only_every: bool = False) -> None:
        self._cursor = tick.cursor
        for listener in tuple(self._listeners):
            if listener.every or not only_every:
                listener.give(self._reads + 1, tick)


def _identity(event: Event) -> tuple[object, ...]:
    """Identifies a move without its cursor, which differs with the way it was read."""
    return (event.job_id, event.move, event.at, event.run, event.attempts)


def _server_stops() -> bool:
    """Tells whether the server around the feed was told to stop: it waits for open streams, so they must end."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


# -- the answer

BEAT: Final = 15.0
"""Seconds of silence after which a comment shows that the stream still lives."""
SEND_SECONDS: Final = 30.0
"""Seconds after which a client that reads nothing is taken to be gone."""
MEDIA: Final = "text/event-stream"
LetIn = Callable[[], Awaitable[bool]]
_HEADERS: Final = [(b"content-type", MEDIA.encode()), (b"x-accel-buffering", b"no"), (b"cache-control", b"no-store")]


class Stream:
    """Answers with server-sent events until the source ends, or the client leaves, stalls or is shut out."""

    def __init__(self, blocks: AsyncGenerator[bytes, None]) -> None:
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._blocks):
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            if scope["method"] != "HEAD" and not await self._send_until_left(receive, send, scope[LET_IN]):
                return  # the server closes the connection; one more byte would wait as well
        await send({"type": "http.response.body", "body": b""})

    async def _send_until_left(self, receive: Receive, send: Send, let_in: LetIn) -> bool:
        """Sends blocks until the client leaves; False where it has stopped reading."""
        pumping, leaving = asyncio.create_task(self._pump(send, let_in)), asyncio.create_task(wait_until_left(receive))
        try:
            await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pumping, leaving):
                task.cancel()
            await asyncio.gather(pumping, leaving, return_exceptions=True)
        error = None if pumping.cancelled() else pumping.exception()
        if error is not None and not isinstance(error, TimeoutError):
            raise error
        if error is not None:
            log.warning("a listener has read nothing for %g s and is dropped", SEND_SECONDS)
        return error is None

    async def _pump(self, send: Send, let_in: LetIn) -> None:
        """Sends block by block, and a comment after a long silence. A token may have been revoked meanwhile."""
        following: asyncio.Task[bytes] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(self._blocks))
                done, _ = await asyncio.wait({following}, timeout=BEAT)
                if not await let_in():
                    return
                if not done:
                    await _send_block(send, b": still here\n\n")
                    continue
                await _send_block(send, following.result())
                following = None
        except StopAsyncIteration:
            return
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


async def _send_block(send: Send, body: bytes) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def wait_until_left(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        continue
