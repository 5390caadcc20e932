"""Small pictures made of letters: sparklines and bars. In plain letters where the terminal has no others."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN: Final = "_.:-=+*#"
FULL: Final = ("█", "░")
PLAIN_FULL: Final = ("#", ".")


def can_draw(encoding: str | None = None) -> bool:
    """Whether the terminal has the letters for it."""
    said = encoding or getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        BLOCKS.encode(said)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def sparkline(values: Sequence[float], width: int | None = None, *, drawn: bool | None = None) -> str:
    """One letter per value, the highest for the largest; more values than `width` share a letter, by the largest."""
    if width is not None:
        values = squeezed(values, width)
    letters = BLOCKS if (can_draw() if drawn is None else drawn) else PLAIN
    most = max(values, default=0)
    if most <= 0:
        return letters[0] * len(values)
    return "".join(letters[_step(value / most, len(letters))] for value in values)


def _step(share: float, steps: int) -> int:
    """Nothing is the lowest letter, anything at all is at least the second."""
    return 0 if share <= 0 else max(1, min(steps - 1, round(share * (steps - 1))))


def squeezed(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: neighbours become one, the largest of them, so that no peak is lost."""
    if len(values) <= width:
        return list(values)
    edges = [len(values) * place // width for place in range(width + 1)]
    return [max(values[start:end]) for start, end in pairwise(edges)]


def bar(share: float, width: int = 20, *, drawn: bool | None = None) -> str:
    """How much of the whole, from 0 to 1."""
    full, empty = FULL if (can_draw() if drawn is None else drawn) else PLAIN_FULL
    filled = round(max(0.0, min(1.0, share)) * width)
    if share > 0 and not filled:
        filled = 1
    return full * filled + empty * (width - filled)


def aligned(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> tuple[list[str], list[list[str]]]:
    """Numbers under each other: every column but the first `left` ones is set to the right."""
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [
            cell if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return padded[0], padded[1:]


def short_number(value: float) -> str:
    """`7`, `1.2k`, `3.4M`: never more than five letters."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            said = value / size
            return f"{said:.1f}{unit}" if said < 99.95 else f"{said:.0f}{unit}"
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"
