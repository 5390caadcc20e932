"""What every command shares: which database, which form of answer, who asks, and running the app's verbs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.doors.cli.problems import Broken, Problem, hint_for

if TYPE_CHECKING:
    from pathlib import Path

    from redrive.api.redrive import Redrive

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class MissingDatabase(Problem):
    """The file that was named does not exist."""


@dataclass
class Asked:
    """What was said on the command line before or after the command's name."""

    url: str | None = None
    json: bool = False
    moves: bool = False
    """Whether the command is one that changes something, as far as it got."""


def asked() -> Asked:
    said: Asked = click.get_current_context().find_root().ensure_object(Asked)
    return said


def shared(command: F) -> F:
    """--url and --json, wherever they stand."""
    url = click.option(
        "--url", metavar="FILE", expose_value=False, callback=_keep("url"), help="The database, e.g. jobs.db."
    )
    json = click.option(
        "--json", is_flag=True, expose_value=False, callback=_keep("json"), help="Answer in JSON, for programs."
    )
    return url(json(command))


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.find_root().ensure_object(Asked), name, value)

    return keep


def why(command: F) -> F:
    """--why, for everything that moves jobs."""
    return click.option("--why", metavar="TEXT", help="The reason, kept in the job's story.")(command)


def who() -> str:
    """The name of the OS user, for the record of what this command changes."""
    import getpass
    import os

    asked().moves = True
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def ask(work: Callable[[Redrive], Coroutine[Any, Any, T]]) -> T:
    """Do this on the chosen database, which must exist."""
    return perform(connect(), work)


def judge(work: Callable[[Redrive], Coroutine[Any, Any, T]]) -> T:
    """As `ask`, for commands whose exit status judges the store: one that cannot be used is broken, not misused.

    What is known without the store is told all the same: the jobs that wait in the spool.
    """
    from redrive.errors import StoreError

    try:
        return ask(work)
    except MissingDatabase as error:
        raise Broken(error.message + _spooled(), error.hint) from None
    except StoreError as error:
        raise Broken(str(error) + _spooled(), hint_for(error)) from None


def _spooled() -> str:
    from redrive.reports.needs import Snapshot, needs

    told = needs(Snapshot(0.0, 0.0, spooled=connect(creates=True).spool.count()))
    return "".join(f"; {need.sentence}" for need in told)


def perform(rd: Redrive, work: Callable[[Redrive], Coroutine[Any, Any, T]]) -> T:
    """Open the store, do this, close it."""
    import asyncio

    async def opened() -> T:
        try:
            return await work(rd)
        finally:
            await rd.close()

    return asyncio.run(opened())


def connect(*, creates: bool = False) -> Redrive:
    """The app on the chosen database. Only what `creates` may make one that does not exist."""
    import logging

    from redrive.api.redrive import Redrive

    logging.getLogger("redrive").addHandler(logging.NullHandler())  # a command says by itself what matters
    rd = Redrive(asked().url)
    asked().moves |= creates
    if not creates:
        refuse_missing(rd)
    return rd


def refuse_missing(rd: Redrive) -> None:
    """Looking at a database must not make one."""
    path = path_of(rd)
    if path is not None and not path.exists():
        raise MissingDatabase(
            f"there is no database at {path}",
            "name one with --url or REDRIVE_URL; `redrive enqueue` and `redrive worker` make it",
        )


def path_of(rd: Redrive) -> Path | None:
    """The file behind the store, where it has one."""
    path: Path | None = getattr(rd.store, "path", None)
    return path


def confirm(what: str, *, yes: bool) -> None:
    """Ask before what cannot be undone. Where nobody can answer, --yes must have been said."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise Problem(f"this would {what}, for good", "repeat it with --yes if that is meant")
    click.echo(f"This will {what}, for good.", err=True)
    if click.prompt("Type yes to go on", default="no", show_default=False, err=True) != "yes":
        raise Problem("nothing was changed", "type yes, or give --yes, to go on")
