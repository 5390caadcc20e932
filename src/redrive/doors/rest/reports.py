"""Reports: the morning, weeks and months, failures, and series for plots."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta
from msgspec.structs import asdict

from redrive.core.view import view
from redrive.doors.rest.answers import items_of, shape
from redrive.doors.rest.inputs import RequestFields, When, Words, read_moment
from redrive.doors.rest.route import ApiRequest, Routes
from redrive.reports.activity import Activity, AgentLoad
from redrive.reports.morning import Morning
from redrive.reports.periods import FailureLog, Report

routes: Final = Routes()
Zone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA time zone, e.g. Europe/Rome.")]
Hours = Annotated[int, Meta(ge=1, le=1488)]


class MorningQuery(RequestFields):
    since: When | None = None
    queue: Words | None = None
    spike: Annotated[int, Meta(ge=1, le=10**6, description="So many more of one class are a change.")] = 3


class PeriodQuery(RequestFields):
    """Of which jobs, and in which time zone days begin."""

    tz: Zone = "UTC"
    queue: Words | None = None
    task: Words | None = None
    agent: Words | None = None


class WeeklyQuery(PeriodQuery):
    weeks: Annotated[int, Meta(ge=1, le=520)] = 4


class MonthlyQuery(PeriodQuery):
    months: Annotated[int, Meta(ge=1, le=120)] = 12


class FailureQuery(PeriodQuery):
    category: Words | None = None
    detail: Words | None = None
    error_class: Words | None = None
    date: Annotated[str, Meta(extra_json_schema={"format": "date"})] | None = None
    since: When | None = None
    until: When | None = None
    limit: Annotated[int, Meta(ge=0, le=1000)] = 50


class ActivityQuery(RequestFields):
    minutes: Annotated[int, Meta(ge=1, le=1440)] | None = None
    hours: Hours | None = None
    queue: Words | None = None


class LoadQuery(RequestFields):
    hours: Hours = 24


@routes.get("/v1/reports/morning", shape(Morning), MorningQuery)
async def morning(request: ApiRequest) -> Any:
    """Tells what needs a person, and what changed."""
    query: MorningQuery = request.query
    since = read_moment("since", query.since)
    return view(await request.rd.morning(since, queue=query.queue, spike=query.spike))


REPORTS: Final = {
    "weekly": {"does": "Reports the last weeks in numbers.", "answer": shape(Report), "query": WeeklyQuery},
    "monthly": {"does": "Reports the last months in numbers.", "answer": shape(Report), "query": MonthlyQuery},
    "failures": {"does": "Lists what failed, by day.", "answer": shape(FailureLog), "query": FailureQuery},
    "activity": {"does": "Gives series for plots, by queue.", "answer": shape(Activity), "query": ActivityQuery},
}


@routes.add_each("GET", "/v1/reports", REPORTS)
async def report(name: str, request: ApiRequest) -> Any:
    """Makes the report of this name."""
    query = asdict(request.query)
    moments = {field: read_moment(field, query[field]) for field in ("since", "until") if field in query}
    return view(await getattr(request.rd.reports, name)(**query | moments))


@routes.get("/v1/reports/load", items_of(AgentLoad), LoadQuery)
async def load(request: ApiRequest) -> Any:
    """Lists what each agent has to do, and how it went."""
    return {"items": view(await request.rd.reports.load(hours=request.query.hours))}
