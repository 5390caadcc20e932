"""MCP over HTTP: a token even on localhost, and exact lists of the Host and Origin that may ask.

A web page in the user's browser can reach localhost, and a name that its owner points at 127.0.0.1 makes it look like
its own server. The token keeps out whoever was not given it; Host and Origin keep out pages that were tricked or trick.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH: Final = "/mcp"
GRACE: Final = 2
"""Seconds that open streams have when the server stops."""
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="redrive"')


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name that must be looked up is taken for the outside."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_anywhere(host: str) -> bool:
    """0.0.0.0 and ::, which nobody writes into a Host header."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def allowed_hosts(host: str, port: int, also: Iterable[str] = ()) -> tuple[str, ...]:
    """Every Host header that is ours, exactly."""
    written = f"[{host}]" if ":" in host else host
    names = (*LOOPBACK, *(() if is_anywhere(host) else (written,)))
    found = [f"{name}:{port}" for name in names] + ([*names] if port == 80 else [])
    return tuple(dict.fromkeys(name.lower() for name in (*found, *also)))


def allowed_origins(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{scheme}://{host}" for host in hosts for scheme in ("http", "https"))


class Guard:
    """In front of every route: Host, then Origin, then the token. What it refuses reaches nothing behind it."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], token: str) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._origins = frozenset(allowed_origins(hosts))
        self._expected = f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            refused = self._refused(scope)
            if refused is None:
                await self._app(scope, receive, send)
            else:
                await _refuse(send, *refused)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """The status and why, or nothing. Each header counts once: two that differ are a trick."""
        host, origin, authorization = (_headers(scope, name) for name in (b"host", b"origin", b"authorization"))
        if len(host) != 1 or host[0].decode("latin-1").lower() not in self._hosts:
            return 421, "this Host is not served here; see --allow-host"
        if len(origin) > 1 or (origin and origin[0].decode("latin-1").lower() not in self._origins):
            return 403, "this Origin may not ask here"
        if len(authorization) != 1 or not self._knows(authorization[0]):
            return 401, "give the token: Authorization: Bearer TOKEN"
        return None

    def _knows(self, authorization: bytes) -> bool:
        """In the same time however much of the token is right."""
        scheme, _, token = authorization.partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected)


def _headers(scope: Scope, name: bytes) -> list[bytes]:
    return [value for found, value in scope["headers"] if found.lower() == name]


async def _refuse(send: Send, status: int, why: str) -> None:
    body = f"{why}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append(_CHALLENGE)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def guarded(server: MCPServer[Any], *, hosts: Sequence[str], token: str) -> ASGIApp:
    """The server as an ASGI app. The SDK looks at Host and Origin once more, with the same lists."""
    security = TransportSecuritySettings(allowed_hosts=[*hosts], allowed_origins=[*allowed_origins(hosts)])
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=security)
    return Guard(app, hosts=hosts, token=token)


def listen(host: str, port: int) -> socket.socket:
    """Bound before anything is said, so that the address which is told is the one that is served."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


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
