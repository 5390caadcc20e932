"""Failure → Cause: ordered small rules, the first that knows wins. No SDK is imported; classes are matched by name.

A rule is a function from a Failure to a detail (a key of DETAILS) or None. Its name is kept in the Cause, so that a
dead letter can say which rule decided; RULE_NOTES says how each one knows.

    details   the words for what a failure means
    classes, codes, words   the tables: exception classes, codes, phrases
    rules     ours, in their order
    declared  the user's own, which go first
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from redrive.core.details import ALIASES, DETAILS, known_detail
from redrive.core.job import Category, Cause, Failure, Heals
from redrive.failures.classify.classes import CLASSES, STATUS_CLASSES, UNFIT, class_detail, status_class_detail
from redrive.failures.classify.declared import DeclaredRule, by_class
from redrive.failures.classify.retry_after import wait_in_words
from redrive.failures.classify.rules import OF_THE_WHOLE, RULE_NOTES, RULES, STATUSES, Rule, wraps
from redrive.failures.classify.words import OVERFLOW_PHRASES, QUOTA_PHRASES, text_of

__all__ = [
    "ALIASES", "CLASSES", "DETAILS", "OVERFLOW_PHRASES", "QUOTA_PHRASES", "RULES", "RULE_NOTES", "STATUSES",
    "STATUS_CLASSES", "DeclaredRule", "Rule", "by_class", "cause_of", "classify", "known_detail", "reads_data",
]  # fmt: skip


def cause_of(detail: str, rule: str, failure: Failure) -> Cause:
    category, heals, subclass = DETAILS.get(detail, DETAILS["unknown"])
    wait = next((link.retry_after for link in failure.chain() if link.retry_after is not None), None)
    if wait is None and detail in _SAY_IN_WORDS:
        wait = wait_in_words(text_of(failure))
    return Cause(category, detail, heals, rule, subclass, wait)


_SAY_IN_WORDS: Final = frozenset({"rate_limited", "provider_overloaded"})
"""Only who limits is believed when a text says how long to wait."""


def classify(failure: Failure, first: Sequence[tuple[str, Rule]] = ()) -> Cause:
    """What a failure means. `first` are the user's own rules (retry_on, give_up_on, …); they go before ours."""
    for name, rule in first:
        detail = _ask_rule(rule, failure)
        if detail is not None:
            return cause_of(detail, name, failure)
    for name, rule in OF_THE_WHOLE if failure.members else RULES:
        detail = rule(failure)
        if detail is not None:
            return cause_of(detail, name, failure)
    if failure.members:
        return max((classify(_within(failure, member), first) for member in failure.members), key=_badness)
    if failure.cause is not None:
        cause = classify(_within(failure, failure.cause), first)
        if cause.rule != "no_rule":
            return cause
        if wraps(failure):
            return cause_of(status_class_detail(failure.types) or "unknown", "status_class", failure)
    return cause_of("unknown", "no_rule", failure)


def _within(failure: Failure, part: Failure) -> Failure:
    """Return what a failure wraps; where a model was asked, it was asked for that, too."""
    return msgspec.structs.replace(part, model_asked=True) if failure.model_asked and not part.model_asked else part


def reads_data(failure: Failure, depth: int = 6) -> bool:
    """Tell whether a failure, or what it wraps, is data that does not fit: who was asked for it decides its meaning."""
    if class_detail(failure.types) == UNFIT:
        return True
    return depth > 0 and any(reads_data(part, depth - 1) for part in failure.wrapped)


def _ask_rule(rule: Rule, failure: Failure) -> str | None:
    """Asks a user's rule; one that raises or answers nonsense decides nothing. `guard_rule` reports it."""
    try:
        detail = rule(failure)
    except Exception:  # noqa: BLE001 - reported by `guard_rule`, which wraps such rules
        return None
    return known_detail(detail) if isinstance(detail, str) else None


_BADNESS: Final[dict[Category, int]] = {"control": 0, "transient": 1, "conditional": 2, "unknown": 3, "permanent": 4}
_SLOWNESS: Final[dict[Heals, int]] = {"at_once": 0, "changed": 1, "later": 2, "unknown": 3, "person": 4}


def _badness(cause: Cause) -> tuple[int, int, float]:
    """The worst of several: first what must not be repeated blindly, then what heals least."""
    worst = 5 if cause.detail == "outcome_unknown" else _BADNESS[cause.category]
    return worst, _SLOWNESS[cause.heals], cause.retry_after or 0.0
