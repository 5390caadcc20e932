"""What all pages share: the queue that they show, the live feed, recent answers of the store, addresses of pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from starlette.routing import Router

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed, Tick
    from redrive.reports.activity import Activity, AgentLoad
    from redrive.reports.needs import Need
    from redrive.reports.queue_numbers import QueueNumbers

T = TypeVar("T")
MOST_CACHED: Final = 200
CACHE_SECONDS: Final = 0.8
"""How long a number that every page shows is not asked for again: many open pages cost as much as one."""
DAYS_SECONDS: Final = 10.0
"""The same for the last two days by the hour, of which only the last hour still changes."""


class _Cached(NamedTuple):
    """An answer, and whether it stays valid although something has happened since."""

    value: Any
    at: float
    lasts: bool


class Site:
    """Holds what all pages share."""

    def __init__(self, rd: Redrive, feed: Feed) -> None:
        self.rd = rd
        self.feed = feed
        self.router = Router()
        self.last_tick: tuple[object, bytes] | None = None
        """The latest tick, as every open page gets it."""
        self._cache: dict[str, _Cached] = {}
        self._asking: dict[str, asyncio.Future[Any]] = {}
        self._changes = 0
        self._patterns: dict[tuple[str, tuple[str, ...]], str] = {}

    def path(self, name: str, values: dict[str, Any]) -> str:
        """Make the path of a page. The router walks all routes for it, so the pattern is remembered."""
        key = (name, tuple(values))
        if key not in self._patterns:
            self._patterns[key] = str(self.router.url_path_for(name, **{part: f"~{part}~" for part in values}))
        path = self._patterns[key]
        for part, value in values.items():
            path = path.replace(f"~{part}~", quote(str(value), safe="/" if part == "path" else ""))
        return path

    # -- recent answers

    async def read_cached(self, name: str, ask: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """Give the last answer while it is fresh, else ask. With `seconds` an answer may be as old as that.

        Without `seconds` any change in the store makes an answer stale at once. Callers that ask while an answer is on
        its way share that answer: many open pages cost as much as one.
        """
        now = self.rd.clock.monotonic()
        cached = self._cache.get(name)
        if cached is not None and 0 <= now - cached.at < (CACHE_SECONDS if seconds is None else seconds):
            value: T = cached.value
            return value
        asking: asyncio.Future[T] | None = self._asking.get(name)
        if asking is None:
            asking = asyncio.ensure_future(self._ask(name, ask, now, lasts=seconds is not None))
            self._asking[name] = asking
            asking.add_done_callback(partial(self._end_asking, name))
        return await asyncio.shield(asking)  # a caller that leaves early does not cancel the answer of the others

    async def _ask(self, name: str, ask: Callable[[], Awaitable[T]], now: float, *, lasts: bool) -> T:
        changes = self._changes
        value = await ask()
        if len(self._cache) >= MOST_CACHED:
            self._cache.clear()
        if changes == self._changes:  # else something changed meanwhile, and the answer may be older than the change
            self._cache[name] = _Cached(value, now, lasts)
        return value

    def _end_asking(self, name: str, asking: asyncio.Future[Any]) -> None:
        if self._asking.get(name) is asking:
            del self._asking[name]
        if not asking.cancelled():
            asking.exception()  # raised in every caller; read here because no caller may be left

    def drop_stale(self, tick: Tick) -> None:
        """Drop the answers that a tick of the feed makes stale: a page that is told to refresh must show the change."""
        if tick.events:
            self._cache = {name: cached for name, cached in self._cache.items() if cached.lasts}
            self._count_change()

    def drop_all(self) -> None:
        """Drop every answer after an action on a page: the next page shows what the action did."""
        self._cache.clear()
        self._count_change()

    def _count_change(self) -> None:
        self._asking.clear()
        self._changes += 1

    # -- what several pages ask for

    async def queue_numbers(self) -> Sequence[QueueNumbers]:
        return await self.read_cached("numbers", self.rd.numbers)

    async def last_hour(self) -> Activity:
        """Read what went in and out in the last hour, by the minute."""
        return await self.read_cached("minutes", lambda: self.rd.reports.activity(minutes=60))

    async def last_days(self) -> Activity:
        """Read what went in and out in the last two days, by the hour."""
        return await self.read_cached("hours", lambda: self.rd.reports.activity(hours=48), DAYS_SECONDS)

    async def agent_loads(self) -> list[AgentLoad]:
        """Read what every agent has to do, of all that are known or have jobs."""
        return await self.read_cached("loads", self.rd.reports.load)

    async def needs(self) -> list[Need]:
        """Read everything that needs a person, the gravest first."""
        return await self.read_cached("needs", self.rd.needs)
