"""Problems: what went wrong, as RFC 9457 has it, with a kind for programs and a line for people."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from redrive import errors

if TYPE_CHECKING:
    from starlette.responses import Response

log = logging.getLogger("redrive.rest")
MEDIA_TYPE: Final = "application/problem+json"
KINDS: Final = "urn:redrive:problem:"
RETRY_SECONDS: Final = 1
"""Seconds after which to ask again where the store was busy; it rarely is for longer."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused or failed. Nothing was changed, unless an operation ran or the outcome is unknown."""

    type: str
    title: str
    status: int
    detail: str | None = None
    field: str | None = None
    """What of the request is wrong: a query parameter, a header, or a field of the body."""
    job_id: str | None = None
    hint: str | None = None
    """What to do about it."""
    error: str | None = None
    """What an operation that ran and failed said."""
    error_kind: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that this status needs."""
        if self.status == 503:
            return {"retry-after": str(RETRY_SECONDS)}
        return {"www-authenticate": 'Bearer realm="redrive"'} if self.status == 401 else {}

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class RequestRefused(Exception):
    """Ends the handling of a request with a problem."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem
        self.headers = headers or {}


def _known(status: int, kind: str, title: str, hint: str | None = None) -> Problem:
    return Problem(f"{KINDS}{kind}", title, status, hint=hint)


_HOW_TO_SHOW: Final = (
    "send Authorization: Bearer TOKEN; `redrive token` shows the token, `redrive token --link` a link for a browser"
)
_OTHER_ROLE: Final = "use a token with that role: `redrive token add NAME --role ROLE` makes one"
_NO_REPEAT: Final = "do not repeat the call as it is; GET /v1/dead-letters/{id} says why and what would help"
_BY_KIND: Final = {
    known.type.removeprefix(KINDS): known
    for known in (
        _known(400, "bad-request", "This request cannot be read"),
        _known(401, "unauthorized", "The token is missing or wrong", _HOW_TO_SHOW),
        _known(403, "forbidden-origin", "This page may not ask here", "open the dashboard by its own address"),
        _known(403, "forbidden-role", "The role of this token is not enough", _OTHER_ROLE),
        _known(404, "not-found", "There is nothing here"),
        _known(405, "method-not-allowed", "This cannot be done here"),
        _known(408, "too-slow", "The body took too long to arrive"),
        _known(409, "illegal-move", "The job is not in a state for this"),
        _known(413, "too-large", "The body is too large"),
        _known(415, "unsupported-media-type", "The body must be JSON", "send Content-Type: application/json"),
        _known(421, "misdirected", "This Host is not served here", "see --allow-host of `redrive serve`"),
        _known(422, "invalid", "Something in the request is not right"),
        _known(424, "operation-failed", "The operation ran and failed", _NO_REPEAT),
        _known(500, "internal", "An error in redrive", "the server's log has its traceback"),
    )
}
"""The problems that the doors find themselves."""

_IN_USE: Final = "The database is open elsewhere in this process"
_ONCE: Final = "wait for it, or end that process"
_OTHER_KEY: Final = "use a new key, or send the same payload to the same task"
_UNKNOWN: Final = "check it, or repeat it with the same key"
_BY_ERROR: Final[dict[type[Exception], Problem]] = {
    errors.JobNotFound: _known(404, "job-not-found", "There is no such job"),
    errors.EffectNotFound: _known(404, "effect-not-found", "There is no such effect"),
    errors.OnceInProgress: _known(409, "once-in-progress", "A living process performs this effect", _ONCE),
    errors.KeyReused: _known(422, "key-reused", "The idempotency key stands for other work", _OTHER_KEY),
    errors.InvalidInput: _BY_KIND["invalid"],
    errors.ConfigError: _BY_KIND["invalid"],
    errors.IllegalMove: _known(409, "illegal-move", "The job is not in a state for this", "look at the job first"),
    errors.StaleJob: _known(409, "stale", "The job has changed meanwhile", "look at the job, then try again"),
    errors.JobNotReady: _known(409, "not-ready", "Brought back as it is, the job would die again", "edit it first"),
    errors.JobDead: _known(409, "job-dead", "The job ended as a dead letter"),
    errors.JobDiscarded: _known(409, "job-discarded", "The job was cancelled or discarded"),
    errors.StoreBusy: _known(503, "busy", "The store is busy", "try again in a moment"),
    errors.StoreFull: _known(507, "disk-full", "No space is left on the disk", "free some space, then try again"),
    errors.StoreRefused: _known(503, "store-refused", "This database must not be used", "run `redrive doctor`"),
    errors.CommitUnknown: _known(503, "commit-unknown", "The store did not confirm the write", _UNKNOWN),
    errors.SessionUnknown: _known(503, "session-unknown", "The hub does not know this client", "try again"),
    errors.StoreFailed: _known(503, "store-failed", "The disk failed", "check the disk, then restart the server"),
    errors.DatabaseInUse: _known(503, "database-in-use", _IN_USE, "close it there, then try again"),
    errors.StoreUnavailable: _known(503, "store-unavailable", "The store cannot be reached", "try again in a moment"),
}
"""What each error of redrive is to a caller; a subclass without a line of its own is what its base class is."""


def problem(kind: str, detail: str | None = None, *, field: str | None = None) -> Problem:
    """Makes a problem that a door itself has found."""
    return replace(_BY_KIND[kind], detail=detail, field=field)


def known_problems() -> list[Problem]:
    """Lists every kind of problem by status, for the reference."""
    kinds = {known.type: known for known in (*_BY_KIND.values(), *_BY_ERROR.values())}
    return sorted(kinds.values(), key=lambda problem: (problem.status, problem.type))


def problem_of(error: Exception) -> Problem | None:
    """Says what an error of redrive means to a caller; None where the error is a defect."""
    known = next((_BY_ERROR[kind] for kind in type(error).__mro__ if kind in _BY_ERROR), None)
    if known is None:
        return None
    hint = getattr(error, "recommendation", None) or known.hint
    field, job_id = getattr(error, "field", None), getattr(error, "job_id", None)
    return replace(known, detail=str(error), field=field, job_id=job_id, hint=hint)


def problem_for(error: Exception, path: str) -> Problem:
    """Says what any exception means to a caller. A defect is logged; the caller learns that the request was fine."""
    if isinstance(error, RequestRefused):
        return error.problem
    if (known := problem_of(error)) is not None:
        return known
    log.error("%s failed: %r", path, error, exc_info=error)
    return problem("internal", "redrive has a defect that this request met; report the traceback in the server's log")


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Makes the HTTP answer of a problem."""
    from starlette.responses import Response

    return Response(problem.encode(), problem.status, {**problem.headers, **(headers or {})}, MEDIA_TYPE)


@contextmanager
def missing(field: str) -> Iterator[None]:
    """Turns a refusal of this field into 404: what a path names and the store does not have is no bad request."""
    try:
        yield
    except errors.InvalidInput as error:
        if error.field != field:
            raise
        raise RequestRefused(problem("not-found", str(error), field=field)) from None
