"""Finds, counts and times jobs, by the index that fits each question."""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import apsw

from redrive.core.job import PRIORITIES, Job, State
from redrive.core.store import Filter, Page, Quiet, Returning, Seal
from redrive.core.timings import TimedBy, Timing, timings_of
from redrive.errors import InvalidInput
from redrive.stores.sqlite.records import LARGEST, RouteCache, Row, get, list_jobs, match_routes, select
from redrive.stores.sqlite.search_filter import (
    COUNTED,
    FEW,
    GROUPABLE,
    WATCHED,
    choose_states,
    has_any,
    name_index,
    write_union,
    write_where,
)

Counts = dict[tuple[str | None, ...], int]

_OF_ROUTE: Final = ("queue", "task", "agent")


# -- lists


def find(
    connection: apsw.Connection,
    routes: RouteCache,
    filter: Filter,
    cursor: str | None = None,
    limit: int = 100,
    *,
    oldest: bool = False,
) -> Page:
    """List by the last change where one partial index covers the state, else by arrival."""
    wanted = match_routes(routes.names(connection), filter)
    if not has_any(connection, filter, wanted):
        return Page([], None, time.time())
    place = None if cursor is None else _read_cursor(cursor)
    write = _rows_by_state if choose_states(filter) else _rows
    rows, values = write(connection, filter, wanted, place, oldest=oldest)
    listed = list_jobs(connection, routes, rows, (*values, limit))
    more = f"{listed[-1][0].updated_at!r}:{listed[-1][1]}" if listed and len(listed) == limit else None
    return Page([job for job, _ in listed], more, time.time())


_Query = tuple[str, list[object]]
"""What follows the columns of a query, up to its limit, and the values."""


def _rows(
    connection: apsw.Connection,
    filter: Filter,
    routes: Sequence[int] | None,
    after: tuple[float, int] | None,
    *,
    oldest: bool,
) -> _Query:
    clause, values = write_where(filter, routes)
    by_change = len(filter.states) == 1 and filter.states[0] in WATCHED
    way, beyond = _way(oldest=oldest)
    order = f"jobs.updated_at {way}, jobs.seq {way}" if by_change else f"jobs.seq {way}"
    if after is not None:
        clause += f" AND (jobs.updated_at, jobs.seq) {beyond} (?, ?)" if by_change else f" AND jobs.seq {beyond} ?"
        values += after if by_change else after[1:]
    return f"FROM jobs {name_index(connection, filter)} WHERE {clause} ORDER BY {order} LIMIT ?", values


def _rows_by_state(
    connection: apsw.Connection,
    filter: Filter,
    routes: Sequence[int] | None,
    after: tuple[float, int] | None,
    *,
    oldest: bool,
) -> _Query:
    """Find the numbers of the page in one index of each state, then read those rows alone."""
    way, beyond = _way(oldest=oldest)
    further = f" AND jobs.seq {beyond} ?" if after is not None else ""
    union, values = write_union(filter, routes, ["seq"], further, (after or ())[1:])
    return f"FROM jobs WHERE seq IN (SELECT seq FROM ({union}) ORDER BY seq {way} LIMIT ?) ORDER BY seq {way}", values


def _way(*, oldest: bool) -> tuple[str, str]:
    return ("ASC", ">") if oldest else ("DESC", "<")


def find_first(
    connection: apsw.Connection, routes: RouteCache, filters: Sequence[Filter], *, oldest: bool = False
) -> list[Job | None]:
    """Answer all filters from one snapshot: a read of its own for each costs more than finding the job."""
    pages = (find(connection, routes, filter, None, 1, oldest=oldest) for filter in filters)
    return [next(iter(page.jobs), None) for page in pages]


def _read_cursor(text: object) -> tuple[float, int]:
    at, _, seq = str(text).partition(":")
    try:
        place = float(at), int(seq)
    except ValueError:
        place = math.nan, 0
    if not math.isfinite(place[0]) or not 0 <= place[1] <= LARGEST:
        raise InvalidInput(field="cursor", problem="not a cursor that a listing gave")
    return place


