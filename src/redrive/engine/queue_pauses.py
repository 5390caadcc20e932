"""Queues that somebody stopped for a while: the one document of each that says so."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.documents import Kind
from redrive.core.store import Put, Store


class Switch(msgspec.Struct, frozen=True):
    """Whether a queue is paused: who said so last, when and why."""

    paused: bool = False
    who: str | None = None
    why: str | None = None
    at: float | None = None


QUEUE: Final = Kind[Switch]("queue", Switch)


def switched(queue: str, switch: Switch) -> Put:
    return QUEUE.put(queue, switch)


async def paused_queues(store: Store) -> dict[str, Switch]:
    """Those from which workers take nothing now."""
    return {name: switch for name, switch, _ in await QUEUE.all(store) if switch.paused}


async def paused(store: Store, queue: str) -> Switch | None:
    """Who stopped this queue, when and why; None where it goes on."""
    kept = await QUEUE.get(store, queue)
    return kept.value if kept is not None and kept.value.paused else None
