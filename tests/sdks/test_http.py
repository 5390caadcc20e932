"""httpx, httpx2, aiohttp, requests, urllib3, botocore, PyGithub: clients that speak HTTP, against a real server."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp
import botocore.exceptions
import github
import httpx
import httpx2
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

from redrive.core.effects import proves_absent
from tests.sdks.answers import HANG_UP, Answer, Server
from tests.sdks.judging import cause_of, detail_of, failure_of, raised_by, raised_in

STATUSES = [
    (400, "invalid_input"),
    (401, "credentials"),
    (402, "quota"),
    (403, "authority"),
    (404, "data_integrity"),
    (408, "timeout"),
    (409, "contention"),
    (410, "data_integrity"),
    (413, "invalid_input"),
    (418, "invalid_input"),
    (422, "invalid_input"),
    (425, "server_error"),
    (429, "rate_limited"),
    (500, "server_error"),
    (503, "server_error"),
    (504, "timeout"),
    (529, "provider_overloaded"),
]
NOBODY = "http://127.0.0.1:1/"
TWINS = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


@TWINS
@pytest.mark.parametrize(("status", "expected"), STATUSES)
def test_httpx_statuses(server: Server, library: Any, status: int, expected: str) -> None:
    url = server.says(Answer(status, {"message": "m"}))
    assert detail_of(raised_by(lambda: library.get(url).raise_for_status())) == expected


@TWINS
def test_httpx(server: Server, library: Any) -> None:
    assert detail_of(raised_by(lambda: library.get(NOBODY))) == "network"
    assert detail_of(raised_by(lambda: library.get("ftp://somewhere/"))) == "invalid_input"
    assert detail_of(raised_by(lambda: library.get("http://[::bad"))) == "invalid_input"
    hung_up = server.says(Answer(HANG_UP))
    assert detail_of(raised_by(lambda: library.get(hung_up))) == "network"
    for name in ("ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"):
        assert detail_of(getattr(library, name)("m")) == "timeout"
    for name in ("ReadError", "WriteError", "CloseError", "ProxyError", "RemoteProtocolError", "DecodingError"):
        assert detail_of(getattr(library, name)("m")) == "network"
    assert detail_of(library.LocalProtocolError("m")) == "invalid_input"


@TWINS
def test_a_large_prompt_sent_by_hand_is_an_overflow(server: Server, library: Any) -> None:
    url = f"{server.says(Answer(413, {'message': 'm'}))}/v1/messages"
    assert detail_of(raised_by(lambda: library.post(url).raise_for_status())) == "context_overflow"
    long = f"{server.says(Answer(400, {'error': {'message': 'prompt is too long'}}))}/anything"
    assert detail_of(raised_by(lambda: library.post(long).raise_for_status())) == "context_overflow"


@TWINS
def test_what_was_never_sent_did_not_happen(server: Server, library: Any) -> None:
    assert proves_absent(failure_of(raised_by(lambda: library.get(NOBODY))))
    hung_up = server.says(Answer(HANG_UP))
    assert not proves_absent(failure_of(raised_by(lambda: library.get(hung_up))))


async def fetch(url: str) -> Any:
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url) as answer:
        return await answer.json()


@pytest.mark.parametrize(("status", "expected"), STATUSES)
async def test_aiohttp_statuses(server: Server, status: int, expected: str) -> None:
    url = server.says(Answer(status, {"message": "m"}, {"Retry-After": "7"} if status == 429 else {}))
    cause = cause_of(await raised_in(fetch(url)))
    assert (cause.detail, cause.retry_after) == (expected, 7.0 if status == 429 else None)


async def test_aiohttp(server: Server) -> None:
    assert detail_of(await raised_in(fetch(NOBODY))) == "network"
    assert detail_of(await raised_in(fetch("nowhere"))) == "invalid_input"
    assert detail_of(await raised_in(fetch("ftp://somewhere"))) == "invalid_input"
    assert detail_of(await raised_in(fetch(server.says(Answer(HANG_UP))))) == "network"
    assert (
        detail_of(await raised_in(fetch(server.says(Answer(200, "<p>", content_type="text/html"))))) == "server_error"
    )
    assert detail_of(aiohttp.ServerTimeoutError("m")) == "timeout"
    assert detail_of(aiohttp.ConnectionTimeoutError("m")) == "timeout"
    assert detail_of(aiohttp.ClientPayloadError("m")) == "network"
    refused: Any = type("Key", (), {"host": "h", "port": 443, "ssl": True, "is_ssl": True})()
    bad = aiohttp.ClientConnectorCertificateError(refused, ssl.SSLCertVerificationError(1, "verify failed"))
    assert detail_of(bad) == "authority"
    assert detail_of(aiohttp.ClientConnectorSSLError(refused, ssl.SSLError(1, "handshake"))) == "network"


async def test_reading_an_aiohttp_error_warns_nobody(server: Server, recwarn: pytest.WarningsRecorder) -> None:
    error = await raised_in(fetch(server.says(Answer(404, {}))))
    recwarn.clear()
    assert detail_of(error) == "data_integrity"
    assert not recwarn.list


@pytest.mark.parametrize(("status", "expected"), STATUSES)
def test_requests_statuses(server: Server, status: int, expected: str) -> None:
    url = server.says(Answer(status, {"message": "m"}))
    assert detail_of(raised_by(lambda: requests.get(url, timeout=5).raise_for_status())) == expected


def retried(url: str, status: int) -> None:
    with requests.Session() as session:
        retry = urllib3.Retry(1, status_forcelist=[status], backoff_factor=0, respect_retry_after_header=False)
        session.mount("http://", HTTPAdapter(max_retries=retry))
        session.get(url, timeout=5)


def test_requests_and_urllib3(server: Server) -> None:
    refused = raised_by(lambda: requests.get(NOBODY, timeout=5))
    assert detail_of(refused) == "network"
    assert detail_of(raised_by(lambda: requests.get("nowhere", timeout=5))) == "invalid_input"
    assert detail_of(raised_by(lambda: requests.get("foo://x", timeout=5))) == "invalid_input"
    hung_up = server.says(Answer(HANG_UP))
    assert detail_of(raised_by(lambda: requests.get(hung_up, timeout=5))) == "network"
    plain = server.says(Answer(200, {})).replace("http:", "https:")
    assert detail_of(raised_by(lambda: requests.get(plain, timeout=5))) == "authority"
    busy = server.says(Answer(503, {}))
    assert detail_of(raised_by(lambda: retried(busy, 503))) == "server_error"
    limited = server.says(Answer(429, {}))
    assert detail_of(raised_by(lambda: retried(limited, 429))) == "rate_limited"
    with urllib3.PoolManager() as pool:
        assert detail_of(raised_by(lambda: pool.request("GET", NOBODY, retries=1))) == "network"
    for name in ("ReadTimeout", "ConnectTimeout", "Timeout"):
        assert detail_of(getattr(requests.exceptions, name)("m")) == "timeout"
    assert detail_of(requests.exceptions.ChunkedEncodingError("m")) == "network"
    not_json = server.says(Answer(200, "<p>", content_type="text/html"))
    assert detail_of(raised_by(lambda: requests.get(not_json, timeout=5).json())) == "unknown", "no model was asked"


def from_aws(code: str, status: int, message: str = "m") -> botocore.exceptions.ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "Converse")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (from_aws("ThrottlingException", 429), "rate_limited"),
        (from_aws("Throttling", 400), "rate_limited"),
        (from_aws("TooManyRequestsException", 429), "rate_limited"),
        (from_aws("RequestLimitExceeded", 503), "rate_limited"),
        (from_aws("ProvisionedThroughputExceededException", 400), "rate_limited"),
        (from_aws("ServiceUnavailableException", 503), "server_error"),
        (from_aws("ModelNotReadyException", 429), "server_error"),
        (from_aws("ModelTimeoutException", 408), "timeout"),
        (from_aws("InternalServerException", 500), "server_error"),
        (from_aws("ValidationException", 400), "invalid_input"),
        (from_aws("ValidationException", 400, "Input is too long for requested model."), "context_overflow"),
        (from_aws("ServiceQuotaExceededException", 400), "quota"),
        (from_aws("AccessDeniedException", 403), "authority"),
        (from_aws("ExpiredTokenException", 403), "credentials_expired"),
        (from_aws("UnrecognizedClientException", 403), "credentials"),
        (from_aws("ResourceNotFoundException", 404), "data_integrity"),
        (from_aws("SomethingNew", 400), "invalid_input"),
        (from_aws("SomethingNew", 500), "server_error"),
        (botocore.exceptions.NoCredentialsError(), "credentials"),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"), "network"),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"), "timeout"),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url="http://x"), "timeout"),
        (botocore.exceptions.ConnectionClosedError(endpoint_url="http://x"), "network"),
        (botocore.exceptions.SSLError(endpoint_url="http://x", error="e"), "authority"),
        (botocore.exceptions.ParamValidationError(report="r"), "invalid_input"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_botocore(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


def ask_github(server: Server, answer: Answer) -> BaseException:
    with github.Github(base_url=server.says(answer), retry=None, seconds_between_requests=0) as client:
        return raised_by(lambda: client.get_repo("a/b"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(401, {"message": "Bad credentials"}), "credentials"),
        (Answer(403, {"message": "API rate limit exceeded for user ID 1."}), "rate_limited"),
        (Answer(403, {"message": "m"}, {"X-RateLimit-Remaining": "0"}), "rate_limited"),
        (Answer(403, {"message": "You have exceeded a secondary rate limit."}, {"Retry-After": "60"}), "rate_limited"),
        (Answer(403, {"message": "Resource not accessible by integration"}), "authority"),
        (Answer(404, {"message": "Not Found"}), "data_integrity"),
        (Answer(409, {"message": "Git Repository is empty."}), "contention"),
        (Answer(422, {"message": "Validation Failed", "errors": [{"code": "already_exists"}]}), "invalid_input"),
        (Answer(502, {"message": "Server Error"}), "server_error"),
    ],
)
def test_pygithub(server: Server, answer: Answer, expected: str) -> None:
    error = ask_github(server, answer)
    assert isinstance(error, github.GithubException)
    assert detail_of(error) == expected


def test_github_says_how_long_to_wait(server: Server) -> None:
    answer = Answer(403, {"message": "You have exceeded a secondary rate limit."}, {"Retry-After": "60"})
    assert cause_of(ask_github(server, answer)).retry_after == 60.0
