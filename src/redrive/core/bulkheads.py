"""Bulkheads as values: the last slots of a worker are kept for queues and downstreams that hold less than their share.

A slot cannot be taken back from a job that hangs, so a reserve is kept instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

RESERVE: Final = 5
"""The reserve is one slot in so many, rounded up."""


class Share(msgspec.Struct, frozen=True):
    """The fair share of each name in a worker's slots, and the slots that each holds."""

    fair: int
    held: Mapping[str, int] = {}


class Bulkheads(msgspec.Struct, frozen=True):
    """What no queue and no downstream may take that holds its fair share: the last free slots."""

    free: int
    kept: int
    queues: Share | None = None
    downstreams: Share | None = None
    calls: Mapping[str, str] = {}
    """What the jobs of a task call, where the task says so."""
    deliveries: frozenset[str] = frozenset()
    """Tasks whose jobs call the host of the `url` in their payload."""
    exempt: frozenset[str] = frozenset()
    """Queues whose own `concurrency=` replaces the rule."""


class Filling:
    """Counts what a claim takes, and says what bulkheads leave to a queue and to what its jobs call."""

    def __init__(self, bulkheads: Bulkheads) -> None:
        self._said = bulkheads
        self._taken = 0
        self._queues: Counter[str] = Counter()
        self._downstreams: Counter[str] = Counter()

    def room(self, queue: str, downstream: str | None) -> int:
        """Slots that jobs of this queue may still take which call this downstream."""
        said = self._said
        free = said.free - self._taken
        if queue in said.exempt:
            return free
        left = free
        if said.queues is not None:
            left = min(left, self._left(said.queues, queue, self._queues[queue]))
        if said.downstreams is not None and downstream is not None:
            left = min(left, self._left(said.downstreams, downstream, self._downstreams[downstream]))
        return left

    def open_room(self, queue: str) -> int:
        """Slots that jobs of this queue may take whatever they call: those before the reserve."""
        free = self._said.free - self._taken
        return free if queue in self._said.exempt else max(0, free - self._said.kept)

    def _left(self, share: Share, name: str, taken: int) -> int:
        own = share.held.get(name, 0) + taken
        return max(0, share.fair - own, self._said.free - self._taken - self._said.kept)

    def take(self, queue: str, downstream: str | None, number: int) -> None:
        self._taken += number
        self._queues[queue] += number
        if downstream is not None:
            self._downstreams[downstream] += number


def count_reserve(total: int) -> int:
    """The reserve of a worker with so many slots; one slot cannot be shared."""
    return -(-total // RESERVE) if total > 1 else 0


def make_share(total: int, names: Collection[str], held: Mapping[str, int]) -> Share | None:
    """What is fair among these names; None for a single one, which may have every slot."""
    return Share(max(1, total // len(names)), held) if len(names) > 1 else None
