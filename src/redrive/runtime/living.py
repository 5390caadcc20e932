"""Which workers live. Each announces what it can do, again and again; one that stopped doing so is gone."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.job import CYCLE, State
from redrive.core.store import Commit, Document, Filter, Put, Store, Wanted
from redrive.runtime.switches import paused_queues

KIND: Final = "worker"
ANNOUNCE_SECONDS: Final = 20.0
"""How often a worker says that it lives."""
GONE_AFTER: Final = 6 * ANNOUNCE_SECONDS
"""A worker that was not heard of for so long does not live, for all who ask."""


class Announcement(msgspec.Struct, frozen=True):
    """What a worker says of itself; the document's key is its id."""

    tasks: frozenset[str]
    at: float
    concurrency: int = 0
    running: int = 0
    channels: frozenset[str] = frozenset()
    """Ways to people that its process has, and that others may not have."""
    queues: frozenset[str] | None = None
    agents: frozenset[str] | None = None
    """What it takes of all that it could run; None for everything."""

    def lives(self, now: float) -> bool:
        return now - self.at <= GONE_AFTER

    def takes(self, queue: str, task: str, agent: str | None) -> bool:
        """As its claims do."""
        return Wanted(0, self.tasks, self.queues, self.agents).takes(queue, task, agent)


_decode = msgspec.json.Decoder(Announcement).decode


def announced(worker: str, said: Announcement) -> Put:
    return Put(KIND, worker, msgspec.json.encode(said, order="deterministic"))


def withdrawn(worker: str, version: int | None = None) -> Put:
    """It is gone; with a version, only if it has said nothing since."""
    return Put(KIND, worker, None, version)


async def living(store: Store, now: float) -> list[Announcement]:
    """Whoever lives, wherever it runs."""
    return [said for _, said in await _announcements(store) if said.lives(now)]


async def unattended(store: Store, now: float, due_for: float = 0.0) -> dict[tuple[str, str], int]:
    """Jobs due for so long, by queue and task, that nobody runs: no living worker takes them.

    That a worker lives says nothing: one beside a dashboard knows only the built-in delivery, others are for some
    queues or agents. A cycle's jobs wait for its script, those of a paused queue for whoever paused it.
    """
    workers, paused = await living(store, now), await paused_queues(store)
    due = await store.count(Filter(states=(State.waiting,), due_at=now - due_for), by=("queue", "task", "agent"))
    left: dict[tuple[str, str], int] = {}
    for (queue, task, agent), number in due.items():
        route = (str(queue), str(task))
        if route[0] in paused or route[0].startswith(CYCLE) or any(each.takes(*route, agent) for each in workers):
            continue
        left[route] = left.get(route, 0) + number
    return left


async def take_down(store: Store, now: float) -> list[Announcement]:
    """Forget whoever left without a word. Whoever lives is left."""
    left = []
    for document, said in await _announcements(store):
        if said.lives(now):
            left.append(said)
        else:
            await store.apply([Commit(puts=(withdrawn(document.key, document.version),))])
    return left


async def _announcements(store: Store) -> list[tuple[Document, Announcement]]:
    return [(document, _decode(document.value)) for document in await store.docs(KIND)]
