"""What a schedule says, where it stands, and which of its due slots are run."""

from datetime import timedelta
from typing import Any

import pytest

from redrive.core.schedule import (
    MOST,
    ON_TIME,
    REMEMBERED,
    Due,
    Mark,
    ScheduleState,
    cron,
    due_slots,
    run_at,
    schedule_name,
    skip_all,
    slot_key,
)
from redrive.errors import InvalidOption, InvalidPayload

MINUTES = [60.0 * n for n in range(1, 11)]
NOW = MINUTES[-1] + 1


# What is said ----------------------------------------------------------------------------------------------------


def test_what_is_not_said_has_a_safe_default() -> None:
    said = cron(" 0 3 * * * ")
    assert (said.line, said.tz, said.payload, said.catch_up, said.cap) == ("0 3 * * *", "UTC", {}, "latest", 100)
    assert (said.overlap, said.jitter) == (False, 0.0)


def test_the_payload_is_a_copy() -> None:
    payload = {"a": 1}
    said = cron("@daily", payload=payload)
    payload["a"] = 2
    assert said.payload == {"a": 1}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("schedule", {"line": 3}), ("schedule", {"line": None}), ("schedule", {"line": "0 3 * * *\n"}),
        ("schedule", {"line": "1," * 200}), ("schedule.tz", {"tz": None}), ("schedule.tz", {"tz": "\0"}),
        ("schedule.catch_up", {"catch_up": "some"}), ("schedule.catch_up", {"catch_up": None}),
        ("schedule.cap", {"cap": 0}), ("schedule.cap", {"cap": MOST + 1}), ("schedule.cap", {"cap": True}),
        ("schedule.cap", {"cap": 1.5}), ("schedule.overlap", {"overlap": "no"}), ("schedule.overlap", {"overlap": 0}),
        ("schedule.jitter", {"jitter": -1}), ("schedule.jitter", {"jitter": "5"}),
        ("schedule.jitter", {"jitter": float("nan")}), ("schedule.jitter", {"jitter": float("inf")}),
        ("schedule.jitter", {"jitter": timedelta(days=2)}), ("schedule.jitter", {"jitter": True}),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(field: str, said: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as refused:
        cron(**{"line": "@daily", **said})
    assert refused.value.field == field


@pytest.mark.parametrize("payload", [[], "x", 3])
def test_a_payload_is_an_object(payload: Any) -> None:
    with pytest.raises(InvalidPayload) as refused:
        cron("@daily", payload=payload)
    assert refused.value.field == "schedule.payload"


# Names and times -------------------------------------------------------------------------------------------------


def test_a_slot_has_one_key() -> None:
    assert slot_key(schedule_name("nightly", 1), 1_800_000_000.0) == "nightly#1@2027-01-15T08:00:00Z"


def test_jitter_is_the_same_every_time_and_differs_between_schedules() -> None:
    said = cron("@daily", jitter=timedelta(minutes=10))
    offsets = {name: run_at(name, said, 1_000.0) - 1_000.0 for name in ("a#0", "a#1", "b#0", "c#0")}
    assert offsets == {name: run_at(name, said, 1_000.0) - 1_000.0 for name in offsets}
    assert all(0 <= offset < 600 for offset in offsets.values())
    assert len(set(offsets.values())) == len(offsets)
    assert run_at("a#0", said, 2_000.0) - 2_000.0 == pytest.approx(offsets["a#0"]), "the pace stays even"
    assert run_at("a#0", cron("@daily"), 1_000.0) == 1_000.0


# Which slots run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", ["latest", "skip", "all"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_slot_on_time_runs_whatever_is_said(catch_up: Any, overlap: bool) -> None:
    said = cron("* * * * *", catch_up=catch_up, overlap=overlap)
    assert due_slots(said, [600.0], 600.5) == Due((600.0,), 0, 600.0)


def test_latest_runs_the_last_missed_one() -> None:
    late = NOW + 10 * ON_TIME
    assert due_slots(cron("* * * * *"), MINUTES, late) == Due((600.0,), 9, 600.0)


def test_skip_runs_none_that_was_missed() -> None:
    said = cron("* * * * *", catch_up="skip")
    assert due_slots(said, MINUTES, 600.0 + ON_TIME + 1) == Due((), 10, 600.0)
    assert due_slots(said, MINUTES, NOW) == Due((600.0,), 9, 600.0), "this one is on time"


def test_all_runs_every_one_oldest_first() -> None:
    said = cron("* * * * *", catch_up="all", overlap=True)
    assert due_slots(said, MINUTES, NOW) == Due(tuple(MINUTES), 0, 600.0)


def test_all_stops_at_its_cap_and_keeps_the_newest() -> None:
    said = cron("* * * * *", catch_up="all", overlap=True, cap=3)
    assert due_slots(said, MINUTES, NOW) == Due((480.0, 540.0, 600.0), 7, 600.0)


def test_all_without_overlap_runs_one_after_the_other() -> None:
    said = cron("* * * * *", catch_up="all", cap=3)
    assert due_slots(said, MINUTES, NOW) == Due((480.0,), 7, 480.0)
    assert due_slots(said, MINUTES[-2:], NOW) == Due((540.0,), 0, 540.0)


def test_skipped_slots_are_dealt_with() -> None:
    assert skip_all(MINUTES) == Due((), 10, 600.0)


# Where it stands -------------------------------------------------------------------------------------------------


def test_lines_stand_side_by_side_and_the_oldest_is_forgotten() -> None:
    standing = ScheduleState(slot=5.0, job="j")
    lines = [cron(f"{minute} * * * *") for minute in range(REMEMBERED + 1)]
    for number, line in enumerate(lines):
        standing = standing.begun(line, float(number))
    assert standing.mark_of(lines[0]) is None
    assert [mark.line for mark in standing.marks] == [line.line for line in lines[1:]]
    assert (standing.slot, standing.job) == (5.0, "j")


def test_the_same_line_in_another_zone_is_another() -> None:
    standing = ScheduleState().begun(cron("@daily"), 1.0)
    assert standing.mark_of(cron("@daily", tz="Europe/Rome")) is None


def test_a_line_begun_again_is_the_newest() -> None:
    one, other = cron("1 * * * *"), cron("2 * * * *")
    standing = ScheduleState().begun(one, 1.0).begun(other, 2.0).begun(one, 3.0)
    assert standing.marks == (Mark("2 * * * *", "UTC", 2.0), Mark("1 * * * *", "UTC", 3.0))
    mark = standing.mark_of(one)
    assert mark is not None and standing.is_newest(mark)


def test_a_decision_moves_its_own_line_only() -> None:
    one, other = cron("1 * * * *"), cron("2 * * * *")
    standing = ScheduleState(note="old").begun(one, 1.0).begun(other, 2.0)
    decided = standing.decided(one, Due((60.0, 120.0), 0, 120.0), None)
    assert decided.marks == (Mark("1 * * * *", "UTC", 120.0), Mark("2 * * * *", "UTC", 2.0))
    assert (decided.pending, decided.note) == ((60.0, 120.0), "old")
    over = decided.handed_in(120.0, "job")
    assert (over.pending, over.slot, over.job) == ((), 120.0, "job")
