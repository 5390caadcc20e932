"""Reads the HTTP answer behind a failure: status, codes, headers, body, address, and the wait that it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from redrive.core.redact import redact_text
from redrive.failures.classify.codes import code_detail
from redrive.failures.classify.retry_after import delay_in_text, duration, finite, header_wait, wait_of
from redrive.failures.safe_getattr import SCALARS, attribute, clean, document, http_status, item, some, text_of

BODY_LIMIT: Final = 500
CODE_LIMIT: Final = 64
"""Most characters of a code."""
CODES_KEPT: Final = 12
_CODE_KEYS: Final = ("error_code", "errorCode", "code", "Code", "subtype", "reason", "type", "status", "__type")
Traits = Mapping[str, Any]


def response_of(traits: Traits) -> Any:
    for name in ("response", "resp", "http_response"):
        if name in traits:
            return traits[name]
    return None


def status_of(traits: Traits, response: object) -> int | None:
    for name in ("status_code", "status", "http_status", "api_error_status"):
        status = http_status(traits[name]) if name in traits else None
        if status is not None:
            return status
    if isinstance(response, dict):
        return http_status(item(item(response, "ResponseMetadata"), "HTTPStatusCode"))
    status = http_status(traits.get("code")) or http_status(item(traits.get("error"), "code"))
    return status or http_status(item(response, "status_code")) or http_status(item(response, "status"))


# ---- codes


class Codes:
    """Codes in the order in which they were found, each once."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, value: object) -> None:
        text = text_of(value, CODE_LIMIT + 1)
        if text and len(text) <= CODE_LIMIT and len(self._found) < CODES_KEPT and not _says_nothing(text):
            self._found[text] = None

    def read(self, owner: object) -> None:
        if isinstance(owner, dict):
            for name in _CODE_KEYS:
                value = dict.get(owner, name)
                if value is not None:
                    self.add(value)

    def kept(self) -> tuple[str, ...]:
        return tuple(self._found)


def _says_nothing(code: str) -> bool:
    """Returns whether a code is only a status, or only the word `error`."""
    return code == "error" or (len(code) == 3 and code.isdigit())


_CODE_TRAITS: Final = (
    "error_code", "code", "provider_error_code", "subtype", "terminal_reason", "err_code", "reason",
    "provider_error_type", "error_type", "type", "status", "status_code", "rate_limit_type",
)  # fmt: skip


def codes_of(traits: Traits, bodies: list[dict[str, Any]], response: object) -> tuple[str, ...]:
    """Lists every code that the exception or the answer names, the most specific first."""
    codes = Codes()
    for name in _CODE_TRAITS:
        if name in traits:
            value = traits[name]
            if name == "error_type" and type(value) is not str:
                continue  # redis keeps an enum there, which is no code
            codes.add(str(value) if name == "err_code" and isinstance(value, int) else value)
    for body in bodies:
        read_codes(body, codes)
    for detail in some(traits.get("error_details")):
        codes.add(item(detail, "reason"))
    if "errors" in traits:
        _read_entries(traits["errors"], codes)
    if "smtp_code" in traits or "recipients" in traits:
        codes.add(_mail_reply(traits))
    if response is not None and not isinstance(response, dict):
        for entry in some(attribute(response, "errors")):
            codes.add(item(entry, "type"))
    return codes.kept()


def _mail_reply(traits: Traits) -> str | None:
    """Returns the reply code of a mail server; if several recipients were refused, the code that may heal."""
    replies = [traits.get("smtp_code")]
    recipients = traits.get("recipients")
    if isinstance(recipients, dict):
        replies = [next(some(reply), None) for reply in islice(dict.values(recipients), 10)]
    codes = [code for code in map(http_status, replies) if code is not None]
    return f"smtp_{min(codes)}" if codes else None


