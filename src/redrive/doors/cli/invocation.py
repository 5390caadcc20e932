"""Holds what every command shares: the options --url, --json and --why, and running calls on the chosen database."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from redrive.doors.cli.problems import Broken, Refusal, hint_for

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from redrive.api.redrive import Redrive

T = TypeVar("T")
Work = Callable[["Redrive"], Coroutine[Any, Any, T]]


AGAIN: Final = "repeat it with --yes if that is meant"


class MissingDatabase(Refusal):
    """The chosen file does not exist."""


@dataclass
class Invocation:
    """What one call of `redrive` was given, before or after the command's name."""

    url: str | None = None
    json: bool = False
    moves: bool = False
    """Whether the command has begun something that changes the store."""


def invocation() -> Invocation:
    """Return the options of the running command."""
    options: Invocation = click.get_current_context().find_root().ensure_object(Invocation)
    return options


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.find_root().ensure_object(Invocation), str(parameter.name), value)


SHARED: Final = (
    click.Option(["--url"], metavar="FILE", help="The database, e.g. jobs.db.", expose_value=False, callback=_keep),
    click.Option(["--json"], is_flag=True, help="Print JSON, for programs.", expose_value=False, callback=_keep),
)
"""The options that every command takes, wherever on the command line they stand."""


class SharedOptions(click.Command):
    """Adds the shared options to a command."""

    def __init__(self, *args: Any, params: list[click.Parameter] | None = None, **extra: Any) -> None:
        extra["params"] = [*(params or ()), *SHARED]
        super().__init__(*args, **extra)


class CommandGroup(SharedOptions, click.Group):
    """A command with subcommands; all of them take the shared options."""

    command_class = SharedOptions


def command(name: str | None = None, **extra: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command that takes the shared options."""
    return click.command(name, cls=SharedOptions, **extra)


def command_group(name: str | None = None, **extra: Any) -> Callable[[Callable[..., Any]], CommandGroup]:
    """Make a group whose commands take the shared options."""
    return click.group(name, cls=CommandGroup, **extra)


def acting_user() -> str:
    """Return the name of the OS user, which is recorded with what the command changes."""
    import getpass
    import os

    invocation().moves = True
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def use_app(work: Work[T]) -> T:
    """Run work on the chosen database, which must exist."""
    return run_with(connect(), work)


def use_app_or_break(work: Work[T]) -> T:
    """Run work as `use_app` does, and raise Broken if the store cannot be used.

    For commands whose exit status judges the store. The message counts the jobs in the spool, which needs no store.
    """
    from redrive.errors import StoreError

    try:
        return use_app(work)
    except MissingDatabase as error:
        raise Broken(error.message + _describe_spool(), error.hint) from None
    except StoreError as error:
        raise Broken(str(error) + _describe_spool(), hint_for(error)) from None


def _describe_spool() -> str:
    from redrive.reports.needs import spool_needs

    return "".join(f"; {need.sentence}" for need in spool_needs(connect(creates=True).spool.count()))


def run_with(rd: Redrive, work: Work[T]) -> T:
    """Run work on this app, and close its store afterwards."""
    import asyncio

    async def run() -> T:
        try:
            return await work(rd)
        finally:
            await rd.close()

    return asyncio.run(run())


def connect(*, creates: bool = False) -> Redrive:
    """Make the app for the chosen database, and refuse a missing file unless the command `creates` it."""
    import logging

    from redrive.api.redrive import Redrive

    logging.getLogger("redrive").addHandler(logging.NullHandler())  # commands print what matters themselves
    rd = Redrive(invocation().url)
    invocation().moves |= creates
    if not creates:
        refuse_missing(rd)
    return rd


def refuse_missing(rd: Redrive) -> None:
    """Refuse a database file that does not exist: reading must not create it."""
    if (path := missing_file(rd)) is not None:
        raise MissingDatabase(
            f"there is no database at {path}",
            "name one with --url or REDRIVE_URL; `redrive enqueue` and `redrive worker` make it",
        )


def missing_file(rd: Redrive) -> Path | None:
    """Return the path of the database if it is a file that does not exist."""
    path = rd.database.path
    return path if path is not None and not path.exists() else None


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGINT or SIGTERM sets. A second signal ends the command as signals do."""
    import asyncio
    import signal

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, end)
    return stop


def confirm(action: str, *, yes: bool) -> None:
    """Ask before an action that cannot be undone. Without a terminal, --yes must have been given."""
    if yes:
        return
    _refuse_pipe(f"{action}, for good", AGAIN)
    click.echo(f"This will {action}, for good.", err=True)
    if click.prompt("Type yes to go on", default="no", show_default=False, err=True) != "yes":
        raise Refusal("nothing was changed", "type yes, or give --yes, to go on")


def confirm_undoable(action: str, *, yes: bool, hint: str = AGAIN) -> None:
    """Ask before an action on many jobs that can be undone. Without a terminal, --yes must have been given."""
    if yes:
        return
    _refuse_pipe(action, hint)
    if not click.confirm(f"{action[0].upper()}{action[1:]}?", err=True):
        raise Refusal("nothing was changed", "say y, or give --yes, to go on")


def _refuse_pipe(action: str, hint: str) -> None:
    import sys

    if not sys.stdin.isatty():
        raise Refusal(f"this would {action}", hint)
