"""Computes the fingerprint that puts failures of one kind into one error group."""

from __future__ import annotations

import hashlib
import re
from functools import cache, lru_cache
from typing import Final

from redrive.core.job import Failure

_VARIABLE: Final = (
    r"(?:[^\W\d_]+(?![\w-]|:[/\\])|\s+)+|"  # plain words are matched whole, much faster than letter by letter
    r"""(?P<quoted>'[^'\n]{1,200}'|"[^"\n]{1,200}")"""
    r"|(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r"|(?P<url>https?://[^\s'\"<>]+)"
    r"|(?P<path>(?<![\w.])/[\w./@+-]{2,}|[A-Za-z]:\\[\w.\\ -]+)"
    r"|(?P<uuid>\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b)"
    r"|(?P<hex>\b(?:0x)?(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}\b)"
    r"|(?P<id>\b[A-Za-z]+[_-]\w*\d\w*\b)"
    r"|(?P<number>\d+(?:[.,]\d+)*)"
)


LENGTH: Final = 1000
"""Number of characters of a message that count."""
_ALIKE: Final = str.maketrans(dict.fromkeys("23456789", "1"))
"""No digit is kept, and only 0 has a meaning (0x): messages that differ in other digits share one cache entry."""


def normalise(message: str) -> str:
    """Removes from a message what differs from one occurrence to the next."""
    return _replace_variables(message[:LENGTH].translate(_ALIKE))


@lru_cache(maxsize=4096)
def _replace_variables(message: str) -> str:
    return _compile().sub(_placeholder, message)


@cache
def _compile() -> re.Pattern[str]:
    """Compile the pattern at the first failure."""
    return re.compile(_VARIABLE)


def _placeholder(match: re.Match[str]) -> str:
    return f"<{match.lastgroup}>" if match.lastgroup else match[0]


def model_family(model: str | None) -> str:
    """Returns the family of a model: `claude-sonnet-4-5-20250929` and `claude-sonnet-4-6` are one family."""
    return re.split(r"[-_.:/@]?\d", model, maxsplit=1)[0] if model else ""


def fingerprint(failure: Failure, task: str, model: str | None = None) -> str:
    """Computes the fingerprint of a failure. Another digit in a message does not change the fingerprint."""
    return _group(
        failure.types[0] if failure.types else failure.kind,
        failure.message[:LENGTH].translate(_ALIKE),
        failure.code or failure.error_kind or "",
        failure.status or 0,
        task,
        model,
        failure.origin or failure.frames,
    )


@lru_cache(maxsize=4096)
def _group(
    kind: str, message: str, code: str, status: int, task: str, model: str | None, frames: tuple[str, ...]
) -> str:
    places = tuple(frame.rpartition(":")[0] for frame in frames[:3])
    parts = (kind, _replace_variables(message), normalise(code), status, task, model_family(model), places)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
