"""Anthropic, OpenAI, Gemini, LiteLLM: their own clients against a server that answers as the providers do."""

from __future__ import annotations

import json
import os
from typing import Any

import anthropic
import httpx
import httpx2
import litellm.exceptions
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types as genai_types
from openai.types.chat import ChatCompletion

from redrive.failures.capture import find_soft_failure
from redrive.failures.classify.codes import _CODES_BY_DETAIL
from tests.sdks.answers import HANG_UP, Answer, Server
from tests.sdks.judging import cause_of, detail_of, failure_of, raised_by

MESSAGES: Any = [{"role": "user", "content": "hello"}]


def fault(kind: str, message: str = "m", code: str | None = None) -> dict[str, Any]:
    """An error as Anthropic sends it."""
    details = {"details": {"error_code": code}} if code else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def ask_anthropic(server: Server, answer: Answer, *, stream: bool = False) -> BaseException:
    client = anthropic.Anthropic(api_key="k", base_url=server.says(answer), max_retries=0)
    with client:

        def call() -> None:
            made: Any = client.messages.create(model="m", max_tokens=5, messages=MESSAGES, stream=stream)
            if stream:
                list(made)

        return raised_by(call)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(400, fault("invalid_request_error")), "invalid_input"),
        (Answer(400, fault("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum")), "context_overflow"),
        (
            Answer(
                400, fault("invalid_request_error", "input length and `max_tokens` exceed context limit: 9 + 9 > 10")
            ),
            "context_overflow",
        ),
        (Answer(400, fault("invalid_request_error", "Your credit balance is too low to access the API")), "quota"),
        (Answer(401, fault("authentication_error", "invalid x-api-key")), "credentials"),
        (Answer(401, fault("authentication_error", "OAuth token has expired")), "credentials_expired"),
        (Answer(402, fault("billing_error")), "quota"),
        (Answer(403, fault("permission_error")), "authority"),
        (Answer(404, fault("not_found_error", "model: m")), "data_integrity"),
        (Answer(408, fault("timeout_error")), "timeout"),
        (Answer(409, fault("conflict_error")), "contention"),
        (Answer(413, fault("request_too_large", "Request exceeds the maximum size")), "context_overflow"),
        (Answer(413, "<html>too large</html>", content_type="text/html"), "context_overflow"),
        (Answer(422, fault("invalid_request_error")), "invalid_input"),
        (Answer(429, fault("rate_limit_error")), "rate_limited"),
        (Answer(429, fault("rate_limit_error", code="enforced_spend_limit_reached")), "quota"),
        (Answer(500, fault("api_error")), "server_error"),
        (Answer(502, "<html>bad gateway</html>", content_type="text/html"), "server_error"),
        (Answer(504, fault("timeout_error")), "timeout"),
        (Answer(529, fault("overloaded_error", "Overloaded")), "provider_overloaded"),
        (Answer(400, fault("overloaded_error", "m")), "provider_overloaded"),
        (Answer(403, fault("overloaded_error", "m")), "provider_overloaded"),
        (Answer(409, fault("overloaded_error", "m")), "provider_overloaded"),
        (Answer(HANG_UP), "network"),
    ],
)
def test_anthropic(server: Server, answer: Answer, expected: str) -> None:
    assert detail_of(ask_anthropic(server, answer)) == expected


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("overloaded_error", "Overloaded", "provider_overloaded"),
        ("api_error", "Internal server error", "server_error"),
        ("rate_limit_error", "slow down", "rate_limited"),
        ("invalid_request_error", "messages: bad", "invalid_input"),
        ("authentication_error", "no", "credentials"),
    ],
)
def test_an_error_inside_a_stream_is_read_from_its_body_for_the_status_says_200(
    server: Server, kind: str, message: str, expected: str
) -> None:
    events = f"event: error\ndata: {json.dumps(fault(kind, message))}\n\n"
    error = ask_anthropic(server, Answer(200, events, content_type="text/event-stream"), stream=True)
    assert failure_of(error).status == 200
    assert detail_of(error) == expected


