"""Who runs jobs, and which tasks there are: workers, tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared
from redrive.doors.cli.text import PACE, ago, pace

if TYPE_CHECKING:
    from redrive.reports.workforce import TaskView, WorkerView

WORKERS: Final = ("worker", "since", "heard of", "runs", "longest", "version", "queues", "now")
TASKS: Final = ("task", "queue", "waiting", "running", "held", "done", "dead", "workers", *PACE)


@click.command(short_help="List the workers: since when they run, and which jobs.")
@shared
def workers() -> None:
    """Living workers: since when they run, what they run and for how long, and whether something blocks them."""
    found = ask(lambda rd: rd.workers())
    if output.as_json():
        from redrive.core.view import view

        output.say_json([view(one) for one in found])
    elif found:
        output.table(WORKERS, map(_worker_row, found), cut=True)
    else:
        output.say("No worker is running. Start one: redrive worker APP, e.g. redrive worker tasks:rd")


def _worker_row(view: WorkerView) -> tuple[object, ...]:
    longest = view.running[0] if view.running else None
    now = f"blocked by {view.blocked}" if view.blocked else "stopping" if view.stopping else ""
    since, runs = ago(view.since) if view.since else "", f"{len(view.running)} of {view.concurrency}"
    return (
        view.id, since, ago(view.heard_at), runs,
        f"{longest.task} {ago(longest.since)}" if longest and longest.since else "", view.version or "",
        ", ".join(sorted(view.queues)) if view.queues is not None else "all", now,
    )  # fmt: skip


@click.command(short_help="List the tasks: how they went, and which workers know them.")
@shared
def tasks() -> None:
    """Every task with its jobs by state, how long its last successes waited, from the time they were due, and took, and
    the day's share of failed attempts."""
    found = ask(lambda rd: rd.tasks())
    if output.as_json():
        from redrive.core.view import view

        output.say_json([view(one) for one in found])
    elif found:
        output.table(TASKS, map(_task_row, found), cut=True)
    else:
        output.say("No task so far: the first job of a task, or a worker that knows one, makes it known.")


def _task_row(view: TaskView) -> tuple[object, ...]:
    numbers = (view.waiting, view.running, view.held, view.done, view.dead, view.workers)
    return view.name, ", ".join(view.queues), *numbers, *pace(view)
