"""Failure → Cause: ordered small rules, the first that knows wins. No SDK is imported; classes are matched by name.

A rule is a function from a Failure to a detail (a key of DETAILS) or None. Its name is kept in the Cause, so that a
dead letter can say which rule decided.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable, Sequence
from typing import Final

from redrive.core.job import Category, Cause, Failure, Heals, Subclass

Rule = Callable[[Failure], str | None]

DETAILS: Final[dict[str, tuple[Category, Heals, Subclass]]] = {
    "network": ("transient", "at_once", "Transient"),
    "timeout": ("transient", "at_once", "Transient"),
    "server_error": ("transient", "at_once", "Transient"),
    "rate_limited": ("transient", "later", "Transient"),
    "provider_overloaded": ("transient", "later", "Transient"),
    "contention": ("transient", "later", "Resource"),
    "preempted": ("transient", "at_once", "Transient"),
    "asked_to_retry": ("transient", "later", "Transient"),
    "outcome_unknown": ("unknown", "person", "Logic"),
    "context_overflow": ("conditional", "changed", "Resource"),
    "hallucination_loop": ("conditional", "changed", "Logic"),
    "token_budget": ("conditional", "changed", "Resource"),
    "model_confusion": ("conditional", "changed", "Logic"),
    "invalid_output": ("conditional", "changed", "Logic"),
    "refusal": ("conditional", "changed", "Authority"),
    "authority": ("permanent", "person", "Authority"),
    "impossible_task": ("permanent", "person", "Logic"),
    "dependency_gone": ("permanent", "person", "Resource"),
    "data_integrity": ("permanent", "person", "Logic"),
    "invalid_input": ("permanent", "person", "Logic"),
    "needs_human": ("permanent", "person", "Authority"),
    "quota": ("permanent", "person", "Resource"),
    "bug": ("permanent", "person", "Logic"),
    "gave_up": ("permanent", "person", "Logic"),
    "unroutable": ("permanent", "person", "Resource"),
    "credentials": ("permanent", "person", "Authority"),
    "credentials_expired": ("permanent", "later", "Authority"),
    "suspended": ("control", "person", "Authority"),
    "released": ("control", "at_once", "Transient"),
    "unknown": ("unknown", "unknown", "Logic"),
}
"""What each detail means: (category, heals, sub-class)."""

ALIASES: Final[dict[str, str]] = {
    "llm_provider_timeout": "timeout",
    "llm_provider_rate_limit": "rate_limited",
    "network_transient": "network",
    "github_api_rate_limit": "rate_limited",
    "gke_node_preemption": "preempted",
    "context_window_overflow": "context_overflow",
    "token_budget_exceeded": "token_budget",
    "authority_exceeded": "authority",
    "dependency_unavailable": "dependency_gone",
    "refused": "authority",
    "transient": "server_error",
    "permanent": "invalid_input",
    "delivery_rejected": "invalid_input",
    "forbidden_address": "authority",
}
"""Other names under which an `error_kind` may arrive."""

STATUSES: Final[dict[int, str]] = {
    400: "invalid_input",
    401: "credentials",
    402: "quota",
    403: "authority",
    404: "data_integrity",
    408: "timeout",
    409: "contention",
    410: "data_integrity",
    413: "invalid_input",
    422: "invalid_input",
    425: "server_error",
    429: "rate_limited",
    504: "timeout",
    529: "provider_overloaded",
}

CLASSES: Final[dict[str, str]] = {
    "builtins.TimeoutError": "timeout",
    "builtins.ConnectionError": "network",
    "socket.gaierror": "network",
    "ssl.SSLCertVerificationError": "authority",
    "ssl.SSLError": "network",
    "httpx.TimeoutException": "timeout",
    "httpx.UnsupportedProtocol": "invalid_input",
    "httpx.LocalProtocolError": "invalid_input",
    "httpx.InvalidURL": "invalid_input",
    "httpx.TransportError": "network",
    "httpcore.TimeoutException": "timeout",
    "httpcore.NetworkError": "network",
    "requests.exceptions.Timeout": "timeout",
    "requests.exceptions.SSLError": "authority",
    "requests.exceptions.ConnectionError": "network",
    "aiohttp.client_exceptions.ServerTimeoutError": "timeout",
    "aiohttp.client_exceptions.ClientConnectionError": "network",
    "redrive.errors.StoreUnavailable": "contention",
    "builtins.TypeError": "bug",
    "builtins.AttributeError": "bug",
    "builtins.NameError": "bug",
    "builtins.ImportError": "bug",
    "builtins.AssertionError": "bug",
    "builtins.SyntaxError": "bug",
    "builtins.NotImplementedError": "bug",
    "builtins.RecursionError": "bug",
    "builtins.MemoryError": "dependency_gone",
    "json.decoder.JSONDecodeError": "invalid_output",
    "msgspec.ValidationError": "invalid_output",
    "msgspec.DecodeError": "invalid_output",
    "pydantic_core._pydantic_core.ValidationError": "invalid_output",
}

OVERFLOW_PHRASES: Final = (
    "prompt is too long",
    "input is too long",
    "maximum context length",
    "reduce the length of the messages",
    "exceeds the maximum number of tokens allowed",
    "exceeds the available context size",
    "exceed model maximum",
    "too many tokens",
)

_ERRNOS: Final[dict[int, str]] = {
    errnos.ENOSPC: "contention",
    errnos.EAGAIN: "contention",
    errnos.EBUSY: "contention",
    errnos.EMFILE: "contention",
    errnos.ENFILE: "contention",
    errnos.EACCES: "authority",
    errnos.EPERM: "authority",
    errnos.ENOENT: "data_integrity",
    errnos.ECONNREFUSED: "network",
    errnos.ECONNRESET: "network",
    errnos.ETIMEDOUT: "timeout",
    errnos.EHOSTUNREACH: "network",
    errnos.ENETUNREACH: "network",
    errnos.EPIPE: "network",
}


def _control(failure: Failure) -> str | None:
    if failure.kind == "lease_expired":
        return "preempted"
    if failure.kind == "released":
        return "released"
    if failure.kind == "signal":
        return "gave_up" if failure.error_class == "GiveUp" else "asked_to_retry"
    return None


def _error_kind(failure: Failure) -> str | None:
    kind = failure.error_kind
    if kind is None:
        return None
    return kind if kind in DETAILS else ALIASES.get(kind)


def _outcome_unknown(failure: Failure) -> str | None:
    return "outcome_unknown" if "redrive.errors.OutcomeUnknown" in failure.types else None


def _overflow_phrase(failure: Failure) -> str | None:
    if failure.status not in (None, 400, 413, 422):
        return None
    text = failure.message.lower()
    return "context_overflow" if any(phrase in text for phrase in OVERFLOW_PHRASES) else None


def _sqlite(failure: Failure) -> str | None:
    code = failure.sqlstate or ""
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or "database is locked" in failure.message:
        return "contention"
    return None


def _class_table(failure: Failure) -> str | None:
    return next((CLASSES[name] for name in failure.types if name in CLASSES), None)


def _status(failure: Failure) -> str | None:
    status = failure.status
    if status is None:
        return None
    if status == 403 and ("retry-after" in failure.headers or failure.headers.get("x-ratelimit-remaining") == "0"):
        return "rate_limited"
    if status == 401 and "expired" in failure.message.lower():
        return "credentials_expired"
    return STATUSES.get(status) or ("server_error" if 500 <= status <= 599 else None)


def _errno(failure: Failure) -> str | None:
    return _ERRNOS.get(failure.errno) if failure.errno is not None else None


def _timed_out(failure: Failure) -> str | None:
    return "timeout" if failure.kind == "timeout" else None


RULES: Final[tuple[tuple[str, Rule], ...]] = (
    ("control", _control),
    ("error_kind", _error_kind),
    ("outcome_unknown", _outcome_unknown),
    ("timed_out", _timed_out),
    ("overflow_phrase", _overflow_phrase),
    ("sqlite", _sqlite),
    ("http_status", _status),
    ("class_table", _class_table),
    ("errno", _errno),
)


def cause_of(detail: str, rule: str, failure: Failure) -> Cause:
    category, heals, subclass = DETAILS.get(detail, DETAILS["unknown"])
    return Cause(category, detail, heals, rule, subclass, failure.retry_after)


def classify(failure: Failure, first: Sequence[tuple[str, Rule]] = ()) -> Cause:
    """What a failure means. `first` are the user's own rules (retry_on, give_up_on, …); they go before ours."""
    for name, rule in (*first, *RULES):
        detail = rule(failure)
        if detail is not None:
            return cause_of(detail, name, failure)
    if failure.members:
        return max((classify(member, first) for member in failure.members), key=_badness)
    if failure.cause is not None:
        cause = classify(failure.cause, first)
        if cause.category != "unknown":
            return cause
    return cause_of("unknown", "no_rule", failure)


_BADNESS: Final[dict[Category, int]] = {"control": 0, "transient": 1, "conditional": 2, "unknown": 3, "permanent": 4}


def _badness(cause: Cause) -> int:
    return _BADNESS[cause.category]


def by_class(names: Sequence[str], detail: str) -> Rule:
    """A rule for `retry_on=` and `give_up_on=`: any of these classes, by qualified name."""
    wanted = frozenset(names)
    return lambda failure: detail if wanted.intersection(failure.types) else None
