"""The open side of a NATS fleet: published tasks become jobs, dead letters and changed retries are told in streams.

It runs in every hub; one of them at a time does each part. `redrive fleet init` makes its streams, and before that it
does nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from redrive.app.open_side.exporter import Exporter
from redrive.app.open_side.intake import Intake
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.nats_address import read_address
from redrive.stores.replica.nats_connection import Connection

if TYPE_CHECKING:
    from redrive.app import Redrive

CONNECT_SECONDS: Final = 20.0


@asynccontextmanager
async def open_side(app: Redrive) -> AsyncIterator[None]:
    """Take in tasks and tell of dead letters while the block runs."""
    async with _following(app, Intake, Exporter):
        yield


@asynccontextmanager
async def exporting(app: Redrive) -> AsyncIterator[None]:
    """Tell of dead letters while the block runs, as the monitor does."""
    async with _following(app, Exporter):
        yield


@asynccontextmanager
async def _following(app: Redrive, *kinds: type[Intake | Exporter]) -> AsyncIterator[None]:
    address = read_address(app.settings.url)
    connection, names = Connection(address), OpenNames(address.namespace)
    await connection.open(CONNECT_SECONDS)
    loops = [kind(app, connection, names) for kind in kinds]
    try:
        for loop in loops:
            loop.start()
        yield
    finally:
        for loop in loops:
            await loop.stop()
        await connection.close()
