"""Defines the rules that find the detail of a failure, in their order: the first that knows wins.

A rule is a function from a Failure to a detail or None. RULE_NOTES says how each rule knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Final

from redrive.core.details import DETAILS, known_detail
from redrive.core.job import Failure
from redrive.failures.classify.classes import UNFIT, calls_models, class_detail, package_of, status_class_detail
from redrive.failures.classify.codes import ERRNOS, WEAK_CODES, code_detail, plain, read_numbers, rpc_detail, sql_detail
from redrive.failures.classify.words import (
    BROKEN_SQL,
    LIMIT_WORDS,
    MUST_REDUCE,
    OVERFLOW_PHRASES,
    PER_TIME,
    find_last_topics,
    find_topics,
    says,
    text_of,
)

Rule = Callable[[Failure], str | None]


def _compile_later(pattern: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    """Compile a pattern when it is first asked for: most programs that enqueue see no failure."""
    return cache(partial(re.compile, pattern, flags))


STATUSES: Final = read_numbers("""
    invalid_input=400,413,422 credentials=401 quota=402 authority=403 data_integrity=404,410 timeout=408,504
    contention=409 server_error=425 rate_limited=429 provider_overloaded=529
""")
_RARE_STATUSES: Final = read_numbers("""
    credentials=407 data_integrity=412 contention=423 server_error=424 authority=451 network=499
""")
"""Statuses of calls that a task makes itself; a delivery takes every unknown 4xx as final."""


def _control(failure: Failure) -> str | None:
    if failure.kind == "lease_expired":
        return "preempted"
    if failure.kind == "released":
        return "released"
    if failure.kind == "interrupted":
        return "interrupted_itself"
    if failure.kind == "signal":
        return "gave_up" if failure.error_class == "GiveUp" else "asked_to_retry"
    if failure.rpc_code == -32042:
        return "suspended"
    detail = class_detail(failure.types)
    return detail if detail in ("suspended", "released") else None


def _error_kind(failure: Failure) -> str | None:
    return known_detail(failure.error_kind) if failure.error_kind else None


_UNCERTAIN: Final = _compile_later(
    r"(?:OutcomeUnknown|CommitUnknown|Uncertain|CompletionUnknown|ResolutionUnknown|AmbiguousResult|UnknownCommit)"
)


def _outcome_unknown(failure: Failure) -> str | None:
    """Finds an unknown outcome. The rule goes before rules on timeouts, from which these classes often derive."""
    if class_detail(failure.types) == "outcome_unknown" or _named(failure.types, _UNCERTAIN):
        return "outcome_unknown"
    state = failure.sqlstate
    return "outcome_unknown" if state and sql_detail(state) == "outcome_unknown" else None


def _own_limits(failure: Failure) -> str | None:
    """Finds a limit of the process that runs the job; the limit says nothing about the job or its downstreams."""
    return "own_limits" if _met_our_limit(failure, 6) else None


def _met_our_limit(failure: Failure, depth: int) -> bool:
    """Returns whether a failure, or one it wraps, is a limit of this process.

    An answer of another system may name the same error: such an answer is about the limits of that system.
    """
    if failure.status is not None or depth == 0:
        return False
    if ERRNOS.get(failure.errno or 0) == "own_limits" or class_detail(failure.types) == "own_limits":
        return True
    return any(_met_our_limit(part, depth - 1) for part in failure.wrapped)


def _timed_out(failure: Failure) -> str | None:
    return "timeout" if failure.kind == "timeout" else None


_TOO_MANY: Final = _compile_later(
    r"input token count is [\d,]+ but [^.]{0,40}supports (?:only )?up to|`inputs` tokens [^.]{0,40}must be <="
    r"|`inputs` must have less than [\d,]+ tokens"
    r"|(?:longer|greater|larger) than (?:the |this )?(?:maximum |model'?s? ){0,2}(?:context|model|prompt) "
    r"(?:length|window)"
)
_INPUT_TOKENS: Final = _compile_later(
    r"input token count[^.]{0,40} exceeds|prompt tokens[^.]{0,20} exceed|(?:prompt|input|context)[^.]{0,80} "
    r"(?:tokens?|length)[^.]{0,60} exceeds? (?:the |model |its )?(?:limit|maximum|max|context)"
)


def _refused_with(failure: Failure) -> int | None:
    """Returns the status of a refusal. An error inside a stream carries the stream's 200, which says nothing."""
    status = failure.status
    return status if status is not None and status >= 300 else None


