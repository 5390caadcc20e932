"""What happens, as it happens: server-sent events, each a CloudEvent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
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
from redrive.retries.breaker import Breaker, named, trouble

if TYPE_CHECKING:
    from redrive.doors.web.feed import Tick

AGAIN: Final = 1_000
"""Milliseconds after which a browser comes back."""
PLACE: Final = r"^[0-9]{1,15}\.[0-9]{1,15}$"
Place = Annotated[str, Meta(pattern=PLACE)]


class EventQuery(schemas.Taken):
    """What to hear of, and from where on."""

    after: Annotated[Place, Meta(description="The id of the last event that was seen; as Last-Event-ID.")] | None = None
    every: Annotated[bool, Meta(description="All of them, however many there are.")] = False
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


class Turned(schemas.Given):
    """What an event says of a breaker."""

    breaker: str
    state: str
    cause: str
    message: str


class BreakerEvent(schemas.Given):
    """A breaker that opened or closed, in the shape of CloudEvents 1.0; sent under the name `breaker`."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: schemas.Instant
    datacontenttype: str
    data: Turned


def breaker_event(breaker: Breaker) -> BreakerEvent:
    what = "opened" if breaker.down else "closed"
    down = f"{trouble(breaker)}: its jobs are parked"
    said = down if breaker.down else "answers again: its parked jobs come back"
    at = iso(breaker.since) or ""
    data = Turned(breaker=breaker.key, state=breaker.state, cause=breaker.cause, message=f"{named(breaker.key)} {said}")
    return BreakerEvent(
        specversion="1.0", id=f"{breaker.key}.{what}.{at}", source="/redrive", type=f"dev.redrive.breaker.{what}",
        subject=breaker.key, time=at, datacontenttype="application/json", data=data,
    )  # fmt: skip


async def stream(asked: Asked) -> Any:
    query: EventQuery = asked.query
    place = query.after or asked.headers.get("last-event-id") or None  # some clients send an empty one at first
    await (asked.feed.now() if place is None else asked.feed.check(place))  # what cannot be read is told with a status

    def wanted(event: Event) -> bool:
        return query.queue in (None, event.queue) and query.job in (None, event.job_id)

    async def blocks() -> AsyncGenerator[bytes, None]:
        yield b"retry: %d\n\n" % AGAIN
        async with aclosing(asked.feed.listen(place, every=query.every)) as ticks:
            async for tick in ticks:
                breakers = tick.breakers if query.job is None and query.queue is None else []
                yield written(tick, [event for event in tick.events if wanted(event)], breakers)

    return Stream(blocks())


def written(tick: Tick, events: list[Event], breakers: Sequence[Breaker] = ()) -> bytes:
    """The tick's events, and at its end the cursor, so that a client that comes back goes on exactly there."""
    lines = [_block(event) for event in events]
    lines += [b"event: breaker\ndata: %b\n\n" % msgspec.json.encode(breaker_event(breaker)) for breaker in breakers]
    if tick.skipped:
        lines.append(b"event: skipped\nid: %b\ndata: {}\n\n" % tick.cursor.encode())
    elif not events or events[-1].cursor != tick.cursor:
        lines.append(b"id: %b\n\n" % tick.cursor.encode())
    return b"".join(lines)


@lru_cache(maxsize=1024)
def _block(event: Event) -> bytes:
    """Made once for all who listen."""
    return b"id: %b\ndata: %b\n\n" % (event.cursor.encode(), msgspec.json.encode(cloud_event(event)))


def sent(event: Any) -> dict[str, Any]:
    """The schema of one block of the stream, by its fields; a comment (`: still here`) has none."""
    place = {"type": "string", "pattern": PLACE, "description": "Where the stream goes on: send it as Last-Event-ID."}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": event}
    skipped = {"event": {"const": "skipped"}, "id": place, "data": {"const": "{}"}}
    breaker = {"event": {"const": "breaker"}, "data": data | {"contentSchema": _inline(BreakerEvent)}}
    return {
        "description": "One block of the stream: a move of a job; a breaker that opened or closed; moves that were "
        "skipped; the place that was reached; or after how many milliseconds to come back.",
        "oneOf": [
            _block_of("A move of a job. It has no event name.", {"id": place, "data": data}),
            _block_of("A breaker opened or closed, in whatever process.", breaker),
            _block_of("Moves were skipped: ask for the jobs themselves.", skipped),
            _block_of("Nothing for this listener up to here.", {"id": place}),
            _block_of("The first block.", {"retry": {"const": str(AGAIN)}}),
        ],
    }


def _inline(struct: type[schemas.Given]) -> dict[str, Any]:
    """The schema of a struct without references: a block is described in one place."""
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    inner = {name: _inline(kind) if isinstance(kind, type) and issubclass(kind, schemas.Given) else {"type": "string"}
             for name, kind in fields.items()}  # fmt: skip
    return {"type": "object", "properties": inner, "required": sorted(fields)}


def _block_of(about: str, fields: dict[str, Any]) -> dict[str, Any]:
    shape = {"type": "object", "properties": fields, "required": sorted(fields), "additionalProperties": False}
    return {"description": about, **shape}


ROUTES: Final = (
    Route(
        "GET", "/v1/events", stream, "What happens to jobs, in this process and others, as server-sent events.",
        CloudEvent, EventQuery, media=MEDIA, block=sent,
        headers={"Last-Event-ID": "The id of the last event that was seen: the stream goes on after it."},
    ),
)  # fmt: skip
