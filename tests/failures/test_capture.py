"""Exceptions become plain data, however they behave."""

import asyncio
import enum
import itertools
import json
import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.job import Failure
from redrive.errors import GiveUp, Retry
from redrive.failures.capture import (
    CHAIN_LIMIT,
    FRAMES,
    MESSAGE_LIMIT,
    TRACE_LIMIT,
    capture,
    capture_lost_lease,
    capture_timeout,
    guard_rule,
)
from redrive.failures.classify import DETAILS, classify
from redrive.failures.safe_getattr import TELLING


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


def test_a_secret_that_is_cut_with_its_text_is_removed() -> None:
    error = ValueError("no such key: -----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA\n" * 300)
    error.body = f"{'x' * 450} password='hunter22 {'y' * 3_000}'"  # type: ignore[attr-defined]
    failure = capture(error)
    assert failure.message == "no such key: [redacted]"
    assert failure.body is not None and failure.body.endswith("password=[redacted]")


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
    monkeypatch.setattr("redrive.failures.capture.time.time", lambda: at.timestamp() - 90)
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
    from redrive.flows.schedules import next_slot

    with pytest.raises(ValueError) as caught:
        next_slot("nonsense", "UTC", 0.0)
    frames = capture(caught.value).frames
    assert frames and not any(frame.startswith("redrive.engine") for frame in frames)


def test_lost_leases_and_timeouts_are_failures_too() -> None:
    assert capture_lost_lease("w1").kind == "lease_expired" and "w1" in capture_lost_lease("w1").message
    assert capture_timeout(2.5).kind == "timeout" and "2.5" in capture_timeout(2.5).message


def test_a_plain_exception_has_a_name_too() -> None:
    assert raised(Exception("odd")).error_class == "Exception"


# What answers say -----------------------------------------------------------------------------------------------------


class Answered(Exception):
    """An exception with whatever attributes."""

    def __init__(self, message: str = "failed", **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("attributes", "codes"),
    [
        ({"code": "context_length_exceeded", "type": "x_error"}, ("context_length_exceeded", "x_error")),
        ({"error_code": "ramp_limit_exceeded", "type": "x_error"}, ("ramp_limit_exceeded", "x_error")),
        ({"subtype": "error_max_turns"}, ("error_max_turns",)),
        ({"reason": "API_KEY_INVALID"}, ("API_KEY_INVALID",)),
        ({"status": "RESOURCE_EXHAUSTED", "code": 429}, ("RESOURCE_EXHAUSTED",)),
        ({"body": {"type": "error", "error": {"type": "overloaded_error"}}}, ("overloaded_error",)),
        ({"body": {"error": {"type": "a", "details": {"error_code": "b"}}}}, ("b", "a")),
        ({"body": '{"error": {"code": "from_text"}}'}, ("from_text",)),
        ({"body": {"error": "invalid_grant"}}, ("invalid_grant",)),
        ({"body": {"code": "content_filter", "innererror": {"code": "Policy"}}}, ("content_filter", "Policy")),
        ({"response": {"Error": {"Code": "ThrottlingException"}}}, ("ThrottlingException",)),
        ({"details": {"error": {"status": "INVALID", "details": [{"reason": "KEY"}]}}}, ("KEY", "INVALID")),
        ({"details": [{"error": {"status": "X"}}]}, ("X",)),
        ({"data": {"errors": [{"code": "already_exists"}]}}, ("already_exists",)),
        ({"error_details": [{"reason": "rateLimitExceeded"}]}, ("rateLimitExceeded",)),
        ({"err_code": 10071}, ("10071",)),
        ({"code": "429", "type": "error"}, ()),
        ({"code": "x" * 100, "type": 5, "body": [1], "data": "{broken"}, ()),
    ],
)  # fmt: skip
def test_codes_are_found_where_libraries_keep_them(attributes: dict[str, Any], codes: tuple[str, ...]) -> None:
    failure = raised(Answered(**attributes))
    assert failure.codes == codes
    assert failure.code == (codes[0] if codes else None)


