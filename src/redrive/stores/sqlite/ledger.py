"""What happened, added up while it is written: by the hour, by group, by strategy. Reports never read the feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw
import msgspec

from redrive.core.bookings import Booking, booked, born_dead, joins_group, trouble_of
from redrive.core.job import Job
from redrive.core.lifecycle import Transition
from redrive.core.store import Group, Lesson, Minute, OutcomeTally, Tally, Total
from redrive.stores.sqlite import spans
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import Route, Row, select
from redrive.stores.sqlite.spans import HOUR, HOURS_A_DAY

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
_HAPPENED: Final = f"{_TALLY}; {_DAY}; {_MINUTE}"
_FAILURE_DAY: Final = (
    "INSERT INTO failure_days (day, route, move, error_class, detail, number) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET number = number + excluded.number"
)
_OUTCOME_DAY: Final = (
    "INSERT INTO outcome_days (day, route, what, name, number, seconds) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET number = number + excluded.number, seconds = seconds + excluded.seconds"
)


_Said = tuple[object, object, object, str]
"""Of a group's latest job: the failure's class and detail, its text, and the job's id."""


class _Grouped(msgspec.Struct, gc=False):
    """Jobs that joined a group: how many, the first and the last time, and of the latest its route and what is said."""

    number: int
    first: float
    last: float
    route: Route
    said: _Said

    def join(self, other: _Grouped) -> None:
        self.number += other.number
        self.first = min(self.first, other.first)
        if other.last >= self.last:
            self.last, self.route, self.said = other.last, other.route, other.said


def _beginning(error: object) -> str:
    """So much of an error's text stands for its group."""
    return str(error or "")[:500]


def happened(
    connection: apsw.Connection,
    minute: int,
    route: int,
    move: str,
    number: int,
    error_class: str = "",
    detail: str = "",
) -> None:
    """So many moves of one kind in one minute, added to every sum that counts them."""
    hour, kind = minute * MINUTE // HOUR, (route, move)
    day, trouble = hour // HOURS_A_DAY, (error_class, detail, number)
    connection.execute(_HAPPENED, (hour, *kind, *trouble, day, *kind, number, minute, *kind, number))
    if error_class or detail:
        connection.execute(_FAILURE_DAY, (day, *kind, *trouble))


