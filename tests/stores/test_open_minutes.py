"""Jobs of a route's latest minute are in no sum yet, and every report counts them all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.commands import Forget, Insert
from redrive.stores.sqlite import rollups
from redrive.stores.sqlite.connection import open_writer
from redrive.stores.sqlite.machine import Machine
from redrive.stores.sqlite.rollups import DAY, HOUR, MINUTE
from tests.stores.jobs import a_job

BEGIN = 400 * DAY
SUMS = ("tallies", "days", "minutes")


class Sums:
    """A file of its own, and a Machine that fills it."""

    def __init__(self, path: Path, *, opens_minutes: bool) -> None:
        self.connection = open_writer(path)
        self.machine = Machine(opens_minutes=opens_minutes)

    def execute(self, *commands: Any) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        for command in commands:
            self.machine.prepare(self.connection, command)
            self.machine.execute(self.connection, command)
        self.connection.execute("COMMIT")

    def enqueue(self, *ats: float, queue: str = "mail") -> None:
        self.execute(Insert(tuple(a_job(queue, created_at=at, run_at=at, updated_at=at) for at in ats)))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(f"SELECT * FROM {table}").fetchall()

    def report(self, since: float, until: float) -> list[object]:
        """What every reader of sums says of a time, in an order of its own."""
        where = (self.connection, self.machine.routes, since, until)
        return [
            sorted(map(repr, answer))
            for answer in (
                rollups.read_tallies(*where),
                rollups.read_tallies(*where, whole=True),
                rollups.read_totals(*where),
                rollups.read_minutes(*where),
            )
        ]

    def written(self) -> int:
        """Rows that were written so far, in whatever table."""
        return self.connection.total_changes()


@pytest.fixture
def sums(folder: Path) -> Iterator[Sums]:
    made = Sums(folder / "jobs.db", opens_minutes=True)
    yield made
    made.connection.close()


def test_a_lone_job_writes_its_row_and_one_counter(sums: Sums) -> None:
    sums.enqueue(BEGIN)
    before = sums.written()
    sums.enqueue(BEGIN + 1)
    assert sums.written() - before == 2
    assert [sums.rows(table) for table in SUMS] == [[], [], []]
    (minute,) = rollups.read_minutes(sums.connection, sums.machine.routes, 0, 1e10)
    assert (minute.at, minute.move, minute.number) == (BEGIN, "enqueued", 2)


def test_a_minute_that_is_over_is_added_to_all_sums(sums: Sums) -> None:
    sums.enqueue(BEGIN, BEGIN + 59)
    sums.enqueue(BEGIN + 60)
    minute = BEGIN // MINUTE
    assert sums.rows("tallies") == [(BEGIN // HOUR, 1, "enqueued", "", "", 2)]
    assert sums.rows("days") == [(BEGIN // DAY, 1, "enqueued", 2)]
    assert sums.rows("minutes") == [(minute, 1, "enqueued", 2)]
    sums.enqueue(BEGIN + 59)  # its clock is a little behind: the open minute stays open
    assert sums.rows("minutes") == [(minute, 1, "enqueued", 3)]
    assert sums.connection.execute("SELECT open_minute, open_enqueued FROM routes").fetchall() == [(minute + 1, 1)]


def test_sums_that_are_not_closed_are_not_wrong(sums: Sums) -> None:
    sums.enqueue(BEGIN)
    assert rollups.count_wrong_days(sums.connection) == 0
    assert rollups.add_up(sums.connection) == 0
    sums.enqueue(BEGIN + DAY)
    assert rollups.count_wrong_days(sums.connection) == 0


def test_what_forgets_old_minutes_closes_them_first(sums: Sums) -> None:
    sums.enqueue(BEGIN)
    sums.enqueue(BEGIN + DAY, queue="other")
    sums.execute(Forget((), (), (BEGIN + HOUR) // MINUTE))
    assert sums.rows("minutes") == []
    assert [row[-1] for row in sums.rows("days")] == [1]
    counted = rollups.read_totals(sums.connection, sums.machine.routes, BEGIN, BEGIN + 2 * DAY)
    assert sum(total.number for total in counted) == 2


def test_a_rolled_back_insert_counts_nothing(sums: Sums) -> None:
    sums.enqueue(BEGIN)
    before = sums.report(0, 1e10)
    with pytest.raises(apsw.ConstraintError):
        sums.execute(Insert((a_job("mail", created_at=BEGIN + 1), a_job("mail", created_at=BEGIN + 2, priority=9))))
    sums.connection.execute("ROLLBACK")
    assert sums.report(0, 1e10) == before


INSTANT = st.one_of(
    st.integers(0, 5 * MINUTE),
    st.builds(lambda hours, more: hours * HOUR + more, st.integers(0, 75), st.integers(-70, 70)),
).map(lambda seconds: float(BEGIN + seconds))
CALL = st.tuples(st.sampled_from(["mail", "post"]), st.lists(INSTANT, min_size=1, max_size=4))


def test_every_report_says_what_it_would_say_if_nothing_were_open(
    folder: Path, size: Callable[[int, int], int]
) -> None:
    number = iter(range(1_000_000))

    @settings(max_examples=size(60, 3_000), deadline=None)
    @given(st.lists(CALL, min_size=1, max_size=8), st.lists(st.tuples(INSTANT, INSTANT), min_size=1, max_size=4))
    def check(calls: list[tuple[str, list[float]]], times: list[tuple[float, float]]) -> None:
        both = [
            Sums(folder / f"{next(number)}.db", opens_minutes=False),
            Sums(folder / f"{next(number)}.db", opens_minutes=True),
        ]
        try:
            for queue, ats in calls:
                for one in both:
                    one.enqueue(*ats, queue=queue)
            for since, until in [*times, (0.0, 1e10)]:
                at_once, later = (one.report(since, until) for one in both)
                assert later == at_once
            assert rollups.count_wrong_days(both[1].connection) == 0
            rollups.close_minutes(both[1].connection, 10**9)
            for table in SUMS:
                assert sorted(both[0].rows(table)) == sorted(both[1].rows(table))
        finally:
            for one in both:
                one.connection.close()

    check()
