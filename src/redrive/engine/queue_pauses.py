"""Queues that somebody stopped for a while: the one document of each that says so."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.documents import Kind
from redrive.core.store import Put, Store


class QueuePause(msgspec.Struct, frozen=True):
    """Whether a queue is paused: who said so last, when and why."""

    paused: bool = False
    who: str | None = None
    why: str | None = None
    at: float | None = None


QUEUE: Final = Kind[QueuePause]("queue", QueuePause)


def put_pause(queue: str, switch: QueuePause) -> Put:
    return QUEUE.put(queue, switch)


async def read_paused_queues(store: Store) -> dict[str, QueuePause]:
    """Those from which workers take nothing now."""
    return {name: switch for name, switch, _ in await QUEUE.all(store) if switch.paused}


async def read_pause(store: Store, queue: str) -> QueuePause | None:
    """Who stopped this queue, when and why; None where it goes on."""
    kept = await QUEUE.get(store, queue)
    return kept.value if kept is not None and kept.value.paused else None
