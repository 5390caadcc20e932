"""Makes a command of each verb of deadletters/verbs.py. The table is imported only where `redrive dead` is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click

from redrive.core.job import Lane
from redrive.core.times import read
from redrive.deadletters.verbs import TABLE, Verb, Word
from redrive.doors.cli.asking import who
from redrive.doors.cli.asking import why as reason
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.triage import Meant, act, chosen

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

F = TypeVar("F", bound=Callable[..., Any])
OWN: Final = ("redrive", "edit")
"""Verbs whose commands stand in redrives.py and dead.py."""


def commands() -> list[click.Command]:
    """Makes a command of each verb; `redrive` and `edit` have their own, because they plan first."""
    return [_command(verb) for verb in TABLE if verb.name not in OWN]


def _command(verb: Verb) -> click.Command:
    def run(why: str | None = None, **said: Any) -> int:
        words = {word.name: _read(word, said.pop(f"word_{word.name}")) for word in verb.takes()}
        meant = Meant(**said)
        _check_named(verb, meant, words)

        def perform(rd: Redrive, id: str | None, **scope: Any) -> Any:
            how = {"who": who(), **({"why": why} if verb.why else {}), **words}
            if id is not None:
                return rd.dead.do(verb.name, id, **how)
            ids, all_ = scope.pop("ids"), scope.pop("all")
            return rd.dead.do(verb.name, ids=ids, all=all_, where=scope, **how)

        return act(verb.name, meant, perform, verb.done.format(**said_of(words)), verb.then, verb.noun)

    run.__doc__ = verb.help or verb.says
    for word in reversed(verb.takes()):
        run = _option(word)(run)
    run = reason(run) if verb.why else run
    return click.command(verb.cli_name, short_help=verb.short_help)(chosen(run))


def _option(word: Word) -> Callable[[F], F]:
    if word.option is None:
        choices = click.Choice(list(get_args(Lane))) if word.reading == "lane" else None
        return click.argument(f"word_{word.name}", metavar=word.metavar, type=choices)
    needed = {"required": True} if word.default is None else {"default": word.default, "show_default": True}
    return click.option(word.option, f"word_{word.name}", metavar=word.metavar, help=word.help, **needed)


def _read(word: Word, text: str) -> Any:
    return read((word.option or word.name).lstrip("-"), text) if word.reading == "moment" else text


def said_of(words: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in words.items()}


def _check_named(verb: Verb, meant: Meant, words: dict[str, Any]) -> None:
    """Where an argument stands alone, it was meant as the job: the word itself is missing."""
    bare = next((word for word in verb.takes() if word.option is None and word.reading == "text"), None)
    if bare is not None and not (meant.ids or meant.filters or meant.all):
        problem = f"{bare.metavar} is missing beside {words[bare.name]!r}"
        raise Problem(problem, f"redrive dead {verb.cli_name} ID {bare.metavar}")
