"""Takes tasks that other NATS clients have published from the work queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.stores.open_side import streams
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.log import LogUnavailable
from redrive.stores.replica.nats_connection import Connection
from redrive.stores.replica.nats_streams import SECOND, find_stream

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js.client import JetStreamContext

BATCH: Final = 100
FETCH_SECONDS: Final = 2.0
ACK_SECONDS: Final = 5.0


class TaskMessage(msgspec.Struct, frozen=True):
    """One published task, as it arrived."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    at: float
    """When the stream took it."""
    origin: str
    """The stream and the time when it was made, which with the sequence name the message for ever."""
    reply: str

    @property
    def place(self) -> str:
        return f"{self.origin}/{self.sequence}"


class Tasks:
    """Takes tasks from the work queue."""

    def __init__(self, connection: Connection, names: OpenNames) -> None:
        self._connection = connection
        self._names = names
        self._origin = ""
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def fetch(self) -> list[TaskMessage]:
        """Take the next tasks; wait a moment where there are none."""
        from nats.errors import Error

        try:
            messages = await (await self._subscribe()).fetch(BATCH, timeout=FETCH_SECONDS)
        except TimeoutError:  # its own class and Python's: on a busy machine it raises either
            return []
        except Error as error:
            await self.close()
            raise LogUnavailable(f"the tasks of {self._connection.address.public} cannot be read: {error}") from error
        return [self._read(message) for message in messages]

    async def _subscribe(self) -> JetStreamContext.PullSubscription:
        if self._subscription is None:
            info = await find_stream(self._connection, self._names.tasks)
            self._origin = f"{self._names.tasks}@{info.created if info is not None else ''}"
            await streams.ensure_intake(self._connection, self._names)
            context = self._connection.client.jetstream()
            self._subscription = await context.pull_subscribe_bind(streams.INTAKE, self._names.tasks)
        return self._subscription

    def _read(self, message: Msg) -> TaskMessage:
        metadata = message.metadata
        return TaskMessage(
            message.subject,
            message.data,
            dict(message.headers or {}),
            metadata.sequence.stream,
            metadata.timestamp.timestamp(),
            self._origin,
            message.reply,
        )

    async def acknowledge(self, message: TaskMessage) -> None:
        """Acknowledge a task whose job is in the store."""
        await self._connection.ask(message.reply, b"+ACK", seconds=ACK_SECONDS)

    async def terminate(self, message: TaskMessage, why: str) -> None:
        """End a task that became a dead letter; the server publishes the reason as an advisory."""
        await self._connection.ask(message.reply, f"+TERM {why}"[:200].encode(), seconds=ACK_SECONDS)

    async def delay(self, message: TaskMessage, seconds: float) -> None:
        """Have the work queue deliver a task again, because the store could not take it now."""
        await self._connection.ask(message.reply, f'-NAK {{"delay": {int(seconds * SECOND)}}}'.encode())

    async def close(self) -> None:
        from nats.errors import Error

        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except Error:
                return  # the connection is gone, and the subscription with it
