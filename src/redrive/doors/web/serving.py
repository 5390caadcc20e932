"""A server on one socket, until somebody says stop. Signals are heard by whoever started it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn

if TYPE_CHECKING:
    from starlette.types import ASGIApp

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


def make_served(app: ASGIApp) -> Served:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        ws="none",
    )
    return Served(config)


async def until_told(serving: Coroutine[Any, Any, None], stop: Callable[[], None], *, waits: bool = False) -> bool:
    """Whether a signal ended it. `waits`: it ends by itself once it is told to stop."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    going, hearing = asyncio.create_task(serving), asyncio.create_task(told.wait())
    await asyncio.wait({going, hearing}, return_when=asyncio.FIRST_COMPLETED)
    hearing.cancel()
    if told.is_set():
        stop()
    if waits or not told.is_set():
        await going
    return told.is_set()
