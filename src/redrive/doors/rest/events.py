"""The live feed over REST: server-sent events, each a CloudEvent."""

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
from redrive.doors.rest.answers import Instant, answer
from redrive.doors.rest.inputs import RequestFields, Words
from redrive.doors.rest.route import ApiRequest, Routes
from redrive.doors.web.feed import MEDIA, Stream
from redrive.retries.breaker import Breaker, describe_state, name_of_key

if TYPE_CHECKING:
    from redrive.doors.web.feed import Tick

routes: Final = Routes()
AGAIN: Final = 1_000
"""Milliseconds after which a browser comes back."""
PLACE: Final = r"^[0-9]{1,15}\.[0-9]{1,15}$"
Place = Annotated[str, Meta(pattern=PLACE, description="The id of the last event that was seen; as Last-Event-ID.")]
Every = Annotated[bool, Meta(description="All of them, however many there are.")]
LAST_EVENT: Final = {"Last-Event-ID": "The id of the last event that was seen: the stream goes on after it."}


class EventQuery(RequestFields):
    """Which events, and from where on."""

    after: Place | None = None
    every: Every = False
    queue: Words | None = None
    job: Words | None = None


# -- the events

MOVE: Final = ("queue", "task", "state", "move", "run", "attempts", "who", "why")
_TEXT: Final = Annotated[str | None, Meta()]
MoveOut: Any = answer(
    "Moved",
    "What an event says of a job.",
    queue=str,
    task=str,
    state=State,
    move=str,
    run=int,
    attempts=int,
    who=_TEXT,
    why=_TEXT,
)
_TEXTS: Final = ("specversion", "id", "source", "type", "subject")
CloudEvent: Any = answer(
    "CloudEvent",
    "One committed move of a job, in the shape of CloudEvents 1.0.",
    **dict.fromkeys(_TEXTS, str),
    time=Instant,
    datacontenttype=str,
    data=MoveOut,
)
BREAKER: Final = ("breaker", "state", "cause", "message")


def write_move(event: Event) -> dict[str, Any]:
    """Writes a move of a job as a CloudEvent."""
    data = {name: getattr(event, name) for name in MOVE}
    data["why"] = redact_text(event.why) if event.why else event.why
    return _envelope(event.cursor, f"job.{event.move}", event.job_id, event.at, data)


def write_breaker(breaker: Breaker) -> dict[str, Any]:
    """Writes a breaker that opened or closed as a CloudEvent; it is sent under the name `breaker`."""
    what = "opened" if breaker.down else "closed"
    parked = f"{describe_state(breaker)}: its jobs are parked"
    message = f"{name_of_key(breaker.key)} {parked if breaker.down else 'answers again: its parked jobs come back'}"
    data = {"breaker": breaker.key, "state": breaker.state, "cause": breaker.cause, "message": message}
    id = f"{breaker.key}.{what}.{iso(breaker.since) or ''}"
    return _envelope(id, f"breaker.{what}", breaker.key, breaker.since, data)


def _envelope(id: str, kind: str, subject: str, at: float | None, data: dict[str, Any]) -> dict[str, Any]:
    texts = dict(zip(_TEXTS, ("1.0", id, "/redrive", f"dev.redrive.{kind}", subject), strict=True))
    return {**texts, "time": iso(at) or "", "datacontenttype": "application/json", "data": data}


# -- the stream


def describe_block(event: Any) -> dict[str, Any]:
    """Makes the schema of one block of the stream, by its fields; a comment (`: still here`) has none."""
    place = {"type": "string", "pattern": PLACE, "description": "Where the stream goes on: send it as Last-Event-ID."}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": event}
    skipped = {"event": {"const": "skipped"}, "id": place, "data": {"const": "{}"}}
    breaker = {"event": {"const": "breaker"}, "data": data | {"contentSchema": _describe_breaker()}}
    return {
        "description": "One block of the stream: a move of a job; a breaker that opened or closed; moves that were "
        "skipped; the place that was reached; or after how many milliseconds to come back.",
        "oneOf": [
            _describe_fields("A move of a job. It has no event name.", {"id": place, "data": data}),
            _describe_fields("A breaker opened or closed, in any process.", breaker),
            _describe_fields("Moves were skipped: ask for the jobs themselves.", skipped),
            _describe_fields("Nothing for this listener up to here.", {"id": place}),
            _describe_fields("The first block.", {"retry": {"const": str(AGAIN)}}),
        ],
    }


def _describe_breaker() -> dict[str, Any]:
    """Makes the schema of a breaker's event without references: a block is described in one place."""
    data = {"type": "object", "properties": _all_texts(BREAKER), "required": sorted(BREAKER)}
    fields = _all_texts(CloudEvent.__struct_fields__) | {"data": data}
    return {"type": "object", "properties": fields, "required": sorted(fields)}


def _all_texts(names: Sequence[str]) -> dict[str, Any]:
    return {name: {"type": "string"} for name in names}


def _describe_fields(says: str, fields: dict[str, Any]) -> dict[str, Any]:
    shape = {"type": "object", "properties": fields, "required": sorted(fields), "additionalProperties": False}
    return {"description": says, **shape}


@routes.get("/v1/events", CloudEvent, EventQuery, media=MEDIA, block=describe_block, headers=LAST_EVENT)
async def stream(request: ApiRequest) -> Any:
    """Streams what happens to jobs, in this process and others, as server-sent events."""
    query, feed = request.query, request.feed
    place = query.after or request.headers.get("last-event-id") or None  # some clients send an empty one at first
    await (feed.now() if place is None else feed.check(place))  # an unreadable store or cursor gets its own status

    def is_wanted(event: Event) -> bool:
        return query.queue in (None, event.queue) and query.job in (None, event.job_id)

    async def blocks() -> AsyncGenerator[bytes, None]:
        yield b"retry: %d\n\n" % AGAIN
        async with aclosing(feed.listen(place, every=query.every)) as ticks:
            async for tick in ticks:
                breakers = tick.breakers if query.job is None and query.queue is None else []
                yield write_tick(tick, [event for event in tick.events if is_wanted(event)], breakers)

    return Stream(blocks())


def write_tick(tick: Tick, events: list[Event], breakers: Sequence[Breaker] = ()) -> bytes:
    """Writes the tick's events, and at its end the cursor, so that a client that comes back goes on exactly there."""
    lines = [_write_block(event) for event in events]
    lines += [b"event: breaker\ndata: %b\n\n" % msgspec.json.encode(write_breaker(breaker)) for breaker in breakers]
    if tick.skipped:
        lines.append(b"event: skipped\nid: %b\ndata: {}\n\n" % tick.cursor.encode())
    elif not events or events[-1].cursor != tick.cursor:
        lines.append(b"id: %b\n\n" % tick.cursor.encode())
    return b"".join(lines)


@lru_cache(maxsize=1024)
def _write_block(event: Event) -> bytes:
    """Writes an event once for all listeners."""
    return b"id: %b\ndata: %b\n\n" % (event.cursor.encode(), msgspec.json.encode(write_move(event)))
