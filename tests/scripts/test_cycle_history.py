"""The rule that finds cycles which are missing, died or were short, as a pure function of their records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import InvalidOption
from redrive.scripts.cycle_history import CycleRun, Finding, as_seen, checked_every, findings, standings
from redrive.scripts.cycle_rules import DAY, HOUR

MONDAY = datetime(2031, 5, 5, 2, 15, tzinfo=UTC).timestamp()


def ran(at: float, jobs: int = 4, **how: Any) -> CycleRun:
    said = {"cycle_id": datetime.fromtimestamp(at, UTC).date().isoformat(), "outcome": "ended", **how}
    return CycleRun(name="nightly", begun=at, process="here-1-a", jobs=jobs, seen=at + 600.0, **said)


def nights(number: int, start: float = MONDAY, **how: Any) -> list[CycleRun]:
    return [ran(start + day * DAY, **how) for day in range(number)]


def kinds(runs: list[CycleRun], now: float) -> list[str]:
    return [finding.kind for finding in findings(runs, now)]


def only(runs: list[CycleRun], now: float) -> Finding:
    (finding,) = findings(runs, now)
    return finding


# ---- missing


@pytest.mark.behaviour("T-3a")
def test_a_night_that_did_not_happen_is_told_in_the_morning() -> None:
    runs = nights(12)
    due = MONDAY + 12 * DAY
    assert kinds(runs, due + HOUR) == [], "a little late"
    finding = only(runs, due + 5 * HOUR)
    assert finding.sentence == "nightly ran about 02:15 on 12 days, not today"
    assert (finding.kind, finding.since, finding.command) == ("cycle_missing", due, "redrive cycles")
    later = only(runs, due + 3 * DAY)
    assert later.sentence == "nightly ran about 02:15 on 12 days, not since 2031-05-16"
    assert later.id == finding.id, "one need, however often it is asked for"


def test_three_starts_are_no_rhythm_and_four_are() -> None:
    assert kinds(nights(3), MONDAY + 30 * DAY) == []
    assert kinds(nights(4), MONDAY + 30 * DAY) == ["cycle_missing"]


def test_irregular_starts_have_half_a_gap_of_time() -> None:
    offsets = [0, 5, -4, 7, -6, 3, -5, 6]
    runs = [ran(MONDAY + day * DAY + offset * HOUR, cycle_id=f"n{day}") for day, offset in enumerate(offsets)]
    (standing,) = standings(runs, MONDAY)
    assert standing.due_at is not None
    assert kinds(runs, standing.due_at + 11 * HOUR) == []
    assert kinds(runs, standing.due_at + 15 * HOUR) == ["cycle_missing"]


def test_hours_are_told_after_two_more() -> None:
    runs = [ran(MONDAY + hour * HOUR, cycle_id=f"h{hour}") for hour in range(10)]
    last = runs[-1].begun
    assert kinds(runs, last + 2.9 * HOUR) == []
    assert only(runs, last + 3.1 * HOUR).sentence == "nightly is due every 1 h and has not begun since 2031-05-05 11:15"


def test_weekends_are_free_once_two_weeks_are_known() -> None:
    workdays = [day for day in range(14) if day % 7 < 5]
    saturday = MONDAY + 5 * DAY
    assert kinds([ran(MONDAY + day * DAY) for day in range(5)], saturday + 5 * HOUR) == ["cycle_missing"]
    runs = [ran(MONDAY + day * DAY) for day in [*workdays, *(day + 14 for day in range(5))]]
    third_saturday = MONDAY + 19 * DAY
    assert kinds(runs, third_saturday + 5 * HOUR) == []
    assert kinds(runs, third_saturday + 2 * DAY + HOUR) == [], "monday, not yet late"
    assert kinds(runs, third_saturday + 2 * DAY + 5 * HOUR) == ["cycle_missing"]


def test_starts_around_midnight_are_of_one_rhythm() -> None:
    midnight = datetime(2031, 5, 6, tzinfo=UTC).timestamp()
    runs = [ran(midnight + day * DAY + (300 if day % 2 else -300), cycle_id=f"n{day}") for day in range(8)]
    assert kinds(runs, midnight + 8 * DAY + HOUR) == []
    assert kinds(runs, midnight + 8 * DAY + 3 * HOUR) == ["cycle_missing"]


def test_the_usual_time_is_that_of_the_scripts_zone() -> None:
    finding = only(nights(12, zone="Europe/Rome"), MONDAY + 12 * DAY + 5 * HOUR)
    assert "about 04:15 on 12 days" in finding.sentence


def test_a_start_again_is_the_same_cycle() -> None:
    runs = nights(6)
    again = ran(MONDAY + 5 * DAY + 12 * HOUR, cycle_id=runs[-1].cycle_id)
    assert kinds([*runs, again], MONDAY + 6 * DAY + 5 * HOUR) == ["cycle_missing"]


def test_what_the_script_says_counts_from_its_first_start() -> None:
    runs = [ran(MONDAY, every=DAY)]
    assert kinds(runs, MONDAY + 1.4 * DAY) == []
    finding = only(runs, MONDAY + 1.6 * DAY)
    assert finding.sentence == "nightly is due every 1 d and has not begun since 2031-05-05 02:15"


def test_what_is_not_watched_is_not_missing() -> None:
    assert kinds(nights(12, watched=False), MONDAY + 60 * DAY) == []


@pytest.mark.parametrize("said", ["1d", timedelta(days=1), 86_400, 86_400.0])
def test_every_as_people_write_it(said: Any) -> None:
    assert checked_every(said) == DAY


@pytest.mark.parametrize("said", ["daily", "5s", 0, -1, True, "400d", float("nan"), "2031-05-17T07:00:00Z", [1]])
def test_every_that_cannot_be(said: Any) -> None:
    with pytest.raises(InvalidOption) as raised:
        checked_every(said)
    assert raised.value.field == "every"


# ---- died


@pytest.mark.behaviour("T-3b")
def test_a_run_that_died_is_told_with_what_is_usual() -> None:
    last = MONDAY + 5 * DAY
    runs = [*nights(5), ran(last, 1, outcome="died", error_class="ZeroDivisionError")]
    finding = only(runs, last + HOUR)
    assert finding.kind == "cycle_died"
    assert finding.sentence == (
        "nightly 2031-05-10 died after 1 of its usual 4 jobs (ZeroDivisionError); start it again"
    )
    assert kinds([*runs, ran(last + 2 * HOUR, cycle_id="2031-05-10")], last + 3 * HOUR) == [], "started again"


def test_one_that_was_interrupted() -> None:
    runs = [ran(MONDAY, 1, outcome="interrupted", error_class="KeyboardInterrupt")]
    assert only(runs, MONDAY + HOUR).sentence == (
        "nightly 2031-05-05 was interrupted after 1 job (KeyboardInterrupt); start it again"
    )


def test_of_two_at_once_the_end_of_one_does_not_hide_the_death_of_the_other() -> None:
    died = ran(MONDAY, 2, outcome="died")
    other = ran(MONDAY + 1.0)
    assert kinds([died, other], MONDAY + HOUR) == ["cycle_died"]


def test_a_run_without_an_end_is_dead_when_its_process_is() -> None:
    run = ran(MONDAY, 1, outcome="under_way")
    assert kinds(as_seen([run], {"here-1-a": False}, MONDAY + 9 * DAY), MONDAY + HOUR) == []
    assert kinds(as_seen([run], {"here-1-a": True}, MONDAY + 60.0), MONDAY + 60.0) == ["cycle_died"]


def test_a_run_of_another_host_is_dead_when_nothing_was_seen_of_it_for_a_day() -> None:
    run = ran(MONDAY, 1, outcome="under_way")
    assert as_seen([run], {}, MONDAY + DAY)[0].outcome == "under_way"
    assert as_seen([run], {}, MONDAY + DAY + HOUR)[0].outcome == "died"


# ---- short


@pytest.mark.behaviour("T-3c")
@pytest.mark.parametrize(("jobs", "short"), [(0, True), (1, True), (2, False), (4, False), (9, False)])
def test_less_than_half_of_the_usual_is_told(jobs: int, short: bool) -> None:
    runs = [*nights(7), ran(MONDAY + 7 * DAY, jobs)]
    found = findings(runs, MONDAY + 7 * DAY + HOUR)
    assert [finding.kind for finding in found] == (["cycle_short"] if short else [])
    if jobs == 1:
        assert found[0].sentence == "nightly 2031-05-12 had 1 job, usually 4"


def test_what_is_usual_are_the_last_seven_that_ended() -> None:
    runs = [*nights(10, jobs=100), *nights(7, MONDAY + 10 * DAY, jobs=10), ran(MONDAY + 17 * DAY, 6)]
    assert kinds(runs, MONDAY + 17 * DAY + HOUR) == []


def test_of_several_the_missing_come_first() -> None:
    died = [*nights(5), ran(MONDAY + 5 * DAY, 1, outcome="died")]
    assert kinds(died, MONDAY + 20 * DAY) == ["cycle_missing", "cycle_died"]
