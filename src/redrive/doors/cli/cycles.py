"""Scripts' cycles as they stand, and forgetting one that is not expected any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared, who
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean

if TYPE_CHECKING:
    from redrive.scripts.cycle_history import CycleStanding

COLUMNS = ("cycle", "last", "begun", "outcome", "jobs", "usual", "next", "runs")


@click.group(invoke_without_command=True, short_help="List the cycles of scripts: last run, next start, problems.")
@shared
@click.pass_context
def cycles(ctx: click.Context) -> None:
    """List the cycles of scripts: the last run, its jobs beside the usual number, and when the next is due.

    Below the list: which of them are missing, died or had fewer jobs than usual.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = ask(lambda rd: rd.cycles())
    if output.as_json():
        from redrive.core.view import view

        output.say_json(view(found, secrets=True))
    elif found:
        _tell(found)
    else:
        output.say('No cycle has left a record yet: `with rd.cycle("nightly") as night:` in a script makes one.')


@cycles.command(short_help="Drop the records of a cycle that is not expected any more.")
@click.argument("name")
@shared
def forget(name: str) -> None:
    """Drop the records of a cycle: it is not expected any more. Its jobs stay as they are."""
    who()
    if not ask(lambda rd: rd.forget_cycle(name)):
        raise Problem(f"no cycle {name!r} has a record", "`redrive cycles` lists those that have")
    output.say_json({"forgotten": name}) if output.as_json() else output.say(f"forgot {clean(name)}")


def _tell(found: list[CycleStanding]) -> None:
    output.table(COLUMNS, map(_row, found))
    for standing in found:
        for finding in standing.findings:
            output.say(f"  {clean(finding.sentence)}")


def _row(standing: CycleStanding) -> tuple[object, ...]:
    last = standing.last
    outcome = last.outcome.replace("_", " ")
    due = ago(standing.due_at) if standing.due_at is not None else ""
    return (
        standing.name, last.cycle_id, ago(last.begun), outcome, last.jobs, standing.usual_jobs, due, standing.runs,
    )  # fmt: skip
