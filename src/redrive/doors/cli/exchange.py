"""Dead letters as files of JSON lines, completed ids as files of lines: import and export."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, asked, connect, path_of, perform, shared, who, why
from redrive.doors.cli.filters import filtered, understood
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import clean, counted

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.scripts.import_export import Exported, Imported, Target

TOLD = 10
"""So many lines that were kept aside are told one by one."""


@click.command("import", short_help="Take in dead letters from a file of JSON lines.")
@click.argument("file")
@click.option(
    "--map", "mapped", metavar="FIELD=NAME", multiple=True,
    help="Where another program's lines keep a field, e.g. job_id=id or payload=event.body.",
)  # fmt: skip
@click.option("--completed", metavar="FILE", help="Ids that are done: not taken in, and their letters here are closed.")
@click.option("--queue", metavar="NAME", help="For all of them; else as the lines say, else like the task.")
@click.option("--task", metavar="NAME", help="What shall run them; else as the lines say.")
@click.option("--waiting", is_flag=True, help="To be run, instead of standing among the dead letters.")
@click.option("--aside", metavar="FILE", help="Where lines go that cannot be taken in. [FILE.aside.jsonl]")
@click.option("--dry-run", is_flag=True, help="Say what would happen and change nothing.")
@click.option("--follow", is_flag=True, help="Go on with what is appended to the files, as tail -F does, until Ctrl-C.")
@why
@shared
def import_(
    file: str, mapped: tuple[str, ...], waiting: bool, dry_run: bool, follow: bool, why: str | None, **said: Any
) -> int:
    """Take in a file of JSON lines (- for a pipe): redrive's own records, or another program's queue by --map.

    Repeating it changes nothing. Exit status 1 when lines were kept aside, or completed ids could not be read. With
    --follow it ends at Ctrl-C or SIGTERM, and says what it did.
    """
    mapping = dict(map(_pair, mapped)) or None
    _refuse_missing_ids(said["completed"])
    _refuse_together(file, follow=follow, dry_run=dry_run)
    rd = _database(dry_run=dry_run)
    options = {**said, "mapping": mapping, "as_": "waiting" if waiting else "dead", "why": why}
    if file == "-" and said["aside"] is None and not dry_run:
        raise Problem("lines from a pipe need a place for those that cannot be taken in", "name one with --aside FILE")
    done = _follow(rd, file, options) if follow else _take_in(rd, file, {**options, "dry_run": dry_run})
    if output.as_json():
        _say(done)
    else:
        _tell(done)
    return 0 if done.ok else 1


def _take_in(rd: Redrive, file: str, options: dict[str, Any]) -> Imported:
    with _progress(file) as progress:
        source: Any = sys.stdin.buffer if file == "-" else file
        return perform(rd, lambda rd: rd.dead.import_(source, who=who(), progress=progress, **options))


def _follow(rd: Redrive, file: str, options: dict[str, Any]) -> Imported:
    """Take in what is appended until SIGINT or SIGTERM; a second signal ends the command as signals do."""
    import asyncio
    import signal

    from redrive.doors.cli.worker import log_to_stderr

    async def followed(rd: Redrive) -> Imported:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            stop.set()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        return await rd.dead.import_(file, who=who(), follow=stop, **options)

    log_to_stderr()
    return perform(rd, followed)


def _refuse_together(file: str, *, follow: bool, dry_run: bool) -> None:
    if follow and dry_run:
        raise Problem("--follow goes on, and --dry-run changes nothing", "leave one of them out")
    if follow and file == "-":
        raise Problem("--follow needs a file: a pipe has an end", "name the file that the other program writes")


def _refuse_missing_ids(completed: str | None) -> None:
    """Refuse a path without a file: with a mistyped one, everything that is done would be taken in again."""
    from pathlib import Path

    if completed is not None and not Path(completed).expanduser().is_file():
        hint = "correct the path; leave --completed out if nothing is done yet"
        raise Problem(f"there is no file of completed ids at {completed}", hint)


def _pair(text: str) -> tuple[str, str]:
    field, sign, name = text.partition("=")
    if not sign or not field or not name:
        raise Problem(f"--map {text!r} is not FIELD=NAME", "write it like --map job_id=id")
    return field, name


def _database(*, dry_run: bool) -> Redrive:
    """An import may make the database; a rehearsal without one is done on an empty one that goes away."""
    rd = connect(creates=True)
    path = path_of(rd)
    if dry_run and path is not None and not path.exists():
        asked().url = ":memory:"
        return connect(creates=True)
    return rd


@contextmanager
def _progress(file: str) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal, for a file that has a size."""
    from pathlib import Path

    path = Path(file).expanduser()
    if output.as_json() or not sys.stderr.isatty() or not path.is_file():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task("import", total=path.stat().st_size)
        yield lambda size: bar.advance(job, size)