def _overflow_phrase(failure: Failure) -> str | None:
    status = _refused_with(failure)
    if status in (None, 400, 413, 422, 429) and says(failure, MUST_REDUCE):
        return "context_overflow"  # also as a 429: the request alone is over the limit, and waiting does not help
    if status not in (None, 400, 413, 422) or not _overflows(text_of(failure)):
        return None
    return None if failure.status != 413 and _throttled(failure) else "context_overflow"


def _throttled(failure: Failure) -> bool:
    """Returns whether a failure is about too many tokens a minute."""
    return "throttl" in text_of(failure) or any(code_detail(code) == "rate_limited" for code in failure.codes)


@lru_cache(maxsize=1024)
def _overflows(text: str) -> bool:
    if any(phrase in text for phrase in OVERFLOW_PHRASES):
        return "please wait" not in text
    if "exceed" in text and _INPUT_TOKENS().search(text) is not None:
        return True
    return ("token" in text or "length" in text) and _TOO_MANY().search(text) is not None


def _quota(failure: Failure) -> str | None:
    if any(code_detail(code) == "quota" for code in failure.codes):
        return "quota"
    if _refused_with(failure) not in (None, 400, 402, 403, 429) or "quota" not in find_topics(text_of(failure)):
        return None
    per_time = says(failure, PER_TIME) or "resourceexhausted" in map(plain, failure.codes)
    return None if per_time else "quota"


def _refusal_phrase(failure: Failure) -> str | None:
    """Finds a refusal in words, for frameworks that keep nothing but the text."""
    refused = _refused_with(failure) in (None, 400, 422) and "refusal" in find_topics(text_of(failure))
    return "refusal" if refused else None


def _limit_class(failure: Failure) -> str | None:
    detail = class_detail(failure.types)
    return detail if detail in ("token_budget", "context_overflow", "quota") else None


def _expired_token(failure: Failure) -> str | None:
    """Finds credentials that a refresh brings back, as opposed to credentials that were never good."""
    if "expired" not in find_topics(text_of(failure)):
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
    weak = next((WEAK_CODES[word] for word in map(plain, failure.codes) if word in WEAK_CODES), None)
    return _overloaded(failure) if weak == "server_error" else weak


def _overloaded(failure: Failure) -> str:
    """Tells an overload, by a code or in words, from another server error: an overload heals later."""
    coded = any(code_detail(code) == "provider_overloaded" for code in failure.codes)
    return "provider_overloaded" if coded or "overloaded" in text_of(failure) else "server_error"


def _sqlstate(failure: Failure) -> str | None:
    state = failure.sqlstate
    if not state:
        return "contention" if "busy_store" in find_topics(text_of(failure)) or _busy_session(failure) else None
    if state == "SQLITE_ERROR":
        return "bug" if says(failure, BROKEN_SQL) else None
    return sql_detail(state)


_BUSY_SESSION: Final = _compile_later(r"\bsession\b[^.\n]{0,100}\bis (?:currently running|already (?:running|in use))")


def _busy_session(failure: Failure) -> bool:
    """Returns whether another process has the agent's session open: an agent SDK says so in words only."""
    return calls_models(failure.types) and _BUSY_SESSION().search(text_of(failure)) is not None


def _rpc_code(failure: Failure) -> str | None:
    detail = rpc_detail(failure.rpc_code, failure.rpc_status)
    return _overloaded(failure) if detail == "server_error" else detail


def _x_should_retry(failure: Failure) -> str | None:
    """Follows the sender's word on whether to retry; the status only chooses the detail."""
    header = failure.headers.get("x-should-retry", "").strip().lower()
    if header == "true" or failure.retryable is True:
        detail = _http_status(failure)
        return detail if detail is not None and DETAILS[detail][0] == "transient" else "asked_to_retry"
    if header != "false" and failure.retryable is not False:
        return None
    detail = _http_status(failure)
    if detail is not None and DETAILS[detail][0] != "transient":
        return detail
    if detail == "rate_limited":
        return None if failure.retry_after is not None else "quota"
    return "dependency_gone"


def _github_rate_limit(failure: Failure) -> str | None:
    """Finds a 403 with signs of a limit: a rate limit, not a missing permission."""
    if failure.status != 403:
        return None
    headers = failure.headers
    counted = "retry-after" in headers or headers.get("x-ratelimit-remaining", "").strip() == "0"
    return "rate_limited" if counted or says(failure, LIMIT_WORDS) else None


def _certificate(failure: Failure) -> str | None:
    """Finds a refused certificate, which is no network error, even if outer exceptions say so."""
    for link in failure.chain():
        if link.status is not None:
            return None
        if "certificate_verify_failed" in link.message.lower() or "ssl.SSLCertVerificationError" in link.types:
            return "authority"
    return None


