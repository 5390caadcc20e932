"""`redrive relay`: move jobs that were enqueued inside a transaction from your database into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import connect, perform, shared
from redrive.doors.cli.text import counted

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

PAUSE_SECONDS: Final = 1.0


@click.command(short_help="Move jobs enqueued with within= into the store.")
@click.option("--from", "source", metavar="URL", help="Your database; else the setting inbox.")
@click.option("--once", is_flag=True, help="Move what is committed now, then exit.")
@click.option(
    "--ddl", metavar="DIALECT", type=click.Choice(["postgresql", "sqlite"]),
    help="Print the statement that makes the table (postgresql or sqlite), for your migrations.",
)  # fmt: skip
@shared
def relay(source: str | None, once: bool, ddl: str | None) -> None:
    """Move jobs that were enqueued with within= from the table rd_inbox of your database into the store.

    Workers do it by themselves where the setting `inbox` names the database. Several relays take turns.
    """
    if ddl is not None:
        from redrive.core.inbox_table import inbox_ddl

        output.say(f"{inbox_ddl(ddl)};")
        return
    moved = _move(connect(creates=True), source, once=once)
    if output.as_json():
        output.say_json({"moved": moved})
    else:
        output.say(f"{counted(moved, 'job')} moved")


def _move(rd: Redrive, source: str | None, *, once: bool) -> int:
    return perform(rd, lambda rd: _once(rd, source) if once else _until_told(rd, source))


async def _once(rd: Redrive, source: str | None) -> int:
    found = rd.relay(source)
    try:
        return await found.move()
    finally:
        await found.close()


async def _until_told(rd: Redrive, source: str | None) -> int:
    """Move until SIGTERM or Ctrl-C."""
    import asyncio
    import contextlib
    import logging
    import signal

    logging.getLogger("redrive").addHandler(logging.StreamHandler())
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    found, moved = rd.relay(source), 0
    try:
        while not told.is_set():
            moved += await found.mind()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await told.wait()
    finally:
        await found.close()
    return moved
