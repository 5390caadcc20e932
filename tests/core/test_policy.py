"""Policies: who goes before whom, and how long each backoff waits."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy import (
    BACKOFFS,
    DEFAULT,
    REASONS,
    SAFE_DELAY,
    Policy,
    Rate,
    check,
    delay_after,
    effective,
    merge,
    schedule,
)
from redrive.core.presets import PRESETS
from redrive.errors import InvalidOption

NO_JITTER = Policy(jitter=0.0)
QUEUES = PRESETS["agent_os"].queues
AGENT = PRESETS["seven_agents"].agent_policy


def of(queue: str, **fields: Any) -> Policy:
    """A preset queue's policy without jitter."""
    return merge(Policy(jitter=0.0, **fields), QUEUES[queue], DEFAULT)


def waits(policy: Policy, failures: int) -> list[float]:
    return [delay_after(policy, failure) for failure in range(1, failures + 1)]


# ---- precedence


def test_job_before_task_before_queue_before_reason_before_default() -> None:
    layers = [Policy(max_attempts=number) for number in (1, 2, 3)]
    job, task, queue = layers
    assert effective(job, task, queue, "deferred_submit").max_attempts == 1
    assert effective(None, task, queue, "deferred_submit").max_attempts == 2
    assert effective(None, None, queue, "deferred_submit").max_attempts == 3
    assert effective(None, None, None, "deferred_submit").max_attempts == REASONS["deferred_submit"].max_attempts == 1
    assert effective(None, None, None, "direct").max_attempts == 5


def test_each_field_goes_its_own_way() -> None:
    found = effective(Policy(lease=7.0), Policy(base=3.0, lease=8.0), Policy(cap=50.0, base=4.0), "retry")
    assert (found.lease, found.base, found.cap, found.backoff, found.max_age) == (7.0, 3.0, 50.0, "adaptive", 1800.0)
    assert found.health_depth == DEFAULT.health_depth


def test_nothing_is_left_unsaid_that_the_default_says() -> None:
    found = effective(None, None, None, "direct")
    for name in Policy.__struct_fields__:
        assert getattr(found, name) == getattr(DEFAULT, name)


@pytest.mark.behaviour("000-34")
def test_five_attempts_where_nobody_said_otherwise() -> None:
    assert effective(None, None, None, "direct").max_attempts == 5
    assert effective(None, None, Policy(base=1.0), "scheduled_job").max_attempts == 5


def test_the_defaults() -> None:
    assert (DEFAULT.base, DEFAULT.cap, DEFAULT.jitter, DEFAULT.lease) == (2.0, 300.0, 0.10, 90.0)
    assert (DEFAULT.on_lost, DEFAULT.strategy, DEFAULT.retention) == ("retry", "categorized", 14 * 86400.0)


@pytest.mark.behaviour("000-43")
def test_a_queue_sets_attempts_first_delay_and_cap() -> None:
    found = effective(None, None, Policy(max_attempts=4, base=3.0, cap=10.0, jitter=0.0), "direct")
    assert schedule(found) == [3.0, 6.0, 10.0]


def test_reasons() -> None:
    retry = effective(None, None, None, "retry")
    assert (retry.backoff, retry.max_age) == ("adaptive", 30 * 60.0)
    deferred = effective(None, None, None, "deferred_submit")
    assert (deferred.max_attempts, deferred.lease, deferred.backoff) == (1, 600.0, "none")
    assert effective(None, None, None, "never heard of") == DEFAULT


def test_jobs_with_an_agent_get_three_tries_from_thirty_seconds() -> None:
    found = effective(Policy(jitter=0.0), None, None, "direct", agent=AGENT)
    assert found.max_attempts == 3
    assert waits(found, 5) == [30.0, 60.0, 120.0, 240.0, 300.0]
    assert AGENT is not None and AGENT.cap == 300.0
    assert effective(None, Policy(max_attempts=9), None, "direct", agent=AGENT).max_attempts == 9


# ---- presets


@pytest.mark.behaviour("C1")
@pytest.mark.parametrize(
    ("queue", "attempts", "base", "cap"),
    [
        pytest.param("analytics_ingest", 5, 2.0, 300.0, marks=pytest.mark.behaviour("000-44")),
        pytest.param("learning_capture", 3, 1.0, 300.0, marks=pytest.mark.behaviour("000-45", "000-10")),
        pytest.param("identity_provision", 10, 5.0, 600.0, marks=pytest.mark.behaviour("000-46", "000-14")),
        pytest.param("feedback", 5, 2.0, 300.0, marks=pytest.mark.behaviour("000-47")),
        pytest.param("mesh_keys", 10, 5.0, 600.0, marks=pytest.mark.behaviour("000-48")),
        pytest.param("security_notify", 5, 3.0, 300.0, marks=pytest.mark.behaviour("000-49")),
    ],
)
def test_presets(queue: str, attempts: int, base: float, cap: float) -> None:
    found = effective(None, None, QUEUES[queue], "direct")
    assert (found.max_attempts, found.base, found.cap) == (attempts, base, cap)


