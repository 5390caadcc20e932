"""Defines Job, Attempt, Failure and Cause, the values that all other parts use.

A Job is one row of the store, field by field, so that reading a job costs a single constructor call. Rare, structured
parts (options, changes) are kept as JSON text and decoded on access.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec

from redrive.errors import JobError

Json = Any
"""A value that JSON can express."""
At = Annotated[float, msgspec.Meta(description="seconds since 1970")]
"""An instant. Answers to the outside write an instant as an ISO text."""


class State(StrEnum):
    """The state of a job. `purged` is the tombstone that keeps the key of a removed job."""

    waiting = "waiting"
    running = "running"
    held = "held"
    done = "done"
    dead = "dead"
    discarded = "discarded"
    purged = "purged"


ENDED = frozenset({State.done, State.dead, State.discarded, State.purged})

CYCLE = "cycle:"
"""The prefix of scripts' queues: their jobs run where the script runs, and no worker claims them."""

PRIORITIES = ("critical", "high", "normal", "low")
Priority = Literal["critical", "high", "normal", "low"]
Reason = Literal["direct", "retry", "deferred_submit", "scheduled_job"]
OnLost = Literal["retry", "dead_letter"]
OnDuplicate = Literal["return", "redrive", "raise"]
Lane = Literal["delayed", "manual"]

HOLD_REASONS = ("approval", "consent", "outcome_unknown", "circuit_open", "blocked", "deferred")
DEAD_REASONS = (
    "attempts_exhausted",
    "terminated",
    "unroutable",
    "preflight_rejected",
    "context_overflow",
    "permanent",
    "too_old",
    "crash_loop",
    "budget_exhausted",
    "outcome_unknown",
    "diverted",
    "imported",
    "restored",
    "conflicting_input",
    "asked_to_wait",
    "changes_used_up",
    "not_known_to_heal",
)
TRACE_ID: Final = "{trace_id}"
"""The placeholder in the setting `trace_url` for the id of a job's trace."""
DISCARD_REASONS = ("cancelled", "discarded")
UNKNOWN: Final = "outcome_unknown"
_TOLD_BY_OTHERS: Final = frozenset({"diverted", "imported", "restored"})
"""Reasons of dead letters that no worker decided; the detail of such a dead letter says what happened."""


Ending = Literal["died", "lapsed", "frozen", "stopped"]
"""How a running job lost its worker: the process died; its lease lapsed for an unknown reason; the process lives but
stood still; or the process was told to stop and ended before it gave the job back."""


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most that all attempts of a job together may spend."""

    tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens and cost that an attempt has spent, as reported by the task."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, self.cost + other.cost
        )


CHAIN: Final = 6
"""Most failures of one chain of causes that are examined."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The captured failure of an attempt: plain data, no exception objects, secrets already removed.

    `types` are the MRO's `module.qualname`s, most specific first; the class that was raised is the first.
    """

    kind: Literal["exception", "signal", "soft", "timeout", "lease_expired", "released", "interrupted"] = "exception"
    types: tuple[str, ...] = ()
    message: str = ""
    status: int | None = None
    code: str | None = None
    error_kind: str | None = None
    errno: int | None = None
    sqlstate: str | None = None
    headers: dict[str, str] = {}
    retry_after: float | None = None
    frames: tuple[str, ...] = ()
    """The frames of the error and its callers, as `module:function:line`, innermost first."""
    cause: Failure | None = None
    members: tuple[Failure, ...] = ()
    recommendation: str | None = None
    body: str | None = None
    """The receiver's answer, shortened."""
    codes: tuple[str, ...] = ()
    """Every code the failure or its answer names, the most specific first; `code` is the first of them."""
    rpc_code: int | None = None
    """A JSON-RPC code, as MCP uses them."""
    rpc_status: str | None = None
    """The name of a gRPC status."""
    retryable: bool | None = None
    """Whether the failure itself says that a retry helps; None if it does not say."""
    host: str | None = None
    """The host that the failed call was sent to."""
    model_call: bool = False
    """Whether the failed call's address is known to serve models."""
    output_hash: str | None = None
    """The hash of the wrong output that the failure carries, by which the same output is recognised."""
    origin: tuple[str, ...] = ()
    """The innermost frames of the application itself, if frames of libraries lie above these."""
    model_asked: bool = False
    """Whether the attempt had asked a model, by its libraries or its task. Read only for failures of unfit data."""
    source: tuple[str | None, ...] = ()
    """The source line of each of `frames`: None for a library's frame, "" where the application's cannot be read."""

    @property
    def wrapped(self) -> tuple[Failure, ...]:
        """The failures that this failure was raised from or groups."""
        return self.members if self.cause is None else (self.cause, *self.members)

    def chain(self) -> Iterator[Failure]:
        """Yield the failure and the causes that it was raised from, six at most."""
        link: Failure | None = self
        for _ in range(CHAIN):
            if link is None:
                return
            yield link
            link = link.cause

    @property
    def error_class(self) -> str:
        return self.types[0].rpartition(".")[2] if self.types else self.kind

    @property
    def summary(self) -> str:
        return f"{self.error_class}: {self.message}" if self.message else self.error_class


