"""Serves MCP on standard input and output or over HTTP, until the client leaves or a signal comes.

Refuses messages in which an object has a key twice: the SDK's parser would drop one of the two values silently.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage

from redrive.core.json_keys import RepeatedKey, refuse_repeated_keys
from redrive.core.tokens import Caller
from redrive.doors.mcp.sessions import ClientSessions
from redrive.doors.web.guard import HttpGuard, allowed_origins
from redrive.doors.web.server import make_web_server, serve_until_signal
from redrive.doors.web.tokens import TokenChecker

if TYPE_CHECKING:
    import socket

    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


LARGEST: Final = 16 * 1024 * 1024
"""Bytes of a request over HTTP that are checked; the SDK refuses a larger one."""


def find_refusal(text: str | bytes) -> mcp_types.JSONRPCError | None:
    """Return the answer to a message that has a key twice; None for any other."""
    try:
        refuse_repeated_keys(text)
    except RepeatedKey as error:
        data = mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=f"{error}. Nothing was changed.")
        return mcp_types.JSONRPCError(jsonrpc="2.0", id=_read_id(text), error=data)
    return None


def _read_id(text: str | bytes) -> str | int | None:
    message = json.loads(text)
    id = message.get("id") if isinstance(message, dict) else None
    return id if isinstance(id, str | int) else None


# ---- standard input


async def run_on_stdio(server: MCPServer[Any]) -> None:
    """Serve on standard input and output as the SDK does, and check each line before the SDK reads it.

    The SDK has no public way to run a server on streams that it has not made.
    """
    lines = CheckedLines(_claim_input())
    async with stdio_server(stdin=lines) as (received, answers):  # type: ignore[arg-type]

        async def refuse(error: mcp_types.JSONRPCError) -> None:
            await answers.send(SessionMessage(error))

        lines.refuse = refuse
        lowlevel = server._lowlevel_server  # noqa: SLF001
        await lowlevel.run(received, answers, lowlevel.create_initialization_options())


class CheckedLines:
    """Iterates over the client's lines without those that are refused."""

    def __init__(self, file: anyio.AsyncFile[str]) -> None:
        self._file = file
        self.refuse: Callable[[mcp_types.JSONRPCError], Awaitable[None]]

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._file:
            error = find_refusal(line)
            if error is None:
                yield line
            else:
                await self.refuse(error)


def _claim_input() -> anyio.AsyncFile[str]:
    """Open standard input for the server alone: tasks and their children read an empty one."""
    ours = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    # not closed at the end: the thread that reads it may still wait
    return anyio.wrap_file(TextIOWrapper(os.fdopen(ours, "rb", closefd=False), encoding="utf-8", errors="replace"))


# ---- HTTP


class UniqueKeys:
    """Checks the body of each request before the SDK reads it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        messages, body = await _read(receive)
        error = find_refusal(body) if len(body) <= LARGEST else None
        if error is None:
            await self._app(scope, _replay(messages, receive), send)
            return
        answer = error.model_dump_json(exclude_unset=True).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def _read(receive: Receive) -> tuple[list[Message], bytes]:
    """Read the messages that bring the body; return them and the body as far as it is checked."""
    messages, body = [await receive()], b""
    body = messages[0].get("body", b"")
    while messages[-1].get("more_body") and len(body) <= LARGEST:
        messages.append(await receive())
        body += messages[-1].get("body", b"")
    return messages, body


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """Make a `receive` that gives the messages that were read already, then new ones."""
    left = iter(messages)

    async def received() -> Message:
        return next(left, None) or await receive()

    return received
