"""Hubs in this process, each in a thread of its own, that serve a store over HTTP or NATS."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any

from starlette.applications import Starlette

from redrive.core.store import Store
from redrive.doors.web import hub as door
from redrive.doors.web.guard import HttpGuard
from redrive.doors.web.server import GRACE, WebServer, listen, make_web_server
from redrive.stores.remote import Hub, RemoteStore
from redrive.stores.remote.http import HttpTransport, read_servers
from redrive.stores.remote.nats import NatsHub, NatsTransport
from tests.nats import shared_server

Serve = Callable[[Store], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def over_http(store: Store) -> AsyncIterator[str]:
    """The server is stopped step by step: uvicorn's own way sleeps twice, for clients that are still there."""
    app: Any = SimpleNamespace(make_hub=lambda: Hub(store))
    sock = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    served = make_web_server(HttpGuard(Starlette(routes=door.routes(app)), hosts=None, tokens=None))
    served.config.load()
    served.lifespan = served.config.lifespan_class(served.config)
    await served.startup(sockets=[sock])
    try:
        yield url
    finally:
        await _stop(served)


async def _stop(served: WebServer) -> None:
    for server in served.servers:
        server.close()
    for connection in tuple(served.server_state.connections):
        connection.shutdown()
    if tasks := tuple(served.server_state.tasks):
        _, late = await asyncio.wait(tasks, timeout=GRACE)
        for task in late:
            task.cancel()
    await served.lifespan.shutdown()


@asynccontextmanager
async def over_nats(store: Store) -> AsyncIterator[str]:
    url = f"{shared_server().url}/h{secrets.token_hex(6)}"
    hub = NatsHub(url, Hub(store))
    await hub.open()
    try:
        yield url
    finally:
        await hub.close()


class HubThread:
    """Serves a store until it is stopped, in an event loop of its own."""

    def __init__(self, store: Store, serve: Serve) -> None:
        self._store = store
        self._serve = serve
        self._ready = threading.Event()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._life()), daemon=True)
        self.url = ""

    def start(self) -> str:
        self._thread.start()
        assert self._ready.wait(30), "the hub does not start"
        return self.url

    async def _life(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._store.open()
        async with self._serve(self._store) as self.url:
            self._ready.set()
            await self._stopping.wait()
        await self._store.close()

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(30)
            assert not self._thread.is_alive(), "the hub does not stop"


class RemoteOnItsOwnHub(RemoteStore):
    """A client with a hub of its own, which is started with it and stopped with it."""

    def __init__(self, store: Store, serve: Serve) -> None:
        self._make_hub = lambda: HubThread(store, serve)
        self._hub: HubThread | None = None
        super().__init__(self._way, url="a hub of this test")

    def _way(self) -> Any:
        self._hub = self._make_hub()
        url = self._hub.start()
        return NatsTransport(url) if url.startswith("nats") else HttpTransport(read_servers(url, None))

    async def close(self) -> None:
        await super().close()
        hub, self._hub = self._hub, None
        if hub is not None:
            await asyncio.get_running_loop().run_in_executor(None, hub.stop)
