"""Dead letters: looking, triage of one or many, adding those of others, and purging."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Union

import msgspec
from msgspec import Meta

from redrive.core.job import Job, Lane
from redrive.core.view import view
from redrive.deadletters.purge import PurgePlan
from redrive.deadletters.triage import Act, Acted
from redrive.deadletters.verbs import NOTE_LIMIT, TABLE, VERBS, Note, Reading, Verb, Word
from redrive.doors.rest import schemas
from redrive.doors.rest.filtering import filters_of
from redrive.doors.rest.jobs import too_large
from redrive.doors.rest.shapes import listed, many, shape
from redrive.doors.rest.showing import cut, page, whole
from redrive.doors.rest.table import WHO, Asked, Reply, Route
from redrive.doors.web.problems import missing
from redrive.errors import InvalidPayload

# -- what is said of one, or of many

Until = Annotated[schemas.Moment | schemas.Later, Meta(description="An instant with its offset, or seconds from now.")]
Patch = Annotated[
    dict[str, Any],
    Meta(min_length=1, description="A JSON merge patch (RFC 7396): the fields to change; null removes one."),
]
NoteText = Annotated[str, Meta(min_length=1, max_length=NOTE_LIMIT, pattern=r"^[^\x00]+$")]


TYPES: Final[dict[Reading, Any]] = {
    "name": schemas.Name, "moment": Until, "lane": Lane, "text": NoteText, "input": dict[str, Any], "patch": Patch,
}  # fmt: skip
"""How each kind of word is written in JSON."""


def _body(verb: Verb) -> type[msgspec.Struct]:
    """What is said of one job, as a struct: the verb's words, who and why."""
    by = schemas.Saying if verb.why else ByWhom
    fields = [_field(word) for word in verb.takes()]
    return _struct(verb, _title(verb), by, fields)


def _many_body(verb: Verb) -> type[msgspec.Struct]:
    """The same for many, and which jobs are meant."""
    by = schemas.Saying if verb.why else ByWhom
    which = [(field.name, field.type, _default(field)) for field in msgspec.structs.fields(schemas.Chosen)]
    return _struct(verb, f"Many{_title(verb)}", by, [*map(_field, verb.takes(many=True)), *which])


def _struct(verb: Verb, name: str, base: type[msgspec.Struct], fields: list[Any]) -> type[msgspec.Struct]:
    config: dict[str, Any] = {"tag_field": "action", "tag": verb.name, "kw_only": True}
    return msgspec.defstruct(name, fields, bases=(base,), namespace={"__doc__": verb.says}, **config)


def _title(verb: Verb) -> str:
    return verb.name.title().replace("_", "")


def _field(word: Word) -> tuple[Any, ...]:
    if word.reading == "effects":
        return word.name, list[str], msgspec.field(default_factory=list)
    return word.name, TYPES[word.reading]


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default


class ByWhom(schemas.Taken):
    """Who does it, for the record."""

    who: schemas.Name = WHO


Triage: Any = Union[tuple(map(_body, TABLE))]  # noqa: UP007
PLANNED: Final = ("redrive", "edit")
"""Many at once of these are runs with a plan, under /v1/redrives and /v1/dead-letters/edit."""
BulkTriage: Any = Union[tuple(_many_body(verb) for verb in TABLE if verb.many and verb.name not in PLANNED)]  # noqa: UP007


class ActQuery(schemas.Taken):
    limit: schemas.Limit = 50


def _how(said: Any, *, many: bool = False) -> tuple[Verb, dict[str, Any]]:
    """The verb, and what it is told besides which jobs."""
    verb = VERBS[said.__struct_config__.tag]
    words = {word.name: _given(word, getattr(said, word.name)) for word in verb.takes(many=many)}
    return verb, {"who": said.who, **({"why": said.why} if verb.why else {}), **words}


def _given(word: Word, value: Any) -> Any:
    """Seconds from now are a span; an instant is one."""
    return timedelta(seconds=value) if word.reading == "moment" and not isinstance(value, datetime) else value


async def triage(asked: Asked) -> Any:
    verb, how = _how(asked.body)
    try:
        job: Job = await asked.rd.dead.do(verb.name, asked.path["id"], **how)
    except InvalidPayload as error:
        raise too_large(error) or error from None
    return whole(job)


async def triage_many(asked: Asked) -> Any:
    verb, how = _how(asked.body, many=True)
    ids, every, filters = await chosen(asked)
    acted = await asked.rd.dead.do(verb.name, ids=ids, all=every, where=filters, **how)
    return view(acted)


async def chosen(asked: Asked) -> tuple[list[str], bool, dict[str, Any]]:
    """Which jobs a body means."""
    said: schemas.Chosen = asked.body
    filters = await filters_of(asked.rd, said.filter) if said.filter is not None else {}
    return said.ids, said.all, filters


async def redrive(asked: Asked) -> Any:
    return whole(await asked.rd.dead.redrive(asked.path["id"], who=asked.body.who, why=asked.body.why))


async def acts(asked: Asked) -> Any:
    limit = asked.query.limit
    return cut(await asked.rd.dead.acts(limit + 1), limit)


