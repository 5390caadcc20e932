"""The stream that tells open pages to look again, and what has just happened."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import Site, address, form_of, remember_me, site_of
from redrive.doors.web.stream import Stream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.core.store import Event
    from redrive.doors.web.feed import Tick

BEGINNING: Final = "0.0"
FEED: Final = 50
"""Lines that the feed on a page has at most."""
LOOKS: Final = {
    "succeeded": "done",
    "resolved": "done",
    "buried": "dead",
    "imported": "dead",
    "restored": "dead",
    "recalled": "dead",
    "claimed": "running",
    "retried": "retrying",
    "held_back": "held",
    "deferred": "held",
    "cancelled": "discarded",
    "discarded": "discarded",
    "purged": "discarded",
}
"""What a move looks like; the rest looks like waiting."""


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/live", stream, "live"), site.route("/me", me, "me", post=True, role="look")]


async def me(request: Request) -> Response:
    return remember_me(request, (await form_of(request)).text("name"))


async def stream(request: Request) -> Any:
    """Ticks while the page is open; nothing is asked of the store while no page is."""
    after = request.headers.get("last-event-id") or request.query_params.get("after") or None
    if after is not None:
        await site_of(request).feed.check(after)
    return Stream(_ticks(request, after))


async def _ticks(request: Request, after: str | None) -> AsyncGenerator[bytes, None]:
    yield b"retry: 2000\n\n"
    async with aclosing(site_of(request).feed.listen(after)) as ticks:
        async for tick in ticks:
            yield _line(request, tick)


async def latest(request: Request) -> tuple[list[dict[str, Any]], str]:
    """What the feed shows before anything happens, newest first, and the cursor after which the stream goes on."""
    events = await site_of(request).rd.store.latest(FEED)
    return _lines(request, events), events[0].cursor if events else BEGINNING


def _line(request: Request, tick: Tick) -> bytes:
    """Made once for all pages that are open at the same place."""
    site, key = site_of(request), (request.scope.get("root_path"), tick.cursor, len(tick.events), tick.skipped)
    if site.told is None or site.told[0] != key:
        site.note(tick)
        moves = sorted(
            (event for event in tick.events if event.job_id), key=lambda event: event.at
        )  # births lead a tick
        shown = _lines(request, moves[-FEED:])
        body = msgspec.json.encode({"events": shown, "skipped": tick.skipped or len(tick.events) > FEED})
        site.told = key, b"id: %s\nevent: tick\ndata: %s\n\n" % (tick.cursor.encode(), body)
    return site.told[1]


_ANY: Final = "any-job"


def _lines(request: Request, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Looking up an address walks all routes: once for all of them."""
    pattern = address(request, "job", id=_ANY)
    return [_said(event, pattern.replace(_ANY, quote(event.job_id, safe=""))) for event in events]


def _said(event: Event, href: str) -> dict[str, Any]:
    """One move for the feed on a page."""
    return {
        "at": event.at,
        "clock": words.clock_time(event.at),
        "look": LOOKS.get(event.move, "waiting"),
        "words": words.plain(event.move),
        "queue": event.queue,
        "task": event.task,
        "job": event.job_id,
        "href": href,
    }