def test_anthropic_says_how_long_to_wait(server: Server) -> None:
    headers = {"retry-after": "17", "anthropic-ratelimit-requests-reset": "2099-01-01T00:00:00Z"}
    assert cause_of(ask_anthropic(server, Answer(429, fault("rate_limit_error"), headers))).retry_after == 17.0


def test_anthropic_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx2.Request("POST", "https://api.anthropic.com/v1/messages")
    assert detail_of(anthropic.APITimeoutError(request=request)) == "timeout"
    assert detail_of(anthropic.APIConnectionError(request=request)) == "network"
    assert detail_of(anthropic.RetryableError("again")) == "server_error"
    for name in [name for name in os.environ if name.startswith("ANTHROPIC")]:
        monkeypatch.delenv(name)
    keyless = anthropic.Anthropic(api_key=None, auth_token=None)
    error = raised_by(lambda: keyless.messages.create(model="m", max_tokens=5, messages=MESSAGES))
    assert detail_of(error) == "credentials"


def wrong(code: str | None, kind: str | None = "invalid_request_error", message: str = "m") -> dict[str, Any]:
    """An error as OpenAI sends it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


TOO_LARGE = (
    "Request too large for m in organization org-x on tokens per min (TPM): Limit 30000, Requested 31205. "
    "The input or output tokens must be reduced in order to run successfully."
)


def ask_openai(server: Server, answer: Answer, *, stream: bool = False) -> BaseException:
    with openai.OpenAI(api_key="k", base_url=f"{server.says(answer)}/v1", max_retries=0) as client:

        def call() -> None:
            made: Any = client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
            if stream:
                list(made)

        return raised_by(call)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(400, wrong(None)), "invalid_input"),
        (Answer(400, wrong("context_length_exceeded", message="maximum context length is 8192")), "context_overflow"),
        (Answer(400, wrong("context_length_exceeded")), "context_overflow"),
        (Answer(400, wrong("content_filter", None)), "refusal"),
        (Answer(400, wrong("content_policy_violation")), "refusal"),
        (Answer(400, wrong("billing_hard_limit_reached")), "quota"),
        (Answer(401, wrong("invalid_api_key", message="Incorrect API key provided: sk-x")), "credentials"),
        (Answer(403, wrong("unsupported_country_region_territory", "request_forbidden")), "authority"),
        (Answer(404, wrong("model_not_found")), "data_integrity"),
        (Answer(409, wrong(None)), "contention"),
        (Answer(413, wrong(None)), "context_overflow"),
        (Answer(429, wrong("rate_limit_exceeded", "tokens", "Rate limit reached for m")), "rate_limited"),
        (Answer(429, wrong("insufficient_quota", "insufficient_quota", "You exceeded your current quota")), "quota"),
        (Answer(429, wrong(None, None)), "rate_limited"),
        (Answer(500, wrong(None, "server_error")), "server_error"),
        (Answer(503, wrong(None, "server_error", "The engine is currently overloaded")), "provider_overloaded"),
        (Answer(503, wrong("server_is_overloaded", "service_unavailable_error")), "provider_overloaded"),
        (Answer(400, wrong("server_is_overloaded")), "provider_overloaded"),
        (Answer(400, wrong(None, None, "That model is currently overloaded.")), "provider_overloaded"),
        (Answer(429, wrong("rate_limit_exceeded", "tokens", TOO_LARGE)), "context_overflow"),
        (Answer(429, wrong("insufficient_quota", "project_spend_limit_exceeded")), "quota"),
        (Answer(503, "nothing here", content_type="text/plain"), "server_error"),
        (Answer(HANG_UP), "network"),
    ],
)
def test_openai(server: Server, answer: Answer, expected: str) -> None:
    assert detail_of(ask_openai(server, answer)) == expected


@pytest.mark.behaviour("R-5a")
def test_every_code_in_openais_and_anthropics_own_exceptions() -> None:
    """The message says nothing: since version 3 openai keeps the body out of it."""
    request = httpx2.Request("POST", "https://models.example/v1/responses")
    coded = {code: detail for detail, codes in _CODES_BY_DETAIL.items() for code in codes.split()}
    for status in (400, 429, 503):
        response = httpx2.Response(status, request=request)
        made: Any = {"response": response}
        for body in (lambda code: {"code": code, "type": None}, lambda code: {"code": None, "type": code}):
            errors = {code: openai.APIStatusError("Error", body=body(code), **made) for code in coded}
            assert {code: detail_of(error) for code, error in errors.items()} == coded
        typed = {code: anthropic.APIStatusError("Error", body=fault(code), **made) for code in coded}
        assert {code: detail_of(error) for code, error in typed.items()} == coded


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (wrong("server_is_overloaded", "service_unavailable_error"), "provider_overloaded"),
        (wrong("rate_limit_exceeded", "tokens"), "rate_limited"),
        (wrong(None, "server_error"), "server_error"),
        (wrong("context_length_exceeded"), "context_overflow"),
        (wrong(None, None), "server_error"),
    ],
)
def test_openai_in_a_stream(server: Server, body: dict[str, Any], expected: str) -> None:
    error = ask_openai(
        server, Answer(200, f"data: {json.dumps(body)}\n\n", content_type="text/event-stream"), stream=True
    )
    assert detail_of(error) == expected


def test_openai_says_how_long_to_wait(server: Server) -> None:
    headers = {"retry-after-ms": "1500", "retry-after": "2"}
    assert cause_of(ask_openai(server, Answer(429, wrong("rate_limit_exceeded"), headers))).retry_after == 1.5


def completion(reason: str, **message: Any) -> ChatCompletion:
    choice = {"index": 0, "finish_reason": reason, "logprobs": None, "message": {"role": "assistant", **message}}
    return ChatCompletion.model_validate(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    )


def test_openai_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("POST", "https://api.openai.com/v1/chat/completions")
    assert detail_of(openai.APITimeoutError(request=request)) == "timeout"
    assert detail_of(openai.APIConnectionError(request=request)) == "network"
    cut = openai.LengthFinishReasonError(completion=completion("length", content="abc"))
    assert detail_of(cut) == "token_budget"
    assert failure_of(cut).output_hash
    assert detail_of(openai.ContentFilterFinishReasonError()) == "refusal"
    for name in [name for name in os.environ if name.startswith("OPENAI")]:
        monkeypatch.delenv(name)
    assert detail_of(raised_by(lambda: openai.OpenAI(api_key=None))) == "credentials"


def test_answers_that_are_failures_without_an_exception() -> None:
    def kind(value: object) -> str | None:
        failure = find_soft_failure(value)
        return failure.error_kind if failure else None

    assert kind(completion("length", content="a")) == "token_budget"
    assert kind(completion("content_filter", content="a")) == "refusal"
    assert kind(completion("stop", content=None, refusal="I cannot")) == "refusal"
    assert kind(completion("stop", content="fine")) is None

    def message(reason: str) -> anthropic.types.Message:
        return anthropic.types.Message.model_construct(id="m", type="message", content=[], stop_reason=reason)

    assert kind(message("max_tokens")) == "token_budget"
    assert kind(message("model_context_window_exceeded")) == "context_overflow"
    assert kind(message("refusal")) == "refusal"
    assert kind(message("end_turn")) is None

    def generated(reason: str) -> genai_types.GenerateContentResponse:
        return genai_types.GenerateContentResponse.model_validate({"candidates": [{"finishReason": reason}]})

    assert kind(generated("MAX_TOKENS")) == "token_budget"
    assert kind(generated("MALFORMED_FUNCTION_CALL")) == "invalid_output"
    assert kind(generated("SAFETY")) == "refusal"
    assert kind(generated("STOP")) is None


def ask_gemini(server: Server, answer: Answer) -> BaseException:
    options = genai_types.HttpOptions(base_url=server.says(answer))
    with genai.Client(api_key="k", http_options=options) as client:
        return raised_by(lambda: client.models.generate_content(model="m", contents="hello"))


def failed(code: int, status: str, message: str = "m", *details: dict[str, Any]) -> Answer:
    return Answer(code, {"error": {"code": code, "message": message, "status": status, "details": list(details)}})


QUOTA = "You exceeded your current quota, please check your plan and billing details."


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (failed(429, "RESOURCE_EXHAUSTED", QUOTA, {"@type": "x/RetryInfo", "retryDelay": "34s"}), "rate_limited"),
        (failed(503, "UNAVAILABLE"), "server_error"),
        (failed(503, "UNAVAILABLE", "The model is overloaded. Please try again later."), "provider_overloaded"),
        (failed(500, "INTERNAL"), "server_error"),
        (failed(504, "DEADLINE_EXCEEDED"), "timeout"),
        (failed(400, "INVALID_ARGUMENT"), "invalid_input"),
        (
            failed(
                400, "INVALID_ARGUMENT", "The input token count (12) exceeds the maximum number of tokens allowed (10)."
            ),
            "context_overflow",
        ),
        (failed(400, "INVALID_ARGUMENT", "API key not valid.", {"reason": "API_KEY_INVALID"}), "credentials"),
        (failed(400, "INVALID_ARGUMENT", "API key expired.", {"reason": "API_KEY_INVALID"}), "credentials_expired"),
        (failed(403, "PERMISSION_DENIED"), "authority"),
        (failed(404, "NOT_FOUND"), "data_integrity"),
        (Answer(502, "<html>", content_type="text/html"), "server_error"),
    ],
)
def test_gemini(server: Server, answer: Answer, expected: str) -> None:
    error = ask_gemini(server, answer)
    assert isinstance(error, genai_errors.APIError)
    assert detail_of(error) == expected


def test_gemini_says_how_long_to_wait(server: Server) -> None:
    answer = failed(429, "RESOURCE_EXHAUSTED", QUOTA, {"@type": "x/RetryInfo", "retryDelay": "34.07s"})
    assert cause_of(ask_gemini(server, answer)).retry_after == 34.07


LITELLM: dict[str, Any] = {"llm_provider": "openai", "model": "m"}
GEMINI_TEXT = f'VertexAIException - {{"error": {{"message": "{QUOTA}", "status": "RESOURCE_EXHAUSTED"}}}}'


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    [
        ("RateLimitError", "slow down", "rate_limited"),
        ("RateLimitError", f"OpenAIException - {QUOTA}", "quota"),
        ("RateLimitError", GEMINI_TEXT, "rate_limited"),
        ("Timeout", "m", "timeout"),
        ("ServiceUnavailableError", "m", "server_error"),
        ("APIConnectionError", "m", "network"),
        ("ContextWindowExceededError", "m", "context_overflow"),
        ("ContentPolicyViolationError", "m", "refusal"),
        ("BadRequestError", "m", "invalid_input"),
        ("BadRequestError", "prompt is too long", "context_overflow"),
        ("UnsupportedParamsError", "m", "invalid_input"),
        ("AuthenticationError", "m", "credentials"),
        ("NotFoundError", "m", "data_integrity"),
        ("InternalServerError", "m", "server_error"),
        ("BadGatewayError", "m", "server_error"),
    ],
)
def test_litellm(name: str, message: str, expected: str) -> None:
    assert detail_of(getattr(litellm.exceptions, name)(message=message, **LITELLM)) == expected


def test_litellm_budget_and_the_address_it_makes_up() -> None:
    assert detail_of(litellm.exceptions.BudgetExceededError(2.0, 1.0)) == "token_budget"
    assert failure_of(litellm.exceptions.RateLimitError("m", **LITELLM)).host is None
