"""What a caller is told: every state has one honest answer, and only what is done looks like success."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive.core.job import Attempt, Cause, Failure, Job, State
from redrive.core.outcome import INLINE, Outcome, outcome_of, shorten_result
from tests.stores.jobs import T0, a_job

FAILURE = Failure("exception", ("app.BridgeBusy",), "the bridge is busy", error_kind="bridge_busy")
FAILED = Attempt(1, "failed", failure=FAILURE, cause=Cause("transient", "server_error", "at_once"))
LOOKS_LIKE_SUCCESS = {"success", "ok", "result", "done", "completed"}


def in_state(state: State, **fields: Any) -> Job:
    return a_job(**{"reason": "retry", "state": state, **fields})


def waiting_after_a_failure(**fields: Any) -> Job:
    said: dict[str, Any] = {"attempts": 1, "history": (FAILED,), "error": FAILURE.summary, "run_at": T0 + 10}
    return in_state(State.waiting, **said | fields)


EVERY_STATE = {
    "queued": in_state(State.waiting),
    "queued_for_retry": waiting_after_a_failure(),
    "timeout": in_state(State.running),
    "ok": in_state(State.done, result_json="1"),
    "failed": in_state(State.dead, because="permanent", error="Gone: away", recommendation="Let it go."),
    "needs_consent": in_state(State.held, because="consent", recommendation="approve it"),
    "held": in_state(State.held, because="outcome_unknown", recommendation="look"),
}


@pytest.mark.behaviour("003-3")
@pytest.mark.parametrize("status", EVERY_STATE)
def test_only_what_is_done_is_true_and_looks_so(status: str) -> None:
    outcome = outcome_of(EVERY_STATE[status])
    assert outcome.status == status
    assert bool(outcome) is (status == "ok")
    shown = outcome.public()
    assert shown["operation_id"] == EVERY_STATE[status].id
    if status != "ok":
        assert not LOOKS_LIKE_SUCCESS.intersection(shown)
        assert "ok" not in shown.values()


@pytest.mark.parametrize("state", [State.discarded, State.purged])
def test_what_was_let_go_has_failed_for_its_caller(state: State) -> None:
    outcome = outcome_of(in_state(state))
    assert (outcome.status, bool(outcome)) == ("failed", False)
    assert str(state) in outcome.message


@pytest.mark.behaviour("003-3", "003-6", "003-68")
def test_queued_for_retry_says_that_retries_can_fail() -> None:
    shown = outcome_of(waiting_after_a_failure()).public()
    assert shown.keys() == {"operation_id", "queued_for_retry", "retry_hint", "retry_at", "error_kind", "error"}
    assert shown["queued_for_retry"] is True
    assert "Retries can fail" in shown["retry_hint"] and "Not done" in shown["retry_hint"]
    assert shown["error_kind"] == "bridge_busy"
    assert shown["retry_at"] == "1970-01-12T13:46:50.000Z"


@pytest.mark.behaviour("003-18", "003-68")
def test_without_a_typed_error_the_kind_is_our_own_word_or_nothing() -> None:
    untyped = Attempt(1, "failed", failure=Failure("exception", ("builtins.OSError",), "x"))
    assert outcome_of(waiting_after_a_failure(history=(untyped,), detail="network")).error_kind == "network"
    assert "error_kind" not in outcome_of(waiting_after_a_failure(history=(untyped,), detail=None)).public()


def test_the_latest_kind_counts() -> None:
    older = Attempt(1, "failed", failure=Failure("exception", ("x.Y",), "x", error_kind="old"))
    newer = Attempt(2, "failed", failure=Failure("exception", ("x.Y",), "x", error_kind="new"))
    assert outcome_of(waiting_after_a_failure(history=(older, newer))).error_kind == "new"


@pytest.mark.behaviour("003-9", "003-71")
def test_a_submission_is_an_id_and_a_hint_where_to_ask() -> None:
    job = in_state(State.waiting, reason="deferred_submit")
    shown = outcome_of(job).public()
    assert shown.keys() == {"operation_id", "status", "hint", "queue_reason"}
    assert (shown["status"], shown["queue_reason"]) == ("queued", "deferred_submit")
    assert job.short_id in shown["hint"] and "not done" in shown["hint"]


@pytest.mark.behaviour("003-7")
def test_late_is_an_operation_to_ask_about_and_not_to_call_again() -> None:
    job = in_state(State.running)
    shown = outcome_of(job).public()
    assert shown.keys() == {"operation_id", "status", "message"}
    assert shown["status"] == "timeout"
    assert job.short_id in shown["message"] and "do not call it again" in shown["message"]


@pytest.mark.parametrize("last", ["snoozed", "released"])
def test_a_job_that_waits_without_having_failed_is_not_said_to_have_failed(last: str) -> None:
    outcome = outcome_of(in_state(State.waiting, run=1, history=(Attempt(1, last),)))
    assert "failed (None)" not in outcome.message
    assert not outcome


def test_a_dead_one_says_why_and_what_to_do() -> None:
    outcome = outcome_of(EVERY_STATE["failed"])
    assert "permanent" in outcome.message and "Let it go." in outcome.message
    assert outcome.public()["error"] == "Gone: away"


# A long result ------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B15", "C27")
def test_a_long_text_is_cut_and_says_where_the_rest_is() -> None:
    shown, cut = shorten_result("x" * (INLINE + 1_234), "op1")
    assert cut and isinstance(shown, str)
    assert shown.startswith("x" * INLINE) and not shown.startswith("x" * (INLINE + 1))
    assert "1,234 characters more" in shown and "op1" in shown


@pytest.mark.behaviour("B15")
def test_a_long_list_is_cut_as_text() -> None:
    whole = [{"line": number} for number in range(20_000)]
    shown, cut = shorten_result(whole, "op1")
    assert cut and isinstance(shown, str) and shown.startswith('[{"line":0}')
    assert len(shown) < INLINE + 200


@pytest.mark.behaviour("B15")
@pytest.mark.parametrize("whole", ["x" * (INLINE - 2), ["y" * (INLINE - 4)]], ids=["text", "list"])
def test_what_just_fits_is_whole(whole: Any) -> None:
    assert len(json.dumps(whole)) == INLINE
    assert shorten_result(whole, "op1") == (whole, False)


@pytest.mark.behaviour("B15")
def test_an_answer_says_that_it_was_cut() -> None:
    outcome = outcome_of(in_state(State.done), "x" * (INLINE + 1))
    assert outcome.truncated and outcome.public()["truncated"] is True
    assert "truncated" not in outcome_of(in_state(State.done), "short").public()


# Seen outside -------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-69", "003-70")
def test_recovered_is_ok_with_a_warning_and_the_number_of_effects_seen() -> None:
    outcome = Outcome("ok", "op1", message="Its effects were seen outside.", recovered=2)
    assert outcome.public() == {
        "operation_id": "op1",
        "status": "ok",
        "result": None,
        "post_write_recovery": True,
        "effects_verified": 2,
        "warning": "Its effects were seen outside.",
    }


@pytest.mark.behaviour("003-14")
def test_a_plain_success_has_no_word_about_effects() -> None:
    shown = outcome_of(in_state(State.done), {"id": 1}).public()
    assert shown.keys() == {"operation_id", "status", "result"}


@pytest.mark.behaviour("003-46")
@pytest.mark.parametrize("status", ["ok", "queued_for_retry", "failed"])
def test_every_answer_can_say_that_something_is_back(status: str) -> None:
    shown = outcome_of(EVERY_STATE[status], recovered=True).public()
    assert shown["registry_auto_recovered"] is True
    assert "registry_auto_recovered" not in outcome_of(EVERY_STATE[status]).public()
