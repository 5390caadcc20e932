"""Secrets out of everything that is stored or shown besides the payload itself."""

from __future__ import annotations

import re
from typing import Final

from redrive.core.job import Json

MASK: Final = "[redacted]"
_NAME: Final = re.compile(
    r"pass(word|wd|phrase)|secret|token|api[_-]?key|authorization|credential|cookie|private[_-]?key|signature",
    re.IGNORECASE,
)
_PATTERN: Final = re.compile(
    r"-----BEGIN [A-Z ]{1,40}-----.{0,20000}?-----END [A-Z ]{1,40}-----"
    r"|(?P<scheme>\b(?:bearer|basic|token)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})"
    r"|\b(?:sk|pk|rk|ghp|gho|ghs|xox[abp]|glpat|AKIA|ASIA|AIza)[-_A-Za-z0-9]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    r"|(?P<label>\b(?:pass(?:word|wd|phrase)|secret|(?:api|private)[_-]?key|(?:access|refresh)[_-]?token|token"
    r"|client_secret|(?:set-)?cookie|credentials?)\b['\"]?\s*[=:]\s*)"
    r"(?!['\"]?\[redacted\])"
    r"(?P<labelled>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\{[^}]*\}|\[[^\]]*\]|[^\s'\"&,;)}\]]{3,})"
    r"|(?P<userinfo>://[^/\s:@]+:)(?P<userpass>[^@\s/]+)(?=@)",
    re.IGNORECASE | re.DOTALL,
)
_HINTS: Final = (
    "bearer", "basic", "token", "sk-", "sk_", "pk_", "rk_", "ghp_", "gho_", "ghs_", "xox", "glpat", "akia", "asia",
    "aiza", "eyj", "pass", "secret", "key", "cookie", "credential", "-----begin",
)  # fmt: skip
"""Without any of these there is nothing to find, and most messages have none."""


def redact_text(text: str) -> str:
    """A message without what looks like a secret."""
    low = text.lower()
    if "@" in low and "://" in low:
        return _PATTERN.sub(_mask, text)
    for hint in _HINTS:
        if hint in low:
            return _PATTERN.sub(_mask, text)
    return text


def _mask(match: re.Match[str]) -> str:
    kept = match["scheme"] or match["label"] or match["userinfo"] or ""
    return f"{kept}{MASK}"


def _is_secret(name: str, item: Json) -> bool:
    """By its name; numbers and flags are counts and switches, not secrets (max_tokens)."""
    return bool(item) and isinstance(item, str | dict | list) and _NAME.search(name) is not None


def redact(value: Json) -> Json:
    """A JSON value for showing: fields named like secrets and texts that look like one are masked."""
    if isinstance(value, dict):
        return {name: MASK if _is_secret(str(name), item) else redact(item) for name, item in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value
