"""The stream that tells open pages to refresh, and the feed of what has just happened."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from redrive.doors.dashboard import words
from redrive.doors.web.feed import Stream

if TYPE_CHECKING:
    from redrive.core.store import Event
    from redrive.doors.dashboard.requests import PageRequest
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
_ANY: Final = "any-job"


async def stream_ticks(request: PageRequest) -> Any:
    """Send ticks while a page is open. The store is not asked while no page is open."""
    after = request.headers.get("last-event-id") or request.query_params.get("after") or None
    if after is not None:
        await request.site.feed.check(after)
    return Stream(_encode_ticks(request, after))


async def _encode_ticks(request: PageRequest, after: str | None) -> AsyncGenerator[bytes, None]:
    yield b"retry: 2000\n\n"
    async with aclosing(request.site.feed.listen(after)) as ticks:
        async for tick in ticks:
            yield _encode_tick(request, tick)


def _encode_tick(request: PageRequest, tick: Tick) -> bytes:
    """Encode a tick once for all pages that are open under the same prefix."""
    site, key = request.site, (request.scope.get("root_path"), tick.cursor, len(tick.events), tick.skipped)
    if site.last_tick is None or site.last_tick[0] != key:
        site.drop_stale(tick)
        moves = sorted((event for event in tick.events if event.job_id), key=lambda event: event.at)
        lines = _describe_moves(request, moves[-FEED:])
        body = msgspec.json.encode({"events": lines, "skipped": tick.skipped or len(tick.events) > FEED})
        site.last_tick = key, b"id: %s\nevent: tick\ndata: %s\n\n" % (tick.cursor.encode(), body)
    return site.last_tick[1]


async def read_latest_moves(request: PageRequest) -> tuple[list[dict[str, Any]], str]:
    """Read what the feed shows before anything happens, newest first, and the cursor where the stream continues."""
    events = await request.rd.jobs.latest_moves(FEED)
    return _describe_moves(request, events), events[0].cursor if events else BEGINNING


def _describe_moves(request: PageRequest, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Describe moves for the feed on a page. The address of a job is looked up once for all of them."""
    pattern = request.address("job", id=_ANY)
    return [_describe_move(event, pattern.replace(_ANY, quote(event.job_id, safe=""))) for event in events]


def _describe_move(event: Event, href: str) -> dict[str, Any]:
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
