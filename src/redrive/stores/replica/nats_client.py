"""Shortens nats-py's client: a message goes to its listener in the step that reads it from the socket.

Where a later nats-py has other inner names, its own slower methods run instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nats.aio import client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import SecureConnWantedError


class Heard(NamedTuple):
    """One message."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] | None


class Client(client.Client):
    """Sends no credentials to a server without TLS where TLS is wanted, and leaves no sockets behind."""

    def __init__(self, *, wants_tls: bool = False) -> None:
        super().__init__()
        self._wants_tls = wants_tls
        self._hearers: dict[int, Callable[[Heard], None]] = {}

    async def hear(self, subject: str, hear: Callable[[Heard], None]) -> Subscription:
        """Subscribe with a plain function."""

        async def later(message: Msg) -> None:
            hear(Heard(message.subject, message.reply, message.data, message.headers))

        subscription = await self.subscribe(subject, cb=later, pending_msgs_limit=0, pending_bytes_limit=0)
        (sid,) = (sid for sid, known in self._subs.items() if known is subscription)
        self._hearers[sid] = hear
        return subscription

    def send(self, subject: str, data: bytes, reply: str, headers: bytes) -> bool:
        """Write a message in this step; return False where it must be published the slower way."""
        if not self.is_connected or not self._transport or self._pending:
            return False
        size = len(headers)
        begin = f"HPUB {subject} {reply} {size} {size + len(data)}\r\n".encode()
        self._transport.write(b"".join((begin, headers, data, b"\r\n")))
        return True

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._hearers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        hear = self._hearers.get(sid)
        if hear is None or sid not in self._subs:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        hear(Heard(subject.decode(), reply.decode(), data, _read_headers(headers) if headers else None))

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """Write at once, because another task would write one step later."""
        if force_flush or not self.is_connected or not self._transport:
            return await super()._flush_pending(force_flush)
        if self._pending:
            pending, self._pending = self._pending, []
            self._pending_data_size = 0
            self._transport.writelines(pending)
        return None

    async def _connect_to_server(self, s: Any) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    def _connect_command(self) -> bytes:
        if self._wants_tls and not self._server_info.get("tls_required"):
            raise SecureConnWantedError
        return bytes(super()._connect_command())


def _read_headers(block: bytes) -> dict[str, str]:
    """Read the headers of a message; a status of the server itself stands in their first line."""
    first, *lines = block.decode(errors="replace").split("\r\n")
    status, _, description = first.removeprefix("NATS/1.0").strip().partition(" ")
    headers = {"Status": status, "Description": description} if status else {}
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            headers[name.strip()] = value.strip()
    return headers
