"""What libraries raise, as it was recorded from them: class, status, code, message → what it means.

The same rows stand in tests/sdks with exceptions that the libraries build themselves.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive.core.job import Failure
from redrive.failures.classify import DETAILS, classify

# ---- every detail: what it heals by, and in which drawer its dead letters lie

TRANSIENT = {
    "network": "at_once", "timeout": "at_once", "server_error": "at_once", "preempted": "at_once",
    "rate_limited": "later", "provider_overloaded": "later", "contention": "later",
}  # fmt: skip
CONDITIONAL = (
    "context_overflow", "hallucination_loop", "token_budget", "model_confusion", "invalid_output", "refusal",
)  # fmt: skip
PERMANENT = (
    "authority", "impossible_task", "dependency_gone", "data_integrity", "invalid_input", "needs_human", "quota", "bug",
    "credentials",
)  # fmt: skip


@pytest.mark.behaviour("004-14")
@pytest.mark.parametrize(("detail", "heals"), TRANSIENT.items())
def test_transient_details(detail: str, heals: str) -> None:
    assert DETAILS[detail][:2] == ("transient", heals)


@pytest.mark.behaviour("004-15")
@pytest.mark.parametrize("detail", CONDITIONAL)
def test_conditional_details(detail: str) -> None:
    assert DETAILS[detail][:2] == ("conditional", "changed")


@pytest.mark.behaviour("004-16")
@pytest.mark.parametrize("detail", PERMANENT)
def test_permanent_details(detail: str) -> None:
    assert DETAILS[detail][:2] == ("permanent", "person")


def test_the_rest() -> None:
    assert DETAILS["credentials_expired"][:2] == ("permanent", "later")
    assert DETAILS["suspended"][:2] == ("control", "person")
    assert DETAILS["released"][:2] == ("control", "at_once")
    assert DETAILS["unknown"][:2] == ("unknown", "unknown")


# ---- the libraries

ANTHROPIC = ("anthropic.APIStatusError", "anthropic.APIError", "anthropic.AnthropicError")
OPENAI = ("openai.APIStatusError", "openai.APIError", "openai.OpenAIError")
GENAI = ("google.genai.errors.ClientError", "google.genai.errors.APIError")
AWS = ("botocore.exceptions.ClientError",)
PYGITHUB = ("github.GithubException.GithubException",)
KUBERNETES = ("kubernetes.client.exceptions.ApiException", "kubernetes.client.exceptions.OpenApiException")
MCP = ("mcp.shared.exceptions.MCPError",)
GRPC = ("grpc.aio._call.AioRpcError", "grpc.RpcError")
CLAUDE = ("claude_agent_sdk._errors.ResultError", "claude_agent_sdk._errors.ProcessError")
CLAUDE_LOST = ("claude_agent_sdk._errors.CLIConnectionError",)
SQLITE = ("sqlite3.OperationalError", "sqlite3.DatabaseError", "sqlite3.Error")
POSTGRES = ("psycopg.errors.Something", "psycopg.OperationalError", "psycopg.DatabaseError", "psycopg.Error")


def seen(types: tuple[str, ...], *codes: str, **fields: Any) -> Failure:
    return Failure("exception", types, codes=codes, code=codes[0] if codes else None, **fields)


def sql(state: str) -> Failure:
    types = SQLITE if state.startswith("SQLITE") else POSTGRES
    return seen(types, sqlstate=state, message="no such table: x" if state == "SQLITE_ERROR" else "")


ROWS: list[tuple[Failure, str]] = [
    (seen(("anthropic.APITimeoutError", "anthropic.APIConnectionError")), "timeout"),
    (seen(("anthropic.APIConnectionError",)), "network"),
    (seen(("anthropic.RetryableError",)), "server_error"),
    (seen(ANTHROPIC, status=408), "timeout"),
    (seen(ANTHROPIC, "conflict_error", status=409), "contention"),
    (seen(ANTHROPIC, "rate_limit_error", status=429), "rate_limited"),
    (seen(ANTHROPIC, "api_error", status=500), "server_error"),
    (seen(ANTHROPIC, "overloaded_error", status=529), "provider_overloaded"),
    (seen(ANTHROPIC, "overloaded_error", status=200), "provider_overloaded"),
    (seen(ANTHROPIC, "api_error", status=200), "server_error"),
    (seen(ANTHROPIC, "invalid_request_error", status=400, message="prompt is too long: 9 > 8"), "context_overflow"),
    (seen(ANTHROPIC, "request_too_large", status=413), "context_overflow"),
    (seen(ANTHROPIC, status=413), "context_overflow"),
    (seen(ANTHROPIC, "billing_error", status=403), "quota"),
    (seen(ANTHROPIC, "enforced_spend_limit_reached", "rate_limit_error", status=429), "quota"),
    (seen(ANTHROPIC, "invalid_request_error", status=400, message="Your credit balance is too low"), "quota"),
    (seen(ANTHROPIC, "authentication_error", status=401), "credentials"),
    (seen(ANTHROPIC, "authentication_error", status=401, message="token has expired"), "credentials_expired"),
    (seen(ANTHROPIC, "permission_error", status=403), "authority"),
    (seen(ANTHROPIC, "not_found_error", status=404), "data_integrity"),
    (seen(ANTHROPIC, "invalid_request_error", status=400), "invalid_input"),
    (seen(ANTHROPIC, "invalid_request_error", status=422), "invalid_input"),
    (seen(("openai.APITimeoutError", "openai.APIConnectionError")), "timeout"),
    (seen(("openai.APIConnectionError",)), "network"),
    (seen(OPENAI, "rate_limit_exceeded", "tokens", status=429), "rate_limited"),
    (seen(OPENAI, "server_error", status=500), "server_error"),
    (seen(OPENAI, "context_length_exceeded", "invalid_request_error", status=400), "context_overflow"),
    (seen(("openai.LengthFinishReasonError",)), "token_budget"),
    (seen(OPENAI, "insufficient_quota", status=429), "quota"),
    (seen(OPENAI, "billing_hard_limit_reached", "invalid_request_error", status=400), "quota"),
    (seen(OPENAI, "invalid_api_key", "invalid_request_error", status=401), "credentials"),
    (seen(OPENAI, "model_not_found", "invalid_request_error", status=404), "data_integrity"),
    (seen(OPENAI, "content_filter", status=400), "refusal"),
    (seen(GENAI, "RESOURCE_EXHAUSTED", status=429), "rate_limited"),
    (seen(GENAI, "UNAVAILABLE", status=503), "server_error"),
    (seen(GENAI, "UNAVAILABLE", status=503, message="The model is overloaded."), "provider_overloaded"),
    (seen(GENAI, "INTERNAL", status=500), "server_error"),
    (
        seen(GENAI, "INVALID_ARGUMENT", status=400, message="The input token count (12) exceeds the maximum of 10"),
        "context_overflow",
    ),
    (seen(GENAI, "INVALID_ARGUMENT", "API_KEY_INVALID", status=400), "credentials"),
    (seen(GENAI, "PERMISSION_DENIED", status=403), "authority"),
    (seen(("litellm.exceptions.RateLimitError", *OPENAI), "throttling_error", status=429), "rate_limited"),
    (seen(("litellm.exceptions.Timeout", "openai.APITimeoutError"), status=408), "timeout"),
    (seen(("litellm.exceptions.ServiceUnavailableError", *OPENAI), status=503), "server_error"),
    (seen(("litellm.exceptions.APIConnectionError", "openai.APIConnectionError"), status=500), "network"),
    (seen(("litellm.exceptions.ContextWindowExceededError", *OPENAI), status=400), "context_overflow"),
    (seen(("litellm.exceptions.BudgetExceededError",), status=400), "token_budget"),
    (seen(("litellm.exceptions.ContentPolicyViolationError", *OPENAI), status=400), "refusal"),
    (seen(("litellm.exceptions.UnsupportedParamsError", *OPENAI), status=400), "invalid_input"),
    (seen(("httpx.ReadTimeout", "httpx.TimeoutException", "httpx.TransportError")), "timeout"),
    (seen(("httpx.ReadError", "httpx.NetworkError", "httpx.TransportError")), "network"),
    (seen(("httpx.HTTPStatusError",), status=413, model_call=True), "context_overflow"),
    (seen(("httpx.UnsupportedProtocol", "httpx.TransportError")), "invalid_input"),
    (seen(("httpx.LocalProtocolError", "httpx.ProtocolError", "httpx.TransportError")), "invalid_input"),
    (seen(("httpx.InvalidURL",)), "invalid_input"),
    (seen(("aiohttp.client_exceptions.ClientConnectionError",)), "network"),
    (seen(("aiohttp.client_exceptions.ServerTimeoutError", "builtins.TimeoutError")), "timeout"),
    (seen(("aiohttp.client_exceptions.ClientPayloadError",)), "network"),
    (seen(("aiohttp.client_exceptions.ClientConnectorCertificateError", "ssl.SSLError")), "authority"),
    (seen(("aiohttp.client_exceptions.InvalidURL", "builtins.ValueError")), "invalid_input"),
    (seen(("requests.exceptions.ConnectionError", "builtins.OSError")), "network"),
    (seen(("requests.exceptions.ReadTimeout", "requests.exceptions.Timeout", "builtins.OSError")), "timeout"),
    (seen(("requests.exceptions.ChunkedEncodingError", "builtins.OSError")), "network"),
    (seen(("urllib3.exceptions.ProtocolError",)), "network"),
    (seen(("urllib3.exceptions.MaxRetryError",)), "network"),
    (seen(("requests.exceptions.SSLError", "requests.exceptions.ConnectionError")), "authority"),
    (seen(("requests.exceptions.MissingSchema", "builtins.ValueError")), "invalid_input"),
    (seen(AWS, "ThrottlingException", status=429), "rate_limited"),
    (seen(AWS, "RequestLimitExceeded", status=503), "rate_limited"),
    (seen(AWS, "ServiceUnavailableException", status=503), "server_error"),
    (seen(AWS, "ModelNotReadyException", status=429), "server_error"),
    (seen(AWS, "ValidationException", status=400, message="Input is too long for it."), "context_overflow"),
    (seen(AWS, "ServiceQuotaExceededException", status=400), "quota"),
    (seen(AWS, "AccessDeniedException", status=403), "authority"),
    (seen(AWS, "ExpiredTokenException", status=403), "credentials_expired"),
    (seen(("botocore.exceptions.NoCredentialsError", "botocore.exceptions.BotoCoreError")), "credentials"),
    (seen(("github.GithubException.RateLimitExceededException", *PYGITHUB), status=403), "rate_limited"),
    (seen(PYGITHUB, status=403, headers={"x-ratelimit-remaining": "0"}), "rate_limited"),
    (seen(PYGITHUB, status=403, headers={"retry-after": "60"}), "rate_limited"),
    (seen(PYGITHUB, status=403), "authority"),
    (seen(("github.GithubException.BadCredentialsException", *PYGITHUB), status=403), "credentials"),
    (seen(("github.GithubException.UnknownObjectException", *PYGITHUB), status=404), "data_integrity"),
    (seen(("githubkit.exception.PrimaryRateLimitExceeded", "githubkit.exception.RateLimitExceeded")), "rate_limited"),
    (seen(KUBERNETES, "Conflict", "AlreadyExists", status=409), "contention"),
    (seen(KUBERNETES, status=429), "rate_limited"),
    (seen(KUBERNETES, status=500), "server_error"),
    (seen(KUBERNETES, status=401), "credentials"),
    (seen(KUBERNETES, "Forbidden", status=403), "authority"),
    (seen(KUBERNETES, "NotFound", status=404), "data_integrity"),
    (seen(KUBERNETES, "Invalid", status=422), "invalid_input"),
    (seen(("redis.exceptions.ConnectionError",)), "network"),
    (seen(("redis.exceptions.TimeoutError",)), "timeout"),
    (seen(("redis.exceptions.BusyLoadingError", "redis.exceptions.ConnectionError")), "contention"),
    (seen(("redis.exceptions.ReadOnlyError", "redis.exceptions.ResponseError")), "contention"),
    (seen(("redis.exceptions.ClusterDownError", "redis.exceptions.ClusterError")), "server_error"),
    (seen(("redis.exceptions.OutOfMemoryError", "redis.exceptions.ResponseError")), "contention"),
    (seen(("redis.exceptions.AuthenticationError", "redis.exceptions.ConnectionError")), "credentials"),
    (seen(("redis.exceptions.NoPermissionError", "redis.exceptions.ResponseError")), "authority"),
    *((sql(state), "contention") for state in ("40001", "40P01", "55P03", "53300", "SQLITE_BUSY", "SQLITE_FULL")),
    *((sql(state), "network") for state in ("08006", "08001")),
    *((sql(state), "server_error") for state in ("57P01", "57P03", "SQLITE_IOERR_WRITE")),
    *((sql(state), "credentials") for state in ("28P01", "28000")),
    *((sql(state), "invalid_input") for state in ("22001", "23505", "42703", "SQLITE_CONSTRAINT_UNIQUE")),
    *((sql(state), "bug") for state in ("42601", "42P01", "SQLITE_ERROR")),
    (sql("42501"), "authority"),
    (sql("SQLITE_LOCKED_SHAREDCACHE"), "contention"),
    (sql("57014"), "timeout"),
    (seen(("nats.errors.TimeoutError", "nats.errors.Error", "builtins.TimeoutError")), "timeout"),
    (seen(("nats.errors.NoServersError", "nats.errors.Error")), "network"),
    (seen(("nats.js.errors.ServiceUnavailableError", "nats.js.errors.APIError"), status=503), "server_error"),
    (seen(("nats.js.errors.KeyWrongLastSequenceError", "nats.js.errors.BadRequestError")), "contention"),
    (seen(("nats.js.errors.BadRequestError", "nats.js.errors.APIError"), "10071", status=400), "contention"),
    (seen(("nats.errors.AuthorizationError", "nats.errors.Error")), "credentials"),
    (seen(("nats.errors.MaxPayloadError", "nats.errors.Error")), "invalid_input"),
    (seen(("nats.js.errors.BadRequestError", "nats.js.errors.APIError"), status=400), "invalid_input"),
    (seen(MCP, rpc_code=-32000), "network"),
    (seen(MCP, rpc_code=-32001), "timeout"),
    (seen(MCP, rpc_code=-32603), "server_error"),
    (seen(MCP, rpc_code=-32700), "invalid_input"),
    (seen(MCP, rpc_code=-32602), "invalid_input"),
    (seen(MCP, rpc_code=-32042), "suspended"),
    (seen(GRPC, rpc_status="UNAVAILABLE"), "server_error"),
    (seen(GRPC, rpc_status="DEADLINE_EXCEEDED"), "timeout"),
    (seen(GRPC, rpc_status="RESOURCE_EXHAUSTED"), "rate_limited"),
    (seen(GRPC, rpc_status="ABORTED"), "contention"),
    (seen(GRPC, rpc_status="INVALID_ARGUMENT"), "invalid_input"),
    (seen(GRPC, rpc_status="PERMISSION_DENIED"), "authority"),
    (seen(("google.api_core.exceptions.Conflict",), status=409), "contention"),
    (seen(("langgraph.errors.NodeTimeoutError",)), "timeout"),
    (seen(("langgraph.errors.GraphRecursionError", "builtins.RecursionError")), "token_budget"),
    (seen(("langgraph.errors.GraphInterrupt", "langgraph.errors.GraphBubbleUp")), "suspended"),
    (seen(("langgraph.errors.GraphDrained", "langgraph.errors.GraphBubbleUp")), "released"),
    (seen(("pydantic_ai.exceptions.ModelRateLimitError",), status=429), "rate_limited"),
    (seen(("pydantic_ai.exceptions.ModelOverloadedError",), status=529), "provider_overloaded"),
    (seen(("pydantic_ai.exceptions.ModelServerError",), status=500), "server_error"),
    (seen(("pydantic_ai.exceptions.ModelConnectionError",)), "network"),
    (seen(("pydantic_ai.exceptions.ModelTimeoutError",)), "timeout"),
    (seen(("pydantic_ai.exceptions.ModelContextWindowExceededError",), status=400), "context_overflow"),
    (seen(("pydantic_ai.exceptions.ModelQuotaExceededError",), status=429), "quota"),
    (seen(("pydantic_ai.exceptions.UsageLimitExceeded",)), "token_budget"),
    (seen(("pydantic_ai.exceptions.ModelAuthenticationError",), status=401), "credentials"),
    (seen(("pydantic_ai.exceptions.UserError", "builtins.RuntimeError")), "bug"),
    (seen(("pydantic_ai.exceptions.ApprovalRequired",)), "suspended"),
    (seen(("pydantic_ai.exceptions.CallDeferred",)), "suspended"),
    (seen(("pydantic_ai.exceptions.UnexpectedModelBehavior",)), "invalid_output"),
    (seen(("agents.exceptions.ToolTimeoutError",)), "timeout"),
    (seen(("agents.exceptions.MaxTurnsExceeded",)), "token_budget"),
    (seen(("agents.exceptions.ModelRefusalError",)), "refusal"),
    (seen(("agents.exceptions.OutputGuardrailTripwireTriggered",)), "authority"),
    (seen(("agents.exceptions.ModelBehaviorError",)), "invalid_output"),
    (seen(CLAUDE_LOST), "network"),
    (seen(("claude_agent_sdk._errors.CLINotFoundError", *CLAUDE_LOST)), "dependency_gone"),
    (seen(CLAUDE, "success", status=429), "rate_limited"),
    (seen(CLAUDE, "error_during_execution", status=500), "server_error"),
    (seen(CLAUDE, "error_max_turns"), "token_budget"),
    (seen(CLAUDE, "error_max_budget_usd"), "token_budget"),
    (seen(("pydantic_core._pydantic_core.ValidationError", "builtins.ValueError"), model_asked=True), "invalid_output"),
    (seen(("msgspec.ValidationError", "msgspec.DecodeError"), model_asked=True), "invalid_output"),
    (seen(("json.decoder.JSONDecodeError", "builtins.ValueError"), model_asked=True), "invalid_output"),
    (seen(("json.decoder.JSONDecodeError", "builtins.ValueError")), "unknown"),
    (seen(("redrive.errors.InvalidPayload",), error_kind="invalid_input"), "invalid_input"),
]  # fmt: skip


@pytest.mark.behaviour("004-14", "004-15", "004-16")
@pytest.mark.parametrize(
    ("failure", "expected"),
    ROWS,
    ids=lambda given: given if isinstance(given, str) else f"{given.types[0]}:{given.status}",
)
def test_what_libraries_raise(failure: Failure, expected: str) -> None:
    assert classify(failure).detail == expected
    twins = tuple(name.replace("httpx.", "httpx2.") for name in failure.types)
    assert classify(msgspec.structs.replace(failure, types=twins)).detail == expected
    assert classify(Failure("exception", ("shop.CouldNotWrite",), cause=failure)).detail == expected


OVERFLOWS = [
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Input is too long for requested model.",
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "Please reduce the length of the messages or completion.",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "the request exceeds the available context size. try increasing the context size",
    "prompt tokens (9000) exceed model maximum",
    "too many tokens: total number of tokens in the prompt exceeds limit",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
]


@pytest.mark.parametrize("message", OVERFLOWS)
@pytest.mark.parametrize("status", [None, 400, 413, 422])
def test_an_overflow_is_known_by_its_words(message: str, status: int | None) -> None:
    assert classify(seen(("shop.Odd",), status=status, message=message)).detail == "context_overflow"
    assert classify(seen(("shop.Odd",), status=status, body=message)).detail == "context_overflow"


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503, 529])
@pytest.mark.parametrize("message", OVERFLOWS)
def test_with_another_status_the_words_do_not_count(message: str, status: int) -> None:
    assert classify(seen(("shop.Odd",), status=status, message=message)).detail != "context_overflow"
