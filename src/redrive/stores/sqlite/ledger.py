"""What happened, added up while it is written: by the hour, by group, by strategy. Reports never read the feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import apsw
import msgspec

from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Group, Lesson, Minute, OutcomeTally, Tally, Total
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import Route, Row, select

HOUR: Final = 3600
MINUTE: Final = 60
DAY: Final = 86_400
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


_OUTCOME: Final = (
    "INSERT INTO outcomes (hour, route, what, name, number, seconds) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET number = number + excluded.number, seconds = seconds + excluded.seconds"
)
_MINUTE: Final = (
    "INSERT INTO minutes (minute, route, move, number) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET number = number + excluded.number"
)
_DAY: Final = (
    "INSERT INTO days (day, route, move, number) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET number = number + excluded.number"
)
_LET_GO: Final = ("discarded", "cancelled")


K = TypeVar("K")


def _plus(counts: dict[K, int], key: K, number: int) -> None:
    counts[key] = counts.get(key, 0) + number


class Ledger:
    """Collects what one transaction did and writes it once per kind, not once per job."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[int, int, str, str, str], int] = {}
        self._groups: dict[str, tuple[int, float, int, Job]] = {}
        """How many, the first time, and the latest job with its route."""
        self._lessons: dict[tuple[str, str], list[int]] = {}
        self._outcomes: dict[tuple[int, int, str, str], tuple[int, float]] = {}
        self._minutes: dict[tuple[int, int, str], int] = {}
        self._days: dict[tuple[int, int, str], int] = {}

    def count(self, at: float, route: int, move: str, number: int = 1) -> None:
        self._add(at, route, move, "", "", number)

    def _add(self, at: float, route: int, move: str, error_class: str, detail: str, number: int = 1) -> None:
        second = int(at)
        _plus(self._tallies, (second // HOUR, route, move, error_class, detail), number)
        _plus(self._minutes, (second // MINUTE, route, move), number)
        _plus(self._days, (second // DAY, route, move), number)

    def moved(self, move: Transition, route: int) -> None:
        said = move.set if "error_class" in move.set else None
        error_class, detail = (said["error_class"] or "", said["detail"] or "") if said else ("", "")
        self._add(move.at, route, move.move, str(error_class), str(detail))
        self._settled(move, route)
        if move.move == "buried" and move.set.get("fingerprint"):
            self._grouped(move.after(0), route)
        if move.lesson is not None:
            fingerprint, strategy, worked = move.lesson
            counts = self._lessons.setdefault((fingerprint, strategy), [0, 0])
            counts[0 if worked else 1] += 1
            self._became(move.at, route, "worked" if worked else "failed", name=strategy)

    def _settled(self, move: Transition, route: int) -> None:
        """What a move means for the dead letter that the job is or was."""
        job, died = move.job, move.job.died_at
        if died is None:
            if move.set.get("died_at") is not None:
                self._became(move.at, route, "died")
        elif move.to is State.done:
            kind = (job.revived_by if move.move == "succeeded" else None) or "person"
            self._became(died, route, kind, seconds=move.at - died)
            self._became(move.at, route, "back", name=kind)
        elif move.move in _LET_GO or (move.move == "purged" and job.state is State.dead):
            self._became(died, route, "person", seconds=move.at - died)
        elif move.move == "restored":
            self._became(died, route, "person", -1, died - job.updated_at)  # it was let go, and now it was not
        elif move.move == "deferred" and not job.deferrals:
            self._became(died, route, "deferred")

    def _became(self, at: float, route: int, what: str, number: int = 1, seconds: float = 0.0, name: str = "") -> None:
        key = (int(at) // HOUR, route, what, name)
        before, spent = self._outcomes.get(key, (0, 0.0))
        self._outcomes[key] = (before + number, spent + seconds)

    def imported(self, job: Job, route: int) -> None:
        self._add(job.updated_at, route, "imported", job.error_class or "", job.detail or "")
        self._became(job.died_at or job.updated_at, route, "died")
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
        for minute, number in self._minutes.items():
            connection.execute(_MINUTE, (*minute, number))
        for day, number in self._days.items():
            connection.execute(_DAY, (*day, number))
        for what, sums in self._outcomes.items():
            connection.execute(_OUTCOME, (*what, *sums))
        for fingerprint, (number, first, route, job) in self._groups.items():
            said = (job.error_class, job.detail, (job.error or "")[:500], job.id)
            connection.execute(_GROUP, (fingerprint, first, job.updated_at, number, route, *said))
        for (fingerprint, strategy), (worked, failed) in self._lessons.items():
            connection.execute(_LESSON, (fingerprint, strategy, worked, failed))


_TALLIES: Final = (
    "SELECT hour, route, move, error_class, detail, number FROM tallies WHERE hour >= ?1 AND hour < ?2 ORDER BY hour"
)
_ALL_TALLIES: Final = (
    "SELECT ?1, route, move, error_class, detail, sum(number) FROM tallies WHERE hour >= ?1 AND hour < ?2"
    " GROUP BY route, move, error_class, detail"
)


def tallies(
    connection: apsw.Connection, routes: Routes, since: float, until: float, *, whole: bool = False
) -> list[Tally]:
    names = routes.names(connection)
    first, last = int(since // HOUR), -int(-until // HOUR)
    rows = select(connection, _ALL_TALLIES if whole else _TALLIES, (first, last))
    return [Tally(hour * float(HOUR), *names[route], *said) for hour, route, *said in rows]


def outcomes(
    connection: apsw.Connection, routes: Routes, since: float, until: float, *, whole: bool = False
) -> list[OutcomeTally]:
    names = routes.names(connection)
    first, last = int(since // HOUR), -int(-until // HOUR)
    hour = "?1" if whole else "hour"
    rows = select(
        connection,
        f"SELECT {hour} AS at, route, what, name, sum(number), sum(seconds) FROM outcomes"
        " WHERE hour >= ?1 AND hour < ?2 GROUP BY at, route, what, name ORDER BY at",
        (first, last),
    )
    rows += select(connection, _OPEN.format(hour="?1" if whole else _DIED_IN), (first, last))
    return [OutcomeTally(hour * float(HOUR), *names[route], *said) for hour, route, *said in rows]


_DIED_IN: Final = f"CAST(died_at AS INTEGER) / {HOUR}"
_OPEN: Final = (
    "SELECT {hour}, route, 'open',"
    " CASE state WHEN 'dead' THEN lane WHEN 'held' THEN 'held' ELSE 'moving' END, count(*), 0.0"
    " FROM jobs INDEXED BY jobs_died WHERE died_at IS NOT NULL AND state IN ('waiting', 'running', 'held', 'dead')"
    f" AND died_at >= ?1 * {HOUR} AND died_at < ?2 * {HOUR} GROUP BY 1, 2, 4"
)
"""Counted when somebody asks: what died and has not come to its end."""


def totals(connection: apsw.Connection, routes: Routes, since: float, until: float) -> list[Total]:
    """Whole days from the days, what is left at both ends from the hours."""
    names = routes.names(connection)
    first, last = int(since // HOUR), -int(-until // HOUR)
    begin, end = -(-first // 24), last // 24
    if begin >= end:
        begin = end = first // 24
        hours = (first, last, 0, 0)
    else:
        hours = (first, begin * 24, end * 24, last)
    rows = select(connection, _TOTALS, (begin, end, *hours))
    return [Total(*names[route], move, number) for route, move, number in rows]


_TOTALS: Final = (
    "SELECT route, move, sum(number) FROM ("
    "SELECT route, move, number FROM days WHERE day >= ?1 AND day < ?2"
    " UNION ALL SELECT route, move, number FROM tallies WHERE hour >= ?3 AND hour < ?4"
    " UNION ALL SELECT route, move, number FROM tallies WHERE hour >= ?5 AND hour < ?6"
    ") GROUP BY route, move"
)


def minutes(connection: apsw.Connection, since: float, until: float) -> list[Minute]:
    rows = select(
        connection,
        "SELECT minute, routes.queue, move, sum(number) FROM minutes JOIN routes ON routes.id = minutes.route"
        " WHERE minute >= ? AND minute < ? GROUP BY minute, routes.queue, move ORDER BY minute",
        (int(since // MINUTE), -int(-until // MINUTE)),
    )
    return [Minute(minute * float(MINUTE), *said) for minute, *said in rows]


def forget_minutes(connection: apsw.Connection, now: float) -> None:
    connection.execute("DELETE FROM minutes WHERE minute < ?", (int(now - DAY) // MINUTE,))


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


def lessons(connection: apsw.Connection, fingerprints: Sequence[str]) -> list[Lesson]:
    rows = select(
        connection,
        "SELECT fingerprint, strategy, worked, failed FROM lessons"
        " WHERE fingerprint IN (SELECT value FROM json_each(?)) ORDER BY fingerprint, strategy",
        (msgspec.json.encode(fingerprints).decode(),),
    )
    return [Lesson(*row) for row in rows]
