"""Exceptions become plain data, however they behave."""

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import msgspec
import pytest

from redrive.core.job import Failure
from redrive.errors import GiveUp, Retry
from redrive.runtime.capture import CHAIN_LIMIT, FRAMES, MESSAGE_LIMIT, capture, lost, timed_out


def raised(error: BaseException) -> Failure:
    try:
        raise error
    except BaseException as caught:
        return capture(caught)


def test_a_real_exception() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        failure = capture(error)
    assert failure.types == ("builtins.KeyError", "builtins.LookupError")
    assert failure.message == "'missing'"
    assert failure.kind == "exception"
    assert failure.frames[0].split(":")[:2] == [__name__, "test_a_real_exception"]


def test_an_os_error_keeps_its_number() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        os.stat("/no/such/file")
    assert (capture(caught.value).errno, capture(caught.value).types[0]) == (2, "builtins.FileNotFoundError")


def test_a_chain_is_followed_by_cause_then_context() -> None:
    def fail() -> None:
        try:
            raise ValueError("first")
        except ValueError as first:
            raise RuntimeError("second") from first

    def fail_by_accident() -> None:
        try:
            raise ValueError("first")
        except ValueError:
            {}["second"]

    def fail_and_hide() -> None:
        try:
            raise ValueError("first")
        except ValueError:
            raise RuntimeError("second") from None

    causes = []
    for make in (fail, fail_by_accident, fail_and_hide):
        with pytest.raises((RuntimeError, KeyError)) as caught:
            make()
        causes.append(capture(caught.value).cause)
    assert [cause.message if cause else None for cause in causes] == ["first", "first", None]


def test_an_endless_chain_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    failure: Failure | None = capture(first)
    depth = 0
    while failure is not None:
        failure, depth = failure.cause, depth + 1
    assert depth <= CHAIN_LIMIT + 1


def test_a_group_keeps_some_members() -> None:
    group = ExceptionGroup("many", [ValueError(str(n)) for n in range(50)])
    failure = raised(group)
    assert [member.message for member in failure.members] == [str(n) for n in range(CHAIN_LIMIT)]


def test_a_group_in_a_group_in_a_group_ends() -> None:
    error: Exception = ValueError("leaf")
    for _ in range(100):
        error = ExceptionGroup("nest", [error] * 3)
    assert len(msgspec.json.encode(capture(error))) < 1_000_000


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    def __repr__(self) -> str:
        raise RuntimeError("nor this")

    @property
    def status_code(self) -> int:
        raise OSError("not even that")

    @property
    def response(self) -> Any:
        raise ValueError("nothing")

    @property
    def headers(self) -> Any:
        raise ValueError("nothing")


def test_a_hostile_exception_still_has_a_name() -> None:
    failure = raised(Hostile())
    assert failure.error_class == "Hostile"
    assert "Hostile" in failure.message


def test_odd_attributes_are_ignored() -> None:
    error: Any = ValueError("odd")
    error.status_code, error.code, error.headers, error.retry_after = True, object(), "text", "soon"
    failure = raised(error)
    assert (failure.status, failure.code, failure.headers, failure.retry_after) == (None, None, {}, None)
    error.status_code = 99999
    assert raised(error).status is None


def test_a_message_is_bounded_and_is_text() -> None:
    assert len(raised(ValueError("x" * 100_000)).message) <= MESSAGE_LIMIT
    json.loads(msgspec.json.encode(raised(ValueError("broken \ud800 text"))))


def test_deep_recursion_is_captured() -> None:
    def dig() -> None:
        dig()

    with pytest.raises(RecursionError) as caught:
        dig()
    failure = capture(caught.value)
    assert failure.error_class == "RecursionError" and len(failure.frames) <= FRAMES


