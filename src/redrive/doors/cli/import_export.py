"""Commands that read and write files: dead letters as JSON lines, ids of done jobs as lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import click
import msgspec

from redrive.api.redrive import Redrive
from redrive.doors.cli import output
from redrive.doors.cli.arguments import filter_options, resolve_filters, why_option
from redrive.doors.cli.invocation import (
    acting_user,
    command,
    connect,
    invocation,
    missing_file,
    run_with,
    stop_on_signals,
    use_app,
)
from redrive.doors.cli.logs import log_to_stderr
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.text import clean, plural
from redrive.scripts.import_export import Exported, Imported, Target

MOST_PROBLEMS: Final = 10
"""How many lines that were kept aside are printed one by one."""


@command("import", short_help="Import dead letters from a file of JSON lines.")
@click.argument("file")
@click.option(
    "--map",
    "mapped",
    metavar="FIELD=NAME",
    multiple=True,
    help="Where another program's lines keep a field, e.g. job_id=id or payload=event.body.",
)
@click.option(
    "--completed", metavar="FILE", help="Ids that are done: not imported, and their dead letters here are closed."
)
@click.option("--queue", metavar="NAME", help="The queue of all of them; else as the lines say, else like the task.")
@click.option("--task", metavar="NAME", help="The task of all of them; else as the lines say.")
@click.option("--waiting", is_flag=True, help="Import them as waiting jobs instead of dead letters.")
@click.option("--aside", metavar="FILE", help="Where lines go that cannot be imported. [FILE.aside.jsonl]")
@click.option("--dry-run", is_flag=True, help="Show what would happen and change nothing.")
@click.option("--follow", is_flag=True, help="Go on with what is appended to the files, as tail -F does, until Ctrl-C.")
@why_option
def import_(
    file: str, mapped: tuple[str, ...], waiting: bool, dry_run: bool, follow: bool, why: str | None, **given: Any
) -> int:
    """Import a file of JSON lines (- for a pipe): redrive's own records, or another program's queue by --map.

    Repeating it changes nothing. Exit status 1 when lines were kept aside, or completed ids could not be read. With
    --follow it ends at Ctrl-C or SIGTERM, and prints what it did.
    """
    mapping = dict(map(_read_pair, mapped)) or None
    _check_options(file, given["completed"], given["aside"], follow=follow, dry_run=dry_run)
    rd = _connect(dry_run=dry_run)
    options = {**given, "mapping": mapping, "as_": "waiting" if waiting else "dead", "why": why}
    done = _follow(rd, file, options) if follow else _import(rd, file, {**options, "dry_run": dry_run})
    problems = [{"line": line, "why": problem} for line, problem in done.problems]
    output.print_answer(msgspec.structs.asdict(done) | {"problems": problems}, _imported_lines(done))
    return 0 if done.ok else 1


def _import(rd: Redrive, file: str, options: dict[str, Any]) -> Imported:
    with _show_progress(file) as progress:
        source: Any = sys.stdin.buffer if file == "-" else file
        return run_with(rd, lambda rd: rd.dead.import_(source, who=acting_user(), progress=progress, **options))


def _follow(rd: Redrive, file: str, options: dict[str, Any]) -> Imported:
    """Import what is appended until SIGINT or SIGTERM; a second signal ends the command as signals do."""

    async def follow(rd: Redrive) -> Imported:
        return await rd.dead.import_(file, who=acting_user(), follow=stop_on_signals(), **options)

    log_to_stderr()
    return run_with(rd, follow)


def _check_options(file: str, completed: str | None, aside: str | None, *, follow: bool, dry_run: bool) -> None:
    if completed is not None and not Path(completed).expanduser().is_file():  # all that is done would be imported again
        hint = "correct the path; leave --completed out if nothing is done yet"
        raise Refusal(f"there is no file of completed ids at {completed}", hint)
    if follow and dry_run:
        raise Refusal("--follow goes on, and --dry-run changes nothing", "leave one of them out")
    if follow and file == "-":
        raise Refusal("--follow needs a file: a pipe has an end", "name the file that the other program writes")
    if file == "-" and aside is None and not dry_run:
        raise Refusal("lines from a pipe need a place for those that cannot be imported", "name one with --aside FILE")


def _read_pair(text: str) -> tuple[str, str]:
    field, sign, name = text.partition("=")
    if not sign or not field or not name:
        raise Refusal(f"--map {text!r} is not FIELD=NAME", "write it like --map job_id=id")
    return field, name


def _connect(*, dry_run: bool) -> Redrive:
    """Make the app. A dry run without a database uses an empty one in memory, so that no file is created."""
    rd = connect(creates=True)
    if dry_run and missing_file(rd) is not None:
        invocation().url = ":memory:"
        return connect(creates=True)
    return rd


@contextmanager
def _show_progress(file: str) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on a terminal, for a file that has a size."""
    path = Path(file).expanduser()
    if output.wants_json() or not sys.stderr.isatty() or not path.is_file():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task("import", total=path.stat().st_size)
        yield lambda size: bar.advance(job, size)


