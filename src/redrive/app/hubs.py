"""Makes a process a hub: its store answers the requests of workers and producers on other machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.app.opening import NATS, POSTGRES, scheme_of
from redrive.errors import ConfigError

if TYPE_CHECKING:
    from redrive.app import Redrive


def become_hub(app: Redrive) -> None:
    """Keep a replica in this process, where its URL would make it a client of hubs. Before the store is used."""
    if scheme_of(app.settings.url) in NATS and not app.settings.replica:
        if app._store is not None:
            raise ConfigError("replica: the store is open as a client of hubs; set replica=true before it is used")
        app.settings = msgspec.structs.replace(app.settings, replica=True)


@asynccontextmanager
async def serving_hub(app: Redrive) -> AsyncIterator[None]:
    """Answer requests over NATS while the block runs. Over HTTP the server's own route does."""
    store: Any = app.store
    if scheme_of(app.settings.url) in POSTGRES:
        await store.serve_others()
    if scheme_of(app.settings.url) not in NATS:
        yield
        return
    from redrive.app.open_side import open_side
    from redrive.stores.remote import Hub
    from redrive.stores.remote.nats import NatsHub
    from redrive.stores.remote.presence import answer

    hub = NatsHub(app.settings.url, Hub(app.store))
    await hub.open()
    try:
        await store.serve_others()
        await answer(hub.connection, store.presence)
        async with open_side(app):
            yield
    finally:
        await hub.close()
