"""Error groups: one kind of failure, its life, and what a person says of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from msgspec import Meta

from redrive.core.view import view
from redrive.deadletters.group import GroupView, Status
from redrive.deadletters.new_groups import New
from redrive.doors.rest import schemas
from redrive.doors.rest.shapes import many, shape
from redrive.doors.rest.showing import cut
from redrive.doors.rest.table import WHO, Asked, Route
from redrive.doors.web.problems import missing


class GroupQuery(schemas.Taken):
    status: Status | None = None
    new: Annotated[New, Meta(description="Only those since the last deploy, or of the last hour.")] | None = None
    queue: schemas.Words | None = None
    task: schemas.Words | None = None
    agent: schemas.Words | None = None
    detail: schemas.Words | None = None
    error_class: schemas.Words | None = None
    limit: schemas.Limit = 100


class GroupResolving(schemas.Saying):
    """The failure is cured; in a version, where one is named."""

    in_version: schemas.Name | None = None


class Ignoring(schemas.Saying):
    """Known, and may go on: for so long, up to so many an hour, for so many more. Without any, until reopened."""

    seconds: schemas.Later | None = None
    rate: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    count: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class Noting(schemas.Taken):
    text: schemas.Text
    who: schemas.Name = WHO


async def _named(asked: Asked) -> str:
    with missing("fingerprint"):
        return (await asked.rd.groups.find(asked.path["fingerprint"])).fingerprint


async def list_groups(asked: Asked) -> Any:
    query: GroupQuery = asked.query
    said = {name: getattr(query, name) for name in ("queue", "task", "agent", "detail", "error_class")}
    views = await asked.rd.groups.list(status=query.status, new=query.new, limit=query.limit + 1, **said)
    return cut(views, query.limit)


async def show(asked: Asked) -> Any:
    return view(await asked.rd.groups.show(await _named(asked)))


async def resolve(asked: Asked) -> Any:
    said: GroupResolving = asked.body
    name = await _named(asked)
    return view(await asked.rd.groups.resolve(name, who=said.who, why=said.why, in_version=said.in_version))


async def ignore(asked: Asked) -> Any:
    said: Ignoring = asked.body
    until = None if said.seconds is None else timedelta(seconds=said.seconds)
    how: dict[str, Any] = {"until": until, "rate": said.rate, "count": said.count}
    return view(await asked.rd.groups.ignore(await _named(asked), who=said.who, why=said.why, **how))


async def reopen(asked: Asked) -> Any:
    return view(await asked.rd.groups.reopen(await _named(asked), who=asked.body.who, why=asked.body.why))


async def note(asked: Asked) -> Any:
    return view(await asked.rd.groups.note(await _named(asked), asked.body.text, who=asked.body.who))


ONE: Final = "/v1/groups/{fingerprint}"
OUT: Final = shape(GroupView)
SOME: Final = many(GroupView)
ROUTES: Final = (
    Route("GET", "/v1/dead-letters/groups", list_groups, "The error groups of the dead letters.", SOME, GroupQuery),
    Route("GET", "/v1/groups", list_groups, "The same, under its own name.", SOME, GroupQuery),
    Route("GET", ONE, show, "One group: what was tried, its latest dead letters.", OUT),
    Route(
        "POST", f"{ONE}/resolve", resolve, "Mark a group as cured; you are told if the failure comes back.", OUT,
        body=GroupResolving,
    ),
    Route("POST", f"{ONE}/ignore", ignore, "Known, and may go on.", OUT, body=Ignoring),
    Route("POST", f"{ONE}/reopen", reopen, "Unresolved again.", OUT, body=schemas.Saying),
    Route("POST", f"{ONE}/note", note, "A note for the next reader.", OUT, body=Noting),
)  # fmt: skip
