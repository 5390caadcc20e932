"""A delivery says truthfully how it went, tells nobody its secrets, and cannot be hurt by what comes back."""

import asyncio
import base64
import contextlib
import gzip
import hashlib
import hmac
import json
import logging
import math
import re
import subprocess
import sys
import traceback
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from redrive.errors import InvalidPayload
from redrive.failures.capture import capture
from redrive.failures.classify import classify
from redrive.http.delivery import TASK, DeliveryError, DeliveryPolicy, check_request, deliver, judge_status
from redrive.http.request import Secrets
from tests.certificates import CA_CERTIFICATE, hashed_folder, resolve_to_loopback, server_context, write
from tests.receiver import Seen, answer, receiving

LOCAL = DeliveryPolicy(allow=("127.0.0.0/8",), credentials=("*",), timeout=10.0)
NAMED = DeliveryPolicy(credentials=("A", "B", "TOKEN", "_SECRET2"))
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "sk-canary-7d1f0c55"


async def send(
    url: str,
    *,
    key: str | None = "k1",
    policy: DeliveryPolicy = LOCAL,
    environ: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    payload = {"method": "POST", "url": url, **more}
    check_request(payload, policy)
    return await deliver(
        payload, idempotency_key=key, traceparent=TRACEPARENT, policy=policy, environ={} if environ is None else environ
    )


# What arrives -------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-59", "000-61", "000-72", "C42")
async def test_the_whole_request_arrives() -> None:
    async with receiving(answer("201 Created", b'{"id":7}', content_type="application/json")) as receiver:
        result = await send(
            receiver.url("/feedback?source=a%20b"),
            method="put",
            json={"vote": "down", "é": [1, None]},
            headers={"X-Team": "blue"},
        )
    [seen] = receiver.requests
    assert (seen.method, seen.path) == ("PUT", "/feedback?source=a%20b")
    assert json.loads(seen.body) == {"vote": "down", "é": [1, None]}
    assert seen.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["x-team"] == "blue"
    assert seen.headers["idempotency-key"] == "k1"
    assert seen.headers["traceparent"] == TRACEPARENT
    assert seen.headers["user-agent"].startswith("redrive/")
    assert result["status"] == 201
    assert result["body"] == '{"id":7}'
    assert result["truncated"] is False
    assert result["headers"]["content-type"] == "application/json"
    assert TASK == "redrive.http"


async def test_text_is_sent_as_text() -> None:
    async with receiving(answer()) as receiver:
        await send(receiver.url(), body="größe", headers={"Content-Type": "text/csv"})
        await send(receiver.url(), body="größe")
        await send(receiver.url(), method="GET")
    assert [seen.body.decode() for seen in receiver.requests] == ["größe", "größe", ""]
    assert [seen.headers.get("content-type") for seen in receiver.requests] == [
        "text/csv",
        "text/plain; charset=utf-8",
        None,
    ]


async def test_what_the_caller_sets_wins() -> None:
    own = {"Idempotency-Key": "mine", "Traceparent": "theirs", "User-Agent": "me/1", "content-TYPE": "application/x"}
    async with receiving(answer()) as receiver:
        await send(receiver.url(), headers=own, json={})
    [seen] = receiver.requests
    assert [seen.headers[name.lower()] for name in own] == list(own.values())


async def test_without_key_and_trace_there_are_no_such_headers() -> None:
    async with receiving(answer()) as receiver:
        await deliver({"url": receiver.url()}, idempotency_key=None, traceparent="no\r\nway", policy=LOCAL)
    assert not {"idempotency-key", "traceparent"} & receiver.requests[0].headers.keys()


@pytest.mark.parametrize(
    ("key", "sent"),
    [("feedback_1", "feedback_1"), ("a b%", "a b%"), ("é\r\nX: y", "%C3%A9%0D%0AX%3A%20y"), (" a", "%20a")],
)
async def test_any_key_becomes_one_safe_header(key: str, sent: str) -> None:
    async with receiving(answer()) as receiver:
        await send(receiver.url(), key=key)
    assert receiver.requests[0].headers["idempotency-key"] == sent
    assert "x" not in receiver.requests[0].headers


# What the answer means ----------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-9")
def test_the_rule_for_every_status() -> None:
    by_rule: dict[str, list[int]] = {"ok": [], "retry": [], "permanent": []}
    for status in range(100, 1000):
        by_rule[judge_status(status)].append(status)
    assert by_rule["ok"] == list(range(200, 300))
    assert by_rule["retry"] == [408, 425, 429, *range(500, 600)]


@pytest.mark.behaviour("000-9", "C43")
@pytest.mark.parametrize("status", [200, 201, 202, 203, 204, 206, 207, 226, 299])
async def test_any_2xx_is_success(status: int) -> None:
    async with receiving(answer(f"{status} Fine")) as receiver:
        assert (await send(receiver.url()))["status"] == status


@pytest.mark.behaviour("000-9")
@pytest.mark.parametrize(
    ("status", "kind", "category"),
    [
        *((status, None, "transient") for status in (408, 425, 429, 500, 501, 502, 503, 504, 529, 599)),
        *((status, "delivery_rejected", "permanent") for status in (300, 301, 302, 303, 304, 307, 308)),
        *((status, "delivery_rejected", "permanent") for status in (405, 409, 418, 451, 499)),
        *((status, None, "permanent") for status in (400, 401, 402, 403, 404, 410, 413, 422)),
    ],
)
async def test_other_answers_are_failures_with_their_kind(status: int, kind: str | None, category: str) -> None:
    async with receiving(answer(f"{status} No", b"because")) as receiver:
        with pytest.raises(DeliveryError) as failed:
            await send(receiver.url("/secret/path?token=x"))
    error = failed.value
    assert (error.status_code, error.error_kind) == (status, kind)
    assert classify(capture(error)).category == category
    assert f"was answered {status}" in str(error)
    assert "secret" not in str(error), "paths and queries may be secrets"
    assert error.body == (None if status == 304 else "because")
    assert receiver.connections == 1


async def test_retry_after_and_rate_limits_are_visible_and_cookies_are_not() -> None:
    slow = answer(
        "429 Slow down",
        retry_after="7",
        x_ratelimit_remaining="0",
        anthropic_ratelimit_tokens_reset="2026-01-01T00:00:00Z",
        x_request_id="r-1",
        set_cookie="session=1",
        location="http://127.0.0.1/?token=1",
        www_authenticate="Bearer",
    )
    async with receiving(slow) as receiver:
        with pytest.raises(DeliveryError) as failed:
            await send(receiver.url())
    assert failed.value.headers == {
        "retry-after": "7",
        "x-ratelimit-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:00Z",
        "x-request-id": "r-1",
        "content-length": "0",
    }


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("https://new.example/x?token=1", "a redirect to https://new.example. redrive does not follow redirects"),
        ("{same}/elsewhere", "a redirect to another path. redrive does not follow redirects"),
        ("/elsewhere", "a redirect. redrive does not follow redirects"),
        ("http://127.1/", "a redirect. redrive does not follow redirects"),
    ],
)
async def test_redirects_are_not_followed(location: str, says: str) -> None:
    async def redirect(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("307 Temporary Redirect", location=location.format(same=receiver.url("").rstrip("/"))))

    async with receiving(redirect) as receiver:
        with pytest.raises(DeliveryError) as failed:
            await send(receiver.url())
    assert says in str(failed.value)
    assert "token" not in str(failed.value)
    assert failed.value.error_kind == "delivery_rejected"
    assert receiver.connections == 1


