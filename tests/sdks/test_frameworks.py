"""LangGraph, Pydantic AI, OpenAI Agents, MCP: what agent frameworks raise."""

from __future__ import annotations

import os
from typing import Any

import langgraph.errors
import mcp.shared.exceptions
import pytest
from agents import exceptions as agents_errors
from pydantic_ai import exceptions as ai

from tests.sdks.judging import cause_of, detail_of


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (langgraph.errors.GraphInterrupt(), "suspended"),
        (langgraph.errors.GraphDrained(), "released"),
        (langgraph.errors.GraphRecursionError("Recursion limit of 25 reached"), "token_budget"),
        (langgraph.errors.NodeTimeoutError("n", 1.0, kind="run", run_timeout=1.0), "timeout"),
        (langgraph.errors.InvalidUpdateError("m"), "bug"),
        (langgraph.errors.EmptyInputError("m"), "invalid_input"),
    ],
)
def test_langgraph(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


def http(category: Any, status: int, **more: Any) -> BaseException:
    return ai.ModelHTTPError.for_category(category, status_code=status, model_name="m", **more)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (http(ai.ModelRateLimitError, 429), "rate_limited"),
        (http(ai.ModelOverloadedError, 529), "provider_overloaded"),
        (http(ai.ModelUnavailableError, 503), "server_error"),
        (http(ai.ModelServerError, 500), "server_error"),
        (http(ai.ModelContextWindowExceededError, 400), "context_overflow"),
        (http(ai.ModelQuotaExceededError, 429), "quota"),
        (http(ai.ModelAuthenticationError, 401), "credentials"),
        (http(ai.ModelAuthenticationError, 403), "authority"),
        (http(ai.ModelNotFoundError, 404), "data_integrity"),
        (http(ai.ModelRequestRejectedError, 400), "invalid_input"),
        (http(None, 429, body={"error": {"code": "insufficient_quota"}}), "quota"),
        (ai.ModelConnectionError("m", "x"), "network"),
        (ai.ModelTimeoutError("m", "x"), "timeout"),
        (ai.ModelAPIError("m", "x", provider_error_code="ThrottlingException"), "rate_limited"),
        (ai.UsageLimitExceeded("Exceeded the total_tokens_limit of 10"), "token_budget"),
        (ai.IncompleteToolCall("m"), "token_budget"),
        (ai.ContentFilterError("m"), "refusal"),
        (ai.UnexpectedModelBehavior("m", "{}"), "invalid_output"),
        (ai.UserError("m"), "bug"),
        (ai.ApprovalRequired(), "suspended"),
        (ai.CallDeferred(), "suspended"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_pydantic_ai(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


def test_all_models_failed_is_as_bad_as_the_worst() -> None:
    limited, broken = http(ai.ModelRateLimitError, 429, headers={"Retry-After": "9"}), http(ai.ModelServerError, 500)
    cause = cause_of(ai.FallbackExceptionGroup("all failed", [limited, broken]))
    assert (cause.detail, cause.retry_after) == ("rate_limited", 9.0)
    refused = http(ai.ModelAuthenticationError, 401)
    assert detail_of(ai.FallbackExceptionGroup("all failed", [limited, refused])) == "credentials"


class Tripped:
    guardrail = object()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (agents_errors.MaxTurnsExceeded("m"), "token_budget"),
        (agents_errors.ModelBehaviorError("m"), "invalid_output"),
        (agents_errors.ModelRefusalError("no"), "refusal"),
        (agents_errors.UserError("m"), "bug"),
        (agents_errors.ToolTimeoutError("t", 3), "timeout"),
        (agents_errors.InputGuardrailTripwireTriggered(Tripped()), "authority"),  # type: ignore[arg-type]
        (agents_errors.OutputGuardrailTripwireTriggered(Tripped()), "authority"),  # type: ignore[arg-type]
    ],
)
def test_openai_agents(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


def test_openai_agents_over_a_websocket() -> None:
    from agents.models import openai_responses

    failed: Any = openai_responses.ResponsesWebSocketError
    for error in ({"code": "server_is_overloaded"}, {"code": None, "type": "overloaded_error"}):
        assert detail_of(failed({"type": "error", "error": {**error, "message": "m"}})) == "provider_overloaded"


def test_every_class_that_the_newest_openai_agents_has() -> None:
    timeout = getattr(agents_errors, "ModelTimeoutError", None)
    assert timeout is not None or os.environ["REDRIVE_SDKS"] == "sdks", "the pinned version has none"
    if timeout is not None:
        assert detail_of(timeout(3)) == "timeout"
    for name in ("ToolInputGuardrailTripwireTriggered", "ToolOutputGuardrailTripwireTriggered"):
        assert detail_of(getattr(agents_errors, name)(Tripped(), Tripped())) == "authority"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-32000, "network"),
        (-32001, "timeout"),
        (-32603, "server_error"),
        (-32700, "invalid_input"),
        (-32600, "invalid_input"),
        (-32601, "invalid_input"),
        (-32602, "invalid_input"),
        (-32042, "suspended"),
        (408, "timeout"),
    ],
)
def test_mcp(code: int, expected: str) -> None:
    assert detail_of(mcp.shared.exceptions.MCPError(code, "m")) == expected


def test_mcp_that_asks_a_person() -> None:
    assert detail_of(mcp.shared.exceptions.UrlElicitationRequiredError([])) == "suspended"