def read_codes(body: Mapping[str, Any], codes: Codes) -> None:
    """Reads every place where services write a code into an answer: at the top, in `error`, in its details."""
    error = _error_part(body)
    if isinstance(error, dict):
        details = error.get("details")
        codes.read(details)
        for detail in some(details):
            codes.add(item(detail, "reason"))
        codes.read(error)
        codes.read(error.get("innererror"))
        _read_entries(error.get("errors"), codes)
    else:
        codes.add(error)
    codes.read(body)
    codes.read(body.get("innererror"))
    _read_entries(body.get("errors"), codes)


def _error_part(body: Mapping[str, Any]) -> object:
    error = body.get("error")
    return error if error is not None else body.get("Error", body.get("detail"))


def _read_entries(entries: object, codes: Codes) -> None:
    for entry in some(entries):
        for name in ("reason", "code", "type"):
            codes.add(item(entry, name))
        codes.add(item(item(entry, "extensions"), "code"))


def rpc_code_of(traits: Traits) -> int | None:
    for code in (item(traits.get("error"), "code"), traits.get("code")):
        if isinstance(code, int) and not isinstance(code, bool) and -32_999 <= code <= -32_000:
            return int.__int__(code)
    return None


def rpc_status_of(traits: Traits, types: tuple[str, ...]) -> str | None:
    """Returns the name of a gRPC status. `code` is called only on gRPC's own classes, where it is a method."""
    known = traits.get("grpc_status_code")
    code = traits.get("code")
    if known is None and callable(code) and any(name.startswith("grpc.") for name in types):
        known = code()
    return text_of(attribute(known, "name"), 40) if known is not None else None


# ---- headers and bodies


def headers_of(traits: Traits, response: object) -> dict[str, str]:
    if isinstance(response, dict):
        return _keep_headers(item(item(response, "ResponseMetadata"), "HTTPHeaders"))
    return _keep_headers(traits.get("headers")) or (
        _keep_headers(attribute(response, "headers")) if response is not None else {}
    )


def _keep_headers(headers: object) -> dict[str, str]:
    """Keeps the headers that say something about a retry, in lower case."""
    if headers is None or isinstance(headers, SCALARS):
        return {}
    kept = {}
    try:
        for name, value in islice(headers.items(), 200):  # type: ignore[attr-defined]
            if isinstance(name, str) and isinstance(value, str) and _is_kept(low := name.lower()):
                kept[clean(low, 100)] = clean(value, 200)
    except Exception:  # noqa: BLE001 - not a mapping after all
        return {}
    return kept


_KEPT: Final = frozenset(
    {"retry-after", "retry-after-ms", "x-ms-retry-after-ms", "x-should-retry", "x-request-id", "request-id"}
)


def _is_kept(name: str) -> bool:
    return name in _KEPT or "ratelimit" in name or "rate-limit" in name


def bodies_of(traits: Traits, response: object) -> list[dict[str, Any]]:
    """Lists answers as documents: those the exception kept, and the response if it was read and no other has a code."""
    bodies = []
    for name in ("body", "details", "data", "error", "detail"):
        known = document(traits[name]) if name in traits else None
        if known is not None:
            bodies.append(known)
    if isinstance(response, dict):
        bodies.append(response)
    elif response is not None and not any(map(_names_a_code, bodies)):
        known = document(attribute(response, "_content"))
        if known is not None:
            bodies.append(known)
    return bodies


def _names_a_code(body: dict[str, Any]) -> bool:
    codes = Codes()
    read_codes(body, codes)
    return bool(codes.kept())


def body_text(traits: Traits, bodies: list[dict[str, Any]], response: object, message: str) -> str | None:
    """Returns the text of the answer, if the message does not contain the text already."""
    said = traits.get("body")
    text = said if isinstance(said, str) else None
    if text is None:
        text = next((found for body in bodies if (found := error_message(body)) is not None), None)
    if text is None and not bodies and response is not None:
        text = _plain_answer(attribute(response, "_content"))
    if not text or text[:200] in message:
        return None
    return redact_text(clean(text, BODY_LIMIT))


def _plain_answer(content: object) -> str | None:
    """Returns the beginning of an answer that is neither JSON nor a page."""
    if not isinstance(content, bytes):
        return None
    text = bytes.__getitem__(content, slice(BODY_LIMIT)).decode("utf-8", "replace").strip()
    return None if text.startswith("<") else text


