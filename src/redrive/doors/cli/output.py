"""Tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from redrive.doors.cli.asking import asked
from redrive.doors.cli.text import clean

if TYPE_CHECKING:
    from redrive.core.job import Job


def as_json() -> bool:
    return asked().json


def say(text: str = "") -> None:
    click.echo(text)


def say_json(value: Any) -> None:
    """One JSON document, readable by people as well."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


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


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Drawn on a terminal; plain columns in a pipe, so that other tools can read them."""
    cells = [["" if cell is None else clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _drawn(columns, cells)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _drawn(columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        drawn.add_column(name, overflow="fold", no_wrap=name == "id")
    for row in cells:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(drawn)


_STYLES = {"dead": "red", "held": "yellow", "running": "cyan", "done": "green", "wrong": "red", "ok": "green"}
