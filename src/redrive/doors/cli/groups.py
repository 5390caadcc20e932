"""Error groups: dead letters that failed for the same reason. List, show, resolve, ignore, reopen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from redrive.core.times import read_time
from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared, who
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean, counted, one_line, short

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.deadletters.group import GroupView

COLUMNS = ("group", "what", "task", "dead", "total", "first", "last", "status", "trend", "suggestion")
why = click.option("--why", metavar="TEXT", help="The reason, kept in the group's story.")

LONGEST_DAYS: Final = 36_500


@click.command("groups", short_help="List the error groups of the dead letters.")
@click.option("--queue", metavar="NAME")
@click.option("--task", metavar="NAME")
@click.option("--status", metavar="NAME", help="unresolved, resolved or ignored.")
@click.option("--new", metavar="WHEN", help="Only those since the last deploy (deploy), or of the last hour (hour).")
@click.option("--limit", metavar="N", type=int, default=50, show_default=True)
@shared
def groups(**said: Any) -> None:
    """List the error groups of the dead letters, unresolved ones first."""
    found = ask(lambda rd: rd.groups.list(**said))
    if output.as_json():
        output.say_json([view.public() for view in found])
    elif found:
        output.table(COLUMNS, map(_row, found))
        output.say(f"Look closer: redrive dead group {found[0].short}")
    elif any(said[name] for name in ("queue", "task", "status", "new")):
        output.say("No groups match. `redrive dead groups` lists all of them.")
    else:
        output.say("No error groups: no job has died here yet. `redrive health` shows the rest.")


def _row(view: GroupView) -> tuple[object, ...]:
    group = view.group
    what = short(group.error or group.error_class or "not recorded", 50)
    first, last = ago(group.first_at), ago(group.last_at)
    numbers = (view.dead, group.buried, first, last)
    return view.short, what, group.task, *numbers, view.status, view.trend, short(view.suggestion.text, 70)


@click.command("group", short_help="Show one error group: its trend, and what to do.")
@click.argument("fingerprint")
@shared
def group(fingerprint: str) -> None:
    """Show one error group: its trend, what was tried, its latest dead letters, and what to do."""
    view = _asked(lambda rd: rd.groups.show(fingerprint))
    if output.as_json():
        output.say_json(view.public())
        return
    for line in (*_head(view), *_lessons(view), *_samples(view), *_story(view), *_next(view)):
        output.say(line)


def _asked(work: Callable[[Redrive], Coroutine[Any, Any, GroupView]]) -> GroupView:
    """A group that is not there is the user's to put right: say where its name is found."""
    from redrive.errors import InvalidInput

    try:
        return ask(work)
    except InvalidInput as error:
        if error.field != "fingerprint":
            raise
        raise Problem(error.problem, "`redrive dead groups` lists them; a unique beginning is enough") from None


def _head(view: GroupView) -> Iterator[str]:
    from redrive.core.job import iso

    seen, state = view.group, view.state
    facts = {
        "what": seen.error or seen.error_class,
        "cause": seen.detail,
        "task": f"{seen.task} (queue {seen.queue})",
        "agent": seen.agent,
        "status": _status(view),
        "dead now": f"{view.dead} of {counted(seen.buried, 'burial')}",
        "first": f"{iso(seen.first_at)} ({ago(seen.first_at)})",
        "last": f"{iso(seen.last_at)} ({ago(seen.last_at)})",
        "trend": f"{view.trend}: {view.last_day} in the last day, {view.day_before} in the day before",
        "alerted": ago(state.alerted_at) if state.alerted_at else None,
        "note": state.note,
    }
    yield f"group {view.fingerprint}"
    for name, value in facts.items():
        if value:
            yield f"  {name:<9} {one_line(value)}"


def _status(view: GroupView) -> str:
    """With what somebody said it is to be until."""
    spoken = [said for said in view.state.story if said.what != "noted"]
    if view.status == "unresolved" or not spoken:
        return view.status
    return f"{spoken[-1].what} by {spoken[-1].who}"


def _lessons(view: GroupView) -> Iterator[str]:
    from redrive.deadletters.group import tried

    if view.lessons:
        yield "what was tried"
    for one in tried(view.lessons):
        yield f"  {clean(one.text)}: worked {one.worked} of {counted(one.times, 'time')}"


def _samples(view: GroupView) -> Iterator[str]:
    if view.samples:
        yield "its latest dead letters"
    for job in view.samples:
        yield f"  {job.short_id}  {ago(job.updated_at)}, {job.because}: {short(job.error or '')}"


def _story(view: GroupView) -> Iterator[str]:
    from redrive.core.job import iso

    if view.state.story:
        yield "story"
    for said in view.state.story:
        reason = f": {one_line(said.why)}" if said.why else ""
        yield f"  {iso(said.at)} {clean(said.what)} by {clean(said.who)}{reason}"


def _next(view: GroupView) -> Iterator[str]:
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


@click.command("resolve-group")
@click.argument("fingerprint")
@click.option("--in-version", metavar="TEXT", help="The version with the cure: only that or a later one can regress.")
@why
@shared
def resolve_group(fingerprint: str, **said: Any) -> None:
    """Mark an error group as cured. You are told if the failure comes back."""
    _tell(_asked(lambda rd: rd.groups.resolve(fingerprint, who=who(), **said)))


@click.command("ignore-group")
@click.argument("fingerprint")
@click.option("--until", metavar="TIME", help="Until then, e.g. 2031-05-17T03:00:00Z.")
@click.option("--days", metavar="N", type=float, help="For so many days.")
@click.option("--rate", metavar="N", type=click.FloatRange(min=0), help="Up to so many an hour.")
@click.option("--count", metavar="N", type=click.IntRange(min=0), help="For so many more.")
@why
@shared
def ignore_group(fingerprint: str, until: str | None, days: float | None, **said: Any) -> None:
    """Ignore an error group. You are told when a limit is passed; without a limit, never."""
    if until is not None and days is not None:
        raise Problem("give --until or --days, not both", "`redrive dead ignore-group --help` shows how it is used")
    if days is not None and not 0 < days <= LONGEST_DAYS:
        raise Problem(
            f"--days {days:g} is not from 0 to {LONGEST_DAYS:,}", "without a limit it is ignored until reopened"
        )
    end = timedelta(days=days) if days is not None else None if until is None else read_time("until", until)
    _tell(_asked(lambda rd: rd.groups.ignore(fingerprint, until=end, who=who(), **said)))


@click.command("reopen-group", short_help="Mark an error group as unresolved again.")
@click.argument("fingerprint")
@why
@shared
def reopen_group(fingerprint: str, **said: Any) -> None:
    """Mark a resolved or ignored error group as unresolved again."""
    _tell(_asked(lambda rd: rd.groups.reopen(fingerprint, who=who(), **said)))


def _tell(view: GroupView) -> None:
    """One line for what was said, and the command that goes on from it or takes it back."""
    if output.as_json():
        output.say_json(view.public())
        return
    left = f"; {counted(view.dead, 'dead letter')} of it left" if view.dead else ""
    output.say(f"group {view.short} ({clean(view.group.task)}) is {clean(view.state.story[-1].what)}{left}")
    if view.status == "unresolved":
        output.say(f"  next: redrive dead group {view.short}")
    else:
        output.say(f"  take it back: redrive dead reopen-group {view.short}")
        if view.dead:
            output.say(f"  its dead letters: redrive dead list --fingerprint {view.fingerprint}")
