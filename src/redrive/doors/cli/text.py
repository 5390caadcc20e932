"""Turns values into text for a terminal: words, times, numbers, sparklines, and lines folded to its width.

Text that comes from a job is cleaned first, so that no terminal obeys it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from redrive.core.words import duration, span

if TYPE_CHECKING:
    from redrive.core.timings import Span
    from redrive.reports.queue_numbers import QueueView
    from redrive.reports.workforce import TaskView

PACE: Final = ("wait p50", "wait p95", "took p50", "took p95", "failed")
"""The columns of `format_pace`."""
BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN: Final = "_.:-=+*#"
FULL: Final = ("█", "░")
PLAIN_FULL: Final = ("#", ".")

_PIECE: Final = re.compile(
    r"(\s*)("
    r"`[^`]+`\S*"  # a command in a sentence
    r"|\bredrive [a-z-]+ (?:'[^']*'|(?![,;.] | redrive ).)*\S?"  # a command as far as it goes
    r"|--[a-z-]+ \S+|\S+)"
)
"""The space before a piece of text, and a piece that is never split."""
_LABEL: Final = re.compile(r"\s*\S+(?: \S+)?\s{2,}(?=\S)")


# ---- words


def clean(value: object) -> str:
    """Format a value as text without control characters."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def one_line(value: object) -> str:
    return clean(" ".join(str(value).split()))


def shorten(value: object, width: int = 60) -> str:
    """Format a value on one line of at most `width` characters."""
    text = one_line(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# ---- times and numbers


def ago(at: float | None, now: float | None = None) -> str:
    """Format an instant relative to now: `5 min ago`, `in 30 s`, `now`."""
    if at is None:
        return ""
    away = at - (time.time() if now is None else now)
    text = span(abs(away))
    if text == "0 s":
        return "now"
    return f"in {text}" if away > 0 else f"{text} ago"


def due(at: float, now: float | None = None) -> str:
    """Format when a job runs: `runs in 30 s`, or `due 25 s ago` if that time is past."""
    text = ago(at, now)
    return f"due {text}" if text.endswith(" ago") else f"runs {text}"


def format_number(value: float) -> str:
    """Format a number in at most five characters: `7`, `1.2k`, `3.4M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}{unit}" if scaled < 99.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"


def format_pace(view: TaskView | QueueView) -> tuple[str, ...]:
    """Format waiting times, run times and the day's share of failed attempts; unknown ones stay empty."""
    rate = f"{view.failure_rate:.0%}" if view.failure_rate is not None else ""
    return (*_percentiles(view.waited), *_percentiles(view.took), rate)


def _percentiles(times: Span | None) -> tuple[str, str]:
    return (duration(times.p50), duration(times.p95)) if times is not None else ("", "")


def align_numbers(
    columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> tuple[list[str], list[list[str]]]:
    """Align every column to the right except the first `left` ones."""
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [*line[:left], *(cell.rjust(width) for cell, width in zip(line[left:], widths[left:], strict=True))]
        for line in lines
    ]
    return padded[0], padded[1:]


# ---- charts


def can_draw(encoding: str | None = None) -> bool:
    """Tell whether the terminal's encoding has block characters."""
    try:
        BLOCKS.encode(encoding or getattr(sys.stdout, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def sparkline(values: Sequence[float], width: int | None = None, *, drawn: bool | None = None) -> str:
    """Draw one character per value; if there are more than `width` values, neighbours share one."""
    if width is not None:
        values = squeeze(values, width)
    signs = BLOCKS if (can_draw() if drawn is None else drawn) else PLAIN
    most = max(values, default=0)
    if most <= 0:
        return signs[0] * len(values)
    return "".join(signs[_step(value / most, len(signs))] for value in values)


def _step(share: float, steps: int) -> int:
    """Return the index of a share's character: only 0 gets the lowest one."""
    return 0 if share <= 0 else max(1, min(steps - 1, round(share * (steps - 1))))


def squeeze(values: Sequence[float], width: int) -> list[float]:
    """Reduce the values to at most `width`, each the largest of its neighbours, so that no peak is lost."""
    if len(values) <= width:
        return list(values)
    edges = [len(values) * place // width for place in range(width + 1)]
    return [max(values[start:end]) for start, end in pairwise(edges)]


def bar(share: float, width: int = 20, *, drawn: bool | None = None) -> str:
    """Draw a share from 0 to 1."""
    full, empty = FULL if (can_draw() if drawn is None else drawn) else PLAIN_FULL
    filled = round(max(0.0, min(1.0, share)) * width)
    if share > 0 and not filled:
        filled = 1
    return full * filled + empty * (width - filled)


# ---- lines


def fold_text(text: str, width: int) -> str:
    """Break lines at words. A command stays on one line, however long, so that people can copy it."""
    return "\n".join(_fold_line(line, width) for line in text.split("\n"))


def _fold_line(line: str, width: int) -> str:
    if cell_width(line) <= width:
        return line
    lines, indent = [""], " " * _indent(line, width)
    for space, piece in _PIECE.findall(line):
        if lines[-1].strip(" →") and cell_width(lines[-1] + space + piece) > width:
            lines.append(indent + piece)
        else:
            lines[-1] += space + piece
    return "\n".join(lines)


def _indent(line: str, width: int) -> int:
    """Return the indent of continuation lines: under the text after a label, else two more than the line's own."""
    label = _LABEL.match(line)
    if label is not None and label.end() <= width // 3:
        return label.end()
    return len(line) - len(line.lstrip()) + 2


def cell_width(text: str) -> int:
    """Count the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
