"""Reads the payload of a delivery strictly, and turns it into a method, a target, headers and bytes.

Secrets are named in the payload ("env:NAME"), read from the environment at the last moment, and removed from what the
receiver echoes. So the queue's file, its backups and its error messages never hold a secret.
"""

import base64
import binascii
import functools
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import quote

from redrive.errors import InvalidInput, InvalidPayload
from redrive.http.address import ForbiddenAddress, Target, judge_known, read_allow, read_url
from redrive.http.policy import MAX_TIMEOUT, DeliveryPolicy

MAX_HEADERS = 64
MAX_HEADER_VALUE = 8192

_IN_ORDER = ("method", "url", "json", "body", "headers", "timeout", "auth", "sign")
_FIELDS = frozenset(_IN_ORDER)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]{0,127})")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[\x21-\x7e]{0,128})?")

# Headers that describe the connection, not the request. Requests get smuggled where two programs read them differently.
_CONNECTION_HEADERS = frozenset({
    "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "te", "trailer", "trailers", "transfer-encoding", "upgrade",
})  # fmt: skip


class CredentialsMissing(Exception):
    """A variable that a job names is not usable on this worker. The message names the variable, never a value."""


class Outgoing(NamedTuple):
    """A checked payload."""

    method: str
    target: Target
    headers: dict[str, str]  # names in lower case; values may still be references to the environment
    body: bytes
    timeout: float
    sign: str | None


# Checking -----------------------------------------------------------------------------------------------------------


def check_request(payload: Mapping[str, object], policy: DeliveryPolicy) -> None:
    """Refuses at enqueue a request that could never be sent. Names are not resolved yet: a worker's DNS may differ."""
    target = read_payload(payload, policy).target
    try:
        judge_known(target, read_allow(policy.allow))
    except ForbiddenAddress as exc:
        raise InvalidPayload(field="url", problem=f"is forbidden: {exc}") from None


def read_payload(payload: Mapping[str, object], policy: DeliveryPolicy) -> Outgoing:
    """Reads the request that a payload describes; InvalidPayload names the field that is wrong."""
    # None means "not given", as in the keyword arguments of enqueue_http.
    given = {name: value for name, value in payload.items() if value is not None}
    unknown = sorted(given.keys() - _FIELDS)
    if unknown:
        raise InvalidPayload(field=unknown[0], problem=f"is not known; known are {', '.join(sorted(_FIELDS))}")
    headers = _read_headers(given.get("headers", {}), policy)
    if "auth" in given:
        if "authorization" in headers:
            raise InvalidPayload(field="auth", problem="is given, and so is an Authorization header; keep one")
        headers["authorization"] = _read_reference("auth", given["auth"], policy)
    content_type, body = _read_body(given)
    if content_type:
        headers.setdefault("content-type", content_type)
    return Outgoing(
        method=_read_method(given.get("method", "POST")),
        target=_read_target(given.get("url")),
        headers=headers,
        body=body,
        timeout=_read_timeout(given.get("timeout", policy.timeout)),
        sign=_read_reference("sign", given["sign"], policy) if "sign" in given else None,
    )


def _read_target(url: object) -> Target:
    if url is None:
        raise InvalidPayload(field="url", problem="is missing")
    try:
        return read_url(url)
    except ValueError as exc:
        raise InvalidPayload(field="url", problem=str(exc)) from None


def _read_method(method: object) -> str:
    if not isinstance(method, str) or not _TOKEN.fullmatch(method) or len(method) > 32:
        raise InvalidPayload(field="method", problem="must be an HTTP method such as POST, of at most 32 characters")
    if method.upper() in ("CONNECT", "TRACE"):
        raise InvalidPayload(field="method", problem=f"{method.upper()} is refused: it speaks to proxies, not services")
    return method.upper()