Category = Literal["transient", "conditional", "permanent", "control", "unknown"]
Heals = Literal["at_once", "later", "changed", "person", "unknown"]
Subclass = Literal["Transient", "Logic", "Resource", "Authority"]


class Cause(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The classification of a failure, and the rule that made this classification."""

    category: Category
    detail: str
    heals: Heals
    rule: str = ""
    subclass: Subclass = "Transient"
    retry_after: float | None = None


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One execution of a job, kept with the job for ever."""

    run: int
    outcome: str
    started_at: float | None = None
    ended_at: float | None = None
    worker: str | None = None
    agent: str | None = None
    model: str | None = None
    changes: Json = None
    failure: Failure | None = None
    cause: Cause | None = None
    fingerprint: str | None = None
    decision: str | None = None
    usage: Usage | None = None
    strategy: str | None = None
    """The strategy chosen for the next try; the changes that the next attempt ran with are in that attempt."""
    tier: str | None = None
    version: str | None = None
    """The version of the application that ran the attempt, if the application gives one."""
    effects: dict[str, str] | None = None
    """The observed state of each declared effect, if a verifier looked."""
    looked: Literal["before", "after"] | None = None
    """Whether the verifiers looked before the task ran, as in a replay, or after the task had failed."""
    witness: Json = None
    """The witness that the verifiers were given to look for."""
    registry_auto_recovered: bool = False
    """Whether a requirement of the task had been missing and was available again when this attempt checked."""


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options that the caller set for this job alone; the top of the precedence."""

    lease: float | None = None
    max_age: float | None = None
    on_lost: OnLost | None = None
    budget: Budget | None = None
    headers: dict[str, str] = {}
    traceparent: str | None = None
    message_type: str | None = None
    workflow: str | None = None
    """The workflow that this job is a step of."""
    step: str | None = None


NO_OPTIONS = Options()
_decode_options = lru_cache(maxsize=256)(msgspec.json.Decoder(Options).decode)


class Job(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One job and its state. The id is the same from enqueue to the end."""

    id: str
    queue: str
    task: str
    agent: str | None
    state: State
    priority: int
    run_at: float
    version: int
    """The fencing number: grows with every write. Opaque outside the store."""
    created_at: float
    updated_at: float
    payload: str | None
    run: int = 0
    attempts: int = 0
    allowed: int | None = None
    token: str | None = None
    worker: str | None = None
    started_at: float | None = None
    lease: float | None = None
    result_json: str | None = msgspec.field(name="result", default=None)
    """The result as JSON text; `result` is decoded. A large result is stored separately, and this text refers to it."""
    key: str | None = None
    payload_hash: str | None = None
    session_id: str | None = None
    model: str | None = None
    reason: str = "direct"
    options_json: str | None = None
    changes_json: str | None = None
    crashes: int = 0
    grants: int = 0
    first_failed_at: float | None = None
    held_at: float | None = None
    held_seconds: float = 0.0
    because: str | None = None
    lane: str | None = None
    category: str | None = None
    detail: str | None = None
    subclass: str | None = None
    fingerprint: str | None = None
    error_class: str | None = None
    error: str | None = None
    recommendation: str | None = None
    fresh_from: int = 0
    """The run after which tries count anew, because a person brought the job back then."""
    held_for: str | None = None
    """The exact thing that a held job waits for: a breaker, a step, a question."""
    owner: str | None = None
    """The agent or person who must deal with a dead letter."""
    died_at: float | None = None
    """When the job first became a dead letter; reports count from then until the job is done or discarded."""
    revived_by: str | None = None
    """Who brought the job back last: "auto" or "person"."""
    deferrals: int = 0
    comes_back_at: float | None = None
    """When a dead letter of the delayed lane comes back by itself."""
    comebacks: int = 0
    """Entries of the table of comebacks that are used up since a person last brought the job back."""
    history: tuple[Attempt, ...] = ()

    @property
    def may_have_landed(self) -> bool:
        """Whether the outcome of the job is unknown, by its reason or, where no worker decided, by its detail."""
        return self.because == UNKNOWN or (self.because in _TOLD_BY_OTHERS and self.detail == UNKNOWN)

    @property
    def options(self) -> Options:
        try:
            return _decode_options(self.options_json) if self.options_json else NO_OPTIONS
        except msgspec.MsgspecError as error:
            raise JobError(f"the options of job {self.short_id} cannot be read here: {error}", job_id=self.id) from None

    @property
    def readable_options(self) -> Options:
        """The options for showing or discarding the job; none if the options cannot be read."""
        try:
            return self.options
        except JobError:
            return NO_OPTIONS

    @property
    def changes(self) -> list[dict[str, Json]]:
        return msgspec.json.decode(self.changes_json) if self.changes_json else []

    @property
    def arguments(self) -> dict[str, Json]:
        """The payload, decoded. Empty once retention has dropped it."""
        try:
            return msgspec.json.decode(self.payload) if self.payload else {}
        except msgspec.MsgspecError as error:
            problem = f"the payload of job {self.short_id} cannot be read: {error}; enqueue it anew, discard this one"
            raise JobError(problem, job_id=self.id) from None

    @property
    def result(self) -> Json:
        """The task's return value, decoded; `await rd.jobs.result(id)` reads large results, too. None once dropped."""
        try:
            return msgspec.json.decode(self.result_json) if self.result_json else None
        except msgspec.MsgspecError as error:
            raise JobError(f"the result of job {self.short_id} cannot be read: {error}", job_id=self.id) from None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def priority_name(self) -> str:
        return PRIORITIES[self.priority]

    @property
    def short_id(self) -> str:
        return self.id[-8:]


ATTRIBUTES: Final = dict(zip(Job.__struct_encode_fields__, Job.__struct_fields__, strict=True))
"""The attribute for each field of a job, by the name under which the field is stored and sent."""


def new_id(now: float, chance: int) -> str:
    """Make a uuid7 in hex, which sorts by time. `chance` gives its 74 random bits."""
    low = 0x8000_0000_0000_0000 | chance & 0x3FFF_FFFF_FFFF_FFFF
    return f"{int(now * 1000):012x}7{chance >> 62 & 0xFFF:03x}{low:016x}"


def keyed_id(queue: str, key: str) -> str:
    """Return the id of the job that owns this key, which is the same in every store and process."""
    return hashlib.sha256(f"{queue}\0{key}".encode()).hexdigest()[:32]


def hash_payload(payload: str | bytes, task: str) -> str:
    """Hash what a key stands for: the canonical payload and its task."""
    canonical = msgspec.json.encode(msgspec.json.decode(payload), order="sorted")
    return hashlib.sha256(task.encode() + b"\0" + canonical).hexdigest()[:32]


def legible(text: str | None) -> Json:
    """Decode stored JSON for people; damaged JSON is returned as its text."""
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.MsgspecError:
        return text


def public(job: Job) -> dict[str, Json]:
    """Return a job as the outside sees it (JSON in CLI, REST, MCP): decoded, ISO times, no tokens."""
    body: dict[str, Json] = {
        name: getattr(job, name) for name in Job.__struct_fields__ if name not in _PRIVATE and name not in _TIMES
    }
    body["priority"] = job.priority_name
    body["payload"] = legible(job.payload)
    body["result"] = legible(job.result_json)
    body["options"] = msgspec.to_builtins(job.readable_options)
    body["changes"] = job.changes
    body["history"] = [_public_attempt(attempt) for attempt in job.history]
    body.update({name: iso(getattr(job, name)) for name in _TIMES})
    return body


_TIMES = ("run_at", "created_at", "updated_at", "started_at", "first_failed_at", "held_at", "died_at", "comes_back_at")
_PRIVATE = {"token", "version", "options_json", "changes_json", "history", "payload", "result_json", "priority"}


def _public_attempt(attempt: Attempt) -> Mapping[str, Json]:
    body: dict[str, Json] = msgspec.to_builtins(attempt)
    for name in ("started_at", "ended_at"):
        if name in body:
            body[name] = iso(body[name])
    return body


_LAST_SECOND: Final = 253_402_300_799.0


def iso(at: float | None) -> str | None:
    """Write an instant as ISO 8601 in UTC with a Z. Instants after the year 9999 become its last second."""
    if at is None:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(min(at, _LAST_SECOND), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
