"""Makes a process a hub: its store answers the requests of workers and producers on other machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.errors import ConfigError
from redrive.jobs.open_store import NATS, POSTGRES, read_scheme

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.scripts.failure_records import FailureRecorder
    from redrive.stores.remote import Hub


def become_hub(core: Core) -> None:
    """Make this process keep a replica where its URL would make it a client of hubs, before it uses the store."""
    if read_scheme(core.settings.url) in NATS and not core.settings.replica:
        if core.holder.store is not None:
            raise ConfigError("replica: the store is open as a client of hubs; set replica=true before it is used")
        core.holder.settings = msgspec.structs.replace(core.settings, replica=True)


def make_hub(core: Core) -> Hub | None:
    """Make the hub of this process's store; None where the store is itself a client of hubs."""
    from redrive.stores.remote import Hub

    return Hub(core.store) if hasattr(core.store, "execute") else None


@asynccontextmanager
async def serving_hub(core: Core, recorder: FailureRecorder) -> AsyncIterator[None]:
    """Answer requests over NATS while the block runs. Over HTTP a route of the server does that."""
    store: Any = core.store
    if read_scheme(core.settings.url) in POSTGRES:
        await store.serve_others()
    if read_scheme(core.settings.url) not in NATS:
        yield
        return
    from redrive.fleet.open_side import open_side
    from redrive.stores.remote import Hub
    from redrive.stores.remote.nats import NatsHub
    from redrive.stores.remote.presence import answer

    hub = NatsHub(core.settings.url, Hub(core.store))
    await hub.open()
    try:
        await store.serve_others()
        await answer(hub.connection, store.presence)
        async with open_side(core, recorder):
            yield
    finally:
        await hub.close()