def _garbled(failure: Failure) -> str | None:
    """Finds an answer that is no HTTP. aiohttp calls such an answer a 400, but no server sent that status."""
    link = failure.cause
    return "network" if link is not None and "aiohttp.http_exceptions.HttpProcessingError" in link.types else None


def _no_credentials(failure: Failure) -> str | None:
    if _refused_with(failure) in (None, 400, 401) and "no_credentials" in find_topics(text_of(failure)):
        return "credentials"
    return None


def _unfit_data(failure: Failure) -> str | None:
    """Finds unfit data that no model wrote: whether the data fits next time depends on its source, so: unknown."""
    return "unknown" if class_detail(failure.types) == UNFIT and not failure.model_asked else None


def _class_table(failure: Failure) -> str | None:
    detail = class_detail(failure.types)
    return "invalid_output" if detail == UNFIT else detail


def _http_status(failure: Failure) -> str | None:
    status = failure.status
    if status is None or status < 300 or status > 599:
        return None
    if status == 413 and (failure.model_call or calls_models(failure.types)):
        return "context_overflow"
    if status in _OVERLOAD_STATUSES and _says_overloaded(failure):
        return "provider_overloaded"
    known = STATUSES.get(status) or _RARE_STATUSES.get(status)
    if known is not None:
        return known
    return _overloaded(failure) if status >= 500 else "invalid_input"


_OVERLOAD_STATUSES: Final = frozenset({400, 403, 405, 406, 408, 409, 417, 418, 420, 421, 422, 423, 424, 425, 498, 499})
"""Statuses that some providers send when they are overloaded; 401, 404 and 429 keep their own meaning."""
_OVERLOAD_WORDS: Final = _compile_later(
    r"(?m)\b(?:is|are|be|currently|temporarily|server|model|engine|service|system) overloaded\b"
    r"|(?:^|: )overloaded(?:[.,!]|$| \()|\boverloaded[,.;:] (?:please )?(?:re)?try"
)


def _says_overloaded(failure: Failure) -> bool:
    return _overloaded_name(failure.types) or _OVERLOAD_WORDS().search(text_of(failure)) is not None


def _status_class(failure: Failure) -> str | None:
    detail = status_class_detail(failure.types)
    if detail is None or not wraps(failure):
        return detail
    return None


_WRAPPERS: Final = frozenset(
    {"urllib.error.URLError", "urllib3.exceptions.MaxRetryError", "requests.exceptions.RetryError"}
)


_KUBERNETES: Final = frozenset({"kubernetes", "kubernetes_asyncio"})
"""Packages whose ApiException without a status is a failed connection, unless its cause has a status."""


def wraps(failure: Failure) -> bool:
    """Returns whether the class is only a wrapper around another failure that says more."""
    if failure.cause is None or not failure.types:
        return False
    name = failure.types[0]
    is_kubernetes = name.endswith(".ApiException") and package_of(name) in _KUBERNETES
    return name in _WRAPPERS or (failure.cause.status is not None and is_kubernetes)


def _errno(failure: Failure) -> str | None:
    return ERRNOS.get(failure.errno) if failure.errno is not None else None


# ---- the last resort: names and words of failures without a known class, code or status

_TIMEOUT_NAME: Final = _compile_later(r"(?:Timeout|TimedOut|TimeOut|DeadlineExceeded)(?:Error|Exception|Expired)?$")
_RATE_NAME: Final = _compile_later(r"(?:RateLimit\w*|TooManyRequests|Throttl\w+|FloodWait)(?:Error|Exception)?$")
_NETWORK_NAME: Final = _compile_later(
    r"(?:Connection|Connect|Network|Disconnect(?:ed|ion)?|DNS|BrokenPipe|Transport|ConnectionReset|ConnectionClosed)"
    r"(?:Error|Exception)$"
)
_SERVER_NAME: Final = _compile_later(
    r"(?:ServiceUnavailable|InternalServer|BadGateway|Overloaded|TemporarilyUnavailable)(?:Error|Exception)?$"
)
_SERVER_WORDS: Final = _compile_later(
    r"\b(?:service unavailable|bad gateway|temporarily unavailable|server error|(?:is|are|be|currently) overloaded|"
    r"overloaded_error|overloaded$|server overloaded|model overloaded|try again later|too many 50)"
)


@lru_cache(maxsize=2048)
def _named(types: tuple[str, ...], shape: Callable[[], re.Pattern[str]]) -> bool:
    return any(shape().search(name.rpartition(".")[2]) for name in types)


