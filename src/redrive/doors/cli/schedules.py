"""Schedules as they stand, and forgetting one that no code has any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean, short

if TYPE_CHECKING:
    from redrive.flows.schedules import Scheduled

COLUMNS = ("schedule", "line", "zone", "last slot", "next slot", "last job", "state", "note")


@click.command(short_help="List when tasks run by themselves.")
@click.option("--forget", metavar="NAME", help="The code no longer has it: drop it from this list.")
@shared
def schedules(forget: str | None) -> None:
    """When tasks run by themselves: last and next slot, last job, and what was left out."""
    if forget is not None:
        if not ask(lambda rd: rd.forget_schedule(forget)):
            raise Problem(f"no schedule {forget!r} is known", "`redrive schedules` lists those that are")
        output.say_json({"forgotten": forget}) if output.as_json() else output.say(f"forgot {clean(forget)}")
        return
    found = ask(lambda rd: rd.schedules())
    if output.as_json():
        output.say_json([schedule.public() for schedule in found])
    elif found:
        output.table(COLUMNS, map(_row, found))
    else:
        output.say("No worker has seen a schedule yet: @rd.task(schedule=redrive.cron('0 3 * * *')) makes one.")


def _row(found: Scheduled) -> tuple[object, ...]:
    job = found.job[-8:] if found.job else ""
    return found.name, found.line, found.tz, ago(found.last_slot), _next(found), job, found.state or "", _note(found)


def _next(found: Scheduled) -> str:
    return f"due {ago(found.due_since)}" if found.due_since is not None else ago(found.next_slot)


def _note(found: Scheduled) -> str:
    return short(found.note) if found.note else ""
