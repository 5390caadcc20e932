"""Results that say that the work failed; everything else is a success."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.failures.capture import find_soft_failure
from redrive.failures.classify import DETAILS, classify


def judged(value: Any) -> tuple[str, str]:
    failure = find_soft_failure(value)
    assert failure is not None and failure.kind == "soft"
    assert failure.message.strip()
    return failure.message, classify(failure).detail


@pytest.mark.parametrize(
    "value",
    [
        None, "", "error", 0, 5, [], ["error"], {}, {"id": 1}, {"error": None}, {"error": ""}, {"error": False},
        {"error": {}}, {"success": True}, {"success": None}, {"success": 0}, {"verified": {}}, {"verified": False},
        {"verified": {"a": True, "b": "verified"}}, {"error_kind": None}, {"status": "ok"}, {"status": "failed"},
        {"status": 500}, {"is_error": False}, {"choices": []}, {"choices": [{"finish_reason": "stop"}]},
        {"stop_reason": "end_turn"}, {"stop_reason": "tool_use"}, {"object": "response", "status": "completed"},
        {"candidates": [{"finishReason": "STOP"}]}, {"choices": "length"}, object(), b"x", {1: 2},
        {"status": "incomplete"},
    ],
    ids=lambda value: repr(value).partition(" object at")[0],
)  # fmt: skip
def test_what_is_a_success(value: Any) -> None:
    assert find_soft_failure(value) is None


@pytest.mark.behaviour("003-24")
@pytest.mark.parametrize(
    ("value", "message", "detail"),
    [
        ({"error": "no such page"}, "no such page", "unknown"),
        ({"error": "upstream timed out"}, "upstream timed out", "timeout"),
        ({"error": {"message": "slow down", "type": "rate_limit_error"}}, "slow down", "rate_limited"),
        ({"error": {"message": "no", "code": 404}}, "no", "data_integrity"),
        ({"error": {"message": "no", "code": 429, "status": "RESOURCE_EXHAUSTED"}}, "no", "rate_limited"),
        ({"error": True}, "True", "unknown"),
        ({"success": False, "message": "app is closed"}, "app is closed", "unknown"),
        ({"success": False}, "the task returned success: false, without a message", "unknown"),
        ({"success": False, "message": "  "}, "the task returned success: false, without a message", "unknown"),
        ({"success": False, "error": ""}, "the task returned success: false, without a message", "unknown"),
        ({"success": True, "error": "it did not"}, "it did not", "unknown"),
        ({"success": False, "error": "the error wins", "message": "not me"}, "the error wins", "unknown"),
        ({"success": True, "verified": {"post": False, "tag": True}}, "not verified: post", "unknown"),
        ({"verified": {"post": None}}, "not verified: post", "unknown"),
        ({"status": "error", "message": "broken"}, "broken", "unknown"),
        ({"isError": True, "content": [{"type": "text", "text": "tool broke"}]}, "tool broke", "unknown"),
    ],
)
def test_the_shapes_of_results(value: dict[str, Any], message: str, detail: str) -> None:
    assert judged(value) == (message, detail)


@pytest.mark.behaviour("003-26")
def test_an_error_kind_in_the_result_beats_its_text() -> None:
    assert judged({"error": "timed out", "error_kind": "refused"})[1] == "authority"
    assert judged({"error": {"message": "timed out", "error_kind": "plugin_missing"}})[1] == "needs_human"
    assert judged({"error_kind": "network_transient"}) == (
        "the task returned error_kind 'network_transient'",
        "network",
    )
    assert judged({"success": False, "error_kind": "gremlins", "message": "timed out"})[1] == "timeout"


def test_a_result_may_say_whether_it_is_worth_another_try() -> None:
    permanent, transient = (
        find_soft_failure({"error": "timed out", "transient": False}),
        find_soft_failure({"error": "odd", "transient": True}),
    )
    assert permanent is not None and classify(permanent).category == "permanent"
    assert transient is not None and classify(transient).category == "transient"


MODELS: list[tuple[dict[str, Any], str]] = [
    ({"choices": [{"finish_reason": "length"}]}, "token_budget"),
    ({"choices": [{"finish_reason": "content_filter"}]}, "refusal"),
    ({"choices": [{"finish_reason": "stop", "message": {"refusal": "I cannot"}}]}, "refusal"),
    ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "token_budget"),
    ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "refusal"),
    ({"object": "response", "status": "incomplete"}, "token_budget"),
    ({"object": "response", "status": "failed", "error": {"code": "server_error", "message": "x"}}, "server_error"),
    ({"type": "message", "stop_reason": "max_tokens"}, "token_budget"),
    ({"type": "message", "stop_reason": "model_context_window_exceeded"}, "context_overflow"),
    ({"type": "message", "stop_reason": "refusal"}, "refusal"),
    ({"candidates": [{"finishReason": "MAX_TOKENS"}]}, "token_budget"),
    ({"candidates": [{"finish_reason": "MALFORMED_FUNCTION_CALL"}]}, "invalid_output"),
    ({"candidates": [{"finishReason": "SAFETY"}]}, "refusal"),
    ({"candidates": [], "promptFeedback": {"blockReason": "SAFETY"}}, "refusal"),
    ({"stopReason": "guardrail_intervened"}, "refusal"),
    ({"response_metadata": {"finish_reason": "length"}}, "token_budget"),
    ({"is_error": True, "subtype": "error_max_turns"}, "token_budget"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "detail"), MODELS, ids=lambda given: given if isinstance(given, str) else "")
def test_a_model_that_stopped_for_a_bad_reason(value: dict[str, Any], detail: str) -> None:
    assert judged(value)[1] == detail


def test_one_good_answer_among_several_is_enough() -> None:
    assert find_soft_failure({"choices": [{"finish_reason": "length"}, {"finish_reason": "stop"}]}) is None
    assert find_soft_failure({"choices": [{"finish_reason": "length"}, {"finish_reason": "length"}]}) is not None


class Reason(enum.Enum):
    MAX_TOKENS = "MAX_TOKENS"


@dataclasses.dataclass
class Candidate:
    finish_reason: Reason


@dataclasses.dataclass
class Generated:
    candidates: list[Candidate]


class Message(pydantic.BaseModel):
    type: str = "message"
    stop_reason: str


class Outcome(msgspec.Struct):
    success: bool
    message: str = ""


class Plain:
    success = False
    error = "only classes that declare their fields are read"


def test_objects_are_read_by_their_fields() -> None:
    assert judged(Generated([Candidate(Reason.MAX_TOKENS)]))[1] == "token_budget"
    assert judged(Message(stop_reason="refusal"))[1] == "refusal"
    assert judged(Outcome(False, "no")) == ("no", "unknown")
    assert find_soft_failure(Message(stop_reason="end_turn")) is None
    assert find_soft_failure(Outcome(True)) is None
    assert find_soft_failure(Plain()) is None


def test_secrets_are_removed_and_the_message_is_bounded() -> None:
    failure = find_soft_failure({"error": "password=hunter2hunter2 " + "x" * 10_000})
    assert failure is not None
    assert "hunter2" not in failure.message and len(failure.message) <= 2_000


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_an_error_that_cannot_be_shown_is_still_one() -> None:
    assert judged({"error": Unreadable()}) == ("the task returned an error", "unknown")


KEYS = st.sampled_from(
    ["error", "success", "error_kind", "verified", "status", "choices", "candidates", "stop_reason", "finish_reason",
     "incomplete_details", "message", "is_error", "transient", "x"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(VALUES)
def test_whatever_is_returned_is_judged(value: Any) -> None:
    failure = find_soft_failure(value)
    if failure is not None:
        assert failure.message.strip()
        assert classify(failure).detail in DETAILS
        msgspec.json.encode(failure)


def test_a_stream_that_ended_with_an_error() -> None:
    event = {
        "type": "error",
        "code": "rate_limit_exceeded",
        "message": "slow down",
        "param": None,
        "sequence_number": 3,
    }
    failure = find_soft_failure(event)
    assert failure is not None and (failure.message, failure.codes) == ("slow down", ("rate_limit_exceeded",))
    nameless = find_soft_failure({**event, "code": None})
    assert nameless is not None and nameless.error_kind == "server_error"
    assert find_soft_failure({"type": "response.created", "sequence_number": 0}) is None
    assert find_soft_failure({"type": "error", "message": "somebody's own words"}) is None


def test_a_result_may_say_when_to_come_back_and_carry_the_code_of_a_json_rpc() -> None:
    limited = find_soft_failure({"error": "rate limited", "retry_after": 30})
    assert limited is not None and limited.retry_after == 30.0
    inner = find_soft_failure({"error": {"message": "slow down", "retry_after": 2.5}})
    assert inner is not None and inner.retry_after == 2.5
    unsaid = find_soft_failure({"error": "rate limited", "retry_after": "soon"})
    assert unsaid is not None and unsaid.retry_after is None
    refused = find_soft_failure({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "Method not found"}})
    assert refused is not None and classify(refused).detail == "invalid_input"
    broken = find_soft_failure({"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "m"}})
    assert broken is not None and classify(broken).detail == "server_error"


def test_ollama_says_why_it_is_done() -> None:
    cut = find_soft_failure(
        {"model": "m", "message": {"role": "assistant", "content": "a"}, "done": True, "done_reason": "length"}
    )
    assert cut is not None and cut.error_kind == "token_budget"
    assert find_soft_failure({"model": "m", "done": True, "done_reason": "stop"}) is None
