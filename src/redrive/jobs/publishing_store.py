"""Wraps a store so that every committed move of this process is published on its bus.

Callers commit and publish nothing themselves: a path that forgets to publish cannot exist. Each job is told once per
commit, by its last move there, and only after the store has said that the commit is durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from redrive.core.job import Job
from redrive.core.lifecycle import Transition
from redrive.core.store import Applied, Commit, Inserted, Outcome, Put, Store
from redrive.engine.bus import Bus


class PublishingStore:
    """Publishes what `insert` and `apply` commit. All other verbs are the wrapped store's own."""

    def __init__(self, store: Store, bus: Bus) -> None:
        self._store = store
        self._bus = bus

    def __getattr__(self, name: str) -> Any:
        if name == "_store":  # a copy that is still empty
            raise AttributeError(name)
        return getattr(self._store, name)

    async def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> list[Inserted]:
        inserted = await self._store.insert(jobs, documents)
        self._bus.publish_new([each.job for each in inserted if not each.duplicate])
        return inserted

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        outcomes = await self._store.apply(group)
        answered = zip(group, outcomes, strict=True)
        if moves := _last_moves(commit for commit, outcome in answered if isinstance(outcome, Applied)):
            self._bus.publish_moves(moves)
        return outcomes


def publishing(store: Store, bus: Bus) -> Store:
    """Returns the store, wrapped so that its commits are published on this bus."""
    return cast("Store", PublishingStore(store, bus))


def _last_moves(commits: Iterable[Commit]) -> list[Transition]:
    """Lists the moves of these commits; of a job that one commit moves twice, the last."""
    moves: list[Transition] = []
    for commit in commits:
        several = len(commit.transitions) > 1
        moves += {move.job.id: move for move in commit.transitions}.values() if several else commit.transitions
    return moves