def _read_headers(headers: object, policy: DeliveryPolicy) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidPayload(field="headers", problem="must be an object of names and values")
    if len(headers) > MAX_HEADERS:
        raise InvalidPayload(field="headers", problem=f"has {len(headers)} entries; the limit is {MAX_HEADERS}")
    read: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidPayload(field="headers", problem="has a name that is not an HTTP token of 1 to 128 characters")
        if name.lower() in read:
            raise InvalidPayload(field=f"headers.{name}", problem="is given twice")
        read[name.lower()] = _read_header(name, value, policy)
    return read


def _read_header(name: str, value: object, policy: DeliveryPolicy) -> str:
    field = f"headers.{name}"
    if name.lower() in _CONNECTION_HEADERS:
        raise InvalidPayload(field=field, problem="belongs to the connection and is set by redrive; leave it out")
    if not isinstance(value, str) or len(value) > MAX_HEADER_VALUE or not _HEADER_VALUE.fullmatch(value):
        limit = f"at most {MAX_HEADER_VALUE} printable ASCII characters"
        raise InvalidPayload(field=field, problem=f"must be {limit}, without line breaks or outer spaces")
    if value.startswith("env:"):
        return _read_reference(field, value, policy)
    if name.lower() == "authorization":
        raise InvalidPayload(field=field, problem='would store a secret in the queue; use auth="env:NAME" instead')
    return value


def _read_reference(field: str, reference: object, policy: DeliveryPolicy) -> str:
    match = _ENV.fullmatch(reference) if isinstance(reference, str) else None
    if match is None:
        raise InvalidPayload(field=field, problem='must name an environment variable, as in "env:NAME"')
    if not any(fnmatchcase(match[1], pattern) for pattern in policy.credentials):
        hint = f'add "{match[1]}" to credentials under [delivery] in redrive.toml'
        raise InvalidPayload(field=field, problem=f"names {match[1]}, which deliveries may not use; {hint}")
    return match[0]


def _read_body(given: Mapping[str, object]) -> tuple[str | None, bytes]:
    if "json" in given and "body" in given:
        raise InvalidPayload(field="body", problem="is given, and so is json; keep one")
    if "json" in given:
        try:
            return "application/json", json.dumps(given["json"], allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError):
            raise InvalidPayload(field="json", problem="cannot be written as JSON") from None
    body = given.get("body", "")
    if not isinstance(body, str):
        raise InvalidPayload(field="body", problem="must be text; give objects as json")
    try:
        return ("text/plain; charset=utf-8" if body else None), body.encode()
    except UnicodeEncodeError:
        raise InvalidPayload(field="body", problem="is not valid Unicode") from None


def _read_timeout(timeout: object) -> float:
    seconds = _seconds(timeout)
    if seconds is None:
        limit = f"more than 0 and at most {MAX_TIMEOUT:.0f} seconds"
        raise InvalidPayload(field="timeout", problem=f"must be a number, {limit}")
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= MAX_TIMEOUT else None


# Secrets ------------------------------------------------------------------------------------------------------------


