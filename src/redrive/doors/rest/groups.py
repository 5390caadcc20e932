"""Error groups: one kind of failure, its life, and what a person decides about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from msgspec import Meta
from msgspec.structs import asdict

from redrive.core.view import view
from redrive.deadletters.group import GroupView, Status
from redrive.deadletters.new_groups import New
from redrive.doors.rest.answers import cut, shape, some_of
from redrive.doors.rest.inputs import ByWhom, Later, LimitQuery, Name, Saying, Text, Words
from redrive.doors.rest.route import ApiRequest, Routes
from redrive.doors.web.problems import missing

routes: Final = Routes()
ONE: Final = "/v1/groups/{fingerprint}"
OUT: Final = shape(GroupView)
SOME: Final = some_of(GroupView)


class GroupQuery(LimitQuery):
    status: Status | None = None
    new: Annotated[New, Meta(description="Only those since the last deploy, or of the last hour.")] | None = None
    queue: Words | None = None
    task: Words | None = None
    agent: Words | None = None
    detail: Words | None = None
    error_class: Words | None = None


class GroupResolving(Saying):
    """The failure is cured; in a version, where one is named."""

    in_version: Name | None = None


class Ignoring(Saying):
    """Known, and may go on: for so long, up to so many an hour, for so many more. Without any, until reopened."""

    seconds: Later | None = None
    rate: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    count: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class Noting(ByWhom, kw_only=True):
    text: Text


@routes.get("/v1/groups", SOME, GroupQuery)
@routes.get("/v1/dead-letters/groups", SOME, GroupQuery)
async def list_groups(request: ApiRequest) -> Any:
    """Lists the error groups of the dead letters, unresolved ones first."""
    query = asdict(request.query)
    limit = query.pop("limit")
    return cut(await request.rd.groups.list(limit=limit + 1, **query), limit)


@routes.get(ONE, OUT)
async def show_group(request: ApiRequest) -> Any:
    """Shows one group: what was tried, its latest dead letters."""
    return view(await request.rd.groups.show(await _fingerprint(request)))


DECISIONS: Final = {
    "resolve": {"does": "Marks a group as cured; a notice is sent if the failure comes back.", "body": GroupResolving},
    "ignore": {"does": "Ignores a group: its failure is known and may go on.", "body": Ignoring},
    "reopen": {"does": "Marks a group as unresolved again.", "body": Saying},
    "note": {"does": "Adds a note to a group.", "body": Noting},
}


@routes.add_each("POST", ONE, DECISIONS, answer=OUT)
async def settle(verb: str, request: ApiRequest) -> Any:
    """Records what a person decides about a group, or notes."""
    fields = request.fields
    if (seconds := fields.pop("seconds", None)) is not None:
        fields["until"] = timedelta(seconds=seconds)
    return view(await getattr(request.rd.groups, verb)(await _fingerprint(request), **fields))


async def _fingerprint(request: ApiRequest) -> str:
    """Finds the group that the path names by its fingerprint or the beginning of it; 404 where there is none."""
    with missing("fingerprint"):
        return (await request.rd.groups.find(request.path["fingerprint"])).fingerprint
