"""Serves an ASGI app on one socket until a signal comes, with bounds on its connections.

The bounds (how many connections, how long one may take to ask, how long it may be idle) act before a token is asked
for: a stranger who opens connections and sends nothing must not use up the file descriptors that jobs need.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from redrive.engine.shutdown import ShutdownWatch

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None

log = logging.getLogger("redrive.web")
HEAD_SECONDS: Final = 10.0
"""How long a connection without a request under way may take to send the head of one."""
IDLE_SECONDS: Final = 75
"""How long a connection may wait for its next request: longer than the proxies in front, which wait 60 s."""
KEPT: Final = 256
"""Descriptors kept for jobs and the store; so is half of the others."""
FEWEST: Final = 8
MOST: Final = 10_000
"""The limit however many descriptors there are: each connection also needs memory."""
AT_ONCE: Final = 32
"""Connections that are accepted before the first of them is counted."""
WAITING: Final = 1024
"""Connections that may wait in the kernel besides."""
GRACE: Final = 2
"""Seconds that open streams have when the server stops."""
FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n"
    b"content-length: 22\r\nconnection: close\r\n\r\ntoo many connections\r\n"
)


def raise_descriptors() -> None:
    """Raises the soft limit of file descriptors to the hard one: the soft one is 1,024 on most machines."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS may refuse what it calls the hard limit
        log.warning("the limit of open files stays at %d: %s", soft, error)


def count_allowed_connections() -> int:
    """Counts the connections that a server may have at once: (soft limit of descriptors - 256) / 2."""
    if resource is None:
        return MOST
    soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(FEWEST, min(MOST, (soft - KEPT) // 2))


class Limits:
    """Shared by the connections of one server: how many there may be, and which are silent, oldest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.silent: dict[BoundedConnection, None] = {}


class BoundedConnection(H11Protocol):
    """A connection that must send a request in time. Where there are too many, the one silent longest makes room."""

    limits: Limits

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._counted = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._counted = True
        self.limits.open += 1
        self._mark_silent()
        if self.limits.open > self.limits.most:
            next(iter(self.limits.silent)).make_room(self)

    def make_room(self, newer: BoundedConnection) -> None:
        """Closes this connection. A new one that is itself the only silent one is told that there are too many."""
        log.warning("more than %d connections at once: one that asked for nothing was closed", self.limits.most)
        if self is newer:
            self.transport.write(FULL)
            self.transport.close()
        else:
            self.transport.abort()
        self._uncount()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_busy():
            self._mark_busy()
        else:
            self._mark_silent()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._counted and not self._is_busy():
            self.limits.silent[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._uncount()

    # -- what the connection does now

    def _is_busy(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _mark_silent(self) -> None:
        """Starts the ten seconds that a connection has for the head of its next request."""
        if self._counted:
            self.limits.silent[self] = None
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _mark_busy(self) -> None:
        self.limits.silent.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _uncount(self) -> None:
        self._mark_busy()
        if self._counted:
            self._counted = False
            self.limits.open -= 1


def listen(host: str, port: int) -> socket.socket:
    """Binds the socket before anything is printed, so that the printed address is the one that is served."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it; else each answer waits
    return sock


class WebServer(uvicorn.Server):
    """Leaves signals to the program around it: jobs must be given back before the process ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts few connections at once, so that they are counted in time; more may wait in the kernel."""
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(WAITING)


def make_web_server(app: ASGIApp) -> WebServer:
    """Makes the server of an app, with limits of its own."""
    bounded = type("Bounded", (BoundedConnection,), {"limits": Limits(count_allowed_connections())})
    config = uvicorn.Config(
        app,
        http=bounded,
        backlog=AT_ONCE,
        timeout_keep_alive=IDLE_SECONDS,
        log_config=None,  # its lines go where ours go; repeated lines are counted there
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        ws="none",
    )
    return WebServer(config)


async def serve_until_signal(
    serving: Coroutine[Any, Any, None],
    stop: Callable[[], None],
    *,
    waits: bool = False,
    also: Coroutine[Any, Any, object] | None = None,
    ending: ShutdownWatch | None = None,
) -> bool:
    """Serves until a signal comes or `also` ends, then calls `stop`; tells whether one of both happened.

    `waits`: the server ends by itself after `stop`, and is waited for. `ending` hears the signals as well.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if ending is not None:
        ending.hear(signal.SIGTERM, signal.SIGINT)
    server, signalled = asyncio.create_task(serving), asyncio.create_task(stopped.wait())
    beside = {asyncio.create_task(also)} if also is not None else set()
    done, _ = await asyncio.wait({server, signalled, *beside}, return_when=asyncio.FIRST_COMPLETED)
    for task in (signalled, *beside):
        task.cancel()
    if beside & done:
        stopped.set()
    if stopped.is_set():
        stop()
    if waits or not stopped.is_set():
        await server
    return stopped.is_set()
