"""Commands that look after databases: doctor, backup, sql, move, relay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from redrive.api.redrive import Redrive
from redrive.core.inbox_table import inbox_ddl
from redrive.doors.cli import output
from redrive.doors.cli.invocation import command, connect, run_with, stop_on_signals, use_app
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.text import clean, plural
from redrive.fleet import migration
from redrive.fleet.doctor import FleetCheck
from redrive.jobs.open_store import hide_credentials
from redrive.reports.cells import mask_row, readable
from redrive.stores.replica.moving import Count, Report
from redrive.stores.sqlite import doctor as sqlite_doctor
from redrive.stores.sqlite.doctor import FileCheck

RELAY_PAUSE_SECONDS: Final = 1.0


@command()
@click.option("--full", is_flag=True, help="Check every page, index and record (slow on large files).")
@click.option("--fix", is_flag=True, help="Repair what can be repaired: counters, sums and wake-ups.")
def doctor(full: bool, fix: bool) -> int:
    """Check the database and what it stands on; exit status 1 if something is wrong. Changes nothing without --fix."""
    checks, fixed = use_app(lambda rd: _examine(rd, full=full, fix=fix))
    ok = all(check.ok for check in checks)
    lines = [*(f"fixed  {clean(line)}" for line in fixed), *check_lines(checks, 11)]
    output.print_answer({"ok": ok, "checks": checks, "fixed": fixed}, lines)
    return 0 if ok else 1


def check_lines(checks: Sequence[FileCheck | FleetCheck], width: int) -> Iterator[str]:
    """Format each check of a doctor as a verdict, followed by what to do."""
    for check in checks:
        verdict = "WRONG" if not check.ok else "WARN " if getattr(check, "warning", False) else "ok   "
        yield f"{verdict}  {check.name:<{width}} {clean(check.said)}"
        if check.hint:
            yield f"       {'':<{width}} → {clean(check.hint)}"


async def _examine(rd: Redrive, *, full: bool, fix: bool) -> tuple[list[FileCheck], list[str]]:
    if rd.database.path is None:
        hint = "`redrive fleet doctor` looks at a fleet; --url names a file"
        raise Refusal("this doctor looks at SQLite files", hint)
    return await rd.database.fix(full=full) if fix else (await rd.database.examine(full=full), [])


@command()
@click.argument("target")
def backup(target: str) -> None:
    """Copy the database into a new file while work goes on."""
    size = use_app(lambda rd: rd.database.backup(target))
    name = clean(target)
    text = f"{name}: {size:,} bytes, a complete copy; look at it with --url {name}"
    output.print_answer({"target": target, "bytes": size}, text)


@command()
@click.argument("query")
@click.option("--raw", is_flag=True, help="Show secrets as they are. Only on a terminal.")
def sql(query: str, raw: bool) -> None:
    """Query the database by one SELECT, on a snapshot and while work goes on. Nothing can be changed.

    At most 10 seconds and 10,000 rows. Secrets are masked as in lists: by the names of columns and JSON fields, and by
    their looks. That guards against accidents, not against SQL that takes a secret apart.
    """
    if raw and not sys.stdout.isatty():
        raise Refusal("--raw shows secrets, and this is not a terminal", "leave --raw out, or look at it on a terminal")
    path = connect().database.path
    if path is None:
        raise Refusal("SQL is for SQLite files only", "name one with --url")
    answer = sqlite_doctor.query(path, query)
    rows = [[readable(cell) for cell in row] if raw else mask_row(answer.columns, row) for row in answer.rows]
    body = {"columns": answer.columns, "rows": rows, "more": answer.more}
    output.print_list(rows, [clean(name) for name in answer.columns], list, empty="No rows.", body=body)
    if answer.more and not output.wants_json():
        output.print_warning(f"The first {len(rows):,} rows; there are more. Add WHERE or LIMIT.")


@command()
@click.option("--from", "source", metavar="URL", required=True, help="Where the jobs are: jobs.db, or a fleet.")
@click.option("--to", "target", metavar="URL", required=True, help="Where they go: an unused namespace, or a new file.")
@click.option("--undo", is_flag=True, help="Open the file again whose jobs have not arrived.")
def move(source: str, target: str, undo: bool) -> None:
    """Move all jobs with their whole records: attempts, timelines, keys, documents, counters.

    Stop every process of the old place first. Afterwards it refuses to be opened and names the new one, so that nothing
    runs in both. Killed at any step, the same command goes on where it was. --undo opens a file again, as long as its
    jobs have not arrived.
    """
    logging.getLogger("redrive").addHandler(logging.NullHandler())  # this command prints what matters itself
    if undo:
        asyncio.run(migration.undo_move(source, target))
        click.echo(f"{hide_credentials(source)} is open again; nothing was moved")
        return
    with _show_steps() as show_step:
        count = asyncio.run(migration.move(source, target, show_step))
    _print_move(count, hide_credentials(source), hide_credentials(target))


@contextmanager
def _show_steps() -> Iterator[Report]:
    """Show the steps of a move on a terminal; print nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal or output.wants_json(), transient=True) as progress:
        task = progress.add_task("move")

        def show_step(step: str, done: int, total: int) -> None:
            progress.update(task, description=step, completed=done, total=total)

        yield show_step


def _print_move(count: Count, source: str, target: str) -> None:
    jobs = sum(count.jobs.values())
    body = {"from": source, "to": target, "jobs": jobs, "states": count.jobs, "moves": count.moves}
    body |= {"documents": count.documents, "bytes": count.size, "again": count.again}
    verb = "had been moved" if count.again else "moved"
    lines = [
        f"{plural(jobs, 'job')} {verb} from {source} to {target}",
        *(f"  {state:<10} {number:>9,}" for state, number in count.jobs.items()),
        f"  with {plural(count.moves, 'move')} of their timelines and {plural(count.documents, 'document')}",
        f"  next: set REDRIVE_URL to {target}; {source} refuses to be opened and names it",
    ]
    output.print_answer(body, lines)


@command()
@click.option("--from", "source", metavar="URL", help="Your database; else the setting inbox.")
@click.option("--once", is_flag=True, help="Move what is committed now, then exit.")
@click.option(
    "--ddl",
    metavar="DIALECT",
    type=click.Choice(["postgresql", "sqlite"]),
    help="Print the statement that makes the table (postgresql or sqlite), for your migrations.",
)
def relay(source: str | None, once: bool, ddl: str | None) -> None:
    """Move jobs that were enqueued with within= from the table rd_inbox of your database into the store.

    Workers do it by themselves if the setting `inbox` names the database. Several relays take turns.
    """
    if ddl is not None:
        output.print_line(f"{inbox_ddl(ddl)};")
        return
    moved = run_with(connect(creates=True), lambda rd: _relay(rd, source, once=once))
    output.print_answer({"moved": moved}, f"{plural(moved, 'job')} moved")


async def _relay(rd: Redrive, source: str | None, *, once: bool) -> int:
    relay = rd.relay(source)
    try:
        if once:
            return await relay.move()
        logging.getLogger("redrive").addHandler(logging.StreamHandler())
        stop, moved = stop_on_signals(), 0
        while not stop.is_set():
            moved += await relay.mind()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RELAY_PAUSE_SECONDS)
        return moved
    finally:
        await relay.close()
