"""What happened, added up while it is written: by the hour, by group, by strategy. Reports never read the feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw

from redrive.core.job import Job
from redrive.core.lifecycle import Transition
from redrive.core.store import Group, Lesson, Tally
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import Route, Row, select

HOUR: Final = 3600
_TALLY: Final = (
    "INSERT INTO tallies (hour, route, move, error_class, detail, number) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET number = number + excluded.number"
)
_GROUP: Final = (
    "INSERT INTO groups (fingerprint, first_at, last_at, buried, route, error_class, detail, error, sample)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO UPDATE SET first_at = min(first_at, ?2),"
    " last_at = max(last_at, ?3), buried = buried + ?4, route = iif(?3 >= last_at, ?5, route),"
    " error_class = iif(?3 >= last_at, ?6, error_class), detail = iif(?3 >= last_at, ?7, detail),"
    " error = iif(?3 >= last_at, ?8, error), sample = iif(?3 >= last_at, ?9, sample)"
)
"""What is said of a group is said of its latest job; burials may arrive in any order."""
_LESSON: Final = (
    "INSERT INTO lessons (fingerprint, strategy, worked, failed) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET worked = worked + excluded.worked, failed = failed + excluded.failed"
)


class Ledger:
    """Collects what one transaction did and writes it once per kind, not once per job."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[int, int, str, str, str], int] = {}
        self._groups: dict[str, tuple[int, float, int, Job]] = {}
        """How many, the first time, and the latest job with its route."""
        self._lessons: dict[tuple[str, str], list[int]] = {}

    def count(self, at: float, route: int, move: str, number: int = 1) -> None:
        self._add((int(at) // HOUR, route, move, "", ""), number)

    def _add(self, key: tuple[int, int, str, str, str], number: int) -> None:
        self._tallies[key] = self._tallies.get(key, 0) + number

    def moved(self, move: Transition, route: int) -> None:
        said = move.set if "error_class" in move.set else None
        error_class, detail = (said["error_class"] or "", said["detail"] or "") if said else ("", "")
        self._add((int(move.at) // HOUR, route, move.move, str(error_class), str(detail)), 1)
        if move.move == "buried" and move.set.get("fingerprint"):
            self._grouped(move.after(0), route)
        if move.lesson is not None:
            fingerprint, strategy, worked = move.lesson
            counts = self._lessons.setdefault((fingerprint, strategy), [0, 0])
            counts[0 if worked else 1] += 1

    def imported(self, job: Job, route: int) -> None:
        self._add((int(job.updated_at) // HOUR, route, "imported", job.error_class or "", job.detail or ""), 1)
        if job.fingerprint:
            self._grouped(job, route)

    def _grouped(self, job: Job, route: int) -> None:
        fingerprint, at = job.fingerprint or "", job.updated_at
        number, first, latest_route, latest = self._groups.get(fingerprint, (0, at, route, job))
        if at >= latest.updated_at:
            latest_route, latest = route, job
        self._groups[fingerprint] = (number + 1, min(first, at), latest_route, latest)

    def write(self, connection: apsw.Connection) -> None:
        for key, number in self._tallies.items():
            connection.execute(_TALLY, (*key, number))
        for fingerprint, (number, first, route, job) in self._groups.items():
            said = (job.error_class, job.detail, (job.error or "")[:500], job.id)
            connection.execute(_GROUP, (fingerprint, first, job.updated_at, number, route, *said))
        for (fingerprint, strategy), (worked, failed) in self._lessons.items():
            connection.execute(_LESSON, (fingerprint, strategy, worked, failed))


def tallies(connection: apsw.Connection, routes: Routes, since: float, until: float) -> list[Tally]:
    names = routes.names(connection)
    rows = select(
        connection,
        "SELECT hour, route, move, error_class, detail, number FROM tallies WHERE hour >= ? AND hour < ? ORDER BY hour",
        (int(since // HOUR), -int(-until // HOUR)),
    )
    return [Tally(hour * float(HOUR), *names[route], *said) for hour, route, *said in rows]


_GROUPS: Final = "SELECT fingerprint, first_at, last_at, buried, route, error_class, detail, error, sample FROM groups"


def groups(
    connection: apsw.Connection, routes: Routes, since: float, fingerprints: Sequence[str] | None
) -> list[Group]:
    names = routes.names(connection)
    if fingerprints is None:
        rows = select(connection, f"{_GROUPS} WHERE last_at >= ? ORDER BY last_at DESC", (since,))
    else:
        rows = [row for one in fingerprints for row in select(connection, f"{_GROUPS} WHERE fingerprint = ?", (one,))]
    return [_group(row, names[row[4]]) for row in rows]


def _group(row: Row, route: Route) -> Group:
    fingerprint, first_at, last_at, buried, _, error_class, detail, error, sample = row
    return Group(fingerprint, first_at, last_at, buried, *route, error_class, detail, error, sample)


def lessons(connection: apsw.Connection, fingerprint: str) -> list[Lesson]:
    rows = select(
        connection,
        "SELECT fingerprint, strategy, worked, failed FROM lessons WHERE fingerprint = ? ORDER BY strategy",
        (fingerprint,),
    )
    return [Lesson(*row) for row in rows]
