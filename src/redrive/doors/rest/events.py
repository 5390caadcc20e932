"""What happens, as it happens: server-sent events, each a CloudEvent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from redrive.core.job import State, iso
from redrive.core.redact import redact_text
from redrive.core.store import Event
from redrive.doors.rest import schemas
from redrive.doors.rest.table import Asked, Route
from redrive.doors.web.stream import MEDIA, Stream

if TYPE_CHECKING:
    from redrive.doors.web.feed import Tick

AGAIN: Final = 1_000
"""Milliseconds after which a browser comes back."""
Place = Annotated[str, Meta(pattern=r"^[0-9]{1,15}\.[0-9]{1,15}$")]


class EventQuery(schemas.Taken):
    """What to hear of, and from where on."""

    after: Annotated[Place, Meta(description="The id of the last event that was seen; as Last-Event-ID.")] | None = None
    every: Annotated[bool, Meta(description="All of them, also where there are more than anybody reads.")] = False
    queue: schemas.Words | None = None
    job: schemas.Words | None = None


class Moved(schemas.Given):
    """What an event says of a job."""

    queue: str
    task: str
    state: State
    move: str
    run: int
    attempts: int
    who: str | None
    why: str | None


class CloudEvent(schemas.Given):
    """One committed move of a job, in the shape of CloudEvents 1.0."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: schemas.Instant
    datacontenttype: str
    data: Moved


def cloud_event(event: Event) -> CloudEvent:
    why = redact_text(event.why) if event.why else event.why
    data = Moved(
        queue=event.queue, task=event.task, state=event.state, move=event.move, run=event.run,
        attempts=event.attempts, who=event.who, why=why,
    )  # fmt: skip
    return CloudEvent(
        specversion="1.0", id=event.cursor, source="/redrive", type=f"dev.redrive.job.{event.move}",
        subject=event.job_id, time=iso(event.at) or "", datacontenttype="application/json", data=data,
    )  # fmt: skip


async def stream(asked: Asked) -> Any:
    query: EventQuery = asked.query
    place = query.after or asked.headers.get("last-event-id") or None  # some clients send an empty one at first
    await (asked.feed.now() if place is None else asked.feed.check(place))  # what cannot be read is told with a status

    def wanted(event: Event) -> bool:
        return query.queue in (None, event.queue) and query.job in (None, event.job_id)

    async def blocks() -> AsyncGenerator[bytes, None]:
        yield b"retry: %d\n" % AGAIN
        async with aclosing(asked.feed.listen(place, every=query.every)) as ticks:
            async for tick in ticks:
                yield written(tick, [event for event in tick.events if wanted(event)])

    return Stream(blocks())


def written(tick: Tick, events: list[Event]) -> bytes:
    """The tick's events, and at its end the cursor, so that who comes back goes on exactly there."""
    lines = [_block(event) for event in events]
    if tick.skipped:
        lines.append(b"event: skipped\nid: %b\ndata: {}\n\n" % tick.cursor.encode())
    elif not events or events[-1].cursor != tick.cursor:
        lines.append(b"id: %b\n\n" % tick.cursor.encode())
    return b"".join(lines)


@lru_cache(maxsize=1024)
def _block(event: Event) -> bytes:
    """Made once for all who listen."""
    return b"id: %b\ndata: %b\n\n" % (event.cursor.encode(), msgspec.json.encode(cloud_event(event)))


ROUTES: Final = (
    Route(
        "GET", "/v1/events", stream, "What happens to jobs, in this process and others, as server-sent events.",
        CloudEvent, EventQuery, media=MEDIA,
        headers={"Last-Event-ID": "The id of the last event that was seen: the stream goes on after it."},
    ),
)  # fmt: skip
