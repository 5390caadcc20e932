"""Operations: what agents ask for, now or later, and how it stands. Only `status: ok` is success."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from redrive.core.job import Priority
from redrive.core.outcome import Outcome
from redrive.core.redact import redact
from redrive.doors.rest import schemas
from redrive.doors.rest.jobs import KEY_HEADER, key_of
from redrive.doors.rest.showing import masked
from redrive.doors.rest.table import WHO, Asked, Reply, Route
from redrive.doors.web.problems import Problem, Refused, problem

LONGEST_CALL: Final = 60.0
"""Seconds that a call is waited for: proxies and clients give up soon after. It goes on, and can be asked about."""
OPTIONS: Final = ("queue", "priority", "idempotency_key", "session_id", "agent", "model", "max_attempts")


class OutcomeOut(schemas.Given):
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
    retry_at: schemas.Instant | None = None
    hint: str | None = None
    queue_reason: str | None = None
    message: str | None = None
    error: str | None = None
    error_kind: str | None = None
    registry_auto_recovered: bool = False
    repeats: int = 0


class Operation(schemas.Taken):
    """A task to run, and what it is given."""

    task: schemas.Name
    params: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it
    queue: schemas.Name | None = None
    priority: Priority | None = None
    idempotency_key: schemas.Key | None = None
    session_id: schemas.Name | None = None
    agent: schemas.Name | None = None
    model: schemas.Name | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None


Wait = Annotated[float, Meta(gt=0, le=LONGEST_CALL, description="Seconds to wait for its end; it goes on after them.")]


class Call(Operation):
    """Run it now, in the server's process."""

    timeout: Wait = LONGEST_CALL / 2


class Again(schemas.Taken):
    """Once more, with what was given the first time."""

    timeout: Wait = LONGEST_CALL / 2
    who: schemas.Name = WHO


class OperationsOut(schemas.Given):
    """What waits for a retry or its turn, when the next is due, and the latest of it."""

    queued: int
    by_reason: dict[str, int]
    next_retry_at: schemas.Instant | None
    recent: list[dict[str, Any]]


def _told(outcome: Outcome) -> Reply:
    """Makes an answer whose status alone says whether the operation is done: 200 done, 202 not over, 424 failed.

    HTTP libraries repeat 5xx, 409 and 429 by themselves, and a repeated call is a second operation: not so 424.
    """
    if outcome.status == "failed":
        raise Refused(_failure(outcome))
    return _shown(outcome)


def _shown(outcome: Outcome, *, secrets: bool = False) -> Reply:
    """Says how it stands: 200 once it is over, whatever the end."""
    body = outcome.public()
    return Reply(body if secrets else masked(redact(body)), 200 if outcome.status in ("ok", "failed") else 202)


def _failure(outcome: Outcome) -> Problem:
    said = masked(redact(outcome.public()))
    words = {"job_id": outcome.operation_id, "error": said.get("error"), "error_kind": said.get("error_kind")}
    return msgspec.structs.replace(problem("operation-failed", said.get("message")), **words)


def _options(asked: Asked) -> dict[str, Any]:
    said: Operation = asked.body
    options = {name: value for name in OPTIONS if (value := getattr(said, name)) is not None}
    return options | key_of(said.idempotency_key, asked.headers.get(KEY_HEADER))


async def call(asked: Asked) -> Any:
    said: Call = asked.body
    return _told(await asked.rd.call(said.task, said.params, timeout=said.timeout, **_options(asked)))


async def submit(asked: Asked) -> Any:
    said: Operation = asked.body
    return _told(await asked.rd.submit(said.task, said.params, **_options(asked)))


async def operations(asked: Asked) -> Any:
    return masked(await asked.rd.operations())


async def show(asked: Asked) -> Any:
    return _shown(await asked.rd.outcome(asked.path["id"]), secrets=asked.query.secrets)


async def retry(asked: Asked) -> Any:
    said: Again = asked.body
    return _told(await asked.rd.retry(asked.path["id"], timeout=said.timeout, who=said.who))


NOT_OVER: Final = {202: OutcomeOut}
REFUSED: Final = (409, 424)
KEYED: Final = {KEY_HEADER: "The same key and params are one operation, however often they are sent."}
ROUTES: Final = (
    Route("GET", "/v1/operations", operations, "What agents have asked for and is not done yet.", OperationsOut),
    Route("POST", "/v1/operations/call", call, "Run a task now, in the server's process; 202 where it is not "
          "over, 424 where it failed.", OutcomeOut, body=Call, also=NOT_OVER, errors=REFUSED, headers=KEYED),
    Route("POST", "/v1/operations/submit", submit, "Have a worker run it later, in one attempt; 424 where its "
          "key stands for one that failed.", OutcomeOut, body=Operation, also=NOT_OVER, errors=REFUSED, headers=KEYED),
    Route("GET", "/v1/operations/{id}", show, "How one operation stands; 202 while it is not over.", OutcomeOut,
          schemas.OneJob, also=NOT_OVER),
    Route("POST", "/v1/operations/{id}/retry", retry, "Once more, by its id alone; what is done stays done. 202 and "
          "424 as for a call.", OutcomeOut, body=Again, also=NOT_OVER, errors=REFUSED),
)  # fmt: skip
