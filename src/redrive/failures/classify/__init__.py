"""Finds the cause of a failure by ordered small rules: the first that knows wins. Classes are matched by name.

A rule is a function from a Failure to a detail (a key of DETAILS) or None. The Cause keeps the name of the rule, so
that a dead letter can say which rule decided; RULE_NOTES says how each rule knows. No SDK is imported.

    details   the words for what a failure means
    classes, codes, words   the tables: exception classes, codes, phrases
    rules     the rules of redrive, in their order
    declared  the user's own rules, which go first
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
    wait = failure.retry_after
    if wait is None and failure.cause is not None:
        wait = next((link.retry_after for link in failure.chain() if link.retry_after is not None), None)
    if wait is None and detail in _SAY_IN_WORDS:
        wait = wait_in_words(text_of(failure))
    return Cause(category, detail, heals, rule, subclass, wait)


_SAY_IN_WORDS: Final = frozenset({"rate_limited", "provider_overloaded"})
"""Details for which a wait in the text is believed: only a rate limit or an overload."""


def classify(failure: Failure, first: Sequence[tuple[str, Rule]] = ()) -> Cause:
    """Finds the cause of a failure. `first` are the user's own rules (retry_on, give_up_on, …), which go first."""
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
    """Returns a wrapped failure, marked as asked of a model if the outer failure is."""
    return msgspec.structs.replace(part, model_asked=True) if failure.model_asked and not part.model_asked else part


def reads_data(failure: Failure, depth: int = 6) -> bool:
    """Tells whether a failure, or one it wraps, is data that does not fit: its meaning depends on the data's source."""
    if class_detail(failure.types) == UNFIT:
        return True
    if failure.cause is None and not failure.members:
        return False
    return depth > 0 and any(reads_data(part, depth - 1) for part in failure.wrapped)


def _ask_rule(rule: Rule, failure: Failure) -> str | None:
    """Asks a user's rule; one that raises or returns no known detail decides nothing, and `guard_rule` reports it."""
    try:
        detail = rule(failure)
    except Exception:  # noqa: BLE001 - reported by `guard_rule`, which wraps such rules
        return None
    return known_detail(detail) if isinstance(detail, str) else None


_BADNESS: Final[dict[Category, int]] = {"control": 0, "transient": 1, "conditional": 2, "unknown": 3, "permanent": 4}
_SLOWNESS: Final[dict[Heals, int]] = {"at_once": 0, "changed": 1, "later": 2, "unknown": 3, "person": 4}


def _badness(cause: Cause) -> tuple[int, int, float]:
    """Ranks causes, the worst highest: first causes that must not be repeated blindly, then those that heal least."""
    worst = 5 if cause.detail == "outcome_unknown" else _BADNESS[cause.category]
    return worst, _SLOWNESS[cause.heals], cause.retry_after or 0.0
