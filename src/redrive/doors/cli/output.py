"""Prints answers: JSON for programs, lines and tables for people.

A table that is too wide keeps numbers, ids and commands whole, shortens texts, and then leaves columns out.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from shutil import get_terminal_size
from typing import Any, Final, Literal, NamedTuple, TypeVar

import click
import msgspec

from redrive.core.job import Job, iso, public
from redrive.core.redact import redact
from redrive.doors.cli.invocation import invocation
from redrive.doors.cli.text import cell_width, clean, fold_text, one_line

T = TypeVar("T")
GAP: Final = 2
"""Characters between two columns."""
NAME_WIDTH: Final = 14
TEXT_WIDTH: Final = 20
"""Columns are left out before a name or a text gets narrower than this."""
LEAST_WIDTH: Final = 6
_TEXTS: Final = ("last error", "error", "why", "what", "said", "title", "suggestion", "note", "tried", "now")
_NAMES: Final = ("task", "queue", "agent", "schedule", "line", "workflow", "step", "scope", "version")
_PEOPLE: Final = ("by", "who", "of")
_LISTS: Final = ("longest", "waits for", "failed", "blocked", "detail", "category", "bound to")
TEXT_COLUMNS: Final = frozenset((*_TEXTS, *_NAMES, *_PEOPLE, *_LISTS))
"""Columns that may be shortened unless they hold numbers. All others stay whole or are left out."""
_FIRST_OUT: Final = ("zone", "trend", "first", "bound to", "cause", "next probe", "purged", "discarded", "skipped")
_NEXT_OUT: Final = ("retried", "deferred", "took p50", "wait p50", "queue", "because", "category", "attempts")
_LAST_OUT: Final = ("suggestion", "buried", "who", "of", "why", "workers", "heard of", "queues")
LEFT_OUT_FIRST: Final = (*_FIRST_OUT, *_NEXT_OUT, *_LAST_OUT)
"""Columns in the order in which a table that is too wide leaves them out, after empty ones and charts."""

_RISKY: Final = re.compile(r"[\x7f-\U0010ffff]")
_NUMBER: Final = re.compile(r"[+-]?[\d.,%/()\s]*")
_CHART: Final = re.compile(r"[▁▂▃▄▅▆▇█░\s]*")
_STYLES: Final = {"dead": "red", "held": "yellow", "running": "cyan", "done": "green", "wrong": "red", "ok": "green"}


def wants_json() -> bool:
    return invocation().json


class Table(NamedTuple):
    """A table among the lines of an answer.

    `cut`: each row is one line, and texts that are too long end with an ellipsis. Else they continue in the next line.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    cut: bool = False


class Verbatim(str):
    """A line that is printed as it is, and not folded at words."""

    __slots__ = ()


Lines = Iterable[str | Table]


def print_answer(body: Any, lines: str | Lines) -> None:
    """Print `body` as JSON if --json was given, else the lines. Lines of a generator are made only if needed."""
    if wants_json():
        print_json(body)
    else:
        print_lines([lines] if isinstance(lines, str) else lines)


def print_lines(lines: Lines) -> None:
    """Print lines and tables for people."""
    for line in lines:
        if isinstance(line, Table):
            print_table(line)
        else:
            print_line(line)


