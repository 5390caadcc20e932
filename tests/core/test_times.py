"""Moments as people give them: one rule for Python and for every door."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redrive.core.times import earlier, later, moment, read, read_time
from redrive.errors import InvalidInput

NOW = 1_800_000_000.0
AT = datetime.fromtimestamp(NOW, UTC)
NAIVE = datetime(2031, 5, 17)  # noqa: DTZ001 - that is the point
ROME = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("said", "span"), [(60, 60.0), (0.5, 0.5), (timedelta(hours=2), 7200.0), (timedelta(days=400), 34_560_000.0)]
)
def test_a_span_counts_from_now_in_its_direction(said: Any, span: float) -> None:
    assert later("until", said, NOW) == NOW + span
    assert earlier("since", said, NOW) == NOW - span


def test_a_datetime_is_itself_in_any_zone() -> None:
    soon = AT + timedelta(minutes=1)
    for said in (soon, soon.astimezone(ROME)):
        assert moment("run_at", said) == later("until", said, NOW) == earlier("since", said, NOW) == NOW + 60


@pytest.mark.parametrize("said", ["tomorrow", True, None, [1], float("nan"), float("inf"), -5, timedelta(-1), 10**400])
def test_what_is_no_moment_is_refused_by_name(said: Any) -> None:
    for read_as in (later, earlier):
        with pytest.raises(InvalidInput, match=r"^until: .*number of seconds"):
            read_as("until", said, NOW)


@pytest.mark.parametrize(
    "said",
    [datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))), datetime.min.replace(tzinfo=UTC)],
)
def test_what_not_every_zone_can_write_down_is_refused(said: datetime) -> None:
    with pytest.raises(InvalidInput, match="every time zone"):
        moment("run_at", said)


def test_a_span_of_ages_is_refused_in_words() -> None:
    with pytest.raises(InvalidInput, match="three thousand years"):
        earlier("since", read("since", "999999w"), NOW)


def test_a_naive_datetime_is_refused() -> None:
    for refuse in (lambda: moment("at", NAIVE), lambda: later("at", NAIVE, NOW), lambda: earlier("at", NAIVE, NOW)):
        with pytest.raises(InvalidInput, match=r"^at: is naive; give it a time zone"):
            refuse()


@pytest.mark.parametrize("said", [0, AT, AT - timedelta(days=1)])
def test_later_is_in_the_future(said: Any) -> None:
    with pytest.raises(InvalidInput, match="future"):
        later("until", said, NOW)


def test_earlier_ends_in_1970() -> None:
    assert earlier("since", timedelta(days=365 * 100), NOW) == 0.0


@pytest.mark.parametrize(
    ("text", "span"),
    [("30s", 30), ("5min", 300), ("5m", 300), ("24h", 86400), (" 3 d ", 3 * 86400), ("2w", 14 * 86400), ("0h", 0)],
)
def test_a_text_may_be_a_span(text: str, span: int) -> None:
    assert read("since", text) == timedelta(seconds=span)


@pytest.mark.parametrize("text", ["2027-01-15T08:00:00Z", "2027-01-15T10:00:00+02:00", " 2027-01-15 08:00Z "])
def test_a_text_may_be_a_time_with_its_zone(text: str) -> None:
    assert read("since", text) == read_time("since", text) == AT


def test_a_time_without_a_zone_is_somebodys_or_nobodys() -> None:
    for reads in (read, read_time):
        assert reads("since", "2027-01-15T08:00", zone=UTC) == AT
        assert reads("since", "2027-01-15", zone=ROME) == datetime(2027, 1, 15, tzinfo=ROME)
        assert reads("since", "2027-01-15T08:00:00Z", zone=ROME) == AT, "its own zone counts"
        with pytest.raises(InvalidInput, match=r"^since: .* no time zone"):
            reads("since", "2027-01-15T08:00")


@pytest.mark.parametrize("text", ["", "yesterday", "h", "-1h", "9999999h", "1.5h", "2027-13-01", "24 hours", "٣h"])
def test_a_text_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^since: .* is neither a span nor a time"):
        read("since", text, zone=UTC)
    with pytest.raises(InvalidInput, match=r"^since: .* is not a time"):
        read_time("since", text, zone=UTC)


def test_a_span_alone_is_no_time() -> None:
    with pytest.raises(InvalidInput, match=r"^run_at: '24h' is not a time"):
        read_time("run_at", "24h")
