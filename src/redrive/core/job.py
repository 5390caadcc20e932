"""Job, Attempt, Failure, Cause: the nouns every other part passes around.

A Job is one row of the store, field by field, so that reading one costs a single constructor call. Rare, structured
parts (options, changes) travel as JSON text and are decoded at their first use.
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
"""A value that JSON can say."""
At = Annotated[float, msgspec.Meta(description="seconds since 1970")]
"""An instant. Answers to the outside write it as an ISO text."""


class State(StrEnum):
    """Where a job is. `purged` is the tombstone that remembers the key of a removed job."""

    waiting = "waiting"
    running = "running"
    held = "held"
    done = "done"
    dead = "dead"
    discarded = "discarded"
    purged = "purged"


ENDED = frozenset({State.done, State.dead, State.discarded, State.purged})

CYCLE = "cycle:"
"""Queues of scripts begin so: their jobs run where the script runs, and no worker takes them."""

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
"""Stands in the setting `trace_url` for the id of a job's trace."""
DISCARD_REASONS = ("cancelled", "discarded")
UNKNOWN: Final = "outcome_unknown"
_TOLD_BY_OTHERS: Final = frozenset({"diverted", "imported", "restored"})
"""Reasons of dead letters that no worker decided; what happened stands in their detail."""


Ending = Literal["died", "lapsed", "frozen", "stopped"]
"""How a running job lost its worker: the process is gone; its lease lapsed, for an unknown reason; the process lives
and stood still; or it was told to stop and was gone before it gave the job back."""


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all attempts of a job together may spend."""

    tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an attempt has spent, as the task reported it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, self.cost + other.cost
        )


CHAIN: Final = 6
"""Failures of one chain of causes that are looked at."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What was seen when an attempt failed: plain data, no exception objects, secrets already removed.

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
    """Where it was raised and who called that, as `module:function:line`, innermost first."""
    cause: Failure | None = None
    members: tuple[Failure, ...] = ()
    recommendation: str | None = None
    body: str | None = None
    """What the receiver answered, shortened."""
    codes: tuple[str, ...] = ()
    """Every code the failure or its answer names, the most specific first; `code` is the first of them."""
    rpc_code: int | None = None
    """A JSON-RPC code, as MCP uses them."""
    rpc_status: str | None = None
    """The name of a gRPC status."""
    retryable: bool | None = None
    """What the failure says of itself, where it says so."""
    host: str | None = None
    """Whom the failed call was for."""
    model_call: bool = False
    """Whether the address is one where models answer."""
    output_hash: str | None = None
    """Of the wrong output that the failure carries: the same one is recognised again."""
    origin: tuple[str, ...] = ()
    """The innermost frames of the application itself, where libraries lie above them."""
    model_asked: bool = False
    """Whether the attempt had asked a model: its libraries show it, or its task says so. Read only of unfit data."""
    source: tuple[str | None, ...] = ()
    """The source line of each of `frames`: None for a library's frame, "" where the application's cannot be read."""

    @property
    def wrapped(self) -> tuple[Failure, ...]:
        """The failures that this one was raised from or groups."""
        return self.members if self.cause is None else (self.cause, *self.members)

    def chain(self) -> Iterator[Failure]:
        """Yields the failure and the causes that it was raised from, six at most."""
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
    """What a failure means, and which rule said so."""

    category: Category
    detail: str
    heals: Heals
    rule: str = ""
    subclass: Subclass = "Transient"
    retry_after: float | None = None


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One execution of a job, kept for ever with it."""

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
    """What was decided to try next; the changes that the next attempt ran with stand there."""
    tier: str | None = None
    version: str | None = None
    """Of the application that ran it, where it says so."""
    effects: dict[str, str] | None = None
    """What was seen outside of each declared effect, where a verifier looked."""
    looked: Literal["before", "after"] | None = None
    """Whether that was before the task ran, which a replay does, or after it had failed."""
    witness: Json = None
    """What there was to look for."""
    registry_auto_recovered: bool = False
    """Something that the task requires had been away, and was back when this attempt asked."""


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the caller asked for this job alone; the top of the precedence."""

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
    """One piece of work and where it stands. Same id from enqueue to the end."""

    id: str
    queue: str
    task: str
    agent: str | None
    state: State
    priority: int
    run_at: float
    version: int
    """The fence: grows with every write. Opaque outside the store."""
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
    """JSON text; `result` is the same, decoded. A large one stands apart, and this says so."""
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
    """Tries count anew after this run: a person brought the job back then."""
    held_for: str | None = None
    """What exactly a held job waits for: a breaker, a step, a question."""
    owner: str | None = None
    """Who must see to a dead letter."""
    died_at: float | None = None
    """When it first became a dead letter; reports count from then until it is done or discarded."""
    revived_by: str | None = None
    """Who brought it back last: "auto" or "person"."""
    deferrals: int = 0
    comes_back_at: float | None = None
    """When a dead letter of the delayed lane comes back by itself."""
    comebacks: int = 0
    """Times of the table of comebacks that are behind it, since a person last brought it back."""
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
        """The options for showing or discarding the job: none where they cannot be read."""
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
        """What its task returned, decoded; `await rd.jobs.result(id)` reads a large one, too. None once dropped."""
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
"""The attribute that holds each field of a job, by the name under which the field is stored and sent."""


def new_id(now: float, chance: int) -> str:
    """A uuid7 in hex: sorts by time. `chance` gives its 74 random bits."""
    low = 0x8000_0000_0000_0000 | chance & 0x3FFF_FFFF_FFFF_FFFF
    return f"{int(now * 1000):012x}7{chance >> 62 & 0xFFF:03x}{low:016x}"


def keyed_id(queue: str, key: str) -> str:
    """The id of the job that owns this key: the same in every store and process."""
    return hashlib.sha256(f"{queue}\0{key}".encode()).hexdigest()[:32]


def hash_payload(payload: str | bytes, task: str) -> str:
    """What a key stands for: the canonical payload and the task it is for."""
    canonical = msgspec.json.encode(msgspec.json.decode(payload), order="sorted")
    return hashlib.sha256(task.encode() + b"\0" + canonical).hexdigest()[:32]


def legible(text: str | None) -> Json:
    """Stored JSON as people see it; where it is damaged, the text as it stands."""
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.MsgspecError:
        return text


def public(job: Job) -> dict[str, Json]:
    """A job as the outside sees it (JSON in CLI, REST, MCP): decoded, ISO times, no tokens."""
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
    """An instant as the outside writes it: ISO 8601 in UTC with a Z. There is no year after 9999."""
    if at is None:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(min(at, _LAST_SECOND), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