@pytest.mark.behaviour("000-9")
async def test_no_connection_is_a_connection_error() -> None:
    async with receiving(answer()) as receiver:
        url = receiver.url()
    with pytest.raises(httpx2.ConnectError, match=f"http://127.0.0.1:{receiver.port}"):
        await send(url)


async def test_a_connection_that_breaks_before_the_answer_is_a_protocol_error() -> None:
    async def hang_up(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with receiving(hang_up) as receiver:
        with pytest.raises(httpx2.RemoteProtocolError):
            await send(receiver.url())


# Time ---------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-91")
async def test_a_silent_receiver_is_left_when_the_time_is_up() -> None:
    async with receiving(_silent) as receiver:
        async with asyncio.timeout(8):
            with pytest.raises(httpx2.ReadTimeout, match=r"did not answer within 0\.2 s"):
                await send(receiver.url(), timeout=0.2)
    assert len(receiver.requests) == 1


async def test_a_head_that_drips_does_not_stretch_the_time() -> None:
    async def drip(seen: Seen, writer: asyncio.StreamWriter) -> None:
        for byte in answer("200 OK", server="x" * 1000):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)

    async with receiving(drip) as receiver:
        async with asyncio.timeout(8):
            with pytest.raises(httpx2.ReadTimeout):
                await send(receiver.url(), timeout=0.2)


