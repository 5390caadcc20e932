"""MCP over HTTP, behind the guard that every door over HTTP has: a token even on localhost, exact Host and Origin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mcp.server.transport_security import TransportSecuritySettings

from redrive.core.tokens import Caller
from redrive.doors.mcp.sessions import ClientSessions
from redrive.doors.mcp.unique_keys import UniqueKeys
from redrive.doors.web.guard import HttpGuard, allowed_origins
from redrive.doors.web.tokens import TokenChecker

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp

    from redrive.api.tokens import Tokens

PATH: Final = "/mcp"
CLIENT: Final = Caller(None, "act")
"""Who shows a token that the server was started with: --allow-write says what it may do."""


def guarded(
    server: MCPServer[Any], *, hosts: Sequence[str], tokens: Sequence[str], named: Tokens | None = None
) -> ASGIApp:
    """Makes the ASGI app. The SDK checks Host and Origin once more, with the same lists.

    Clients show one of `tokens`, or a named one of the store; the owner's opens the dashboard and REST, and not this.

    The SDK keeps no sessions (`stateless_http`): ours are computed, so that they outlast the process, and a client that
    goes away in the middle of a call is noticed, so that its session is told the end by a notice.
    """
    security = TransportSecuritySettings(allowed_hosts=[*hosts], allowed_origins=[*allowed_origins(hosts)])
    app = server.streamable_http_app(streamable_http_path=PATH, stateless_http=True, transport_security=security)
    checker = TokenChecker(lambda: tokens, CLIENT, named)
    return HttpGuard(ClientSessions(UniqueKeys(app)), hosts=hosts, tokens=checker)
