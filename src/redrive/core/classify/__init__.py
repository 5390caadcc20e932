"""Failure → Cause: ordered small rules, the first that knows wins. No SDK is imported; classes are matched by name.

A rule is a function from a Failure to a detail (a key of DETAILS) or None. Its name is kept in the Cause, so that a
dead letter can say which rule decided; RULE_NOTES says how each one knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from redrive.core.classify.classes import (
    CLASSES,
    STATUS_CLASSES,
    calls_models,
    canonical,
    class_detail,
    status_class_detail,
)
from redrive.core.classify.codes import ERRNOS, WEAK_CODES, code_detail, plain, rpc_detail, sql_detail
from redrive.core.job import Category, Cause, Failure, Heals, Subclass
from redrive.errors import InvalidOption

__all__ = [
    "ALIASES", "CLASSES", "DETAILS", "OVERFLOW_PHRASES", "RULES", "RULE_NOTES", "STATUSES", "STATUS_CLASSES",
    "DeclaredRule", "Rule", "by_class", "cause_of", "classify", "known_detail",
]  # fmt: skip

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
    "rate_limit": "rate_limited",
    "overloaded": "provider_overloaded",
    "connection": "network",
    "unreachable": "network",
    "unavailable": "server_error",
    "startup_race": "contention",
    "starting": "contention",
    "not_ready": "contention",
    "conflict": "contention",
    "uncertain": "outcome_unknown",
    "uncertain_write": "outcome_unknown",
    "post_write_uncertain": "outcome_unknown",
    "user_must_act": "needs_human",
    "user_action_required": "needs_human",
    "app_closed": "needs_human",
    "app_not_running": "needs_human",
    "plugin_missing": "needs_human",
    "plugin_disabled": "needs_human",
    "not_installed": "needs_human",
    "approval_required": "suspended",
    "input_required": "suspended",
    "expired_token": "credentials_expired",
    "token_expired": "credentials_expired",
    "authentication": "credentials",
    "forbidden": "authority",
    "permission_denied": "authority",
    "not_found": "data_integrity",
    "content_filter": "refusal",
    "insufficient_quota": "quota",
    "billing": "quota",
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
_RARE_STATUSES: Final[dict[int, str]] = {
    407: "credentials",
    412: "data_integrity",
    423: "contention",
    424: "server_error",
    451: "authority",
    499: "network",
}
"""Statuses of calls that a task makes itself; a delivery takes every 4xx it does not know as final."""

OVERFLOW_PHRASES: Final = (
    "prompt is too long",
    "input is too long",
    "maximum context length",
    "reduce the length of the messages",
    "exceeds the maximum number of tokens allowed",
    "exceeds the available context size",
    "exceed model maximum",
    "too many tokens",
    "context_length_exceeded",
    "exceeds the context window",
    "exceed context limit",
    "exceeds the model's context",
    "exceeds the model's maximum",
    "exceeds the maximum context",
    "exceeds context length",
    "context window exceeded",
    "context window of this model",
    "maximum prompt length",
    "max context length",
    "input token count exceeds",
    "too many input tokens",
    "request exceeds the maximum size",
)
QUOTA_PHRASES: Final = (
    "credit balance is too low",
    "exceeded your current quota",
    "insufficient_quota",
    "insufficient quota",
    "insufficient credit",
    "insufficient balance",
    "insufficient funds",
    "billing hard limit",
    "billing_hard_limit_reached",
    "out of credits",
    "more credits",
    "reached your specified api usage limits",
    "spend limit",
    "spending limit",
    "monthly usage limit",
    "payment required",
)
_PER_TIME: Final = ("resource_exhausted", "perminute", "per minute", "retrydelay", "per day")
"""A quota that fills again by itself is a rate limit, whatever the message calls it."""


@lru_cache(maxsize=1024)
def _lower(message: str, body: str | None) -> str:
    return f"{message}\n{body}".lower() if body else message.lower()


def _text(failure: Failure) -> str:
    """What people would read, in lower case."""
    return _lower(failure.message, failure.body)


def _says(failure: Failure, phrases: Sequence[str]) -> bool:
    text = _text(failure)
    for phrase in phrases:  # noqa: SIM110 - every failure comes through here: a generator costs twice as much
        if phrase in text:
            return True
    return False


# ---- the rules, in their order


def _control(failure: Failure) -> str | None:
    if failure.kind == "lease_expired":
        return "preempted"
    if failure.kind == "released":
        return "released"
    if failure.kind == "signal":
        return "gave_up" if failure.error_class == "GiveUp" else "asked_to_retry"
    if failure.rpc_code == -32042:
        return "suspended"
    detail = class_detail(failure.types)
    return detail if detail in ("suspended", "released") else None


def known_detail(kind: str) -> str | None:
    """A detail by its own name or an alias; None for a word that is neither."""
    if kind in DETAILS:
        return kind
    word = kind.strip().lower().replace("-", "_").replace(" ", "_")
    return word if word in DETAILS else ALIASES.get(word)


def _error_kind(failure: Failure) -> str | None:
    return known_detail(failure.error_kind) if failure.error_kind else None


_UNCERTAIN: Final = re.compile(
    r"(?:OutcomeUnknown|CommitUnknown|Uncertain|CompletionUnknown|ResolutionUnknown|AmbiguousResult|UnknownCommit)"
)


def _outcome_unknown(failure: Failure) -> str | None:
    """Before anything about timeouts: these classes often derive from them."""
    if class_detail(failure.types) == "outcome_unknown" or _named(failure.types, _UNCERTAIN):
        return "outcome_unknown"
    state = failure.sqlstate
    return "outcome_unknown" if state and sql_detail(state) == "outcome_unknown" else None


def _timed_out(failure: Failure) -> str | None:
    return "timeout" if failure.kind == "timeout" else None


_TOO_MANY: Final = re.compile(
    r"input token count is [\d,]+ but [^.]{0,40}supports (?:only )?up to|`inputs` tokens [^.]{0,40}must be <="
)
_INPUT_TOKENS: Final = re.compile(
    r"input token count[^.]{0,40} exceeds|prompt tokens[^.]{0,20} exceed|(?:prompt|input|context)[^.]{0,80} "
    r"(?:tokens?|length)[^.]{0,60} exceeds? (?:the |model |its )?(?:limit|maximum|max|context)"
)


def _refused_with(failure: Failure) -> int | None:
    """The status of a refusal. An error inside a stream carries the stream's own 200, which says nothing about it."""
    status = failure.status
    return status if status is not None and status >= 300 else None


