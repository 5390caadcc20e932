"""Finds known phrases in the text of a failure, for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from redrive.core.job import Failure


def _read_phrases(text: str) -> tuple[str, ...]:
    """Reads phrases with bars between them."""
    return tuple(phrase.strip() for phrase in text.split("|"))


OVERFLOW_PHRASES: Final = _read_phrases("""
    prompt is too long | input is too long | maximum context length | reduce the length of the messages |
    exceeds the maximum number of tokens allowed | exceeds the available context size | exceed model maximum |
    too many tokens | context_length_exceeded | exceeds the context window | exceed context limit |
    exceeds the model's context | exceeds the model's maximum | exceeds the maximum context |
    exceeds context length | context window exceeded | context window of this model | maximum prompt length |
    max context length | input token count exceeds | too many input tokens | request exceeds the maximum size |
    reduce your message size | context window exceeds limit | exceeded model token limit |
    prompt exceeds max length | range of input length should be | number of input tokens exceeds |
    context length of only
""")
MUST_REDUCE: Final = _read_phrases("""
    tokens must be reduced | input must be reduced | prompt must be reduced | messages must be reduced |
    request too large for
""")
"""Phrases of a request that is over a limit: waiting does not make the request smaller, even on a 429."""
QUOTA_PHRASES: Final = _read_phrases("""
    credit balance is too low | exceeded your current quota | insufficient_quota | insufficient quota |
    insufficient credit | insufficient balance | insufficient funds | billing hard limit |
    billing_hard_limit_reached | out of credits | more credits | reached your specified api usage limits |
    spend limit | spending limit | monthly usage limit | payment required | account is not active
""")
PER_TIME: Final = ("resource_exhausted", "perminute", "per minute", "retrydelay", "per day")
"""Phrases of a quota that fills again by itself: such a quota is a rate limit, even if the message says quota."""
REFUSAL_PHRASES: Final = _read_phrases("""
    content management policy | content filtering policy | flagged as potentially violating |
    violates our usage polic | violating our usage polic | rejected as a result of our safety system |
    responsible ai practices | may contain inappropriate content
""")
NO_CREDENTIALS: Final = _read_phrases("""
    could not resolve authentication method | api_key client option must be set | missing key inputs argument |
    missing credentials. please pass | api key not valid | invalid api key | incorrect api key |
    pass a valid api key | password authentication failed | no password supplied | access denied for user |
    530 login | 530 not logged in | [authenticationfailed]
""")
BROKEN_SQL: Final = _read_phrases("""
    no such table | no such column | syntax error | no such function | no such savepoint | no such index |
    has no column named | values were supplied | values for | ambiguous column name | already exists |
    incomplete input | unrecognized token | wrong number of arguments | misuse of | no transaction is active |
    within a transaction | malformed json
""")
BUSY_STORE: Final = ("database is locked", "busy redis is busy", "misconf redis is", "noreplicas not enough")
"""Messages of busy stores that come without a telling code or class."""
LIMIT_WORDS: Final = ("rate limit", "rate-limit", "ratelimit", "abuse detection", "too many requests")
"""Words that make a 403 a rate limit, not a missing permission."""

# ---- the last resort: words of failures without a known class, code or status

TIMEOUT_WORDS: Final = _read_phrases("""
    timed out | timeout exceeded | deadline exceeded | read timeout | connect timeout | connection timeout |
    request timeout | gateway timeout | timeout error | operation timeout
""")
RATE_WORDS: Final = _read_phrases("""
    rate limit exceeded | rate limit reached | rate limited | rate-limited | rate limit hit | ratelimited |
    too many requests | rate_limit_exceeded | rate_limit_error | exceeded your rate limit | resource_exhausted |
    throttlingexception | too many 429 error
""")
NETWORK_WORDS: Final = _read_phrases("""
    connection refused | connection reset | connection aborted | connection closed | connection error |
    connection lost | lost connection to | server has gone away | broken pipe | name or service not known |
    name resolution | nodename nor servname | getaddrinfo failed | network is unreachable | network error |
    no route to host | remote end closed | server disconnected | failed to establish a new connection |
    tls handshake | ssl handshake | eof occurred in violation | incomplete read | peer closed connection |
    socket hang up | econnreset | econnrefused
""")
LOCK_WORDS: Final = _read_phrases("""
    database is locked | deadlock detected | deadlock found | could not serialize access | too many connections
""")
EXPIRED_WORDS: Final = _read_phrases("""
    token expired | token has expired | token is expired | expired token | session expired | session has expired |
    credentials expired | credentials have expired | signature has expired | jwt expired
""")


@lru_cache(maxsize=1024)
def _lower(message: str, body: str | None) -> str:
    return f"{message}\n{body}".lower() if body else message.lower()


def text_of(failure: Failure) -> str:
    """Returns the message and the body of a failure in lower case."""
    return _lower(failure.message, failure.body)


def says(failure: Failure, phrases: Sequence[str]) -> bool:
    return _has(text_of(failure), phrases)


def _has(text: str, phrases: Sequence[str]) -> bool:
    for phrase in phrases:  # noqa: SIM110 - every failure comes through here: a generator costs twice as much
        if phrase in text:
            return True
    return False


_PHRASES: Final = {
    "quota": QUOTA_PHRASES,
    "refusal": REFUSAL_PHRASES,
    "no_credentials": NO_CREDENTIALS,
    "busy_store": BUSY_STORE,
    "expired": ("expired",),
}
_LAST_WORDS: Final = {
    "timeout": TIMEOUT_WORDS,
    "rate": RATE_WORDS,
    "expired": EXPIRED_WORDS,
    "network": NETWORK_WORDS,
    "lock": LOCK_WORDS,
}


@lru_cache(maxsize=1024)
def find_topics(text: str) -> frozenset[str]:
    """Finds the topics of a text. Failures of one group have the same text, which is searched once."""
    return frozenset([kind for kind, phrases in _PHRASES.items() if _has(text, phrases)])


@lru_cache(maxsize=1024)
def find_last_topics(text: str) -> frozenset[str]:
    """Finds the topics of words that count only if no class, code or status decides."""
    return frozenset([kind for kind, phrases in _LAST_WORDS.items() if _has(text, phrases)])
