"""Sums of what happened, by the minute, hour and day, by group and by strategy: written, read and repaired.

Sums are added up while the moves are written, so that reports never read the feed. Days repeat what their hours say:
a report over months reads whole days, and hours only at both ends. The jobs that were enqueued in the latest minute of
a route are counted in the route's row alone, and every reader adds them; the next minute brings them into the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import apsw
import msgspec

from redrive.core.bookings import Booking, book_imported, book_move, class_and_detail, joins_group
from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Group, Lesson, Minute, OutcomeTally, Tally, Total
from redrive.stores.sqlite.records import Route, RouteCache, Row, select, to_json

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
HOURS_A_DAY: Final = 24

# -- the sums that one transaction writes


def _add_to(table: str, by: str, sums: str = "number") -> str:
    """Write the statement that adds to the sums of one row."""
    columns = f"{by}, {sums}"
    places = ", ".join("?" for _ in columns.split(", "))
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in sums.split(", "))
    return f"INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT DO UPDATE SET {added}"


_MOVED: Final = "; ".join(
    (
        _add_to("tallies", "hour, route, move, error_class, detail"),
        _add_to("days", "day, route, move"),
        _add_to("minutes", "minute, route, move"),
    )
)
_FAILED: Final = _add_to("failure_days", "day, route, move, error_class, detail")
_OUTCOME: Final = _add_to("outcomes", "hour, route, what, name", "number, seconds")
_OUTCOME_DAY: Final = _add_to("outcome_days", "day, route, what, name", "number, seconds")
_LESSON: Final = _add_to("lessons", "fingerprint, strategy", "worked, failed")
_GROUP: Final = (
    "INSERT INTO groups (fingerprint, first_at, last_at, buried, route, error_class, detail, error, sample)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO UPDATE SET first_at = min(first_at, ?2),"
    " last_at = max(last_at, ?3), buried = buried + ?4, route = iif(?3 >= last_at, ?5, route),"
    " error_class = iif(?3 >= last_at, ?6, error_class), detail = iif(?3 >= last_at, ?7, detail),"
    " error = iif(?3 >= last_at, ?8, error), sample = iif(?3 >= last_at, ?9, sample)"
)
"""The fields of a group are those of its latest job; jobs may join a group in any order."""


def add_moves(
    connection: apsw.Connection,
    minute: int,
    route: int,
    move: str,
    number: int,
    error_class: str = "",
    detail: str = "",
) -> None:
    """Add so many moves of one kind in one minute to every sum that counts them."""
    hour, kind = minute * MINUTE // HOUR, (route, move)
    day, failure = hour // HOURS_A_DAY, (error_class, detail, number)
    connection.execute(_MOVED, (hour, *kind, *failure, day, *kind, number, minute, *kind, number))
    if error_class or detail:
        connection.execute(_FAILED, (day, *kind, *failure))


_ADD_TO_OPEN_MINUTE: Final = (
    "UPDATE routes SET {0} = {0} + ?1, open_enqueued = open_enqueued + ?1 WHERE id = ?2 AND open_minute = ?3"
)
_OPEN_MINUTE: Final = "UPDATE routes SET {0} = {0} + ?1, open_enqueued = ?1, open_minute = ?3 WHERE id = ?2"


@cache
def _in_state(statement: str, state: State) -> str:
    return statement.format(state)


def enqueue_in_open_minute(connection: apsw.Connection, minute: int, route: int, state: State, number: int) -> bool:
    """Count new jobs in the route's row alone: the sums get them when the minute is over.

    A later minute closes the open one. Returns False, and counts nothing, where the minute is over already: its jobs
    are added to the sums at once. So the sums do not depend on how many jobs one transaction takes.
    """
    connection.execute(_in_state(_ADD_TO_OPEN_MINUTE, state), (number, route, minute))
    if connection.changes():
        return True
    ((before, enqueued),) = select(connection, "SELECT open_minute, open_enqueued FROM routes WHERE id = ?", (route,))
    if minute < before:
        return False
    if enqueued:
        add_moves(connection, before, route, "enqueued", enqueued)
    connection.execute(_in_state(_OPEN_MINUTE, state), (number, route, minute))
    return True


def close_minutes(connection: apsw.Connection, before: int) -> None:
    """Add to the sums what routes have open of minutes before this one."""
    old = "open_enqueued > 0 AND open_minute < ?"
    open = select(connection, f"SELECT open_minute, id, open_enqueued FROM routes WHERE {old}", (before,))
    for minute, route, enqueued in open:
        add_moves(connection, minute, route, "enqueued", enqueued)
    if open:
        connection.execute(f"UPDATE routes SET open_enqueued = 0 WHERE {old}", (before,))


class _Joined(msgspec.Struct, gc=False):
    """Jobs that joined a group: how many, the first and the last time, and what is kept of the latest."""

    number: int
    first: float
    last: float
    route: Route
    latest: tuple[object, object, str, str]
    """The failure's class and detail, the beginning of its text, and the job's id."""

    def join(self, other: _Joined) -> None:
        self.number += other.number
        self.first = min(self.first, other.first)
        if other.last >= self.last:
            self.last, self.route, self.latest = other.last, other.route, other.latest


def _beginning(error: object) -> str:
    return str(error or "")[:500]


class Rollup:
    """Collects what one transaction did and writes it once per kind, not once per job."""

    def __init__(self) -> None:
        self._moves: dict[tuple[int, Route, str, str, str], int] = {}
        """How many by the minute, the route, the move, and the class and detail of its failure."""
        self._groups: dict[str, _Joined] = {}
        self._lessons: dict[tuple[str, str], tuple[int, int]] = {}
        self._outcomes: dict[tuple[int, Route, str, str], tuple[int, float]] = {}

    def count(self, at: float, route: Route, move: str, number: int = 1) -> None:
        self._add((int(at) // MINUTE, route, move, "", ""), number)

    def _add(self, kind: tuple[int, Route, str, str, str], number: int) -> None:
        self._moves[kind] = self._moves.get(kind, 0) + number

    def add_move(self, move: Transition) -> None:
        job, fields = move.job, move.set
        route = (job.queue, job.task, job.agent)
        self._add((int(move.at) // MINUTE, route, move.move, *class_and_detail(move)), 1)
        for booking in book_move(move):
            self._book(booking, route)
        if joins_group(move):
            error = _beginning(fields.get("error", job.error))
            latest = (fields.get("error_class"), fields.get("detail"), error, job.id)
            fingerprint = str(fields.get("fingerprint", job.fingerprint))
            self._join(fingerprint, _Joined(1, move.at, move.at, route, latest))
        if move.lesson is not None:
            fingerprint, strategy, worked = move.lesson
            self._learn((fingerprint, strategy), worked, not worked)

    def add_import(self, job: Job) -> None:
        at, route = job.updated_at, (job.queue, job.task, job.agent)
        self._add((int(at) // MINUTE, route, "imported", job.error_class or "", job.detail or ""), 1)
        self._book(book_imported(job), route)
        if job.fingerprint:
            latest = (job.error_class, job.detail, _beginning(job.error), job.id)
            self._join(job.fingerprint, _Joined(1, at, at, route, latest))

    def merge(self, other: Rollup) -> None:
        """Add what another Rollup has collected for the same transaction."""
        for kind, number in other._moves.items():
            self._add(kind, number)
        for fingerprint, joined in other._groups.items():
            self._join(fingerprint, msgspec.structs.replace(joined))  # the other may be written again, unchanged
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

    def _join(self, fingerprint: str, more: _Joined) -> None:
        known = self._groups.setdefault(fingerprint, more)
        if known is not more:
            known.join(more)

    def write(self, connection: apsw.Connection, routes: RouteCache) -> None:
        for (minute, route, move, *failure), number in self._moves.items():
            add_moves(connection, minute, routes.number(route), move, number, *failure)
        for (hour, route, *what), sums in self._outcomes.items():
            connection.execute(_OUTCOME, (hour, routes.number(route), *what, *sums))
            connection.execute(_OUTCOME_DAY, (hour // HOURS_A_DAY, routes.number(route), *what, *sums))
        for fingerprint, group in self._groups.items():
            number = routes.number(group.route)
            connection.execute(_GROUP, (fingerprint, group.first, group.last, group.number, number, *group.latest))
        for lesson, counts in self._lessons.items():
            connection.execute(_LESSON, (*lesson, *counts))


# -- reading hours and days


class _Hours(NamedTuple):
    """Hours from the first up to the last, which is not in it."""

    first: int
    last: int

    @property
    def parts(self) -> tuple[int, int, int, int, int, int]:
        """Whole days, the hours before them, the hours after them: each from, and up to."""
        begin, end = -(-self.first // HOURS_A_DAY), self.last // HOURS_A_DAY
        if begin >= end:
            return 0, 0, self.first, self.last, 0, 0
        return begin, end, self.first, begin * HOURS_A_DAY, end * HOURS_A_DAY, self.last


def _hours_between(since: float, until: float) -> _Hours:
    return _Hours(int(since // HOUR), -int(-until // HOUR))


class _DayTable(NamedTuple):
    """A table of days: its columns, the table of hours that it sums up, which sums, and which of the hours' rows."""

    days: str
    columns: str
    hours: str
    numbers: str = "number"
    only: str = "true"
    beside: str = ""
    """What of these hours is in neither table yet."""

    def sum_parts(self) -> str:
        """Write a query for the parts of some hours: whole days from the days, the rest from the hours."""
        sums = ", ".join(f"sum({name})" for name in self.numbers.split(", "))
        of_hours = f"SELECT {self.columns}, {self.numbers} FROM {self.hours} WHERE {self.only}"
        return (
            f"SELECT {self.columns}, {sums} FROM ("
            f"SELECT {self.columns}, {self.numbers} FROM {self.days} WHERE day >= ?1 AND day < ?2"
            f" UNION ALL {of_hours} AND hour >= ?3 AND hour < ?4 UNION ALL {of_hours} AND hour >= ?5 AND hour < ?6"
            f"{self.beside}) GROUP BY {self.columns}"
        )

    def sum_hours(self, numbers: str) -> str:
        """Write a query for the days from one on, added up anew from their hours."""
        sums = ", ".join(f"sum({name}) AS {name}" for name in numbers.split(", "))
        return (
            f"SELECT hour / {HOURS_A_DAY} AS day, {self.columns}, {sums} FROM {self.hours}"
            f" WHERE hour >= ?1 * {HOURS_A_DAY} AND {self.only} GROUP BY day, {self.columns}"
        )


