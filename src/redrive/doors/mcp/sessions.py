"""Names the session of an MCP client: one per process on standard input and output, one per client over HTTP.

Over HTTP the session is the client's `Mcp-Session-Id` under the token it showed. The name is computed from both, so a
client that comes back with its id has its session again, also after a restart of the server, and another token can
neither use nor guess it. A client that sends no id has the session of its token and of the program that it says it is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from redrive.core.tokens import ANYONE, Caller
from redrive.doors.web.guard import bearer_of, refuse
from redrive.doors.web.problems import problem
from redrive.doors.web.tokens import caller_of, find_lacking_role

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER: Final = b"mcp-session-id"
VERSION: Final = b"mcp-protocol-version"
ON_STDIO: Final = "stdio-"
OVER_HTTP: Final = "mcp-"
_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")

current_session: Final[ContextVar[str]] = ContextVar("redrive_mcp_session")
"""The session of the HTTP request that is being answered."""
current_caller: Final[ContextVar[Caller]] = ContextVar("redrive_mcp_caller", default=ANYONE)
"""The caller of the request. On standard input and output it is the person who started the process, who may do all."""
_without_id: Final[ContextVar[str | None]] = ContextVar("redrive_mcp_token", default=None)
"""The token of that request, if its client sends no id."""


def new_session() -> str:
    """Make a session for a process without --session."""
    return f"{ON_STDIO}{secrets.token_hex(8)}"


def session_name(token: str, client_id: bytes = b"") -> str:
    """Compute the session of a client, from which neither the token nor the id can be read."""
    return f"{OVER_HTTP}{hmac.new(token.encode(), client_id, hashlib.sha256).hexdigest()[:24]}"


async def tell_programs_apart(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Name the session of a client without an id by its program, which the protocol of 2026 always sends."""
    token, client = _without_id.get(), ctx.session.client_params
    if token is not None and client is not None:
        program = client.client_info.name.encode(errors="backslashreplace")
        current_session.set(session_name(token, b" " + program))  # no id begins with a space
    return await call_next(ctx)


class ClientSessions:
    """Sets the session and the caller of every request that the guard let in.

    The protocol before 2026 has the server choose the id: an answer to a request without one offers a new one, which
    clients take up from the answer to `initialize`. Nothing is kept here, so there is nothing that a client could end
    (DELETE), and no stream of our own to listen to (GET): the SDK and the specification take 405 for both.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (lacks := find_lacking_role(scope, "look")) is not None:
            await refuse(send, lacks)
            return
        ids = [value for name, value in scope["headers"] if name == HEADER]
        if len(ids) > 1 or not all(map(_ID.fullmatch, ids)):
            await refuse(send, problem("bad-request", "Mcp-Session-Id: send one, of 1 to 128 visible characters"))
            return
        if scope["method"] in ("GET", "DELETE"):
            await _send_not_allowed(send)
            return
        token = (bearer_of(scope) or b"").decode("latin-1")
        current_caller.set(caller_of(scope))
        current_session.set(session_name(token, *ids))
        _without_id.set(None if ids else token)
        offers = not ids and not any(name == VERSION for name, _ in scope["headers"])
        await self._app(scope, receive, _offer_session(send) if offers else send)


def _offer_session(send: Send) -> Send:
    """Make a `send` that adds a new session id to the answer."""

    async def offered(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] < 400:
            headers = [*message.get("headers", ()), (HEADER, secrets.token_hex(16).encode())]
            message = {**message, "headers": headers}
        await send(message)

    return offered


async def _send_not_allowed(send: Send) -> None:
    headers = [(b"allow", b"POST"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
