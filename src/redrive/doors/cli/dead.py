"""Dead letters: list, show, edit, diff, purge. `redrive` stands in redrives.py, the other verbs in verb_commands.py."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, confirm, shared, who, why
from redrive.doors.cli.filters import filtered, understood
from redrive.doors.cli.jobs import attempts, say_page, tell_more, tell_moved, tell_story, with_story
from redrive.doors.cli.payload import read
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.redrives import careful, edit_many
from redrive.doors.cli.text import ago, clean, counted, short

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.core.job import Job
    from redrive.core.store import Page
    from redrive.deadletters.triage import EditPreview


class DeadLetters(click.Group):
    """Adds the commands of the triage verbs when the group is used: their table costs every other command 100 ms."""

    def _add_verbs(self) -> None:
        from redrive.doors.cli import verb_commands

        for command in verb_commands.commands():
            if command.name not in self.commands:
                self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._add_verbs()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._add_verbs()
        return super().get_command(ctx, cmd_name)


@click.group(cls=DeadLetters)
@shared
def dead() -> None:
    """Dead letters: what failed, why, and what to do about it."""


@dead.command("list")
@filtered
@click.option("--limit", metavar="N", type=int, default=50, show_default=True)
@click.option("--cursor", metavar="TEXT", help="Go on where the last page ended.")
@shared
def list_(filters: dict[str, Any], limit: int, cursor: str | None) -> None:
    """List dead letters, the latest first."""
    page = ask(lambda rd: _listed(rd, filters, limit, cursor))
    if output.as_json():
        say_page(page)
    elif page.jobs:
        output.table(
            ("id", "task", "queue", "attempts", "died", "because", "last error"), map(_row, page.jobs), cut=True
        )
        tell_more(page)
        output.say(f"Look closer: redrive dead show {page.jobs[0].short_id}")
    else:
        output.say("No dead letters here: nothing needs you. `redrive health` shows the rest.")


async def _listed(rd: Redrive, filters: dict[str, Any], limit: int, cursor: str | None) -> Page:
    return await rd.dead.list(limit=limit, cursor=cursor, **await understood(rd, filters))


def _row(job: Job) -> tuple[object, ...]:
    died = ago(job.updated_at)
    back = f", back {ago(max(job.comes_back_at, time.time()))}" if job.comes_back_at is not None else ""
    return job.short_id, job.task, job.queue, attempts(job), died, f"{job.because}{back}", short(job.error or "")


@dead.command(short_help="Show a dead letter's whole story, and what to do next.")
@click.argument("id")
@click.option("--secrets", is_flag=True, help="Show what looks like a secret in payload and result, too.")
@shared
def show(id: str, secrets: bool) -> None:
    """Every attempt of a dead letter, its cause, the decision and why. A job that is not dead is shown, too."""
    whole = ask(lambda rd: with_story(rd, rd.status(id)))
    if whole.job.state != "dead" and not output.as_json():
        output.warn(f"job {whole.job.short_id} is no dead letter: it is {whole.job.state}")
    tell_story(whole, secrets=secrets)


@dead.command(short_help="Back to the queue with another input.")
@click.argument("ids", metavar="ID [JSON]", nargs=-1)
@filtered
@click.option("--patch", metavar="JSON", help="For many: the fields to change, as a merge patch; null removes one.")
@click.option("--all", "all_", is_flag=True, help="With --patch: all dead letters.")
@click.option("--repeat", metavar="EFFECT", multiple=True, help="Do this effect again, although it has landed.")
@click.option("--dry-run", is_flag=True, help="Only show what it would mean.")
@careful
@why
@shared
def edit(
    ids: tuple[str, ...],
    filters: dict[str, Any],
    patch: str | None,
    repeat: tuple[str, ...],
    why: str | None,
    **how: Any,
) -> int:
    """Back to the queue with another input: JSON, @FILE, or - for standard input. What was enqueued stays on record.

    One job: its ID and the whole input. Many: --patch with the fields to change (a JSON merge patch, RFC 7396: null
    removes a field), and ids, --group, --queue, … or --all. What it would mean is shown first, then asked.
    """
    if patch is not None:
        if repeat:
            raise Problem("--repeat is for one job", "leave it out, or edit the jobs one by one")
        return edit_many(ids, filters, patch, why, **how)
    if len(ids) != 2 or filters or how["all_"]:
        raise Problem("give one ID and its input as JSON, or --patch for many", "redrive dead edit ID JSON")
    return _edit_one(*ids, repeat, why, dry_run=how["dry_run"])


def _edit_one(id: str, payload: str, repeat: tuple[str, ...], why: str | None, *, dry_run: bool) -> int:
    async def previewed(rd: Redrive) -> EditPreview:
        return await rd.dead.preview_edit(id, read(payload, rd.settings.payload_limit))

    async def edited(rd: Redrive) -> Job:
        given = read(payload, rd.settings.payload_limit)
        return await rd.dead.edit(id, given, repeat=repeat, who=who(), why=why)

    if dry_run:
        return _tell_preview(ask(previewed))
    tell_moved(ask(edited), "edited and redriven", "redrive status {id}")
    return 0


def _tell_preview(preview: EditPreview) -> int:
    """Exit status 1 where it cannot be done so."""
    if output.as_json():
        output.say_json(preview.public())
        return 0 if preview.ok else 1
    output.say(clean(preview.text))
    parts = {
        "errors": [f"{error.field}: {error.problem}" for error in preview.errors],
        "differences": preview.difference,
        "no longer count": preview.voided,
        "effects": [f"{effect.name} {effect.status}: {effect.then}" for effect in preview.effects],
        "from outside": preview.taint,
    }
    for name, lines in parts.items():
        if lines:
            output.say(name)
        for line in lines:
            output.say(f"  {clean(line)}")
    return 0 if preview.ok else 1


@dead.command(short_help="Compare the inputs of two runs of a job.")
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


@dead.command(short_help="Remove the contents of dead letters for good.")
@click.argument("ids", nargs=-1)
@filtered
@click.option("--all", "all_", is_flag=True, help="All dead letters.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@why
@shared
def purge(ids: tuple[str, ...], filters: dict[str, Any], all_: bool, yes: bool, why: str | None) -> None:
    """Remove the contents of dead letters for good, by id, by filter or all. Counted; the keys stay remembered."""
    if [bool(ids), bool(filters), all_].count(True) != 1:
        raise Problem(
            "say what to purge: ids, a filter such as --queue, or --all, one of them",
            "`redrive dead list` shows what there is",
        )
    scope: dict[str, Any] = {"all": all_, **ask(lambda rd: understood(rd, filters))}
    plan = ask(lambda rd: rd.dead.purge_plan(ids, **scope))
    if plan.number:
        confirm(f"purge {counted(plan.number, 'dead letter')}", yes=yes)
    how: dict[str, Any] = {"who": who(), "why": why, "confirm": plan.token}
    purged = ask(lambda rd: rd.dead.purge(ids, **how, **scope)) if plan.number else 0
    if output.as_json():
        output.say_json({"purged": purged})
    else:
        output.say(f"purged {counted(purged, 'dead letter')}" if purged else "nothing to purge")
