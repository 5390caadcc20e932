"""The open side of a NATS fleet: published tasks become jobs, dead letters and changed retries are told in streams.

It runs in every hub; one of them at a time does each part. `redrive fleet init` makes its streams, and before that it
does nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from redrive.fleet.open_side.exporter import Exporter
from redrive.fleet.open_side.intake import Intake
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.nats_address import read_address
from redrive.stores.replica.nats_connection import Connection

if TYPE_CHECKING:
    from redrive.engine.loop import Loop
    from redrive.jobs.core import Core
    from redrive.scripts.failure_records import FailureRecorder

CONNECT_SECONDS: Final = 20.0


@asynccontextmanager
async def open_side(core: Core, recorder: FailureRecorder) -> AsyncIterator[None]:
    """Take in tasks and tell of dead letters while the block runs."""
    async with _connected(core) as (connection, names):
        loops = [Intake(core, recorder, connection, names), Exporter(core, connection, names)]
        async with _running(loops):
            yield


@asynccontextmanager
async def exporting(core: Core) -> AsyncIterator[None]:
    """Tell of dead letters while the block runs, as the monitor does."""
    async with _connected(core) as (connection, names), _running([Exporter(core, connection, names)]):
        yield


@asynccontextmanager
async def _connected(core: Core) -> AsyncIterator[tuple[Connection, OpenNames]]:
    address = read_address(core.settings.url)
    connection = Connection(address)
    await connection.open(CONNECT_SECONDS)
    try:
        yield connection, OpenNames(address.namespace)
    finally:
        await connection.close()


@asynccontextmanager
async def _running(loops: Sequence[Loop]) -> AsyncIterator[None]:
    try:
        for loop in loops:
            loop.start()
        yield
    finally:
        for loop in loops:
            await loop.stop()
