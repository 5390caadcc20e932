"""Serves MCP on standard input and output or over HTTP, until the client leaves or a signal comes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mcp.server.transport_security import TransportSecuritySettings

from redrive.core.tokens import Caller
from redrive.doors.mcp.sessions import ClientSessions
from redrive.doors.mcp.unique_keys import UniqueKeys, run_on_stdio
from redrive.doors.web.guard import HttpGuard, allowed_origins
from redrive.doors.web.server import make_web_server, serve_until_signal
from redrive.doors.web.tokens import TokenChecker

if TYPE_CHECKING:
    import socket

    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp

    from redrive.api.redrive import Redrive
    from redrive.api.tokens import Tokens

PATH: Final = "/mcp"
CLIENT: Final = Caller(None, "act")
"""The caller with a token that the server was started with: --allow-write says what it may do."""
GRACE: Final = 1.0
"""Seconds that calls have to end after the client has left; then their jobs return to the queue."""


async def over_stdio(rd: Redrive, server: MCPServer[Any]) -> None:
    """Serve until the client closes standard input. Clients kill a server that takes long to end then."""
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
    """Serve until a signal comes."""
    served = make_web_server(make_guarded_app(server, hosts=hosts, tokens=tokens, named=rd.tokens))

    def stop() -> None:
        served.should_exit = True

    try:
        await serve_until_signal(served.serve(sockets=[sock]), stop, waits=True)
    finally:
        await rd.close()


def make_guarded_app(
    server: MCPServer[Any], *, hosts: Sequence[str], tokens: Sequence[str], named: Tokens | None = None
) -> ASGIApp:
    """Make the ASGI app behind the guard that every door over HTTP has. The SDK checks Host and Origin once more.

    Clients show one of `tokens`, or a named one of the store; the owner's opens the dashboard and REST, and not this.

    The SDK keeps no sessions (`stateless_http`): ours are computed, so that they outlast the process, and a client that
    goes away in the middle of a call is noticed, so that its session is told the end by a notice.
    """
    security = TransportSecuritySettings(allowed_hosts=[*hosts], allowed_origins=[*allowed_origins(hosts)])
    app = server.streamable_http_app(streamable_http_path=PATH, stateless_http=True, transport_security=security)
    checker = TokenChecker(lambda: tokens, CLIENT, named)
    return HttpGuard(ClientSessions(UniqueKeys(app)), hosts=hosts, tokens=checker)