_PLACES: Final = ", ".join(f"({priority})" for priority in range(len(PRIORITIES)))
_DUE_LONGEST: Final = (
    f"WITH places (priority) AS (VALUES {_PLACES}) SELECT routes.id, places.priority, (SELECT run_at FROM jobs"
    " INDEXED BY jobs_due WHERE route = routes.id AND state = 'waiting' AND priority = places.priority AND run_at <= ?1"
    " ORDER BY run_at LIMIT 1) AS since FROM routes CROSS JOIN places WHERE waiting > 0"
    " AND (?2 IS NULL OR queue = ?2) AND (?3 IS NULL OR task = ?3) AND since IS NOT NULL ORDER BY since LIMIT ?4"
)
_OVERDUE: Final = (
    "SELECT id, run_at FROM jobs INDEXED BY jobs_due"
    " WHERE route = ? AND state = 'waiting' AND priority = ? AND run_at <= ? ORDER BY run_at LIMIT ?"
)


def find_overdue(
    connection: apsw.Connection,
    routes: RouteCache,
    now: float,
    queue: str | None = None,
    limit: int = 1,
    *,
    task: str | None = None,
) -> list[Job]:
    """Find them by one seek per route and priority, then only where the longest due ones are."""
    due = [
        (run_at, id)
        for route, priority, _ in select(connection, _DUE_LONGEST, (now, queue, task, limit))
        for id, run_at in connection.execute(_OVERDUE, (route, priority, now, limit))
    ]
    return get(connection, routes, [id for _, id in sorted(due)[:limit]])


def seal(connection: apsw.Connection, routes: RouteCache, filter: Filter) -> Seal:
    """Digest the jobs' numbers in this file, which the indexes hold; sorting in SQL would cost more than reading."""
    wanted = match_routes(routes.names(connection), filter)
    rows: list[Row] = []
    if has_any(connection, filter, wanted):
        source, values = _source(connection, filter, wanted, ["seq"])
        rows = select(connection, f"SELECT seq {source}", values)
    numbers = array("q", sorted(seq for (seq,) in rows))
    return Seal(len(numbers), hashlib.sha256(numbers.tobytes()).hexdigest())


_LAST_SIGN: Final = "max(started_at, ifnull(active_at, started_at))"
"""When a running job last showed progress. A claim leaves an older `active_at` behind: the later one counts."""
_QUIET: Final = (
    "FROM jobs WHERE state = 'running' AND state IN ('running', 'held')"
    f" AND updated_at < ?1 AND {_LAST_SIGN} < ?1 ORDER BY 1 + {_LAST_SIGN} LIMIT ?2"
)


def find_quiet(connection: apsw.Connection, routes: RouteCache, since: float, limit: int = 100) -> list[Quiet]:
    return [Quiet(*pair) for pair in list_jobs(connection, routes, _QUIET, (since, limit), _LAST_SIGN)]


# -- counts


def count(connection: apsw.Connection, routes: RouteCache, filter: Filter, by: Sequence[str] = ()) -> Counts:
    """Count from the counters where they can say it, else by the filter's index."""
    unknown = set(by) - GROUPABLE
    if unknown:
        raise InvalidInput(field="by", problem=f"cannot count by {', '.join(sorted(unknown))}")
    due = Filter((State.waiting,), due_at=filter.due_at)
    if filter.due_at is not None and filter == due and set(by) <= set(_OF_ROUTE):
        return _count_due(connection, filter.due_at, by)
    plain = Filter(
        states=filter.states, queue=filter.queue, task=filter.task, agent=filter.agent, no_agent=filter.no_agent
    )
    if filter == plain and set(by) <= COUNTED:
        return _from_counters(connection, filter, by)
    if filter.states == (State.dead,) and filter.lane is None and "lane" in by:
        return _count_by_lane(connection, routes, filter, by)
    return _count_rows(connection, routes, filter, by)


