"""Sessions: what they are told, what they have agreed to, and what they cost."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from redrive.core.consent import Grant
from redrive.core.job import Usage
from redrive.core.notice import Notice
from redrive.core.view import view
from redrive.doors.rest import schemas
from redrive.doors.rest.shapes import listed, many, shape
from redrive.doors.rest.showing import cut
from redrive.doors.rest.table import WHO, Asked, Route
from redrive.doors.web.problems import missing


class InboxQuery(schemas.OneJob):
    unread: Annotated[bool, Meta(description="Only what was not read yet.")] = True
    limit: schemas.Limit = 100


class NewGrant(schemas.Taken):
    """Yes to a task, or to all tasks with a label. A blanket one covers first runs only, never replays."""

    scope: schemas.Name
    by: schemas.Name = WHO
    agent: schemas.Name | None = None
    expires: schemas.Span | None = None
    blanket: bool = False
    why: schemas.Text | None = None


async def inbox(asked: Asked) -> Any:
    query: InboxQuery = asked.query
    found = await asked.rd.sessions.inbox(asked.path["session"], unread=query.unread, limit=query.limit + 1)
    return cut(found, query.limit, secrets=query.secrets)


async def acknowledge(asked: Asked) -> Any:
    with missing("notice_id"):
        read = await asked.rd.sessions.acknowledge(asked.path["session"], asked.path["notice"])
    return view(read)


async def grants(asked: Asked) -> Any:
    return {"items": view(await asked.rd.sessions.grants(asked.path["session"]), secrets=True)}


async def grant(asked: Asked) -> Any:
    said: NewGrant = asked.body
    how: dict[str, Any] = {"agent": said.agent, "expires": said.expires, "blanket": said.blanket, "why": said.why}
    return view(await asked.rd.sessions.grant(asked.path["session"], said.scope, by=said.by, **how), secrets=True)


async def revoke(asked: Asked) -> Any:
    with missing("grant_id"):
        return view(await asked.rd.sessions.revoke(asked.path["session"], asked.path["grant"]), secrets=True)


async def costs(asked: Asked) -> Any:
    return view(await asked.rd.sessions.costs(asked.path["session"]))


OF: Final = "/v1/sessions/{session:path}"
ROUTES: Final = (
    Route("GET", f"{OF}/inbox", inbox, "What a session is told.", many(Notice), InboxQuery),
    Route(
        "POST",
        f"{OF}/inbox/{{notice}}/acknowledge",
        acknowledge,
        "It was read.",
        shape(Notice),
        body=schemas.Taken,
    ),
    Route("GET", f"{OF}/grants", grants, "What a session has agreed to.", listed(Grant)),
    Route("POST", f"{OF}/grants", grant, "Agree to a task, or to a label.", shape(Grant), body=NewGrant, status=201),
    Route(
        "POST",
        f"{OF}/grants/{{grant}}/revoke",
        revoke,
        "It counts no more.",
        shape(Grant),
        body=schemas.Taken,
    ),
    Route("GET", f"{OF}/costs", costs, "What a session's jobs have spent.", shape(Usage)),
)