def _overflow_phrase(failure: Failure) -> str | None:
    if _refused_with(failure) not in (None, 400, 413, 422):
        return None
    if "throttl" in _text(failure) or any(code_detail(code) == "rate_limited" for code in failure.codes):
        return None  # too many tokens a minute
    return "context_overflow" if _overflows(_text(failure)) else None


@lru_cache(maxsize=1024)
def _overflows(text: str) -> bool:
    if any(phrase in text for phrase in OVERFLOW_PHRASES):
        return "please wait" not in text
    if "exceed" in text and _INPUT_TOKENS.search(text) is not None:
        return True
    return "tokens" in text and _TOO_MANY.search(text) is not None


def _quota(failure: Failure) -> str | None:
    if any(code_detail(code) == "quota" for code in failure.codes):
        return "quota"
    if _refused_with(failure) not in (None, 400, 402, 403, 429) or not _says(failure, QUOTA_PHRASES):
        return None
    per_time = _says(failure, _PER_TIME) or "resourceexhausted" in map(plain, failure.codes)
    return None if per_time else "quota"


REFUSAL_PHRASES: Final = (
    "content management policy",
    "content filtering policy",
    "flagged as potentially violating",
    "violates our usage polic",
    "violating our usage polic",
)


def _refusal_phrase(failure: Failure) -> str | None:
    """Told in words only, where a framework keeps nothing but the text."""
    return "refusal" if _refused_with(failure) in (None, 400, 422) and _says(failure, REFUSAL_PHRASES) else None


def _limit_class(failure: Failure) -> str | None:
    detail = class_detail(failure.types)
    return detail if detail in ("token_budget", "context_overflow", "quota") else None


