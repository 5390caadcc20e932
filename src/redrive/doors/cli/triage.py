"""Commands that act on many jobs: one for each verb of deadletters/verbs.py, and the list of acts with its undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar, get_args

import click

from redrive.core.job import Lane
from redrive.core.times import read
from redrive.deadletters.triage import Act, Acted
from redrive.deadletters.verbs import TABLE, Verb, Word
from redrive.doors.cli import output
from redrive.doors.cli.arguments import describe_filters, filter_options, resolve_filters, why_option, yes_option
from redrive.doors.cli.invocation import acting_user, command, confirm_undoable, use_app
from redrive.doors.cli.jobs import print_moved
from redrive.doors.cli.problems import Refusal
from redrive.doors.cli.text import ago, clean, one_line, plural, shorten

F = TypeVar("F", bound=Callable[..., Any])
OWN: Final = ("redrive", "edit")
"""Verbs whose commands are in redrives.py and dead_letters.py, because they plan first."""
MOST_REFUSED: Final = 10
"""How many refused jobs are printed one by one; --json has more of them."""
COLUMNS: Final = ("act", "when", "who", "what", "jobs", "of", "why", "now")


def make_commands() -> list[click.Command]:
    """Make a command of each verb. The table of verbs is imported only where `redrive dead` is used."""
    return [_make_command(verb) for verb in TABLE if verb.name not in OWN]


def _make_command(verb: Verb) -> click.Command:
    def run(why: str | None = None, **given: Any) -> int:
        words = {word.name: _read_word(word, given.pop(f"word_{word.name}")) for word in verb.takes()}
        choice = ChosenJobs(**given)
        _check_words(verb, choice, words)
        return _act(verb, choice, {**({"why": why} if verb.why else {}), **words}, words)

    run.__doc__ = verb.help or verb.says
    for word in reversed(verb.takes()):
        run = _word_option(word)(run)
    run = why_option(run) if verb.why else run
    for option in (yes_option, click.option("--all", "all_", is_flag=True, help="All of them.")):
        run = option(run)
    return command(verb.cli_name, short_help=verb.short_help)(click.argument("ids", nargs=-1)(filter_options(run)))


def _word_option(word: Word) -> Callable[[F], F]:
    if word.option is None:
        choices = click.Choice(list(get_args(Lane))) if word.reading == "lane" else None
        return click.argument(f"word_{word.name}", metavar=word.metavar, type=choices)
    needed = {"required": True} if word.default is None else {"default": word.default, "show_default": True}
    return click.option(word.option, f"word_{word.name}", metavar=word.metavar, help=word.help, **needed)


def _read_word(word: Word, text: str) -> Any:
    return read((word.option or word.name).lstrip("-"), text) if word.reading == "moment" else text


class ChosenJobs(NamedTuple):
    """The jobs that a verb is for: ids, or what the filters match, or all; and whether to act without asking."""

    ids: tuple[str, ...]
    filters: dict[str, Any]
    all_: bool
    yes: bool

    @property
    def one(self) -> str | None:
        return self.ids[0] if len(self.ids) == 1 and not self.filters and not self.all_ else None

    @property
    def empty(self) -> bool:
        return not (self.ids or self.filters or self.all_)


def _check_words(verb: Verb, choice: ChosenJobs, words: dict[str, Any]) -> None:
    """Refuse one argument alone: it names the job, and the text of the verb is missing."""
    bare = next((word for word in verb.takes() if word.option is None and word.reading == "text"), None)
    if bare is not None and choice.empty:
        problem = f"{bare.metavar} is missing beside {words[bare.name]!r}"
        raise Refusal(problem, f"redrive dead {verb.cli_name} ID {bare.metavar}")


def _act(verb: Verb, choice: ChosenJobs, how: dict[str, Any], words: dict[str, Any]) -> int:
    """Move one job at once; count several and ask first. Return exit status 1 if some did not move."""
    if (id := choice.one) is not None:
        job = use_app(lambda rd: rd.dead.do(verb.name, id, who=acting_user(), **how))
        print_moved(job, verb.done.format(**{name: str(value) for name, value in words.items()}), verb.then)
        return 0
    if choice.empty:
        raise Refusal(f"say which: ids, --group, --queue, … or --all to {verb.name} everything", "`redrive dead list`")
    filters = use_app(lambda rd: resolve_filters(rd, choice.filters))
    number = use_app(lambda rd: rd.dead.matching(verb.name, choice.ids, all=choice.all_, **filters))
    matched = f" ({clean(describe_filters(choice.filters))})" if choice.filters else ""
    if not number:
        body = {"verb": verb.name, "number": 0, "moved": 0}
        output.print_answer(body, f"No jobs match{matched}: nothing was changed.")
        return 0
    confirm_undoable(f"{verb.name.replace('_', ' ')} {plural(number, verb.noun)}{matched}", yes=choice.yes)
    scope: dict[str, Any] = {"ids": choice.ids, "all": choice.all_, "where": filters}
    acted: Any = use_app(lambda rd: rd.dead.do(verb.name, **scope, who=acting_user(), **how))
    return _print_acted(acted)


def _print_acted(acted: Acted) -> int:
    output.print_answer(acted, _acted_lines(acted))
    return 1 if acted.left else 0


def _acted_lines(acted: Acted) -> Iterator[str]:
    yield acted.text
    for job_id, why in acted.refused[:MOST_REFUSED]:
        yield f"  {job_id[-8:]}: {one_line(why)}"
    if acted.left > MOST_REFUSED:
        yield f"  and {acted.left - MOST_REFUSED} more"
    if acted.moved and acted.verb not in ("undo", "purge"):
        yield f"  take it back: redrive dead undo {acted.act_id}"


@command(short_help="Undo an act.")
@click.argument("act_id", metavar="ACT")
@why_option
def undo(act_id: str, why: str | None) -> int:
    """Undo an act: jobs that have not changed since go back.

    ACT is an id of `redrive dead acts`, or the id of the job if the act was about one.
    """
    return _print_acted(use_app(lambda rd: rd.dead.undo(act_id, who=acting_user(), why=why)))


@command(short_help="List the actions on dead letters: who did what, and why.")
@click.option("--limit", metavar="N", type=int, default=20, show_default=True)
def acts(limit: int) -> None:
    """List what was done about dead letters and groups, by whom and why, the latest first."""
    output.print_list(
        use_app(lambda rd: rd.dead.acts(limit)), COLUMNS, _row, empty="No action on dead letters is recorded yet."
    )


def _row(act: Act) -> tuple[object, ...]:
    values = (value if isinstance(value, list) else [value] for value in act.said.values() if value)
    words = " ".join(", ".join(map(str, value)) for value in values)
    filters = {name: value for name, value in act.filter.items() if name != "states"}
    everything = "everything" if act.filter else act.job_id[-8:] if act.job_id else ""
    chosen = describe_filters(filters) or everything
    now = f"taken back by {act.undone_by}" if act.undone_by else "" if act.finished else "not over yet"
    what = f"{act.verb.replace('_', ' ')} {words}".strip()
    number = str(act.moved) if act.moved == act.number else f"{act.moved}/{act.number}"
    return act.id, ago(act.at), act.who, shorten(what, 40), number, shorten(chosen, 50), shorten(act.why or "", 40), now