async def test_a_body_that_drips_after_200_is_a_success_cut_short() -> None:
    async def drip(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegun")
        await writer.drain()
        await asyncio.sleep(60)

    async with receiving(drip) as receiver:
        async with asyncio.timeout(8):
            result = await send(receiver.url(), timeout=0.2)
    assert (result["status"], result["body"], result["truncated"]) == (200, "begun", True)


async def test_a_tls_handshake_that_hangs_proves_that_nothing_was_sent() -> None:
    async with receiving(answer()) as receiver:  # it speaks no TLS and waits for the rest of a request
        with pytest.raises(httpx2.ConnectTimeout):
            await send(receiver.url(scheme="https"), timeout=0.2)
        async with asyncio.timeout(8):
            await receiver.left.wait()  # the connection was closed, not forgotten
    assert receiver.requests == []


async def test_a_cancelled_delivery_stops() -> None:
    arrived = asyncio.Event()

    async def hold(seen: Seen, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await _silent(seen, writer)

    async with receiving(hold) as receiver:
        task = asyncio.create_task(send(receiver.url()))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_delivery_cancelled_during_the_tls_handshake_closes_its_connection() -> None:
    heard, left = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        heard.set()
        await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server, asyncio.timeout(8):
        task = asyncio.create_task(send(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await left.wait()


async def _silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


# Bodies that want to hurt -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate", "gzip, gzip", "identity"])
async def test_a_bomb_is_cut_after_decoding(coding: str) -> None:
    size = 200_000_000 if coding != "identity" else 5_000_000
    bomb = _bomb(coding, size)
    async with receiving(answer("200 OK", bomb, content_encoding=coding)) as receiver:
        await send(receiver.url())  # loads what is loaded once
        tracemalloc.start()
        try:
            result = await send(receiver.url(), policy=msgspec.structs.replace(LOCAL, max_response=1000))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert result["body"] == "a" * 1000
    assert result["truncated"] is True
    assert peak < 8_000_000, f"{len(bomb)} bytes of {coding} took {peak} bytes of memory"


def _bomb(coding: str, size: int) -> bytes:
    if coding == "identity":
        return b"a" * size
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | (16 if coding.startswith("gzip") else 0))
    block = b"a" * 1_000_000
    packed = b"".join(packer.compress(block) for _ in range(size // len(block))) + packer.flush()
    return gzip.compress(packed) if coding == "gzip, gzip" else packed


@pytest.mark.parametrize(
    ("content", "headers", "body", "truncated"),
    [
        (b"", {}, None, False),
        (b"\x00\x01binary", {}, None, False),
        (b"\xff\xfe\xfd", {"content_type": "image/png"}, None, False),
        ("größe".encode(), {}, "größe", False),
        ("größe".encode("latin-1"), {"content_type": "text/plain; charset=ISO-8859-1"}, "größe", False),
        (b"+AGE-", {"content_type": "text/plain; charset=utf-7"}, "+AGE-", False),
        (b"abc", {"content_type": "text/plain; charset=punycode"}, "abc", False),
        (b"abc", {"content_type": "text/plain; charset=no-such"}, "abc", False),
        (gzip.compress(b"packed", mtime=0), {"content_encoding": "gzip"}, "packed", False),
        (b"not gzip", {"content_encoding": "gzip"}, None, True),
        (b"x", {"content_encoding": "gzip, " * 9 + "gzip"}, None, True),
        (b"x" * 32, {}, "x" * 32, False),
        (b"x" * 33, {}, "x" * 32, True),
        (b"x" * 31 + "é".encode(), {}, "x" * 31, True),
        (b"x" * 29 + "😀".encode(), {}, "x" * 29, True),
    ],
)
async def test_what_is_kept_of_a_body(
    content: bytes, headers: dict[str, str], body: str | None, truncated: bool
) -> None:
    async with receiving(answer("200 OK", content, **headers)) as receiver:
        result = await send(receiver.url(), policy=msgspec.structs.replace(LOCAL, max_response=32))
    assert (result["body"], result["truncated"]) == (body, truncated)


async def test_a_body_that_breaks_off_does_not_undo_a_success() -> None:
    async with receiving(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf") as receiver:
        result = await send(receiver.url())
    assert (result["status"], result["body"], result["truncated"]) == (200, "half", True)


async def test_the_excerpt_of_a_failure_is_short() -> None:
    async with receiving(answer("500 Oops", b"x" * 5000)) as receiver:
        with pytest.raises(DeliveryError) as failed:
            await send(receiver.url())
    assert failed.value.body == "x" * 500


async def test_a_head_without_end_is_refused() -> None:
    async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(4000):
            writer.write(b"X-Filler: " + b"x" * 1000 + b"\r\n")
            await writer.drain()

    async with receiving(endless) as receiver:
        with pytest.raises(httpx2.RemoteProtocolError):
            await send(receiver.url())


# Secrets ------------------------------------------------------------------------------------------------------------


async def test_credentials_are_read_when_sending() -> None:
    environ = {"HOOK_TOKEN": f"Bearer {SECRET}\n", "API_KEY": "key-1234"}
    async with receiving(answer()) as receiver:
        await send(receiver.url(), auth="env:HOOK_TOKEN", headers={"X-Api-Key": "env:API_KEY"}, environ=environ)
    assert receiver.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert receiver.requests[0].headers["x-api-key"] == "key-1234"


async def test_the_environment_is_the_process_s_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_TEST_TOKEN", SECRET)
    async with receiving(answer()) as receiver:
        payload = {"url": receiver.url(), "auth": "env:REDRIVE_TEST_TOKEN"}
        await deliver(payload, idempotency_key=None, traceparent=None, policy=LOCAL)
    assert receiver.requests[0].headers["authorization"] == SECRET


@pytest.mark.parametrize("value", [None, "", "  ", f"{SECRET}\r\nX: y", f"{SECRET}é", f"{SECRET}\x00"])
async def test_credentials_that_cannot_be_used_name_the_variable_only(value: str | None) -> None:
    environ = {} if value is None else {"HOOK_TOKEN": value}
    async with receiving(answer()) as receiver:
        with pytest.raises(DeliveryError, match="HOOK_TOKEN") as failed:
            await send(receiver.url(), auth="env:HOOK_TOKEN", environ=environ)
    assert failed.value.error_kind == "credentials"
    assert SECRET not in _everything(failed.value)
    assert receiver.connections == 0


@pytest.mark.parametrize("status", ["401 No", "500 No", "302 No", "200 OK"])
async def test_a_secret_that_the_receiver_echoes_is_taken_out(status: str, caplog: pytest.LogCaptureFixture) -> None:
    value = 'Bearer sk/"canary"/7d1f0c55'
    bare = value.removeprefix("Bearer ")

    async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
        text = f"{seen.headers['authorization']} {bare} {json.dumps(bare)} sk%2F%22canary%22%2F7d1f0c55 "
        writer.write(answer(status, text.encode() * 3, x_request_id=bare, location=f"http://x.example/?t={bare}"))

    caplog.set_level(logging.DEBUG)
    async with receiving(echo) as receiver:
        told = await _outcome(receiver.url(), auth="env:T", environ={"T": value})
    assert "[redacted]" in told
    assert "canary" not in told + caplog.text


async def test_basic_credentials_are_taken_out_decoded_too() -> None:
    value = "Basic " + base64.b64encode(b"user:pa55word").decode()
    async with receiving(answer("403 No", b"user:pa55word / pa55word is wrong")) as receiver:
        told = await _outcome(receiver.url(), auth="env:T", environ={"T": value})
    assert "pa55word" not in told


async def test_the_beginning_of_a_secret_at_the_cut_is_taken_out() -> None:
    async with receiving(answer("200 OK", b"x" * 20 + SECRET.encode())) as receiver:
        policy = msgspec.structs.replace(LOCAL, max_response=20 + 9)
        result = await send(receiver.url(), auth="env:T", environ={"T": SECRET}, policy=policy)
    assert result["body"] == "x" * 20 + "[redacted]"


async def test_network_errors_hold_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with receiving(b"nonsense\r\n\r\n") as receiver:
        told = await _outcome(receiver.url(), auth="env:T", environ={"T": SECRET})
    told += await _outcome(receiver.url(), auth="env:T", environ={"T": SECRET})  # nobody listens any more
    async with receiving(_silent) as receiver:
        told += await _outcome(receiver.url(), auth="env:T", environ={"T": SECRET}, timeout=0.1)
    assert "ConnectError" in told and "RemoteProtocolError" in told and "ReadTimeout" in told
    assert SECRET not in told + caplog.text


def test_revealed_values_do_not_show() -> None:
    secrets = Secrets({"T": SECRET})
    secrets.reveal("env:T")
    assert SECRET not in repr(secrets) + str(secrets)


async def _outcome(url: str, **more: Any) -> str:
    """Everything that redrive, or a person, could see of one delivery."""
    try:
        return repr(await send(url, **more))
    except (DeliveryError, httpx2.HTTPError) as exc:
        return _everything(exc)


def _everything(exc: BaseException) -> str:
    told = [repr(exc), str(exc), repr(vars(exc)), "".join(traceback.format_exception(exc))]
    told += [_everything(link) for link in (exc.__cause__, exc.__context__) if link is not None]
    if isinstance(exc, httpx2.RequestError):
        with contextlib.suppress(RuntimeError):  # it knows no request, so it tells nothing about one
            told.append(repr(exc.request.headers.raw))
    return " ".join(told)


@pytest.mark.parametrize("secret", ["whsec_" + base64.b64encode(b"0123456789abcdef").decode(), "plain secret!"])
async def test_signatures_follow_standard_webhooks(secret: str) -> None:
    async with receiving(answer()) as receiver:
        await send(receiver.url(), json={"a": 1}, sign="env:S", environ={"S": secret}, key="evt_1")
    [seen] = receiver.requests
    key = b"0123456789abcdef" if secret.startswith("whsec_") else secret.encode()
    signed = f"evt_1.{seen.headers['webhook-timestamp']}.".encode() + seen.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert seen.headers["webhook-id"] == seen.headers["idempotency-key"] == "evt_1"
    assert seen.headers["webhook-signature"] == f"v1,{expected}"


# TLS ----------------------------------------------------------------------------------------------------------------


async def test_tls_verifies_the_name_not_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str | None] = []
    context = server_context(tmp_path)
    context.sni_callback = lambda connection, name, context: names.append(name)
    resolve_to_loopback(monkeypatch)
    trusting = DeliveryPolicy(allow=("127.0.0.0/8",), ca_file=write(tmp_path, "ca.pem", CA_CERTIFICATE))
    async with receiving(answer(), tls=context) as receiver:
        assert (await send(receiver.url(host="hooks.example", scheme="https"), policy=trusting))["status"] == 200
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await send(receiver.url(host="other.example", scheme="https"), policy=trusting)
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await send(receiver.url(host="hooks.example", scheme="https"))  # the system does not know this authority
    assert names[:2] == ["hooks.example", "other.example"]
    assert [seen.headers["host"] for seen in receiver.requests] == [f"hooks.example:{receiver.port}"]


@pytest.mark.behaviour("H-6a")
@pytest.mark.parametrize("named", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
async def test_an_own_authority_is_trusted_by_the_usual_variables(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {
        "SSL_CERT_FILE": write(tmp_path, "ca.pem", CA_CERTIFICATE),
        "SSL_CERT_DIR": hashed_folder(tmp_path / "certs"),
    }
    resolve_to_loopback(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # trusted variables are those two, not proxies
    async with receiving(answer(), tls=server_context(tmp_path)) as receiver:
        url = receiver.url(host="hooks.example", scheme="https")
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await send(url)
        monkeypatch.setenv(named, places[named])
        assert (await send(url))["status"] == 200
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await send(receiver.url(host="other.example", scheme="https"))
    assert len(receiver.requests) == 1


@pytest.mark.behaviour("H-6a")
async def test_the_setting_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to_loopback(monkeypatch)
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    trusting = DeliveryPolicy(allow=("127.0.0.0/8",), ca_file=write(tmp_path, "ca.pem", CA_CERTIFICATE))
    async with receiving(answer(), tls=server_context(tmp_path)) as receiver:
        url = receiver.url(host="hooks.example", scheme="https")
        assert (await send(url, policy=trusting))["status"] == 200


@pytest.mark.behaviour("H-6a")
@pytest.mark.parametrize(
    ("variable", "names"),
    [("SSL_CERT_FILE", "/no/such/file"), ("SSL_CERT_FILE", "pyproject.toml"), ("SSL_CERT_DIR", "/no/where")],
)
async def test_certificates_that_cannot_be_read_are_named(
    variable: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, names)
    async with receiving(answer()) as receiver:
        with pytest.raises(DeliveryError, match=re.escape(names)) as caught:
            await send(receiver.url(scheme="https"))
    assert caught.value.error_kind == "credentials" and variable in str(caught.value)
    assert receiver.requests == []


# What is refused at enqueue -----------------------------------------------------------------------------------------

URL = "https://example.com/hook"
CONNECTION_HEADERS = (
    "Host", "hOST", "Content-Length", "Transfer-Encoding", "TRANSFER-ENCODING", "Connection", "Keep-Alive", "TE",
    "Trailer", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "Upgrade", "Expect", "HTTP2-Settings",
)  # fmt: skip
BAD_TIMEOUTS: tuple[object, ...] = (0, -1, 3600.1, math.inf, math.nan, "5", True, [])


@pytest.mark.parametrize(
    ("payload", "field", "problem"),
    [
        ({}, "url", "missing"),
        ({"url": 7}, "url", "string"),
        ({"url": "https://user:pw@example.com/"}, "url", 'a user name or password; use auth="env:NAME"'),
        ({"url": URL, "method": ""}, "method", "HTTP method"),
        ({"url": URL, "method": "POST\r\nX: y"}, "method", "HTTP method"),
        ({"url": URL, "method": "P OST"}, "method", "HTTP method"),
        ({"url": URL, "method": "A" * 33}, "method", "32"),
        ({"url": URL, "method": 1}, "method", "HTTP method"),
        ({"url": URL, "method": "connect"}, "method", "CONNECT is refused"),
        ({"url": URL, "method": "TRACE"}, "method", "TRACE is refused"),
        ({"url": URL, "headers": []}, "headers", "object"),
        ({"url": URL, "headers": {"": "x"}}, "headers", "token"),
        ({"url": URL, "headers": {"A B": "x"}}, "headers", "token"),
        ({"url": URL, "headers": {"A:": "x"}}, "headers", "token"),
        ({"url": URL, "headers": {"A\r\nB": "x"}}, "headers", "token"),
        ({"url": URL, "headers": {"é": "x"}}, "headers", "token"),
        ({"url": URL, "headers": {"A" * 129: "x"}}, "headers", "128"),
        ({"url": URL, "headers": {"A": "x", "a": "y"}}, "headers.a", "twice"),
        ({"url": URL, "headers": {f"A{n}": "x" for n in range(65)}}, "headers", "the limit is 64"),
        ({"url": URL, "headers": {"A": 1}}, "headers.A", "printable"),
        ({"url": URL, "headers": {"A": None}}, "headers.A", "printable"),
        ({"url": URL, "headers": {"A": "x\r\nB: y"}}, "headers.A", "line breaks"),
        ({"url": URL, "headers": {"A": "x\n"}}, "headers.A", "line breaks"),
        ({"url": URL, "headers": {"A": "x\ry"}}, "headers.A", "line breaks"),
        ({"url": URL, "headers": {"A": "x\0"}}, "headers.A", "printable"),
        ({"url": URL, "headers": {"A": "é"}}, "headers.A", "ASCII"),
        ({"url": URL, "headers": {"A": " x"}}, "headers.A", "outer spaces"),
        ({"url": URL, "headers": {"A": "x" * 8193}}, "headers.A", "8192"),
        *(
            ({"url": URL, "headers": {name: "x"}}, f"headers.{name}", "belongs to the connection")
            for name in CONNECTION_HEADERS
        ),
        ({"url": URL, "headers": {"Authorization": "Bearer x"}}, "headers.Authorization", 'auth="env:NAME"'),
        ({"url": URL, "headers": {"X-Key": "env:"}}, "headers.X-Key", "env:NAME"),
        ({"url": URL, "headers": {"Authorization": "env:A"}, "auth": "env:B"}, "auth", "keep one"),
        ({"url": URL, "auth": "Bearer x"}, "auth", "env:NAME"),
        ({"url": URL, "auth": "env:A-B"}, "auth", "env:NAME"),
        ({"url": URL, "auth": "env:A\n"}, "auth", "env:NAME"),
        ({"url": URL, "auth": {"env": "A"}}, "auth", "env:NAME"),
        ({"url": URL, "sign": "whsec_x"}, "sign", "env:NAME"),
        ({"url": URL, "json": {}, "body": "x"}, "body", "keep one"),
        ({"url": URL, "body": {"a": 1}}, "body", "give objects as json"),
        ({"url": URL, "body": b"x"}, "body", "text"),
        ({"url": URL, "body": "\ud800"}, "body", "Unicode"),
        ({"url": URL, "json": math.nan}, "json", "JSON"),
        ({"url": URL, "json": object()}, "json", "JSON"),
        *(
            ({"url": URL, "timeout": timeout}, "timeout", "at most 3600")
            for timeout in BAD_TIMEOUTS
        ),
        ({"url": URL, "verify": False}, "verify", "is not known; known are"),
        ({"url": URL, "follow_redirects": True}, "follow_redirects", "is not known"),
    ],
)  # fmt: skip
async def test_bad_requests_name_the_field_and_the_problem(
    payload: dict[str, object], field: str, problem: str
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        check_request(payload, NAMED)
    assert refused.value.field == field
    assert problem in refused.value.problem
    with pytest.raises(DeliveryError) as failed:  # an edit may have spoilt it later
        await deliver(payload, idempotency_key=None, traceparent=None, policy=NAMED, environ={})
    assert failed.value.error_kind == "invalid_input"
    assert field in str(failed.value)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"method": "patch", "timeout": 3600},
        {"timeout": 0.001, "json": None, "body": None, "headers": None, "auth": None, "sign": None},
        {"headers": {"X-A": "", "X-B": "a\tb", "X-C": "~!", "Cookie": "a=b"}},
        {"headers": {"Authorization": "env:TOKEN"}},
        {"auth": "env:TOKEN", "sign": "env:_SECRET2"},
        {"json": []},
        {"json": False},
        {"body": ""},
    ],
)
def test_good_requests_pass(more: dict[str, object]) -> None:
    check_request({"url": URL, **more}, NAMED)


@pytest.mark.behaviour("000-91")
async def test_the_policy_s_timeout_holds_where_the_job_names_none() -> None:
    async with receiving(_silent) as receiver:
        with pytest.raises(httpx2.ReadTimeout):
            await send(receiver.url(), policy=msgspec.structs.replace(LOCAL, timeout=0.1))


@pytest.mark.behaviour("T-19a")
def test_by_default_jobs_may_send_no_variable() -> None:
    """A job may come from an agent: one that names any variable could send any secret of the worker anywhere."""
    for payload in ({"auth": "env:AWS_SECRET"}, {"sign": "env:AWS_SECRET"}, {"headers": {"X": "env:AWS_SECRET"}}):
        with pytest.raises(InvalidPayload, match=r'add "AWS_SECRET" to credentials under \[delivery\] in redrive.toml'):
            check_request({"url": URL, **payload}, DeliveryPolicy())


def test_the_operator_can_limit_which_variables_jobs_may_send() -> None:
    policy = DeliveryPolicy(credentials=("HOOK_*",))
    check_request({"url": URL, "auth": "env:HOOK_TOKEN"}, policy)
    for payload in ({"auth": "env:AWS_SECRET"}, {"sign": "env:AWS_SECRET"}, {"headers": {"X": "env:AWS_SECRET"}}):
        with pytest.raises(
            InvalidPayload, match=r"AWS_SECRET, which deliveries may not use; add .AWS_SECRET. to credentials"
        ):
            check_request({"url": URL, **payload}, policy)


@pytest.mark.parametrize(
    "setting", [{"timeout": 0}, {"timeout": 4000}, {"max_response": -1}, {"allow": ["*"]}, {"ca_file": "/no/such/file"}]
)
def test_a_policy_that_makes_no_sense_is_refused(setting: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(setting))):
        msgspec.convert(setting, DeliveryPolicy)


def test_importing_delivery_does_not_import_httpx2() -> None:
    code = "import sys, redrive.http.delivery; sys.exit('httpx2' in sys.modules or 'idna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
