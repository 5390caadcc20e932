"""Dead letters: list, show, redrive, discard, restore, purge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, confirm, shared, who, why
from redrive.doors.cli.jobs import attempts, say_page, tell_more, tell_moved, tell_story, with_moves
from redrive.doors.cli.payload import read
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean, counted, short

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.job import Job


@click.group()
@shared
def dead() -> None:
    """Dead letters: what failed, why, and what to do about it."""


@dead.command("list")
@click.option("--queue", metavar="NAME")
@click.option("--task", metavar="NAME")
@click.option("--agent", metavar="NAME")
@click.option("--session", metavar="ID")
@click.option("--lane", metavar="NAME", help="manual (needs eyes) or delayed (comes back by itself).")
@click.option("--error-class", metavar="NAME", help="e.g. TimeoutError.")
@click.option("--error-kind", metavar="NAME", help="Any attempt failed with this kind.")
@click.option("--fingerprint", metavar="ID", help="The dead letters of one group.")
@click.option("--because", metavar="REASON", help="e.g. attempts_exhausted, permanent, crash_loop.")
@click.option("--limit", metavar="N", type=int, default=50, show_default=True)
@click.option("--cursor", metavar="TEXT", help="Go on where the last page ended.")
@shared
def list_(session: str | None, **said: Any) -> None:
    """List dead letters, the latest first."""
    page = ask(lambda rd: rd.dead.list(session_id=session, **said))
    if output.as_json():
        say_page(page)
    elif page.jobs:
        output.table(("id", "task", "queue", "attempts", "died", "because", "last error"), map(_row, page.jobs))
        tell_more(page)
        output.say(f"Look closer: redrive dead show {page.jobs[0].short_id}")
    else:
        output.say("No dead letters here: nothing needs you. `redrive health` shows the rest.")


def _row(job: Job) -> tuple[object, ...]:
    died = ago(job.updated_at)
    return job.short_id, job.task, job.queue, attempts(job), died, job.because, short(job.error or "")


@dead.command()
@click.argument("id")
@click.option("--secrets", is_flag=True, help="Show what looks like a secret in payload and result, too.")
@shared
def show(id: str, secrets: bool) -> None:
    """Every attempt of a dead letter, its cause, the decision and why."""
    tell_story(*ask(lambda rd: with_moves(rd, rd.dead.show(id))), secrets=secrets)


@dead.command()
@click.argument("id")
@why
@shared
def redrive(id: str, why: str | None) -> None:
    """Back to the queue: same id, key and history; fresh attempts where they were used up."""
    tell_moved(ask(lambda rd: rd.dead.redrive(id, who=who(), why=why)), "redriven", "redrive status {id}")


@dead.command()
@click.argument("id")
@why
@shared
def discard(id: str, why: str | None) -> None:
    """Let it go; it can be restored."""
    tell_moved(ask(lambda rd: rd.dead.discard(id, who=who(), why=why)), "discarded", "redrive dead restore {id}")


@dead.command()
@click.argument("id")
@why
@shared
def restore(id: str, why: str | None) -> None:
    """A discarded job is a dead letter again."""
    tell_moved(ask(lambda rd: rd.dead.restore(id, who=who(), why=why)), "restored", "redrive dead redrive {id}")


@dead.command()
@click.argument("id")
@click.argument("payload")
@click.option("--repeat", metavar="EFFECT", multiple=True, help="Do this effect again, although it has landed.")
@why
@shared
def edit(id: str, payload: str, repeat: tuple[str, ...], why: str | None) -> None:
    """Back to the queue with another input: JSON, @FILE, or - for standard input. What was enqueued stays on record."""

    async def edited(rd: Redrive) -> Job:
        given = read(payload, rd.settings.payload_limit)
        return await rd.dead.edit(id, given, repeat=repeat, who=who(), why=why)

    tell_moved(ask(edited), "edited and redriven", "redrive status {id}")


@dead.command()
@click.argument("id")
@click.argument("one", type=int)
@click.argument("other", type=int)
@shared
def diff(id: str, one: int, other: int) -> None:
    """What two runs of a job were given differently, by their numbers in `dead show`."""
    lines = ask(lambda rd: rd.dead.diff(id, one, other))
    if output.as_json():
        output.say_json(lines)
    else:
        for line in lines or [f"runs {one} and {other} were given the same"]:
            output.say(clean(line))


@dead.command()
@click.argument("id")
@click.argument("lane", type=click.Choice(["delayed", "manual"]))
@why
@shared
def lane(id: str, lane: str, why: str | None) -> None:
    """Move it to the other lane: delayed comes back by itself, manual waits for you."""
    said = f"in the {lane} lane"
    tell_moved(ask(lambda rd: rd.dead.move_lane(id, lane, who=who(), why=why)), said, "redrive dead show {id}")


@dead.command()
@click.argument("ids", nargs=-1)
@click.option("--queue", metavar="NAME", help="All dead letters of this queue.")
@click.option("--all", "all_", is_flag=True, help="All dead letters.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@why
@shared
def purge(ids: tuple[str, ...], queue: str | None, all_: bool, yes: bool, why: str | None) -> None:
    """Remove the contents of dead letters for good, by id, by queue or all. Counted; the keys stay remembered."""
    if [bool(ids), queue is not None, all_].count(True) != 1:
        raise Problem(
            "say what to purge: ids, --queue or --all, one of them", "`redrive dead list` shows what there is"
        )
    chosen, number = ask(lambda rd: _chosen(rd, ids, queue))
    if number:
        confirm(f"purge {counted(number, 'dead letter')}", yes=yes)
    scope: dict[str, Any] = {"queue": queue} if queue is not None else {"all": all_}
    purged = ask(lambda rd: rd.dead.purge(chosen, who=who(), why=why, **scope)) if number else 0
    if output.as_json():
        output.say_json({"purged": purged})
    else:
        output.say(f"purged {counted(purged, 'dead letter')}" if purged else "nothing to purge")


async def _chosen(rd: Redrive, ids: tuple[str, ...], queue: str | None) -> tuple[list[str], int]:
    """Every id is found before anything is removed."""
    from redrive.core.job import State
    from redrive.core.store import Filter

    if ids:
        found = list(dict.fromkeys([(await rd.jobs.get(id)).id for id in ids]))
        return found, len(found)
    return [], sum((await rd.store.count(Filter(states=(State.dead,), queue=queue))).values())
