"""Reports: the morning, weeks and months, failures, and series for plots."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from redrive.core.view import view
from redrive.doors.rest import schemas
from redrive.doors.rest.shapes import listed, shape
from redrive.doors.rest.table import Asked, Route
from redrive.reports.activity import Activity, AgentLoad
from redrive.reports.morning import Morning
from redrive.reports.periods import FailureLog, Report

Zone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA time zone, e.g. Europe/Rome.")]


class MorningQuery(schemas.Taken):
    since: schemas.When | None = None
    queue: schemas.Words | None = None
    spike: Annotated[int, Meta(ge=1, le=10**6, description="So many more of one class are a change.")] = 3


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


class ActivityQuery(schemas.Taken):
    minutes: Annotated[int, Meta(ge=1, le=1440)] | None = None
    hours: Annotated[int, Meta(ge=1, le=1488)] | None = None
    queue: schemas.Words | None = None


class LoadQuery(schemas.Taken):
    hours: Annotated[int, Meta(ge=1, le=1488)] = 24


async def morning(asked: Asked) -> Any:
    query: MorningQuery = asked.query
    page = await asked.rd.morning(schemas.moment("since", query.since), queue=query.queue, spike=query.spike)
    return view(page)


async def weekly(asked: Asked) -> Any:
    query: WeeklyQuery = asked.query
    return view(await asked.rd.reports.weekly(query.weeks, **_of(query)))


async def monthly(asked: Asked) -> Any:
    query: MonthlyQuery = asked.query
    return view(await asked.rd.reports.monthly(query.months, **_of(query)))


def _of(query: Of) -> dict[str, Any]:
    return {name: getattr(query, name) for name in ("tz", "queue", "task", "agent")}


async def failures(asked: Asked) -> Any:
    query: FailureQuery = asked.query
    said: dict[str, Any] = {
        name: getattr(query, name) for name in ("category", "detail", "error_class", "date", "limit")
    }
    said |= {"since": schemas.moment("since", query.since), "until": schemas.moment("until", query.until)}
    return view(await asked.rd.reports.failures(**said, **_of(query)))


async def activity(asked: Asked) -> Any:
    query: ActivityQuery = asked.query
    return view(await asked.rd.reports.activity(minutes=query.minutes, hours=query.hours, queue=query.queue))


async def load(asked: Asked) -> Any:
    return {"items": view(await asked.rd.reports.load(hours=asked.query.hours))}


ROUTES: Final = (
    Route(
        "GET", "/v1/reports/morning", morning, "What needs a person, and what changed.", shape(Morning), MorningQuery
    ),
    Route("GET", "/v1/reports/weekly", weekly, "The last weeks in numbers.", shape(Report), WeeklyQuery),
    Route("GET", "/v1/reports/monthly", monthly, "The last months in numbers.", shape(Report), MonthlyQuery),
    Route("GET", "/v1/reports/failures", failures, "What failed, by day.", shape(FailureLog), FailureQuery),
    Route("GET", "/v1/reports/activity", activity, "Series for plots, by queue.", shape(Activity), ActivityQuery),
    Route("GET", "/v1/reports/load", load, "What each agent has to do, and how it went.", listed(AgentLoad), LoadQuery),
)
