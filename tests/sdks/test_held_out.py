"""Further instances of what the libraries raise: other classes, statuses, bodies and words than the tables' own tests.

What each must mean was written down from the tables before the classifier was asked. The cases pair libraries with the
odd things that happen to them: codes without a status, a code in a place of its own, an error wrapped in another.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ftplib
import imaplib
import json
import smtplib
import socket
import sqlite3
import ssl
import urllib.error
import urllib.request
import warnings
from email.message import Message
from typing import Any

import aiohttp
import anthropic
import apsw
import botocore.eventstream
import botocore.exceptions
import botocore.parsers
import github
import google.auth.exceptions as google_auth
import grpc
import grpc.aio
import httpx
import httpx2
import jwt
import langgraph.errors
import litellm.exceptions as litellm_errors
import mcp.shared.exceptions
import nats.errors
import nats.js.errors
import openai
import psycopg
import psycopg.errors
import pydantic
import pydantic.v1
import pytest
import redis.exceptions
import requests
import s3transfer.exceptions
import sqlalchemy.exc
import sqlalchemy.orm.exc
import urllib3.exceptions
import websockets.exceptions
from agents import exceptions as agents_errors
from google.genai import errors as genai_errors
from pydantic_ai import exceptions as ai

from redrive.core.job import Cause
from tests.sdks.answers import Answer, Server
from tests.sdks.judging import cause_of, detail_of, failure_of, raised_by, raised_in

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # it misses an optional part of gRPC
    import google.api_core.exceptions as google_errors

Case = tuple[BaseException, str]
MESSAGES: Any = [{"role": "user", "content": "hello"}]
HTML = "<html><body>sorry</body></html>"


def named(case: object) -> str:
    return f"{type(case).__name__}" if isinstance(case, BaseException) else str(case)


def each(*cases: Case) -> Any:
    return pytest.mark.parametrize(("error", "expected"), cases, ids=named)


# ---- Anthropic


def anthropic_says(server: Server, answer: Answer, *, stream: bool = False) -> BaseException:
    with anthropic.Anthropic(api_key="k", base_url=server.says(answer), max_retries=0) as client:

        def call() -> None:
            made: Any = client.messages.create(model="m", max_tokens=5, messages=MESSAGES, stream=stream)
            if stream:
                list(made)

        return raised_by(call)


def fault(kind: str, message: str = "m") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(400, fault("invalid_request_error", "messages.1: all messages must have content")), "invalid_input"),
        (
            Answer(400, fault("invalid_request_error", "max_tokens: 99999 > 8192, which is the maximum allowed")),
            "invalid_input",
        ),
        (
            Answer(400, fault("invalid_request_error", "You have reached your specified API usage limits.")),
            "quota",
        ),
        (
            Answer(429, fault("rate_limit_error", "Number of input tokens has exceeded your per-minute rate limit")),
            "rate_limited",
        ),
        (Answer(403, fault("permission_error", "OAuth token has been revoked")), "authority"),
        (Answer(401, fault("authentication_error", "OAuth authentication is not supported")), "credentials"),
        (Answer(404, HTML, content_type="text/html"), "data_integrity"),
        (Answer(500, fault("api_error", "Overloaded")), "provider_overloaded"),
        (Answer(503, HTML, content_type="text/html"), "server_error"),
        (Answer(520, HTML, content_type="text/html"), "server_error"),
        (Answer(529, HTML, content_type="text/html"), "provider_overloaded"),
        (Answer(425, HTML, content_type="text/html"), "server_error"),
        (Answer(410, fault("not_found_error", "this model was retired")), "data_integrity"),
        (Answer(400, fault("invalid_request_error"), {"x-should-retry": "true"}), "asked_to_retry"),
        (Answer(500, HTML, {"x-should-retry": "false"}, "text/html"), "dependency_gone"),
    ],
)
def test_anthropic(server: Server, answer: Answer, expected: str) -> None:
    assert detail_of(anthropic_says(server, answer)) == expected


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("timeout_error", "Request timed out", "timeout"),
        ("permission_error", "not yours", "authority"),
        ("billing_error", "pay first", "quota"),
        ("not_found_error", "model: m", "data_integrity"),
        ("request_too_large", "Request exceeds the maximum size", "context_overflow"),
        ("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", "context_overflow"),
        ("invalid_request_error", "Your credit balance is too low", "quota"),
        ("api_error", "Overloaded", "provider_overloaded"),
        ("api_error", "Output blocked by content filtering policy", "refusal"),
        ("something_new", "never seen", "server_error"),
    ],
)
def test_anthropic_inside_a_stream(server: Server, kind: str, message: str, expected: str) -> None:
    events = f"event: error\ndata: {json.dumps(fault(kind, message))}\n\n"
    error = anthropic_says(server, Answer(200, events, content_type="text/event-stream"), stream=True)
    assert detail_of(error) == expected


def test_anthropic_by_class_alone() -> None:
    """What a proxy left of the answer says nothing; the class that the SDK chose does."""
    page = httpx2.Response(429, text=HTML, request=httpx2.Request("POST", "https://api.anthropic.com/v1/messages"))
    assert detail_of(anthropic.EnforcedSpendLimitReachedError("m", response=page, body=None)) == "quota"
    assert detail_of(anthropic.RampLimitExceededError("m", response=page, body=None)) == "rate_limited"


# ---- OpenAI, also as Azure serves it


def openai_says(server: Server, answer: Answer) -> BaseException:
    with openai.OpenAI(api_key="k", base_url=f"{server.says(answer)}/v1", max_retries=0) as client:
        return raised_by(lambda: client.responses.create(model="m", input="hello"))


def wrong(code: str | None, kind: str | None = "invalid_request_error", message: str = "m", **more: Any) -> Any:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


AZURE_LIMIT = "Requests to the ChatCompletions_Create Operation have exceeded token rate limit. Retry after 6 seconds."
FILTERED = {"innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            Answer(400, wrong(None, message="Your input exceeds the context window of this model.")),
            "context_overflow",
        ),
        (Answer(400, wrong("string_above_max_length", message="string too long")), "context_overflow"),
        (Answer(400, wrong("unsupported_parameter", message="'max_tokens' is not supported")), "invalid_input"),
        (Answer(400, wrong("invalid_value", message="max_tokens is too large: 100000")), "invalid_input"),
        (Answer(400, wrong("content_filter", None, "filtered", **FILTERED)), "refusal"),
        (Answer(400, wrong(None, None, "filtered", **FILTERED)), "refusal"),
        (Answer(401, wrong("PermissionDenied", message="Principal does not have access")), "authority"),
        (Answer(401, wrong("invalid_organization")), "credentials"),
        (Answer(401, wrong("token_expired", message="The token is expired.")), "credentials_expired"),
        (Answer(403, wrong("model_not_found", message="no access to model")), "data_integrity"),
        (Answer(404, wrong("DeploymentNotFound")), "data_integrity"),
        (Answer(408, wrong(None)), "timeout"),
        (Answer(429, wrong("429", None, AZURE_LIMIT)), "rate_limited"),
        (Answer(429, wrong("billing_not_active", "billing_not_active")), "quota"),
        (Answer(429, wrong("rate_limit_exceeded", "requests", "Limit: 3 / min. Add a payment method")), "rate_limited"),
        (Answer(429, wrong(None, "insufficient_quota")), "quota"),
        (Answer(503, wrong("slow_down", "service_unavailable_error")), "rate_limited"),
        (Answer(503, wrong("server_is_overloaded", "service_unavailable_error")), "provider_overloaded"),
        (Answer(504, HTML, content_type="text/html"), "timeout"),
        (Answer(500, wrong(None, None, None)), "server_error"),
        (Answer(530, "error code: 1033", content_type="text/plain"), "server_error"),
        (
            Answer(
                413, wrong("rate_limit_exceeded", "tokens", "Request too large for m, please reduce your message size")
            ),
            "context_overflow",
        ),
        (Answer(400, wrong("1261", message="Prompt exceeds max length")), "context_overflow"),
        (Answer(400, wrong(None, message="Your request exceeded model token limit: 262144")), "context_overflow"),
        (
            Answer(422, {"error": "`inputs` must have less than 1024 tokens. Given: 2000", "error_type": "validation"}),
            "context_overflow",
        ),
        (
            Answer(400, wrong(None, "image_generation_user_error", "rejected as a result of our safety system")),
            "refusal",
        ),
        (Answer(429, wrong(None, None, "Your account is not active, please check your billing details")), "quota"),
        (Answer(422, {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "required"}]}), "invalid_input"),
    ],
)
def test_openai(server: Server, answer: Answer, expected: str) -> None:
    assert detail_of(openai_says(server, answer)) == expected


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "6m0s"}, None),
        ({"retry-after": "4.5"}, 4.5),
        ({"retry-after": "-3"}, 0.0),
    ],
)
def test_how_long_openai_asks_to_wait(server: Server, headers: dict[str, str], wait: float | None) -> None:
    assert cause_of(openai_says(server, Answer(429, wrong("rate_limit_exceeded"), headers))).retry_after == wait


@pytest.mark.parametrize(
    ("words", "wait"),
    [
        ("Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 28000. Please try again in 6.4s.", 6.4),
        ("Rate limit reached for m on requests per day (RPD): Limit 200. Please try again in 7m12s.", 432.0),
        ("Rate limit reached. Please try again in 90ms.", 0.09),
        (AZURE_LIMIT, 6.0),
    ],
)
def test_how_long_a_limit_asks_to_wait_in_words(server: Server, words: str, wait: float) -> None:
    body = wrong("rate_limit_exceeded", "tokens", words)
    assert cause_of(openai_says(server, Answer(429, body))).retry_after == wait
    url = server.says(Answer(429, body))
    assert cause_of(raised_by(lambda: httpx.get(url).raise_for_status())).retry_after == wait


# ---- Gemini, LiteLLM


def gemini(code: int, status: str, message: str = "m", *details: dict[str, Any]) -> BaseException:
    body = {"error": {"code": code, "message": message, "status": status, "details": list(details)}}
    kind = genai_errors.ServerError if code >= 500 else genai_errors.ClientError
    return kind(code, body)


def info(reason: str) -> dict[str, str]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}


PER_DAY = {"@type": "x/QuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}]}


@each(
    (gemini(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).", PER_DAY), "rate_limited"),
    (gemini(401, "UNAUTHENTICATED", "Request had invalid credentials.", info("ACCESS_TOKEN_EXPIRED")),
     "credentials_expired"),
    (gemini(403, "PERMISSION_DENIED", "disabled", info("SERVICE_DISABLED")), "authority"),
    (gemini(400, "FAILED_PRECONDITION", "User location is not supported for the API use."), "invalid_input"),
    (gemini(500, "INTERNAL", "An internal error has occurred."), "server_error"),
    (gemini(503, "UNAVAILABLE", "The service is currently unavailable."), "server_error"),
    (gemini(400, "INVALID_ARGUMENT", "The input token count exceeds the maximum number of tokens allowed 1048576."),
     "context_overflow"),
    (gemini(400, "INVALID_ARGUMENT", "the input token count is 1500000 but model only supports up to 1048576"),
     "context_overflow"),
    (gemini(400, "INVALID_ARGUMENT", "API Key not found. Please pass a valid API key."), "credentials"),
    (google_auth.RefreshError("invalid_grant: Token has been expired or revoked."), "credentials_expired"),
    (google_auth.RefreshError("token endpoint is down", retryable=True), "asked_to_retry"),
    (google_auth.DefaultCredentialsError("Your default credentials were not found."), "credentials"),
    (google_auth.TransportError("Connection aborted"), "network"),
    (google_errors.Forbidden("m", errors=[{"reason": "rateLimitExceeded"}]), "rate_limited"),
    (google_errors.Forbidden("m", errors=[{"reason": "quotaExceeded"}]), "quota"),
)  # fmt: skip
def test_google(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


BY: dict[str, Any] = {"llm_provider": "anthropic", "model": "m"}


def answered(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("POST", "https://x/v1/messages"))


@each(
    (litellm_errors.BadRequestError("AnthropicException - prompt is too long: 9 > 8 maximum", **BY),
     "context_overflow"),
    (litellm_errors.BadRequestError("AnthropicException - Your credit balance is too low", **BY), "quota"),
    (litellm_errors.APIError(529, "AnthropicException - Overloaded", **BY), "provider_overloaded"),
    (litellm_errors.APIError(500, "m", **BY), "server_error"),
    (litellm_errors.PermissionDeniedError("m", response=answered(403), **BY), "authority"),
    (litellm_errors.UnprocessableEntityError("m", response=answered(422), **BY), "invalid_input"),
    (litellm_errors.ImageFetchError("no such image", **BY), "invalid_input"),
    (litellm_errors.MidStreamFallbackError("m", original_exception=litellm_errors.RateLimitError("slow", **BY), **BY),
     "rate_limited"),
    (litellm_errors.MidStreamFallbackError("m", **BY), "server_error"),
    (litellm_errors.JSONSchemaValidationError("m", "anthropic", "{]", "{}"), "invalid_output"),
    (litellm_errors.PaymentRequiredError("m", "m", "openrouter"), "quota"),
    (litellm_errors.AuthenticationError("OAuth token has expired", **BY), "credentials_expired"),
)  # fmt: skip
def test_litellm(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


# ---- HTTP clients


GOOGLE_LIMIT = {"error": {"code": 403, "errors": [{"reason": "rateLimitExceeded", "domain": "usageLimits"}]}}
GOOGLE_QUOTA = {"error": {"code": 403, "errors": [{"reason": "quotaExceeded", "domain": "youtube.quota"}]}}
NO_GRANT = {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(400, NO_GRANT), "credentials_expired"),
        (Answer(400, {"error": "invalid_client"}), "credentials"),
        (Answer(403, GOOGLE_LIMIT), "rate_limited"),
        (Answer(403, GOOGLE_QUOTA), "quota"),
        (Answer(403, {}, {"Retry-After": "5"}), "rate_limited"),
        (Answer(403, {"message": "m"}, {"X-RateLimit-Remaining": "41"}), "authority"),
        (Answer(451, HTML, content_type="text/html"), "authority"),
        (Answer(302, "", {"Location": "/elsewhere"}), "invalid_input"),
        (Answer(599, HTML, content_type="text/html"), "server_error"),
        (Answer(422, {"errors": [{"code": "length", "field": "title"}]}), "invalid_input"),
        (Answer(400, {"type": "server_error", "message": "bad field"}), "server_error"),
        (Answer(429, {"error": {"code": "insufficient_quota"}}), "quota"),
        (Answer(429, {"message": "Monthly usage limit reached"}), "quota"),
        (
            Answer(403, [{"errorCode": "REQUEST_LIMIT_EXCEEDED", "message": "TotalRequests Limit exceeded."}]),
            "rate_limited",
        ),
    ],
)
def test_httpx(server: Server, library: Any, answer: Answer, expected: str) -> None:
    url = server.says(answer)
    assert detail_of(raised_by(lambda: library.get(url).raise_for_status())) == expected


def test_httpx_without_an_answer() -> None:
    untrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    refused = httpx.ConnectError(str(untrusted))
    refused.__cause__ = untrusted
    assert detail_of(refused) == "authority"
    assert detail_of(httpx.ConnectError("[Errno -2] Name or service not known")) == "network"
    assert detail_of(httpx.ProxyError("407 Proxy Authentication Required")) == "network"
    assert detail_of(httpx.TooManyRedirects("m")) == "invalid_input"
    assert detail_of(httpx.ResponseNotRead()) == "bug"


def urllib_error(status: int, reason: str, headers: dict[str, str] | None = None) -> BaseException:
    sent = Message()
    for name, value in (headers or {}).items():
        sent[name] = value
    return urllib.error.HTTPError("https://x/in", status, reason, sent, None)


@each(
    (urllib_error(429, "Too Many Requests", {"Retry-After": "3"}), "rate_limited"),
    (urllib_error(401, "Unauthorized"), "credentials"),
    (urllib_error(403, "Forbidden", {"Retry-After": "3"}), "rate_limited"),
    (urllib_error(404, "Not Found"), "data_integrity"),
    (urllib_error(413, "Request Entity Too Large"), "invalid_input"),
    (urllib_error(503, "Service Unavailable"), "server_error"),
    (urllib_error(504, "Gateway Time-out"), "timeout"),
    (urllib.error.URLError(socket.gaierror(-2, "Name or service not known")), "network"),
    (urllib.error.URLError(ssl.SSLCertVerificationError(1, "certificate verify failed")), "authority"),
    (urllib.error.URLError(TimeoutError("timed out")), "timeout"),
    (requests.exceptions.ProxyError("m"), "network"),
    (requests.exceptions.InvalidProxyURL("m"), "invalid_input"),
    (requests.exceptions.TooManyRedirects("m"), "invalid_input"),
    (requests.exceptions.InvalidHeader("m"), "invalid_input"),
    (requests.exceptions.ContentDecodingError("m"), "network"),
    (urllib3.exceptions.ReadTimeoutError(None, "/", "Read timed out."), "timeout"),  # type: ignore[arg-type]
    (urllib3.exceptions.MaxRetryError(None, "/", urllib3.exceptions.SSLError("bad certificate")),  # type: ignore[arg-type]
     "authority"),
    (urllib3.exceptions.IncompleteRead(5, 10), "network"),
    (urllib3.exceptions.LocationParseError("nowhere"), "invalid_input"),
)  # fmt: skip
def test_urllib_and_requests(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


KEY: Any = type("Key", (), {"host": "h", "port": 443, "ssl": True, "is_ssl": True})()
PROXY_INFO: Any = aiohttp.RequestInfo(url=None, method="CONNECT", headers=None, real_url=None)  # type: ignore[arg-type]


@each(
    (aiohttp.ServerDisconnectedError(), "network"),
    (aiohttp.ClientOSError(104, "Connection reset by peer"), "network"),
    (aiohttp.ClientConnectorDNSError(KEY, OSError(None, "Name or service not known")), "network"),
    (aiohttp.ClientConnectionResetError("Cannot write to closing transport"), "network"),
    (aiohttp.SocketTimeoutError("m"), "timeout"),
    (aiohttp.WSServerHandshakeError(PROXY_INFO, (), status=429, message="m", headers={"Retry-After": "8"}),  # type: ignore[arg-type]
     "rate_limited"),
    (aiohttp.ClientHttpProxyError(PROXY_INFO, (), status=407, message="m"), "credentials"),
    (aiohttp.InvalidUrlRedirectClientError("nowhere"), "invalid_input"),
)  # fmt: skip
def test_aiohttp(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"GARBAGE\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_an_answer_that_is_no_http_is_no_400() -> None:
    async with await asyncio.start_server(garbage, "127.0.0.1", 0) as serving:
        port = serving.sockets[0].getsockname()[1]
        error = await raised_in(post(f"http://127.0.0.1:{port}/"))
    assert isinstance(error, aiohttp.ClientResponseError) and error.status == 400
    assert detail_of(error) == "network"


async def post(url: str) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.post(url) as answer:
        await answer.read()


def test_an_answer_in_plain_text(server: Server) -> None:
    said = "This model's maximum prompt length is 131072 but the request contains 537812 tokens."
    url = server.says(Answer(400, said, content_type="text/plain"))
    assert detail_of(raised_by(lambda: requests.post(url, timeout=5).raise_for_status())) == "context_overflow"
    assert detail_of(raised_by(lambda: httpx.post(url).raise_for_status())) == "context_overflow"


async def test_a_large_prompt_sent_by_hand(server: Server) -> None:
    url = f"{server.says(Answer(413, {}))}/v1/chat/completions"
    assert detail_of(await raised_in(post(url))) == "context_overflow"
    assert detail_of(raised_by(lambda: requests.post(url, timeout=5).raise_for_status())) == "context_overflow"
    assert detail_of(raised_by(lambda: urllib.request.urlopen(url, b"{}", 5).close())) == "context_overflow"


# ---- AWS


def aws(code: str, status: int | None, message: str = "m", operation: str = "Converse", **headers: str) -> Any:
    metadata = {"HTTPHeaders": headers} | ({"HTTPStatusCode": status} if status else {})
    answer: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}
    return botocore.exceptions.ClientError(answer, operation)


def in_stream(code: str, message: str) -> BaseException:
    """As Bedrock breaks off a stream: a code, and no status at all."""
    return botocore.exceptions.EventStreamError({"Error": {"Code": code, "Message": message}}, "ConverseStream")


WAIT = "Too many tokens, please wait before trying again."


@each(
    (aws("ThrottlingException", 429, WAIT), "rate_limited"),
    (aws("ThrottlingException", None, WAIT), "rate_limited"),
    (in_stream("throttlingException", WAIT), "rate_limited"),
    (in_stream("validationException", "Input is too long for requested model."), "context_overflow"),
    (in_stream("modelStreamErrorException", "m"), "server_error"),
    (in_stream("serviceUnavailableException", "m"), "server_error"),
    (in_stream("internalServerException", "m"), "server_error"),
    (aws("ValidationException", 400, "The model returned the following errors: input length and `max_tokens` exceed "
         "context limit: 199999 + 8192 > 200000"), "context_overflow"),
    (aws("ValidationException", 400, "Too many input tokens. Max input tokens: 42000"), "context_overflow"),
    (aws("ValidationException", 400, "Malformed input request: #/messages: expected array"), "invalid_input"),
    (aws("SlowDown", 503, operation="PutObject"), "rate_limited"),
    (aws("ExpiredToken", 400, "The provided token has expired."), "credentials_expired"),
    (aws("InvalidSignatureException", 403), "credentials"),
    (aws("AccessDenied", 403), "authority"),
    (aws("UnauthorizedOperation", 403), "authority"),
    (aws("NoSuchBucket", 404), "data_integrity"),
    (aws("InternalError", 500), "server_error"),
    (aws("ModelErrorException", 424), "server_error"),
    (aws("RequestTimeout", 400), "timeout"),
    (aws("ConditionalCheckFailedException", 400), "contention"),
    (aws("ServiceQuotaExceeded", 402), "quota"),
    (aws("413", 413, "Request Entity Too Large", "InvokeModel"), "context_overflow"),
    (aws("413", 413, "Request Entity Too Large", "PutItem"), "invalid_input"),
    (botocore.exceptions.EndpointConnectionError(endpoint_url="https://x"), "network"),
    (botocore.exceptions.ProxyConnectionError(proxy_url="https://x", error="e"), "network"),
    (botocore.exceptions.UnauthorizedSSOTokenError(), "credentials_expired"),
    (botocore.exceptions.PartialCredentialsError(provider="p", cred_var="c"), "credentials"),
    (botocore.exceptions.NoRegionError(), "invalid_input"),
    (botocore.parsers.ResponseParserError("Unable to parse response, invalid XML received"), "server_error"),
    (botocore.eventstream.ChecksumMismatch(1, 2), "network"),  # type: ignore[no-untyped-call]
    (s3transfer.exceptions.RetriesExceededError(ConnectionResetError(104, "reset")), "network"),  # type: ignore[no-untyped-call]
)  # fmt: skip
def test_botocore(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


def test_aws_says_how_long_to_wait() -> None:
    assert cause_of(aws("ThrottlingException", 429, WAIT, **{"retry-after": "12"})).retry_after == 12.0


# ---- GitHub


@each(
    (github.GithubException(403, {"message": "You have triggered an abuse detection mechanism."}, {}), "rate_limited"),
    (github.GithubException(403, {"message": "Resource protected by organization SAML enforcement."}, {}),
     "authority"),
    (github.GithubException(429, {"message": "m"}, {}), "rate_limited"),
    (github.GithubException(500, None, {}), "server_error"),
    (github.GithubException(422, {"message": "Reference already exists"}, {}), "invalid_input"),
    (github.RateLimitExceededException(403, {"message": "m"}, {}), "rate_limited"),
    (github.BadCredentialsException(401, {"message": "Bad credentials"}, {}), "credentials"),
    (github.TwoFactorException(401, {"message": "otp"}, {}), "credentials"),
    (github.BadAttributeException("x", str, None), "data_integrity"),
)  # fmt: skip
def test_pygithub(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


def test_githubs_reset_is_an_instant() -> None:
    from redrive.failures.capture import capture
    from redrive.failures.classify import classify

    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000090"}
    error = github.RateLimitExceededException(403, {"message": "API rate limit exceeded"}, headers)
    assert classify(capture(error, now=1_800_000_000.0)).retry_after == 90.0


# ---- databases and messaging


def in_sqlite(*statements: str) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)


def in_apsw(statement: str) -> None:
    apsw.Connection(":memory:").execute(statement)


@each(
    (redis.exceptions.TryAgainError("m"), "contention"),
    (redis.exceptions.WatchError("m"), "contention"),
    (redis.exceptions.MasterDownError("m"), "server_error"),
    (redis.exceptions.MaxConnectionsError("m"), "contention"),
    (redis.exceptions.AuthenticationWrongNumberOfArgsError("m"), "credentials"),
    (redis.exceptions.LockNotOwnedError("m"), "contention"),
    (redis.exceptions.ResponseError("WRONGTYPE Operation against a key"), "invalid_input"),
    (redis.exceptions.DataError("m"), "invalid_input"),
    (redis.exceptions.ResponseError("BUSY Redis is busy running a script."), "contention"),
    (redis.exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "contention"),
    (raised_by(lambda: in_apsw("SELECT * FROM nothing")), "bug"),
    (raised_by(lambda: apsw.Connection("/nowhere/at/all")), "dependency_gone"),
    (raised_by(lambda: in_sqlite("CREATE TABLE t (a)", "INSERT INTO t (b) VALUES (1)")), "bug"),
    (raised_by(lambda: in_sqlite("COMMIT")), "bug"),
    (sqlalchemy.exc.OperationalError("SELECT", {}, Exception("(2006, 'MySQL server has gone away')")), "network"),
    (sqlalchemy.exc.OperationalError("SELECT", {}, Exception("(1040, 'Too many connections')")), "contention"),
    (sqlalchemy.orm.exc.DetachedInstanceError("m"), "bug"),
    (psycopg.errors.CannotConnectNow("m"), "server_error"),
    (psycopg.errors.DiskFull("m"), "contention"),
    (psycopg.errors.ReadOnlySqlTransaction("m"), "contention"),
    (psycopg.errors.InvalidAuthorizationSpecification("m"), "credentials"),
    (psycopg.errors.NotNullViolation("m"), "invalid_input"),
    (psycopg.errors.DivisionByZero("m"), "invalid_input"),
    (psycopg.errors.UndefinedFunction("m"), "invalid_input"),
    (psycopg.errors.ProtocolViolation("m"), "network"),
    (psycopg.errors.InternalError_("m"), "server_error"),
    (psycopg.errors.ConnectionTimeout("connection timeout expired"), "timeout"),
    (psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly"), "network"),
    (psycopg.OperationalError('connection failed: FATAL:  password authentication failed for user "x"'),
     "credentials"),
    (psycopg.InterfaceError("the connection is closed"), "network"),
    (sqlalchemy.exc.TimeoutError("QueuePool limit of size 5 overflow 10 reached"), "timeout"),
    (sqlalchemy.exc.IntegrityError("INSERT", {}, Exception("m")), "invalid_input"),
    (sqlalchemy.exc.OperationalError("SELECT", {}, psycopg.OperationalError("connection refused")), "network"),
    (sqlalchemy.exc.NoResultFound("m"), "data_integrity"),
    (sqlalchemy.orm.exc.StaleDataError("m"), "contention"),
    (sqlalchemy.exc.CompileError("m"), "bug"),
    (nats.errors.FlushTimeoutError(), "timeout"),
    (nats.errors.StaleConnectionError(), "network"),
    (nats.errors.UnexpectedEOF(), "network"),
    (nats.errors.NoRespondersError(), "server_error"),
    (nats.errors.BadSubjectError(), "invalid_input"),
    (nats.js.errors.FetchTimeoutError(), "timeout"),
    (nats.js.errors.ServerError(code=500, err_code=10000), "server_error"),
    (nats.js.errors.BucketNotFoundError(), "data_integrity"),
)  # fmt: skip
def test_stores(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


def rpc(status: grpc.StatusCode, words: str = "m") -> BaseException:
    metadata: Any = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(status, metadata, metadata, words)


@each(
    (rpc(grpc.StatusCode.FAILED_PRECONDITION), "invalid_input"),
    (rpc(grpc.StatusCode.UNIMPLEMENTED), "invalid_input"),
    (rpc(grpc.StatusCode.ALREADY_EXISTS), "data_integrity"),
    (rpc(grpc.StatusCode.OUT_OF_RANGE), "invalid_input"),
    (rpc(grpc.StatusCode.DATA_LOSS), "data_integrity"),
    (rpc(grpc.StatusCode.UNAUTHENTICATED, "token expired"), "credentials_expired"),
    (rpc(grpc.StatusCode.INVALID_ARGUMENT, "prompt is too long"), "context_overflow"),
)
def test_grpc(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


# ---- agent frameworks


def http(status: int, body: Any = None, **more: Any) -> BaseException:
    return ai.ModelHTTPError(status, "m", body, **more)


class Answered(pydantic.BaseModel):
    ok: bool


class OldAnswered(pydantic.v1.BaseModel):
    ok: bool


@each(
    (http(413), "context_overflow"),
    (http(529, {"error": {"type": "overloaded_error"}}), "provider_overloaded"),
    (http(400, {"error": {"message": "This model's maximum context length is 8 tokens"}}), "context_overflow"),
    (http(401, {"error": {"message": "The token has expired"}}), "credentials_expired"),
    (http(429, {"error": {"message": "You exceeded your current quota"}}), "quota"),
    (http(503, "upstream connect error"), "server_error"),
    (ai.ModelAPIError("m", "Connection error."), "network"),
    (ai.UnexpectedModelBehavior("Exceeded maximum output retries (1)"), "invalid_output"),
    (ai.UsageLimitExceeded("The next request would exceed the request_limit of 50"), "token_budget"),
    (ai.ModelRetry("wrong city"), "invalid_output"),
    (ai.FallbackExceptionGroup("all failed", [http(529), http(503)]), "provider_overloaded"),
    (agents_errors.MCPToolCancellationError("m"), "network"),
    (agents_errors.ModelBehaviorError("Tool x not found in agent y"), "invalid_output"),
    (langgraph.errors.UnknownInterruptError("m", reason="not_pending"), "invalid_input"),
    (mcp.shared.exceptions.MCPError(-32000, "Connection closed"), "network"),
    (mcp.shared.exceptions.MCPError(-32002, "Resource not found"), "data_integrity"),
    (mcp.shared.exceptions.MCPError(-32050, "server busy"), "server_error"),
    (raised_by(lambda: Answered.model_validate({"ok": "perhaps"})), "unknown"),
    (raised_by(lambda: OldAnswered(ok="perhaps")), "unknown"),
    (jwt.DecodeError("Not enough segments"), "credentials"),
    (jwt.ExpiredSignatureError("Signature has expired"), "credentials_expired"),
    (websockets.exceptions.InvalidMessage("did not receive a valid HTTP response"), "network"),
)
def test_frameworks(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


# ---- wrapped, grouped, chained


def chained(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


def while_handling(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__context__ = inner
    return outer


def limited(wait: str = "9") -> BaseException:
    request = httpx2.Request("POST", "https://api.anthropic.com/v1/messages")
    response = httpx2.Response(429, headers={"retry-after": wait}, request=request)
    return anthropic.RateLimitError("slow down", response=response, body=fault("rate_limit_error"))


@each(
    (chained(RuntimeError("could not answer"), limited()), "rate_limited"),
    (while_handling(KeyError("answer"), httpx.ReadTimeout("m")), "timeout"),
    (chained(TypeError("m"), limited()), "bug"),
    (chained(ValueError("no JSON"), json.JSONDecodeError("m", "{]", 0)), "unknown"),
    (chained(limited(), json.JSONDecodeError("m", "{]", 0)), "rate_limited"),
    (while_handling(json.JSONDecodeError("m", "{]", 0), limited()), "invalid_output"),
    (ExceptionGroup("two", [limited(), TypeError("m")]), "bug"),
    (ExceptionGroup("two", [limited("3"), httpx.ReadTimeout("m")]), "rate_limited"),
    (ExceptionGroup("nested", [ExceptionGroup("one", [aws("AccessDenied", 403)]), limited()]), "authority"),
    (chained(RuntimeError("m"), ExceptionGroup("one", [limited()])), "rate_limited"),
    (smtplib.SMTPServerDisconnected("Connection unexpectedly closed"), "network"),
    (smtplib.SMTPAuthenticationError(535, b"bad"), "credentials"),
    (smtplib.SMTPDataError(451, b"4.3.0 try again"), "server_error"),
    (smtplib.SMTPDataError(554, b"5.7.1 spam"), "invalid_input"),
    (smtplib.SMTPSenderRefused(421, b"too busy", "a@b.c"), "server_error"),
    (smtplib.SMTPRecipientsRefused({"a@b.c": (550, b"no such user")}), "invalid_input"),
    (smtplib.SMTPRecipientsRefused({"a@b.c": (550, b"no"), "d@e.f": (450, b"greylisted")}), "server_error"),
    (ftplib.error_temp("421 Too many connections"), "server_error"),
    (ftplib.error_perm("530 Login incorrect."), "credentials"),
    (ftplib.error_perm("550 No such file"), "invalid_input"),
    (imaplib.IMAP4.abort("socket error: EOF"), "network"),
    (imaplib.IMAP4.error(b"[AUTHENTICATIONFAILED] Invalid credentials (Failure)"), "credentials"),
    (concurrent.futures.BrokenExecutor("m"), "server_error"),
    (ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed"), "network"),
    (asyncio.IncompleteReadError(b"", 5), "network"),
    (OSError(28, "No space left on device"), "contention"),
    (ValueError("nobody knows this one"), "unknown"),
)
def test_wrapped(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


def test_the_wait_of_what_was_wrapped_counts() -> None:
    def wait(error: BaseException) -> float | None:
        cause: Cause = cause_of(error)
        return cause.retry_after

    assert wait(chained(RuntimeError("could not answer"), limited())) == 9.0
    assert wait(ExceptionGroup("two", [limited("3"), limited("8")])) == 8.0


def test_no_secret_of_a_client_is_kept(server: Server) -> None:
    """Keys stand in messages and addresses; what is kept of a failure is shown to people."""
    told = "Incorrect API key provided: sk-proj-abcdefghijklmnopqrstuvwxyz123456."
    failure = failure_of(openai_says(server, Answer(401, wrong("invalid_api_key", message=told))))
    assert "abcdefghijklmnop" not in str(failure)
    url = f"{server.says(Answer(500, {}))}/in?api_key=abcdefghijklmnopqrstuvwxyz".replace(
        "http://", "http://u:s3cretpw@"
    )
    failure = failure_of(raised_by(lambda: httpx.get(url).raise_for_status()))
    assert "s3cretpw" not in str(failure) and "abcdefghijklmnop" not in str(failure)
