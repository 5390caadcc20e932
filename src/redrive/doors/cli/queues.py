"""Queues as they are now: queues, pause, resume, stats, health."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared, who, why
from redrive.doors.cli.text import clean, counted

if TYPE_CHECKING:
    from redrive.app import Redrive

COLUMNS = ("queue", "due", "waiting", "running", "held", "done", "dead", "discarded", "purged")


@click.group(invoke_without_command=True)
@click.pass_context
@shared
def queues(ctx: click.Context) -> None:
    """List the queues; pause one, or let it go on."""
    if ctx.invoked_subcommand is not None:
        return
    found = ask(lambda rd: rd.queues.list())
    if output.as_json():
        output.say_json([queue.public() for queue in found])
    elif found:
        rows = [
            [queue.name, *(getattr(queue, name) for name in COLUMNS[1:]), "yes" if queue.paused else ""]
            for queue in found
        ]
        output.table((*COLUMNS, "paused"), rows)
    else:
        output.say("No queues yet: the first job of a task makes one. Try: redrive enqueue TASK '{}'")


@queues.command(short_help="Workers take nothing from the queue until it is resumed.")
@click.argument("name")
@why
@shared
def pause(name: str, why: str | None) -> None:
    """Workers take nothing from the queue until it is resumed; what runs goes on."""
    doubt = ask(lambda rd: _paused(rd, name, why))
    _tell(name, paused=True)
    if doubt:
        output.warn(f"  warning: {clean(doubt)}")


async def _paused(rd: Redrive, name: str, why: str | None) -> str | None:
    await rd.queues.pause(name, who=who(), why=why)
    return await rd.queues.doubt(name)


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


@click.command(short_help="Numbers per queue and in total.")
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


def _listed(totals: dict[str, int]) -> str:
    """The parts of the sum; what is due is a part of what waits."""
    parts = [f"{number} {name}" for name, number in totals.items() if name != "due"]
    due = f" ({totals['due']} due now)" if totals.get("due") else ""
    return " + ".join(parts) + due if parts else "nothing yet"


@click.command()
@shared
def health() -> int:
    """healthy (exit status 0) or degraded (1), and why."""
    import msgspec

    found = ask(lambda rd: rd.health())
    if output.as_json():
        output.say_json(msgspec.to_builtins(found))
    else:
        dead = counted(found.total_dead_letter, "dead letter")
        output.say(f"{found.status}: {found.total_pending} pending, {dead}")
        for issue in found.issues:
            output.say(f"  {clean(issue)}")
    return 0 if found.status == "healthy" else 1
