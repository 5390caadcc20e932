"""Reads and writes the pause of each queue, one document per queue."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.documents import Kind
from redrive.core.store import Put, Store


class QueuePause(msgspec.Struct, frozen=True):
    """The pause of a queue: whether it holds, and who set it last, when and why."""

    paused: bool = False
    who: str | None = None
    why: str | None = None
    at: float | None = None


QUEUE: Final = Kind[QueuePause]("queue", QueuePause)


def put_pause(queue: str, switch: QueuePause) -> Put:
    return QUEUE.put(queue, switch)


async def read_paused_queues(store: Store) -> dict[str, QueuePause]:
    """Reads the queues from which workers claim nothing now."""
    return {name: switch for name, switch, _ in await QUEUE.all(store) if switch.paused}


async def read_pause(store: Store, queue: str) -> QueuePause | None:
    """Reads who paused a queue, when and why; None where the queue is not paused."""
    kept = await QUEUE.get(store, queue)
    return kept.value if kept is not None and kept.value.paused else None
