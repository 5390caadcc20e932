"""Jobs: enqueueing and showing them, and what a person decides about one; effects with and without a job."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta
from msgspec.structs import asdict

from redrive.core.effects import EffectRecord
from redrive.core.job import Budget, OnLost, Priority, State
from redrive.core.outcome import describe_death
from redrive.core.redact import redact
from redrive.core.view import view
from redrive.doors.rest.answers import (
    AnswerFields,
    Instant,
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
    ByWhom,
    Duration,
    Key,
    Limit,
    Moment,
    Name,
    PageQuery,
    RequestFields,
    Saying,
    Seconds,
    SecretsQuery,
    Text,
    named,
)
from redrive.doors.rest.route import ApiRequest, Reply, Routes
from redrive.doors.web.problems import RequestRefused, problem
from redrive.errors import InvalidInput, InvalidOption, InvalidPayload, JobDead, JobDiscarded
from redrive.jobs.tasks import Item
from redrive.reports.timeline import tell
from redrive.reports.traceback_view import Raised

routes: Final = Routes()
ONE: Final = "/v1/jobs/{id}"

# -- enqueueing

KEY_HEADER: Final = "Idempotency-Key"
KEYED: Final = {KEY_HEADER: "The same key and payload are one job, however often they are sent."}
Accepted: Any = answer(
    "Accepted",
    """What became of an enqueue. `duplicate`: the key was known, this is the job that was there already.

    `spooled`: the store could not take it, it waits beside it. `direct`: the spool could not either, it was called.
    """,
    id=str,
    state=State,
    queue=str,
    task=str,
    duplicate=bool,
    spooled=bool,
    direct=bool,
    warnings=list[str],
)
ManyOut: Any = answer(
    "ManyOut",
    "What became of each item, in order; null where it was refused.",
    ids=list_of(str | None),
    accepted=int,
    duplicates=int,
    spooled=int,
    refused=list_of(answer("RefusedItem", None, item=int, why=str)),
)
Count = Annotated[int, Meta(ge=0, le=2**53)]


class BudgetIn(RequestFields):
    """What all attempts of a job together may spend."""

    tokens: Count | None = None
    output_tokens: Count | None = None
    cost: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    seconds: Seconds | None = None


@named("Wanted")
class JobFields(RequestFields):
    """A payload, and what only this job asks for."""

    payload: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it
    queue: Name | None = None
    run_at: Moment | None = None
    delay: Seconds | None = None
    priority: Priority | None = None
    idempotency_key: Key | None = None
    session_id: Name | None = None
    agent: Name | None = None
    model: Name | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    lease: Duration | None = None
    max_age: Duration | None = None
    on_lost: OnLost | None = None
    on_duplicate: Literal["return", "redrive"] | None = None
    budget: BudgetIn | None = None
    headers: dict[str, str] | None = None
    message_type: Name | None = None


class NewJob(JobFields, kw_only=True):
    """One job. `redrive.http` as the task sends an HTTP request: {"method": "POST", "url": …, "json": …}."""

    task: Name


class NewJobs(RequestFields, kw_only=True):
    """Many jobs of one task, each with its own options."""

    task: Name
    items: Annotated[list[JobFields], Meta(min_length=1, max_length=1000)]


@routes.post("/v1/jobs", Accepted, NewJob, status=201, also={200: Accepted, 202: Accepted}, headers=KEYED)
async def enqueue(request: ApiRequest) -> Any:
    """Enqueues a job, synced to disk before the answer; 200 where its key was known, 202 where the store is away."""
    new: NewJob = request.body
    options = _read_options(new)
    options |= read_key(new.idempotency_key, request)
    try:
        handle = await request.rd.accept(new.task, new.payload, options)
    except InvalidPayload as error:
        raise refuse_large(error) from None
    aside = handle.spooled or handle.direct
    job = handle.job if aside else await handle.refresh()
    waits = None if aside or job.ended else await request.rd.jobs.waits_for_worker(job)
    body = {name: getattr(job, name) for name in ("id", "state", "queue", "task")}
    body |= {name: getattr(handle, name) for name in ("duplicate", "spooled", "direct")}
    body["warnings"] = [*handle.warnings, *([waits] if waits else [])]
    return Reply(body, 202 if aside else 200 if handle.duplicate else 201, {"location": f"/v1/jobs/{job.id}"})


@routes.post("/v1/jobs/batch", ManyOut, NewJobs)
async def enqueue_many(request: ApiRequest) -> Any:
    """Enqueues many jobs of one task, accepted or refused one by one. Repeat it safely where the items have keys."""
    new: NewJobs = request.body
    many = await request.rd.enqueue_many(new.task, [Item(one.payload, **_read_options(one)) for one in new.items])
    body = {name: getattr(many, name) for name in ("ids", "accepted", "duplicates", "spooled")}
    return body | {"refused": [{"item": index, "why": why} for index, why in sorted(many.refused.items())]}


def _read_options(new: JobFields) -> dict[str, Any]:
    """Reads what a job asks for itself, as Python takes it."""
    names = (name for name in JobFields.__struct_fields__ if name not in ("payload", "budget"))
    options: dict[str, Any] = {name: value for name in names if (value := getattr(new, name)) is not None}
    if new.budget is not None:
        options["budget"] = Budget(**asdict(new.budget))
    return options


def read_key(key: str | None, request: ApiRequest) -> dict[str, str]:
    """Reads the idempotency key of the header, which means the same as the field."""
    header = request.headers.get(KEY_HEADER)
    if header is None or header == key:
        return {}
    if key is not None:
        differs = f"differs from the header {KEY_HEADER}; give one of them"
        raise InvalidOption(field="idempotency_key", problem=differs)
    return {"idempotency_key": header}


def refuse_large(error: InvalidInput) -> Exception:
    """Makes a payload over the limit a 413, as a body over its limit is; other errors stay as they are."""
    if "the limit is" in error.problem and "bytes" in error.problem:
        return RequestRefused(problem("too-large", str(error), field=error.field))
    return error


# -- showing

SearchText = Annotated[str, Meta(min_length=1, max_length=200, description="Text in the input or the last error.")]
Result: Any = answer("Result", "The whole result of a job that is done.", id=str, state=State, result=Any)
DiffOut: Any = answer("DiffOut", "What two runs were given differently, in words.", lines=list[str])


class JobQuery(PageQuery):
    """Which jobs, and how many."""

    state: Annotated[tuple[State, ...], Meta(max_length=7, description="Any of these; may be repeated.")] = ()
    text: SearchText | None = None


class EntryOut(AnswerFields):
    """One thing that happened to a job."""

    at: Instant | None
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


class StoryOut(AnswerFields):
    """Where a job stands in one sentence, everything that happened, and what can be done now."""

    job_id: str
    standing: str
    entries: list[EntryOut]
    choices: list[dict[str, Any]]
    spent: dict[str, Any] | None
    recommendation: str | None


class DiffQuery(SecretsQuery, kw_only=True):
    one: int
    other: int


@routes.get("/v1/jobs", JobPage, JobQuery)
async def list_jobs(request: ApiRequest) -> Any:
    """Lists jobs, newest first, by any filter."""
    query: JobQuery = request.query
    filters = await request.filters(query) | {"limit": query.limit, "cursor": query.cursor}
    if query.state:
        filters["state"] = query.state
    if query.text is not None:
        return show_page((await request.rd.jobs.search(query.text, secrets=False, **filters)).page)
    return show_page(await request.rd.jobs.list(**filters))


@routes.get(ONE, JobOut, SecretsQuery)
async def show(request: ApiRequest) -> Any:
    """Shows one job with its whole history."""
    return show_job(await request.rd.jobs.get(request.id), secrets=request.query.secrets)


@routes.get(f"{ONE}/result", Result, SecretsQuery, errors=(409,), also={202: Result})
async def show_result(request: ApiRequest) -> Any:
    """Gives the whole result of a job; 202 while the job has not ended, 409 where it ended otherwise."""
    job = await request.rd.jobs.get(request.id)
    if job.state is State.dead:
        raise JobDead(describe_death(job), job_id=job.id, reason=job.because or "", recommendation=job.recommendation)
    if job.state in (State.discarded, State.purged):
        raise JobDiscarded(f"job {job.short_id} was {job.state}", job_id=job.id)
    if job.state is not State.done:
        return Reply({"id": job.id, "state": job.state, "result": None}, 202, {"retry-after": "1"})
    value = await request.rd.jobs.result(job.id)
    return {"id": job.id, "state": job.state, "result": value if request.query.secrets else redact(value)}


@routes.get(f"{ONE}/story", StoryOut)
async def show_story(request: ApiRequest) -> Any:
    """Tells what happened to a job, and what can be done now."""
    job = await request.rd.jobs.get(request.id)
    moves, notes = await request.rd.jobs.story(job.id), await request.rd.dead.notes(job.id)
    return view(tell(job, moves, request.rd.clock.now(), notes).public())


@routes.get(f"{ONE}/effects", items_of(EffectRecord), SecretsQuery)
async def show_effects(request: ApiRequest) -> Any:
    """Lists what a job did outside, effect by effect."""
    return {"items": view(await request.rd.jobs.effects(request.id), secrets=request.query.secrets)}


@routes.get(f"{ONE}/diff", DiffOut, DiffQuery)
async def show_diff(request: ApiRequest) -> Any:
    """Compares the inputs of two runs of a job."""
    query: DiffQuery = request.query
    return {"lines": await request.rd.dead.diff(request.id, query.one, query.other, secrets=query.secrets)}


# -- a person's decisions


class Resolving(ByWhom, kw_only=True):
    """What a person saw. Landed: the job is done. Not landed: it runs again."""

    why: Text
    landed: bool = True


Erased: Any = answer(
    "Erased",
    "How many jobs' contents are forgotten, and where they can still be read until something happens.",
    erased=int,
    gone=bool,
    waits_for=list[str],
)


MOVES: Final = {
    "cancel": {"does": "Cancels a job; a running task is notified.", "body": Saying},
    "approve": {"does": "Says yes to what a held job asks for.", "body": Saying},
    "reject": {"does": "Says no to what a held job asks for.", "body": Saying},
    "resolve": {"does": "Says whether an effect with an unknown outcome landed.", "body": Resolving},
}


@routes.add_each("POST", ONE, MOVES, answer=JobOut, errors=(409,))
async def move(verb: str, request: ApiRequest) -> Any:
    """Moves one job as a person has decided."""
    return show_job(await getattr(request.rd.jobs, verb)(request.id, **request.fields))


@routes.post(f"{ONE}/erase", Erased, Saying, errors=(409,), role="purge")
async def erase(request: ApiRequest) -> Any:
    """Erases the contents of a job for privacy: payload, result, errors, effects. A live job is cancelled first."""
    erased = await request.rd.jobs.erase(request.id, who=request.body.who)
    waits_for = await request.rd.jobs.lingering()
    return {"erased": erased, "gone": not waits_for, "waits_for": waits_for}


# -- effects without a job

EFFECT: Final = "/v1/effects/{key:path}"
EffectOut: Any = shape(EffectRecord)


class EffectQuery(SecretsQuery):
    limit: Limit = 100
    status: Literal["intended", "landed", "absent", "unknown"] | None = None


class ResolvingEffect(Saying, kw_only=True):
    """What a person saw. Landed: later calls return the result. Not landed: the next call performs it."""

    RULES: ClassVar[dict[str, Any]] = {
        "anyOf": [{"properties": {"landed": {"const": True}}}, {"properties": {"result": {"type": "null"}}}]
    }
    """What did not land has no result."""
    landed: bool
    result: Any = None


@routes.get("/v1/effects", some_of(EffectRecord), EffectQuery)
async def list_effects(request: ApiRequest) -> Any:
    """Lists effects without a job, newest first."""
    query: EffectQuery = request.query
    return cut(await request.rd.effects.list(status=query.status), query.limit, secrets=query.secrets)


@routes.post(f"{EFFECT}/resolve", EffectOut, ResolvingEffect, errors=(409,))
async def resolve_effect(request: ApiRequest) -> Any:
    """Says whether an effect without a job landed, where its outcome is unknown."""
    return view(await request.rd.effects.resolve(request.path["key"], **request.fields))


@routes.post(f"{EFFECT}/erase", EffectOut, Saying, role="purge")
async def erase_effect(request: ApiRequest) -> Any:
    """Erases the result of an effect without a job, for privacy; its key stays."""
    return view(await request.rd.effects.erase(request.path["key"]))


@routes.get(EFFECT, EffectOut, SecretsQuery)
async def show_effect(request: ApiRequest) -> Any:
    """Shows one effect without a job."""
    return view(await request.rd.effects.get(request.path["key"]), secrets=request.query.secrets)
