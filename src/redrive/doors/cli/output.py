"""Tables for people, JSON for programs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Literal

import click

from redrive.doors.cli.asking import asked
from redrive.doors.cli.layout import GAP, columns_of, fitted, folded, heading
from redrive.doors.cli.text import clean

if TYPE_CHECKING:
    from redrive.core.job import Job

_RISKY = re.compile(r"[\x7f-\U0010ffff]")


def as_json() -> bool:
    return asked().json


def say(text: str = "", *, verbatim: bool = False) -> None:
    """A line for people. A terminal cuts what is too long inside words, so that is folded before, unless verbatim."""
    _write(text if verbatim or not sys.stdout.isatty() else folded(text, get_terminal_size().columns))


def _write(text: str) -> None:
    """Who has read enough (`| head -1`) closes the pipe: the command goes on to its end, and to its exit status."""
    try:
        click.echo(text)
    except BrokenPipeError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def warn(text: str) -> None:
    """Beside the answer, on stderr."""
    click.echo(folded(text, get_terminal_size().columns) if sys.stderr.isatty() else text, err=True)


def say_json(value: Any) -> None:
    """One JSON document, readable by people as well."""
    import msgspec

    _write(harmless(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def harmless(text: str) -> str:
    """Escapes what a terminal obeys (U+009B begins a command) or reorders in a JSON text, which means the same."""
    return _RISKY.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    import json

    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


@contextmanager
def warnings_of(logger: str) -> Iterator[None]:
    """What it has to say beside the answer, on stderr."""
    import logging

    handler, found = logging.StreamHandler(), logging.getLogger(logger)
    handler.setLevel(logging.WARNING)
    found.addHandler(handler)
    try:
        yield
    finally:
        found.removeHandler(handler)


def job_json(job: Job, *, secrets: bool = False) -> dict[str, Any]:
    """A job as the outside sees it; secrets in its contents are masked unless they were asked for."""
    from redrive.core.job import public
    from redrive.core.redact import redact

    body = public(job)
    if not secrets:
        body |= {name: redact(body[name]) for name in ("payload", "result", "changes", "options", "history")}
    return body


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, cut: bool = False) -> None:
    """Drawn on a terminal; plain columns in a pipe, so that other tools can read them.

    `cut`: each row is one line, and texts that are too long end with an ellipsis. Else they go on in the next line.
    """
    cells = [["" if cell is None else clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _drawn(columns, cells, cut=cut)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _drawn(columns: Sequence[str], cells: list[list[str]], *, cut: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width, height = get_terminal_size()
    console = Console(highlight=False, width=width, height=height)
    kept, out = fitted(columns_of(columns, cells), width)
    drawn = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, GAP - 1, 0, 0), pad_edge=False)
    for column in kept:
        side: Literal["left", "right"] = "right" if column.right else "left"
        whole = cut or not column.free
        drawn.add_column(heading(column), width=column.width, justify=side, overflow="ellipsis", no_wrap=whole)
    for row in zip(*(column.cells for column in kept), strict=True):
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(drawn)
    if out:
        say(f"Left out, as the terminal is narrow: {', '.join(out)}. A wider one or --json shows more.")


_STYLES = {"dead": "red", "held": "yellow", "running": "cyan", "done": "green", "wrong": "red", "ok": "green"}
