"""A JSON value as lines that open and close, within bounds: a payload may be a whole conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

Kind = Literal["object", "list", "text", "number", "word"]
MOST: Final = 1500
"""Values that are shown in all."""
ENTRIES: Final = 100
"""Entries of one object or list that are shown."""
LONG: Final = 160
"""A longer text is folded."""
LONGEST: Final = 10_000
"""Characters of one text."""
CHARACTERS: Final = 60_000
"""Characters of all texts together; what comes after is cut to LONG each."""
OPEN_DEPTH: Final = 2
"""Objects so deep are open to begin with."""
FEW: Final = 12
"""One with more entries is closed to begin with, except at the top."""


class Node(msgspec.Struct, frozen=True):
    """One value, under its name where it has one."""

    name: str | None
    kind: Kind
    text: str
    """A plain value whole; of an object or a list, its size in words."""
    inner: tuple[Node, ...] = ()
    more: int = 0
    """Entries, or characters of a text, that are not shown."""
    open: bool = False
    long: bool = False


class _Budget:
    """What may still be shown."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.characters = CHARACTERS

    def taken(self, text: str) -> str:
        """As much of a text as there is room for."""
        shown = text[: LONGEST if self.characters > 0 else LONG]
        self.characters -= len(shown)
        return shown


def tree(value: Any, most: int = MOST) -> Node:
    """The value as nodes, at most so many."""
    return _node(None, value, 0, _Budget(most))


def _node(name: str | None, value: Any, depth: int, budget: _Budget) -> Node:
    budget.left -= 1
    if isinstance(value, Mapping):
        return _holder(name, "object", [(str(key), item) for key, item in value.items()], depth, budget)
    if isinstance(value, list):
        return _holder(name, "list", [(str(index), item) for index, item in enumerate(value)], depth, budget)
    if isinstance(value, str):
        shown = budget.taken(value)
        return Node(name, "text", shown, more=len(value) - len(shown), long=_is_long(value))
    kind: Kind = "word" if value is None or isinstance(value, bool) else "number"
    return Node(name, kind, json.dumps(value))


def _is_long(text: str) -> bool:
    return len(text) > LONG or "\n" in text


def _holder(name: str | None, kind: Kind, entries: list[tuple[str, Any]], depth: int, budget: _Budget) -> Node:
    inner = tuple(_inner(entries, depth, budget))
    noun = ("field", "fields") if kind == "object" else ("entry", "entries")
    size = f"{len(entries):,} {noun[len(entries) != 1]}"
    opened = depth < OPEN_DEPTH and (depth == 0 or len(entries) <= FEW)
    return Node(name, kind, size, inner, len(entries) - len(inner), opened)


def _inner(entries: list[tuple[str, Any]], depth: int, budget: _Budget) -> Iterator[Node]:
    for key, item in entries[:ENTRIES]:
        if budget.left <= 0:
            return
        yield _node(key, item, depth + 1, budget)