_NO_CREDENTIALS: Final = (
    "could not resolve authentication method",
    "api_key client option must be set",
    "missing key inputs argument",
    "missing credentials. please pass",
    "api key not valid",
    "invalid api key",
    "incorrect api key",
)


def _expired_token(failure: Failure) -> str | None:
    """Credentials that a refresh brings back, told apart from those that were never good."""
    if "expired" not in _text(failure):
        return None
    about = failure.status == 401 or any(
        code_detail(code) in ("credentials", "credentials_expired") for code in failure.codes
    )
    about = about or "credentials" in (class_detail(failure.types), status_class_detail(failure.types))
    about = about or bool(failure.sqlstate and sql_detail(failure.sqlstate) == "credentials")
    return "credentials_expired" if about or failure.rpc_status == "UNAUTHENTICATED" else None


def _provider_code(failure: Failure) -> str | None:
    for code in failure.codes:
        detail = code_detail(code)
        if detail is not None:
            return _overloaded(failure) if detail == "server_error" else detail
    if failure.status is not None and failure.status >= 300:
        return None
    return next((WEAK_CODES[word] for word in map(plain, failure.codes) if word in WEAK_CODES), None)


def _overloaded(failure: Failure) -> str:
    """A server that says it has too much to do heals later than one that stumbled."""
    return "provider_overloaded" if "overloaded" in _text(failure) else "server_error"


_BROKEN_SQL: Final = ("no such table", "no such column", "syntax error", "no such function")


def _sqlstate(failure: Failure) -> str | None:
    state = failure.sqlstate
    if not state:
        return "contention" if "database is locked" in failure.message else None
    if state == "SQLITE_ERROR":
        return "bug" if _says(failure, _BROKEN_SQL) else None
    return sql_detail(state)


def _rpc_code(failure: Failure) -> str | None:
    detail = rpc_detail(failure.rpc_code, failure.rpc_status)
    return _overloaded(failure) if detail == "server_error" else detail


def _x_should_retry(failure: Failure) -> str | None:
    """The sender knows best; the status only says in which way."""
    said = failure.headers.get("x-should-retry", "").strip().lower()
    if said == "true" or failure.retryable is True:
        detail = _http_status(failure)
        return detail if detail is not None and DETAILS[detail][0] == "transient" else "asked_to_retry"
    if said != "false" and failure.retryable is not False:
        return None
    detail = _http_status(failure)
    if detail is not None and DETAILS[detail][0] != "transient":
        return detail
    if detail == "rate_limited":
        return None if failure.retry_after is not None else "quota"
    return "dependency_gone"


_LIMIT_WORDS: Final = ("rate limit", "rate-limit", "ratelimit", "abuse detection", "too many requests")


def _github_rate_limit(failure: Failure) -> str | None:
    """A 403 that counts is a rate limit, not a missing permission."""
    if failure.status != 403:
        return None
    headers = failure.headers
    counted = "retry-after" in headers or headers.get("x-ratelimit-remaining", "").strip() == "0"
    return "rate_limited" if counted or _says(failure, _LIMIT_WORDS) else None


def _certificate(failure: Failure) -> str | None:
    """A certificate that does not hold is no blip, however many layers call it one."""
    link: Failure | None = failure
    for _ in range(6):
        if link is None or link.status is not None:
            return None
        if "certificate_verify_failed" in link.message.lower() or "ssl.SSLCertVerificationError" in link.types:
            return "authority"
        link = link.cause
    return None


def _no_credentials(failure: Failure) -> str | None:
    if _refused_with(failure) in (None, 400, 401) and _says(failure, _NO_CREDENTIALS):
        return "credentials"
    return None


def _class_table(failure: Failure) -> str | None:
    return class_detail(failure.types)


def _http_status(failure: Failure) -> str | None:
    status = failure.status
    if status is None or status < 300 or status > 599:
        return None
    if status == 413 and (failure.model_call or calls_models(failure.types)):
        return "context_overflow"
    known = STATUSES.get(status) or _RARE_STATUSES.get(status)
    if known is not None:
        return known
    return _overloaded(failure) if status >= 500 else "invalid_input"


