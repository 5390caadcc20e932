"""Bounds the connections of a server: how many, how long one may take to ask, how long it may be idle.

Everything here acts before a token is asked for: a stranger who opens connections and says nothing must not use up the
file descriptors that jobs need.
"""

from __future__ import annotations

import asyncio
import logging
from types import ModuleType
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None

log = logging.getLogger("redrive.web")
HEAD_SECONDS: Final = 10.0
"""A connection that has no request in the works must bring the head of one in so long."""
IDLE_SECONDS: Final = 75
"""So long a connection may wait for its next request: longer than the proxies in front, which wait 60 s."""
KEPT: Final = 256
"""Descriptors that are never given to connections, and half of the others: jobs and the store need them."""
FEWEST: Final = 8
MOST: Final = 10_000
"""However many descriptors there are: each connection also needs memory."""
AT_ONCE: Final = 32
"""So many are accepted before the first of them is counted."""
WAITING: Final = 1024
"""So many more wait in the kernel."""
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


def most_connections() -> int:
    """How many connections a server may have at once: (soft limit of descriptors - 256) / 2."""
    if resource is None:
        return MOST
    soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(FEWEST, min(MOST, (soft - KEPT) // 2))


class Limits:
    """What the connections of one server share: how many there may be, and which ask for nothing, oldest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.silent: dict[BoundedConnection, None] = {}


class BoundedConnection(H11Protocol):
    """A connection that must ask for something in time. Where there are too many, the one silent longest makes room."""

    limits: Limits

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._counted = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._counted = True
        self.limits.open += 1
        self._is_silent()
        if self.limits.open > self.limits.most:
            next(iter(self.limits.silent)).make_room(self)

    def make_room(self, newer: BoundedConnection) -> None:
        """Closes this connection; a newer one that is itself the only silent one is told that there are too many."""
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
            self._asks()
        else:
            self._is_silent()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._counted and not self._is_busy():
            self.limits.silent[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._uncount()

    # -- what it is doing

    def _is_busy(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _is_silent(self) -> None:
        """It has asked for nothing, or has not answered to the end: it has ten seconds from its first byte on."""
        if self._counted:
            self.limits.silent[self] = None
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _asks(self) -> None:
        self.limits.silent.pop(self, None)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _uncount(self) -> None:
        self._asks()
        if self._counted:
            self._counted = False
            self.limits.open -= 1


def bounded() -> type[BoundedConnection]:
    """The kind of connection for one server, with limits of its own."""
    return type("Bounded", (BoundedConnection,), {"limits": Limits(most_connections())})