_IN_OPEN_MINUTES: Final = " UNION ALL SELECT {}, open_enqueued FROM routes WHERE open_enqueued > 0 AND "
"""The moves that are in no sum yet."""
_OPEN_HOUR: Final = f"open_minute * {MINUTE} / {HOUR}"
_OPEN_DAY: Final = f"open_minute * {MINUTE} / {DAY}"
_OPEN_IN_PARTS: Final = (
    _IN_OPEN_MINUTES.format("id, 'enqueued'")
    + f"({_OPEN_DAY} >= ?1 AND {_OPEN_DAY} < ?2 OR {_OPEN_HOUR} >= ?3 AND {_OPEN_HOUR} < ?4"
    f" OR {_OPEN_HOUR} >= ?5 AND {_OPEN_HOUR} < ?6)"
)
_MOVE_DAYS: Final = _DayTable("days", "route, move", "tallies", beside=_OPEN_IN_PARTS)
_FAILURE_DAYS: Final = _DayTable(
    "failure_days", "route, move, error_class, detail", "tallies", only="(error_class <> '' OR detail <> '')"
)
_OUTCOME_DAYS: Final = _DayTable("outcome_days", "route, what, name", "outcomes", "number, seconds")
_DAY_TABLES: Final = (_MOVE_DAYS, _FAILURE_DAYS, _OUTCOME_DAYS)
_OF_HOURS: Final = (
    "(SELECT hour, route, move, error_class, detail, number FROM tallies WHERE hour >= ?1 AND hour < ?2"
    + _IN_OPEN_MINUTES.format(f"{_OPEN_HOUR}, id, 'enqueued', '', ''")
    + f"{_OPEN_HOUR} >= ?1 AND {_OPEN_HOUR} < ?2)"
)
_TALLIES: Final = (
    f"SELECT hour, route, move, error_class, detail, sum(number) FROM {_OF_HOURS}"
    " GROUP BY hour, route, move, error_class, detail"
)
_FEW_HOURS: Final = (
    f"SELECT route, move, error_class, detail, sum(number) FROM {_OF_HOURS} GROUP BY route, move, error_class, detail"
)
_OUTCOMES: Final = (
    "SELECT hour, route, what, name, number, seconds FROM outcomes WHERE hour >= ?1 AND hour < ?2 ORDER BY hour"
)


