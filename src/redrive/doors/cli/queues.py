"""Commands on queues, workers and tasks as they are now, and on the health of the store."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Final

import click

from redrive.api.redrive import Redrive
from redrive.core.view import view
from redrive.doors.cli import output
from redrive.doors.cli.arguments import why_option
from redrive.doors.cli.invocation import acting_user, command, command_group, connect, missing_file, run_with, use_app
from redrive.doors.cli.problems import BROKEN
from redrive.doors.cli.text import PACE, ago, clean, format_pace, one_line, plural
from redrive.errors import RedriveError
from redrive.reports.health import Health, broken
from redrive.reports.needs import spool_needs, store_failed
from redrive.reports.queue_numbers import QueueView
from redrive.reports.workforce import TaskView, WorkerView

NUMBERS: Final = ("due", "waiting", "running", "held", "done", "dead", "discarded", "purged")
WORKERS: Final = ("worker", "since", "heard of", "runs", "longest", "version", "queues", "now")
TASKS: Final = ("task", "queue", "waiting", "running", "held", "done", "dead", "workers", *PACE)
PROBE_SECONDS: Final = 10.0
PARTS: Final = {"due": "due now", "retrying": "retrying", "parked": "parked", "comes_back": "come back", "pending": ""}
"""Numbers that are parts of others, and the words for them."""


@command_group(invoke_without_command=True)
@click.pass_context
def queues(ctx: click.Context) -> None:
    """List the queues; pause or resume one.

    How long the last successes waited, from the time they were due, and took; `failed` is the day's share of failed
    attempts.
    """
    if ctx.invoked_subcommand is not None:
        return
    columns = ("queue", "paused", *NUMBERS, *PACE)
    empty = "No queues yet: the first job of a task makes one. Try: redrive enqueue TASK '{}'"
    output.print_list(use_app(lambda rd: rd.queues.list()), columns, _queue_row, empty=empty, cut=True)


def _queue_row(queue: QueueView) -> list[object]:
    numbers = (getattr(queue, name) for name in NUMBERS)
    return [queue.name, "yes" if queue.paused else "", *numbers, *format_pace(queue)]


@queues.command(short_help="Stop workers from taking jobs of a queue.")
@click.argument("name")
@click.option("--new", is_flag=True, help="Also pause a queue that never had a job.")
@why_option
def pause(name: str, new: bool, why: str | None) -> None:
    """Stop workers from taking jobs of a queue until it is resumed; running jobs go on."""
    use_app(lambda rd: rd.queues.pause(name, who=acting_user(), why=why, new=new))
    text = f"queue {clean(name)} is paused; go on with: redrive queues resume {clean(name)}"
    output.print_answer({"queue": name, "paused": True}, text)


@queues.command()
@click.argument("name")
@why_option
def resume(name: str, why: str | None) -> None:
    """Let workers take jobs of a queue again."""
    use_app(lambda rd: rd.queues.resume(name, who=acting_user(), why=why))
    output.print_answer({"queue": name, "paused": False}, f"queue {clean(name)} is resumed")


@command()
def stats() -> None:
    """Show numbers per queue and in total; they add up to what was accepted."""
    numbers = use_app(lambda rd: rd.stats())
    rows = [[queue["name"], *(queue[name] for name in NUMBERS)] for queue in numbers["queues"]]
    empty = "No job was ever accepted here. Try: redrive enqueue TASK '{}'"
    table = output.Table(("queue", *NUMBERS), rows) if rows else empty
    output.print_answer(numbers, (f"accepted {numbers['accepted']}: {_describe_totals(numbers['totals'])}", table))


def _describe_totals(totals: dict[str, int]) -> str:
    """Format the parts of the sum, with parts of parts in brackets."""
    parts = [f"{number} {name}" for name, number in totals.items() if number and name not in PARTS]
    inner = [f"{totals[name]} {words}" for name, words in PARTS.items() if words and totals.get(name)]
    return " + ".join(parts) + (f" ({', '.join(inner)})" if inner else "") if parts else "nothing yet"


@command()
def workers() -> None:
    """List the living workers: since when they run, what they run and for how long, and what blocks them."""
    views = use_app(lambda rd: rd.workers())
    empty = "No worker is running. Start one: redrive worker APP, e.g. redrive worker tasks:rd"
    output.print_list(views, WORKERS, _worker_row, empty=empty, body=lambda: view(views), cut=True)


def _worker_row(view: WorkerView) -> tuple[object, ...]:
    longest = next((f"{job.task} {ago(job.since)}" for job in view.running[:1] if job.since), "")
    since, runs = ago(view.since) if view.since else "", f"{len(view.running)} of {view.concurrency}"
    queues = ", ".join(sorted(view.queues)) if view.queues is not None else "all"
    now = f"blocked by {view.blocked}" if view.blocked else "stopping" if view.stopping else ""
    return view.id, since, ago(view.heard_at), runs, longest, view.version or "", queues, now


@command()
def tasks() -> None:
    """List every task with its jobs by state, how long its last successes waited, from the time they were due, and
    took, and the day's share of failed attempts."""
    views = use_app(lambda rd: rd.tasks())
    empty = "No tasks yet: the first job of a task, or a worker that knows one, makes it known."
    output.print_list(views, TASKS, _task_row, empty=empty, body=lambda: view(views), cut=True)


def _task_row(view: TaskView) -> tuple[object, ...]:
    numbers = (view.waiting, view.running, view.held, view.done, view.dead, view.workers)
    return view.name, ", ".join(view.queues), *numbers, *format_pace(view)


@command()
@click.option("--probe", is_flag=True, help="Check only whether the database can be read and written: 0 or 3.")
def health(probe: bool) -> int:
    """Show whether all is well, and if not, why.

    Exit status 0: well, or healing by itself. 1: a person is needed. 3: the store cannot be used.
    With --probe, for containers: 0, or 3 and why.
    """
    if probe:
        return _probe_database()
    report = _get_health(connect(creates=True))
    output.print_answer(report, _health_lines(report))
    return report.exit_code


def _get_health(rd: Redrive) -> Health:
    """Judge the store. A database file that does not exist is broken, and is not created."""
    if (path := missing_file(rd)) is not None:
        spooled = spool_needs(rd.spool.count())
        return broken([store_failed(f"there is no database at {path}"), *spooled])
    return run_with(rd, lambda rd: rd.health())


def _health_lines(report: Health) -> Iterator[str]:
    dead = plural(report.total_dead_letter, "dead letter")
    yield f"{report.status}: {report.total_pending} pending, {dead}"
    for issue in report.issues:
        yield f"  {clean(issue)}"
    if report.status == "broken":
        yield f"  → {clean(report.needs[0].action)} {report.needs[0].command}"
    elif report.needs:
        yield "What to do about each: redrive morning"


def _probe_database() -> int:
    """Return 0 if the database can be read and written; else print why and return 3."""
    try:
        run_with(connect(), _read_and_write)
    except (RedriveError, OSError, click.ClickException) as error:
        _print_failure(error.format_message() if isinstance(error, click.ClickException) else str(error))
        return BROKEN
    output.print_answer({"status": "ok"}, "ok")
    return 0


async def _read_and_write(rd: Redrive) -> None:
    """Read, and take the write lock, within a time limit. Dead letters and needs never fail a probe."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await rd.database.probe()
    except TimeoutError:
        _print_failure(f"the database did not answer within {PROBE_SECONDS:g} s")
        sys.stderr.flush()
        os._exit(BROKEN)  # closing the store would wait for the lock that nothing releases


def _print_failure(why: str) -> None:
    click.echo(f"redrive: {one_line(why)}", err=True)
