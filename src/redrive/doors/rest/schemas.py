"""The shapes of what is taken and answered, as the OpenAPI document tells them.

What is taken is checked against these; what is answered comes from the app's own `public()` views, and the tests hold
it against these. So the names are those of Python and of the command line's JSON.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from redrive.core.job import Category, Lane, OnLost, Priority, Reason, State
from redrive.core.times import read_time
from redrive.deadletters.filters import WORDS
from redrive.doors.rest.table import WHO

# -- words

PLAIN = r"^[^\x00-\x1f\x7f]+$"
TEN_YEARS = 315_360_000.0
Id = Annotated[str, Meta(description="A job's id, or a part of it that only one job has.")]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=PLAIN)]
Key = Annotated[str, Meta(min_length=1, max_length=500, pattern=PLAIN)]
Text = Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Words = Annotated[str, Meta(max_length=200)]
Because = Annotated[str, Meta(max_length=200, extra_json_schema={"enum": list(WORDS["because"])})]
Seconds = Annotated[float, Meta(ge=0, le=TEN_YEARS)]
Span = Annotated[float, Meta(gt=0, le=TEN_YEARS)]
Later = Annotated[float, Meta(ge=1, le=365 * 86400.0)]
Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Moment = Annotated[datetime, Meta(tz=True)]
When = Annotated[
    str,
    Meta(
        max_length=40,
        description="A date, or an instant with its offset: 2026-11-16, 2026-11-16T04:20:00Z.",
        extra_json_schema={"anyOf": [{"format": "date"}, {"format": "date-time"}]},
    ),
]
Cursor = Annotated[
    str,
    Meta(pattern=r"^[0-9]{1,15}(\.[0-9]{1,9})?:[0-9]{1,15}$", description="What the page before gave as its cursor."),
]
Limit = Annotated[int, Meta(ge=1, le=1000, description="How many at most.")]
Secrets = Annotated[bool, Meta(description="Show what looks like a secret instead of masking it.")]


class Taken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a request may say, and nothing else."""


