"""When a cron line fires next."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from redrive.errors import InvalidOption
from redrive.flows.schedules import next_slot

START = datetime(2026, 5, 13, 10, 20, 30, tzinfo=UTC)  # a Wednesday


def after(line: str, start: datetime = START, tz: str = "UTC") -> datetime:
    return datetime.fromtimestamp(next_slot(line, tz, start.timestamp()), ZoneInfo(tz))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("* * * * *", "2026-05-13T10:21"), ("*/15 * * * *", "2026-05-13T10:30"), ("0 3 * * *", "2026-05-14T03:00"),
        ("0 3 * * MON", "2026-05-18T03:00"), ("0 0 29 2 *", "2028-02-29T00:00"), ("30 10 * * *", "2026-05-13T10:30"),
        ("@hourly", "2026-05-13T11:00"), ("@daily", "2026-05-14T00:00"), ("@midnight", "2026-05-14T00:00"),
        ("@weekly", "2026-05-17T00:00"), ("@monthly", "2026-06-01T00:00"), ("@yearly", "2027-01-01T00:00"),
        ("@annually", "2027-01-01T00:00"), (" @daily ", "2026-05-14T00:00"),
    ],
)  # fmt: skip
def test_lines_and_nicknames(line: str, expected: str) -> None:
    assert after(line).isoformat(timespec="minutes")[:16] == expected


def test_a_slot_is_after_its_start_never_at_it() -> None:
    at = datetime(2026, 5, 13, 3, 0, tzinfo=UTC)
    assert after("0 3 * * *", at) == datetime(2026, 5, 14, 3, 0, tzinfo=UTC)


def test_a_time_zone_is_kept_over_the_change_of_clocks() -> None:
    """In Rome it stays three o'clock, in summer and in winter."""
    assert after("0 3 * * *", tz="Europe/Rome").astimezone(UTC).hour == 1
    winter = datetime(2026, 1, 13, 10, 0, tzinfo=UTC)
    assert after("0 3 * * *", winter, "Europe/Rome").astimezone(UTC).hour == 2


def _slots(line: str, start: datetime, until: datetime, tz: str) -> list[datetime]:
    slots, at = [], start.timestamp()
    for _ in range(100):
        at = next_slot(line, tz, at)
        if at >= until.timestamp():
            return slots
        slots.append(datetime.fromtimestamp(at, ZoneInfo(tz)))
    raise AssertionError("too many slots")


@pytest.mark.parametrize(
    ("line", "day"),
    [
        ("30 2 * * *", "2026-03-29"),
        ("30 2 * * *", "2026-10-25"),
        ("0 2 * * *", "2026-10-25"),
        ("0 3 * * *", "2026-03-29"),
    ],
)
def test_a_daily_line_fires_once_on_the_day_the_clocks_change(line: str, day: str) -> None:
    rome = ZoneInfo("Europe/Rome")
    start = datetime.fromisoformat(day).replace(tzinfo=rome)
    until = start.replace(day=start.day + 1)
    assert len(_slots(line, start, until, "Europe/Rome")) == 1


def test_an_hourly_line_goes_on_while_the_clocks_change() -> None:
    rome = ZoneInfo("Europe/Rome")
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        start = datetime.fromisoformat(day).replace(tzinfo=rome)
        slots = _slots("0 * * * *", start, start.replace(day=start.day + 1), "Europe/Rome")
        times = [slot.timestamp() for slot in slots]
        assert times == sorted(set(times))
        assert len(slots) in (hours - 1, hours)


@pytest.mark.parametrize(
    "line",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 25 * * *", "x * * * *", "@reboot", "0 0 30 2 *", "1-0 * * * *"],
)
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        next_slot(line, "UTC", 0.0)
    assert refused.value.field == "schedule"
    assert repr(line) in str(refused.value)


@pytest.mark.parametrize("tz", ["", "Mars/Base", "/etc/passwd", "../x", "utc+1"])
def test_a_bad_time_zone_is_named(tz: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        next_slot("0 3 * * *", tz, 0.0)
    assert refused.value.field == "schedule.tz"
