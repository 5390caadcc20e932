"""Who is there: every hub of a NATS fleet answers when somebody asks all of them."""

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
"""A hub that does not answer within this is not there."""


def subject_of_presence(address: Address) -> str:
    return f"rd.{address.namespace}.who"


async def answer(connection: Connection, tell: Callable[[], Awaitable[Presence]]) -> None:
    """Say where this hub stands, whenever somebody asks."""

    async def asked(message: Msg) -> None:
        try:
            await message.respond(msgspec.json.encode(await tell()))
        except Exception as error:  # noqa: BLE001 - whatever it is, the subscription must live
            log.warning("whoever asked where this hub stands got no answer: %r", error)

    await connection.subscribe(subject_of_presence(connection.address), asked)


async def gather(connection: Connection) -> list[tuple[Presence, float]]:
    """What all hubs answer, each with the seconds by which its clock differs from this one's."""
    heard: list[tuple[Presence, float]] = []
    asked_at = time.time()

    async def hear(message: Msg) -> None:
        if not message.data:
            return  # the server's word that nobody is there
        presence = msgspec.json.decode(message.data, type=Presence)
        now = time.time()
        heard.append((presence, presence.clock - min(max(presence.clock, asked_at), now)))

    inbox = await connection.listen(hear)
    await connection.tell(subject_of_presence(connection.address), b"", f"{inbox}.all")
    await asyncio.sleep(ANSWER_SECONDS)
    return sorted(heard, key=lambda one: (one[0].host, one[0].pid))
