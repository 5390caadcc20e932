"""The rule about the time that may destroy: readings in, a time out."""

import msgspec
import pytest

from redrive.core.trusted_time import AWAY, DAY, HOUR, ClockReading, ClockRecord, advance, describe
from redrive.core.trusted_time import time_for_destroying as destroying

T0 = 1_800_000_000.0
FAR = 20 * DAY


def at(
    passed: float, *, ahead: float = 0.0, process: str = "a", boot: str | None = "boot", began: float = 0.0
) -> ClockReading:
    """Both clocks after so many seconds; the wall clock is ahead by some."""
    return ClockReading(T0 + passed + ahead, 1_000.0 + passed, process, boot, 1_000.0 + began)


def after(*readings: ClockReading) -> ClockRecord:
    record = ClockRecord(at(0))
    for reading in readings:
        record = advance(record, reading)
    return record


def test_time_that_passes_is_trusted_at_once() -> None:
    """However long it takes, where one process counts it."""
    for passed in (5.0, HOUR, 365 * DAY):
        assert destroying(after(), at(passed)) == T0 + passed


def test_a_small_step_of_the_clock_is_no_jump() -> None:
    assert after(at(5, ahead=60), at(10, ahead=-60)).hold is None


@pytest.mark.behaviour("T-16a")
def test_a_jump_ahead_destroys_nothing_until_it_has_held_a_day() -> None:
    record = after(at(5, ahead=FAR))
    assert record.hold is not None and record.hold.jumped
    assert (record.hold.since, record.hold.seconds) == (T0 + 5 + FAR, FAR)
    assert destroying(record, at(DAY - 60, ahead=FAR)) == T0 + DAY - 60, "time goes on as if it had not jumped"
    assert destroying(record, at(DAY + 6, ahead=FAR)) == T0 + DAY + 6 + FAR


@pytest.mark.behaviour("T-16a")
def test_a_clock_that_is_back_is_trusted_as_before() -> None:
    record = after(at(5, ahead=FAR), at(9, ahead=FAR), at(15))
    assert record == ClockRecord(at(15))


def test_each_jump_must_hold_a_day() -> None:
    record = after(at(5, ahead=FAR), at(DAY - 60, ahead=FAR), at(DAY, ahead=2 * FAR))
    assert destroying(record, at(DAY + 60, ahead=2 * FAR)) == T0 + DAY + 60


def test_a_second_start_an_hour_later_is_enough() -> None:
    record = after(at(5, ahead=FAR))
    for began, trusted in ((HOUR - 60, False), (HOUR + 60, True)):
        now = at(HOUR + 90, ahead=FAR, process="b", began=began)
        assert (advance(record, now).hold is None) is trusted, began


def test_a_process_that_began_before_the_jump_is_no_second_start() -> None:
    record = after(at(5, ahead=FAR), at(10, ahead=FAR, process="b"))
    assert advance(record, at(DAY - 60, ahead=FAR, process="b")).hold is not None


def test_a_second_start_counts_also_after_the_machine_was_restarted() -> None:
    """Its steady clock began anew: what the processes before it have lived counts."""
    held = after(at(5, ahead=FAR), at(2 * HOUR, ahead=FAR))
    again = ClockReading(T0 + FAR + 10 * HOUR, 60.0, "b", "other boot", 50.0)
    assert advance(held, again).hold is None
    too_soon = after(at(5, ahead=FAR), at(10, ahead=FAR))
    assert advance(too_soon, again).hold is not None


@pytest.mark.behaviour("T-16b")
def test_nothing_is_destroyed_at_once_after_a_long_power_off() -> None:
    started = ClockReading(T0 + FAR, 60.0, "b", "other boot", 50.0)
    record = after(started)
    assert record.hold is not None and not record.hold.jumped
    assert destroying(record, started) <= T0 + AWAY
    later = ClockReading(started.wall + DAY, started.steady + DAY, "b", "other boot", 50.0)
    assert destroying(record, later) == later.wall


def test_a_night_without_power_is_nothing_special() -> None:
    morning = ClockReading(T0 + 14 * HOUR, 60.0, "b", "other boot", 50.0)
    assert destroying(after(), morning) == morning.wall


def test_a_script_that_runs_each_week_lags_one_week() -> None:
    """No process vouches for the week between: each start confirms the one before."""
    record = after()
    for week in range(1, 4):
        now = at(week * 7 * DAY, process=f"run {week}", began=week * 7 * DAY)
        record = advance(record, now)
        assert destroying(record, now) <= T0 + (week - 1) * 7 * DAY + AWAY
    assert record.trusted.wall == T0 + 2 * 7 * DAY


def test_both_clocks_of_a_new_process_may_be_wrong_together() -> None:
    """As in a sandbox with a time of its own."""
    assert destroying(after(), at(FAR, process="b", began=FAR)) <= T0 + AWAY


@pytest.mark.behaviour("T-16c")
def test_the_way_forward_again_is_a_jump_too() -> None:
    """What was stamped while the clock was behind would look weeks old the moment that it is set right."""
    behind = after(at(5, ahead=-FAR))
    assert behind.hold is not None and behind.hold.jumped
    assert destroying(behind, at(10, ahead=-FAR)) == T0 + 10 - FAR
    right = advance(behind, at(60))
    assert destroying(right, at(65)) == T0 + 65 - FAR
    assert destroying(right, at(DAY + 61)) == T0 + DAY + 61


def test_a_steady_clock_without_a_name_counts_in_its_process_only() -> None:
    other = at(FAR, process="b", boot=None, began=FAR)
    assert destroying(ClockRecord(at(0, boot=None)), other) == T0


def test_the_record_is_read_as_it_was_written() -> None:
    for record in (after(), after(at(5, ahead=FAR)), after(at(5, ahead=-FAR))):
        assert msgspec.json.decode(msgspec.json.encode(record), type=ClockRecord) == record


@pytest.mark.parametrize(
    ("ahead", "words"), [(FAR, "jumped ahead by 20 days"), (-3 * HOUR, "jumped back by 3 hours")], ids=["ahead", "back"]
)
def test_a_jump_is_told_in_words(ahead: float, words: str) -> None:
    record = after(at(5, ahead=ahead))
    assert record.hold is not None
    assert words in describe(record.hold)
