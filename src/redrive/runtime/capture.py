"""Exception → Failure: the only place that touches exception objects. What comes out is plain data."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from types import TracebackType
from typing import Any, Final

from redrive.core.job import Failure
from redrive.core.redact import redact_text
from redrive.errors import GiveUp, Retry, Signal

MESSAGE_LIMIT: Final = 2_000
BODY_LIMIT: Final = 500
CHAIN_LIMIT: Final = 5
FRAMES: Final = 12
_KEPT_HEADERS: Final = re.compile(r"(?i)retry-after|retry-after-ms|x-should-retry|x-request-id|.*ratelimit.*")
_SIMPLE: Final = frozenset({ValueError, TypeError, KeyError, RuntimeError, AttributeError, IndexError})
"""Builtin exceptions that carry nothing but a message."""
_TWINS: Final = {"httpx2": "httpx", "httpcore2": "httpcore"}


def capture(error: BaseException, depth: int = 0) -> Failure:
    """What an exception says, without the exception."""
    kind: Any = type(error)
    if kind in _SIMPLE and not error.__dict__ and error.__cause__ is None and error.__context__ is None:
        return Failure("exception", _types(kind), redact_text(_message(error)), frames=_frames(error.__traceback__))
    cause = _cause(error) if depth < CHAIN_LIMIT else None
    members = error.exceptions[:CHAIN_LIMIT] if isinstance(error, BaseExceptionGroup) and depth < CHAIN_LIMIT else ()
    headers = _headers(error)
    return Failure(
        kind="signal" if isinstance(error, Signal) else "exception",
        types=_types(kind),
        message=redact_text(_message(error)),
        status=_integer(error, "status_code", "status", "code") or _integer(_response(error), "status_code", "status"),
        code=_text(error, "error_code", "code", "type"),
        error_kind=_text(error, "error_kind"),
        errno=error.errno if isinstance(error, OSError) else None,
        sqlstate=_text(error, "sqlstate", "pgcode", "sqlite_errorname"),
        headers=headers,
        retry_after=_retry_after(error, headers),
        frames=_frames(error.__traceback__),
        cause=capture(cause, depth + 1) if cause is not None else None,
        members=tuple(capture(member, depth + 1) for member in members),
        recommendation=error.recommendation if isinstance(error, GiveUp) else None,
        body=redact_text(body)[:BODY_LIMIT] if (body := _text(error, "body")) else None,
    )


def lost(worker: str | None) -> Failure:
    """A lease ended while its job was running: a failure like any other."""
    return Failure("lease_expired", ("redrive.LeaseExpired",), f"worker {worker or 'unknown'} stopped while it ran")


def timed_out(seconds: float) -> Failure:
    return Failure("timeout", ("builtins.TimeoutError",), f"still running after its timeout of {seconds:g} s")


@lru_cache(maxsize=1024)
def _types(kind: Any) -> tuple[str, ...]:
    """Qualified names of the MRO; a library's renamed twin counts as the original."""
    return tuple(_qualified(entry) for entry in kind.__mro__ if entry not in (object, BaseException, Exception))


def _qualified(kind: type) -> str:
    package, dot, rest = kind.__module__.partition(".")
    name = f"{_TWINS.get(package, package)}{dot}{rest}.{kind.__qualname__}"
    return re.sub(r"^(httpx|httpcore)\._\w+\.", r"\1.", name)


def qualified(kind: type) -> str:
    """The name under which a class is matched."""
    return _qualified(kind)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_LIMIT].encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - an exception whose __str__ raises still has a name
        return f"<{type(error).__name__} without a readable message>"


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _attribute(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a property of somebody else's exception
        return None


def _response(error: BaseException) -> object:
    return _attribute(error, "response")


def _integer(owner: object, *names: str) -> int | None:
    for name in names:
        value = _attribute(owner, name)
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
            return value
    return None


def _text(owner: object, *names: str) -> str | None:
    for name in names:
        value = _attribute(owner, name)
        if isinstance(value, str) and value:
            return value[:BODY_LIMIT]
    return None


def _headers(error: BaseException) -> dict[str, str]:
    for owner in (error, _response(error)):
        headers = _attribute(owner, "headers")
        if isinstance(headers, Mapping):
            return {str(k).lower(): str(v)[:200] for k, v in headers.items() if _KEPT_HEADERS.fullmatch(str(k))}
    return {}


def _retry_after(error: BaseException, headers: Mapping[str, str]) -> float | None:
    """Seconds the failure itself asks to wait, from the places where libraries put it."""
    if isinstance(error, Retry):
        return error.after
    for name in ("retry_after", "wait"):
        value = _attribute(error, name)
        if isinstance(value, timedelta):
            return max(0.0, value.total_seconds())
        if isinstance(value, int | float) and not isinstance(value, bool):
            return max(0.0, float(value))
    if "retry-after-ms" in headers:
        return _seconds(headers["retry-after-ms"], 1000.0)
    return _seconds(headers["retry-after"]) if "retry-after" in headers else None


def _seconds(text: str, unit: float = 1.0) -> float | None:
    """Seconds, or an HTTP date."""
    try:
        number = float(text) / unit
    except ValueError:
        pass
    else:
        return max(0.0, number) if math.isfinite(number) else None
    import email.utils

    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _frames(traceback: TracebackType | None) -> tuple[str, ...]:
    """`module:function:line`, innermost first, the task's own code rather than ours."""
    found: list[str] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        module: str = traceback.tb_frame.f_globals.get("__name__", code.co_filename)
        if not module.startswith("redrive.runtime"):
            found.append(f"{module}:{code.co_name}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return tuple(reversed(found[-FRAMES:]))


def soft(value: object) -> Failure | None:
    return None


def guarded(name: str, rule: Any, tell: Any) -> Any:
    return rule
