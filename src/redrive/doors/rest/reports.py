"""Reports: the morning, weeks and months, failures, and series for plots."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from redrive.doors.rest import schemas
from redrive.doors.rest.schemas import NeedOut
from redrive.doors.rest.showing import masked
from redrive.doors.rest.table import Asked, Route

Zone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA time zone, e.g. Europe/Rome.")]


class CuredOut(schemas.Given):
    """An error group of which no dead letter is left."""

    fingerprint: str
    queue: str
    task: str
    error_class: str | None
    what: str
    last_at: schemas.Instant


class DeltaOut(schemas.Given):
    """Failures of one class, now and in the same time before."""

    error_class: str
    now: int
    before: int
    kind: Literal["new", "spike", "steady"]
    cured: bool
    more: int
    structural: bool


class MorningOut(schemas.Given):
    """What needs a person, and what changed. `ok` on a quiet day."""

    ok: bool
    since: schemas.Instant
    until: schemas.Instant
    queue: str | None
    done: int
    failed: int
    delayed: int
    retrying: int
    parked: int
    ignored: int
    deferred: int
    needs: list[NeedOut]
    cured: list[CuredOut]
    deltas: list[DeltaOut]
    oldest_waiting: dict[str, Any] | None


class MorningQuery(schemas.Taken):
    since: schemas.When | None = None
    queue: schemas.Words | None = None
    spike: Annotated[int, Meta(ge=1, le=10**6, description="So many more of one class are a change.")] = 3


class Mttr(schemas.Given):
    """Mean seconds from death to resolution."""

    auto: float | None
    person: float | None


class RowOut(schemas.Given):
    """One period, or one agent over all of them."""

    name: str
    since: schemas.Instant
    until: schemas.Instant
    complete: bool
    processed: int
    dead_letters: int
    rate: float | None
    auto_resolved: int
    auto_share: float | None
    human_required: int
    human_share: float | None
    resolved_by_person: int
    deferred: int
    open: int
    mttr_seconds: Mttr


class StrategyOut(schemas.Given):
    strategy: str
    worked: int
    failed: int
    success_rate: float
    pays: bool


class CauseOut(schemas.Given):
    category: str
    detail: str
    failed: int
    buried: int
    buried_before: int
    more: int


class ReportOut(schemas.Given):
    """Periods in order, their sum, and what is behind the dead letters."""

    kind: Literal["weekly", "monthly"]
    tz: str
    rows: list[RowOut]
    total: RowOut
    agents: list[RowOut]
    strategies: list[StrategyOut]
    causes: list[CauseOut]


class Of(schemas.Taken):
    """Of which jobs, and in which time zone days begin."""

    tz: Zone = "UTC"
    queue: schemas.Words | None = None
    task: schemas.Words | None = None
    agent: schemas.Words | None = None


class WeeklyQuery(Of):
    weeks: Annotated[int, Meta(ge=1, le=520)] = 4


class MonthlyQuery(Of):
    months: Annotated[int, Meta(ge=1, le=120)] = 12


class FailureQuery(Of):
    category: schemas.Words | None = None
    detail: schemas.Words | None = None
    error_class: schemas.Words | None = None
    date: Annotated[str, Meta(extra_json_schema={"format": "date"})] | None = None
    since: schemas.When | None = None
    until: schemas.When | None = None
    limit: Annotated[int, Meta(ge=0, le=1000)] = 50


class FailureLineOut(schemas.Given):
    day: str
    agent: str | None
    category: str
    detail: str
    error_class: str
    queue: str
    task: str
    failed: int
    buried: int


class FailureLogOut(schemas.Given):
    """Every failure of the time that fits, added up by day, and the latest of its dead letters."""

    since: schemas.Instant
    until: schemas.Instant
    tz: str
    failed: int
    buried: int
    by: dict[str, dict[str, int]]
    lines: list[FailureLineOut]
    more_lines: int
    letters: list[dict[str, Any]]
    more_letters: bool


class SeriesOut(schemas.Given):
    """One queue, or all of them, bucket by bucket."""

    queue: str
    enqueued: list[int]
    succeeded: list[int]
    retried: list[int]
    buried: list[int]
    redriven: list[int]
    backlog: list[int]


class ActivityOut(schemas.Given):
    """The same buckets for every queue; `starts` are seconds since 1970, as plots want them."""

    since: schemas.Instant
    until: schemas.Instant
    step: float
    starts: list[float]
    queues: list[SeriesOut]
    total: SeriesOut


class ActivityQuery(schemas.Taken):
    minutes: Annotated[int, Meta(ge=1, le=1440)] | None = None
    hours: Annotated[int, Meta(ge=1, le=1488)] | None = None
    queue: schemas.Words | None = None


class LoadOut(schemas.Given):
    """What one agent has to do now, and how it went lately."""

    agent: str | None
    waiting: int
    running: int
    held: int
    dead: int
    done: int
    retried: int
    buried: int
    mix: dict[str, int]
    failure_rate: float | None


class Loads(schemas.Given):
    items: list[LoadOut]


class LoadQuery(schemas.Taken):
    hours: Annotated[int, Meta(ge=1, le=1488)] = 24


async def morning(asked: Asked) -> Any:
    query: MorningQuery = asked.query
    page = await asked.rd.morning(schemas.moment("since", query.since), queue=query.queue, spike=query.spike)
    return masked(page.public())


async def weekly(asked: Asked) -> Any:
    query: WeeklyQuery = asked.query
    return (await asked.rd.reports.weekly(query.weeks, **_of(query))).public()


async def monthly(asked: Asked) -> Any:
    query: MonthlyQuery = asked.query
    return (await asked.rd.reports.monthly(query.months, **_of(query))).public()


def _of(query: Of) -> dict[str, Any]:
    return {name: getattr(query, name) for name in ("tz", "queue", "task", "agent")}


async def failures(asked: Asked) -> Any:
    query: FailureQuery = asked.query
    said: dict[str, Any] = {
        name: getattr(query, name) for name in ("category", "detail", "error_class", "date", "limit")
    }
    said |= {"since": schemas.moment("since", query.since), "until": schemas.moment("until", query.until)}
    return masked((await asked.rd.reports.failures(**said, **_of(query))).public())


async def activity(asked: Asked) -> Any:
    query: ActivityQuery = asked.query
    found = await asked.rd.reports.activity(minutes=query.minutes, hours=query.hours, queue=query.queue)
    return found.public()


async def load(asked: Asked) -> Any:
    return {"items": [one.public() for one in await asked.rd.reports.load(hours=asked.query.hours)]}


ROUTES: Final = (
    Route("GET", "/v1/reports/morning", morning, "What needs a person, and what changed.", MorningOut, MorningQuery),
    Route("GET", "/v1/reports/weekly", weekly, "The last weeks in numbers.", ReportOut, WeeklyQuery),
    Route("GET", "/v1/reports/monthly", monthly, "The last months in numbers.", ReportOut, MonthlyQuery),
    Route("GET", "/v1/reports/failures", failures, "What failed, by day.", FailureLogOut, FailureQuery),
    Route("GET", "/v1/reports/activity", activity, "Series for plots, by queue.", ActivityOut, ActivityQuery),
    Route("GET", "/v1/reports/load", load, "What each agent has to do, and how it went.", Loads, LoadQuery),
)
