"""Reads committed moves: the feed in order, the latest, those of some time, those of one job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import apsw

from redrive.core.job import State
from redrive.core.store import Event, MoveFilter, MovePage
from redrive.errors import InvalidInput
from redrive.stores.sqlite.records import LARGEST, STATES, Route, RouteCache, Row, match_routes, select

_MOVES: Final = (
    "SELECT moves.seq, moves.move, moves.at, jobs.route, jobs.id, moves.state, moves.run, moves.attempts,"
    " moves.who, moves.why FROM moves JOIN jobs ON jobs.seq = moves.job"
)
_JOBS: Final = (
    "SELECT seq, id, route, created_at,"
    " EXISTS (SELECT 1 FROM moves WHERE job = jobs.seq AND move = 'imported'),"
    " CASE version WHEN 1 THEN state ELSE 'waiting' END FROM jobs"
)
_FEED: Final = f"{_MOVES} WHERE moves.seq > ?1 AND moves.job <= ?3 ORDER BY moves.seq LIMIT ?2"
_OF_JOB: Final = f"{_MOVES} WHERE moves.job = ? ORDER BY moves.seq"


def read_events(connection: apsw.Connection, routes: RouteCache, after: str | None, limit: int = 1000) -> list[Event]:
    """New jobs, then moves: each job's own order is kept, and no committed move is left out."""
    if after is None:
        return [Event(_end(connection), "now", time.time(), "", "", "", State.waiting, 0, 0)]
    jobs, moves = _read_feed_cursor(after)
    names = routes.names(connection)
    feed: list[Event] = []
    for row in select(connection, f"{_JOBS} WHERE seq > ? ORDER BY seq LIMIT ?", (jobs, limit)):
        jobs, imported = row[0], row[4]
        if not imported:
            feed.append(_enqueued(f"{jobs}.{moves}", row, names))
    for row in connection.execute(_FEED, (moves, limit - len(feed), jobs)):
        moves = row[0]
        feed.append(_moved(f"{jobs}.{moves}", row, names))
    return feed


def read_latest(connection: apsw.Connection, routes: RouteCache, limit: int = 50) -> list[Event]:
    """New jobs and moves by time, newest first, each with the cursor of the end: going on after it misses nothing."""
    names, end = routes.names(connection), _end(connection)
    jobs = select(connection, f"{_JOBS} ORDER BY seq DESC LIMIT ?", (limit,))
    moves = select(connection, f"{_MOVES} ORDER BY moves.seq DESC LIMIT ?", (limit,))
    newest = [_enqueued(end, row, names) for row in jobs if not row[4]] + [_moved(end, row, names) for row in moves]
    return sorted(newest, key=lambda event: -event.at)[:limit]


def read_story(connection: apsw.Connection, routes: RouteCache, job_id: str) -> list[Event]:
    names = routes.names(connection)
    moves: list[Event] = []
    for row in select(connection, f"{_JOBS} WHERE id = ?", (job_id,)):
        seq, imported = row[0], row[4]
        if not imported:
            moves.append(_enqueued(f"{seq}.0", (*row[:5], State.waiting), names))
        moves += [_moved(f"{seq}.{move[0]}", move, names) for move in select(connection, _OF_JOB, (seq,))]
    return moves


def _end(connection: apsw.Connection) -> str:
    """Return the cursor after everything that has happened."""
    ends = "SELECT (SELECT ifnull(max(seq), 0) FROM jobs), (SELECT ifnull(max(seq), 0) FROM moves)"
    ((jobs, moves),) = select(connection, ends)
    return f"{jobs}.{moves}"


def _enqueued(cursor: str, row: Row, names: Mapping[int, Route]) -> Event:
    _, id, route, at, _, state = row
    return Event(cursor, "enqueued", at, id, *names[route][:2], STATES[state], 0, 0)


def _moved(cursor: str, row: Row, names: Mapping[int, Route]) -> Event:
    _, move, at, route, id, state, run, attempts, who, why = row
    return Event(cursor, move, at, id, *names[route][:2], STATES[state], run, attempts, who, why)


def _read_feed_cursor(text: str) -> tuple[int, int]:
    jobs, _, moves = (text or "0.0").partition(".")
    try:
        numbers = int(jobs), int(moves)
    except ValueError:
        numbers = -1, -1
    if not all(0 <= number <= LARGEST for number in numbers):
        raise InvalidInput(field="after", problem="not a cursor that the feed gave")
    return numbers


# -- the moves of some time, without an index over times: every move would pay for one

LOOKED_AT: Final = 20_000
"""Moves that one page looks at, at most."""
COUNTED: Final = 100_000
"""The moves of a time are counted where the time holds no more than these."""
SKEW: Final = 600.0
"""Moves are numbered as they are committed and timed by the clocks of their workers, which differ by less than this."""


class _Range(NamedTuple):
    """The numbers of the moves that a time can hold: after `low`, up to `high`."""

    low: int
    high: int


def read_moves(
    connection: apsw.Connection, routes: RouteCache, filter: MoveFilter, cursor: str | None = None, limit: int = 50
) -> MovePage:
    """Find the numbers at both ends of the time by bisection, then walk back from the newer end."""
    names = routes.names(connection)
    numbers, span = match_routes(names, filter), _range_of(connection, filter)
    total = _count(connection, filter, numbers, span) if span.high - span.low <= COUNTED else None
    high = span.high if cursor is None else min(span.high, _read_number(cursor))
    low = max(span.low, high - LOOKED_AT)
    clause, values = _where(filter, numbers, _Range(low, high))
    rows = select(connection, f"{_MOVES} WHERE {clause} ORDER BY moves.seq DESC LIMIT ?", (*values, limit))
    further = rows[-1][0] - 1 if len(rows) == limit else low
    page = [_moved(f"0.{row[0]}", row, names) for row in rows]
    return MovePage(page, str(further) if further > span.low else None, total)


def _range_of(connection: apsw.Connection, filter: MoveFilter) -> _Range:
    first, last = select(connection, "SELECT ifnull(min(seq), 1), ifnull(max(seq), 0) FROM moves")[0]
    low = _last_before(connection, filter.since - SKEW, first, last)
    return _Range(low, max(low, _last_before(connection, filter.until + SKEW, first, last)))


def _last_before(connection: apsw.Connection, at: float, first: int, last: int) -> int:
    """Find the number of the last move before that time; skips numbers of moves that were dropped."""
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        row = connection.execute("SELECT seq, at FROM moves WHERE seq >= ? ORDER BY seq LIMIT 1", (middle,)).fetchone()
        if row and row[1] < at:
            low = max(middle, min(row[0], high))
        else:
            high = middle - 1
    return low


def _count(connection: apsw.Connection, filter: MoveFilter, routes: Sequence[int] | None, within: _Range) -> int:
    clause, values = _where(filter, routes, within)
    joined = "moves JOIN jobs ON jobs.seq = moves.job"
    return int(connection.execute(f"SELECT count(*) FROM {joined} WHERE {clause}", values).get)


def _where(filter: MoveFilter, routes: Sequence[int] | None, within: _Range) -> tuple[str, list[object]]:
    kinds = ", ".join("?" * len(filter.moves))
    clause = f"moves.seq > ? AND moves.seq <= ? AND moves.move IN ({kinds}) AND moves.at >= ? AND moves.at < ?"
    if routes is not None:
        clause += f" AND jobs.route IN ({', '.join(map(str, routes))})"
    return clause, [*within, *filter.moves, filter.since, filter.until]


def _read_number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20) or int(cursor) > LARGEST:
        raise InvalidInput(field="cursor", problem="not a cursor that a listing gave")
    return int(cursor)
