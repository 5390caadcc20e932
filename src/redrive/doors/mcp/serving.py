"""Serving until the client leaves or a signal comes, and giving back what still runs then."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from redrive.doors.mcp import http
from redrive.doors.mcp.unique_keys import run_on_stdio
from redrive.doors.web.server import make_web_server, serve_until_signal

if TYPE_CHECKING:
    import socket

    from mcp.server.mcpserver import MCPServer

    from redrive.api.redrive import Redrive

GRACE: Final = 1.0
"""Seconds that calls have to end when the client is gone; then they are given back to the queue."""


async def over_stdio(rd: Redrive, server: MCPServer[Any]) -> None:
    """Until the client closes our standard input. It kills a server that then takes its time, so we do not."""
    rd.limit_grace(GRACE)
    try:
        told = await serve_until_signal(run_on_stdio(server), lambda: None)
    finally:
        await rd.close()
    if told:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # standard input is read in a thread that nothing can stop


async def over_http(
    rd: Redrive, server: MCPServer[Any], sock: socket.socket, *, hosts: Sequence[str], tokens: Sequence[str]
) -> None:
    """Until a signal comes."""
    served = make_web_server(http.guarded(server, hosts=hosts, tokens=tokens, named=rd.tokens))

    def stop() -> None:
        served.should_exit = True

    try:
        await serve_until_signal(served.serve(sockets=[sock]), stop, waits=True)
    finally:
        await rd.close()