SECRETS = [
    "Authorization: Bearer abcdef0123456789abcdef",
    "key " + "sk-" + "test-0123456789abcdef0123",
    "https://user:hunter2hunter2@host/path",
    "password=hunter2hunter2",
    '{"api_key": "k-1234567890abcdef"}',
    "gh" + "p_0123456789abcdef0123456789abcdef0123",
    "jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc-DEF_123",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_removed(text: str) -> None:
    failure = raised(ValueError(f"could not call: {text}"))
    assert failure.message.startswith("could not call")
    assert "[redacted]" in failure.message
    for secret in (
        "abcdef0123456789",
        "abcdef012345678",
        "hunter2hunter2",
        "k-1234567890abcdef",
        "0123456789abcdef0",
        "eyJzdWIi",
    ):
        assert secret not in failure.message


def test_secrets_are_removed_from_causes_and_headers() -> None:
    error: Any = RuntimeError("outer")
    error.__cause__ = ValueError("password=hunter2hunter2")
    error.headers = {"Set-Cookie": "session=hunter2", "X-Request-Id": "r1", "Authorization": "Bearer hunter2hunter2"}
    failure = raised(error)
    assert failure.headers == {"x-request-id": "r1"}
    assert b"hunter2" not in msgspec.json.encode(failure)


# What libraries say --------------------------------------------------------------------------------------------------


def _answered(status: int, **headers: str) -> Failure:
    request = httpx2.Request("GET", "http://localhost/")
    response = httpx2.Response(status, headers=headers, request=request)
    with pytest.raises(httpx2.HTTPStatusError) as caught:
        response.raise_for_status()
    return capture(caught.value)


def test_a_status_and_headers_are_found_on_the_response() -> None:
    failure = _answered(429, **{"Retry-After": "7", "X-RateLimit-Remaining": "0", "Set-Cookie": "a=b"})
    assert failure.status == 429
    assert failure.retry_after == 7.0
    assert failure.headers == {"retry-after": "7", "x-ratelimit-remaining": "0"}
    assert failure.types[0] == "httpx.HTTPStatusError"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "120"}, 120.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_in_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert _answered(503, **headers).retry_after == seconds


def test_retry_after_as_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime

    at = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
    monkeypatch.setattr("redrive.runtime.capture.time.time", lambda: at.timestamp() - 90)
    assert _answered(503, **{"retry-after": format_datetime(at, usegmt=True)}).retry_after == 90.0
    past = at.replace(year=2020)
    assert _answered(503, **{"retry-after": format_datetime(past, usegmt=True)}).retry_after == 0.0


@pytest.mark.parametrize(("said", "seconds"), [(5, 5.0), (timedelta(minutes=1), 60.0), (-1, 0.0), (True, None)])
def test_retry_after_as_an_attribute(said: Any, seconds: float | None) -> None:
    error: Any = RuntimeError("busy")
    error.retry_after = said
    assert raised(error).retry_after == seconds


def test_signals_say_what_they_are() -> None:
    assert (raised(Retry(after=5)).kind, raised(Retry(after=5)).retry_after) == ("signal", 5)
    assert raised(GiveUp("no", recommendation="ask")).recommendation == "ask"


def test_sqlite_says_its_code() -> None:
    with pytest.raises(sqlite3.OperationalError) as caught, closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("SELECT * FROM nothing")
    assert capture(caught.value).sqlstate == "SQLITE_ERROR"


async def test_an_async_timeout() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
    assert capture(caught.value).types[0] == "builtins.TimeoutError"


def test_the_frames_of_the_runtime_itself_are_left_out() -> None:
    from redrive.runtime.scheduler import next_slot

    with pytest.raises(ValueError) as caught:
        next_slot("nonsense", "UTC", 0.0)
    frames = capture(caught.value).frames
    assert frames and not any(frame.startswith("redrive.runtime") for frame in frames)


def test_lost_leases_and_timeouts_are_failures_too() -> None:
    assert lost("w1").kind == "lease_expired" and "w1" in lost("w1").message
    assert timed_out(2.5).kind == "timeout" and "2.5" in timed_out(2.5).message