@pytest.mark.parametrize(
    ("attributes", "status"),
    [
        ({"status_code": 503}, 503),
        ({"status": 404, "code": 500}, 404),
        ({"code": 429}, 429),
        ({"code": "429"}, 429),
        ({"http_status": 502}, 502),
        ({"api_error_status": 529}, 529),
        ({"response": {"ResponseMetadata": {"HTTPStatusCode": 400}}}, 400),
        ({"error": {"code": 408}}, 408),
        ({"status_code": 42}, None),
        ({"code": -32603}, None),
    ],
)
def test_statuses_are_found_where_libraries_keep_them(attributes: dict[str, Any], status: int | None) -> None:
    assert raised(Answered(**attributes)).status == status


def test_json_rpc_and_grpc_codes() -> None:
    class Data:
        code = -32001

    assert raised(Answered(error=Data())).rpc_code == -32001
    assert raised(Answered(code=-32603)).rpc_code == -32603
    assert raised(Answered(code=5)).rpc_code is None

    class Status(enum.Enum):
        UNAVAILABLE = 14

    assert raised(Answered(grpc_status_code=Status.UNAVAILABLE)).rpc_status == "UNAVAILABLE"
    called: list[int] = []
    assert raised(Answered(code=lambda: called.append(1))).rpc_status is None and not called


def _refused(content: bytes) -> Failure:
    request = httpx2.Request("POST", "https://api.example.org/v1/generate")
    with pytest.raises(httpx2.HTTPStatusError) as caught:
        httpx2.Response(400, content=content, request=request).raise_for_status()
    return capture(caught.value)


def test_an_answer_in_plain_text_says_something_too_and_a_page_does_not() -> None:
    said = _refused(b"This model's maximum prompt length is 8 but the request contains 9 tokens.")
    assert said.body == "This model's maximum prompt length is 8 but the request contains 9 tokens."
    assert classify(said).detail == "context_overflow"
    assert _refused(b"  <html>prompt is too long</html>").body is None
    assert _refused(b"").body is None
    assert _refused(b"\xff\xfeq" * 100_000).body == ("\ufffd\ufffdq" * 200)[:500]
    assert _refused(b'{"error": ').body == '{"error":'


def test_a_body_that_has_been_read_is_read_again_and_one_that_has_not_is_left_alone() -> None:
    request = httpx2.Request("POST", "https://user:secret@api.example.org:8443/v1/messages?key=1")
    answer = httpx2.Response(400, json={"error": {"type": "x_error", "message": "prompt is too long"}}, request=request)
    with pytest.raises(httpx2.HTTPStatusError) as caught:
        answer.raise_for_status()
    failure = capture(caught.value)
    assert (failure.codes, failure.body) == (("x_error",), "prompt is too long")
    assert (failure.host, failure.model_call) == ("api.example.org:8443", True)

    class Unread:
        status_code = 500

        @property
        def content(self) -> bytes:
            raise AssertionError("this would read from the network")

        text = content

    assert raised(Answered(response=Unread())).status == 500


@pytest.mark.parametrize(
    ("attributes", "seconds"),
    [
        ({"retry_after": timedelta(seconds=3), "wait": 9}, 3.0),
        ({"wait": 9.5}, 9.5),
        ({"wait": lambda: 5, "headers": {"Retry-After": "4"}}, 4.0),
        ({"details": {"error": {"details": [{"@type": "RetryInfo", "retryDelay": "34s"}]}}}, 34.0),
        ({"body": {"details": [{"retryDelay": "1.5s"}]}}, 1.5),
        ({"headers": {"retry-after": "2"}, "details": {"details": [{"retryDelay": "34s"}]}}, 2.0),
        ({"retry_after": float("nan"), "headers": {"retry-after": "2"}}, 2.0),
        ({"retry_after": float("inf")}, None),
        ({"response": {"ResponseMetadata": {"HTTPHeaders": {"retry-after": "11"}}}}, 11.0),
        ({"status": 429, "headers": {"X-MS-Retry-After-Ms": "400"}}, 0.4),
        ({"status": 429, "body": {"message": "You are being rate limited.", "retry_after": 0.65}}, 0.65),
        ({"status": 429, "body": {"ok": False, "parameters": {"retry_after": 35}}}, 35.0),
        ({"status": 429, "body": {"error": {"retry_after": "12"}}, "headers": {"retry-after": "3"}}, 3.0),
        ({"status": 404, "body": {"retry_after": 35}}, None),
    ],
)
def test_how_long_to_wait_is_found_in_its_order(attributes: dict[str, Any], seconds: float | None) -> None:
    assert raised(Answered(**attributes)).retry_after == seconds


