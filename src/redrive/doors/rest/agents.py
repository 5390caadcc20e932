"""For agents: operations that they call and ask about, their sessions, and who does which work."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from redrive.core.consent import Grant
from redrive.core.job import Priority, Usage
from redrive.core.notice import Notice
from redrive.core.outcome import Outcome
from redrive.core.redact import redact
from redrive.core.view import view
from redrive.doors.rest.answers import AnswerFields, Instant, answer, cut, items_of, list_of, shape, some_of
from redrive.doors.rest.inputs import (
    WHO,
    ByWhom,
    Duration,
    Key,
    Limit,
    Name,
    NoFields,
    RequestFields,
    SecretsQuery,
    Text,
    named,
)
from redrive.doors.rest.jobs import KEY_HEADER, read_key
from redrive.doors.rest.route import ApiRequest, Reply, Routes
from redrive.doors.web.problems import RequestRefused, missing, problem

routes: Final = Routes()

# -- operations: only `status: ok` is success

LONGEST_CALL: Final = 60.0
"""Seconds that a call is waited for: proxies and clients give up soon after. It goes on, and can be asked about."""
OPTIONS: Final = ("queue", "priority", "idempotency_key", "session_id", "agent", "model", "max_attempts")
Wait = Annotated[float, Meta(gt=0, le=LONGEST_CALL, description="Seconds to wait for its end; it goes on after them.")]


class OutcomeOut(AnswerFields):
    """The answer to a call. What is queued has no field that looks like success."""

    operation_id: str | None = None
    status: Literal["ok", "queued", "timeout", "failed", "needs_consent", "held"] | None = None
    result: Any = None
    truncated: bool = False
    post_write_recovery: bool = False
    effects_verified: int = 0
    warning: str | None = None
    path: str | None = None
    queued_for_retry: bool = False
    retry_hint: str | None = None
    retry_at: Instant | None = None
    hint: str | None = None
    queue_reason: str | None = None
    message: str | None = None
    error: str | None = None
    error_kind: str | None = None
    registry_auto_recovered: bool = False
    repeats: int = 0


class Operation(RequestFields):
    """A task to run, and what it is given."""

    task: Name
    params: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it
    queue: Name | None = None
    priority: Priority | None = None
    idempotency_key: Key | None = None
    session_id: Name | None = None
    agent: Name | None = None
    model: Name | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None


@named("Call")
class OperationCall(Operation):
    """Run it now, in the server's process."""

    timeout: Wait = LONGEST_CALL / 2


class Again(ByWhom):
    """Once more, with what was given the first time."""

    timeout: Wait = LONGEST_CALL / 2


class OperationsOut(AnswerFields):
    """What waits for a retry or its turn, when the next is due, and the latest of it."""

    queued: int
    by_reason: dict[str, int]
    next_retry_at: Instant | None
    recent: list[dict[str, Any]]


NOT_OVER: Final = {202: OutcomeOut}
KEYED: Final = {KEY_HEADER: "The same key and params are one operation, however often they are sent."}
MAKES: Final[dict[str, Any]] = {"also": NOT_OVER, "errors": (409, 424)}
"""What the routes that make an operation have in common."""


@routes.get("/v1/operations", OperationsOut)
async def list_operations(request: ApiRequest) -> Any:
    """Lists what agents have asked for and is not done yet."""
    return view(await request.rd.operations())


@routes.post("/v1/operations/call", OutcomeOut, OperationCall, headers=KEYED, **MAKES)
async def call(request: ApiRequest) -> Any:
    """Runs a task now, in the server's process; 202 where it is not over, 424 where it failed."""
    made: OperationCall = request.body
    outcome = await request.rd.call(made.task, made.params, timeout=made.timeout, **_read_options(request))
    return _reply(outcome)


@routes.post("/v1/operations/submit", OutcomeOut, Operation, headers=KEYED, **MAKES)
async def submit(request: ApiRequest) -> Any:
    """Has a worker run a task later, in one attempt; 424 where its key stands for an operation that failed."""
    return _reply(await request.rd.submit(request.body.task, request.body.params, **_read_options(request)))


@routes.get("/v1/operations/{id}", OutcomeOut, SecretsQuery, also=NOT_OVER)
async def show_operation(request: ApiRequest) -> Any:
    """Tells how one operation stands; 202 while it is not over."""
    return _show(await request.rd.outcome(request.id), secrets=request.query.secrets)


@routes.post("/v1/operations/{id}/retry", OutcomeOut, Again, **MAKES)
async def retry(request: ApiRequest) -> Any:
    """Runs an operation once more, by its id alone; what is done stays done. 202 and 424 as for a call."""
    return _reply(await request.rd.retry(request.id, **request.fields))


