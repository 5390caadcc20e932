"""MCP over HTTP, behind the guard that every door over HTTP has: a token even on localhost, exact Host and Origin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mcp.server.transport_security import TransportSecuritySettings

from redrive.doors.web.guard import Guard, allowed_origins

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp

PATH: Final = "/mcp"


def guarded(server: MCPServer[Any], *, hosts: Sequence[str], token: str) -> ASGIApp:
    """The server as an ASGI app. The SDK looks at Host and Origin once more, with the same lists."""
    security = TransportSecuritySettings(allowed_hosts=[*hosts], allowed_origins=[*allowed_origins(hosts)])
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=security)
    return Guard(app, hosts=hosts, token=token)