@pytest.mark.behaviour("000-50", "000-17", "000-18", "C44")
def test_eleven_presets_that_say_how_critical_they_are() -> None:
    assert len(QUEUES) == 11
    assert {"knowledge_ingest", "session_promotion", "graph_write", "artifact_delivery"} <= QUEUES.keys()
    assert all(policy.criticality in ("critical", "high") for policy in QUEUES.values())
    assert all(check(policy, name) is policy for name, policy in QUEUES.items())


@pytest.mark.behaviour("000-51")
def test_provisioning_spans_more_than_ten_minutes_and_feedback_does_not() -> None:
    assert sum(schedule(of("identity_provision"))) >= 600.0
    assert len(schedule(of("identity_provision"))) == 9
    assert sum(schedule(of("feedback"))) <= 300.0


@pytest.mark.behaviour("R-9d")
def test_feedback_is_over_within_a_minute_and_learning_after_seconds() -> None:
    assert schedule(of("feedback")) == [2.0, 4.0, 8.0, 16.0]
    assert schedule(of("learning_capture")) == [1.0, 2.0]


# ---- backoffs


@pytest.mark.behaviour("000-52", "000-55", "C2")
def test_feedback_doubles_from_two_seconds() -> None:
    assert waits(of("feedback"), 5) == [2.0, 4.0, 8.0, 16.0, 32.0]


@pytest.mark.behaviour("000-56", "C1")
def test_provisioning_under_both_caps() -> None:
    head = [5.0, 10.0, 20.0, 40.0, 80.0, 160.0]
    assert waits(of("identity_provision", cap=300.0), 10) == [*head, 300.0, 300.0, 300.0, 300.0]
    assert waits(of("identity_provision"), 10) == [*head, 320.0, 600.0, 600.0, 600.0]


@pytest.mark.behaviour("C30")
@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        ("adaptive", [10.0, 20.0, 45.0, 90.0, 120.0, 120.0, 120.0]),
        ("fixed_10s", [10.0] * 7),
        ("exponential", [10.0, 20.0, 40.0, 80.0, 120.0, 120.0, 120.0]),
        ("none", [0.0] * 7),
        ("doubling", [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]),
        (lambda failures: failures * 1.5, [1.5, 3.0, 4.5, 6.0, 7.5, 9.0, 10.5]),
        ("no such name", [SAFE_DELAY] * 7),
    ],
    ids=["adaptive", "fixed_10s", "exponential", "none", "doubling", "callable", "unknown"],
)
def test_backoffs_to_the_second(backoff: Any, expected: list[float]) -> None:
    assert waits(merge(Policy(backoff=backoff, jitter=0.0), DEFAULT), 7) == expected


def test_an_unknown_name_is_slow_and_safe() -> None:
    assert SAFE_DELAY == 60.0
    assert "no such name" not in BACKOFFS


@pytest.mark.behaviour("000-53")
def test_jitter_moves_a_delay_by_at_most_a_tenth() -> None:
    chance = random.Random(7).random
    policy = merge(Policy(base=100.0), DEFAULT)
    drawn = [delay_after(policy, 1, chance()) for _ in range(1_000)]
    assert all(90.0 <= wait <= 110.0 for wait in drawn)
    assert len(set(drawn)) > 900
    assert min(drawn) < 92.0 and max(drawn) > 108.0


