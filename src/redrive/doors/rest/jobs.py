"""Jobs: handing them in, looking at them, and what a person says about one."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from redrive.core.effects import EffectRecord
from redrive.core.job import Budget, State
from redrive.core.outcome import death
from redrive.core.redact import redact
from redrive.core.view import view
from redrive.doors.rest import schemas
from redrive.doors.rest.filtering import filters_of
from redrive.doors.rest.shapes import listed, shape
from redrive.doors.rest.showing import masked, page, whole
from redrive.doors.rest.table import Asked, Reply, Route
from redrive.doors.web.problems import Refused, problem
from redrive.errors import InvalidInput, InvalidOption, InvalidPayload, JobDead, JobDiscarded
from redrive.jobs.tasks import Item
from redrive.reports.timeline import tell
from redrive.reports.traceback_view import Raised

KEY_HEADER: Final = "Idempotency-Key"
OPTIONS: Final = tuple(name for name in schemas.Wanted.__struct_fields__ if name not in ("payload", "budget"))


class EntryOut(schemas.Given):
    """One thing that happened to a job."""

    at: schemas.Instant | None
    kind: str
    title: str
    tone: str = "plain"
    who: str | None = None
    why: str | None = None
    facts: tuple[dict[str, Any], ...] = ()
    run: int | None = None
    seconds: float | None = None
    worker: str | None = None
    trace: tuple[shape(Raised), ...] = ()  # type: ignore[valid-type]
    """The traceback of an attempt that failed, innermost first, then what caused it."""


class StoryOut(schemas.Given):
    """Where a job stands in one sentence, everything that happened, and what can be done now."""

    job_id: str
    standing: str
    entries: list[EntryOut]
    choices: list[dict[str, Any]]
    spent: dict[str, Any] | None
    recommendation: str | None


class DiffQuery(schemas.OneJob, kw_only=True):
    one: int
    other: int


class DiffOut(schemas.Given):
    """What two runs were given differently, in words."""

    lines: list[str]


async def list_jobs(asked: Asked) -> Any:
    query: schemas.JobQuery = asked.query
    filters = await filters_of(asked.rd, query)
    if query.state:
        filters["state"] = query.state
    if query.text is not None:
        how: dict[str, Any] = {"limit": query.limit, "cursor": query.cursor, "secrets": False}
        return page((await asked.rd.jobs.search(query.text, **how, **filters)).page)
    return page(await asked.rd.jobs.list(limit=query.limit, cursor=query.cursor, **filters))


async def enqueue(asked: Asked) -> Any:
    """201 for a new job, 200 for one that its key had made already, 202 for one that the store could not take yet.

    Synced to disk before the answer leaves.
    """
    new: schemas.NewJob = asked.body
    options = _options(new)
    options |= key_of(options.get("idempotency_key"), asked.headers.get(KEY_HEADER))
    try:
        handle = await asked.rd.accept(new.task, new.payload, options)
    except InvalidPayload as error:
        raise too_large(error) or error from None
    aside = handle.spooled or handle.direct
    job = handle.job if aside else await handle.refresh()
    waits = None if aside or job.ended else await asked.rd.jobs.waits_for_worker(job)
    body = {"id": job.id, "state": job.state, "queue": job.queue, "task": job.task, "duplicate": handle.duplicate,
            "spooled": handle.spooled, "direct": handle.direct,
            "warnings": [*handle.warnings, *([waits] if waits else [])]}  # fmt: skip
    return Reply(body, 202 if aside else 200 if handle.duplicate else 201, {"location": f"/v1/jobs/{job.id}"})


def _options(said: schemas.Wanted) -> dict[str, Any]:
    """What a job wants for itself, as Python takes it."""
    options: dict[str, Any] = {name: value for name in OPTIONS if (value := getattr(said, name)) is not None}
    if said.budget is not None:
        options["budget"] = Budget(**msgspec.structs.asdict(said.budget))
    return options


async def enqueue_many(asked: Asked) -> Any:
    """Item by item: what is refused is told, the rest is on disk. Repeat it safely where the items have keys."""
    said: schemas.NewJobs = asked.body
    many = await asked.rd.enqueue_many(said.task, [Item(one.payload, **_options(one)) for one in said.items])
    refused = [{"item": index, "why": why} for index, why in sorted(many.refused.items())]
    return {"ids": many.ids, "accepted": many.accepted, "duplicates": many.duplicates, "spooled": many.spooled,
            "refused": refused}  # fmt: skip


def key_of(said: str | None, header: str | None) -> dict[str, str]:
    """The header and the field mean the same."""
    if header is None or header == said:
        return {}
    if said is not None:
        problem = f"differs from the header {KEY_HEADER}; give one of them"
        raise InvalidOption(field="idempotency_key", problem=problem)
    return {"idempotency_key": header}


def too_large(error: InvalidInput) -> Refused | None:
    """A payload over the limit is 413, as a body over it is."""
    if "the limit is" in error.problem and "bytes" in error.problem:
        return Refused(problem("too-large", str(error), field=error.field))
    return None


async def show(asked: Asked) -> Any:
    return whole(await asked.rd.jobs.get(asked.path["id"]), secrets=asked.query.secrets)


async def result(asked: Asked) -> Any:
    """Of a job that is done. 409 where it ended otherwise; 202 while it has not ended."""
    job = await asked.rd.jobs.get(asked.path["id"])
    if job.state is State.dead:
        raise JobDead(death(job), job_id=job.id, reason=job.because or "", recommendation=job.recommendation)
    if job.state in (State.discarded, State.purged):
        raise JobDiscarded(f"job {job.short_id} was {job.state}", job_id=job.id)
    if job.state is not State.done:
        return Reply({"id": job.id, "state": job.state, "result": None}, 202, {"retry-after": "1"})
    value = await asked.rd.jobs.result(job.id)
    return {"id": job.id, "state": job.state, "result": value if asked.query.secrets else redact(value)}


async def story(asked: Asked) -> Any:
    job = await asked.rd.jobs.get(asked.path["id"])
    moves, notes = await asked.rd.jobs.story(job.id), await asked.rd.dead.notes(job.id)
    return masked(tell(job, moves, asked.rd.clock.now(), notes).public())


async def effects(asked: Asked) -> Any:
    found = await asked.rd.jobs.effects(asked.path["id"])
    return {"items": view(found, secrets=asked.query.secrets)}


async def diff(asked: Asked) -> Any:
    query: DiffQuery = asked.query
    lines = await asked.rd.dead.diff(asked.path["id"], query.one, query.other, secrets=query.secrets)
    return {"lines": lines}


async def cancel(asked: Asked) -> Any:
    return whole(await asked.rd.jobs.cancel(asked.path["id"], who=asked.body.who, why=asked.body.why))


async def approve(asked: Asked) -> Any:
    return whole(await asked.rd.jobs.approve(asked.path["id"], who=asked.body.who, why=asked.body.why))


async def reject(asked: Asked) -> Any:
    return whole(await asked.rd.jobs.reject(asked.path["id"], who=asked.body.who, why=asked.body.why))


async def resolve(asked: Asked) -> Any:
    said: schemas.Resolving = asked.body
    job = await asked.rd.jobs.resolve(asked.path["id"], why=said.why, who=said.who, landed=said.landed)
    return whole(job)


async def erase(asked: Asked) -> Any:
    """For privacy: its payload, result, errors and effects are gone; a live one is cancelled first."""
    erased = await asked.rd.jobs.erase(asked.path["id"], who=asked.body.who)
    waits_for = await asked.rd.jobs.lingering()
    return {"erased": erased, "gone": not waits_for, "waits_for": waits_for}


JOB = schemas.JobOut
ROUTES: Final = (
    Route("GET", "/v1/jobs", list_jobs, "Jobs, newest first, by any filter.", schemas.JobPage, schemas.JobQuery),
    Route(
        "POST", "/v1/jobs", enqueue, "Hand in a job. When this is answered, it is synced to disk.", schemas.Accepted,
        body=schemas.NewJob, status=201, also={200: schemas.Accepted, 202: schemas.Accepted},
        headers={KEY_HEADER: "The same key and payload are one job, however often they are sent."},
    ),
    Route(
        "POST", "/v1/jobs/batch", enqueue_many, "Hand in many jobs of one task, accepted or refused one by one.",
        schemas.ManyOut, body=schemas.NewJobs,
    ),
    Route("GET", "/v1/jobs/{id}", show, "One job with its whole history.", JOB, schemas.OneJob),
    Route(
        "GET", "/v1/jobs/{id}/result", result, "The whole result of a job; 202 while it has none.", schemas.Result,
        schemas.OneJob, errors=(409,), also={202: schemas.Result},
    ),
    Route("GET", "/v1/jobs/{id}/story", story, "What happened, and what can be done now.", StoryOut),
    Route(
        "GET", "/v1/jobs/{id}/effects", effects, "What a job did outside, effect by effect.", listed(EffectRecord),
        schemas.OneJob,
    ),
    Route(
        "GET", "/v1/jobs/{id}/diff", diff, "Compare the inputs of two runs of a job.", DiffOut, DiffQuery,
    ),
    Route(
        "POST", "/v1/jobs/{id}/cancel", cancel, "No longer wanted; a running task is told.", JOB, body=schemas.Saying,
        errors=(409,),
    ),
    Route(
        "POST", "/v1/jobs/{id}/approve", approve, "Yes to what a held job asks for.", JOB, body=schemas.Saying,
        errors=(409,),
    ),
    Route(
        "POST", "/v1/jobs/{id}/reject", reject, "No to what a held job asks for.", JOB, body=schemas.Saying,
        errors=(409,),
    ),
    Route(
        "POST", "/v1/jobs/{id}/resolve", resolve, "Say whether an effect with an unknown outcome landed.", JOB,
        body=schemas.Resolving, errors=(409,),
    ),
    Route(
        "POST", "/v1/jobs/{id}/erase", erase, "Forget the contents of a job, for privacy.", schemas.Erased,
        body=schemas.Saying, errors=(409,), role="purge",
    ),
)  # fmt: skip
