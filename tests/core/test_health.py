"""Health in words, and when it hurts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy import DEFAULT, Policy, merge
from redrive.insight.health import REPEAT_AFTER, Health, Pain, QueueNumbers, Remembered, health, pains, sore


def queue(name: str, policy: Policy | None = None, **numbers: Any) -> QueueNumbers:
    return QueueNumbers(name, merge(policy, DEFAULT), **numbers)


# ---- health


@pytest.mark.behaviour("000-85")
def test_nothing_to_see_is_healthy() -> None:
    assert health([]) == Health("healthy", 0, 0, [])
    assert health([queue("a", due=3, waiting=900, running=5, done=10_000, discarded=7)]) == Health("healthy", 3, 0, [])
    assert Health.__struct_fields__ == ("status", "total_pending", "total_dead_letter", "issues")


@pytest.mark.behaviour("000-86", "000-87")
def test_the_sample() -> None:
    """47 due jobs: 35 in one queue are a backlog, 12 elsewhere are not; 12 dead letters are an issue."""
    queues = [
        queue("identity_provision", due=35),
        queue("analytics_ingest", dead=12),
        queue("feedback", due=12),
    ]
    found = health(queues)
    assert found == Health(
        "degraded",
        47,
        12,
        ["analytics_ingest: 12 dead letters", "identity_provision: 35 pending (backed up)"],
    )


@pytest.mark.behaviour("000-86")
def test_one_dead_letter_is_an_issue_in_the_singular() -> None:
    assert health([queue("a", dead=1)]).issues == ["a: 1 dead letter"]


@pytest.mark.parametrize(("due", "issues"), [(25, []), (26, ["a: 26 pending (backed up)"])])
def test_the_threshold_of_a_backlog(due: int, issues: list[str]) -> None:
    assert health([queue("a", due=due)]).issues == issues


def test_a_queue_may_set_its_own_threshold() -> None:
    policy = Policy(health_depth=3)
    assert health([queue("a", policy, due=3)]).status == "healthy"
    assert health([queue("a", policy, due=4)]).status == "degraded"


def test_jobs_for_later_are_not_pending() -> None:
    assert health([queue("a", waiting=10_000, due=0)]) == Health("healthy", 0, 0, [])


def test_held_stalled_and_other_troubles_are_named() -> None:
    found = health([queue("a", held=2, stalled=["job 1 has been running for 9 s (stalled)"])], ["spool: 3 jobs wait"])
    assert found.status == "degraded"
    assert found.issues == [
        "a: 2 held (waiting for a person or a dependency)",
        "a: job 1 has been running for 9 s (stalled)",
        "spool: 3 jobs wait",
    ]


@pytest.mark.behaviour("000-18")
def test_statistics_show_how_critical_a_queue_is() -> None:
    shown = queue("a", Policy(criticality="critical", max_attempts=3), dead=2, paused=True).public()
    assert (shown["criticality"], shown["max_attempts"], shown["dead"], shown["paused"]) == ("critical", 3, 2, True)


# ---- pain


@pytest.mark.behaviour("000-77")
@pytest.mark.parametrize(("due", "count"), [(0, 0), (100, 0), (101, 1), (100_000, 1)])
def test_depth_hurts_above_a_hundred(due: int, count: int) -> None:
    found = pains([queue("a", due=due)])
    assert len(found) == count
    assert all((pain.kind, pain.queue) == ("depth", "a") and str(due) in pain.message for pain in found)


@pytest.mark.behaviour("000-78")
@pytest.mark.parametrize(("dead", "count"), [(0, 0), (10, 0), (11, 1), (5_000, 1)])
def test_dead_letters_hurt_above_ten_at_seven_tenths_or_more(dead: int, count: int) -> None:
    found = pains([queue("a", dead=dead)])
    assert len(found) == count
    assert all(pain.kind == "dead_letters" and 0.7 <= pain.severity <= 1.0 for pain in found)


@pytest.mark.behaviour("000-77")
@given(st.integers(101, 10**7), st.integers(1, 10**6))
def test_severity_grows_with_the_depth(due: int, more: int) -> None:
    (less,), (greater,) = pains([queue("a", due=due)]), pains([queue("a", due=due + more)])
    assert 0.0 < less.severity <= greater.severity <= 1.0


def test_severity_grows_by_a_visible_amount() -> None:
    severities = [pains([queue("a", due=due)])[0].severity for due in (101, 150, 300, 1_000, 10_000)]
    assert severities == sorted(set(severities))
    assert severities[-1] - severities[0] > 0.5


def test_a_queue_may_hurt_in_two_ways_and_set_its_own_thresholds() -> None:
    policy = Policy(pain_depth=5, pain_dead=1)
    assert pains([queue("a", policy, due=5, dead=1)]) == []
    assert [pain.kind for pain in pains([queue("a", policy, due=6, dead=2)])] == ["depth", "dead_letters"]


def test_a_pain_is_over_at_half_of_its_threshold() -> None:
    assert sore([queue("a", due=51, dead=6), queue("b", due=50, dead=5)]) == {("depth", "a"), ("dead_letters", "a")}
    never = Policy(pain_dead=0)
    assert sore([queue("a", never, dead=1), queue("b", never)]) == {("dead_letters", "a")}


# ---- remembered


PAIN = Pain("depth", "a", 0.5, "a: 200 due jobs")


def test_a_signal_is_fresh_until_it_was_delivered() -> None:
    remembered = Remembered()
    assert remembered.fresh(PAIN, 0.0)
    assert remembered.fresh(PAIN, 1.0), "nobody has heard it yet"
    remembered.delivered(PAIN, 1.0)
    assert not remembered.fresh(PAIN, 1.0 + REPEAT_AFTER - 0.001)
    assert remembered.fresh(PAIN, 1.0 + REPEAT_AFTER)
    assert remembered.fresh(PAIN, 1.0 - REPEAT_AFTER), "the clock was ahead, and is put right"


def test_other_signals_are_other_signals() -> None:
    remembered = Remembered()
    remembered.delivered(PAIN, 0.0)
    assert not remembered.fresh(Pain("depth", "a", 0.9, "a: 900 due jobs"), 1.0)
    assert remembered.fresh(Pain("depth", "b", 0.5, "b"), 1.0)
    assert remembered.fresh(Pain("dead_letters", "a", 0.5, "a"), 1.0)


def test_what_stopped_hurting_is_told_at_once_when_it_comes_back() -> None:
    remembered = Remembered()
    remembered.delivered(PAIN, 0.0)
    remembered.over({("depth", "a"): True})
    assert not remembered.fresh(PAIN, 1.0)
    remembered.over({})
    assert remembered.fresh(PAIN, 2.0)


def test_who_heard_it_is_spared_until_everybody_has_or_it_is_over() -> None:
    remembered = Remembered()
    remembered.heard(PAIN).add(1)
    remembered.over({("depth", "a"): True})
    assert remembered.heard(PAIN) == {1}
    remembered.delivered(PAIN, 0.0)
    assert remembered.heard(PAIN) == set()
    remembered.heard(PAIN).add(1)
    remembered.over({})
    assert remembered.heard(PAIN) == set()