class Ledger:
    """Collects what one transaction did and writes it once per kind, not once per job."""

    def __init__(self) -> None:
        self._moves: dict[tuple[int, Route, str, str, str], int] = {}
        """How many by the minute, the route, the move, and the class and detail of its trouble."""
        self._groups: dict[str, _Grouped] = {}
        self._lessons: dict[tuple[str, str], tuple[int, int]] = {}
        self._outcomes: dict[tuple[int, Route, str, str], tuple[int, float]] = {}

    def count(self, at: float, route: Route, move: str, number: int = 1) -> None:
        self._add((int(at) // MINUTE, route, move, "", ""), number)

    def _add(self, kind: tuple[int, Route, str, str, str], number: int) -> None:
        self._moves[kind] = self._moves.get(kind, 0) + number

    def moved(self, move: Transition) -> None:
        job, said = move.job, move.set
        route = (job.queue, job.task, job.agent)
        self._add((int(move.at) // MINUTE, route, move.move, *trouble_of(move)), 1)
        for booking in booked(move):
            self._book(booking, route)
        if joins_group(move):
            latest = (said.get("error_class"), said.get("detail"), _beginning(said.get("error", job.error)), job.id)
            fingerprint = str(said.get("fingerprint", job.fingerprint))
            self._group(fingerprint, _Grouped(1, move.at, move.at, route, latest))
        if move.lesson is not None:
            fingerprint, strategy, worked = move.lesson
            self._learn((fingerprint, strategy), worked, not worked)

    def imported(self, job: Job) -> None:
        at, route = job.updated_at, (job.queue, job.task, job.agent)
        self._add((int(at) // MINUTE, route, "imported", job.error_class or "", job.detail or ""), 1)
        self._book(born_dead(job), route)
        if job.fingerprint:
            said = (job.error_class, job.detail, _beginning(job.error), job.id)
            self._group(job.fingerprint, _Grouped(1, at, at, route, said))

    def include(self, other: Ledger) -> None:
        """What somebody else has collected for the same transaction."""
        for kind, number in other._moves.items():
            self._add(kind, number)
        for fingerprint, grouped in other._groups.items():
            self._group(fingerprint, msgspec.structs.replace(grouped))  # theirs may be written again: it stays theirs
        for lesson, (worked, failed) in other._lessons.items():
            self._learn(lesson, worked, failed)
        for outcome, (number, seconds) in other._outcomes.items():
            self._end(outcome, number, seconds)

    def _book(self, booking: Booking, route: Route) -> None:
        self._end((int(booking.at) // HOUR, route, booking.what, booking.name), booking.number, booking.seconds)

    def _end(self, outcome: tuple[int, Route, str, str], number: int, seconds: float) -> None:
        before, spent = self._outcomes.get(outcome, (0, 0.0))
        self._outcomes[outcome] = (before + number, spent + seconds)

    def _learn(self, lesson: tuple[str, str], worked: int, failed: int) -> None:
        before = self._lessons.get(lesson, (0, 0))
        self._lessons[lesson] = (before[0] + worked, before[1] + failed)

    def _group(self, fingerprint: str, more: _Grouped) -> None:
        known = self._groups.setdefault(fingerprint, more)
        if known is not more:
            known.join(more)

    def write(self, connection: apsw.Connection, routes: Routes) -> None:
        for (minute, route, move, *trouble), number in self._moves.items():
            happened(connection, minute, routes.number(route), move, number, *trouble)
        for (hour, route, *what), sums in self._outcomes.items():
            connection.execute(_OUTCOME, (hour, routes.number(route), *what, *sums))
            connection.execute(_OUTCOME_DAY, (hour // HOURS_A_DAY, routes.number(route), *what, *sums))
        for fingerprint, group in self._groups.items():
            number = routes.number(group.route)
            connection.execute(_GROUP, (fingerprint, group.first, group.last, group.number, number, *group.said))
        for (fingerprint, strategy), (worked, failed) in self._lessons.items():
            connection.execute(_LESSON, (fingerprint, strategy, worked, failed))


_TALLIES: Final = (
    "SELECT hour, route, move, error_class, detail, number FROM tallies WHERE hour >= ?1 AND hour < ?2 ORDER BY hour"
)


def tallies(
    connection: apsw.Connection, routes: Routes, since: float, until: float, *, whole: bool = False
) -> list[Tally]:
    names, wanted = routes.names(connection), spans.span(since, until)
    if whole:
        start = wanted.first * float(HOUR)
        return [Tally(start, *names[route], *said) for route, *said in spans.tallies(connection, wanted)]
    rows = select(connection, _TALLIES, wanted)
    return [Tally(hour * float(HOUR), *names[route], *said) for hour, route, *said in rows]


_OUTCOMES: Final = (
    "SELECT hour, route, what, name, number, seconds FROM outcomes WHERE hour >= ?1 AND hour < ?2 ORDER BY hour"
)


def outcomes(
    connection: apsw.Connection, routes: Routes, since: float, until: float, *, whole: bool = False
) -> list[OutcomeTally]:
    names, wanted = routes.names(connection), spans.span(since, until)
    if whole:
        start = wanted.first * float(HOUR)
        return [OutcomeTally(start, *names[route], *said) for route, *said in spans.outcomes(connection, wanted)]
    rows = select(connection, _OUTCOMES, wanted) + select(connection, spans.OPEN_BY_HOUR, wanted)
    return [OutcomeTally(hour * float(HOUR), *names[route], *said) for hour, route, *said in rows]


def totals(connection: apsw.Connection, routes: Routes, since: float, until: float) -> list[Total]:
    names = routes.names(connection)
    rows = spans.totals(connection, spans.span(since, until))
    return [Total(*names[route], move, number) for route, move, number in rows]


def minutes(connection: apsw.Connection, since: float, until: float) -> list[Minute]:
    rows = select(
        connection,
        "SELECT minute, routes.queue, move, sum(number) FROM minutes JOIN routes ON routes.id = minutes.route"
        " WHERE minute >= ? AND minute < ? GROUP BY minute, routes.queue, move ORDER BY minute",
        (int(since // MINUTE), -int(-until // MINUTE)),
    )
    return [Minute(minute * float(MINUTE), *said) for minute, *said in rows]


def oldest_minute(now: float) -> int:
    """The first minute that is remembered."""
    return int(now - DAY) // MINUTE


def forget_minutes(connection: apsw.Connection, before: int) -> None:
    connection.execute("DELETE FROM minutes WHERE minute < ?", (before,))


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