class Given(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an answer says, and nothing else."""


class Saying(Taken):
    """Who does it and why, for the record."""

    who: Name = WHO
    why: Text | None = None


def moment(field: str, said: str | None) -> datetime | None:
    """A date or an instant of a query. A date is its midnight in UTC."""
    if said is None:
        return None
    text = said.upper().replace(" ", "+")  # as URLs spoil a plus
    is_date = len(said) <= len("2026-11-16")
    return read_time(field, text, zone=UTC if is_date else None)


def instant(field: str, said: str | None) -> float | None:
    """The same, in seconds."""
    found = moment(field, said)
    return None if found is None else found.timestamp()


# -- jobs


class Summary(Given):
    """A job in a list: everything but its contents and its attempts."""

    id: str
    queue: str
    task: str
    agent: str | None
    state: State
    priority: Priority
    reason: str
    run: int
    attempts: int
    allowed: int | None
    key: str | None
    session_id: str | None
    model: str | None
    because: str | None
    lane: Lane | None
    category: str | None
    detail: str | None
    error_class: str | None
    error: str | None
    fingerprint: str | None
    recommendation: str | None
    owner: str | None
    held_for: str | None
    created_at: Instant
    updated_at: Instant
    run_at: Instant
    started_at: Instant | None
    first_failed_at: Instant | None
    died_at: Instant | None
    comes_back_at: Instant | None


class JobOut(Summary):
    """A job with its contents and its whole history. What looks like a secret is masked unless it was asked for."""

    payload: Any
    result: Any
    options: dict[str, Any]
    changes: list[Any]
    history: list[dict[str, Any]]
    worker: str | None
    lease: float | None
    payload_hash: str | None
    crashes: int
    grants: int
    comebacks: int
    fresh_from: int
    subclass: str | None
    held_at: Instant | None
    held_seconds: float
    revived_by: str | None
    deferrals: int


class JobPage(Given):
    """Newest first. `cursor` continues; null at the end. The list may lag a moment: `as_of`."""

    items: list[Summary]
    cursor: str | None
    as_of: Instant


class Listed(Given):
    """A list that has no cursor says whether there is more than it shows: a larger `limit` shows it."""

    more: bool


class Accepted(Given):
    """What became of an enqueue. `duplicate`: the key was known, this is the job that was there already.

    `spooled`: the store could not take it, it waits beside it. `direct`: the spool could not either, it was called.
    """

    id: str
    state: State
    queue: str
    task: str
    duplicate: bool
    spooled: bool
    direct: bool
    warnings: list[str]


class BudgetIn(Taken):
    """What all attempts of a job together may spend."""

    tokens: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    output_tokens: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    cost: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    seconds: Seconds | None = None


class Wanted(Taken):
    """A payload, and what only this job asks for."""

    payload: dict[str, Any] = {}
    queue: Name | None = None
    run_at: Moment | None = None
    delay: Seconds | None = None
    priority: Priority | None = None
    idempotency_key: Key | None = None
    session_id: Name | None = None
    agent: Name | None = None
    model: Name | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    lease: Span | None = None
    max_age: Span | None = None
    on_lost: OnLost | None = None
    on_duplicate: Literal["return", "redrive"] | None = None
    budget: BudgetIn | None = None
    headers: dict[str, str] | None = None
    message_type: Name | None = None


class NewJob(Wanted, kw_only=True):
    """One job. `redrive.http` as the task sends an HTTP request: {"method": "POST", "url": …, "json": …}."""

    task: Name


class NewJobs(Taken, kw_only=True):
    """Many jobs of one task, each with its own options."""

    task: Name
    items: Annotated[list[Wanted], Meta(min_length=1, max_length=1000)]


class RefusedItem(Given):
    item: int
    why: str


class ManyOut(Given):
    """What became of each item, in order; null where it was refused."""

    ids: list[str | None]
    accepted: int
    duplicates: int
    spooled: int
    refused: list[RefusedItem]


class Filters(Taken):
    """Which jobs. Everything that is said must fit."""

    queue: Words | None = None
    task: Words | None = None
    agent: Words | None = None
    session: Words | None = None
    key: Annotated[str, Meta(max_length=500)] | None = None
    lane: Lane | None = None
    because: Because | None = None
    category: Category | None = None
    detail: Words | None = None
    error_class: Words | None = None
    error_kind: Words | None = None
    group: Annotated[Words, Meta(description="The fingerprint of an error group, or its beginning.")] | None = None
    owner: Words | None = None
    reason: Reason | None = None
    since: When | None = None
    until: When | None = None


class Chosen(Taken, kw_only=True):
    """Which jobs an act is about: these ids, or all that fit the filter. Everything at once must be asked for."""

    ids: Annotated[list[str], Meta(max_length=10_000)] = msgspec.field(default_factory=list)
    filter: Filters | None = None
    all: bool = False


class LetterQuery(Filters):
    """Which dead letters, and how many."""

    limit: Limit = 100
    cursor: Cursor | None = None


SearchText = Annotated[str, Meta(min_length=1, max_length=200, description="Text in the input or the last error.")]


class JobQuery(LetterQuery):
    """Which jobs, and how many."""

    state: Annotated[tuple[State, ...], Meta(max_length=7, description="Any of these; may be repeated.")] = ()
    text: SearchText | None = None


class OneJob(Taken):
    secrets: Secrets = False


class Resolving(Taken):
    """What a person saw. Landed: the job is done. Not landed: it runs again."""

    why: Text
    who: Name = WHO
    landed: bool = True


class Result(Given):
    """The whole result of a job that is done."""

    id: str
    state: State
    result: Any


class EffectQuery(OneJob):
    status: Literal["intended", "landed", "absent", "unknown"] | None = None
    limit: Limit = 100


class ResolvingEffect(Taken):
    """What a person saw. Landed: later calls return the result. Not landed: the next call performs it."""

    RULES: ClassVar[dict[str, Any]] = {
        "anyOf": [{"properties": {"landed": {"const": True}}}, {"properties": {"result": {"type": "null"}}}]
    }
    """What did not land has no result."""
    landed: bool
    result: Any = None
    who: Name = WHO
    why: Text | None = None


class Erased(Given):
    """How many jobs' contents are forgotten, and where they can still be read until something happens."""

    erased: int
    gone: bool
    waits_for: list[str]


# -- queues, health


class Switched(Given):
    """A queue's switch as it stands now."""

    queue: str
    paused: bool