def _status_class(failure: Failure) -> str | None:
    detail = status_class_detail(failure.types)
    if detail is None or not _wraps(failure):
        return detail
    return None


_WRAPPERS: Final = frozenset(
    {"urllib.error.URLError", "urllib3.exceptions.MaxRetryError", "requests.exceptions.RetryError"}
)


def _wraps(failure: Failure) -> bool:
    """Whether the class is only the paper around another failure that says more."""
    return failure.cause is not None and bool(failure.types) and failure.types[0] in _WRAPPERS


def _errno(failure: Failure) -> str | None:
    return ERRNOS.get(failure.errno) if failure.errno is not None else None


# ---- the last resort: names and words of what nobody typed

_TIMEOUT_NAME: Final = re.compile(r"(?:Timeout|TimedOut|TimeOut|DeadlineExceeded)(?:Error|Exception|Expired)?$")
_RATE_NAME: Final = re.compile(r"(?:RateLimit\w*|TooManyRequests|Throttl\w+|FloodWait)(?:Error|Exception)?$")
_NETWORK_NAME: Final = re.compile(
    r"(?:Connection|Connect|Network|Disconnect(?:ed|ion)?|DNS|BrokenPipe|Transport|ConnectionReset|ConnectionClosed)"
    r"(?:Error|Exception)$"
)
_SERVER_NAME: Final = re.compile(
    r"(?:ServiceUnavailable|InternalServer|BadGateway|Overloaded|TemporarilyUnavailable)(?:Error|Exception)?$"
)
_TIMEOUT_WORDS: Final = (
    "timed out", "timeout exceeded", "deadline exceeded", "read timeout", "connect timeout", "connection timeout",
    "request timeout", "gateway timeout", "timeout error", "operation timeout",
)  # fmt: skip
_RATE_WORDS: Final = (
    "rate limit exceeded", "rate limit reached", "rate limited", "rate-limited", "rate limit hit", "ratelimited",
    "too many requests", "rate_limit_exceeded", "rate_limit_error", "exceeded your rate limit", "resource_exhausted",
    "throttlingexception", "too many 429 error",
)  # fmt: skip
_NETWORK_WORDS: Final = (
    "connection refused", "connection reset", "connection aborted", "connection closed", "connection error",
    "connection lost", "broken pipe", "name or service not known", "name resolution", "nodename nor servname",
    "getaddrinfo failed", "network is unreachable", "network error", "no route to host", "remote end closed",
    "server disconnected", "failed to establish a new connection", "tls handshake", "ssl handshake",
    "eof occurred in violation", "incomplete read", "peer closed connection", "socket hang up", "econnreset",
    "econnrefused",
)  # fmt: skip
_SERVER_WORDS: Final = re.compile(
    r"\b(?:service unavailable|bad gateway|temporarily unavailable|server error|(?:is|are|be|currently) overloaded|"
    r"overloaded_error|overloaded$|server overloaded|model overloaded|try again later|too many 50)"
)
_LOCK_WORDS: Final = ("database is locked", "deadlock detected", "deadlock found", "could not serialize access")
_EXPIRED_WORDS: Final = (
    "token expired", "token has expired", "token is expired", "expired token", "session expired", "session has expired",
    "credentials expired", "credentials have expired", "signature has expired", "jwt expired",
)  # fmt: skip


@lru_cache(maxsize=2048)
def _named(types: tuple[str, ...], shape: re.Pattern[str]) -> bool:
    return any(shape.search(name.rpartition(".")[2]) for name in types)


def _timeout(failure: Failure) -> str | None:
    found = _named(failure.types, _TIMEOUT_NAME) or _says(failure, _TIMEOUT_WORDS)
    return "timeout" if found else None


def _rate_limit(failure: Failure) -> str | None:
    found = _named(failure.types, _RATE_NAME) or _says(failure, _RATE_WORDS)
    return "rate_limited" if found else None


def _expired_words(failure: Failure) -> str | None:
    return "credentials_expired" if _says(failure, _EXPIRED_WORDS) else None


def _network_blip(failure: Failure) -> str | None:
    found = _named(failure.types, _NETWORK_NAME) or _says(failure, _NETWORK_WORDS)
    return "network" if found else None


