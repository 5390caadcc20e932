"""What happened in a span of time, summed up: whole days from the days, what is left at both ends from the hours."""

from __future__ import annotations

from typing import Final, NamedTuple

import apsw

from redrive.stores.sqlite.rows import Row, select

HOUR: Final = 3600
HOURS_A_DAY: Final = 24
LATE_DAYS: Final = 35
"""Days of late, a month and some: these are compared with their hours from time to time."""


class Span(NamedTuple):
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


def of_late(now: float) -> int:
    """The first of the days of late."""
    return int(now // (HOUR * HOURS_A_DAY)) - LATE_DAYS


def span(since: float, until: float) -> Span:
    """From the hour of `since` up to that of `until`."""
    return Span(int(since // HOUR), -int(-until // HOUR))


class Kept(NamedTuple):
    """A table of days: by what, of which hours, which sums, and of which of their rows."""

    days: str
    columns: str
    hours: str
    numbers: str = "number"
    only: str = "true"

    def in_parts(self) -> str:
        """A query for the parts of a span: whole days from the days, the rest from their hours."""
        sums = ", ".join(f"sum({name})" for name in self.numbers.split(", "))
        of_hours = f"SELECT {self.columns}, {self.numbers} FROM {self.hours} WHERE {self.only}"
        return (
            f"SELECT {self.columns}, {sums} FROM ("
            f"SELECT {self.columns}, {self.numbers} FROM {self.days} WHERE day >= ?1 AND day < ?2"
            f" UNION ALL {of_hours} AND hour >= ?3 AND hour < ?4 UNION ALL {of_hours} AND hour >= ?5 AND hour < ?6"
            f") GROUP BY {self.columns}"
        )

    def anew(self, numbers: str) -> str:
        """A query for the days from one on, as their hours say them."""
        sums = ", ".join(f"sum({name}) AS {name}" for name in numbers.split(", "))
        return (
            f"SELECT hour / {HOURS_A_DAY} AS day, {self.columns}, {sums} FROM {self.hours}"
            f" WHERE hour >= ?1 * {HOURS_A_DAY} AND {self.only} GROUP BY day, {self.columns}"
        )


_MOVES: Final = Kept("days", "route, move", "tallies")
_FAILURES: Final = Kept(
    "failure_days", "route, move, error_class, detail", "tallies", only="(error_class <> '' OR detail <> '')"
)
_OUTCOMES: Final = Kept("outcome_days", "route, what, name", "outcomes", "number, seconds")
_KEPT: Final = (_MOVES, _FAILURES, _OUTCOMES)


# -- moves


def totals(connection: apsw.Connection, wanted: Span) -> list[Row]:
    """Route, move, number."""
    return select(connection, _MOVES.in_parts(), wanted.parts)


_OF_HOURS: Final = (
    "SELECT route, move, error_class, detail, sum(number) FROM tallies WHERE hour >= ?1 AND hour < ?2"
    " GROUP BY route, move, error_class, detail"
)


def tallies(connection: apsw.Connection, wanted: Span) -> list[Row]:
    """Route, move, class, detail, number. The days keep failures apart from all moves; what is left did not fail."""
    begin, end, *_ = wanted.parts
    if begin == end:
        return select(connection, _OF_HOURS, wanted)
    failures = select(connection, _FAILURES.in_parts(), wanted.parts)
    plain = {(route, move): number for route, move, number in totals(connection, wanted)}
    for route, move, _, _, number in failures:
        plain[route, move] -= number
    return failures + [(route, move, "", "", number) for (route, move), number in plain.items() if number]


# -- outcomes


def outcomes(connection: apsw.Connection, wanted: Span) -> list[Row]:
    """Route, what, name, number, seconds."""
    return select(connection, _OUTCOMES.in_parts(), wanted.parts) + _open(connection, wanted)


_PLACE: Final = "CASE jobs.state WHEN 'dead' THEN jobs.lane WHEN 'held' THEN 'held' ELSE 'moving' END"
_UNENDED: Final = (
    " FROM routes CROSS JOIN jobs INDEXED BY jobs_died WHERE jobs.route = routes.id AND jobs.died_at IS NOT NULL"
    " AND jobs.state IN ('waiting', 'running', 'held', 'dead')"
    f" AND jobs.died_at >= ?1 * {HOUR} AND jobs.died_at < ?2 * {HOUR}"
)
"""By one seek per route."""
_OPEN: Final = f"SELECT routes.id, count(*){_UNENDED} GROUP BY 1"
_NOT_MANUAL: Final = (
    f"SELECT routes.id, {_PLACE}, count(*){_UNENDED} AND NOT (jobs.state = 'dead' AND jobs.lane IS 'manual')"
    " GROUP BY 1, 2"
)
OPEN_BY_HOUR: Final = (
    f"SELECT CAST(jobs.died_at AS INTEGER) / {HOUR}, routes.id, 'open', {_PLACE}, count(*), 0.0{_UNENDED}"
    " GROUP BY 1, 2, 4"
)
"""Counted when somebody asks: what died and has not come to its end."""


def _open(connection: apsw.Connection, wanted: Span) -> list[Row]:
    """All of them less those elsewhere: most wait in the manual lane, and to sort those by it would take longest."""
    manual: dict[int, int] = dict(select(connection, _OPEN, wanted))
    elsewhere = select(connection, _NOT_MANUAL, wanted)
    for route, _, number in elsewhere:
        manual[route] -= number
    found = [*elsewhere, *((route, "manual", number) for route, number in manual.items() if number)]
    return [(route, "open", name, number, 0.0) for route, name, number in found]


# -- repair


def in_words(days: int) -> str:
    return "1 day" if days == 1 else f"{days} days"


def wrong_days(connection: apsw.Connection, since: int = 0) -> int:
    """Days from this one on that do not say what their hours say: an older process does not know all the tables."""
    return len({day for kept in _KEPT for day in _wrong(connection, kept, since)})


def _wrong(connection: apsw.Connection, kept: Kept, since: int) -> set[int]:
    """Seconds are not whole: their sums differ by a hair, and are not compared."""
    counted = f"SELECT day, {kept.columns}, number FROM {kept.days} WHERE day >= ?1"
    expected = kept.anew("number")
    differ = f"SELECT * FROM ({expected} EXCEPT {counted}) UNION ALL SELECT * FROM ({counted} EXCEPT {expected})"
    return {day for (day,) in select(connection, f"SELECT DISTINCT day FROM ({differ})", (since,))}


def add_up(connection: apsw.Connection, since: int = 0) -> int:
    """The days from this one on anew from their hours, where they differ; how many did."""
    wrong: set[int] = set()
    for kept in _KEPT:
        if days := _wrong(connection, kept, since):
            connection.execute(f"DELETE FROM {kept.days} WHERE day >= ?", (since,))
            anew = kept.anew(kept.numbers)
            connection.execute(f"INSERT INTO {kept.days} (day, {kept.columns}, {kept.numbers}) {anew}", (since,))
            wrong |= days
    return len(wrong)
