"""Runs the open side of a NATS fleet: takes in published tasks, and publishes dead letters and changed retries.

It runs in every hub; one hub at a time does each part. It does nothing before `redrive fleet init` makes its streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from redrive.fleet.open_side.exporter import Exporter
from redrive.fleet.open_side.intake import Intake
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.nats_connection import connected

if TYPE_CHECKING:
    from redrive.engine.loop import Loop
    from redrive.jobs.core import Core
    from redrive.scripts.failure_records import FailureRecorder


@asynccontextmanager
async def open_side(core: Core, recorder: FailureRecorder | None = None) -> AsyncIterator[None]:
    """Publish dead letters while the block runs, and with a recorder take in tasks, too."""
    async with connected(core.settings.url) as connection, AsyncExitStack() as stack:
        names = OpenNames(connection.address.namespace)
        loops: list[Loop] = [Exporter(core, connection, names)]
        if recorder is not None:
            loops.append(Intake(core, recorder, connection, names))
        for loop in loops:
            loop.start()
            stack.push_async_callback(loop.stop)
        yield