def _server_words(failure: Failure) -> str | None:
    if _says(failure, _LOCK_WORDS):
        return "contention"
    if _named(failure.types, _SERVER_NAME) or _SERVER_WORDS.search(_text(failure)) is not None:
        return "provider_overloaded" if _overloaded_name(failure.types) else _overloaded(failure)
    return None


def _overloaded_name(types: tuple[str, ...]) -> bool:
    return any("Overloaded" in name for name in types)


_NOTED_RULES: Final[tuple[tuple[str, Rule, str], ...]] = (
    ("control", _control, "A lost lease, a shutdown, a signal of the task, or a class that asks to wait for a person."),
    ("error_kind", _error_kind, "The exception or the result names its kind: a typed word beats every text."),
    ("outcome_unknown", _outcome_unknown, "The call was made and nobody knows whether it landed."),
    ("timed_out", _timed_out, "The task was stopped at its `timeout=`."),
    ("overflow_phrase", _overflow_phrase, "The message says that a prompt is too long (no status, 400, 413 or 422)."),
    ("quota", _quota, "A code or a message says that credits or a paid limit are used up."),
    ("refusal_phrase", _refusal_phrase, "The message says that a policy forbids it (no status, 400 or 422)."),
    ("limit_class", _limit_class, "The class is one for a spent budget, a full context or a used-up quota."),
    ("expired_token", _expired_token, "It is about credentials, and the message says that they expired."),
    ("provider_code", _provider_code, "The provider's own code, in the exception or in the body of its answer."),
    ("sqlstate", _sqlstate, "The SQL state, SQLite's error name, or a locked database."),
    ("rpc_code", _rpc_code, "A JSON-RPC code (MCP) or a gRPC status."),
    ("x_should_retry", _x_should_retry, "The sender says whether to retry (`x-should-retry`, `retryable`)."),
    ("github_rate_limit", _github_rate_limit, "A 403 with `retry-after`, nothing remaining, or words about a limit."),
    ("certificate", _certificate, "A TLS certificate was refused, here or in what was wrapped."),
    ("no_credentials", _no_credentials, "A client says that it was given no key, or a wrong one."),
    ("class_table", _class_table, "The class of the exception, or one it derives from, is in the table of classes."),
    ("http_status", _http_status, "The exception, or its `response`, has an HTTP status."),
    ("status_class", _status_class, "The class stands for a status or is Python's own, and no status says more."),
    ("errno", _errno, "The operating system's error number."),
    ("timeout", _timeout, "Untyped: the name of the class or the message speaks of a timeout."),
    ("rate_limit", _rate_limit, "Untyped: the name of the class or the message speaks of a rate limit."),
    ("expired_words", _expired_words, "Untyped: the message says that a token or session expired."),
    ("network_blip", _network_blip, "Untyped: the name of the class or the message speaks of a broken connection."),
    ("server_words", _server_words, "Untyped: the message speaks of a lock, an overload or a fault of the server."),
)  # fmt: skip

RULES: Final[tuple[tuple[str, Rule], ...]] = tuple((name, rule) for name, rule, _ in _NOTED_RULES)
RULE_NOTES: Final[dict[str, str]] = {name: note for name, _, note in _NOTED_RULES} | {
    "no_rule": "No rule knew the failure, nor what caused it.",
}
"""How each rule knows, in one sentence."""
_OF_THE_WHOLE: Final = RULES[: [name for name, _ in RULES].index("timed_out") + 1]
"""What a group can say of itself; the rest its members say."""


def cause_of(detail: str, rule: str, failure: Failure) -> Cause:
    category, heals, subclass = DETAILS.get(detail, DETAILS["unknown"])
    return Cause(category, detail, heals, rule, subclass, _retry_after(failure))


def _retry_after(failure: Failure) -> float | None:
    """What the failure asks for, or else what it wraps."""
    link: Failure | None = failure
    for _ in range(6):
        if link is None:
            return None
        if link.retry_after is not None:
            return link.retry_after
        link = link.cause
    return None