def test_an_instant_is_measured_from_the_given_now() -> None:
    error = Answered(status_code=403, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000060"})
    assert capture(error, now=1_700_000_000.0).retry_after == 60.0
    limited = Answered(status_code=429, headers={"anthropic-ratelimit-tokens-reset": "2023-11-14T22:14:20Z"})
    assert capture(limited, now=1_700_000_000.0).retry_after == 60.0
    other = Answered(status_code=400, headers={"anthropic-ratelimit-tokens-reset": "2023-11-14T22:14:20Z"})
    assert capture(other, now=1_700_000_000.0).retry_after is None


# What is wrapped ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["orig", "exc", "original_exception", "reason", "original_error", "cause", "os_error"])
def test_a_wrapped_exception_is_followed(name: str) -> None:
    cause = raised(Answered(**{name: TimeoutError("inner")})).cause
    assert cause is not None and cause.types[0] == "builtins.TimeoutError"


def test_an_exception_among_the_arguments_is_followed() -> None:
    cause = raised(RuntimeError("could not", ConnectionResetError(104, "reset"))).cause
    assert cause is not None and cause.errno == 104


def test_the_sql_state_of_a_wrapped_error_is_its_own() -> None:
    class Original(Exception):
        sqlstate = "40001"

    assert raised(Answered(orig=Original())).sqlstate == "40001"
    assert raised(Answered(connection_invalidated=True)).sqlstate == "08000"


def test_a_group_keeps_one_of_each_class_so_that_the_worst_is_among_them() -> None:
    many: list[Exception] = [TimeoutError(str(n)) for n in range(40)]
    failure = raised(ExceptionGroup("many", [*many, TypeError("the worst")]))
    assert "the worst" in [member.message for member in failure.members]
    assert len(failure.members) == CHAIN_LIMIT
    assert classify(failure).detail == "bug"


def test_a_wide_and_deep_graph_is_kept_small() -> None:
    error: Exception = ValueError("leaf")
    for _ in range(6):
        error = ExceptionGroup("nest", [error, *(Answered(str(n)) for n in range(4))])
    assert _nodes(capture(error)) <= 30


def _nodes(failure: Failure) -> int:
    below = (*failure.members, *([failure.cause] if failure.cause else []))
    return 1 + sum(_nodes(each) for each in below)


# The wrong output -----------------------------------------------------------------------------------------------------


def _hash_of(text: str) -> str | None:
    try:
        json.loads(text)
    except ValueError as error:
        return capture(error).output_hash
    raise AssertionError("that was JSON")


def test_the_same_wrong_output_has_the_same_hash() -> None:
    assert _hash_of("{broken") == _hash_of("{broken") != _hash_of("{otherwise broken")
    assert raised(ValueError("no output")).output_hash is None
    one, two = (raised(Answered(raw_output=text)).output_hash for text in ("a", "b"))
    assert one and two and one != two


def test_the_hash_of_what_pydantic_was_given() -> None:
    class Order(pydantic.BaseModel):
        amount: int

    hashes = []
    for text in ("many", "many", "few"):
        with pytest.raises(pydantic.ValidationError) as caught:
            Order(amount=text)  # type: ignore[arg-type]
        hashes.append(capture(caught.value).output_hash)
    assert hashes[0] == hashes[1] != hashes[2]
    assert all(hashes)


# Where ----------------------------------------------------------------------------------------------------------------


def test_the_frames_of_the_application_are_told_apart_from_those_of_libraries() -> None:
    with pytest.raises(ValueError) as caught:
        json.loads("{")
    failure = capture(caught.value)
    assert failure.frames[0].startswith("json.")
    assert [frame.split(":")[0] for frame in failure.origin] == [__name__]
    with pytest.raises(ZeroDivisionError) as own:
        _divide()
    assert capture(own.value).origin == ()


def _divide() -> float:
    return 1 / 0


# Rules of the user ----------------------------------------------------------------------------------------------------


def test_a_guarded_rule_reports_and_does_not_know() -> None:
    told: list[tuple[str, str]] = []

    def tell(name: str, error: BaseException) -> None:
        told.append((name, type(error).__name__))

    failure = Failure(status=404)
    answers: list[Any] = [lambda _: 1 / 0, lambda _: 5, lambda _: "nonsense"]
    assert [guard_rule("mine", rule, tell)(failure) for rule in answers] == [None, None, None]
    assert told == [("mine", "ZeroDivisionError"), ("mine", "InvalidOption"), ("mine", "InvalidOption")]
    assert guard_rule("mine", lambda _: "refused", tell)(failure) == "authority"
    assert guard_rule("mine", lambda _: None, tell)(failure) is None
    assert len(told) == 3


# Whatever comes -------------------------------------------------------------------------------------------------------


class Evil:
    """Hurts whoever looks."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("not even my class")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


class Bottomless(Exception):
    def __getattr__(self, name: str) -> Any:
        return self.__getattr__(name)


class Mirror(Exception):
    """Every attribute is another exception of the same kind."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Mirror(name)


class Leaving(Exception):
    @property
    def status_code(self) -> int:
        raise SystemExit(3)


class LeavingAsText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Meta(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("no comparison")


class Unhashable(Exception, metaclass=Meta):
    __module__ = None  # type: ignore[assignment]


def _cyclic() -> dict[str, Any]:
    body: dict[str, Any] = {"error": {"type": "x"}}
    body["error"]["details"] = [body, body]
    body["errors"] = body
    return body


class Endless(dict[str, str]):
    def items(self) -> Any:
        return ((f"x-ratelimit-{n}", "1") for n in itertools.count())


ODD = [
    Evil(), _cyclic(), Endless(), {5: 6, None: Evil(), "error": Evil()}, {"error": {"code": Evil()}}, "x" * 1_000_000,
    "\ud800", b"\xff" * 100_000, "{" * 20_000, "[" * 20_000, 10**400, float("nan"), True, object(), [Evil()], {}, [],
    {"error": "\udfff"}, range(10), int, Mirror("m"), Evil,
]  # fmt: skip


HOSTILE = {
    "Bottomless": Bottomless,
    "Mirror": lambda: Mirror("m"),
    "Leaving": Leaving,
    "LeavingAsText": LeavingAsText,
    "Unhashable": lambda: Unhashable("u"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_exceptions_become_failures(name: str) -> None:
    failure = raised(HOSTILE[name]())
    assert failure.error_class == name
    assert classify(failure).detail in DETAILS
    msgspec.json.encode(failure)


@pytest.mark.parametrize("name", sorted(TELLING))
@pytest.mark.parametrize("place", range(len(ODD)))
def test_no_attribute_hurts(name: str, place: int) -> None:
    failure = capture(Answered(**{name: ODD[place]}))
    assert failure.error_class == "Answered"
    assert len(msgspec.json.encode(failure)) < 20_000
    assert classify(failure).detail in DETAILS


class Odd(int):
    """Stands for an entry of ODD: the real one would hurt those who generate examples."""


def _real(value: Any) -> Any:
    if isinstance(value, Odd):
        return ODD[value]
    if isinstance(value, dict):
        return {name: _real(inner) for name, inner in value.items()}
    return [_real(inner) for inner in value] if isinstance(value, list) else value


KEYS = st.sampled_from(["error", "code", "type", "details", "message", "status", "reason", "errors", "retryDelay"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
VALUES = st.recursive(
    PLAIN | st.integers(0, len(ODD) - 1).map(Odd),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(TELLING)), VALUES, max_size=6), st.text(max_size=50))
def test_whatever_an_exception_carries_it_becomes_a_failure(attributes: dict[str, Any], message: str) -> None:
    failure = capture(Answered(message, **_real(attributes)), now=1e9)
    encoded = msgspec.json.encode(failure)
    assert len(encoded) < 40_000
    assert msgspec.json.decode(encoded, type=Failure) == failure
    assert failure.retry_after is None or 0 <= failure.retry_after < 1e9
    assert failure.error_class == "Answered"
    assert classify(failure).detail in DETAILS


def test_a_signals_own_words_are_no_code() -> None:
    failure = capture(GiveUp("order 17 is closed", recommendation="Reopen it."))
    assert (failure.codes, failure.code, failure.recommendation) == ((), None, "Reopen it.")


def test_a_traceback_keeps_the_source_lines_of_the_application() -> None:
    with pytest.raises(ValueError) as caught:
        json.loads("{")
    failure = capture(caught.value)
    assert len(failure.source) == len(failure.frames)
    assert failure.source[0] is None, "the innermost frame is the library's"
    assert failure.source[-1] == 'json.loads("{")'


def test_a_traceback_keeps_the_chain_of_causes() -> None:
    with pytest.raises(RuntimeError) as caught:
        _wrapped_division()
    failure = capture(caught.value)
    assert failure.cause is not None
    assert failure.source[0] == 'raise RuntimeError("no quotient") from error'
    assert failure.cause.source[0] == "return 1 / 0"


def _wrapped_division() -> float:
    try:
        return _divide()
    except ZeroDivisionError as error:
        raise RuntimeError("no quotient") from error


def test_a_secret_in_a_source_line_is_masked() -> None:
    with pytest.raises(ValueError) as caught:
        raise ValueError("sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGhIj")
    assert "AbCdEfGhIjKl" not in msgspec.json.encode(capture(caught.value)).decode()


def test_a_traceback_is_bounded_and_keeps_the_application_s_own_frames() -> None:
    with pytest.raises(RecursionError) as caught:
        _endless(0)
    failure = capture(caught.value)
    assert len(failure.frames) <= FRAMES
    texts = [*failure.frames, *(line for line in failure.source if line)]
    assert sum(map(len, texts)) <= TRACE_LIMIT
    deep = capture(_raised_in_a_deep_library())
    assert len(deep.frames) == FRAMES
    assert any(line is not None for line in deep.source), "the frame that called the library is kept"


def _endless(number: int) -> int:
    return _endless(number + 1) + 1


def _raised_in_a_deep_library() -> BaseException:
    """An exception from below eighty frames of a library."""
    code = compile("def go(n):\n    return go(n - 1) if n else 1 / 0\n", json.__file__, "exec")
    space: dict[str, object] = {"__name__": "json"}
    exec(code, space)
    try:
        space["go"](80)  # type: ignore[operator]
    except ZeroDivisionError as error:
        return error
    raise AssertionError("it divides by zero")


def test_source_that_cannot_be_read_is_empty() -> None:
    space: dict[str, object] = {"__name__": "made_up"}
    exec(compile("def fail():\n    raise KeyError('x')\n", "/nowhere/made_up.py", "exec"), space)
    with pytest.raises(KeyError) as caught:
        space["fail"]()  # type: ignore[operator]
    failure = capture(caught.value)
    assert (failure.frames[0], failure.source[0]) == ("made_up:fail:2", "")