def _say(done: Imported) -> None:
    import msgspec

    body = msgspec.structs.asdict(done)
    body["problems"] = [{"line": line, "why": problem} for line, problem in done.problems]
    output.say_json(body)


def _tell(done: Imported) -> None:
    would = "would be imported" if done.dry_run else "imported"
    parts = [
        f"{done.imported} {would}",
        f"{done.updated} known with fewer tries" if done.updated else "",
        f"{done.duplicates} known" if done.duplicates else "",
        f"{done.completed} completed" if done.completed else "",
        f"{done.aside} kept aside" if done.aside else "",
    ]
    output.say(f"{counted(done.read, 'line')}: " + " + ".join(filter(None, parts)))
    if done.closed:
        verb = "would be" if done.dry_run else "was" if done.closed == 1 else "were"
        output.say(f"  {counted(done.closed, 'dead letter')} {verb} closed as completed")
    if done.unread:
        output.say(
            f"  {counted(done.unread, 'line')} of the completed ids cannot be read: nothing is left out for their sake"
        )
    for line, problem in done.problems[:TOLD]:
        output.say(f"  line {line}: {clean(problem)}")
    if len(done.problems) > TOLD:
        output.say(f"  and {len(done.problems) - TOLD} more")
    if done.kept_in:
        output.say(f"  they stand in {clean(done.kept_in)}, each with its number and reason")


@click.command(short_help="Write dead letters as JSON lines.")
@click.argument("file", default="-")
@filtered
@click.option("--append", is_flag=True, help="Add to the file; several processes may at once.")
@click.option("--overwrite", is_flag=True, help="Replace the file if there is one.")
@click.option("--secrets", is_flag=True, help="Leave error texts as they are. The payload is always whole.")
@shared
def export(file: str, filters: dict[str, Any], **how: Any) -> None:
    """Write dead letters as JSON lines, one record per line: to a new private file, or to a pipe (-)."""
    if file == "-":
        ask(lambda rd: _exported(rd, cast("BinaryIO", _Printed()), filters, how))
        return
    done = ask(lambda rd: _exported(rd, file, filters, how))
    if output.as_json():
        output.say_json({"count": done.count, "path": done.path})
    else:
        output.say(f"{clean(done.path)}: {counted(done.count, 'dead letter')}, one per line")
        output.say(f"  take them in elsewhere: redrive dead import {clean(done.path)} --url OTHER.db")


@click.command(short_help="Write the ids of done jobs, one per line.")
@click.argument("file", default="-")
@filtered
@click.option("--append", is_flag=True, help="Add to the file; several processes may at once.")
@click.option("--overwrite", is_flag=True, help="Replace the file if there is one.")
@shared
def completed(file: str, filters: dict[str, Any], **how: Any) -> None:
    """Write the ids of done jobs, one per line, to a new file or to a pipe (-), for another program's list of them.

    The id is the one that the other program gave (the idempotency key), else the job's own.
    """
    if file == "-":
        ask(lambda rd: _completed(rd, cast("BinaryIO", _Printed()), filters, how))
        return
    done = ask(lambda rd: _completed(rd, file, filters, how))
    if output.as_json():
        output.say_json({"count": done.count, "path": done.path})
    else:
        output.say(f"{clean(done.path)}: {counted(done.count, 'completed id')}, one per line")


async def _completed(rd: Redrive, target: Target, filters: dict[str, Any], how: dict[str, Any]) -> Exported:
    return await rd.jobs.export_completed(target, **how, **await understood(rd, filters))


class _Printed:
    """Prints whole lines as every command does: a terminal obeys nothing in them."""

    def writelines(self, lines: Iterable[bytes]) -> None:
        sys.stdout.buffer.writelines(output.harmless(line.decode()).encode() for line in lines)


async def _exported(rd: Redrive, target: Target, filters: dict[str, Any], how: dict[str, Any]) -> Exported:
    return await rd.dead.export(target, **how, **await understood(rd, filters))
