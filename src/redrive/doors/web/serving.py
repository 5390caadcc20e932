"""A server on one socket, until somebody says stop. Signals are heard by whoever started it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from redrive.doors.web.connections import AT_ONCE, IDLE_SECONDS, WAITING, bounded

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from redrive.engine.shutdown import Ending

GRACE: Final = 2
"""Seconds that open streams have when the server stops."""


def listen(host: str, port: int) -> socket.socket:
    """Bound before anything is said, so that the address which is told is the one that is served."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it; without it each answer waits
    return sock


class Served(uvicorn.Server):
    """Signals are heard by whoever started us: jobs must be given back before the process ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Few are accepted at once, so that they are counted in time; more may wait in the kernel."""
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(WAITING)


def make_served(app: ASGIApp) -> Served:
    config = uvicorn.Config(
        app,
        http=bounded(),
        backlog=AT_ONCE,
        timeout_keep_alive=IDLE_SECONDS,
        log_config=None,  # its lines go where ours go, and repeated ones are counted there
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        ws="none",
    )
    return Served(config)


async def until_told(
    serving: Coroutine[Any, Any, None],
    stop: Callable[[], None],
    *,
    waits: bool = False,
    also: Coroutine[Any, Any, object] | None = None,
    ending: Ending | None = None,
) -> bool:
    """Whether a signal ended it, of which `ending` hears, too, or the end of `also`.

    `waits`: it ends by itself once it is told to stop.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if ending is not None:
        ending.hear(signal.SIGTERM, signal.SIGINT)
    going, hearing = asyncio.create_task(serving), asyncio.create_task(told.wait())
    beside = {asyncio.create_task(also)} if also is not None else set()
    done, _ = await asyncio.wait({going, hearing, *beside}, return_when=asyncio.FIRST_COMPLETED)
    for task in (hearing, *beside):
        task.cancel()
    if beside & done:
        told.set()
    if told.is_set():
        stop()
    if waits or not told.is_set():
        await going
    return told.is_set()