def print_list(
    items: Sequence[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    empty: str,
    more: str = "",
    body: Any = None,
    cut: bool = False,
) -> None:
    """Print items as JSON if --json was given, else as a table followed by `more`, or `empty` if there are none."""
    listed: list[str | Table] = [Table(columns, map(row, items), cut), *([more] if more else [])]
    print_answer(items if body is None else body, listed if items else empty)


def print_line(text: str = "") -> None:
    """Print a line for people. On a terminal it is folded at words, unless it is verbatim."""
    folds = sys.stdout.isatty() and not isinstance(text, Verbatim)
    _write(fold_text(text, get_terminal_size().columns) if folds else text)


def _write(text: str) -> None:
    """Write to standard output. After the reader closed the pipe (`| head -1`), the command still runs to its end."""
    try:
        click.echo(text)
    except BrokenPipeError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def print_warning(text: str) -> None:
    click.echo(fold_text(text, get_terminal_size().columns) if sys.stderr.isatty() else text, err=True)


def print_json(body: Any) -> None:
    """Print one indented JSON document: objects as their `public()` says, and what a function `body` returns."""
    body = body() if callable(body) else body
    _write(escape_controls(msgspec.json.format(msgspec.json.encode(_public(body)), indent=2).decode()))


def _public(body: Any) -> Any:
    if isinstance(body, list | tuple):
        return [_public(item) for item in body]
    return body.public() if hasattr(body, "public") else body


def escape_controls(text: str) -> str:
    """Escape characters of a JSON text that a terminal obeys (U+009B begins a command) or reorders."""
    return _RISKY.sub(lambda sign: sign[0] if sign[0].isprintable() else json.dumps(sign[0])[1:-1], text)


@contextmanager
def print_log_warnings(logger_name: str) -> Iterator[None]:
    """Print the warnings of a logger to stderr while the block runs."""
    handler, logger = logging.StreamHandler(), logging.getLogger(logger_name)
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def job_json(job: Job, *, secrets: bool = False) -> dict[str, Any]:
    """Return the public fields of a job, with secrets in its contents masked unless `secrets`."""
    body = public(job)
    if not secrets:
        body |= {name: redact(body[name]) for name in ("payload", "result", "changes", "options", "history")}
    return body


def fact_lines(facts: Mapping[str, object]) -> Iterator[str]:
    """Format the facts that are known, one on each line."""
    for name, value in facts.items():
        if value:
            yield f"  {name:<9} {clean(value)}"


def timeline_lines(entries: Iterable[Any]) -> Iterator[str]:
    """Format the timeline of a group or a redrive."""
    for entry in entries:
        yield timeline_line(entry.at, entry.what, entry.who, entry.why)


def timeline_line(at: float | None, what: str, who: str | None, why: str | None) -> str:
    """Format an entry of a timeline: when, what, by whom and why."""
    whom, reason = f" by {clean(who)}" if who else "", f": {one_line(why)}" if why else ""
    return f"  {iso(at)} {clean(what)}{whom}{reason}"


# ---- tables


def print_table(table: Table) -> None:
    """Draw a table on a terminal; print plain columns into a pipe, so that other programs can read them."""
    cells = [["" if cell is None else clean(cell) for cell in row] for row in table.rows]
    if sys.stdout.isatty():
        _draw_table(table.columns, cells, cut=table.cut)
        return
    widths = [max(map(len, column)) for column in zip(table.columns, *cells, strict=True)]
    for line in (table.columns, *cells):
        print_line("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _draw_table(names: Sequence[str], cells: list[list[str]], *, cut: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width, height = get_terminal_size()
    console = Console(highlight=False, width=width, height=height)
    columns, left_out = fit_columns(make_columns(names, cells), width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, GAP - 1, 0, 0), pad_edge=False)
    for column in columns:
        side: Literal["left", "right"] = "right" if column.right else "left"
        whole = cut or not column.free
        table.add_column(fold_heading(column), width=column.width, justify=side, overflow="ellipsis", no_wrap=whole)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(table)
    if left_out:
        print_line(f"Left out, as the terminal is narrow: {', '.join(left_out)}. A wider one or --json shows more.")


@dataclass(frozen=True)
class TableColumn:
    """A column of a table, and how wide to draw it."""

    name: str
    cells: tuple[str, ...]
    width: int
    least: int
    """A smaller width would cut something that must stay whole."""
    comfort: int
    right: bool = False
    free: bool = False
    """Whether it holds text that may be folded and shortened."""
    chart: bool = False


def make_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[TableColumn]:
    """Make the columns as wide as their contents."""
    return [_make_column(name, tuple(row[place] for row in rows)) for place, name in enumerate(names)]


def _make_column(padded: str, cells: tuple[str, ...]) -> TableColumn:
    name, contents = padded.strip(), tuple(cell.strip() for cell in cells)
    number = any(contents) and all(_NUMBER.fullmatch(cell) for cell in contents)
    widest = max(map(cell_width, contents), default=0)
    head = max(map(cell_width, name.replace("-", "- ").split()), default=0)
    whole = max(widest, head)
    free = not number and (name in TEXT_COLUMNS or name.startswith("cause in "))
    comfort = TEXT_WIDTH if any(" " in cell for cell in contents) else NAME_WIDTH
    return TableColumn(
        name,
        contents,
        max(widest, cell_width(name)),
        least=min(whole, max(head, LEAST_WIDTH)) if free else whole,
        comfort=min(whole, max(head, comfort)) if free else whole,
        right=number or (not free and any(cell != cell.lstrip() for cell in (padded, *cells))),
        free=free,
        chart=any(contents) and all(_CHART.fullmatch(cell) for cell in contents),
    )


def fit_columns(columns: Sequence[TableColumn], width: int) -> tuple[list[TableColumn], list[str]]:
    """Choose and narrow the columns that fit into `width`; also return the names of non-empty ones left out."""
    kept = list(columns)
    while len(kept) > 1 and _total_width([column.comfort for column in kept]) > width and (place := _next_out(kept)):
        kept.pop(place)
    while len(kept) > 1 and _total_width([kept[0].comfort, *(column.least for column in kept[1:])]) > width:
        kept.pop()  # the first column says what a row is about: it stays legible
    names = {column.name for column in kept}
    left_out = [column.name for column in columns if column.name not in names and any(column.cells)]
    return _narrow_columns(kept, width), left_out


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _next_out(kept: Sequence[TableColumn]) -> int | None:
    """Return the place of the column to leave out next; never the first, which says what a row is about."""
    ranks = {place: rank for place in range(len(kept) - 1, 0, -1) if (rank := _rank(kept[place])) is not None}
    return min(ranks, key=ranks.__getitem__, default=None)


def _rank(column: TableColumn) -> int | None:
    if not any(column.cells):
        return 0
    if column.chart:
        return 1
    return 2 + LEFT_OUT_FIRST.index(column.name) if column.name in LEFT_OUT_FIRST else None


def _narrow_columns(kept: list[TableColumn], width: int) -> list[TableColumn]:
    """Fold headings first, then shorten texts, the widest first; go below comfort only if nothing else helps."""
    widths = [column.width for column in kept]
    for limits in (
        [max(max(map(cell_width, column.cells), default=0), column.comfort) for column in kept],
        [column.comfort for column in kept],
        [column.least for column in kept],
    ):
        while _total_width(widths) > width and any(w > least for w, least in zip(widths, limits, strict=True)):
            place = max(range(len(kept)), key=lambda at: widths[at] if widths[at] > limits[at] else -1)
            widths[place] -= 1
    return [replace(column, width=width) for column, width in zip(kept, widths, strict=True)]


def fold_heading(column: TableColumn) -> str:
    """Break the name of a column into lines that are no wider than the column."""
    if cell_width(column.name) <= column.width:
        return column.name
    lines: list[str] = []
    for word in re.findall(r"[^\s-]+-?|-", column.name):
        glue = "" if lines and lines[-1].endswith("-") else " "
        if lines and cell_width(lines[-1] + glue + word) <= column.width:
            lines[-1] += glue + word
        else:
            lines.append(word)
    return "\n".join(lines)