def classify(failure: Failure, first: Sequence[tuple[str, Rule]] = ()) -> Cause:
    """What a failure means. `first` are the user's own rules (retry_on, give_up_on, …); they go before ours."""
    for name, rule in first:
        detail = _asked(rule, failure)
        if detail is not None:
            return cause_of(detail, name, failure)
    for name, rule in _OF_THE_WHOLE if failure.members else RULES:
        detail = rule(failure)
        if detail is not None:
            return cause_of(detail, name, failure)
    if failure.members:
        return max((classify(member, first) for member in failure.members), key=_badness)
    if failure.cause is not None:
        cause = classify(failure.cause, first)
        if cause.detail != "unknown":
            return cause
        if _wraps(failure):
            return cause_of(status_class_detail(failure.types) or "unknown", "status_class", failure)
    return cause_of("unknown", "no_rule", failure)


def _asked(rule: Rule, failure: Failure) -> str | None:
    """What somebody else's rule says; one that raises or speaks nonsense does not know. `guarded` reports it."""
    try:
        detail = rule(failure)
    except Exception:  # noqa: BLE001 - reported by the runtime's `guarded`, which wraps such rules
        return None
    return known_detail(detail) if isinstance(detail, str) else None


_BADNESS: Final[dict[Category, int]] = {"control": 0, "transient": 1, "conditional": 2, "unknown": 3, "permanent": 4}
_SLOWNESS: Final[dict[Heals, int]] = {"at_once": 0, "changed": 1, "later": 2, "unknown": 3, "person": 4}


def _badness(cause: Cause) -> tuple[int, int, float]:
    """The worst of several: first what must not be repeated blindly, then what heals least."""
    worst = 5 if cause.detail == "outcome_unknown" else _BADNESS[cause.category]
    return worst, _SLOWNESS[cause.heals], cause.retry_after or 0.0


# ---- the user's own rules


def by_class(names: Sequence[str], detail: str) -> Rule:
    """A rule for `retry_on=` and `give_up_on=`: any of these classes, by qualified name."""
    wanted = frozenset(names) | frozenset(map(canonical, names))
    return lambda failure: detail if _is_any(failure.types, wanted) else None


@lru_cache(maxsize=2048)
def _is_any(types: tuple[str, ...], wanted: frozenset[str]) -> bool:
    return any(name in wanted or canonical(name) in wanted for name in types)


class DeclaredRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"class_": "class"}, kw_only=True):
    """One of `[[rules]]` in redrive.toml: a detail and what must all be true for it."""

    detail: str
    class_: str | None = None
    status: int | None = None
    code: str | None = None
    message: str | None = None
    error_kind: str | None = None

    def as_rule(self, field: str = "rules") -> Rule:
        """The rule, or an InvalidOption that names what is wrong with it. `field` is where it was written."""
        detail = known_detail(self.detail)
        if detail is None:
            known = ", ".join(sorted(DETAILS))
            raise InvalidOption(field=f"{field}.detail", problem=f"{self.detail!r} is not a detail; known are {known}")
        tests = self._tests()
        if not tests:
            raise InvalidOption(field=field, problem="needs at least one of class, status, code, message, error_kind")
        return lambda failure: detail if all(test(failure) for test in tests) else None

    def _tests(self) -> list[Callable[[Failure], bool]]:
        tests: list[Callable[[Failure], bool]] = []
        if self.class_:
            tests.append(_is_class(self.class_))
        if self.status is not None:
            tests.append(lambda failure: failure.status == self.status)
        if self.code:
            word = plain(self.code)
            tests.append(lambda failure: word in map(plain, failure.codes or (failure.code or "",)))
        if self.message:
            words = self.message.lower()
            tests.append(lambda failure: words in _text(failure))
        if self.error_kind:
            tests.append(lambda failure: failure.error_kind == self.error_kind)
        return tests


def _is_class(name: str) -> Callable[[Failure], bool]:
    """By its qualified name, or by its bare name where no module is given."""
    if "." in name:
        wanted = frozenset({name, canonical(name)})
        return lambda failure: _is_any(failure.types, wanted)
    return lambda failure: any(entry.rpartition(".")[2] == name for entry in failure.types)
