"""Describes the differences between two inputs in readable lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from redrive.core.job import Json
from redrive.retries.changes.reading import Counter, estimate, json_text, texts, tokens
from redrive.retries.changes.shapes import Adapt

SHOWN: Final = 60
"""How many characters of a value a line shows."""
DEEPEST: Final = 32
ENTRIES: Final = 400
"""Most entries between the first and last difference of a list that are matched; more are paired by position."""
MATCHED: Final = 4 * ENTRIES
"""Most entries that are matched in all lists of an input together."""


def diff(
    before: Json, after: Json, limit: int = 40, *, adapt: Adapt | None = None, count: Counter = estimate
) -> list[str]:
    """Return the differences between two effective inputs in at most `limit` lines; none if the inputs are equal."""
    if same(before, after):
        return []
    lines = [*_sizes(before, after, adapt, count), *_between(before, after, "", 0, _Room())]
    if len(lines) <= limit:
        return lines
    kept = max(0, limit - 1)
    return [*lines[:kept], f"… and {len(lines) - kept:,} more differences"]


class _Room:
    """Budget of entries that may still be matched, shared by all lists of an input."""

    def __init__(self) -> None:
        self._left = MATCHED

    def for_list(self, entries: int) -> int:
        most = min(ENTRIES, self._left)
        self._left -= min(entries, most)
        return most


def same(one: Json, other: Json) -> bool:
    """Return whether two JSON values are equal; true is not 1. Without recursion, so any depth works."""
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            if left.keys() != right.keys():
                return False
            pairs += [(left[name], right[name]) for name in left]
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif left is not right and (isinstance(left, bool) is not isinstance(right, bool) or left != right):
            return False
    return True


def _sizes(before: Json, after: Json, adapt: Adapt | None, count: Counter) -> list[str]:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return []
    old, new = tokens(before, adapt, count), tokens(after, adapt, count)
    return [] if old is None or new is None or old == new else [f"tokens: about {old:,} → {new:,}"]


def _between(before: Json, after: Json, path: str, depth: int, room: _Room) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping) and depth < DEEPEST:
        yield from _fields(before, after, path, depth, room)
    elif same(before, after):
        return
    elif isinstance(before, list) and isinstance(after, list) and depth < DEEPEST:
        yield from _items(before, after, path, depth, room)
    else:
        yield f"{path or 'input'}: " + ("changed" if depth >= DEEPEST else _values(before, after))


def _fields(before: Mapping[str, Json], after: Mapping[str, Json], path: str, depth: int, room: _Room) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        at = f"{path}.{name}" if path else str(name)
        if name not in after:
            yield f"{at}: removed, was {_show(before[name])}"
        elif name not in before:
            yield f"{at}: added {_show(after[name])}"
        else:
            yield from _between(before[name], after[name], at, depth + 1, room)


def _items(before: list[Json], after: list[Json], path: str, depth: int, room: _Room) -> Iterator[str]:
    """Compare two lists. Entries are matched by their beginnings, so an entry cut in the middle still matches."""
    if len(before) != len(after):
        yield f"{path or 'input'}: {len(before):,} → {len(after):,} entries"
    for i, j, k, m in stretches(before, after, _mark, room.for_list(max(len(before), len(after)))):
        if j - i == m - k:
            for old, new in zip(range(i, j), range(k, m), strict=True):
                yield from _between(before[old], after[new], f"{path}[{new}]", depth + 1, room)
            continue
        if i < j:
            yield f"{path or 'input'}: dropped {_range(i, j)}, {_show(before[i])}"
        if k < m:
            yield f"{path or 'input'}: added {_range(k, m)}, {_show(after[k])}"


def stretches(
    before: Sequence[Json], after: Sequence[Json], mark: Callable[[Json], str], most: int = ENTRIES
) -> list[tuple[int, int, int, int]]:
    """Match the entries of two lists. The cost of matching grows with the square, so the number is bounded."""
    head = count_alike(before, after)
    tail = count_alike(before[head:][::-1], after[head:][::-1])
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if max(len(old), len(new)) > most:
        pairs = head + min(len(old), len(new))
        return [(head, pairs, head, pairs), (pairs, head + len(old), pairs, head + len(new))]
    from difflib import SequenceMatcher

    matched = SequenceMatcher(None, [mark(one) for one in old], [mark(one) for one in new], autojunk=False)
    return [(head + i, head + j, head + k, head + m) for _, i, j, k, m in matched.get_opcodes()]


def count_alike(one: Sequence[Json], other: Sequence[Json]) -> int:
    """Count the equal entries at the beginning of both lists."""
    number = 0
    for left, right in zip(one, other, strict=False):
        if not same(left, right):
            break
        number += 1
    return number


def _mark(item: Json) -> str:
    """Return the text by which an entry is matched: its kind, its ids and the beginning of its text."""
    if not isinstance(item, Mapping):
        return json_text(item)[: SHOWN // 2]
    names = [str(item.get(name, "")) for name in ("role", "type", "id", "tool_call_id", "tool_use_id", "name")]
    prose = texts(item) or texts(item.get("content"))
    return "\0".join((*names, prose[0][1][: SHOWN // 2] if prose else json_text(item)))


def _range(first: int, end: int) -> str:
    """Describe a range of entries by number, counted from 0 as in a path."""
    return f"1 (number {first})" if end - first == 1 else f"{end - first:,} (numbers {first} to {end - 1})"


def _values(before: Json, after: Json) -> str:
    if not isinstance(before, str) or not isinstance(after, str):
        return f"{_show(before)} → {_show(after)}"
    if before and after.startswith(before):
        return f"+ {_show(after[len(before) :].lstrip())}"
    if max(len(before), len(after)) <= SHOWN:
        return f"{_show(before)} → {_show(after)}"
    at = _first_difference(before, after)
    start = max(0, at - SHOWN // 3)
    return f"{_excerpt(before, start)} → {_excerpt(after, start)} ({len(before):,} → {len(after):,} characters)"


def _first_difference(one: str, other: str) -> int:
    """Find the first difference of two texts by halving, because texts may be long."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _excerpt(text: str, start: int) -> str:
    return ("…" if start else "") + _show(text[start:])


def _show(value: Json) -> str:
    """Write a value in a few words on one line."""
    if isinstance(value, Mapping) and isinstance(value.get("role"), str):
        prose = texts(value)
        return f"{value['role']}: {_show(prose[0][1])}" if prose else f"{value['role']}: {_short(json_text(value))}"
    if isinstance(value, str):
        return f'"{_short(value)}"'
    return _short(json_text(value))


def _short(text: str) -> str:
    line = " ".join(text[: 4 * SHOWN].split())
    return line if len(line) <= SHOWN and len(text) <= 4 * SHOWN else line[: SHOWN - 1].rstrip() + "…"
