"""Compares two inputs side by side: path by path, and within a text word by word. Pure.

`retries/changes/difference` describes the same in lines of words; this module keeps both sides, for a reader who wants
to see the two inputs beside each other. Everything is bounded, because an input may hold a whole conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Final, Literal

import msgspec

from redrive.core.job import Json
from redrive.retries.changes.difference import count_alike, same, stretches

MOST: Final = 200
"""Most differences that are listed."""
DEEPEST: Final = 32
WORDS: Final = 300
"""Words on either side that are matched one by one; longer texts are shown as replaced."""
AROUND: Final = 12
"""Words that are kept on each side of a difference."""
LONGEST: Final = 2000
"""Most characters of one side."""
BEGINNING: Final = 40
"""Characters at the beginning of a list entry by which the entry is recognised."""
_WORD: Final = re.compile(r"\s+|\w+|[^\w\s]")


class Part(msgspec.Struct, frozen=True):
    """Some text of one side: the same on both sides, or on this side alone."""

    text: str
    differs: bool = False


class Difference(msgspec.Struct, frozen=True):
    """Values of one path on each side; None on a side without the path."""

    path: str
    kind: Literal["changed", "added", "removed"]
    before: tuple[Part, ...] | None
    after: tuple[Part, ...] | None


class Comparison(msgspec.Struct, frozen=True):
    """Listed differences, and whether there are more."""

    differences: tuple[Difference, ...]
    more: bool = False

    @property
    def equal(self) -> bool:
        return not self.differences


def compare(before: Json, after: Json, most: int = MOST) -> Comparison:
    """Lists the differences of two inputs: each field of the older one, then fields that only the newer one has."""
    differences = list(islice(_between(before, after, "", 0), most + 1))
    return Comparison(tuple(differences[:most]), len(differences) > most)


def _between(before: Json, after: Json, path: str, depth: int) -> Iterator[Difference]:
    if same(before, after):
        return
    if depth < DEEPEST and isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _fields(before, after, path, depth)
    elif depth < DEEPEST and isinstance(before, list) and isinstance(after, list):
        yield from _items(before, after, path, depth)
    else:
        old, new = words(_text(before), _text(after))
        yield Difference(path or "input", "changed", old, new)


def _fields(before: Mapping[str, Json], after: Mapping[str, Json], path: str, depth: int) -> Iterator[Difference]:
    for name in dict.fromkeys((*before, *after)):
        at = f"{path}.{name}" if path else str(name)
        if name not in after:
            yield _removed(at, before[name])
        elif name not in before:
            yield _added(at, after[name])
        else:
            yield from _between(before[name], after[name], at, depth + 1)


def _items(before: Sequence[Json], after: Sequence[Json], path: str, depth: int) -> Iterator[Difference]:
    """Compares two lists. Entries that begin alike are the same entry, so a shortened entry is a change."""
    for i, j, k, m in stretches(before, after, _mark):
        pairs = min(j - i, m - k)
        for step in range(pairs):
            yield from _between(before[i + step], after[k + step], f"{path}[{k + step}]", depth + 1)
        for gone in range(i + pairs, j):
            yield _removed(f"{path}[{gone}]", before[gone])
        for fresh in range(k + pairs, m):
            yield _added(f"{path}[{fresh}]", after[fresh])


def _mark(item: Json) -> str:
    return _text(item)[:BEGINNING]


def _removed(path: str, value: Json) -> Difference:
    return Difference(path, "removed", (Part(_cut(_text(value)), differs=True),), None)


def _added(path: str, value: Json) -> Difference:
    return Difference(path, "added", None, (Part(_cut(_text(value)), differs=True),))


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … {len(text) - LONGEST:,} characters more"


# ---- within a text


def words(before: str, after: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Splits two texts into parts. Long stretches that are the same on both sides are cut to their ends."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    head = count_alike(old, new)
    tail = count_alike(old[head:][::-1], new[head:][::-1])
    inner_old, inner_new = old[head : len(old) - tail], new[head : len(new) - tail]
    first, last = "".join(_cut_out(old[:head], 0, AROUND)), "".join(_cut_out(old[len(old) - tail :], AROUND, 0))
    left, right = _match(inner_old, inner_new)
    return _join(Part(first), *left, Part(last)), _join(Part(first), *right, Part(last))


def _match(old: Sequence[str], new: Sequence[str]) -> tuple[list[Part], list[Part]]:
    if len(old) > WORDS or len(new) > WORDS:
        return [Part(_cut("".join(old)), differs=True)], [Part(_cut("".join(new)), differs=True)]
    left, right = [], []
    for kind, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            kept = Part("".join(_cut_out(old[i:j], AROUND, AROUND)))
            left.append(kept)
            right.append(kept)
            continue
        left.append(Part("".join(old[i:j]), differs=True))
        right.append(Part("".join(new[k:m]), differs=True))
    return left, right


def _cut_out(text: Sequence[str], first: int, last: int) -> Sequence[str]:
    """Keeps so many words of the beginning and of the end, where the text is more than twice as long."""
    if len(text) <= 2 * (first + last):
        return text
    mark = f"{' ' if first else ''}…{' ' if last else ''}"
    return [*text[:first], mark, *text[len(text) - last :]]


def _join(*parts: Part) -> tuple[Part, ...]:
    return tuple(part for part in parts if part.text)
