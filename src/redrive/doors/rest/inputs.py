"""The types of what REST takes: words, queries and bodies that several routes share. Requests are checked by them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from redrive.core.job import Category, Lane, Reason
from redrive.core.times import read_time
from redrive.deadletters.filters import WORDS

WHO: Final = "rest"
"""Who did it, where neither the token nor the caller says."""
PLAIN: Final = r"^[^\x00-\x1f\x7f]+$"
TEN_YEARS: Final = 315_360_000.0
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=PLAIN)]
Key = Annotated[str, Meta(min_length=1, max_length=500, pattern=PLAIN)]
Text = Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Words = Annotated[str, Meta(max_length=200)]
Because = Annotated[str, Meta(max_length=200, extra_json_schema={"enum": list(WORDS["because"])})]
Seconds = Annotated[float, Meta(ge=0, le=TEN_YEARS)]
Duration = Annotated[float, Meta(gt=0, le=TEN_YEARS)]
Later = Annotated[float, Meta(ge=1, le=365 * 86400.0)]
Moment = Annotated[datetime, Meta(tz=True)]
When = Annotated[
    str,
    Meta(
        max_length=40,
        description="A date, or an instant with its offset: 2026-11-16, 2026-11-16T04:20:00Z.",
        extra_json_schema={"anyOf": [{"format": "date"}, {"format": "date-time"}]},
    ),
]
_CURSOR: Final = r"^[0-9]{1,15}(\.[0-9]{1,9})?:[0-9]{1,15}$"
Cursor = Annotated[str, Meta(pattern=_CURSOR, description="The `cursor` of the page before.")]
Limit = Annotated[int, Meta(ge=1, le=1000, description="How many at most.")]
Secrets = Annotated[bool, Meta(description="Show what looks like a secret instead of masking it.")]


class RequestFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that a request may have, and nothing else."""


def named(name: str) -> Any:
    """Names a type in the OpenAPI document otherwise than its class: another class of redrive has that name."""

    def rename(kind: type) -> type:
        kind.__name__ = name
        return kind

    return rename


@named("Taken")
class NoFields(RequestFields):
    """What a request may say, and nothing else."""


class ByWhom(RequestFields):
    """Who does it, for the record."""

    who: Name = WHO


class Saying(ByWhom):
    """Who does it and why, for the record."""

    why: Text | None = None


class LimitQuery(RequestFields):
    limit: Limit = 100


class SecretsQuery(RequestFields):
    secrets: Secrets = False


class Filters(RequestFields):
    """Which jobs: those that match every given filter."""

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


class JobSelection(RequestFields, kw_only=True):
    """Which jobs an act is about: these ids, or all that fit the filter. Everything at once must be asked for."""

    ids: Annotated[list[str], Meta(max_length=10_000)] = msgspec.field(default_factory=list)
    filter: Filters | None = None
    all: bool = False


class PageQuery(Filters):
    """Which jobs, and how many."""

    limit: Limit = 100
    cursor: Cursor | None = None


def read_moment(field: str, text: str | None) -> datetime | None:
    """Reads a date or an instant of a query. A date is its midnight in UTC."""
    if text is None:
        return None
    is_date = len(text) <= len("2026-11-16")
    return read_time(field, text.upper().replace(" ", "+"), zone=UTC if is_date else None)  # URLs spoil a plus
