"""Asks every hub of a NATS fleet where it stands, and answers for this process's hub."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.stores.replica.chores import Presence
from redrive.stores.replica.nats_address import Address
from redrive.stores.replica.nats_connection import Connection

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = logging.getLogger("redrive.hub")
ANSWER_SECONDS: Final = 1.0
"""How long hubs have for their answers."""


def subject_of_presence(address: Address) -> str:
    return f"rd.{address.namespace}.who"


async def answer(connection: Connection, describe: Callable[[], Awaitable[Presence]]) -> None:
    """Answer every question where this hub stands."""

    async def respond(message: Msg) -> None:
        try:
            await message.respond(msgspec.json.encode(await describe()))
        except Exception as error:  # noqa: BLE001 - the subscription must live on
            log.warning("the question where this hub stands got no answer: %r", error)

    await connection.subscribe(subject_of_presence(connection.address), respond)


async def gather(connection: Connection) -> list[tuple[Presence, float]]:
    """Ask all hubs; each answer comes with the seconds by which the hub's clock differs from this process's."""
    heard: list[tuple[Presence, float]] = []
    asked_at = time.time()

    async def hear(message: Msg) -> None:
        if not message.data:
            return  # the server says that no hub is there
        presence = msgspec.json.decode(message.data, type=Presence)
        now = time.time()
        heard.append((presence, presence.clock - min(max(presence.clock, asked_at), now)))

    inbox = await connection.listen(hear)
    await connection.tell(subject_of_presence(connection.address), b"", f"{inbox}.all")
    await asyncio.sleep(ANSWER_SECONDS)
    return sorted(heard, key=lambda answer: (answer[0].host, answer[0].pid))
