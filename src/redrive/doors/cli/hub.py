"""`redrive hub`: keep a replica of a fleet's log, and answer the workers and producers that have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.doors.cli.asking import connect, shared
from redrive.doors.cli.problems import BROKEN, Problem
from redrive.doors.cli.worker import leave, log_to_stderr, status_of_the_end

if TYPE_CHECKING:
    import asyncio

    from redrive.api.redrive import Redrive


@click.command(short_help="Answer the workers and producers of a NATS fleet.")
@shared
def hub() -> int:
    """Keep a replica of the fleet's log in this process, and answer the workers and producers that have none.

    For nats:// URLs. A small fleet runs three hubs; `redrive serve` is one, too, with REST and the dashboard. Hubs of a
    file or of PostgreSQL are reached over HTTP: there `redrive serve` is the hub.
    """
    from redrive.engine.interrupts import run_until_told
    from redrive.jobs.open_store import NATS, scheme_of

    rd = connect(creates=True)
    if scheme_of(rd.settings.url) not in NATS:
        raise Problem(f"{rd.shown_url} is not a nats:// URL", "use `redrive serve --no-worker`: it is the hub there")
    log_to_stderr()
    rd.become_hub()
    click.echo(f"redrive is a hub of {rd.shown_url}")
    run_until_told(_until_told(rd))
    return status_of_the_end()


async def _until_told(rd: Redrive) -> None:
    """Answer until a signal comes, or until the replica stops itself."""
    import asyncio

    from redrive.doors.web.serving import until_told

    stopped = asyncio.Event()
    failure: Exception | None = None
    try:
        await rd.open()
        async with rd.serving_hub():
            await until_told(_waiting(stopped), stopped.set, waits=True, also=rd.store.until_failed())
            failure = await rd.failure()
    finally:
        await rd.close()
    await leave(BROKEN if failure else 0)
    if failure is not None:
        raise failure


async def _waiting(stopped: asyncio.Event) -> None:
    await stopped.wait()
