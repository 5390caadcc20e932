"""Health in words, and when it hurts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.pain import LONGEST_PAUSE, REPEAT_AFTER, Hurting, Pain, notice_of, record_telling
from redrive.core.policy import DEFAULT, Policy, merge
from redrive.reports.health import Health, broken, downstreams, health, pains, sore
from redrive.reports.needs import Snapshot, needs, store_failed
from redrive.reports.queue_numbers import QueueNumbers
from redrive.retries.breaker import Breaker


def queue(name: str, policy: Policy | None = None, **numbers: Any) -> QueueNumbers:
    return QueueNumbers(name, merge(policy, DEFAULT), **numbers)


# ---- health


@pytest.mark.behaviour("000-85")
def test_nothing_to_see_is_healthy() -> None:
    assert health([]) == Health("healthy", 0, 0, [])
    assert health([queue("a", due=3, waiting=900, running=5, done=10_000, discarded=7)]) == Health("healthy", 3, 0, [])
    assert Health.__struct_fields__[:4] == ("status", "total_pending", "total_dead_letter", "issues")


def test_the_sample() -> None:
    """47 due jobs: 35 in one queue are a backlog, 12 elsewhere are not; 12 dead letters are an issue."""
    queues = [
        queue("identity_provision", due=35),
        queue("analytics_ingest", dead=12),
        queue("feedback", due=12),
    ]
    found = health(queues)
    assert (found.status, found.total_pending, found.total_dead_letter) == ("degraded", 47, 12)
    assert found.issues == ["analytics_ingest: 12 dead letters", "identity_provision: 35 pending (backed up)"]


@pytest.mark.behaviour("000-86")
def test_one_dead_letter_is_an_issue_in_the_singular() -> None:
    assert health([queue("a", dead=1)]).issues == ["a: 1 dead letter"]


@pytest.mark.behaviour("C7")
@pytest.mark.parametrize(("due", "issues"), [(25, []), (26, ["a: 26 pending (backed up)"])])
def test_the_threshold_of_a_backlog(due: int, issues: list[str]) -> None:
    assert health([queue("a", due=due)]).issues == issues


@pytest.mark.behaviour("C7")
def test_a_queue_may_set_its_own_threshold() -> None:
    policy = Policy(health_depth=3)
    assert health([queue("a", policy, due=3)]).status == "healthy"
    assert health([queue("a", policy, due=4)]).status == "degraded"


def test_jobs_for_later_that_never_failed_are_not_pending() -> None:
    assert health([queue("a", waiting=10_000, due=0)]) == Health("healthy", 0, 0, [])


def test_jobs_that_wait_after_a_failure_or_are_parked_are_pending_each_once() -> None:
    """Of 35 that failed 5 are due again; 150 are parked; 3 more are due for the first time."""
    found = health([queue("a", waiting=5_038, due=8, retrying=35, retrying_later=30, held=150, parked=150)])
    assert (found.total_pending, found.retrying, found.parked) == (188, 35, 150)
    assert found.issues == ["a: 188 pending (backed up)", "a: 35 retrying after failures"]
    assert (found.status, found.exit_code) == ("degraded", 0), "it heals by itself: nobody is needed"


def test_what_comes_back_by_itself_is_told_apart_from_what_needs_a_person() -> None:
    assert health([queue("a", dead=5, comes_back=4)]).issues == ["a: 1 dead letter", "a: 4 come back by themselves"]


def test_needs_and_facts_are_named() -> None:
    found = health([queue("a", held=2)], needs(Snapshot(0.0, 0.0, spooled=3)), ["host x is down, 150 parked"])
    assert (found.status, found.exit_code) == ("degraded", 1)
    assert found.issues == [
        "a: 2 held (waiting for a person or a dependency)",
        "spool: 3 jobs wait beside the store, which could not take them",
        "host x is down, 150 parked",
    ]


def test_a_store_that_cannot_be_used_is_broken() -> None:
    found = broken([store_failed("fsync failed"), *needs(Snapshot(0.0, 0.0, spooled=1))])
    assert (found.status, found.exit_code) == ("broken", 3)
    assert [need.kind for need in found.needs] == ["store_failed", "spooled"]


@pytest.mark.behaviour("000-18")
def test_statistics_show_how_critical_a_queue_is() -> None:
    shown = queue("a", Policy(criticality="critical", max_attempts=3), dead=2, paused=True).public()
    assert (shown["criticality"], shown["max_attempts"], shown["dead"], shown["paused"]) == ("critical", 3, 2, True)


# ---- pain


@pytest.mark.behaviour("C7")
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


def test_a_downstream_that_is_down_hurts_more_the_more_jobs_are_parked() -> None:
    down = Breaker("host:api.example.com:443", "open", "network", 100.0, 5.0, 105.0, 20.0)
    less, more = downstreams([(down, 1), (down, 150)])
    assert less.kind == "downstream_down" and 0.0 < less.severity < more.severity <= 1.0
    assert "host api.example.com:443 is down, 150 parked" in more.message


# ---- telling it again


PAIN = Pain("depth", "a", 0.5, "a: 200 jobs are pending; is what they call down?")


def test_a_pain_that_lasts_is_told_again_later_and_later() -> None:
    known = record_telling(PAIN, None, 0.0)
    assert known == Hurting(0.0, 0.0, 1, 0.5, "a")
    assert record_telling(PAIN, known, REPEAT_AFTER - 0.001) is None
    again = record_telling(PAIN, known, REPEAT_AFTER)
    assert again is not None and (again.since, again.times) == (0.0, 2)
    assert record_telling(PAIN, again, 3 * REPEAT_AFTER - 0.001) is None
    assert record_telling(PAIN, again, 3 * REPEAT_AFTER) is not None
    old = Hurting(0.0, 0.0, 40, 0.5)
    assert record_telling(PAIN, old, LONGEST_PAUSE - 1) is None and record_telling(PAIN, old, LONGEST_PAUSE) is not None


def test_a_pain_told_by_a_clock_that_was_ahead_is_told_again_at_once() -> None:
    assert record_telling(PAIN, Hurting(9_000.0, 9_000.0), 9_000.0 - REPEAT_AFTER) is not None


def test_the_same_pain_waits_once_in_the_outbox() -> None:
    known = record_telling(PAIN, None, 7.0)
    assert known is not None
    again = record_telling(PAIN, known, 7.0 + REPEAT_AFTER)
    assert again is not None
    first, second = notice_of(PAIN, known), notice_of(PAIN, again)
    assert (first.id, first.at) == (second.id, second.at) and (first.turn, second.turn) == (1, 2)
    assert (first.title, first.severity, first.queue) == ("a: 200 jobs are pending", 0.5, "a")


def test_a_pain_that_grows_is_told_again_at_once() -> None:
    """A breaker opens with few jobs parked; an hour later there are hundreds."""
    known = Hurting(0.0, 0.0, severity=0.5)
    assert record_telling(Pain("downstream_down", "", 0.7, "host x is down"), known, 10.0) is None
    worse = record_telling(Pain("downstream_down", "", 0.8, "host x is down"), known, 10.0)
    assert worse is not None and (worse.times, worse.severity, worse.since) == (2, 0.8, 0.0)


def test_what_is_down_hurts_at_least_by_half_as_soon_as_it_is_down() -> None:
    down = Breaker("host:x:443", "open", "network", 100.0, 5.0, 105.0, 20.0)
    (pain,) = downstreams([(down, 0)])
    assert pain.severity == 0.5
