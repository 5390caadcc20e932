"""Whatever fails, however often and under whatever policy: no hot loop, no try too many, no letter without words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.agents import Agent, AgentFleet, Model
from redrive.core.budget import find_overspent
from redrive.core.change import AddInstruction, CompressContext, SetModel, SimplifyTask, encode
from redrive.core.job import DEAD_REASONS, HOLD_REASONS, Attempt, Budget, Failure, Options, State, Usage
from redrive.core.policy import BACKOFFS, DEFAULT, Policy, merge
from redrive.engine.settle import make_transition
from redrive.failures.classify import DETAILS, cause_of, classify
from redrive.retries.changes import Adapt
from redrive.retries.decision import LONGEST_WAIT, Abilities, Bury, Case, Decision, HoldBack, RetryLater
from redrive.retries.strategy import CRASH_WAITS, SAFE_WAIT, SPOT_TRIES, SPOT_WAIT, UNKNOWN_TRIES, decide
from tests.stores.jobs import T0, a_job, an_attempt

FLEET = AgentFleet({"a": Agent(("post",), ("s", "m")), "b": Agent(("post",))}, {"s": Model(larger="m", other="q")})
SAFE_MINIMUM = SAFE_WAIT * 0.9
"""Jitter may take a tenth off a wait."""
PAYLOADS = (
    {"n": 1},
    {"prompt": "Write."},
    {"messages": [{"role": "user", "content": "Write. " * 200}], "max_tokens": 100, "model": "s"},
    {"messages": "none", "context": 5, "max_tokens": True},
)

details = st.sampled_from(sorted(DETAILS))
waits = st.none() | st.floats(0, 1e9)
messages = st.text(max_size=60)
failures = st.builds(
    Failure,
    kind=st.sampled_from(["exception", "soft", "timeout", "signal"]),
    types=st.lists(st.sampled_from(["x.Y", "builtins.TimeoutError", "shop.Odd", "builtins.KeyError"]), max_size=3).map(
        tuple
    ),
    message=messages,
    status=st.none() | st.sampled_from([200, 400, 401, 403, 404, 408, 413, 429, 500, 529]),
    retry_after=waits,
    output_hash=st.none() | st.sampled_from(["a", "b"]),
)
lapses = st.just(Failure("lease_expired", ("redrive.LeaseExpired",), "worker w1 stopped"))
policies = st.builds(
    Policy,
    max_attempts=st.none() | st.integers(1, 30),
    backoff=st.none() | st.sampled_from([name for name in BACKOFFS if name != "none"] + ["unheard of"]),
    base=st.none() | st.floats(1, 1000),
    cap=st.none() | st.floats(1, 5000),
    jitter=st.none() | st.floats(0, 0.1),
    max_age=st.none() | st.floats(1, 1e6),
    on_lost=st.none() | st.sampled_from(["retry", "dead_letter"]),
    strategy=st.none() | st.sampled_from(["categorized", "plain"]),
    rungs=st.none() | st.integers(0, 4),
    max_wait=st.none() | st.floats(0, 1e6),
    changed_after=st.none() | st.floats(1, 1e4) | st.just({"invalid_output": 5.0}),
    quote_errors=st.none() | st.booleans(),
)
changes = st.none() | st.lists(
    st.sampled_from([CompressContext(50), AddInstruction("Briefly."), SimplifyTask(9), SetModel("m")]), unique=True
).map(encode)
usages = st.none() | st.builds(Usage, st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 5))
budgets = st.none() | st.builds(
    Budget, tokens=st.none() | st.integers(0, 5000), output_tokens=st.none() | st.integers(0, 5000),
    cost=st.none() | st.floats(0, 5), seconds=st.none() | st.floats(0, 5000),
)  # fmt: skip


@st.composite
def attempts_of(draw: st.DrawFn, runs: int) -> tuple[Attempt, ...]:
    found = []
    for run in range(1, runs + 1):
        failure, detail = draw(failures), draw(details)
        found.append(
            Attempt(run, draw(st.sampled_from(["failed", "lost", "snoozed", "released"])), T0, T0 + 1, failure=failure,
                    cause=cause_of(detail, "chosen", failure), usage=draw(usages))
        )  # fmt: skip
    return tuple(found)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    failure = draw(failures | lapses)
    chosen = failure.kind != "lease_expired" and draw(st.booleans())
    cause = cause_of(draw(details), "chosen", failure) if chosen else classify(failure)
    runs = draw(st.integers(1, 5))
    options = Options(budget=draw(budgets))
    job = a_job(
        state=State.running, run=runs, started_at=T0, attempts=draw(st.integers(0, 30)),
        allowed=draw(st.none() | st.integers(1, 30)), crashes=draw(st.integers(0, 4)),
        history=draw(attempts_of(runs - 1)),
        fresh_from=draw(st.integers(0, runs - 1)), agent=draw(st.none() | st.sampled_from(["a", "z"])),
        model=draw(st.none() | st.sampled_from(["s", "m", "z"])), changes_json=draw(changes),
        first_failed_at=draw(st.none() | st.floats(T0 - 1e6, T0)), held_seconds=draw(st.floats(0, 1e5)),
        payload=msgspec.json.encode(draw(st.sampled_from(PAYLOADS))).decode(),
        options_json=msgspec.json.encode(options).decode(),
    )  # fmt: skip
    breaker = draw(st.none() | st.just("host:a:80"))
    return Case(
        job, failure, cause, merge(draw(policies), DEFAULT), T0 + 2,
        chance=draw(st.floats(0, 1, exclude_max=True)), idempotent=draw(st.booleans()), alone=draw(st.booleans()),
        effects=draw(st.booleans()),
        abilities=Abilities(FLEET, draw(st.none() | st.just(Adapt(model="model")))), usage=draw(usages),
        breaker=breaker, probes=breaker is not None and draw(st.booleans()),
        sitting=draw(st.sampled_from([None, "call", "cycle"])), tries=draw(st.integers(1, 6)),
    )  # fmt: skip


def is_told(case: Case, decision: Decision) -> None:
    assert decision.why.strip() and decision.strategy
    if isinstance(decision, RetryLater):
        assert decision.tier in ("immediate", "delayed")
        return
    assert decision.recommendation.strip()
    if isinstance(decision, Bury):
        assert decision.because in DEAD_REASONS and decision.lane in ("delayed", "manual")
    else:
        assert decision.because in HOLD_REASONS
        assert decision.because != "circuit_open" or decision.held_for == case.breaker


def stays_within_its_bounds(case: Case, decision: Decision) -> None:
    attempt = an_attempt(case.job, "failed", failure=case.failure, cause=case.cause)
    after = make_transition(case, decision, attempt).after(2)
    assert after.payload == case.job.payload
    assert after.attempts - case.job.attempts in (0, 1)
    if isinstance(decision, RetryLater):
        assert 0.0 <= decision.delay <= LONGEST_WAIT * 1.1
        assert not decision.costs_attempt or after.attempts < (after.allowed or 0), "never attempt 4 of 3"
        assert decision.on_top or after.allowed == case.allowed
    if isinstance(decision, HoldBack):
        assert after.attempts == case.job.attempts


def is_no_hot_loop(case: Case, decision: Decision) -> None:
    """After the immediate tier nothing comes back within a second, but what a crash or the task itself asks for."""
    if not isinstance(decision, RetryLater):
        return
    if decision.tier == "immediate":
        assert case.sitting is not None
        assert case.tries < SPOT_TRIES and decision.delay >= SPOT_WAIT
    elif decision.crashed:
        assert case.failure.kind == "lease_expired"
        assert not case.alone or decision.delay in CRASH_WAITS
    elif case.failure.kind != "signal" or case.cause.retry_after is None:
        assert decision.delay >= SAFE_MINIMUM


def puts_the_cap_first(case: Case, decision: Decision) -> None:
    if case.failures < case.allowed or not isinstance(decision, RetryLater) or decision.on_top:
        return
    assert not decision.costs_attempt, "a try above the cap"
    assert decision.crashed or case.cause.category == "control" or case.cause.detail == "own_limits"


def retries_nothing_permanent(case: Case, decision: Decision) -> None:
    if case.cause.category != "permanent" or case.failure.kind == "lease_expired":
        return
    if case.cause.detail == "gave_up":
        assert not isinstance(decision, RetryLater), "whatever the strategy"
    if case.policy.strategy == "categorized" or case.sitting == "cycle":
        assert not isinstance(decision, RetryLater)
        assert isinstance(decision, HoldBack) or decision.lane == "manual" or case.cause.heals == "later"


def repeats_no_uncertain_write(case: Case, decision: Decision) -> None:
    """Only an idempotent task may repeat what perhaps landed."""
    if case.idempotent or case.failure.kind == "lease_expired":
        return
    if case.cause.detail == "outcome_unknown":
        assert isinstance(decision, HoldBack)
    if case.cause.detail == "unknown" and case.effects and case.policy.strategy == "categorized":
        assert not isinstance(decision, RetryLater)


def knows_age_and_budget(case: Case, decision: Decision) -> None:
    if not isinstance(decision, RetryLater) or decision.crashed or case.cause.category == "control":
        return
    job, max_age, budget = case.job, case.policy.max_age, case.job.options.budget
    age = None if job.first_failed_at is None else case.now - job.first_failed_at - job.held_seconds
    assert age is None or max_age is None or age <= max_age
    assert budget is None or find_overspent(budget, case.job, case.usage, case.now) is None


def changes_only_what_a_change_heals(case: Case, decision: Decision) -> None:
    if isinstance(decision, HoldBack) or decision.changes is None:
        return
    assert case.cause.category == "conditional"
    assert msgspec.json.decode(encode(decision.changes))
    named = [change.model for change in decision.changes if isinstance(change, SetModel)]
    assert decision.model is None or named == [decision.model]
    assert not isinstance(decision, RetryLater) or decision.on_top == 1
    assert decision.on_top == 0 or case.changed_tries < (case.policy.rungs or 0)


def waits_as_long_as_was_asked(case: Case, decision: Decision) -> None:
    """Never sooner than a server asked, and never longer in the queue than max_wait and its spread."""
    after = case.cause.retry_after
    if after is None or case.failure.kind in ("signal", "lease_expired"):
        return
    if isinstance(decision, Bury) and decision.because == "asked_to_wait":
        assert after > case.max_wait and (decision.lane == "delayed") is (decision.comes_back_at is not None)
        assert decision.comes_back_at is None or decision.comes_back_at >= case.now + after
        assert decision.lane == "delayed" or "comes back" not in decision.recommendation
    elif isinstance(decision, RetryLater) and (decision.strategy == "retry_after" or decision.on_top):
        assert after <= decision.delay and decision.asked <= max(case.max_wait, SAFE_WAIT) * 1.1


@pytest.mark.behaviour("001-29", "R-2a")
@settings(max_examples=500)
@given(cases())
def test_whatever_fails_the_decision_keeps_the_rules(case: Case) -> None:
    decision = decide(case)
    is_told(case, decision)
    stays_within_its_bounds(case, decision)
    is_no_hot_loop(case, decision)
    puts_the_cap_first(case, decision)
    retries_nothing_permanent(case, decision)
    repeats_no_uncertain_write(case, decision)
    knows_age_and_budget(case, decision)
    changes_only_what_a_change_heals(case, decision)
    waits_as_long_as_was_asked(case, decision)


# ---- a whole life


def live(details_in_order: list[str], policy: Policy, **how: Any) -> tuple[list[Decision], int]:
    """A job that fails in these ways, one after the other, until it is not tried again."""
    job = a_job(state=State.running, run=1, started_at=T0, payload='{"prompt":"Write."}')
    made: list[Decision] = []
    now = T0
    for run, detail in enumerate(details_in_order, 1):
        now += 1.0
        failure = Failure("exception", ("x.Y",), f"no {detail}", error_kind=detail)
        case = Case(job, failure, cause_of(detail, "chosen", failure), policy, now, abilities=Abilities(FLEET), **how)
        decision = decide(case)
        made.append(decision)
        if not isinstance(decision, RetryLater):
            return made, run
        attempt = Attempt(run, "failed", now - 1, now, failure=failure, cause=case.cause)
        after = make_transition(case, decision, attempt).after(run)
        now += decision.delay
        job = msgspec.structs.replace(after, state=State.running, run=run + 1, started_at=now)
    return made, len(details_in_order)


@settings(max_examples=100)
@given(st.lists(details, min_size=40, max_size=40), policies)
def test_no_life_has_more_attempts_than_its_cap(order: list[str], policy: Policy) -> None:
    chosen = merge(policy, DEFAULT)
    made, _ = live([detail for detail in order if DETAILS[detail][0] != "control"], chosen)
    free = [decision for decision in made if isinstance(decision, RetryLater) and not decision.costs_attempt]
    changed = [decision for decision in made if isinstance(decision, RetryLater) and decision.on_top]
    assert len(changed) <= (chosen.rungs or 0)
    costly = len(made) - len(free) - len(changed)
    assert costly <= (chosen.max_attempts or 1), "a limit of this machine costs no attempt, a changed try is on top"


@given(st.integers(1, 30), st.sampled_from([name for name in BACKOFFS if name != "none"]))
def test_an_unknown_failure_is_tried_three_times_at_most(cap: int, backoff: str) -> None:
    made, runs = live(["unknown"] * 40, merge(Policy(max_attempts=cap, backoff=backoff), DEFAULT))
    assert runs == min(cap, UNKNOWN_TRIES)
    assert isinstance(made[-1], Bury)


@given(
    st.sampled_from([name for name, row in DETAILS.items() if row[0] == "conditional"]),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_a_changed_try_happens_as_often_as_there_are_rungs(detail: str, rungs: int, cap: int) -> None:
    made, runs = live([detail] * 40, merge(Policy(rungs=rungs, max_attempts=cap), DEFAULT))
    assert runs <= (rungs + 1 if cap > 1 else 1)
    assert all(decision.delay >= 10.0 for decision in made if isinstance(decision, RetryLater))
