"""Lists of jobs: all jobs by filter or text, the jobs that an id may mean, and the moves that a number has counted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from redrive.core import times
from redrive.core.checks import is_part_of_id
from redrive.core.job import State
from redrive.core.store import MoveFilter
from redrive.doors.dashboard import words
from redrive.doors.dashboard.live import LOOKS
from redrive.doors.dashboard.rendering import go_to
from redrive.doors.dashboard.requests import LONGEST, SINCE, check_length, make_filters, read_choice, read_instant
from redrive.errors import JobNotFound
from redrive.reports.morning import DONE, FAILED

if TYPE_CHECKING:
    from starlette.responses import Response

    from redrive.api.redrive import Redrive
    from redrive.core.store import Page
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import ChosenDeadLetters, PageRequest

JOBS: Final = 50
LONGEST_TEXT: Final = 200
ROUTE: Final = ("queue", "task", "agent")
NAMES_SECONDS: Final = 10.0
"""How long the names that the filters offer are not asked for again."""
STATES: Final = (*((str(state), str(state)) for state in State), ("due", "due now"), ("retrying", "retrying"))
"""What the filter offers: the states, and two parts of what waits."""
PARTS: Final = {"due": "due_at", "retrying": "failed"}
COUNTABLE: Final = frozenset({"state", "queue", "task", "agent", "no_agent", "due_at", "failed", "because", "held_for"})
"""Filters whose jobs are counted by counters or by a small index; others would have to be looked for one by one."""


async def list_jobs(request: PageRequest) -> Values:
    rd, choice, cursor = request.rd, read_choice(request.query_params), request.query_params.get("cursor")
    state, text = request.text("state"), check_length("text", request.text("text"), LONGEST_TEXT)
    waits_for = check_length("held_for", request.text("held_for"), LONGEST)
    filters = await make_filters(rd, choice) | _filter_states(state, rd.clock.now())
    filters |= {"held_for": waits_for} if waits_for else {}
    jobs, looked_at = await _find_jobs(rd, text, cursor, filters)
    return {
        "choice": choice,
        "state": state,
        "text": text,
        "listed": jobs,
        "cursor": cursor,
        "looked_at": looked_at,
        "states": STATES,
        "names": await request.site.read_cached("names", lambda: _list_names(rd), NAMES_SECONDS),
        "active": _describe_filters(choice, state, text, waits_for),
        "since": SINCE,
        "waits_for": waits_for,
        "total": None if text else await _count_jobs(rd, filters),
    }


def _filter_states(state: str, now: float) -> dict[str, Any]:
    """Make the filter of a list of states, or of a part of what waits."""
    if state in PARTS:
        return {"state": "waiting", PARTS[state]: now if state == "due" else True}
    return {"state": state.split(",")} if state else {}


async def _count_jobs(rd: Redrive, filters: Mapping[str, Any]) -> int | None:
    """Count the jobs that match, where that is possible without reading each."""
    if not filters.keys() <= COUNTABLE or ("because" in filters and filters.get("state") != ["held"]):
        return None
    if "due_at" not in filters:
        return sum((await rd.jobs.count(**filters)).values())
    due = await rd.jobs.count(state=filters["state"], due_at=filters["due_at"], by=ROUTE)
    wanted = [filters.get(name) for name in ROUTE]
    return sum(
        number
        for key, number in due.items()
        if all(name in (None, of_job) for name, of_job in zip(wanted, key, strict=True))
        and not (filters.get("no_agent") and key[ROUTE.index("agent")] is not None)
    )


async def _find_jobs(rd: Redrive, text: str, cursor: str | None, filters: dict[str, Any]) -> tuple[Page, int | None]:
    """Find a page of jobs, and how many were looked at where a text is searched."""
    if not text:
        return await rd.jobs.list(limit=JOBS, cursor=cursor, **filters), None
    searched = await rd.jobs.search(text, limit=JOBS, cursor=cursor, secrets=False, **filters)
    return searched.page, searched.looked_at


async def _list_names(rd: Redrive) -> dict[str, list[str]]:
    """List the names that jobs have, for the filters."""
    counted = await rd.jobs.count(by=ROUTE)
    columns = zip(*counted, strict=True) if counted else ((), (), ())
    return {
        name: sorted({str(value) for value in values if value is not None})
        for name, values in zip(ROUTE, columns, strict=True)
    }


def _describe_filters(choice: ChosenDeadLetters, state: str, text: str, waits_for: str) -> list[tuple[str, str]]:
    own = (
        ("state", state, f"state {state.replace(',', ', ')}"),
        ("held_for", waits_for, f"waits for {waits_for}"),
        ("text", text, f"has “{text}”"),
    )
    return [*((name, description) for name, value, description in own if value), *choice.active]


# -- from an id to the job

MOST_ALIKE: Final = 50


async def find_job(request: PageRequest) -> Values | Response:
    """Open the job with this id or part of an id; where several jobs have that part, list the newest of them."""
    part = request.text("id").lower()
    try:
        job = await request.rd.jobs.get(part)
    except JobNotFound:
        alike = (await request.rd.jobs.list(id_part=part, limit=MOST_ALIKE)).jobs if is_part_of_id(part) else ()
        if not alike:
            raise
        return {"part": part, "jobs": alike, "most": MOST_ALIKE}
    return go_to(request, request.address("job", id=job.id))


# -- moves

MOVES: Final = 50
DAY: Final = "24h"
KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "done": ("done", DONE),
    "retried": ("failed, and tried again", ("retried",)),
    "died": ("died", FAILED),
    "buried": ("died in a worker", ("buried",)),
}
"""What may be asked for: its words, and the moves that it stands for."""


async def list_moves(request: PageRequest) -> Values:
    """List every move that a number of a page has counted, newest first."""
    choice, now = read_choice(request.query_params), request.rd.clock.now()
    what = request.choose("what", KINDS, "done")
    description, moves = KINDS[what]
    since, until = read_instant(choice.of("since") or DAY, now), _read_until(request, now)
    route = {name: choice.of(name) or None for name in ROUTE}
    chosen = MoveFilter(moves, since, until, **route, no_agent=bool(choice.of("no_agent")))
    cursor = request.query_params.get("cursor")
    return {
        "moves": await request.rd.jobs.moves(chosen, limit=MOVES, cursor=cursor),
        "what": what,
        "kinds": [(name, text) for name, (text, _) in KINDS.items()],
        "words": description,
        "since": since,
        "until": until,
        "cursor": cursor,
        "looks": LOOKS,
        "active": [(name, text) for name, text in choice.active if name in (*ROUTE, "no_agent")],
    }


def _read_until(request: PageRequest, now: float) -> float:
    """Read the end of the time, or take now; what happens at this very moment belongs to it."""
    text = request.text("until")
    if not text:
        return now + words.MOMENT
    return times.moment("until", times.read_time("until", text, zone=UTC))
