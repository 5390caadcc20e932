"""Queues that somebody stopped for a while: the one document of each that says so."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.store import Put, Store

KIND: Final = "queue"


class Switch(msgspec.Struct, frozen=True):
    """Whether a queue is paused: who said so last, when and why."""

    paused: bool = False
    who: str | None = None
    why: str | None = None
    at: float | None = None


_decode = msgspec.json.Decoder(Switch).decode


def switched(queue: str, switch: Switch) -> Put:
    return Put(KIND, queue, msgspec.json.encode(switch))


async def paused_queues(store: Store) -> dict[str, Switch]:
    """Those from which workers take nothing now."""
    said = {document.key: _decode(document.value) for document in await store.docs(KIND)}
    return {name: switch for name, switch in said.items() if switch.paused}


async def paused(store: Store, queue: str) -> Switch | None:
    """Who stopped this queue, when and why; None where it goes on."""
    document = await store.doc(KIND, queue)
    switch = _decode(document.value) if document is not None else Switch()
    return switch if switch.paused else None
