"""All jobs, whatever their state: filtered by the address, searched by a text in their input or their error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redrive.core.job import State
from redrive.core.store import Filter
from redrive.doors.dashboard import choosing
from redrive.doors.dashboard.rendering import Site, page, rd_of, site_of
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.app import Redrive
    from redrive.core.store import Page

JOBS: Final = 50
LONGEST: Final = 200
NAMES_SECONDS: Final = 10.0
"""So long the names that the filters offer are not asked for again."""
STATES: Final = tuple(str(state) for state in State)


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/jobs", listed, "jobs")]


async def listed(request: Request) -> Response:
    rd, asked = rd_of(request), request.query_params
    choice, cursor = choosing.read(asked), asked.get("cursor")
    state, text = asked.get("state", "").strip(), asked.get("text", "").strip()
    if len(text) > LONGEST:
        raise InvalidInput(field="text", problem=f"is longer than {LONGEST} characters")
    filters = await choosing.filters(rd, choice)
    if state:
        filters["state"] = state.split(",")
    jobs, looked_at = await _found(rd, text, cursor, filters)
    names = await site_of(request).fresh("names", lambda: _names(rd), NAMES_SECONDS)
    return await page(
        request, "jobs.html", section="jobs", choice=choice, state=state, text=text, listed=jobs, cursor=cursor,
        looked_at=looked_at, states=STATES, names=names, active=_active(choice, state, text), since=choosing.SINCE,
    )  # fmt: skip


async def _found(rd: Redrive, text: str, cursor: str | None, filters: dict[str, Any]) -> tuple[Page, int | None]:
    """A page of jobs, and how many were looked at where a text is searched."""
    if not text:
        return await rd.jobs.list(limit=JOBS, cursor=cursor, **filters), None
    found = await rd.jobs.search(text, limit=JOBS, cursor=cursor, **filters)
    return found.page, found.looked_at


async def _names(rd: Redrive) -> dict[str, list[str]]:
    """The names that jobs have, for the filters."""
    counted = await rd.store.count(Filter(), by=("queue", "task", "agent"))
    columns = zip(*counted, strict=True) if counted else ((), (), ())
    return {
        name: sorted({str(value) for value in values if value is not None})
        for name, values in zip(("queue", "task", "agent"), columns, strict=True)
    }


def _active(choice: choosing.Choice, state: str, text: str) -> list[tuple[str, str]]:
    said = [("state", f"state {state.replace(',', ', ')}")] if state else []
    return [*said, *([("text", f"has “{text}”")] if text else []), *choice.active]
