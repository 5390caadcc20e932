"""Which dead letters come back by themselves, when, and what their group has to do with it, as values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive.core.job import Attempt, Budget, Failure, Job, Options, State
from redrive.core.policy import DEFAULT, Policy, check, merge
from redrive.errors import InvalidOption
from redrive.failures.classify import cause_of
from redrive.retries.comebacks import (
    Answers,
    First,
    group_key,
    in_words,
    may_follow,
    next_time,
    release_followers,
    still_down,
    times_for,
    tries_for,
)
from redrive.retries.decision import Bury, Case
from redrive.retries.strategy import decide
from tests.stores.jobs import T0, a_job

HOUR = 3600.0
HEALS_BY_WAITING = (
    "network", "timeout", "server_error", "rate_limited", "provider_overloaded", "contention", "preempted",
)  # fmt: skip


def a_case(detail: str, *, policy: Policy | None = None, chance: float = 0.5, **said: Any) -> Case:
    failure = Failure("exception", ("x.Y",), "no", error_kind=detail, retry_after=said.pop("retry_after", None))
    how = {name: said.pop(name) for name in ("manual", "idempotent", "effects", "sitting", "usage") if name in said}
    job = a_job(state=State.running, run=5, started_at=T0, attempts=4, **said)
    return Case(job, failure, cause_of(detail, "error_kind", failure), merge(policy, DEFAULT), T0, chance, **how)


def buried(detail: str, **said: Any) -> Bury:
    decision = decide(a_case(detail, **said))
    assert isinstance(decision, Bury), decision
    return decision


@pytest.mark.behaviour("R-1")
@pytest.mark.parametrize("detail", HEALS_BY_WAITING)
def test_what_heals_by_waiting_never_begins_in_the_manual_lane(detail: str) -> None:
    for used, seconds in enumerate((600.0, HOUR, 6 * HOUR, 24 * HOUR)):
        decision = buried(detail, comebacks=used)
        assert (decision.lane, decision.comes_back_at) == ("delayed", T0 + seconds)
        assert f"comeback {used + 1} of 4" in decision.why and in_words(seconds) in decision.why
        assert decision.recommendation.startswith("Nothing to do: it comes back by itself.")
    last = buried(detail, comebacks=4)
    assert (last.lane, last.comes_back_at) == ("manual", None)
    assert "It came back by itself 4 times and failed again." in last.why
    assert "comes back" not in last.recommendation


@pytest.mark.behaviour("R-1")
def test_times_are_spread_by_a_tenth() -> None:
    times = [buried("network", chance=chance).comes_back_at or 0.0 for chance in (0.0, 0.25, 0.999)]
    assert times == pytest.approx([T0 + 540, T0 + 570, T0 + 660], abs=1)


@pytest.mark.behaviour("R-1")
@pytest.mark.parametrize(
    "said",
    [
        {"manual": True},
        {"policy": Policy(on_lost="dead_letter")},
        {"policy": Policy(comebacks=())},
        {"policy": Policy(strategy="plain")},
        {"reason": "deferred_submit"},
        {"policy": Policy(max_age=60.0), "first_failed_at": T0 - 61.0},
        {"options_json": msgspec.json.encode(Options(budget=Budget(seconds=1.0))).decode(), "started_at": T0 - 60.0},
    ],
    ids=["retry_policy manual", "on_lost", "turned off", "plain", "deferred_submit", "too old", "over budget"],
)
def test_what_never_comes_back(said: dict[str, Any]) -> None:
    if "options_json" in said:
        said = {**said, "history": (Attempt(1, "failed", T0 - 100, T0 - 40),)}
        said.pop("started_at")
    decision = buried("network", **said)
    assert (decision.lane, decision.comes_back_at) == ("manual", None)
    assert "comes back" not in decision.why + decision.recommendation


@pytest.mark.behaviour("R-1")
@pytest.mark.parametrize("detail", ["bug", "authority", "invalid_input", "quota", "needs_human", "credentials"])
def test_the_permanent_stays_with_a_person(detail: str) -> None:
    assert buried(detail).lane == "manual"


@pytest.mark.behaviour("R-1")
def test_expired_credentials_come_back_after_an_hour_at_the_earliest() -> None:
    decisions = [buried("credentials_expired", comebacks=used) for used in range(4)]
    assert [one.comes_back_at for one in decisions] == [T0 + HOUR, T0 + 6 * HOUR, T0 + 24 * HOUR, None]
    assert [one.lane for one in decisions] == ["delayed"] * 3 + ["manual"]


@pytest.mark.behaviour("R-1")
def test_the_unknown_comes_back_once_after_an_hour_where_that_is_harmless() -> None:
    assert buried("unknown").comes_back_at == T0 + HOUR
    assert buried("unknown", comebacks=1).lane == "manual"
    assert buried("unknown", effects=True).lane == "manual", "a retry might repeat an effect"
    assert (tries_for("unknown"), tries_for("transient"), tries_for("conditional")) == (1, 2, 2)


@pytest.mark.behaviour("R-1")
def test_what_heals_by_a_change_comes_back_twice_while_something_is_left_to_change() -> None:
    history = tuple(
        Attempt(run, "failed", failure=Failure(message="no"), cause=cause_of("invalid_output", "x", Failure()))
        for run in range(1, 5)
    )
    times = [buried("invalid_output", comebacks=used, history=history).comes_back_at for used in range(3)]
    assert times == [T0 + 600, T0 + HOUR, None]
    assert buried("context_overflow", payload='{"n": 1}').lane == "manual", "nothing to make smaller"


@pytest.mark.behaviour("R-1")
def test_a_wait_that_was_asked_for_is_kept_by_the_last_attempt_too() -> None:
    assert (buried("rate_limited", retry_after=1800.0).comes_back_at or 0.0) >= T0 + 1800
    assert buried("rate_limited", retry_after=5.0).comes_back_at == T0 + 600


def test_a_script_keeps_its_own_lane() -> None:
    decision = buried("network", sitting="cycle", queue="cycle:nightly")
    assert (decision.lane, decision.comes_back_at) == ("manual", None), "at the cap, as ever"


# ---- the others of a group


def a_letter(**said: Any) -> Job:
    given = {
        "category": "transient",
        "detail": "network",
        "fingerprint": "f",
        "history": (Attempt(1, "failed", T0, T0),),
    }
    return a_job(state=State.dead, because="attempts_exhausted", lane="delayed", recommendation="x", **(given | said))


@pytest.mark.behaviour("R-1")
def test_times_that_passed_while_nothing_ran_are_not_made_up_for() -> None:
    for now, expected in (
        (T0 + 700, (1, T0 + HOUR)),
        (T0 + 2 * HOUR, (2, T0 + 6 * HOUR)),
        (T0 + 9 * HOUR, (3, T0 + 24 * HOUR)),
        (T0 + 30 * HOUR, None),
    ):
        assert next_time(a_letter(), DEFAULT, now, 0.5) == expected
    assert next_time(a_letter(comebacks=2), DEFAULT, T0, 0.5) == (3, T0 + 24 * HOUR)
    assert next_time(a_letter(category="unknown"), DEFAULT, T0, 0.5) is None


@pytest.mark.behaviour("R-1")
def test_a_wait_that_was_asked_for_is_shortened_by_nobody() -> None:
    asked = cause_of("rate_limited", "", Failure("exception", ("x.Y",), "no", retry_after=7 * HOUR))
    letter = a_letter(detail="rate_limited", history=(Attempt(1, "failed", T0, T0, cause=asked),))
    for sure in (True, False):
        assert not may_follow(letter, DEFAULT, T0 + 6 * HOUR, sure=sure), "others are answered"
        assert may_follow(letter, DEFAULT, T0 + 7 * HOUR, sure=sure)
    assert next_time(letter, DEFAULT, T0 + 5 * HOUR, 0.5) == (2, T0 + 7 * HOUR), "another went first and failed"


@pytest.mark.behaviour("R-1")
def test_when_the_first_of_a_group_speaks_for_the_others() -> None:
    first = First("j", T0, "f", "host:a:443")
    assert still_down(a_letter(held_for="host:a:443"), first)
    assert still_down(a_letter(fingerprint="g", held_for="host:a:443"), first), "the same host fails in another way"
    assert not still_down(a_letter(fingerprint="g", held_for="host:b:443"), first)
    assert not still_down(a_letter(fingerprint="g", category="permanent", held_for="host:a:443"), first)
    assert not still_down(a_letter(category="conditional"), first), "a model's answer says nothing of another input"
    assert group_key("f", "host:a:443") != group_key("f", "host:b:443")


@pytest.mark.behaviour("R-1")
def test_the_others_follow_at_a_rate_that_doubles() -> None:
    answers, counts = Answers(T0, T0, 20.0), []
    for second in range(1, 5):
        number, answers = release_followers(answers, T0 + second)
        counts.append(number)
    assert counts == [20, 40, 80, 160]


def test_times_by_category() -> None:
    assert times_for(DEFAULT, "transient") == DEFAULT.comebacks
    assert times_for(DEFAULT, "control") == () and times_for(Policy(comebacks=()), "unknown") == ()


@pytest.mark.parametrize(
    "wrong", [(0.0,), (-1.0,), (60.0, 60.0), (60.0, 30.0), (1.0,) * 21, "600", 600.0, (float("inf"),)]
)
def test_a_table_that_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidOption, match="comebacks"):
        check(Policy(comebacks=wrong), "queues.q")  # type: ignore[arg-type]
    check(Policy(comebacks=()), "queues.q")


@pytest.mark.parametrize(
    ("seconds", "words"), [(45, "45 s"), (600, "10 min"), (HOUR, "1 h"), (6 * HOUR, "6 h"), (72 * HOUR, "3 days")]
)
def test_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