def _reply(outcome: Outcome) -> Reply:
    """Makes an answer whose status alone says whether the operation is done: 200 done, 202 not over, 424 failed.

    HTTP libraries repeat 5xx, 409 and 429 by themselves, and a repeated call is a second operation: not so 424.
    """
    if outcome.status != "failed":
        return _show(outcome)
    body = view(redact(outcome.public()))
    words = {"job_id": outcome.operation_id, "error": body.get("error"), "error_kind": body.get("error_kind")}
    raise RequestRefused(msgspec.structs.replace(problem("operation-failed", body.get("message")), **words))


def _show(outcome: Outcome, *, secrets: bool = False) -> Reply:
    """Shows the state of an operation: 200 once it is over, successful or not."""
    body = outcome.public()
    return Reply(body if secrets else view(redact(body)), 200 if outcome.status in ("ok", "failed") else 202)


def _read_options(request: ApiRequest) -> dict[str, Any]:
    made: Operation = request.body
    options = {name: value for name in OPTIONS if (value := getattr(made, name)) is not None}
    return options | read_key(made.idempotency_key, request)


# -- sessions

SESSION: Final = "/v1/sessions/{session:path}"


class InboxQuery(SecretsQuery):
    limit: Limit = 100
    unread: Annotated[bool, Meta(description="Only what was not read yet.")] = True


class NewGrant(RequestFields):
    """Yes to a task, or to all tasks with a label. A blanket one covers first runs only, never replays."""

    scope: Name
    by: Name = WHO
    agent: Name | None = None
    expires: Duration | None = None
    blanket: bool = False
    why: Text | None = None


@routes.get(f"{SESSION}/inbox", some_of(Notice), InboxQuery)
async def list_notices(request: ApiRequest) -> Any:
    """Lists the notices of a session."""
    query: InboxQuery = request.query
    notices = await request.rd.sessions.inbox(request.path["session"], unread=query.unread, limit=query.limit + 1)
    return cut(notices, query.limit, secrets=query.secrets)


@routes.post(f"{SESSION}/inbox/{{notice}}/acknowledge", shape(Notice), NoFields)
async def acknowledge(request: ApiRequest) -> Any:
    """Marks a notice as read."""
    with missing("notice_id"):
        return view(await request.rd.sessions.acknowledge(request.path["session"], request.path["notice"]))


@routes.get(f"{SESSION}/grants", items_of(Grant))
async def list_grants(request: ApiRequest) -> Any:
    """Lists what a session has agreed to."""
    return {"items": view(await request.rd.sessions.grants(request.path["session"]), secrets=True)}


@routes.post(f"{SESSION}/grants", shape(Grant), NewGrant, status=201)
async def add_grant(request: ApiRequest) -> Any:
    """Agrees to a task, or to a label."""
    return view(await request.rd.sessions.grant(request.path["session"], **request.fields), secrets=True)


@routes.post(f"{SESSION}/grants/{{grant}}/revoke", shape(Grant), NoFields)
async def revoke_grant(request: ApiRequest) -> Any:
    """Revokes a grant."""
    with missing("grant_id"):
        return view(await request.rd.sessions.revoke(request.path["session"], request.path["grant"]), secrets=True)


@routes.get(f"{SESSION}/costs", shape(Usage))
async def show_costs(request: ApiRequest) -> Any:
    """Tells what a session's jobs have spent."""
    return view(await request.rd.sessions.costs(request.path["session"]))


# -- agents

STATES: Final = ("waiting", "running", "held", "dead", "done")
AgentOut: Any = answer(
    "AgentOut",
    "One agent: what it can do, and its jobs by state.",
    name=str,
    does=list[str],
    models=list[str],
    **dict.fromkeys(STATES, int),
)


@routes.get("/v1/agents", answer("Agents", None, items=list_of(AgentOut)))
async def list_agents(request: ApiRequest) -> Any:
    """Lists the agents: what each can do, and its jobs by state."""
    known = request.rd.registry.fleet.agents
    counts = await request.rd.jobs.count(by=("agent", "state"))
    others = sorted({str(agent) for agent, _ in counts if agent is not None and agent not in known})
    rows = [(name, known[name].does, known[name].models) for name in known] + [(name, (), ()) for name in others]
    return {
        "items": [
            {"name": name, "does": list(does), "models": list(models)}
            | {state: counts.get((name, state), 0) for state in STATES}
            for name, does, models in rows
        ]
    }
