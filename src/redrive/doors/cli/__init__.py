"""Defines the `redrive` command and the list of its subcommands, whose modules are imported when they are used."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, NoReturn

import click

import redrive
from redrive.doors.cli.invocation import CommandGroup, Invocation
from redrive.doors.cli.problems import exit_with

SECTIONS: Final = {
    "Run": (
        ("demo", "demo", "See it work: jobs, a killed worker, nothing lost."),
        ("worker", "cli.worker", "Run the jobs of APP, e.g. tasks:rd."),
        ("serve", "cli.serve", "Serve the dashboard and REST, and run the jobs of APP."),
        ("mcp", "cli.mcp", "Serve MCP, on standard input and output or over HTTP."),
        ("hub", "cli.fleet", "Answer the workers and producers of a NATS fleet."),
        ("relay", "cli.maintenance", "Move jobs enqueued with within= into the store."),
    ),
    "Hand in work": (
        ("enqueue", "cli.jobs", "Accept a job and sync it to disk."),
        ("call", "cli.jobs", "Run a task of APP now and here."),
        ("submit", "cli.jobs", "Have a worker run a task later, in one attempt."),
    ),
    "Look": (
        ("morning", "cli.report", "Show what needs you, since when, and what to do."),
        ("health", "cli.queues", "Show whether all is well, and if not, why."),
        ("top", "cli.top_screen", "Show live what happens now."),
        ("jobs", "cli.jobs", "List jobs, newest first."),
        ("status", "cli.jobs", "Show a job's timeline, and what to do next."),
        ("queues", "cli.queues", "List the queues; pause or resume one."),
        ("tasks", "cli.queues", "List the tasks: how they went, and which workers know them."),
        ("workers", "cli.queues", "List the workers: since when they run, and which jobs."),
        ("stats", "cli.queues", "Show numbers per queue and in total."),
        ("report", "cli.report", "Show reports: weeks, months, failures, activity, agents."),
        ("breakers", "cli.flows", "List what is down, and when it is tried again."),
        ("schedules", "cli.flows", "List the schedules of tasks."),
        ("cycles", "cli.flows", "List the cycles of scripts: last run, next start, problems."),
        ("workflows", "cli.flows", "List workflows; with an ID, its steps."),
        ("effects", "cli.effects", "List effects without a job, as redrive.once recorded them."),
        ("operations", "cli.jobs", "List operations that wait for a retry or their turn."),
    ),
    "Repair": (
        ("dead", "cli.dead_letters", "Look after dead letters: what failed, and why."),
        ("redrives", "cli.redrives", "Look after bulk redrives: how far they are, and their score."),
        ("retry", "cli.jobs", "Try an operation once more, by its id alone."),
        ("cancel", "cli.jobs", "Discard a job that has not ended; stop it if it runs."),
        ("resolve", "cli.jobs", "Record the outcome of a job whose outcome is unknown."),
    ),
    "Agents": (
        ("approve", "cli.sessions", "Approve what a held job asks for."),
        ("reject", "cli.sessions", "Reject what a held job asks for."),
        ("consent", "cli.sessions", "List, grant and revoke the consents of a session."),
        ("inbox", "cli.sessions", "List the notices of a session or an owner, or all inboxes."),
    ),
    "Admin": (
        ("doctor", "cli.maintenance", "Check the database and what it stands on."),
        ("fleet", "cli.fleet", "Look after several machines: streams, hubs, lag, durability."),
        ("backup", "cli.maintenance", "Copy the database into a new file while work goes on."),
        ("sql", "cli.maintenance", "Query the database by SQL, without changing it."),
        ("completed", "cli.import_export", "Write the ids of done jobs, one per line."),
        ("move", "cli.maintenance", "Move all jobs from a file into a fleet, or back."),
        ("erase", "cli.jobs", "Erase the contents of jobs, for privacy."),
        ("token", "cli.token", "Show the owner's token; add, list and revoke named ones."),
    ),
}
"""The commands as `redrive --help` lists them: the name, the module of doors that has it, and its line."""


class Commands(Mapping[str, click.Command]):
    """The commands by name. The module of a command is imported when the command is used."""

    _places: Final = {name: (module, line) for rows in SECTIONS.values() for name, module, line in rows}

    def __getitem__(self, name: str) -> click.Command:
        module, line = self._places[name]
        command: click.Command = getattr(import_module(f"redrive.doors.{module}"), name)
        command.short_help = line
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class RootGroup(CommandGroup):
    """Lists the commands in sections, and turns what they raise into a message, a hint and an exit status."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.commands = Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of the sections, not of the alphabet

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, in columns of one width."""
        width = max(map(len, self.commands))
        for title, rows in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, _, line in rows])

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        options = Invocation()
        try:
            status = super().main(*args, **extra | {"standalone_mode": False, "obj": options})
        except (click.Abort, Exception) as error:  # noqa: BLE001 - exit_with raises what it does not know
            exit_with(error, args[0] if args else None, moves=options.moves)
        sys.exit(status)


@click.group(
    "redrive", cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(redrive.__version__, prog_name="redrive", message="%(prog)s %(version)s")
def cli() -> None:
    """Background work for AI agents that never disappears. One file, no server.

    The database is chosen by --url, else REDRIVE_URL, else redrive.toml, else a file in the XDG state folder.
    An id may be shortened to any part of it that only one job has.

    \b
    Examples:
      redrive demo                           see it work
      redrive worker tasks:rd                run the jobs of `rd` in tasks.py
      redrive enqueue greet '{"name": "ada"}'
      redrive morning                        what needs you
      redrive dead show 7f3                  why a job failed, and what to do
    """


def main() -> None:
    """Run the console script."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without a character must not end a command
    cli.main(prog_name="redrive")


def _open_closed_streams() -> None:
    """Replace streams that the command was started without (`>&-`) by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
