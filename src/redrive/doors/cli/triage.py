"""Triage at a terminal: asks before many jobs change, and shows what was done and how to take it back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import ask, shared, who
from redrive.doors.cli.asking import why as reason
from redrive.doors.cli.filters import filtered, in_words, understood
from redrive.doors.cli.jobs import tell_moved
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.text import ago, clean, counted, one_line, short

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.deadletters.triage import Act, Acted

F = TypeVar("F", bound=Callable[..., Any])
Perform = Callable[..., Coroutine[Any, Any, Any]]
TOLD: Final = 10
"""Jobs that did not move, told one by one; --json has more of them."""
COLUMNS: Final = ("act", "when", "who", "what", "jobs", "of", "why", "now")


def chosen(command: F) -> F:
    """Which jobs a verb is for: ids, or the filters, or --all; and whether to ask."""
    for option in (
        shared,
        click.option("--yes", is_flag=True, help="Do it without asking."),
        click.option("--all", "all_", is_flag=True, help="All of them."),
        filtered,
    ):
        command = option(command)
    return click.argument("ids", nargs=-1)(command)


class Meant:
    """What was said: these ids, or what the filters match, and whether somebody must be asked first."""

    def __init__(self, ids: tuple[str, ...], filters: dict[str, Any], all_: bool, yes: bool) -> None:
        self.ids, self.filters, self.all, self.yes = ids, filters, all_, yes

    @property
    def one(self) -> str | None:
        return self.ids[0] if len(self.ids) == 1 and not self.filters and not self.all else None

    @property
    def words(self) -> str:
        return f" ({clean(in_words(self.filters))})" if self.filters else ""


def act(verb: str, meant: Meant, perform: Perform, done: str, goes_on: str, noun: str = "dead letter") -> int:
    """One id at once; several are counted and asked about first. Exit status 1 where some did not move."""
    if meant.one is not None:
        tell_moved(ask(lambda rd: perform(rd, meant.one)), done, goes_on)
        return 0
    if not meant.ids and not meant.filters and not meant.all:
        raise Problem(f"say which: ids, --group, --queue, … or --all to {verb} everything", "`redrive dead list`")
    number = ask(lambda rd: _number(rd, verb, meant))
    if not number:
        output.say_json({"verb": verb, "number": 0, "moved": 0}) if output.as_json() else output.say(
            f"No jobs match{meant.words}: nothing was changed."
        )
        return 0
    _agreed(f"{verb.replace('_', ' ')} {counted(number, noun)}{meant.words}", yes=meant.yes)
    return tell_acted(ask(lambda rd: _many(rd, meant, perform)))


async def _number(rd: Redrive, verb: str, meant: Meant) -> int:
    return await rd.dead.matching(verb, meant.ids, all=meant.all, **await understood(rd, meant.filters))


async def _many(rd: Redrive, meant: Meant, perform: Perform) -> Acted:
    scope = {"ids": meant.ids, "all": meant.all, **await understood(rd, meant.filters)}
    acted: Acted = await perform(rd, None, **scope)
    return acted


def _agreed(what: str, *, yes: bool) -> None:
    """Ask first. Where nobody can answer, --yes must have been said."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Problem(f"this would {what}", "repeat it with --yes if that is meant")
    if not click.confirm(f"{what[0].upper()}{what[1:]}?", err=True):
        raise Problem("nothing was changed", "say y, or give --yes, to go on")


def tell_acted(acted: Acted) -> int:
    if output.as_json():
        output.say_json(acted.public())
        return 1 if acted.left else 0
    output.say(acted.text)
    for job_id, refused in acted.refused[:TOLD]:
        output.say(f"  {job_id[-8:]}: {one_line(refused)}")
    if acted.left > TOLD:
        output.say(f"  and {acted.left - TOLD} more")
    if acted.moved and acted.verb not in ("undo", "purge"):
        output.say(f"  take it back: redrive dead undo {acted.act_id}")
    return 1 if acted.left else 0


@click.command(short_help="Take an act back.")
@click.argument("act_id", metavar="ACT")
@reason
@shared
def undo(act_id: str, why: str | None) -> int:
    """Take an act back: jobs that have not changed since go back.

    ACT is an id of `redrive dead acts`, or the id of the job where the act was about one.
    """
    return tell_acted(ask(lambda rd: rd.dead.undo(act_id, who=who(), why=why)))


@click.command(short_help="List the actions on dead letters: who did what, and why.")
@click.option("--limit", metavar="N", type=int, default=20, show_default=True)
@shared
def acts(limit: int) -> None:
    """What was done about dead letters and groups, by whom and why, the latest first."""
    found = ask(lambda rd: rd.dead.acts(limit))
    if output.as_json():
        output.say_json([act.public() for act in found])
    elif found:
        output.table(COLUMNS, map(_row, found))
    else:
        output.say("No action on dead letters is recorded yet.")


def _row(act: Act) -> tuple[object, ...]:
    words = " ".join(_in_words(value) for value in act.said.values() if value)
    named = {name: value for name, value in act.filter.items() if name != "states"}
    everything = "everything" if act.filter else act.job_id[-8:] if act.job_id else ""
    meant = in_words(named) or everything
    now = f"taken back by {act.undone_by}" if act.undone_by else "" if act.finished else "not over yet"
    what = f"{act.verb.replace('_', ' ')} {words}".strip()
    number = str(act.moved) if act.moved == act.number else f"{act.moved}/{act.number}"
    return act.id, ago(act.at), act.who, short(what, 40), number, short(meant, 50), short(act.why or "", 40), now


def _in_words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
