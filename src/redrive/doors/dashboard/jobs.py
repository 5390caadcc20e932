"""All jobs, whatever their state: filtered by the address, searched by a text in their input or their error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from redrive.core.job import State
from redrive.core.store import Filter
from redrive.deadletters.filters import make_filter
from redrive.doors.dashboard import choosing
from redrive.doors.dashboard.rendering import Site, page, rd_of, site_of
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive
    from redrive.core.store import Page

JOBS: Final = 50
LONGEST: Final = 200
ROUTE: Final = ("queue", "task", "agent")
NAMES_SECONDS: Final = 10.0
"""So long the names that the filters offer are not asked for again."""
STATES: Final = (*((str(state), str(state)) for state in State), ("due", "due now"), ("retrying", "retrying"))
"""What the filter offers: the states, and two parts of what waits."""
PARTS: Final = {"due": "due_at", "retrying": "failed"}
COUNTABLE: Final = frozenset({"state", "queue", "task", "agent", "no_agent", "due_at", "failed", "because", "held_for"})
"""Filters whose jobs are counted by counters or by a small index; others would have to be looked for one by one."""


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/jobs", listed, "jobs")]


async def listed(request: Request) -> Response:
    rd, asked = rd_of(request), request.query_params
    choice, cursor = choosing.read(asked), asked.get("cursor")
    state, text = asked.get("state", "").strip(), asked.get("text", "").strip()
    if len(text) > LONGEST:
        raise InvalidInput(field="text", problem=f"is longer than {LONGEST} characters")
    waits_for = asked.get("held_for", "").strip()
    filters = await choosing.filters(rd, choice) | _chosen(state, waits_for, rd.clock.now())
    jobs, looked_at = await _found(rd, text, cursor, filters)
    names = await site_of(request).fresh("names", lambda: _names(rd), NAMES_SECONDS)
    return await page(
        request, "jobs.html", section="jobs", choice=choice, state=state, text=text, listed=jobs, cursor=cursor,
        looked_at=looked_at, states=STATES, names=names, active=_active(choice, state, text, waits_for),
        since=choosing.SINCE, waits_for=waits_for, total=None if text else await _total(rd, filters),
    )  # fmt: skip


def _chosen(state: str, waits_for: str, now: float) -> dict[str, Any]:
    """Filters of this page alone: states, or a part of what waits, and what held jobs wait for."""
    if len(waits_for) > choosing.LONGEST:
        raise InvalidInput(field="held_for", problem=f"is longer than {choosing.LONGEST} characters")
    found: dict[str, Any] = {"held_for": waits_for} if waits_for else {}
    if state in PARTS:
        return found | {"state": "waiting", PARTS[state]: now if state == "due" else True}
    return found | {"state": state.split(",")} if state else found


async def _total(rd: Redrive, filters: Mapping[str, Any]) -> int | None:
    """How many jobs match, where that can be counted without looking at each."""
    if not filters.keys() <= COUNTABLE or ("because" in filters and filters.get("state") != ["held"]):
        return None
    chosen = make_filter(dict(filters))
    if chosen.due_at is None:
        return sum((await rd.store.count(chosen)).values())
    due = await rd.store.count(Filter(chosen.states, due_at=chosen.due_at), by=ROUTE)
    wanted = tuple(getattr(chosen, name) for name in ROUTE)
    return sum(
        number
        for key, number in due.items()
        if all(one in (None, is_) for one, is_ in zip(wanted, key, strict=True))
        and not (chosen.no_agent and key[ROUTE.index("agent")] is not None)
    )


async def _found(rd: Redrive, text: str, cursor: str | None, filters: dict[str, Any]) -> tuple[Page, int | None]:
    """A page of jobs, and how many were looked at where a text is searched."""
    if not text:
        return await rd.jobs.list(limit=JOBS, cursor=cursor, **filters), None
    found = await rd.jobs.search(text, limit=JOBS, cursor=cursor, secrets=False, **filters)
    return found.page, found.looked_at


async def _names(rd: Redrive) -> dict[str, list[str]]:
    """The names that jobs have, for the filters."""
    counted = await rd.store.count(Filter(), by=("queue", "task", "agent"))
    columns = zip(*counted, strict=True) if counted else ((), (), ())
    return {
        name: sorted({str(value) for value in values if value is not None})
        for name, values in zip(("queue", "task", "agent"), columns, strict=True)
    }


def _active(choice: choosing.Choice, state: str, text: str, waits_for: str) -> list[tuple[str, str]]:
    said = [("state", f"state {state.replace(',', ', ')}")] if state else []
    said += [("held_for", f"waits for {waits_for}")] if waits_for else []
    return [*said, *([("text", f"has “{text}”")] if text else []), *choice.active]
