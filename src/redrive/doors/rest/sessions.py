"""Sessions: what they are told, what they have agreed to, and what they cost."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from redrive.core.consent import Grant
from redrive.core.job import iso
from redrive.core.redact import redact
from redrive.doors.rest import schemas
from redrive.doors.rest.showing import listed
from redrive.doors.rest.table import WHO, Asked, Route
from redrive.doors.web.problems import missing


class NoticeOut(schemas.Given):
    """One thing that somebody should know. Only what is pending asks for anything."""

    id: str
    kind: str
    level: Literal["acknowledgement", "actionable"]
    audience: Literal["session", "user", "both"]
    title: str
    text: str
    at: schemas.Instant
    queue: str
    task: str
    job_id: str | None
    session_id: str | None
    fingerprint: str | None
    read_at: schemas.Instant | None
    result: Any
    truncated: bool
    status: Literal["pending", "resolved"]
    priority: Literal["high", "normal"]


class Inbox(schemas.Listed):
    """Oldest first."""

    items: list[NoticeOut]


class InboxQuery(schemas.OneJob):
    unread: Annotated[bool, Meta(description="Only what was not read yet.")] = True
    limit: schemas.Limit = 100


class GrantOut(schemas.Given):
    """Somebody said yes."""

    id: str
    session_id: str
    scope: str
    at: schemas.Instant
    by: str
    agent: str | None
    subject: str | None
    job_id: str | None
    expires_at: schemas.Instant | None
    revoked_at: schemas.Instant | None
    blanket: bool
    why: str | None


class Grants(schemas.Given):
    items: list[GrantOut]


class NewGrant(schemas.Taken):
    """Yes to a task, or to all tasks with a label. A blanket one covers first runs only, never replays."""

    scope: schemas.Name
    by: schemas.Name = WHO
    agent: schemas.Name | None = None
    expires: schemas.Span | None = None
    blanket: bool = False
    why: schemas.Text | None = None


class Costs(schemas.Given):
    """What all attempts of the session's jobs have spent."""

    input_tokens: int
    output_tokens: int
    cost: float


def _notice(notice: Any, *, secrets: bool) -> dict[str, Any]:
    body: dict[str, Any] = notice.public()
    return body if secrets else body | {"result": redact(body["result"]), "text": redact(body["text"])}


def _grant(grant: Grant) -> dict[str, Any]:
    times = ("at", "expires_at", "revoked_at")
    return msgspec.structs.asdict(grant) | {name: iso(getattr(grant, name)) for name in times}


async def inbox(asked: Asked) -> Any:
    query: InboxQuery = asked.query
    found = await asked.rd.sessions.inbox(asked.path["session"], unread=query.unread, limit=query.limit + 1)
    return listed(found, query.limit, lambda notice: _notice(notice, secrets=query.secrets))


async def acknowledge(asked: Asked) -> Any:
    with missing("notice_id"):
        read = await asked.rd.sessions.acknowledge(asked.path["session"], asked.path["notice"])
    return _notice(read, secrets=False)


async def grants(asked: Asked) -> Any:
    return {"items": [_grant(grant) for grant in await asked.rd.sessions.grants(asked.path["session"])]}


async def grant(asked: Asked) -> Any:
    said: NewGrant = asked.body
    how: dict[str, Any] = {"agent": said.agent, "expires": said.expires, "blanket": said.blanket, "why": said.why}
    return _grant(await asked.rd.sessions.grant(asked.path["session"], said.scope, by=said.by, **how))


async def revoke(asked: Asked) -> Any:
    with missing("grant_id"):
        return _grant(await asked.rd.sessions.revoke(asked.path["session"], asked.path["grant"]))


async def costs(asked: Asked) -> Any:
    return msgspec.structs.asdict(await asked.rd.sessions.costs(asked.path["session"]))


OF: Final = "/v1/sessions/{session:path}"
ROUTES: Final = (
    Route("GET", f"{OF}/inbox", inbox, "What a session is told.", Inbox, InboxQuery),
    Route(
        "POST",
        f"{OF}/inbox/{{notice}}/acknowledge",
        acknowledge,
        "It was read.",
        NoticeOut,
        body=schemas.Taken,
    ),
    Route("GET", f"{OF}/grants", grants, "What a session has agreed to.", Grants),
    Route("POST", f"{OF}/grants", grant, "Agree to a task, or to a label.", GrantOut, body=NewGrant, status=201),
    Route(
        "POST",
        f"{OF}/grants/{{grant}}/revoke",
        revoke,
        "It counts no more.",
        GrantOut,
        body=schemas.Taken,
    ),
    Route("GET", f"{OF}/costs", costs, "What a session's jobs have spent.", Costs),
)