class Secrets:
    """The values that one delivery took from the environment, kept in order to redact them in the answer."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._spellings: set[str] = set()

    def __repr__(self) -> str:
        return f"<Secrets: {len(self._spellings)} spellings hidden>"

    def reveal(self, reference: str) -> str:
        """Returns the value of the variable that "env:NAME" names."""
        name = reference.removeprefix("env:")
        value = self._environ.get(name, "").strip()
        if not value or not _HEADER_VALUE.fullmatch(value):
            state = "holds characters that a header cannot carry" if value else "is not set"
            raise CredentialsMissing(
                f"The environment variable {name} {state} where this worker runs. "
                "Set it, restart the worker and redrive the job"
            )
        self._spellings |= _spellings(value)
        return value

    def redact(self, text: str, *, cut: bool = False) -> str:
        """Removes every secret from `text` and, where `text` was `cut` off, the beginning of a secret at its end."""
        for value in sorted(self._spellings, key=len, reverse=True):
            text = text.replace(value, "[redacted]")
            if cut:
                text = _without_beginning(text, value)
        return text


def _spellings(value: str) -> set[str]:
    """Lists the forms in which a receiver might repeat a secret: whole, without its scheme, decoded, escaped."""
    credential = value.split(" ", 1)[-1].strip()
    forms = {value, credential}
    if value.lower().startswith("basic "):
        try:
            decoded = base64.b64decode(credential, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            decoded = ""
        forms |= {decoded, decoded.partition(":")[2]}
    forms |= {json.dumps(each)[1:-1] for each in forms} | {quote(each, safe="") for each in forms}
    return {each for each in forms if len(each) >= 4 or each == value}


def _without_beginning(text: str, value: str) -> str:
    for length in range(min(len(value) - 1, len(text)), 3, -1):
        if text.endswith(value[:length]):
            return text[:-length] + "[redacted]"
    return text


# Headers ------------------------------------------------------------------------------------------------------------


def write_headers(
    outgoing: Outgoing, secrets: Secrets, *, idempotency_key: str | None, traceparent: str | None, now: float
) -> dict[str, str]:
    """Makes all headers of the request, secrets included. The caller's own win over ours, except for the signature."""
    headers = {name: secrets.reveal(v) if v.startswith("env:") else v for name, v in outgoing.headers.items()}
    if idempotency_key:
        headers.setdefault("idempotency-key", _printable(idempotency_key))
    if traceparent and _TRACEPARENT.fullmatch(traceparent):
        headers.setdefault("traceparent", traceparent)
    headers.setdefault("user-agent", f"redrive/{_version()}")
    headers.setdefault("accept", "*/*")
    headers.setdefault("accept-encoding", "gzip, deflate")
    if outgoing.sign:
        # The key is the same at every attempt, so receivers can tell a repetition from a new message.
        message_id = _printable(idempotency_key or hashlib.sha256(outgoing.body).hexdigest())
        headers |= _signature(secrets.reveal(outgoing.sign), message_id, outgoing.body, now)
    return {"host": outgoing.target.netloc, **headers}


def _signature(secret: str, message_id: str, body: bytes, now: float) -> dict[str, str]:
    """Makes the headers of Standard Webhooks, so that receivers can check the sender with any of its libraries."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = secret.encode()
    timestamp = str(int(now))
    mac = hmac.new(key, b".".join((message_id.encode(), timestamp.encode(), body)), hashlib.sha256)
    signature = base64.b64encode(mac.digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{signature}"}


def _printable(key: str) -> str:
    """Escapes a key for a header: a key may hold any character, a header may not."""
    return key if _HEADER_VALUE.fullmatch(key) else quote(key, safe="", errors="surrogatepass")


@functools.cache
def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("redrive")
    except metadata.PackageNotFoundError:
        return "dev"


def split_call(line: Sequence[str], options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the arguments of `enqueue_http` into payload and options. The payload is checked where it is accepted."""
    given = {"queue": "http", **_name_arguments(line, options), **options}
    own = {name: value for name, value in given.items() if name not in _FIELDS}
    payload = {name: _as_dict(given[name]) for name in _IN_ORDER if given.get(name) is not None}
    if payload.get("headers") == {}:
        del payload["headers"]
    if "json" not in payload and isinstance(payload.get("body"), dict | list):
        payload["json"] = payload.pop("body")
    return payload, own


def _name_arguments(line: Sequence[str], options: Mapping[str, Any]) -> dict[str, str]:
    """Names the arguments without a name: method and url, or queue, method and url."""
    names = ("queue", "method", "url") if len(line) > 2 else ("method", "url")
    if len(line) > len(names):
        raise InvalidInput(field="enqueue_http", problem="takes queue, method and url; name every other argument")
    named = dict(zip(names, line, strict=False))
    for name in named.keys() & options.keys():
        raise InvalidInput(field=name, problem="is given twice; keep one")
    for name in {"method", "url"} - named.keys() - options.keys():
        raise InvalidInput(field=name, problem="is missing; give method and url")
    return named


def _as_dict(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
