"""One error, one group: what two failures must share to be the same trouble."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from redrive.core.job import Failure

_VARIABLE = re.compile(
    r"(?:[^\W\d_]+(?![\w-]|:[/\\])|\s+)+|"  # plain words are swallowed whole, much faster than letter by letter
    r"""(?P<quoted>'[^'\n]{1,200}'|"[^"\n]{1,200}")"""
    r"|(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r"|(?P<url>https?://[^\s'\"<>]+)"
    r"|(?P<path>(?<![\w.])/[\w./@+-]{2,}|[A-Za-z]:\\[\w.\\ -]+)"
    r"|(?P<uuid>\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b)"
    r"|(?P<hex>\b(?:0x)?(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}\b)"
    r"|(?P<id>\b[A-Za-z]+[_-]\w*\d\w*\b)"
    r"|(?P<number>\d+(?:[.,]\d+)*)"
)


@lru_cache(maxsize=4096)
def normalise(message: str) -> str:
    """The message without what differs from one occurrence to the next."""
    return _VARIABLE.sub(_placeholder, message[:1000])


def _placeholder(match: re.Match[str]) -> str:
    return f"<{match.lastgroup}>" if match.lastgroup else match[0]


def model_family(model: str | None) -> str:
    """`claude-sonnet-4-5-20250929` and `claude-sonnet-4-6` are one family."""
    return re.split(r"[-_.:/@]?\d", model, maxsplit=1)[0] if model else ""


def fingerprint(failure: Failure, task: str, model: str | None = None) -> str:
    """The group of a failure. A digit in a message does not make a new one."""
    return _digest(
        failure.types[0] if failure.types else failure.kind,
        normalise(failure.message),
        normalise(failure.code or failure.error_kind or ""),
        failure.status or 0,
        task,
        model_family(model),
        tuple(frame.rpartition(":")[0] for frame in (failure.origin or failure.frames)[:3]),
    )


@lru_cache(maxsize=4096)
def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