def _count_by_lane(connection: apsw.Connection, routes: RouteCache, filter: Filter, by: Sequence[str]) -> Counts:
    """Subtract the other lanes from the sum: most jobs wait in the manual lane, and sorting those by it is slowest."""
    place = list(by).index("lane")
    every = count(connection, routes, filter, [*by[:place], *by[place + 1 :]])
    elsewhere = _count_rows(connection, routes, filter, by, only="jobs.lane IS NOT 'manual'")
    for key, number in elsewhere.items():
        rest = key[:place] + key[place + 1 :]
        every[rest] = every.get(rest, 0) - number
    return elsewhere | {(*key[:place], "manual", *key[place:]): number for key, number in every.items() if number}


def _count_rows(
    connection: apsw.Connection, routes: RouteCache, filter: Filter, by: Sequence[str], *, only: str = "true"
) -> Counts:
    """Group by columns of the job alone; the names of its route are filled in afterwards."""
    names = routes.names(connection)
    wanted = match_routes(names, filter)
    totals: Counts = {} if by else {(): 0}
    if not has_any(connection, filter, wanted):
        return totals
    columns = list(dict.fromkeys("route" if name in _OF_ROUTE else name for name in by))
    source, values = _source(connection, filter, wanted, columns, only)
    grouped = f" GROUP BY {', '.join(columns)}" if columns else ""
    rows = select(connection, f"SELECT {', '.join([*columns, 'count(*)'])} {source}{grouped}", values)
    for row in rows:
        fields = dict(zip(columns, row, strict=False))
        if "route" in fields:
            fields |= zip(_OF_ROUTE, names[fields["route"]], strict=True)
        key = tuple(fields[name] for name in by)
        totals[key] = totals.get(key, 0) + row[-1]
    return totals


def _source(
    connection: apsw.Connection,
    filter: Filter,
    routes: Sequence[int] | None,
    columns: Sequence[str],
    only: str = "true",
) -> _Query:
    """Write where the columns of such jobs come from, `only` those that fulfil a condition."""
    if choose_states(filter):
        union, values = write_union(filter, routes, columns or ["1"], f" AND {only}")
        return f"FROM ({union})", values
    clause, values = write_where(filter, routes)
    return f"FROM jobs {_count_hint(connection, filter, columns)} WHERE {clause} AND {only}", values


def _count_hint(connection: apsw.Connection, filter: Filter, columns: Sequence[str]) -> str:
    """Count by group in the order of the groups, unless few jobs are of that time: sorting few costs less."""
    plain = Filter(states=(State.dead,), lane=filter.lane, since=filter.since, until=filter.until)
    if filter == plain and columns and set(columns) <= {"fingerprint", "lane"} and not _few_died(connection, filter):
        return "INDEXED BY jobs_group"
    return name_index(connection, filter)


def _few_died(connection: apsw.Connection, filter: Filter) -> bool:
    """Whether few dead letters changed last in the filter's time; stops counting where they are not few."""
    if filter.since is None and filter.until is None:
        return False
    clause, values = write_where(Filter(states=(State.dead,), since=filter.since, until=filter.until), None)
    some = f"SELECT 1 FROM jobs INDEXED BY jobs_dead WHERE {clause} LIMIT {FEW + 1}"
    return int(connection.execute(f"SELECT count(*) FROM ({some})", values).get) <= FEW


_SCHEDULED: Final = " - ".join(
    "(SELECT count(*) FROM jobs"
    f" WHERE route = routes.id AND state = 'waiting' AND priority = {priority} AND run_at > ?1)"
    for priority in range(len(PRIORITIES))
)


def _count_due(connection: apsw.Connection, at: float, by: Sequence[str]) -> Counts:
    """Subtract what is scheduled for later from the counters: due jobs cost nothing, later ones an index scan."""
    totals: Counts = {} if by else {(): 0}
    names = ", ".join((f"waiting - {_SCHEDULED}", *by))
    for due, *key in select(connection, f"SELECT {names} FROM routes WHERE waiting > 0", (at,)):
        if due > 0:
            totals[*key,] = totals.get((*key,), 0) + due
    return totals


COUNTERS: Final = "SELECT id, " + ", ".join(State) + " FROM routes"
_NUMBERS: Final = (*State, "forgotten")
"""What a route counts: its jobs by state, and how many ended ones were forgotten altogether."""


