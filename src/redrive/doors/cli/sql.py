"""`redrive sql "SELECT ..."`: a read-only look into the database, in this process of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import connect, path_of, shared
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import clean

if TYPE_CHECKING:
    from redrive.stores.sqlite.doctor import QueryResult


@click.command(short_help="Ask the database by SQL; it only reads.")
@click.argument("query")
@click.option("--raw", is_flag=True, help="Show secrets as they are. Only on a terminal.")
@shared
def sql(query: str, raw: bool) -> None:
    """Ask the database by one SELECT, on a snapshot and while work goes on. Nothing can be changed.

    At most 10 seconds and 10,000 rows. Secrets are masked as in lists: by the names of columns and JSON fields, and by
    their looks. That guards against accidents, not against SQL that takes a secret apart.
    """
    from redrive.stores.sqlite import doctor

    if raw and not sys.stdout.isatty():
        raise Problem("--raw shows secrets, and this is not a terminal", "leave --raw out, or look at it on a terminal")
    path = path_of(connect())
    if path is None:
        raise Problem("SQL is for SQLite files only", "name one with --url")
    _tell(doctor.query(path, query), raw=raw)


def _tell(answer: QueryResult, *, raw: bool) -> None:
    from redrive.reports.cells import masked_row, readable

    rows = [[readable(cell) for cell in row] if raw else masked_row(answer.columns, row) for row in answer.rows]
    if output.as_json():
        output.say_json({"columns": answer.columns, "rows": rows, "more": answer.more})
        return
    if rows:
        output.table([clean(name) for name in answer.columns], rows)
    else:
        output.say("No rows.")
    if answer.more:
        output.warn(f"The first {len(rows):,} rows; there are more. Add WHERE or LIMIT.")
