"""Lists the moves of some time, newest first, without an index over their times: every one would cost each move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import apsw

from redrive.core.store import MoveFilter, MovePage
from redrive.errors import InvalidInput
from redrive.stores.sqlite import reads
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import select

LOOKED_AT: Final = 20_000
"""Moves that one page looks at, at most."""
COUNTED: Final = 100_000
"""The moves of a time are counted where it holds no more than these."""
SKEW: Final = 600.0
"""Moves are numbered as they are committed and timed by the clocks of their workers, which differ by less than this."""


class _Range(NamedTuple):
    """The numbers of the moves that a time can hold: after `low`, up to `high`."""

    low: int
    high: int


def moves(connection: apsw.Connection, routes: Routes, filter: MoveFilter, cursor: str | None, limit: int) -> MovePage:
    """Finds the numbers at both ends of the time by bisection, then walks back from the newer end."""
    held = _held(connection, filter)
    total = _total(connection, routes, filter, held) if held.high - held.low <= COUNTED else None
    high = held.high if cursor is None else min(held.high, _number(cursor))
    low = max(held.low, high - LOOKED_AT)
    names = routes.names(connection)
    clause, values = _where(filter, reads.meant(names, filter), _Range(low, high))
    rows = select(connection, f"{reads.MOVES} WHERE {clause} ORDER BY moves.seq DESC LIMIT ?", (*values, limit))
    further = rows[-1][0] - 1 if len(rows) == limit else low
    events = [reads.event(f"0.{row[0]}", row, *names[row[3]][:2]) for row in rows]
    return MovePage(events, str(further) if further > held.low else None, total)


def _held(connection: apsw.Connection, filter: MoveFilter) -> _Range:
    first, last = select(connection, "SELECT ifnull(min(seq), 1), ifnull(max(seq), 0) FROM moves")[0]
    low = _before(connection, filter.since - SKEW, first, last)
    return _Range(low, max(low, _before(connection, filter.until + SKEW, first, last)))


def _before(connection: apsw.Connection, at: float, first: int, last: int) -> int:
    """The number of the last move before that time; numbers that are gone are passed over."""
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        found = select(connection, "SELECT seq, at FROM moves WHERE seq >= ? ORDER BY seq LIMIT 1", (middle,))
        if found and found[0][1] < at:
            low = max(middle, min(found[0][0], high))
        else:
            high = middle - 1
    return low


def _total(connection: apsw.Connection, routes: Routes, filter: MoveFilter, held: _Range) -> int:
    clause, values = _where(filter, reads.meant(routes.names(connection), filter), held)
    joined = "moves JOIN jobs ON jobs.seq = moves.job"
    return int(connection.execute(f"SELECT count(*) FROM {joined} WHERE {clause}", values).get)


def _where(filter: MoveFilter, routes: Sequence[int] | None, within: _Range) -> tuple[str, list[object]]:
    kinds = ", ".join("?" * len(filter.moves))
    clause = f"moves.seq > ? AND moves.seq <= ? AND moves.move IN ({kinds}) AND moves.at >= ? AND moves.at < ?"
    if routes is not None:
        clause += f" AND jobs.route IN ({', '.join(map(str, routes))})"
    return clause, [*within, *filter.moves, filter.since, filter.until]


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20) or int(cursor) > reads.LARGEST:
        raise InvalidInput(field="cursor", problem="not a cursor that a listing gave")
    return int(cursor)