def _make_word_rule(detail: str, topic: str, shape: Callable[[], re.Pattern[str]] | None = None) -> Rule:
    """Makes a rule that knows a detail by the name of the class or by the words of a topic."""

    def rule(failure: Failure) -> str | None:
        named = shape is not None and _named(failure.types, shape)
        return detail if named or topic in find_last_topics(text_of(failure)) else None

    return rule


_timeout: Final = _make_word_rule("timeout", "timeout", _TIMEOUT_NAME)
_rate_limit: Final = _make_word_rule("rate_limited", "rate", _RATE_NAME)
_expired_words: Final = _make_word_rule("credentials_expired", "expired")
_network_blip: Final = _make_word_rule("network", "network", _NETWORK_NAME)


def _server_words(failure: Failure) -> str | None:
    if "lock" in find_last_topics(text_of(failure)):
        return "contention"
    if _named(failure.types, _SERVER_NAME) or _SERVER_WORDS().search(text_of(failure)) is not None:
        return "provider_overloaded" if _overloaded_name(failure.types) else _overloaded(failure)
    return None


def _overloaded_name(types: tuple[str, ...]) -> bool:
    return any("Overloaded" in name for name in types)


_NOTED_RULES: Final[tuple[tuple[str, Rule, str], ...]] = (
    ("control", _control, "A lost lease, a shutdown, a signal, a task that ends its process, or a wait for a person."),
    ("error_kind", _error_kind, "The exception or the result names its kind: a typed word beats every text."),
    ("outcome_unknown", _outcome_unknown, "The call was made, and it is not known whether it landed."),
    ("own_limits", _own_limits, "This process has no memory or file descriptors left, or its own store no space."),
    ("timed_out", _timed_out, "The task was stopped at its `timeout=`."),
    (
        "overflow_phrase",
        _overflow_phrase,
        "The message says that a prompt is too long (no status, 400, 413 or 422) or must be reduced (429, too).",
    ),
    ("quota", _quota, "A code or a message says that credits or a paid limit are used up."),
    ("refusal_phrase", _refusal_phrase, "The message says that a policy forbids it (no status, 400 or 422)."),
    ("limit_class", _limit_class, "The class is one for a spent budget, a full context or a used-up quota."),
    ("expired_token", _expired_token, "It is about credentials, and the message says that they expired."),
    ("provider_code", _provider_code, "The provider's own code, in the exception or in the body of its answer."),
    ("sqlstate", _sqlstate, "The SQL state, SQLite's error name, or a store or session that says it is busy."),
    ("rpc_code", _rpc_code, "A JSON-RPC code (MCP) or a gRPC status."),
    ("x_should_retry", _x_should_retry, "The sender says whether to retry (`x-should-retry`, `retryable`)."),
    ("github_rate_limit", _github_rate_limit, "A 403 with `retry-after`, nothing remaining, or words about a limit."),
    ("certificate", _certificate, "A TLS certificate was refused, here or in what was wrapped."),
    ("no_credentials", _no_credentials, "A client says that it was given no key, or a wrong one."),
    ("garbled", _garbled, "What came back could not be read as HTTP."),
    ("unfit_data", _unfit_data, "Data cannot be read or does not fit (JSON, a schema), and no model was asked for it."),
    ("class_table", _class_table, "The class of the exception, or one it derives from, is in the table of classes."),
    ("http_status", _http_status, "The exception, or its `response`, has an HTTP status."),
    ("status_class", _status_class, "The class stands for a status or is Python's own, and no status says more."),
    ("errno", _errno, "The operating system's error number."),
    ("timeout", _timeout, "Untyped: the name of the class or the message speaks of a timeout."),
    ("rate_limit", _rate_limit, "Untyped: the name of the class or the message speaks of a rate limit."),
    ("expired_words", _expired_words, "Untyped: the message says that a token or session expired."),
    ("network_blip", _network_blip, "Untyped: the name of the class or the message speaks of a broken connection."),
    ("server_words", _server_words, "Untyped: the message speaks of a lock, an overload or a fault of the server."),
)

RULES: Final[tuple[tuple[str, Rule], ...]] = tuple((name, rule) for name, rule, _ in _NOTED_RULES)
RULE_NOTES: Final[dict[str, str]] = {name: note for name, _, note in _NOTED_RULES} | {
    "no_rule": "No rule knew the failure, nor what caused it.",
}
"""How each rule knows, in one sentence."""
OF_THE_WHOLE: Final = RULES[: [name for name, _ in RULES].index("timed_out") + 1]
"""Rules for an exception group itself; its members decide by the other rules."""
