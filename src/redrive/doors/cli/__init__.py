"""The `redrive` command. Nothing heavy is imported before a command needs it, so that it starts at once."""

from __future__ import annotations

import io
import os
import sys

import click

import redrive
from redrive.doors.cli.asking import shared
from redrive.doors.cli.breakers import breakers
from redrive.doors.cli.consent import approve, consent, reject
from redrive.doors.cli.cycles import cycles
from redrive.doors.cli.dead import dead
from redrive.doors.cli.demo import demo
from redrive.doors.cli.effects import effects
from redrive.doors.cli.exchange import completed, export, import_
from redrive.doors.cli.fleet import fleet
from redrive.doors.cli.gateway import call, operations, retry, submit
from redrive.doors.cli.groups import group, groups, ignore_group, reopen_group, resolve_group
from redrive.doors.cli.hub import hub
from redrive.doors.cli.inbox import inbox
from redrive.doors.cli.jobs import cancel, enqueue, erase, jobs, resolve, status
from redrive.doors.cli.mcp import mcp
from redrive.doors.cli.morning import morning
from redrive.doors.cli.move import move
from redrive.doors.cli.problems import Door
from redrive.doors.cli.queues import health, queues, stats
from redrive.doors.cli.redrives import redrive_, redrives
from redrive.doors.cli.relay import relay
from redrive.doors.cli.report import report
from redrive.doors.cli.schedules import schedules
from redrive.doors.cli.serve import serve
from redrive.doors.cli.sql import sql
from redrive.doors.cli.token import token
from redrive.doors.cli.top import top
from redrive.doors.cli.triage import acts, undo
from redrive.doors.cli.upkeep import backup, doctor
from redrive.doors.cli.worker import worker
from redrive.doors.cli.workflows import workflows
from redrive.doors.cli.workforce import tasks, workers


@click.group("redrive", cls=Door, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(redrive.__version__, prog_name="redrive", message="%(prog)s %(version)s")
@shared
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


SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Run": (demo, worker, serve, mcp, hub, relay),
    "Hand in work": (enqueue, call, submit),
    "Look": (
        morning, health, top, jobs, status, queues, tasks, workers, stats, report, breakers, schedules, cycles,
        workflows, effects, operations,
    ),
    "Repair": (dead, redrives, retry, cancel, resolve),
    "Agents": (approve, reject, consent, inbox),
    "Admin": (doctor, fleet, backup, sql, completed, move, erase, token),
}  # fmt: skip
"""The commands as `redrive --help` shows them."""
for title, commands in SECTIONS.items():
    for command in commands:
        cli.add_to_section(title, command)

for command in (redrive_, groups, group, resolve_group, ignore_group, reopen_group, import_, export):
    dead.add_command(command)

for command in (resolve, acts, undo):
    dead.add_command(command)


def main() -> None:
    """The console script."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter must not end a command
    cli.main(prog_name="redrive")


def _open_closed_streams() -> None:
    """A command that was started without one of its streams (`>&-`) reads nothing from it, and says nothing to it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