def read_tallies(
    connection: apsw.Connection, routes: RouteCache, since: float, until: float, *, whole: bool = False
) -> list[Tally]:
    names, hours = routes.names(connection), _hours_between(since, until)
    rows = _sum_tallies(connection, hours) if whole else select(connection, _TALLIES, hours)
    return [Tally(hour * float(HOUR), *names[route], *rest) for hour, route, *rest in rows]


def read_totals(connection: apsw.Connection, routes: RouteCache, since: float, until: float) -> list[Total]:
    names, rows = routes.names(connection), _sum_moves(connection, _hours_between(since, until))
    return [Total(*names[route], move, number) for route, move, number in rows]


def read_outcomes(
    connection: apsw.Connection, routes: RouteCache, since: float, until: float, *, whole: bool = False
) -> list[OutcomeTally]:
    names, hours = routes.names(connection), _hours_between(since, until)
    if whole:
        rows = select(connection, _OUTCOME_DAYS.sum_parts(), hours.parts) + _count_open(connection, hours)
        rows = [(hours.first, *row) for row in rows]
    else:
        rows = select(connection, _OUTCOMES, hours) + select(connection, _OPEN_BY_HOUR, hours)
    return [OutcomeTally(hour * float(HOUR), *names[route], *rest) for hour, route, *rest in rows]


