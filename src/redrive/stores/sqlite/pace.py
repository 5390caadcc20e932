"""Reads how long jobs waited and took, without an index over what is done: every success would pay for one.

What ended last is found by the last moves, however long the backlog is that came after it. Routes without a success
among those are looked for among the newest jobs. Both looks are bounded, so they cost the same behind a million jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import apsw

from redrive.core.timings import TimedBy, Timing, timings_of
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import Row, select

MOVES: Final = 10_000
"""So many of the last moves are looked at."""
JOBS: Final = 100_000
"""So many of the newest jobs are looked at for the routes that have no success among those moves."""

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
_PLACES: Final[dict[TimedBy, int]] = {"queue": 0, "task": 1}


def timings(connection: apsw.Connection, routes: Routes, by: TimedBy) -> list[Timing]:
    names, place = routes.names(connection), _PLACES[by]
    return timings_of((str(names[route][place]), waited, took) for route, waited, took in _measured(connection))


def _measured(connection: apsw.Connection) -> Iterator[Row]:
    """The newest first: by what ended last, then by what was enqueued last."""
    ended = select(connection, _ENDED, (MOVES,))
    yield from ended
    seen = {route for route, _, _ in ended}
    missing = [route for (route,) in select(connection, "SELECT id FROM routes WHERE done > 0") if route not in seen]
    if missing:
        yield from select(connection, _NEWEST.format(", ".join(map(str, missing))), (JOBS,))
