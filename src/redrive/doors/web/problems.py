"""What went wrong, as RFC 9457 has it: problem+json, with a kind for programs and a line for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from redrive import errors

MEDIA_TYPE: Final = "application/problem+json"
KINDS: Final = "urn:redrive:problem:"
RETRY_SECONDS: Final = 1
"""When to ask again where the store was busy: it rarely is for longer."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused or failed. Nothing was changed, unless the kind says that an operation ran or that the
    outcome is not known."""

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
        """What the status needs besides its body."""
        if self.status == 503:
            return {"retry-after": str(RETRY_SECONDS)}
        return {"www-authenticate": 'Bearer realm="redrive"'} if self.status == 401 else {}

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class Refused(Exception):
    """Raised on the way to an answer that is a problem."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem
        self.headers = headers or {}


class _Known(NamedTuple):
    status: int
    kind: str
    title: str
    hint: str | None = None


_BY_KIND: Final = {
    kind.kind: kind
    for kind in (
        _Known(400, "bad-request", "This request cannot be read"),
        _Known(401, "unauthorized", "The token is missing or wrong", "send Authorization: Bearer TOKEN; "
               "`redrive token` shows the token, `redrive token --link` a link for a browser"),
        _Known(403, "forbidden-origin", "This page may not ask here", "open the dashboard by its own address"),
        _Known(403, "forbidden-role", "The role of this token is not enough",
               "use a token with that role: `redrive token add NAME --role ROLE` makes one"),
        _Known(404, "not-found", "There is nothing here"),
        _Known(405, "method-not-allowed", "This cannot be done here"),
        _Known(408, "too-slow", "The body took too long to arrive"),
        _Known(409, "illegal-move", "The job is not in a state for this"),
        _Known(413, "too-large", "The body is too large"),
        _Known(415, "unsupported-media-type", "The body must be JSON", "send Content-Type: application/json"),
        _Known(421, "misdirected", "This Host is not served here", "see --allow-host of `redrive serve`"),
        _Known(422, "invalid", "Something in the request is not right"),
        _Known(424, "operation-failed", "The operation ran and failed",
               "do not repeat the call as it is; GET /v1/dead-letters/{id} says why and what would help"),
        _Known(500, "internal", "An error in redrive", "the server's log has its traceback"),
    )
}  # fmt: skip

_BY_ERROR: Final[dict[type[Exception], _Known]] = {
    errors.JobNotFound: _Known(404, "job-not-found", "There is no such job"),
    errors.EffectNotFound: _Known(404, "effect-not-found", "There is no such effect"),
    errors.OnceInProgress: _Known(
        409, "once-in-progress", "A living process performs this effect", "wait for it, or end that process"
    ),
    errors.KeyReused: _Known(
        422,
        "key-reused",
        "The idempotency key stands for other work",
        "use a new key, or send the same payload to the same task",
    ),
    errors.InvalidInput: _BY_KIND["invalid"],
    errors.ConfigError: _BY_KIND["invalid"],
    errors.IllegalMove: _Known(409, "illegal-move", "The job is not in a state for this", "look at the job first"),
    errors.StaleJob: _Known(409, "stale", "The job has changed meanwhile", "look at the job, then try again"),
    errors.JobNotReady: _Known(409, "not-ready", "Brought back as it is, the job would die again", "edit it first"),
    errors.JobDead: _Known(409, "job-dead", "The job ended as a dead letter"),
    errors.JobDiscarded: _Known(409, "job-discarded", "The job was cancelled or discarded"),
    errors.StoreBusy: _Known(503, "busy", "The store is busy", "try again in a moment"),
    errors.StoreFull: _Known(507, "disk-full", "No space is left on the disk", "free some space, then try again"),
    errors.StoreRefused: _Known(503, "store-refused", "This database must not be used", "run `redrive doctor`"),
    errors.CommitUnknown: _Known(
        503, "commit-unknown", "The store did not confirm the write", "check it, or repeat it with the same key"
    ),
    errors.SessionUnknown: _Known(503, "session-unknown", "The hub does not know this client", "try again"),
    errors.StoreFailed: _Known(503, "store-failed", "The disk failed", "check the disk, then restart the server"),
    errors.DatabaseInUse: _Known(
        503, "database-in-use", "The database is open elsewhere in this process", "close it there, then try again"
    ),
    errors.StoreUnavailable: _Known(503, "store-unavailable", "The store cannot be reached", "try again in a moment"),
}


def problem(kind: str, detail: str | None = None, *, field: str | None = None) -> Problem:
    """One that the doors themselves find."""
    known = _BY_KIND[kind]
    return Problem(f"{KINDS}{kind}", known.title, known.status, detail, field, hint=known.hint)


def known_problems() -> list[Problem]:
    """Every kind there is, by status, for the reference."""
    known = {one.kind: one for one in (*_BY_KIND.values(), *_BY_ERROR.values())}
    found = [Problem(f"{KINDS}{one.kind}", one.title, one.status, hint=one.hint) for one in known.values()]
    return sorted(found, key=lambda one: (one.status, one.type))


def problem_of(error: Exception) -> Problem | None:
    """What an error of redrive means to a caller; None where it is a defect."""
    for kind in type(error).__mro__:
        known = _BY_ERROR.get(kind)
        if known is not None:
            return _told(error, known)
    return None


def _told(error: Exception, known: _Known) -> Problem:
    field, job_id = getattr(error, "field", None), getattr(error, "job_id", None)
    hint = getattr(error, "recommendation", None) or known.hint
    return Problem(f"{KINDS}{known.kind}", known.title, known.status, str(error), field, job_id, hint)


@contextmanager
def missing(field: str) -> Iterator[None]:
    """What a path names and nobody knows is not a bad request: it is not there."""
    try:
        yield
    except errors.InvalidInput as error:
        if error.field != field:
            raise
        raise Refused(problem("not-found", str(error), field=field)) from None
