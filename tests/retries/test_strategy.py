"""The one retry-or-bury rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.job import DEAD_REASONS, HOLD_REASONS, Attempt, Cause, Ending, Failure, Job, State
from redrive.core.policy import DEFAULT, Policy, merge
from redrive.engine.settle import make_transition
from redrive.failures.capture import capture_lost_lease
from redrive.failures.classify import DETAILS, cause_of, classify
from redrive.retries.decision import Bury, Case, Decision, HoldBack, RetryLater
from redrive.retries.strategy import (
    CRASHES_BEFORE_ALONE,
    DIED_ALONE,
    INTERRUPTED,
    UNKNOWN_TRIES,
    decide,
    rest_after_interruption,
)
from tests.stores.jobs import T0, a_job, an_attempt

NETWORK = Failure("exception", ("builtins.ConnectionError",), "reset")
STRANGE = Failure("exception", ("shop.Strange",), "odd")
BUG = Failure("exception", ("builtins.TypeError",), "no such argument")
QUIET = Policy(jitter=0.0)


def running(**fields: Any) -> Job:
    return a_job(**{"state": State.running, "token": "t", "worker": "w1", "run": 1, "started_at": T0, **fields})


def a_case(failure: Failure = NETWORK, policy: Policy = QUIET, *, now: float = T0 + 10, **how: Any) -> Case:
    given = {name: how.pop(name) for name in ("idempotent", "alone", "ending", "chance") if name in how}
    return Case(running(**how), failure, classify(failure), merge(policy, DEFAULT), now, **given)


def told(decision: Decision) -> str:
    return f"retry {decision.delay:g}" if isinstance(decision, RetryLater) else f"{decision.because}"


# ---- attempts


@pytest.mark.behaviour("000-68")
@pytest.mark.parametrize(
    ("attempts", "expected"),
    [(0, "retry 2"), (1, "retry 4"), (2, "retry 8"), (3, "retry 16"), (4, "attempts_exhausted")],
)
def test_the_queues_backoff_until_the_attempts_are_used_up(attempts: int, expected: str) -> None:
    assert told(decide(a_case(attempts=attempts))) == expected


def test_a_wait_of_nothing_is_told_as_at_once() -> None:
    why = {base: decide(a_case(policy=Policy(jitter=0.0, base=base))).why for base in (0.0, 0.01, 0.3)}
    assert why[0.0] == why[0.01] == "network: attempt 1 of 5, again at once."
    assert why[0.3] == "network: attempt 1 of 5, again in 0.3 s."


def test_the_jobs_own_allowance_goes_before_the_policys() -> None:
    assert told(decide(a_case(attempts=4, allowed=10))) == "retry 32"
    assert told(decide(a_case(attempts=1, allowed=2))) == "attempts_exhausted"


def test_one_attempt_is_one_attempt() -> None:
    assert told(decide(a_case(policy=Policy(max_attempts=1)))) == "attempts_exhausted"


@pytest.mark.parametrize(
    "failure", [NETWORK, STRANGE, BUG, Failure("exception", ("x.Y",), status=429, retry_after=5.0)]
)
@pytest.mark.parametrize("strategy", ["categorized", "plain"])
def test_the_cap_on_attempts_goes_before_everything_else(failure: Failure, strategy: Any) -> None:
    decision = decide(a_case(failure, Policy(strategy=strategy), attempts=4, first_failed_at=0.0))
    assert told(decision) == "attempts_exhausted"


def test_more_tries_are_not_the_advice_for_what_they_do_not_heal() -> None:
    advised = {
        strategy: decide(a_case(BUG, Policy(strategy=strategy, max_attempts=1)))
        for strategy in ("categorized", "plain")
    }
    assert all(isinstance(decision, Bury) for decision in advised.values())
    assert "max_attempts" not in advised["categorized"].recommendation  # type: ignore[union-attr]
    assert "max_attempts" in advised["plain"].recommendation  # type: ignore[union-attr]


def test_an_exhausted_job_says_what_to_do() -> None:
    decision = decide(a_case(attempts=4))
    assert isinstance(decision, Bury)
    assert "5 of 5" in decision.why and "ConnectionError: reset" in decision.why
    assert "receiver" in decision.recommendation
    assert decision.lane == "delayed", "what heals by waiting comes back by itself"


# ---- permanent, unknown


def test_what_comes_back_later_is_said_once() -> None:
    expired = Failure("exception", ("cms.CmsError",), "401 token expired", status=401)
    decision = decide(a_case(expired))
    assert decision.why == (
        "Not retried now: CmsError: 401 token expired is credentials_expired."
        " It comes back by itself in about 1 h (comeback 1 of 3)."
    )


@pytest.mark.parametrize(
    ("task", "failure", "ends"),
    [
        ("redrive.http", BUG, " A rule of your own ([[rules]] in redrive.toml) would retry it."),
        ("t", BUG, " retry_on=(TypeError,) would retry it."),
        ("t", Failure("soft", (), "no", error_kind="bug"), " An error_kind in the result would retry it."),
    ],
)
def test_every_sentence_of_the_advice_begins_as_one(task: str, failure: Failure, ends: str) -> None:
    case = a_case(failure, task=task)
    decision = decide(msgspec.structs.replace(case, cause=cause_of("bug", "test", failure)))
    assert isinstance(decision, Bury) and decision.recommendation.endswith(ends)


@pytest.mark.parametrize("detail", [name for name, (category, _, _) in DETAILS.items() if category == "permanent"])
def test_the_permanent_is_never_retried(detail: str) -> None:
    failure = Failure("exception", ("x.Y",), "no", error_kind=detail)
    decision = decide(a_case(failure))
    assert isinstance(decision, Bury)
    assert decision.because == ("terminated" if detail == "gave_up" else "permanent")
    assert decision.lane == ("delayed" if DETAILS[detail][1] == "later" else "manual")
    assert decision.recommendation


@pytest.mark.parametrize("detail", [name for name, (category, _, _) in DETAILS.items() if category == "transient"])
def test_the_transient_is_retried(detail: str) -> None:
    assert isinstance(decide(a_case(Failure("exception", ("x.Y",), error_kind=detail))), RetryLater)


def test_the_unknown_gets_three_tries_in_all() -> None:
    policy = Policy(max_attempts=10, jitter=0.0)
    decisions = [told(decide(a_case(STRANGE, policy, attempts=attempts))) for attempts in range(3)]
    assert decisions == ["retry 2", "retry 4", "not_known_to_heal"]
    assert UNKNOWN_TRIES == 3
    buried = decide(a_case(STRANGE, policy, attempts=2))
    assert isinstance(buried, Bury)
    assert "retry_on=(Strange,)" in buried.recommendation


@pytest.mark.behaviour("C17")
def test_plain_retries_everything() -> None:
    policy = Policy(max_attempts=10, strategy="plain", jitter=0.0)
    assert told(decide(a_case(BUG, policy, attempts=5))) == "retry 64"
    assert told(decide(a_case(STRANGE, policy, attempts=8))) == "retry 300"
    assert told(decide(a_case(BUG, policy, attempts=9))) == "attempts_exhausted"


def test_giving_up_is_a_dead_letter_at_once_even_when_plain() -> None:
    failure = Failure("signal", ("redrive.errors.GiveUp",), "no such customer", recommendation="Ask sales.")
    for strategy in ("plain", "categorized"):
        decision = decide(a_case(failure, Policy(strategy=strategy)))  # type: ignore[arg-type]
        assert isinstance(decision, Bury)
        assert (decision.because, decision.recommendation) == ("terminated", "Ask sales.")
        assert "no such customer" in decision.why


def test_an_unknown_outcome_is_held_unless_the_task_is_idempotent() -> None:
    failure = Failure("exception", ("redrive.errors.OutcomeUnknown",), "timed out after sending")
    held = decide(a_case(failure))
    assert isinstance(held, HoldBack)
    assert held.because == "outcome_unknown"
    assert isinstance(decide(a_case(failure, idempotent=True)), RetryLater)


# ---- when to come back


@pytest.mark.behaviour("R-2a")
def test_retry_after_is_honoured_never_earlier_whatever_the_cap() -> None:
    failure = Failure("exception", ("x.Y",), status=429, retry_after=60.0)
    for chance in (0.0, 0.5, 0.999):
        decision = decide(a_case(failure, chance=chance))
        assert isinstance(decision, RetryLater)
        assert 60.0 <= decision.delay <= 66.0
    assert told(decide(a_case(failure, chance=0.0))) == "retry 60"
    assert told(decide(a_case(failure, Policy(jitter=0.0), chance=0.999))) == "retry 60"
    for cap in (0.0, 20.0):
        assert told(decide(a_case(failure, Policy(cap=cap), chance=0.0))) == "retry 60", "cap is for our own waits"


LIMITED = Failure("exception", ("x.Y",), "slow down", status=429, retry_after=1800.0)


@pytest.mark.behaviour("R-2a")
@pytest.mark.parametrize(("after", "waits"), [(1800.0, 1890.0), (3600.0, 3780.0), (21_600.0, 22_680.0)])
def test_a_long_wait_is_kept_and_told_as_it_is(after: float, waits: float) -> None:
    failure = msgspec.structs.replace(LIMITED, retry_after=after)
    decision = decide(a_case(failure, Policy()))
    assert isinstance(decision, RetryLater)
    assert (decision.delay, decision.asked) == (waits, waits)
    assert decision.why == f"rate_limited: asked to wait {after:g} s; again in {waits:.0f} s."


@pytest.mark.behaviour("R-2b")
@pytest.mark.parametrize("strategy", ["categorized", "plain"])
def test_a_wait_longer_than_max_wait_is_the_time_of_the_comeback(strategy: Any) -> None:
    failure = msgspec.structs.replace(LIMITED, retry_after=72_000.0)
    decision = decide(a_case(failure, Policy(strategy=strategy, jitter=0.0), now=T0 + 10))
    assert isinstance(decision, Bury)
    assert (decision.because, decision.lane, decision.comes_back_at) == ("asked_to_wait", "delayed", T0 + 72_010)
    assert "asked to wait 72000 s" in decision.why and "comes back by itself in about 20 h" in decision.why


@pytest.mark.behaviour("R-2b")
def test_max_wait_says_what_is_long() -> None:
    assert told(decide(a_case(LIMITED, Policy(max_wait=60.0)))) == "asked_to_wait"
    for longest in (float("inf"), 1800.0):
        decision = decide(a_case(LIMITED, Policy(max_wait=longest), chance=0.0))
        assert told(decision) == "retry 1800"
    own = Failure("signal", ("redrive.errors.Retry",), retry_after=100_000.0)
    assert told(decide(a_case(own))) == "retry 100000", "the task's own word counts as it is"


@pytest.mark.behaviour("R-2c")
def test_a_wait_that_was_asked_for_makes_no_job_older() -> None:
    case = a_case(LIMITED, Policy(max_age=60.0, jitter=0.0))
    waiting = make_transition(case, decide(case), an_attempt(case.job, "failed", failure=LIMITED)).after(2)
    assert (waiting.held_seconds, waiting.run_at) == (1800.0, case.now + 1800.0)
    again = {"first_failed_at": waiting.first_failed_at, "held_seconds": waiting.held_seconds, "attempts": 1}
    soon, late = waiting.run_at + 30.0, waiting.run_at + 90.0
    assert told(decide(a_case(policy=Policy(max_age=60.0, jitter=0.0), now=soon, **again))) == "retry 4"
    assert told(decide(a_case(policy=Policy(max_age=60.0, jitter=0.0), now=late, **again))) == "too_old"


def test_a_task_that_asks_for_a_time_gets_it() -> None:
    failure = Failure("signal", ("redrive.errors.Retry",), retry_after=7.0)
    for chance in (0.0, 0.999):
        assert told(decide(a_case(failure, chance=chance))) == "retry 7"
    assert told(decide(a_case(Failure("signal", ("redrive.errors.Retry",))))) == "retry 2"


def test_the_wait_is_drawn_by_chance() -> None:
    delays = {told(decide(a_case(policy=Policy(base=100.0), chance=chance))) for chance in (0.0, 0.5, 0.99)}
    assert delays == {"retry 90", "retry 100", "retry 109.8"}


# ---- age


def test_too_old_counts_from_the_first_failure() -> None:
    policy = Policy(max_age=1800.0)
    assert isinstance(decide(a_case(policy=policy)), RetryLater)
    young = a_case(policy=policy, first_failed_at=T0, now=T0 + 1800)
    assert isinstance(decide(young), RetryLater)
    old = decide(a_case(policy=policy, first_failed_at=T0, now=T0 + 1801))
    assert told(old) == "too_old"


def test_held_time_is_not_age() -> None:
    policy = Policy(max_age=1800.0)
    waited = a_case(policy=policy, first_failed_at=T0, held_seconds=3600.0, now=T0 + 5000)
    assert isinstance(decide(waited), RetryLater)
    still = a_case(policy=policy, first_failed_at=T0, held_seconds=3000.0, now=T0 + 5000)
    assert told(decide(still)) == "too_old"


# ---- crashes


def crash(**how: Any) -> Decision:
    return decide(a_case(capture_lost_lease("w1"), **how))


@pytest.mark.behaviour("000-64")
def test_a_worker_death_costs_bystanders_nothing_but_is_counted() -> None:
    decision = crash(attempts=4)
    assert decision == RetryLater(0.0, decision.why, "run_again", costs_attempt=False, crashed=True)
    case = a_case(capture_lost_lease("w1"), attempts=4)
    after = make_transition(case, decision, an_attempt(case.job, "lost")).after(2)
    assert (after.state, after.attempts, after.crashes, after.run_at) == (State.waiting, 4, 1, T0 + 10)


def test_after_two_crashes_it_is_told_to_run_alone() -> None:
    assert CRASHES_BEFORE_ALONE == 2
    assert "alone" not in crash(crashes=0).why
    assert "alone in its process" in crash(crashes=1).why
    assert isinstance(crash(crashes=7), RetryLater)


def deaths(number: int, *later: Attempt) -> tuple[Attempt, ...]:
    """So many processes that ended with the job alone in them, and what came then."""
    return (*(Attempt(run, "lost", strategy=DIED_ALONE) for run in range(1, number + 1)), *later)


@pytest.mark.behaviour("T-12c")
@pytest.mark.parametrize(
    ("before", "expected"), [(0, "retry 60"), (1, "retry 600"), (2, "crash_loop"), (3, "crash_loop"), (4, "crash_loop")]
)
def test_deaths_alone_are_waited_out_before_they_are_a_crash_loop(before: int, expected: str) -> None:
    case = a_case(capture_lost_lease("w1"), crashes=2 + before, alone=True, history=deaths(before))
    decision = decide(case)
    assert (told(decision), decision.crashed) == (expected, True)  # type: ignore[union-attr]
    after = make_transition(case, decision, an_attempt(case.job, "lost")).after(2)
    assert (after.crashes, after.attempts) == (3 + before, before > 2)
    assert after.lane == {2: "delayed", 3: "manual", 4: "manual"}.get(before)
    assert "ended while it ran alone" in decision.why and "first" in crash(alone=True).why


@pytest.mark.parametrize(
    ("outcome", "again"), [("released", "retry 600"), ("failed", "retry 60"), ("done", "retry 60")]
)
def test_one_finished_attempt_begins_the_count_of_deaths_anew(outcome: str, again: str) -> None:
    assert told(crash(alone=True, history=deaths(1, Attempt(2, outcome)))) == again


def test_max_crashes_says_how_many_deaths_alone_are_waited_out() -> None:
    decisions = [
        decide(a_case(capture_lost_lease("w1"), Policy(max_crashes=most), alone=True, history=deaths(before)))
        for most, before in ((1, 0), (1, 1), (5, 3), (5, 4))
    ]
    assert [told(one) for one in decisions] == ["crash_loop", "crash_loop", "retry 3600", "crash_loop"]
    assert [one.lane for one in decisions if isinstance(one, Bury)] == ["delayed", "manual", "delayed"]


@pytest.mark.behaviour("T-12d")
@pytest.mark.parametrize(("ending", "words"), [("frozen", "stood still"), ("stopped", "was told to stop")])
def test_what_happens_to_a_worker_from_outside_is_no_crash_of_its_jobs(ending: Ending, words: str) -> None:
    case = a_case(capture_lost_lease("w1", ending), crashes=2, alone=True, ending=ending, history=deaths(3))
    decision = decide(case)
    assert isinstance(decision, RetryLater)
    assert (decision.delay, decision.crashed, decision.costs_attempt) == (0.0, False, False)
    assert words in decision.why and "died" not in decision.why and words in case.failure.message
    after = make_transition(case, decision, an_attempt(case.job, "lost")).after(2)
    assert (after.state, after.attempts, after.crashes) == (State.waiting, 0, 2)


@pytest.mark.behaviour("T-8f")
def test_a_job_that_was_interrupted_several_times_in_a_row_rests_longer_each_time() -> None:
    interrupted = [Attempt(run, "released", strategy=INTERRUPTED) for run in range(1, 40)]
    rests = [rest_after_interruption(interrupted[:number]) for number in (0, 1, 2, 3, 4, 39)]
    assert rests == [0.0, 0.0, 10.0, 20.0, 40.0, 60.0]
    assert rest_after_interruption([*interrupted, Attempt(40, "failed")]) == 0.0
    unbegun = [Attempt(run, "released") for run in range(1, 9)]
    assert rest_after_interruption(unbegun) == 0.0, "it had not begun: its worker's end is not its doing"


def test_a_failure_begins_the_count_of_crashes_anew() -> None:
    for policy in (QUIET, Policy(max_attempts=1)):
        case = a_case(NETWORK, policy, crashes=2)
        assert make_transition(case, decide(case), an_attempt(case.job, "failed")).after(2).crashes == 0


def test_on_lost_dead_letter_starts_nothing_twice() -> None:
    decision = crash(policy=Policy(on_lost="dead_letter"))
    assert told(decision) == "outcome_unknown"
    assert isinstance(decision, Bury)
    assert "resolve" in decision.recommendation


@pytest.mark.parametrize("strategy", ["plain", "categorized"])
def test_a_crash_is_a_crash_under_every_strategy(strategy: Any) -> None:
    assert isinstance(crash(policy=Policy(strategy=strategy, max_attempts=1)), RetryLater)


# ---- whatever comes


@given(
    detail=st.sampled_from(sorted(DETAILS)),
    attempts=st.integers(0, 30),
    allowed=st.none() | st.integers(1, 30),
    crashes=st.integers(0, 5),
    strategy=st.sampled_from(["plain", "categorized"]),
    lost_it=st.booleans(),
    alone=st.booleans(),
    idempotent=st.booleans(),
    retry_after=st.none() | st.floats(0, 1e6),
    chance=st.floats(0, 1, exclude_max=True),
    age=st.none() | st.floats(0, 1e6),
)
def test_every_case_ends_in_a_move_that_the_lifecycle_has(
    detail: str, attempts: int, allowed: int | None, crashes: int, strategy: Any, lost_it: bool, alone: bool,
    idempotent: bool, retry_after: float | None, chance: float, age: float | None,
) -> None:  # fmt: skip
    failure = capture_lost_lease("w1") if lost_it else Failure("exception", ("x.Y",), retry_after=retry_after)
    cause: Cause = classify(failure) if lost_it else cause_of(detail, "chosen", failure)
    since = None if age is None else T0 - age
    job = running(attempts=attempts, allowed=allowed, crashes=crashes, first_failed_at=since)
    policy = merge(Policy(strategy=strategy, max_age=1800.0), DEFAULT)
    case = Case(job, failure, cause, policy, T0, chance, idempotent, alone)
    decision = decide(case)
    after = make_transition(case, decision, an_attempt(job, "failed", failure=failure, cause=cause)).after(2)
    assert after.attempts in (job.attempts, job.attempts + 1)
    if isinstance(decision, RetryLater):
        assert after.state is State.waiting
        assert after.run_at >= T0
        assert decision.delay <= max(policy.cap or 0.0, min(decision.asked, case.max_wait)) * 1.1
        assert not decision.costs_attempt or after.attempts < (after.allowed or 0)
        assert (after.allowed == case.allowed) or cause.category == "conditional"
    elif isinstance(decision, HoldBack):
        assert (after.state, after.attempts) == (State.held, job.attempts)
        assert after.because in HOLD_REASONS
    else:
        assert after.state is State.dead
        assert after.because in DEAD_REASONS
        assert after.lane and after.recommendation and after.error_class
    assert decision.why


def test_the_decision_is_the_same_every_time() -> None:
    case = a_case(attempts=2)
    assert decide(case) == decide(msgspec.structs.replace(case))
