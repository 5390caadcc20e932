"""Commands on dead letters (list, show, edit, diff, purge) and on their error groups.

The command `redrive` is in redrives.py, the other verbs are in triage.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from shlex import quote
from typing import Any, Final

import click

from redrive.api.redrive import Redrive
from redrive.core.job import Job, iso
from redrive.core.store import Page
from redrive.core.times import read_time
from redrive.deadletters.group import GroupView, rank_strategies
from redrive.deadletters.input_edits import EditPreview
from redrive.doors.cli import arguments, output
from redrive.doors.cli.import_export import export, import_
from redrive.doors.cli.invocation import acting_user, command_group, confirm, use_app
from redrive.doors.cli.jobs import format_attempts, print_moved, print_page, resolve
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.redrives import bulk_options, edit_many, redrive_
from redrive.doors.cli.text import ago, clean, one_line, plural, shorten
from redrive.doors.cli.timeline import print_timeline, read_timeline
from redrive.doors.cli.triage import acts, make_commands, undo

GROUPS: Final = ("group", "what", "task", "dead", "total", "first", "last", "status", "trend", "suggestion")
LONGEST_DAYS: Final = 36_500
group_why_option = click.option("--why", metavar="TEXT", help="The reason, kept in the group's timeline.")


@command_group()
def dead() -> None:
    """Look after dead letters: what failed, why, and what to do about it."""


@dead.command("list")
@arguments.filter_options
@click.option("--limit", metavar="N", type=int, default=50, show_default=True)
@arguments.cursor_option
def list_(filters: dict[str, Any], limit: int, cursor: str | None) -> None:
    """List dead letters, the latest first."""
    page = use_app(lambda rd: _list_dead(rd, filters, limit, cursor))
    closer = "".join(f"Look closer: redrive dead show {job.short_id}" for job in page.jobs[:1])
    columns = ("id", "task", "queue", "attempts", "died", "because", "last error")
    empty = "No dead letters here: nothing needs you. `redrive health` shows the rest."
    print_page(page, columns, _row, empty=empty, more=closer)


async def _list_dead(rd: Redrive, filters: dict[str, Any], limit: int, cursor: str | None) -> Page:
    return await rd.dead.list(limit=limit, cursor=cursor, **await arguments.resolve_filters(rd, filters))


def _row(job: Job) -> tuple[object, ...]:
    back = f", back {ago(max(job.comes_back_at, time.time()))}" if job.comes_back_at is not None else ""
    because, error = f"{job.because}{back}", shorten(job.error or "")
    return job.short_id, job.task, job.queue, format_attempts(job), ago(job.updated_at), because, error


@dead.command(short_help="Show a dead letter's timeline, and what to do next.")
@click.argument("id")
@arguments.secrets_option
def show(id: str, secrets: bool) -> None:
    """Show every attempt of a dead letter, its cause, the decision and why. Other jobs are shown, too."""
    record = use_app(lambda rd: read_timeline(rd, id))
    if record.job.state != "dead" and not output.wants_json():
        output.print_warning(f"job {record.job.short_id} is not a dead letter: it is {record.job.state}")
    print_timeline(record, secrets=secrets)


@dead.command(short_help="Send a dead letter back to the queue with another input.")
@click.argument("ids", metavar="ID [JSON]", nargs=-1)
@arguments.filter_options
@click.option("--patch", metavar="JSON", help="For many: the fields to change, as a merge patch; null removes one.")
@click.option("--all", "all_", is_flag=True, help="With --patch: all dead letters.")
@click.option("--repeat", metavar="EFFECT", multiple=True, help="Do this effect again, although it has landed.")
@click.option("--dry-run", is_flag=True, help="Only show what it would mean.")
@bulk_options
@arguments.why_option
def edit(
    ids: tuple[str, ...],
    filters: dict[str, Any],
    patch: str | None,
    repeat: tuple[str, ...],
    why: str | None,
    **how: Any,
) -> int:
    """Send a dead letter back to the queue with another input: JSON, @FILE, or - for standard input.

    One job: its ID and the whole input. Many: --patch with the fields to change (a JSON merge patch, RFC 7396: null
    removes a field), and ids, --group, --queue, … or --all. Shows what it would mean, then asks. The input that was
    enqueued stays on record.
    """
    if patch is not None:
        if repeat:
            raise Refusal("--repeat is for one job", "leave it out, or edit the jobs one by one")
        return edit_many(ids, filters, patch, why, **how)
    if len(ids) != 2 or filters or how["all_"]:
        raise Refusal("give one ID and its input as JSON, or --patch for many", "redrive dead edit ID JSON")
    return _edit_one(*ids, repeat, why, dry_run=how["dry_run"])


def _edit_one(id: str, payload: str, repeat: tuple[str, ...], why: str | None, *, dry_run: bool) -> int:
    async def preview(rd: Redrive) -> EditPreview:
        return await rd.dead.preview_edit(id, arguments.read_payload(payload, rd))

    async def edit(rd: Redrive) -> Job:
        given = arguments.read_payload(payload, rd)
        return await rd.dead.edit(id, given, repeat=repeat, who=acting_user(), why=why)

    if dry_run:
        preview_of = use_app(preview)
        output.print_answer(preview_of, _preview_lines(preview_of))
        return 0 if preview_of.ok else 1
    print_moved(use_app(edit), "edited and redriven", "redrive status {id}")
    return 0


def _preview_lines(preview: EditPreview) -> Iterator[str]:
    yield clean(preview.text)
    parts = {
        "errors": [f"{error.field}: {error.problem}" for error in preview.errors],
        "differences": preview.difference,
        "no longer count": preview.voided,
        "effects": [f"{effect.name} {effect.status}: {effect.then}" for effect in preview.effects],
        "from outside": preview.taint,
    }
    for name, lines in parts.items():
        if lines:
            yield name
        for line in lines:
            yield f"  {clean(line)}"


@dead.command(short_help="Compare the inputs of two runs of a job.")
@click.argument("id")
@click.argument("one", type=int)
@click.argument("other", type=int)
def diff(id: str, one: int, other: int) -> None:
    """Compare the inputs of two runs of a job, by their numbers in `dead show`."""
    lines = use_app(lambda rd: rd.dead.diff(id, one, other))
    output.print_answer(lines, [clean(line) for line in lines or [f"runs {one} and {other} were given the same"]])


@dead.command(short_help="Remove the contents of dead letters for good.")
@click.argument("ids", nargs=-1)
@arguments.filter_options
@arguments.all_option
@arguments.yes_option
@arguments.why_option
def purge(ids: tuple[str, ...], filters: dict[str, Any], all_: bool, yes: bool, why: str | None) -> None:
    """Remove the contents of dead letters for good, by id, by filter or all. Counted; the keys stay remembered."""
    if [bool(ids), bool(filters), all_].count(True) != 1:
        problem = "say what to purge: ids, a filter such as --queue, or --all, one of them"
        raise Refusal(problem, "`redrive dead list` shows what there is")
    scope: dict[str, Any] = {"all": all_, **use_app(lambda rd: arguments.resolve_filters(rd, filters))}
    plan = use_app(lambda rd: rd.dead.purge_plan(ids, **scope))
    if plan.number:
        confirm(f"purge {plural(plan.number, 'dead letter')}", yes=yes)
    how: dict[str, Any] = {"who": acting_user(), "why": why, "confirm": plan.token}
    purged = use_app(lambda rd: rd.dead.purge(ids, **how, **scope)) if plan.number else 0
    output.print_answer({"purged": purged}, f"purged {plural(purged, 'dead letter')}" if purged else "nothing to purge")


# ---- groups


@dead.command("groups", short_help="List the error groups of the dead letters.")
@click.option("--queue", metavar="NAME")
@click.option("--task", metavar="NAME")
@click.option("--status", metavar="NAME", help="unresolved, resolved or ignored.")
@click.option("--new", metavar="WHEN", help="Only those since the last deploy (deploy), or of the last hour (hour).")
@click.option("--limit", metavar="N", type=int, default=50, show_default=True)
def groups(**given: Any) -> None:
    """List the error groups of the dead letters, unresolved ones first."""
    views = use_app(lambda rd: rd.groups.list(**given))
    empty = "No error groups: no job has died here yet. `redrive health` shows the rest."
    if any(given[name] for name in ("queue", "task", "status", "new")):
        empty = "No groups match. `redrive dead groups` lists all of them."
    more = "".join(f"Look closer: redrive dead group {view.short}" for view in views[:1])
    output.print_list(views, GROUPS, _group_row, empty=empty, more=more)


def _group_row(view: GroupView) -> tuple[object, ...]:
    group = view.group
    what = shorten(group.error or group.error_class or "not recorded", 50)
    first, last = ago(group.first_at), ago(group.last_at)
    numbers = (view.dead, group.buried, first, last)
    return view.short, what, group.task, *numbers, view.status, view.trend, shorten(view.suggestion.text, 70)


@dead.command("group", short_help="Show one error group: its trend, and what to do.")
@click.argument("fingerprint")
def group(fingerprint: str) -> None:
    """Show one error group: its trend, what was tried, its latest dead letters, and what to do."""
    view = use_app(lambda rd: rd.groups.show(fingerprint))
    output.print_answer(view, _group_lines(view))


def _group_lines(view: GroupView) -> Iterator[str]:
    seen, state = view.group, view.state
    facts = {
        "what": one_line(seen.error or seen.error_class or ""),
        "cause": seen.detail,
        "task": f"{seen.task} (queue {seen.queue})",
        "agent": seen.agent,
        "status": _describe_status(view),
        "dead now": f"{view.dead} of {plural(seen.buried, 'death')}",
        "first": f"{iso(seen.first_at)} ({ago(seen.first_at)})",
        "last": f"{iso(seen.last_at)} ({ago(seen.last_at)})",
        "trend": f"{view.trend}: {view.last_day} in the last day, {view.day_before} in the day before",
        "alerted": ago(state.alerted_at) if state.alerted_at else None,
        "note": one_line(state.note or ""),
    }
    yield f"group {view.fingerprint}"
    yield from output.fact_lines(facts)
    yield from _history_lines(view)
    yield from _group_steps(view)


def _describe_status(view: GroupView) -> str:
    """Return the status, and who set it if it is not the first one."""
    entries = [entry for entry in view.state.story if entry.what != "noted"]
    if view.status == "unresolved" or not entries:
        return view.status
    return f"{entries[-1].what} by {entries[-1].who}"


def _history_lines(view: GroupView) -> Iterator[str]:
    if view.lessons:
        yield "what was tried"
    for lesson in rank_strategies(view.lessons):
        yield f"  {clean(lesson.text)}: worked {lesson.worked} of {plural(lesson.times, 'time')}"
    if view.samples:
        yield "its latest dead letters"
    for job in view.samples:
        yield f"  {job.short_id}  {ago(job.updated_at)}, {job.because}: {shorten(job.error or '')}"
    if view.state.story:
        yield "timeline"
    yield from output.timeline_lines(view.state.story)


def _group_steps(view: GroupView) -> Iterator[str]:
    yield "what next"
    yield f"  {one_line(view.suggestion.text)}"
    if view.samples:
        yield f"  All of them: redrive dead list --fingerprint {view.fingerprint}"
        yield f"  Try one again: redrive dead redrive {view.samples[0].short_id} --why TEXT"
        yield f"  Try a few, then all of them: redrive dead redrive --group {view.short} --canary 5 --why TEXT"
    if view.dead and view.other_agent:
        agent = clean(view.other_agent)
        yield f"  Give them to {agent}: redrive dead reassign --group {view.short} --to {quote(agent)} --why TEXT"
    if view.status == "unresolved":
        yield f"  It is cured: redrive dead resolve-group {view.short} --why TEXT"
        yield f"  It may go on: redrive dead ignore-group {view.short} --days 7 --why TEXT"
    else:
        yield f"  It matters again: redrive dead reopen-group {view.short} --why TEXT"


@dead.command("resolve-group")
@click.argument("fingerprint")
@click.option("--in-version", metavar="TEXT", help="The version with the cure: only that or a later one can regress.")
@group_why_option
def resolve_group(fingerprint: str, **given: Any) -> None:
    """Mark an error group as cured. You are told if the failure comes back."""
    _print_group(use_app(lambda rd: rd.groups.resolve(fingerprint, who=acting_user(), **given)))


@dead.command("ignore-group")
@click.argument("fingerprint")
@click.option("--until", metavar="TIME", help="Until then, e.g. 2031-05-17T03:00:00Z.")
@click.option("--days", metavar="N", type=float, help="For so many days.")
@click.option("--rate", metavar="N", type=click.FloatRange(min=0), help="Up to so many an hour.")
@click.option("--count", metavar="N", type=click.IntRange(min=0), help="For so many more.")
@group_why_option
def ignore_group(fingerprint: str, until: str | None, days: float | None, **given: Any) -> None:
    """Ignore an error group. You are told when a limit is passed; without a limit, never."""
    if until is not None and days is not None:
        raise Refusal("give --until or --days, not both", "`redrive dead ignore-group --help` shows how it is used")
    if days is not None and not 0 < days <= LONGEST_DAYS:
        hint = "without a limit it is ignored until reopened"
        raise Refusal(f"--days {days:g} is not from 0 to {LONGEST_DAYS:,}", hint)
    end = timedelta(days=days) if days is not None else None if until is None else read_time("until", until)
    _print_group(use_app(lambda rd: rd.groups.ignore(fingerprint, until=end, who=acting_user(), **given)))


@dead.command("reopen-group", short_help="Mark an error group as unresolved again.")
@click.argument("fingerprint")
@group_why_option
def reopen_group(fingerprint: str, **given: Any) -> None:
    """Mark a resolved or ignored error group as unresolved again."""
    _print_group(use_app(lambda rd: rd.groups.reopen(fingerprint, who=acting_user(), **given)))


def _print_group(view: GroupView) -> None:
    """Print what was recorded about a group, and the command that continues or undoes it."""
    output.print_answer(view, _changed_lines(view))


def _changed_lines(view: GroupView) -> Iterator[str]:
    left = f"; {plural(view.dead, 'dead letter')} of it left" if view.dead else ""
    yield f"group {view.short} ({clean(view.group.task)}) is {clean(view.state.story[-1].what)}{left}"
    if view.status == "unresolved":
        yield f"  next: redrive dead group {view.short}"
    else:
        yield f"  take it back: redrive dead reopen-group {view.short}"
        if view.dead:
            yield f"  its dead letters: redrive dead list --fingerprint {view.fingerprint}"


for one in (redrive_, import_, export, resolve, acts, undo, *make_commands()):
    dead.add_command(one)