def error_message(body: Mapping[str, Any]) -> str | None:
    """Returns the message for people in an answer."""
    error = _error_part(body)
    for owner in (error, body):
        for name in ("message", "Message", "msg", "detail", "error_description", "error_message"):
            text = item(owner, name)
            if isinstance(text, str) and text:
                return text
    return error if isinstance(error, str) else None


# ---- how long to wait


def wait_asked(
    traits: Traits,
    headers: Mapping[str, str],
    bodies: list[dict[str, Any]],
    limited: bool,
    now: float,
    message: str,
) -> float | None:
    """Returns the seconds that a failure asks to wait, from the places where libraries put them, in order."""
    for name in ("retry_after", "wait"):
        wait = wait_of(traits[name], now) if name in traits else None
        if wait is not None:
            return wait
    wait = header_wait(headers, now, limited=limited)
    if wait is None:
        wait = _google_wait(traits, bodies, message)
    return _read_answered_wait(bodies, now) if wait is None and limited else wait


def _read_answered_wait(bodies: list[dict[str, Any]], now: float) -> float | None:
    """Reads `retry_after` in the answer to a rate limit: at the top, in `error`, or in `parameters`."""
    for body in bodies:
        for owner in (body, _error_part(body), body.get("parameters")):
            wait = wait_of(item(owner, "retry_after"), now)
            if wait is not None:
                return wait
    return None


def is_limited(status: int | None, codes: tuple[str, ...]) -> bool:
    return status == 429 or any(code_detail(code) == "rate_limited" for code in codes)


def _google_wait(traits: Traits, bodies: list[dict[str, Any]], message: str) -> float | None:
    """Reads Google's retryDelay: in the answer, as a message of gRPC, or in the text alone."""
    for body in bodies:
        for delay in _retry_delays(item(item(body, "error") or body, "details")):
            return duration(delay)
    for detail in some(traits.get("details")):
        span = attribute(detail, "retry_delay")
        seconds, nanos = attribute(span, "seconds"), attribute(span, "nanos")
        if isinstance(seconds, int):
            return finite(seconds + (nanos if isinstance(nanos, int) else 0) / 1e9)
    return delay_in_text(message) if "etry" in message else None


def _retry_delays(details: object) -> Iterator[str]:
    for detail in some(details):
        delay = item(detail, "retryDelay")
        if isinstance(delay, str):
            yield delay


# ---- address of the call

_MODEL_PATH: Final = re.compile(
    r"/messages$|/chat/completions$|/completions$|/responses$|/embeddings$|/v1/complete$|:(?:stream)?generatecontent"
    r"|/converse(?:-stream)?$|/invoke(?:-with-response-stream)?$|/api/(?:chat|generate)$",
    re.IGNORECASE,
)


def address_of(traits: Traits, response: object) -> tuple[str | None, bool]:
    """Returns the host of the call, and whether models answer at its address."""
    request = traits.get("request")
    url = attribute(request, "url") if request is not None else None
    if url is None and "request_info" in traits:
        url = attribute(traits["request_info"], "real_url")
    if url is None:
        url = traits.get("url") or item(response, "url")
    if url is None:
        return text_of(traits.get("host"), 100), False
    return _parse_address(_shown_url(url))


def _shown_url(url: object) -> str:
    try:
        return clean(str(url), 500)
    except Exception:  # noqa: BLE001 - an address that cannot be shown counts as none
        return ""


def answered_by_model(answer: object) -> bool:
    """Tells whether an answer to an HTTP request came from an address where models answer."""
    return _parse_address(_shown_url(attribute(answer, "url")))[1]


@lru_cache(maxsize=512)
def _parse_address(url: str) -> tuple[str | None, bool]:
    scheme, separator, rest = url.partition("://")
    if not separator or len(scheme) > 10:
        return None, False
    address = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = address.partition("/")
    name = host.rpartition("@")[2].lower()
    return name[:100] or None, bool(slash and _MODEL_PATH.search(f"/{path}".rstrip("/")))