def _imported_lines(done: Imported) -> Iterator[str]:
    would = "would be imported" if done.dry_run else "imported"
    known = {"known with fewer tries": done.updated, "known": done.duplicates}
    numbers = known | {"completed": done.completed, "kept aside": done.aside}
    parts = [f"{done.imported} {would}", *(f"{number} {words}" for words, number in numbers.items() if number)]
    yield f"{plural(done.read, 'line')}: {' + '.join(parts)}"
    if done.closed:
        verb = "would be" if done.dry_run else "was" if done.closed == 1 else "were"
        yield f"  {plural(done.closed, 'dead letter')} {verb} closed as completed"
    if done.unread:
        yield f"  {plural(done.unread, 'line')} of the completed ids cannot be read: such lines exclude nothing"
    for line, problem in done.problems[:MOST_PROBLEMS]:
        yield f"  line {line}: {clean(problem)}"
    if len(done.problems) > MOST_PROBLEMS:
        yield f"  and {len(done.problems) - MOST_PROBLEMS} more"
    if done.kept_in:
        yield f"  they stand in {clean(done.kept_in)}, each with its number and reason"


write_options = (
    click.option("--append", is_flag=True, help="Add to the file; several processes may at once."),
    click.option("--overwrite", is_flag=True, help="Replace the file if there is one."),
)


@command(short_help="Write dead letters as JSON lines.")
@click.argument("file", default="-")
@filter_options
@write_options[0]
@write_options[1]
@click.option("--secrets", is_flag=True, help="Leave error texts as they are. The payload is always whole.")
def export(file: str, filters: dict[str, Any], **how: Any) -> None:
    """Write dead letters as JSON lines, one record per line: to a new private file, or to a pipe (-)."""

    async def write(rd: Redrive, target: Target) -> Exported:
        return await rd.dead.export(target, **how, **await resolve_filters(rd, filters))

    _write(file, write, "dead letter", "  import them elsewhere: redrive dead import {path} --url OTHER.db")


@command()
@click.argument("file", default="-")
@filter_options
@write_options[0]
@write_options[1]
def completed(file: str, filters: dict[str, Any], **how: Any) -> None:
    """Write the ids of done jobs, one per line, to a new file or to a pipe (-), for another program's list of them.

    The id is the one that the other program gave (the idempotency key), else the job's own.
    """

    async def write(rd: Redrive, target: Target) -> Exported:
        return await rd.jobs.export_completed(target, **how, **await resolve_filters(rd, filters))

    _write(file, write, "completed id")


def _write(file: str, write: Callable[[Redrive, Target], Coroutine[Any, Any, Exported]], noun: str, *more: str) -> None:
    """Write lines to standard output, or to a file and print how many they are."""
    if file == "-":
        use_app(lambda rd: write(rd, cast("BinaryIO", _CleanOutput())))
        return
    done = use_app(lambda rd: write(rd, file))
    path = clean(done.path)
    lines = (f"{path}: {plural(done.count, noun)}, one per line", *(line.format(path=path) for line in more))
    output.print_answer({"count": done.count, "path": done.path}, lines)


class _CleanOutput:
    """Writes lines to standard output without characters that a terminal would obey."""

    def writelines(self, lines: Iterable[bytes]) -> None:
        sys.stdout.buffer.writelines(output.escape_controls(line.decode()).encode() for line in lines)
