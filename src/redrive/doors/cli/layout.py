"""What fits beside each other on a terminal: numbers, ids and commands stay whole, texts are folded at words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

GAP: Final = 2
"""Letters between two columns."""
NAME_WIDTH: Final = 14
TEXT_WIDTH: Final = 20
"""Narrower than this a name or a text is of little use: columns are left out before."""
LEAST_WIDTH: Final = 6

TEXTS: Final = frozenset({
    "last error", "error", "why", "what", "said", "title", "suggestion", "note", "task", "queue", "agent", "schedule",
    "line", "workflow", "step", "waits for", "failed", "blocked", "detail", "category", "tried", "scope", "by", "who",
    "bound to", "now", "of", "longest", "version",
})  # fmt: skip
"""Columns that may be shortened, unless they hold numbers. All others stay whole or are left out."""
LEAST: Final = (
    "zone", "trend", "first", "bound to", "cause", "next probe", "purged", "discarded", "skipped", "retried",
    "deferred", "took p50", "wait p50", "queue", "because", "category", "attempts", "suggestion", "buried", "who", "of",
    "why", "workers", "heard of", "queues",
)  # fmt: skip
"""What is left out first where a table does not fit, in this order; then from the right. Columns that say nothing and
pictures go before."""

_NUMBER: Final = re.compile(r"[+-]?[\d.,%/()\s]*")
_PICTURE: Final = re.compile(r"[▁▂▃▄▅▆▇█░\s]*")
_PIECE: Final = re.compile(
    r"(\s*)("
    r"`[^`]+`\S*"  # a command in a sentence
    r"|\bredrive [a-z-]+ (?:'[^']*'|(?![,;.] | redrive ).)*\S?"  # a command as far as it goes
    r"|--[a-z-]+ \S+|\S+)"
)
"""What is never broken apart, and the room before it."""
_LABEL: Final = re.compile(r"\s*\S+(?: \S+)?\s{2,}(?=\S)")


@dataclass(frozen=True)
class Column:
    """One column of a table, and how wide it is drawn."""

    name: str
    cells: tuple[str, ...]
    width: int
    least: int
    """Below this, something would be cut that must not be."""
    comfort: int
    right: bool = False
    free: bool = False
    """A text that may be folded and shortened."""
    picture: bool = False


def columns_of(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Column]:
    """The columns at the width that everything in them takes."""
    return [_column(names[place], tuple(row[place] for row in rows)) for place in range(len(names))]


def _column(padded: str, cells: tuple[str, ...]) -> Column:
    name, held = padded.strip(), tuple(cell.strip() for cell in cells)
    number = any(held) and all(_NUMBER.fullmatch(cell) for cell in held)
    widest = max(map(cell_len, held), default=0)
    head = max(map(cell_len, _foldable(name).split()), default=0)
    whole = max(widest, head)
    free = not number and (name in TEXTS or name.startswith("cause in "))
    comfort = TEXT_WIDTH if any(" " in cell for cell in held) else NAME_WIDTH
    return Column(
        name, held, max(widest, cell_len(name)),
        least=min(whole, max(head, LEAST_WIDTH)) if free else whole,
        comfort=min(whole, max(head, comfort)) if free else whole,
        right=number or (not free and any(cell != cell.lstrip() for cell in (padded, *cells))),
        free=free,
        picture=any(held) and all(_PICTURE.fullmatch(cell) for cell in held),
    )  # fmt: skip


def _foldable(name: str) -> str:
    return name.replace("-", "- ")


def fitted(columns: Sequence[Column], width: int) -> tuple[list[Column], list[str]]:
    """What of a table is drawn in so many letters, and the names of the columns that are left out and say something."""
    kept = list(columns)
    while len(kept) > 1 and _taken([column.comfort for column in kept]) > width and (place := _going(kept)):
        kept.pop(place)
    while len(kept) > 1 and _taken([kept[0].comfort, *(column.least for column in kept[1:])]) > width:
        kept.pop()  # the first column says what a row is about: it stays legible
    names = {column.name for column in kept}
    return _narrowed(kept, width), [column.name for column in columns if column.name not in names and any(column.cells)]


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _going(kept: Sequence[Column]) -> int | None:
    """The place of the column to leave out next. The first one says what a line is about, and stays."""
    places = range(len(kept) - 1, 0, -1)
    goes: list[Callable[[Column], bool]] = [lambda column: not any(column.cells), lambda column: column.picture]
    goes += [lambda column, name=name: column.name == name for name in LEAST]  # type: ignore[misc]
    return next((place for judge in goes for place in places if judge(kept[place])), None)


def _narrowed(kept: list[Column], width: int) -> list[Column]:
    """Headings are folded first, then what may be shortened, the widest first; below comfort only where it must be."""
    widths = [column.width for column in kept]
    for lows in (
        [max(max(map(cell_len, column.cells), default=0), column.comfort) for column in kept],
        [column.comfort for column in kept],
        [column.least for column in kept],
    ):
        while _taken(widths) > width and any(w > low for w, low in zip(widths, lows, strict=True)):
            place = max(range(len(kept)), key=lambda at: widths[at] if widths[at] > lows[at] else -1)
            widths[place] -= 1
    return [replace(column, width=width) for column, width in zip(kept, widths, strict=True)]


def heading(column: Column) -> str:
    """Its name, on more than one line where it is too long for one."""
    if cell_len(column.name) <= column.width:
        return column.name
    return "\n".join(_filled(re.findall(r"[^\s-]+-?|-", column.name), column.width))


def _filled(words: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        glue = "" if lines and lines[-1].endswith("-") else " "
        if lines and cell_len(lines[-1] + glue + word) <= width:
            lines[-1] += glue + word
        else:
            lines.append(word)
    return lines


def folded(text: str, width: int) -> str:
    """Lines that end at words. A command stays on one line, so that it can be copied, however long it is."""
    return "\n".join(_folded(line, width) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    if cell_len(line) <= width:
        return line
    lines, further = [""], " " * _hanging(line, width)
    for room, piece in _PIECE.findall(line):
        if lines[-1].strip(" →") and cell_len(lines[-1] + room + piece) > width:
            lines.append(further + piece)
        else:
            lines[-1] += room + piece
    return "\n".join(lines)


def _hanging(line: str, width: int) -> int:
    """How far in a line goes on: under its text where it begins with a label, else a little."""
    label = _LABEL.match(line)
    if label is not None and label.end() <= width // 3:
        return label.end()
    return len(line) - len(line.lstrip()) + 2


def cell_len(text: str) -> int:
    """How many places it takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
