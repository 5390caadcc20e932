"""Reports as values: calendars, sums that add up, and the words for them."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.store import OutcomeTally, Tally, Total
from redrive.reports.periods import (
    HOUR,
    Book,
    CauseRow,
    Report,
    Row,
    StrategyRate,
    advice,
    days,
    failure_lines,
    headline,
    hours_of,
    months,
    name_strategy,
    percent,
    report,
    weeks,
)

ZONES = ["UTC", "Europe/Rome", "Asia/Kolkata", "Pacific/Chatham", "America/St_Johns", "Pacific/Kiritimati"]
NOW = datetime(2031, 5, 17, 8, 30, tzinfo=UTC).timestamp()


def zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def outcome(what: str, number: int = 1, hour: float = NOW, seconds: float = 0.0, name: str = "") -> OutcomeTally:
    return OutcomeTally(hour // HOUR * HOUR, "q", "t", None, what, name, number, seconds)  # type: ignore[arg-type]


def a_report(*outcomes: OutcomeTally, done: int = 0) -> Report:
    april, may = months(NOW, 2, UTC)
    return report("monthly", "UTC", [Book(april), Book(may, [Total("q", "t", None, "succeeded", done)], outcomes)])


# ---- calendar


@given(st.floats(1e9, 4e9), st.integers(1, 30), st.sampled_from(ZONES))
def test_periods_follow_each_other_and_end_now(now: float, number: int, name: str) -> None:
    for make in (months, weeks):
        periods = make(now, number, zone(name))
        assert len(periods) == number
        for one, following in pairwise(periods):
            assert one.complete
            assert one.until == following.since
            assert hours_of(one)[1] == hours_of(following)[0]  # no hour is lost, none belongs to two
        assert periods[-1].until == pytest.approx(now, abs=0.001)
        assert periods[-1].since <= now
        assert not periods[-1].complete
        assert len({period.name for period in periods}) == number


def test_the_names_of_months_and_weeks() -> None:
    assert [(p.name, p.label) for p in months(NOW, 3, UTC)] == [
        ("2031-03", "Mar 2031"),
        ("2031-04", "Apr 2031"),
        ("2031-05", "May 2031 (1-17)"),
    ]
    assert [p.label for p in weeks(NOW, 2, UTC)] == ["2031-W19 (from 05 May)", "2031-W20 (from 12 May)"]
    turn = datetime(2031, 1, 1, 5, tzinfo=UTC).timestamp()
    assert [p.label for p in months(turn, 2, UTC)] == ["Dec 2030", "Jan 2031 (1)"]
    assert [p.name for p in weeks(turn, 2, UTC)] == ["2030-W52", "2031-W01"]


def test_a_month_with_a_clock_change_is_as_long_as_it_is() -> None:
    march = months(NOW, 3, ZoneInfo("Europe/Rome"))[0]
    assert march.until - march.since == (31 * 24 - 1) * HOUR


# ---- sums


COUNTS = st.integers(0, 50)


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.integers(0, 1000))
def test_what_died_is_auto_human_and_open(
    auto: int, person: int, manual: int, delayed: int, moving: int, done: int
) -> None:
    died = auto + person + manual + delayed + moving
    total = a_report(
        outcome("died", died),
        outcome("auto", auto, seconds=60.0 * auto),
        outcome("person", person, seconds=7200.0 * person),
        outcome("back", auto + person),
        outcome("open", manual, name="manual"),
        outcome("open", delayed, name="delayed"),
        outcome("open", moving, name="moving"),
        done=done + auto + person,
    ).total
    assert total.auto + total.human + total.open == total.died == died
    assert total.human == person + manual
    assert total.processed == done + died
    assert total.auto_mttr == (60.0 if auto else None)
    assert total.person_mttr == (7200.0 if person else None)


@pytest.mark.behaviour("004-58")
def test_the_mean_time_to_resolution_by_who_resolved_it() -> None:
    total = a_report(
        outcome("died", 4), outcome("auto", 2, seconds=24 * 60.0), outcome("person", 2, seconds=8.4 * HOUR)
    ).total
    assert total.auto_mttr == 12 * 60.0
    assert total.person_mttr == pytest.approx(4.2 * HOUR)
    assert total.public()["mttr_seconds"] == {"auto": 720.0, "person": 15120.0}


@pytest.mark.behaviour("004-41")
def test_deferrals_are_a_part_of_what_took_a_person() -> None:
    row = a_report(outcome("died", 3), outcome("deferred", 2), outcome("auto", 1)).total
    assert (row.human, row.deferred) == (2, 2)
    assert row.public()["deferred"] == 2


def test_shares_of_nothing_are_not_numbers() -> None:
    empty = Row("x", "x", 0.0, 1.0)
    assert (empty.rate, empty.auto_share, empty.human_share, empty.auto_mttr) == (None, None, None, None)
    assert (percent(None), percent(0.4513, 2), percent(0.813)) == ("-", "45.13 %", "81 %")


def test_empty_months_before_the_first_job_are_left_out_and_later_ones_are_not() -> None:
    periods = months(NOW, 4, UTC)
    busy, quiet = [Total("q", "t", None, "succeeded", 3)], list[Total]()
    books = [Book(period, totals) for period, totals in zip(periods, (quiet, busy, quiet, quiet), strict=True)]
    found = report("monthly", "UTC", books)
    assert [(row.name, row.processed) for row in found.rows] == [("2031-03", 3), ("2031-04", 0), ("2031-05", 0)]


def test_a_report_goes_through_json() -> None:
    found = a_report(outcome("died", 2), outcome("worked", 3, name="compress_context"), done=5)
    body = msgspec.json.decode(msgspec.json.encode(found.public()))
    assert (body["total"]["processed"], body["total"]["human_required"], body["rows"][0]["complete"]) == (7, 2, False)
    assert body["strategies"] == [
        {"strategy": "compress_context", "worked": 3, "failed": 0, "success_rate": 1.0, "pays": True}
    ]


# ---- failures


@given(st.floats(1e9, 4e9), st.floats(1.0, 400 * HOUR), st.sampled_from([*ZONES, "Africa/Cairo", "America/New_York"]))
def test_days_are_whole_hours_of_one_date(since: float, length: float, name: str) -> None:
    """Every hour that begins in the time is in one day, by the date at which it begins."""
    until, found = since + length, days(since, since + length, zone(name))
    hours = [since // HOUR * HOUR + number * HOUR for number in range(int(length // HOUR) + 2)]
    dates = []
    for begin, end in found:
        of_day = {datetime.fromtimestamp(hour, zone(name)).date() for hour in hours if begin <= hour < end}
        assert len(of_day) == 1
        dates += of_day
    assert sorted(set(dates)) == dates
    assert [begin for begin, _ in found[1:]] == [end for _, end in found[:-1]]
    inside = [hour for hour in hours if since <= hour < until]
    assert [hour for hour in hours if any(begin <= hour < end for begin, end in found)] == inside


def test_there_are_no_days_after_the_calendars_end() -> None:
    assert days(datetime(9999, 12, 31, tzinfo=UTC).timestamp(), 9e13, zone("Pacific/Kiritimati")) == []


def test_failures_are_added_up_by_day_and_only_failures() -> None:
    def tally(move: str, error_class: str, hour: int, number: int = 1) -> Tally:
        return Tally(NOW // HOUR * HOUR - hour * HOUR, "q", "t", "cto", move, error_class, "timeout", number)

    rows = [
        tally("retried", "E", 0, 2),
        tally("buried", "E", 1),
        tally("buried", "E", 30),
        tally("imported", "E", 2),
        tally("succeeded", "", 0, 9),
        tally("held_back", "", 0, 5),
    ]
    lines = failure_lines(rows, NOW - 40 * HOUR, NOW, UTC, lambda tally, category: category == "transient")
    assert [(line.day, line.failed, line.buried) for line in lines] == [("2031-05-17", 4, 2), ("2031-05-16", 1, 1)]
    assert failure_lines(rows, NOW - 40 * HOUR, NOW, UTC, lambda tally, category: category == "permanent") == []


# ---- words


def test_the_headline_of_a_period() -> None:
    assert headline(a_report(done=3)) == "May 2031 (1-17): 3 processed, no dead letters"
    said = headline(a_report(outcome("died", 3), outcome("auto", 1), outcome("back"), outcome("deferred"),
                             outcome("open", 1, name="delayed"), done=1248))  # fmt: skip
    assert said == (
        "May 2031 (1-17): 1,250 processed, 3 dead letters (0.24 %), 1 resolved by themselves, 1 for a person "
        "(1 deferred), 1 still coming back"
    )


def test_strategies_in_words() -> None:
    assert name_strategy("compress_context+set_model") == "compress context + set model"
    assert name_strategy("bury") == "redriven as it was"


def test_advice_names_what_does_not_pay_and_what_grew() -> None:
    found = msgspec.structs.replace(
        a_report(),
        strategies=[StrategyRate("set_model", 1, 9), StrategyRate("retry", 9, 1), StrategyRate("rare", 0, 2)],
        causes=[CauseRow("permanent", "quota", 9, 7, 2), CauseRow("transient", "timeout", 90, 8, 6)],
    )
    assert advice(found) == [
        "set model: worked 1 of 10 times. Fix the cause, or try something else.",
        "quota buried 7, 5 more than the time before.",
    ]
