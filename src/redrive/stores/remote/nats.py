"""Carries requests to hubs over NATS: any hub of the namespace answers, and says every second that it works on them.

An answer comes in parts, because it may be larger than a message of the server. The client acknowledges an answer that
gives it jobs: otherwise the hub takes the jobs back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from redrive.errors import StoreError
from redrive.stores.remote.service import Answered, Hub
from redrive.stores.remote.transport import HubUnavailable
from redrive.stores.replica.log import LogUnavailable
from redrive.stores.replica.nats_address import Address, read_address
from redrive.stores.replica.nats_connection import CONNECT_SECONDS, Connection

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = logging.getLogger("redrive.hub")
LAST, MORE, WORKING = b"\x00", b"\x01", b"\x02"
"""The first byte of a message to a client: the end of its answer, a part of it, or a sign of life."""
ALIVE_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 5.0
"""A hub that sends nothing for so long counts as dead."""
ACK_SECONDS: Final = 3.0
OVERHEAD: Final = 1024
GROUP: Final = "hubs"


def subject_of(address: Address) -> str:
    return f"rd.{address.namespace}.hub"


def subject_of_all(address: Address) -> str:
    return f"rd.{address.namespace}.hubs"


class NatsTransport:
    """Carries a client's requests to the hubs of a namespace."""

    def __init__(self, url: str) -> None:
        self._address = read_address(url)
        self.url = self._address.public
        self._connection = Connection(self._address)
        self._opening: asyncio.Task[None] | None = None
        self._inbox = ""
        self._next = 0
        self._asked: dict[str, _OpenRequest] = {}

    async def _open(self) -> None:
        await self._connection.open(CONNECT_SECONDS)
        self._inbox = await self._connection.listen(self._hear)

    async def _ready(self) -> None:
        """Connect once, however many requests come first; a later request tries again where that failed."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.shield(self._opening)
            await self._connection.ready()
        except LogUnavailable as error:
            raise HubUnavailable(str(error), sent=False) from error

    async def ask(self, request: bytes, seconds: float) -> bytes:
        await self._ready()
        limit = self._connection.client.max_payload
        if len(request) + OVERHEAD > limit:
            raise StoreError(
                f"{self.url}: a request of {len(request)} bytes is more than its server takes ({limit}): raise"
                " max_payload there, enqueue fewer jobs at once, or use an https:// hub"
            )
        self._next += 1
        number = str(self._next)
        asked = self._asked[number] = _OpenRequest()
        try:
            await self._connection.tell(subject_of(self._address), request, f"{self._inbox}.{number}")
            return await asked.answer(seconds)
        except LogUnavailable as error:
            raise HubUnavailable(str(error), sent=True) from error
        finally:
            del self._asked[number]

    async def _hear(self, message: Msg) -> None:
        asked = self._asked.get(message.subject.rpartition(".")[2])
        if asked is None:
            return
        if message.headers is not None and message.headers.get("Status") == "503":
            asked.fail(HubUnavailable("no hub of this namespace runs", sent=False))
        elif asked.take(message.data) and message.reply:
            await self._connection.client.publish(message.reply, b"")

    async def tell(self, request: bytes) -> None:
        await self._ready()
        try:
            await self._connection.client.publish(subject_of_all(self._address), request)
        except Exception as error:
            raise HubUnavailable(str(error), sent=False) from error

    async def close(self) -> None:
        await self._connection.close()


class _OpenRequest:
    """Holds the parts of the answer to one request."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._heard = asyncio.Event()
        self._done = False
        self._error: HubUnavailable | None = None

    def take(self, data: bytes) -> bool:
        """Keep a part; return True when it was the last."""
        if data[:1] != WORKING:
            self._parts.append(data[1:])
        self._done = data[:1] == LAST
        self._heard.set()
        return self._done

    def fail(self, error: HubUnavailable) -> None:
        self._error = error
        self._heard.set()

    async def answer(self, seconds: float) -> bytes:
        """Wait as long as the hub says that it works on the request, at most so many seconds in all."""
        try:
            async with asyncio.timeout(seconds):
                while not self._done:
                    self._heard.clear()
                    async with asyncio.timeout(SILENT_SECONDS):
                        await self._heard.wait()
                    if self._error is not None:
                        raise self._error
        except TimeoutError:
            raise HubUnavailable("the hub that has the request does not answer", sent=True) from None
        return b"".join(self._parts)


class NatsHub:
    """Carries the requests of a namespace to this process's hub."""

    def __init__(self, url: str, hub: Hub) -> None:
        self._address = read_address(url)
        self.connection = Connection(self._address)
        self._hub = hub
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self.connection.open(CONNECT_SECONDS)
        await self.connection.subscribe(subject_of(self._address), self._on_request, GROUP)
        await self.connection.subscribe(subject_of_all(self._address), self._on_request)
        await self.connection.client.flush()

    async def close(self) -> None:
        """Stop answering. Each request under way gives back what it has claimed."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.connection.close()

    async def _on_request(self, message: Msg) -> None:
        task = asyncio.ensure_future(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Msg) -> None:
        performing = asyncio.ensure_future(self._hub.perform(message.data))
        try:
            while not (await asyncio.wait({performing}, timeout=ALIVE_SECONDS))[0]:
                if message.reply:
                    await self._say_working(message.reply)
            answered = performing.result()
        except asyncio.CancelledError:
            performing.cancel()
            await asyncio.gather(performing, return_exceptions=True)
            raise
        if message.reply and not await self._deliver(message.reply, answered):
            await self._undo(answered)

    async def _say_working(self, reply: str) -> None:
        """Tell the client that this hub still works. Without a connection the client asks another hub, and the work
        ends all the same."""
        with contextlib.suppress(LogUnavailable):
            await self.connection.tell(reply, WORKING)

    async def _undo(self, answered: Answered) -> None:
        try:
            await self._hub.undo(answered)
        except StoreError as error:
            log.warning("jobs of a client that does not answer come back when their leases end: %s", error)

    async def _deliver(self, reply: str, answered: Answered) -> bool:
        """Send an answer in parts; where it gives jobs, wait until the client acknowledges them."""
        try:
            parts = self._parts(answered.data)
            for part in parts[:-1]:
                await self.connection.tell(reply, MORE + part)
            if not answered.tokens:
                await self.connection.tell(reply, LAST + parts[-1])
                return True
            await self.connection.ask(reply, LAST + parts[-1], seconds=ACK_SECONDS)
        except LogUnavailable as error:
            log.warning("a client did not get its answer: %s", error)
            return False
        return True

    def _parts(self, data: bytes) -> list[bytes]:
        room = self.connection.client.max_payload - OVERHEAD
        return [data[start : start + room] for start in range(0, len(data), room)] or [b""]
