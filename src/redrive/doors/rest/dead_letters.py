"""Dead letters: listing, triage of one or many, adding and importing those of other programs, export, purge."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, Union

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from redrive.core.job import Lane
from redrive.core.view import view
from redrive.deadletters.purge import PurgePlan
from redrive.deadletters.triage import Act, Acted
from redrive.deadletters.verbs import NOTE_LIMIT, TABLE, VERBS, Note, Reading, Verb, Word
from redrive.doors.rest.answers import (
    JobOut,
    JobPage,
    answer,
    cut,
    items_of,
    list_of,
    shape,
    show_job,
    show_page,
    some_of,
)
from redrive.doors.rest.inputs import (
    WHO,
    ByWhom,
    Filters,
    JobSelection,
    Key,
    Later,
    Limit,
    Moment,
    Name,
    PageQuery,
    RequestFields,
    Saying,
    Secrets,
    SecretsQuery,
    Text,
)
from redrive.doors.rest.jobs import refuse_large
from redrive.doors.rest.route import ApiRequest, Reply, Routes
from redrive.doors.web.export import MEDIA, answer_export
from redrive.doors.web.problems import missing
from redrive.errors import InvalidPayload

routes: Final = Routes()
ALL: Final = "/v1/dead-letters"
ONE: Final = f"{ALL}/{{id}}"

# -- export and import


class ExportQuery(Filters):
    """Which dead letters."""

    secrets: Secrets = False


class Importing(Saying, kw_only=True):
    """Records of redrive's own form, as an export writes them. Repeating it changes nothing."""

    records: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]
    queue: Name | None = None
    task: Name | None = None
    as_: Literal["dead", "waiting"] = msgspec.field(default="dead", name="as")
    dry_run: bool = False


_COUNTS: Final = ("read", "imported", "updated", "duplicates", "completed", "aside", "closed")
ImportedOut: Any = answer(
    "ImportedOut",
    "What became of every record: `read` is the sum of imported, updated, duplicates, completed and aside.",
    **dict.fromkeys(_COUNTS, int),
    problems=list_of(answer("AsideOut", None, record=int, why=str)),
    dry_run=bool,
)


@routes.get(f"{ALL}/export", str, ExportQuery, media=MEDIA)
async def export(request: ApiRequest) -> Any:
    """Exports dead letters as lines of JSON."""
    return await answer_export(request.rd, await request.filters(request.query), secrets=request.query.secrets)


@routes.post(f"{ALL}/import", ImportedOut, Importing)
async def import_(request: ApiRequest) -> Any:
    """Imports failures of other programs."""
    fields = request.fields
    lines = [msgspec.json.encode(record) for record in fields.pop("records")]
    imported = await request.rd.dead.import_(lines, **fields)
    body = {name: getattr(imported, name) for name in (*_COUNTS, "dry_run")}
    return view(body | {"problems": [{"record": line, "why": why} for line, why in imported.problems]})


# -- listing and adding


class NewLetter(RequestFields):
    """A failure outside redrive. The next one with the same job_id and payload counts in the same dead letter."""

    job_id: Key
    payload: dict[str, Any]
    error: Text
    task: Name | None = None
    queue: Name | None = None
    attempt: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    lane: Lane | None = None
    agent: Name | None = None
    session_id: Name | None = None
    model: Name | None = None
    recommendation: Text | None = None


@routes.get(ALL, JobPage, PageQuery)
async def list_dead_letters(request: ApiRequest) -> Any:
    """Lists dead letters, the latest first, by any filter."""
    query: PageQuery = request.query
    filters = await request.filters(query)
    return show_page(await request.rd.dead.list(limit=query.limit, cursor=query.cursor, **filters))


@routes.post(ALL, JobOut, NewLetter, status=201)
async def add(request: ApiRequest) -> Any:
    """Records a failure that happened elsewhere as a dead letter."""
    job = await request.rd.dead.add(**{name: value for name, value in request.fields.items() if value is not None})
    return Reply(show_job(job), 201, {"location": f"/v1/jobs/{job.id}"})


# -- purging


class PurgeQuery(Filters):
    """Which dead letters. Without a filter, `all=true` is required."""

    all: bool = False


class ConfirmedPurge(PurgeQuery, kw_only=True):
    """Which dead letters, and the token that confirms their count."""

    confirm: Annotated[str, Meta(min_length=1, max_length=200, description="The token of the purge plan.")]
    who: Name = WHO
    why: Text | None = None


@routes.get(f"{ALL}/purge-plan", shape(PurgePlan), PurgeQuery)
async def plan_purge(request: ApiRequest) -> Any:
    """Tells what a purge would remove, and the token for it."""
    filters = await request.filters(request.query)
    return view(await request.rd.dead.purge_plan(all=request.query.all, **filters))


@routes.add("DELETE", ALL, answer("Purged", None, purged=int), query=ConfirmedPurge, errors=(409,), role="purge")
async def purge(request: ApiRequest) -> Any:
    """Removes dead letters for good; their keys stay remembered."""
    query: ConfirmedPurge = request.query
    filters = await request.filters(query)
    how: dict[str, Any] = {name: getattr(query, name) for name in ("who", "why", "confirm", "all")}
    return {"purged": await request.rd.dead.purge(**how, **filters)}


# -- triage: the bodies are made of the table of verbs

