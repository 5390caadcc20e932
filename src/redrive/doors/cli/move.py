"""`redrive move`: all jobs from a file into a fleet, or from a fleet into a new file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import shared
from redrive.doors.cli.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.stores.replica.moving import Count, Told


@click.command(short_help="Move all jobs from a file into a fleet, or back.")
@click.option("--from", "source", metavar="URL", required=True, help="Where the jobs are: jobs.db, or a fleet.")
@click.option("--to", "target", metavar="URL", required=True, help="Where they go: an unused namespace, or a new file.")
@click.option("--undo", is_flag=True, help="Open the file again whose jobs have not arrived.")
@shared
def move(source: str, target: str, undo: bool) -> None:
    """Move all jobs with their whole records: attempts, stories, keys, documents, counters.

    Stop every process of the old place first. Afterwards it refuses to be opened and names the new one, so that nothing
    runs in both. Killed at any step, the same command goes on where it was. --undo opens a file again, as long as its
    jobs have not arrived.
    """
    import asyncio
    import logging

    from redrive.fleet import migration
    from redrive.jobs.open_store import shown

    logging.getLogger("redrive").addHandler(logging.NullHandler())  # this command says by itself what matters
    if undo:
        asyncio.run(migration.undo_move(source, target))
        click.echo(f"{shown(source)} is open again; nothing was moved")
        return
    with _progress() as told:
        count = asyncio.run(migration.move(source, target, told))
    _tell(count, shown(source), shown(target))


@contextmanager
def _progress() -> Iterator[Told]:
    """Shows the steps on a terminal; silent elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal or output.as_json(), transient=True) as progress:
        task = progress.add_task("move")

        def told(step: str, done: int, total: int) -> None:
            progress.update(task, description=step, completed=done, total=total)

        yield told


def _tell(count: Count, source: str, target: str) -> None:
    if output.as_json():
        jobs = sum(count.jobs.values())
        output.say_json({"from": source, "to": target, "jobs": jobs, "states": count.jobs, "moves": count.moves,
                         "documents": count.documents, "bytes": count.size, "again": count.again})  # fmt: skip
        return
    word = "had been moved" if count.again else "moved"
    click.echo(f"{counted(sum(count.jobs.values()), 'job')} {word} from {source} to {target}")
    for state, number in count.jobs.items():
        click.echo(f"  {state:<10} {number:>9,}")
    click.echo(f"  with {counted(count.moves, 'move')} of their stories and {counted(count.documents, 'document')}")
    click.echo(f"  next: set REDRIVE_URL to {target}; {source} refuses to be opened and names it")