def _from_counters(connection: apsw.Connection, filter: Filter, by: Sequence[str]) -> Counts:
    wanted = [state for state in _NUMBERS if not filter.states or state in filter.states]
    names = [name for name in _OF_ROUTE if name in by]
    given = {name: value for name in _OF_ROUTE if (value := getattr(filter, name)) is not None}
    clauses = [*(f"{name} = ?" for name in given), *(["agent IS NULL"] if filter.no_agent else [])]
    columns = ", ".join([*names, *(f"sum({state})" for state in wanted)])
    grouped = f" GROUP BY {', '.join(names)}" if names else ""
    sql = f"SELECT {columns} FROM routes WHERE {' AND '.join(clauses) or 'true'}{grouped}"
    totals: Counts = {} if by else {(): 0}
    for row in select(connection, sql, tuple(given.values())):
        route = dict(zip(names, row, strict=False))
        for state, number in zip(wanted, row[len(names) :], strict=True):
            if number:
                key = tuple(str(state) if name == "state" else route[name] for name in by)
                totals[key] = totals.get(key, 0) + number
    return totals


_RETURNING: Final = (
    "SELECT fingerprint, held_for, route, count(*), sum(comes_back_at <= ?), min(comes_back_at)"
    " FROM jobs INDEXED BY jobs_returning WHERE state = 'dead' AND comes_back_at IS NOT NULL GROUP BY 1, 2, 3"
)


def count_returning(connection: apsw.Connection, routes: RouteCache, now: float) -> list[Returning]:
    names = routes.names(connection)
    return [
        Returning(fingerprint, held_for, *names[route][:2], *numbers)
        for fingerprint, held_for, route, *numbers in select(connection, _RETURNING, (now,))
    ]


# -- how long jobs waited and took, without an index over what is done: every success would pay for one

MOVES: Final = 10_000
"""Timings look at so many of the last moves: what ended last is there, however long the backlog behind it is."""
JOBS: Final = 100_000
"""Routes without a success among those moves are looked for among so many of the newest jobs."""
_TOOK: Final = (
    "SELECT updated_at - started_at FROM jobs WHERE state = 'done' AND started_at IS NOT NULL AND route IN ({})"
    f" AND seq > (SELECT max(seq) FROM jobs) - {JOBS} ORDER BY seq DESC LIMIT ?"
)
_ENDED: Final = (
    "SELECT jobs.route, jobs.started_at - jobs.run_at, moves.at - jobs.started_at"
    " FROM moves CROSS JOIN jobs ON jobs.seq = moves.job"
    " WHERE moves.seq > (SELECT max(seq) FROM moves) - ? AND moves.move = 'succeeded'"
    " AND jobs.state = 'done' AND jobs.started_at IS NOT NULL ORDER BY moves.seq DESC"
)
_NEWEST: Final = (
    "SELECT jobs.route, jobs.started_at - jobs.run_at, jobs.updated_at - jobs.started_at FROM jobs"
    " WHERE jobs.seq > (SELECT max(seq) FROM jobs) - ? AND jobs.state = 'done' AND jobs.route IN ({})"
    " AND jobs.started_at IS NOT NULL ORDER BY jobs.seq DESC"
)


def measure_durations(connection: apsw.Connection, routes: RouteCache, task: str, last: int = 100) -> list[float]:
    numbers = ", ".join(str(number) for number, route in routes.names(connection).items() if route[1] == task)
    return [seconds for (seconds,) in select(connection, _TOOK.format(numbers), (last,))]


def measure_timings(connection: apsw.Connection, routes: RouteCache, by: TimedBy) -> list[Timing]:
    names, place = routes.names(connection), _OF_ROUTE.index(by)
    return timings_of((str(names[route][place]), waited, took) for route, waited, took in _measure(connection))


def _measure(connection: apsw.Connection) -> Iterator[Row]:
    """Yield route, wait and duration, newest first: by what ended last, then by what was enqueued last."""
    ended = select(connection, _ENDED, (MOVES,))
    yield from ended
    seen = {route for route, _, _ in ended}
    missing = [route for (route,) in select(connection, "SELECT id FROM routes WHERE done > 0") if route not in seen]
    if missing:
        yield from select(connection, _NEWEST.format(", ".join(map(str, missing))), (JOBS,))