async def undo(asked: Asked) -> Any:
    with missing("act"):
        acted = await asked.rd.dead.undo(asked.path["id"], who=asked.body.who, why=asked.body.why)
    return view(acted)


# -- looking


class Editing(schemas.Taken):
    """The input as it would be."""

    payload: dict[str, Any]


class PreviewOut(schemas.Given):
    """What an edit would mean: what differs, what is wrong, what it voids, what landed, what came from outside."""

    job_id: str
    task: str
    ok: bool
    text: str
    difference: list[str]
    errors: list[dict[str, str]]
    voided: list[str]
    effects: list[dict[str, str]]
    taint: list[str]


async def list_letters(asked: Asked) -> Any:
    query: schemas.LetterQuery = asked.query
    filters = await filters_of(asked.rd, query)
    return page(await asked.rd.dead.list(limit=query.limit, cursor=query.cursor, **filters))


async def show(asked: Asked) -> Any:
    return whole(await asked.rd.dead.show(asked.path["id"]), secrets=asked.query.secrets)


async def notes(asked: Asked) -> Any:
    return {"items": view(await asked.rd.dead.notes(asked.path["id"]))}


async def preview(asked: Asked) -> Any:
    return (await asked.rd.dead.preview_edit(asked.path["id"], asked.body.payload)).public()


# -- adding


class NewLetter(schemas.Taken):
    """A failure that happened elsewhere. The next one of the same job_id and payload is counted in the same letter."""

    job_id: schemas.Key
    payload: dict[str, Any]
    error: schemas.Text
    task: schemas.Name | None = None
    queue: schemas.Name | None = None
    attempt: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    lane: Lane | None = None
    agent: schemas.Name | None = None
    session_id: schemas.Name | None = None
    model: schemas.Name | None = None
    recommendation: schemas.Text | None = None


async def add(asked: Asked) -> Any:
    said = msgspec.structs.asdict(asked.body)
    job_id, payload, error = (said.pop(name) for name in ("job_id", "payload", "error"))
    job = await asked.rd.dead.add(job_id, payload, error, **{k: v for k, v in said.items() if v is not None})
    return Reply(whole(job), 201, {"location": f"/v1/jobs/{job.id}"})


# -- purging


class PurgeQuery(schemas.Filters):
    """Which dead letters. Without any filter, `all=true` must be said."""

    all: bool = False


class Purging(PurgeQuery, kw_only=True):
    """The same, and the token that says that these were counted."""

    confirm: Annotated[str, Meta(min_length=1, max_length=200, description="The token of the purge plan.")]
    who: schemas.Name = WHO
    why: schemas.Text | None = None


class Purged(schemas.Given):
    purged: int


async def purge_plan(asked: Asked) -> Any:
    query: PurgeQuery = asked.query
    filters = await filters_of(asked.rd, query)
    return view(await asked.rd.dead.purge_plan(all=query.all, **filters))


async def purge(asked: Asked) -> Any:
    query: Purging = asked.query
    filters = await filters_of(asked.rd, query)
    how: dict[str, Any] = {"who": query.who, "why": query.why, "confirm": query.confirm, "all": query.all}
    return {"purged": await asked.rd.dead.purge(**how, **filters)}


ALL: Final = "/v1/dead-letters"
ONE: Final = f"{ALL}/{{id}}"
JOB: Final = schemas.JobOut
ROUTES: Final = (
    Route("GET", ALL, list_letters, "Dead letters, the latest first, by any filter.", schemas.JobPage,
          schemas.LetterQuery),
    Route("POST", ALL, add, "Record a failure that happened elsewhere.", JOB, body=NewLetter, status=201),
    Route("DELETE", ALL, purge, "Remove dead letters for good; their keys stay remembered.", Purged, Purging,
          errors=(409,), role="purge"),
    Route("GET", f"{ALL}/purge-plan", purge_plan, "What a purge would remove, and the token for it.", shape(PurgePlan),
          PurgeQuery),
    Route("POST", f"{ALL}/triage", triage_many, "Do the same with many, by ids or by a filter. Can be undone.",
          shape(Acted), body=BulkTriage, errors=(404, 409)),
    Route("GET", ONE, show, "One dead letter with its whole history.", JOB, schemas.OneJob),
    Route("POST", f"{ONE}/redrive", redrive, "Back to the queue.", JOB, body=schemas.Saying, errors=(409,)),
    Route("POST", f"{ONE}/triage", triage, "Any verb of triage. Can be undone.", JOB, body=Triage, errors=(409,)),
    Route("POST", f"{ONE}/preview-edit", preview, "What an edit would mean. Changes nothing.", PreviewOut,
          body=Editing, errors=(409,)),
    Route("GET", f"{ONE}/notes", notes, "What was written beside it.", listed(Note)),
    Route("GET", "/v1/acts", acts, "What was done to dead letters, by whom and why.", many(Act), ActQuery),
    Route("POST", "/v1/acts/{id}/undo", undo, "Take an act back: jobs that have not changed since go back.",
          shape(Acted), body=schemas.Saying, errors=(409,)),
)  # fmt: skip