Until = Annotated[Moment | Later, Meta(description="An instant with its offset, or seconds from now.")]
_PATCH: Final = "A JSON merge patch (RFC 7396): the fields to change; null removes one."
Patch = Annotated[dict[str, Any], Meta(min_length=1, description=_PATCH)]
TYPES: Final[dict[Reading, Any]] = {
    "name": Name,
    "moment": Until,
    "lane": Lane,
    "text": Annotated[str, Meta(min_length=1, max_length=NOTE_LIMIT, pattern=r"^[^\x00]+$")],
    "input": dict[str, Any],
    "patch": Patch,
}
"""How each kind of word is written in JSON."""
PLANNED: Final = ("redrive", "edit")
"""Verbs that on many are runs with a plan, under /v1/redrives and /v1/dead-letters/edit."""


def _make_body(verb: Verb, *, many: bool = False) -> Any:
    """Makes the type of a verb's body: its words, who and why, and for many which jobs are meant."""
    fields = [_make_field(word) for word in verb.takes(many=many)]
    if many:
        fields += [(field.name, field.type, _default(field)) for field in msgspec.structs.fields(JobSelection)]
    title = verb.name.title().replace("_", "")
    config: dict[str, Any] = {"tag_field": "action", "tag": verb.name, "kw_only": True}
    config |= {"bases": (Saying if verb.why else ByWhom,), "namespace": {"__doc__": verb.says}}
    return msgspec.defstruct(f"Many{title}" if many else title, fields, **config)


def _make_field(word: Word) -> tuple[Any, ...]:
    if word.reading == "effects":
        return word.name, list[str], msgspec.field(default_factory=list)
    return word.name, TYPES[word.reading]


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default


Triage: Any = Union[tuple(map(_make_body, TABLE))]  # noqa: UP007
BulkTriage: Any = Union[  # noqa: UP007
    tuple(_make_body(verb, many=True) for verb in TABLE if verb.many and verb.name not in PLANNED)
]


def _read_verb(body: Any, *, many: bool = False) -> tuple[str, dict[str, Any]]:
    """Reads the name of the verb, and its words, who and why."""
    verb = VERBS[body.__struct_config__.tag]
    words = {word.name: _read_word(word, getattr(body, word.name)) for word in verb.takes(many=many)}
    return verb.name, {"who": body.who, **({"why": body.why} if verb.why else {}), **words}


def _read_word(word: Word, value: Any) -> Any:
    """Reads seconds from now as a duration; an instant stays one."""
    return timedelta(seconds=value) if word.reading == "moment" and not isinstance(value, datetime) else value


async def read_selection(request: ApiRequest) -> tuple[list[str], bool, dict[str, Any]]:
    """Reads which jobs a body means: ids, all, filters."""
    selection: JobSelection = request.body
    filters = await request.filters(selection.filter) if selection.filter is not None else {}
    return selection.ids, selection.all, filters


@routes.post(f"{ALL}/triage", shape(Acted), BulkTriage, errors=(404, 409))
async def triage_many(request: ApiRequest) -> Any:
    """Does the same with many dead letters, by ids or by a filter. Can be undone."""
    verb, how = _read_verb(request.body, many=True)
    ids, every, filters = await read_selection(request)
    return view(await request.rd.dead.do(verb, ids=ids, all=every, where=filters, **how))


# -- one dead letter


class ActQuery(RequestFields):
    limit: Limit = 50


class Editing(RequestFields):
    """The input as it would be."""

    payload: dict[str, Any]


PreviewOut: Any = answer(
    "PreviewOut",
    "What an edit would mean: what differs, what is wrong, what it voids, what landed, what came from outside.",
    job_id=str,
    task=str,
    ok=bool,
    text=str,
    difference=list[str],
    errors=list[dict[str, str]],
    voided=list[str],
    effects=list[dict[str, str]],
    taint=list[str],
)


@routes.get(ONE, JobOut, SecretsQuery)
async def show(request: ApiRequest) -> Any:
    """Shows one dead letter with its whole history."""
    return show_job(await request.rd.dead.show(request.id), secrets=request.query.secrets)


@routes.post(f"{ONE}/redrive", JobOut, Saying, errors=(409,))
async def redrive(request: ApiRequest) -> Any:
    """Brings a dead letter back to its queue."""
    return show_job(await request.rd.dead.redrive(request.id, **request.fields))


@routes.post(f"{ONE}/triage", JobOut, Triage, errors=(409,))
async def triage(request: ApiRequest) -> Any:
    """Performs any verb of triage on one dead letter. Can be undone."""
    verb, how = _read_verb(request.body)
    try:
        return show_job(await request.rd.dead.do(verb, request.id, **how))
    except InvalidPayload as error:
        raise refuse_large(error) from None


@routes.post(f"{ONE}/preview-edit", PreviewOut, Editing, errors=(409,))
async def preview_edit(request: ApiRequest) -> Any:
    """Tells what an edit would mean. Changes nothing."""
    return (await request.rd.dead.preview_edit(request.id, request.body.payload)).public()


@routes.get(f"{ONE}/notes", items_of(Note))
async def list_notes(request: ApiRequest) -> Any:
    """Lists the notes beside a dead letter."""
    return {"items": view(await request.rd.dead.notes(request.id))}


@routes.get("/v1/acts", some_of(Act), ActQuery)
async def list_acts(request: ApiRequest) -> Any:
    """Lists what was done to dead letters, by whom and why."""
    limit = request.query.limit
    return cut(await request.rd.dead.acts(limit + 1), limit)


@routes.post("/v1/acts/{id}/undo", shape(Acted), Saying, errors=(409,))
async def undo(request: ApiRequest) -> Any:
    """Undoes an act: jobs that have not changed since go back."""
    with missing("act"):
        return view(await request.rd.dead.undo(request.id, **request.fields))
