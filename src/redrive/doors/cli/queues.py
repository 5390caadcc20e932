"""Queues as they are now: queues, pause, resume, stats, health."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, connect, path_of, perform, shared, who, why
from redrive.doors.cli.text import PACE, clean, counted, pace

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.reports.health import Health

COLUMNS = ("queue", "due", "waiting", "running", "held", "done", "dead", "discarded", "purged")


@click.group(invoke_without_command=True)
@click.pass_context
@shared
def queues(ctx: click.Context) -> None:
    """List the queues; pause or resume one.

    How long the last successes waited, from the time they were due, and took; `failed` is the day's share of failed
    attempts.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = ask(lambda rd: rd.queues.list())
    if output.as_json():
        output.say_json([queue.public() for queue in found])
    elif found:
        rows = [
            [queue.name, "yes" if queue.paused else "", *(getattr(queue, name) for name in COLUMNS[1:]), *pace(queue)]
            for queue in found
        ]
        output.table(("queue", "paused", *COLUMNS[1:], *PACE), rows, cut=True)
    else:
        output.say("No queues yet: the first job of a task makes one. Try: redrive enqueue TASK '{}'")


@queues.command(short_help="Workers take nothing from the queue until it is resumed.")
@click.argument("name")
@click.option("--new", is_flag=True, help="Also a queue in which no job ever was.")
@why
@shared
def pause(name: str, new: bool, why: str | None) -> None:
    """Workers take nothing from the queue until it is resumed; what runs goes on."""
    ask(lambda rd: rd.queues.pause(name, who=who(), why=why, new=new))
    _tell(name, paused=True)


@queues.command()
@click.argument("name")
@why
@shared
def resume(name: str, why: str | None) -> None:
    """Workers take from the queue again."""
    ask(lambda rd: rd.queues.resume(name, who=who(), why=why))
    _tell(name, paused=False)


def _tell(name: str, *, paused: bool) -> None:
    if output.as_json():
        output.say_json({"queue": name, "paused": paused})
    elif paused:
        output.say(f"queue {clean(name)} is paused; go on with: redrive queues resume {clean(name)}")
    else:
        output.say(f"queue {clean(name)} is resumed")


@click.command(short_help="Show numbers per queue and in total.")
@shared
def stats() -> None:
    """Numbers per queue and in total; they add up to what was accepted."""
    numbers = ask(lambda rd: rd.stats())
    if output.as_json():
        output.say_json(numbers)
        return
    totals = {name: number for name, number in numbers["totals"].items() if number}
    output.say(f"accepted {numbers['accepted']}: " + _listed(totals))
    if numbers["queues"]:
        rows = [[queue["name"], *(queue[name] for name in COLUMNS[1:])] for queue in numbers["queues"]]
        output.table(COLUMNS, rows)
    else:
        output.say("No job was ever accepted here. Try: redrive enqueue TASK '{}'")


_PARTS = {"due": "due now", "retrying": "retrying", "parked": "parked", "comes_back": "come back", "pending": ""}
"""Numbers that are parts of others, and how they are said."""


def _listed(totals: dict[str, int]) -> str:
    """The parts of the sum; in brackets what is a part of a part."""
    parts = [f"{number} {name}" for name, number in totals.items() if name not in _PARTS]
    said = [f"{totals[name]} {words}" for name, words in _PARTS.items() if words and totals.get(name)]
    return " + ".join(parts) + (f" ({', '.join(said)})" if said else "") if parts else "nothing yet"


def health_of(rd: Redrive) -> Health:
    """How the store stands; one that is not there is broken, and looking makes none."""
    from redrive.reports.health import broken
    from redrive.reports.needs import Snapshot, needs, store_failed

    path = path_of(rd)
    if path is not None and not path.exists():
        spooled = needs(Snapshot(0.0, 0.0, spooled=rd.spool.count()))
        return broken([store_failed(f"there is no database at {path}"), *spooled])
    return perform(rd, lambda rd: rd.health())


@click.command()
@click.option("--probe", is_flag=True, help="Ask only whether the database can be read and written: 0 or 3.")
@shared
def health(probe: bool) -> int:
    """Show whether all is well, and if not, why.

    Exit status 0: well, or healing by itself. 1: a person is needed. 3: the store cannot be used.
    With --probe, for containers: 0, or 3 and why.
    """
    if probe:
        from redrive.doors.cli.probe import probed

        return probed()
    found = health_of(connect(creates=True))
    if output.as_json():
        output.say_json(found.public())
    else:
        dead = counted(found.total_dead_letter, "dead letter")
        output.say(f"{found.status}: {found.total_pending} pending, {dead}")
        for issue in found.issues:
            output.say(f"  {clean(issue)}")
        if found.status == "broken":
            output.say(f"  → {clean(found.needs[0].action)} {found.needs[0].command}")
        elif found.needs:
            output.say("What to do about each: redrive morning")
    return found.exit_code
