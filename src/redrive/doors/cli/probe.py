"""`redrive health --probe`: can the database be read and written? For the health checks of containers."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import connect, perform
from redrive.doors.cli.problems import BROKEN
from redrive.doors.cli.text import one_line
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

SECONDS: Final = 10.0


def probed() -> int:
    """The exit status: 0 where the database can be read and written, 3 with the reason where it cannot."""
    try:
        perform(connect(), _read_and_write)
    except (RedriveError, OSError, click.ClickException) as error:
        _tell(error.format_message() if isinstance(error, click.ClickException) else str(error))
        return BROKEN
    if output.as_json():
        output.say_json({"status": "ok"})
    else:
        output.say("ok")
    return 0


async def _read_and_write(rd: Redrive) -> None:
    """A transaction takes the write lock and writes nothing. Dead letters and needs never fail a probe."""
    try:
        async with asyncio.timeout(SECONDS):
            await rd.store.check()
            await rd.store.heartbeat([])
    except TimeoutError:
        _tell(f"the database did not answer within {SECONDS:g} s")
        sys.stderr.flush()
        os._exit(BROKEN)  # closing would wait for the lock that does not come


def _tell(why: str) -> None:
    click.echo(f"redrive: {one_line(why)}", err=True)
