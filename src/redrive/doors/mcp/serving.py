"""Serving until the client leaves or a signal comes, and giving back what still runs then."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.doors.mcp import http

if TYPE_CHECKING:
    import socket

    from mcp.server.mcpserver import MCPServer

    from redrive.app import Redrive

GRACE: Final = 1.0
"""Seconds that calls have to end when the client is gone; then they are given back to the queue."""


async def over_stdio(rd: Redrive, server: MCPServer[Any]) -> None:
    """Until the client closes our standard input. It kills a server that then takes its time, so we do not."""
    rd.settings = msgspec.structs.replace(rd.settings, grace=min(rd.settings.grace, GRACE))
    try:
        told = await _until_told(server.run_stdio_async(), lambda: None)
    finally:
        await rd.close()
    if told:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # standard input is read in a thread that nothing can stop


async def over_http(
    rd: Redrive, server: MCPServer[Any], sock: socket.socket, *, hosts: Sequence[str], token: str
) -> None:
    """Until a signal comes."""
    served = http.make_served(http.guarded(server, hosts=hosts, token=token))

    def stop() -> None:
        served.should_exit = True

    try:
        await _until_told(served.serve(sockets=[sock]), stop, waits=True)
    finally:
        await rd.close()


async def _until_told(serving: Coroutine[Any, Any, None], stop: Callable[[], None], *, waits: bool = False) -> bool:
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
