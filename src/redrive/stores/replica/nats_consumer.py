"""Reads a stream in order by an ephemeral pull consumer, until it falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from redrive.stores.replica.log import LogEntry, LogUnavailable
from redrive.stores.replica.nats_api import api, check, encode
from redrive.stores.replica.nats_connection import Connection

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

    from redrive.stores.replica.nats_client import Heard

TOGETHER: Final = 200
"""How many messages are handed on at a time."""
PULL: Final = 400
PULL_BYTES: Final = 8 << 20
"""The most that one request asks for; the next request follows when half of that has come."""
EXPIRES_SECONDS: Final = 30
HEARTBEAT_SECONDS: Final = 1
TICK_SECONDS: Final = 0.5
SILENT_TICKS: Final = 5
"""Ticks without a message or heartbeat. They are ticks of the event loop, because a busy loop reads nothing."""
INACTIVE_SECONDS: Final = 30
"""Seconds after which the server removes the consumer of a process that died."""
SECOND: Final = 1_000_000_000
_DONE: Final = ("404", "408")
_ENDS: Final = ("batch completed", "message size exceeds maxbytes")
"""Descriptions of a 409 that ends a request, while its consumer is sound."""


class Consumer:
    """Holds one consumer on the server. `next` returns None when another consumer must be made."""

    def __init__(self, connection: Connection, stream: str, after: int) -> None:
        self._connection = connection
        self._stream = stream
        self._after = after
        self._name = f"rd-{secrets.token_hex(8)}"
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._made = False
        self._entries: deque[LogEntry] = deque()
        self._came = asyncio.Event()
        self._pulls: dict[str, int] = {}
        """The requests under way, oldest first, and how many messages of each are to come."""
        self._number = 0
        self._delivered = 0
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None
        self.broken: str | None = None

    async def open(self) -> None:
        connection = self._connection
        connection.listeners.add(self._on_lost)
        self._inbox, self._subscription = await connection.hear(self._on_message)
        request = encode({"stream_name": self._stream, "config": self._config(), "action": "create"})
        self._made = True
        check(await connection.ask(api(f"CONSUMER.CREATE.{self._stream}.{self._name}"), request))
        await self._pull()
        self._tick()

    def _config(self) -> dict[str, object]:
        return {
            "name": self._name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._after + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_SECONDS * SECOND,
        }

    async def close(self) -> None:
        """Remove the consumer, where the server can be reached."""
        if self._timer is not None:
            self._timer.cancel()
        connection = self._connection
        connection.listeners.discard(self._on_lost)
        if not connection.is_connected:
            return
        with contextlib.suppress(LogUnavailable):
            if self._made:
                await connection.ask(api(f"CONSUMER.DELETE.{self._stream}.{self._name}"), b"", seconds=1.0)
        await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        from nats.errors import Error

        with contextlib.suppress(Error):
            if self._subscription is not None:
                await self._subscription.unsubscribe()

    # -- reading

    async def next(self) -> Sequence[LogEntry] | None:
        """Return what has arrived together; None once the consumer is broken and everything is read."""
        entries = self._entries
        while not entries:
            if self.broken is not None:
                return None
            if not self._pulls:
                await self._pull()
            self._came.clear()
            await self._came.wait()
        if len(entries) <= TOGETHER:
            together = list(entries)
            entries.clear()
        else:
            together = [entries.popleft() for _ in range(TOGETHER)]
        if self.broken is None and len(entries) + sum(self._pulls.values()) <= PULL // 2:
            await self._pull()
        return together

    async def _pull(self) -> None:
        self._number += 1
        number = str(self._number)
        self._pulls[number] = PULL
        request = {
            "batch": PULL,
            "max_bytes": max(PULL_BYTES, 2 * self._connection.client.max_payload),
            "expires": EXPIRES_SECONDS * SECOND,
            "idle_heartbeat": HEARTBEAT_SECONDS * SECOND,
        }
        subject = api(f"CONSUMER.MSG.NEXT.{self._stream}.{self._name}")
        try:
            await self._connection.tell(subject, encode(request), f"{self._inbox}.{number}")
        except LogUnavailable as error:
            self._break(str(error))

    # -- messages

    def _on_message(self, message: Heard) -> None:
        self._silent = 0
        if not message.reply:
            self._on_status(message)
        elif self.broken is None:
            self._on_entry(message)

    def _on_entry(self, message: Heard) -> None:
        tokens = message.reply.split(".")
        position, delivered, at = tokens[-4:-1] if len(tokens) == 9 else tokens[7:10]
        if int(delivered) != self._delivered + 1:
            self._break(f"message {self._delivered + 1} of the consumer did not come")
            return
        self._delivered += 1
        id = (message.headers or {}).get("Nats-Msg-Id", "")
        self._entries.append(LogEntry(int(position), id, message.data, int(at) / SECOND))
        self._count()
        self._came.set()

    def _count(self) -> None:
        for number, left in self._pulls.items():
            if left > 1:
                self._pulls[number] = left - 1
            else:
                del self._pulls[number]
            return

    def _on_status(self, message: Heard) -> None:
        headers = message.headers or {}
        status, description = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            return
        if status in _DONE or (status == "409" and description.lower() in _ENDS):
            self._pulls.pop(message.subject.rpartition(".")[2], None)
            self._came.set()
        else:
            self._break(f"{status} {description}".strip())

    def _on_lost(self) -> None:
        self._break("the connection was lost")

    def _break(self, why: str) -> None:
        if self.broken is None:
            self.broken = why
        self._came.set()

    def _tick(self) -> None:
        self._silent += 1
        if self._silent > SILENT_TICKS:
            self._break("it fell silent")
            return
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
