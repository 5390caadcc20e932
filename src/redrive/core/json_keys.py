"""Finds a key that a JSON object has twice: parsers keep one value and drop the other without a word."""

from __future__ import annotations

from typing import Any, Final


class RepeatedKey(ValueError):
    """A JSON object has the same key twice."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"has the key {_quote_key(key)} twice: keep one")


LONGEST: Final = 100
"""Characters of a key that are repeated in a message."""


def _quote_key(key: str) -> str:
    import json

    return json.dumps(key if len(key) <= LONGEST else key[: LONGEST - 1] + "…")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object of its pairs; raises RepeatedKey. For `object_pairs_hook`."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKey(key)
            seen.add(key)
    return found


def refuse_repeated_keys(text: str | bytes) -> None:
    """Raises RepeatedKey for a text that another parser has taken for JSON."""
    try:
        _read(text)
    except RepeatedKey:
        raise
    except (ValueError, RecursionError):
        return  # the parser that took it has judged it already


def _read(text: str | bytes) -> None:
    """Numbers are measured, not read: thousands of digits are another check's to judge."""
    import json  # few programs need it beside msgspec

    json.loads(text, object_pairs_hook=unique, parse_int=len, parse_float=len)
