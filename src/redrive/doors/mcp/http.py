"""MCP over HTTP, behind the guard that every door over HTTP has: a token even on localhost, exact Host and Origin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mcp.server.transport_security import TransportSecuritySettings

from redrive.doors.mcp.sessions import ClientSessions
from redrive.doors.mcp.unique_keys import UniqueKeys
from redrive.doors.web.guard import Guard, allowed_origins, bears

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH: Final = "/mcp"


def guarded(server: MCPServer[Any], *, hosts: Sequence[str], tokens: Sequence[str]) -> ASGIApp:
    """Makes the ASGI app. The SDK checks Host and Origin once more, with the same lists.

    The SDK keeps no sessions (`stateless_http`): ours are computed, so that they outlast the process, and a client that
    goes away in the middle of a call is noticed, so that its session is told the end by a notice.
    """
    security = TransportSecuritySettings(allowed_hosts=[*hosts], allowed_origins=[*allowed_origins(hosts)])
    app = server.streamable_http_app(streamable_http_path=PATH, stateless_http=True, transport_security=security)
    guards = {token: Guard(ClientSessions(UniqueKeys(app), token), hosts=hosts, token=token) for token in tokens}

    async def chosen(scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the guard of its token; any guard refuses one whose token is not ours."""
        shown = next((token for token in guards if bears(scope, token)), tokens[0])
        await guards[shown](scope, receive, send)

    return chosen