def _sum_moves(connection: apsw.Connection, hours: _Hours) -> list[Row]:
    return select(connection, _MOVE_DAYS.sum_parts(), hours.parts)


def _sum_tallies(connection: apsw.Connection, hours: _Hours) -> list[Row]:
    """Sum up with the first hour in front. The days keep failures apart from all moves; the rest did not fail."""
    begin, end, *_ = hours.parts
    if begin == end:
        return [(hours.first, *row) for row in select(connection, _FEW_HOURS, hours)]
    failures = select(connection, _FAILURE_DAYS.sum_parts(), hours.parts)
    plain = {(route, move): number for route, move, number in _sum_moves(connection, hours)}
    for route, move, _, _, number in failures:
        plain[route, move] -= number
    rows = failures + [(route, move, "", "", number) for (route, move), number in plain.items() if number]
    return [(hours.first, *row) for row in rows]


_PLACE: Final = "CASE jobs.state WHEN 'dead' THEN jobs.lane WHEN 'held' THEN 'held' ELSE 'moving' END"
_UNENDED: Final = (
    " FROM routes CROSS JOIN jobs INDEXED BY jobs_died WHERE jobs.route = routes.id AND jobs.died_at IS NOT NULL"
    " AND jobs.state IN ('waiting', 'running', 'held', 'dead')"
    f" AND jobs.died_at >= ?1 * {HOUR} AND jobs.died_at < ?2 * {HOUR}"
)
"""What died and has not come to its end, counted when it is asked for, by one seek per route."""
_OPEN: Final = f"SELECT routes.id, count(*){_UNENDED} GROUP BY 1"
_NOT_MANUAL: Final = (
    f"SELECT routes.id, {_PLACE}, count(*){_UNENDED} AND NOT (jobs.state = 'dead' AND jobs.lane IS 'manual')"
    " GROUP BY 1, 2"
)
_OPEN_BY_HOUR: Final = (
    f"SELECT CAST(jobs.died_at AS INTEGER) / {HOUR}, routes.id, 'open', {_PLACE}, count(*), 0.0{_UNENDED}"
    " GROUP BY 1, 2, 4"
)