@pytest.mark.behaviour("000-54", "C4")
@given(
    backoff=st.sampled_from([*BACKOFFS, "unknown"]),
    failures=st.integers(-3, 10_000),
    base=st.floats(0, 1e6),
    cap=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_no_delay_is_negative_or_above_the_cap(
    backoff: str, failures: int, base: float, cap: float, jitter: float, chance: float
) -> None:
    policy = Policy(backoff=backoff, base=base, cap=cap, jitter=jitter)
    assert 0.0 <= delay_after(policy, failures, chance) <= cap


@given(failures=st.integers(1, 200), base=st.floats(0.001, 100))
def test_doubling_never_shrinks(failures: int, base: float) -> None:
    policy = Policy(backoff="doubling", base=base, cap=300.0, jitter=0.0)
    assert delay_after(policy, failures) <= delay_after(policy, failures + 1)


def test_a_callable_cannot_exceed_the_cap_or_run_backwards() -> None:
    assert delay_after(Policy(backoff=lambda failures: 1e9, cap=300.0), 1) == 300.0
    assert delay_after(Policy(backoff=lambda failures: -5, cap=300.0), 1) == SAFE_DELAY


# ---- impossible values


@pytest.mark.parametrize(
    "policy",
    [
        Policy(max_attempts=0), Policy(base=-1.0), Policy(cap=-1.0), Policy(jitter=1.1), Policy(jitter=-0.1),
        Policy(lease=0.0), Policy(max_age=0.0), Policy(concurrency=0), Policy(stalled_after=0.0),
        Policy(health_depth=-1), Policy(pain_depth=-1), Policy(pain_dead=-1), Policy(retention=-1.0),
        Policy(backoff="quadratic"), Policy(rate=Rate(0)), Policy(rate=Rate(1, per=0.0)),
        Policy(base=float("nan")), Policy(max_attempts=1.5), Policy(max_attempts="5"), Policy(max_attempts=True),
        Policy(max_attempts=2**60), Policy(max_attempts=10**30), Policy(base=timedelta(seconds=5)), Policy(cap="long"),
        Policy(lease=float("inf")), Policy(retention=10**400), Policy(concurrency=1.5), Policy(concurrency="3"),
        Policy(breaker_after=2.5), Policy(health_depth=1.5), Policy(breaker_release=0.0), Policy(quote_errors="no"),
        Policy(on_lost="dead-letter"), Policy(scope="x"), Policy(strategy="x"), Policy(criticality="x"),
        Policy(criticality=["low"]), Policy(backoff=["doubling"]), Policy(rate=5), Policy(rate=(5, 1)),
        Policy(max_wait=-1.0), Policy(max_wait="6h"), Policy(max_wait=float("nan")), Policy(changed_after=-1.0),
        Policy(changed_after="5"), Policy(changed_after=float("inf")), Policy(changed_after={"network": 5.0}),
        Policy(changed_after={5: 5.0}),
        Policy(rate=Rate(1.5)), Policy(rate=Rate(1, per=float("nan"))), Policy(rate=Rate(1, per="s")),
    ],
    ids=lambda policy: next(name for name in Policy.__struct_fields__ if getattr(policy, name) is not None),
)  # fmt: skip
def test_impossible_values_are_refused_where_they_are_said(policy: Policy) -> None:
    said = next(name for name in Policy.__struct_fields__ if getattr(policy, name) is not None)
    with pytest.raises(InvalidOption) as refused:
        check(policy, "queues.feedback")
    assert refused.value.field == f"queues.feedback.{said}"


@pytest.mark.parametrize("name", Policy.__struct_fields__)
def test_no_field_takes_just_anything(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"^work.{name}: .*object"):
        check(Policy(**{name: object()}), "work")


def test_a_refusal_says_what_would_be_possible() -> None:
    said: dict[str, Any] = {"max_attempts": 2.5, "lease": 0, "on_lost": "x", "rate": 5}
    for name, words in (
        ("max_attempts", "2.5 is not a whole number from 1 to 9007199254740992"),
        ("lease", "0 is not a number above 0, up to 9007199254740992"),
        ("on_lost", "'x' is not one of retry, dead_letter"),
        ("rate", "5 is not a redrive.Rate(count, per)"),
    ):
        with pytest.raises(InvalidOption) as refused:
            check(Policy(**{name: said[name]}), "work")
        assert str(refused.value) == f"work.{name}: {words}"


def test_possible_values_are_accepted() -> None:
    policy = Policy(max_attempts=1, jitter=1.0, rate=Rate(1), backoff=lambda failures: 1.0, retention=0.0)
    assert check(policy, "x") is policy
    for policy in (Policy(base=0.0), Policy(base=3.0, backoff="doubling"), Policy(backoff="adaptive", cap=5.0)):
        assert check(policy, "x") is policy


@pytest.mark.behaviour("R-9c")
@pytest.mark.parametrize("backoff", [*(name for name in BACKOFFS if name != "doubling"), lambda failures: 1.0])
def test_a_base_that_the_backoff_beside_it_ignores_is_refused(backoff: Any) -> None:
    named = "that is a function" if callable(backoff) else repr(backoff)
    with pytest.raises(InvalidOption) as refused:
        check(Policy(backoff=backoff, base=5.0), "work")
    assert refused.value.field == "work.base"
    assert str(refused.value) == (
        f"work.base: has no effect with backoff {named}; leave base out, or use backoff 'doubling'"
    )


@pytest.mark.behaviour("R-9c")
def test_every_backoff_but_doubling_ignores_the_base() -> None:
    """What `check` refuses is what has no effect, and nothing else."""
    for name in BACKOFFS:
        slow, fast = (waits(Policy(backoff=name, base=base, jitter=0.0, cap=1e9), 6) for base in (1.0, 7.0))
        assert (slow == fast) is (name != "doubling"), name


@pytest.mark.behaviour("R-4b")
def test_the_waits_of_changed_tries_are_checked_by_name_and_number() -> None:
    for said in (0, 2.5, {}, {"invalid_output": 5, "context_overflow": 0.5}):
        check(Policy(changed_after=said), "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"^x.changed_after.refusal: 'soon' is not a number from 0"):
        check(Policy(changed_after={"refusal": "soon"}), "x")  # type: ignore[dict-item]
    with pytest.raises(InvalidOption, match=r"^x.changed_after: 'network' is not one of context_overflow, "):
        check(Policy(changed_after={"network": 1.0}), "x")


def test_an_asked_wait_is_kept_for_six_hours_unless_said_otherwise() -> None:
    assert (DEFAULT.max_wait, DEFAULT.rungs, DEFAULT.changed_after) == (6 * 3600.0, 3, None)
    assert check(Policy(max_wait=float("inf")), "x").max_wait == float("inf")
