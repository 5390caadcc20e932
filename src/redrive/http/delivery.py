"""Runs the built-in task "redrive.http": sends one request and decides what its answer means.

The payload is {method, url, headers, json | body, timeout, auth, sign}. It is checked when it is enqueued, and read and
judged again at every attempt: configuration, DNS and the payload itself may have changed since.

address.py decides where a delivery may go, request.py what it sends; transport.py sends it.
"""

import asyncio
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from redrive.errors import InvalidPayload
from redrive.failures.classify import STATUSES
from redrive.http.address import ForbiddenAddress, Target, read_allow, read_url
from redrive.http.policy import HTTP_TASK, DeliveryPolicy
from redrive.http.request import CredentialsMissing, Outgoing, Secrets, check_request, read_payload, write_headers

if TYPE_CHECKING:
    from redrive.http.transport import Answer

__all__ = ["TASK", "DeliveryError", "DeliveryPolicy", "check_request", "deliver", "judge_status"]

TASK = HTTP_TASK
_SPEAKS_FOR_ITSELF = frozenset(STATUSES) - {409}
"""Statuses that are left to the classifier; a conflict (409) is permanent for a delivery, if not elsewhere."""
MAX_EXCERPT = 500

# Answer headers that the person on call and the classifier can use. Never cookies, never Location.
_KEPT_HEADERS = re.compile(
    r"content-type|content-length|date|etag|retry-after(?:-ms)?|x-should-retry|(?:x-)?(?:request|correlation)-id"
    r"|idempotent-replayed|(?:[a-z]+-)?ratelimit(?:-[a-z-]+)?|x-github-request-id|cf-ray"
)

# Charsets that cannot be abused: Python's registry also holds codecs that are slow or yield what JSON cannot carry.
_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "windows-1252", "utf-16"})


class DeliveryError(Exception):
    """A delivery that did not succeed, with everything that the classifier reads and nothing secret."""

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        error_kind: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.headers = dict(headers or {})
        self.body = body
        self.error_kind = error_kind


def judge_status(status: int) -> Literal["ok", "retry", "permanent"]:
    """Judges a status: any 2xx is success; "later" and the receiver's own faults are retried; the rest is permanent."""
    if 200 <= status <= 299:
        return "ok"
    if status in (408, 425, 429) or 500 <= status <= 599:
        return "retry"
    return "permanent"


async def deliver(
    payload: Mapping[str, object],
    *,
    idempotency_key: str | None,
    traceparent: str | None,
    policy: DeliveryPolicy,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, object]:
    """Sends the request once and returns {"status", "headers", "body", "truncated"} for any 2xx answer.

    Raises DeliveryError for a bad request, address, credential or answer; httpx2's own errors for a failing network.
    """
    secrets = Secrets(environ)
    try:
        outgoing = read_payload(payload, policy)
        headers = write_headers(
            outgoing, secrets, idempotency_key=idempotency_key, traceparent=traceparent, now=time.time()
        )
        await _load_wire()
        answer = await _exchange(outgoing, headers, policy)
    except InvalidPayload as exc:
        raise DeliveryError(f"The request cannot be sent. {exc}", error_kind="invalid_input") from None
    except CredentialsMissing as exc:
        raise DeliveryError(str(exc), error_kind="credentials") from None
    except ForbiddenAddress as exc:
        raise DeliveryError(f"{exc}, then redrive the job", error_kind="forbidden_address") from None
    return _conclude(outgoing, answer, secrets)


async def _exchange(outgoing: Outgoing, headers: Mapping[str, str], policy: DeliveryPolicy) -> "Answer":
    from redrive.http.transport import CertificatesMissing, exchange

    try:
        return await exchange(outgoing, headers, policy, read_allow(policy.allow))
    except CertificatesMissing as exc:
        raise DeliveryError(str(exc), error_kind="credentials") from None


async def _load_wire() -> None:
    """Imports the HTTP library in a thread, the first time: on the loop it would stall every other job for 200 ms."""
    name = "redrive.http.transport"
    if name not in sys.modules:
        await asyncio.to_thread(__import__, name)


def _conclude(outgoing: Outgoing, answer: "Answer", secrets: Secrets) -> dict[str, object]:
    headers = {
        name: secrets.redact(value)[:MAX_EXCERPT]
        for name, value in answer.headers.items()
        if _KEPT_HEADERS.fullmatch(name)
    }
    text = _decode_body(answer)
    body = None if text is None else secrets.redact(text, cut=answer.truncated)
    outcome = judge_status(answer.status)
    if outcome == "ok":
        return {"status": answer.status, "headers": headers, "body": body, "truncated": answer.truncated}
    raise DeliveryError(
        _message(outgoing, answer),
        status_code=answer.status,
        headers=headers,
        body=body[:MAX_EXCERPT] if body else None,
        error_kind="delivery_rejected" if outcome == "permanent" and answer.status not in _SPEAKS_FOR_ITSELF else None,
    )


def _decode_body(answer: "Answer") -> str | None:
    """Decodes the body as text; None where there is no body, or where it is no text."""
    charset = (answer.charset or "").lower()
    encoding = charset if charset in _CHARSETS else "utf-8"
    for lost in range(4 if answer.truncated else 1):  # the cut may have split the last character
        try:
            text = answer.content[: len(answer.content) - lost].decode(encoding)
        except UnicodeDecodeError:
            continue
        return text if text and "\0" not in text else None
    return None


def _message(outgoing: Outgoing, answer: "Answer") -> str:
    """Says what happened and what to do next, without path and body: it groups failures and may be shown anywhere."""
    what = f"{outgoing.method} to {outgoing.target.origin} was answered {answer.status} {answer.phrase}".rstrip()
    if judge_status(answer.status) == "retry":
        return what
    if 300 <= answer.status <= 399:
        where = _redirection(outgoing.target, answer.headers.get("location"))
        return f"{what}{where}. redrive does not follow redirects: edit the job's url and redrive it"
    if answer.status == 401:
        return f"{what}. Check the variable that the job's auth names, then redrive it"
    return f"{what}. The receiver refuses this request: see its body, then edit and redrive the job, or discard it"


def _redirection(target: Target, location: str | None) -> str:
    if not location:
        return ""
    try:
        origin = read_url(location).origin
    except ValueError:
        return ", a redirect"
    return ", a redirect to another path" if origin == target.origin else f", a redirect to {origin}"