def _count_open(connection: apsw.Connection, hours: _Hours) -> list[Row]:
    """Subtract the other places from the sum: most jobs wait in the manual lane, and sorting those is slowest."""
    manual: dict[int, int] = dict(select(connection, _OPEN, hours))
    elsewhere = select(connection, _NOT_MANUAL, hours)
    for route, _, number in elsewhere:
        manual[route] -= number
    places = [*elsewhere, *((route, "manual", number) for route, number in manual.items() if number)]
    return [(route, "open", name, number, 0.0) for route, name, number in places]


# -- reading minutes, groups, lessons


_MINUTES: Final = (
    "SELECT minute, queue, move, sum(number) FROM ("
    "SELECT minute, route, move, number FROM minutes WHERE minute >= ?1 AND minute < ?2"
    + _IN_OPEN_MINUTES.format("open_minute, id, 'enqueued'")
    + "open_minute >= ?1 AND open_minute < ?2) JOIN routes ON routes.id = route GROUP BY minute, queue, move"
    " ORDER BY minute"
)


def read_minutes(connection: apsw.Connection, routes: RouteCache, since: float, until: float) -> list[Minute]:
    rows = select(connection, _MINUTES, (int(since // MINUTE), -int(-until // MINUTE)))
    return [Minute(minute * float(MINUTE), *rest) for minute, *rest in rows]


_GROUPS: Final = "SELECT fingerprint, first_at, last_at, buried, route, error_class, detail, error, sample FROM groups"


def read_groups(
    connection: apsw.Connection, routes: RouteCache, since: float = 0.0, fingerprints: Sequence[str] | None = None
) -> list[Group]:
    names = routes.names(connection)
    if fingerprints is None:
        rows = select(connection, f"{_GROUPS} WHERE last_at >= ? ORDER BY last_at DESC", (since,))
    else:
        rows = [
            row for group in fingerprints for row in select(connection, f"{_GROUPS} WHERE fingerprint = ?", (group,))
        ]
    return [Group(*row[:4], *names[row[4]], *row[5:]) for row in rows]  # type: ignore[call-arg]


def read_lessons(connection: apsw.Connection, routes: RouteCache, *fingerprints: str) -> list[Lesson]:
    rows = select(
        connection,
        "SELECT fingerprint, strategy, worked, failed FROM lessons"
        " WHERE fingerprint IN (SELECT value FROM json_each(?)) ORDER BY fingerprint, strategy",
        (to_json(fingerprints),),
    )
    return [Lesson(*row) for row in rows]


# -- repairing days: an older process that works on the file does not write all tables

LATE_DAYS: Final = 35
"""The days of about a month are compared with their hours from time to time."""


def first_late_day(now: float) -> int:
    """Return the first of the days that are compared from time to time."""
    return int(now // DAY) - LATE_DAYS


def say_days(days: int) -> str:
    return "1 day" if days == 1 else f"{days} days"


def count_wrong_days(connection: apsw.Connection, since: int = 0) -> int:
    """Count the days from this one on that differ from their hours."""
    return len({day for table in _DAY_TABLES for day in _find_wrong_days(connection, table, since)})


def _find_wrong_days(connection: apsw.Connection, table: _DayTable, since: int) -> set[int]:
    """Compare numbers only: seconds are not whole, so their sums differ by rounding."""
    counted = f"SELECT day, {table.columns}, number FROM {table.days} WHERE day >= ?1"
    expected = table.sum_hours("number")
    differ = f"SELECT * FROM ({expected} EXCEPT {counted}) UNION ALL SELECT * FROM ({counted} EXCEPT {expected})"
    return {day for (day,) in select(connection, f"SELECT DISTINCT day FROM ({differ})", (since,))}


def add_up(connection: apsw.Connection, since: int = 0) -> int:
    """Make the days from this one on anew from their hours, in the tables where some differ; returns how many did."""
    wrong: set[int] = set()
    for table in _DAY_TABLES:
        if days := _find_wrong_days(connection, table, since):
            connection.execute(f"DELETE FROM {table.days} WHERE day >= ?", (since,))
            anew = table.sum_hours(table.numbers)
            connection.execute(f"INSERT INTO {table.days} (day, {table.columns}, {table.numbers}) {anew}", (since,))
            wrong |= days
    return len(wrong)
