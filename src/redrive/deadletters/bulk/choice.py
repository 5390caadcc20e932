"""Before a redrive: what was chosen, in which order it would go, and what it might cost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import msgspec

from redrive.core.job import Job, Usage
from redrive.core.view import Shown

GROUPS_KEPT: Final = 100
"""Groups that a scorecard tells apart: the largest. The rest are one row."""
OTHER_GROUPS: Final = "other groups"


class Chosen(msgspec.Struct):
    """A group among what was chosen, as its first dead letter tells it, and how many there are."""

    fingerprint: str | None
    task: str
    error_class: str | None
    error: str | None
    number: int = 0


class Estimate(msgspec.Struct, frozen=True):
    """What one more attempt of each might cost, by what earlier attempts of a sample reported."""

    tokens: int
    cost: float | None
    """None where nobody reported any."""
    sampled: int
    reported: int
    """Of the sampled jobs, those that told what they had used."""


class Plan(Shown, msgspec.Struct, frozen=True):
    """A dry run: what a redrive would do. `token` stands for exactly these dead letters."""

    SHOWN: ClassVar = ("moving",)
    number: int
    chosen: str
    groups: tuple[Chosen, ...]
    """The largest first."""
    queues: dict[str, int]
    skipped: dict[str, int]
    """What would not move, by why."""
    estimate: Estimate | None
    """None where no earlier attempt reported what it had used."""
    token: str
    running: tuple[str, ...] = ()
    """Redrives that still move one of these groups: only when they are over can this one start."""
    warnings: tuple[str, ...] = ()

    @property
    def moving(self) -> int:
        """How many would go back to their queue."""
        return self.number - sum(self.skipped.values())


def token_for(ids: Iterable[str]) -> str:
    """The same for the same ids, in whatever order."""
    digest = hashlib.sha256()
    for id in sorted(ids):
        digest.update(id.encode() + b"\n")
    return digest.hexdigest()[:32]


def largest(groups: Iterable[Chosen], kept: int = GROUPS_KEPT) -> tuple[Chosen, ...]:
    """The largest groups, and the others as one row."""
    ranked = sorted(groups, key=lambda group: (-group.number, group.fingerprint or ""))
    if len(ranked) <= kept:
        return tuple(ranked)
    rest = Chosen(None, OTHER_GROUPS, None, None, sum(group.number for group in ranked[kept:]))
    return (*ranked[:kept], rest)


def spread(items: Sequence[tuple[str, int]], canary: int) -> list[tuple[str, int]]:
    """The same items, those of the canary first: from every group in turn, so that it says something of each."""
    if not canary:
        return list(items)
    turns: dict[int, int] = {}
    ranked = []
    for place, (_, group) in enumerate(items):
        turn = turns[group] = turns.get(group, 0) + 1
        if turn <= canary:
            ranked.append((turn, place))
    first = [place for _, place in sorted(ranked)[:canary]]
    taken = set(first)
    return [items[place] for place in first] + [item for place, item in enumerate(items) if place not in taken]


def estimated(usages: Sequence[Usage | None], number: int) -> Estimate | None:
    """The mean of a sample, `None` for a job that told nothing, taken for all of them."""
    told = [usage for usage in usages if usage is not None]
    if not told:
        return None
    tokens = sum(usage.input_tokens + usage.output_tokens for usage in told)
    cost = sum(usage.cost for usage in told)
    share = number / len(usages)
    return Estimate(round(tokens * share), cost * share if cost else None, len(usages), len(told))


def last_usage(job: Job) -> Usage | None:
    """What the latest attempt that told it has used."""
    return next((attempt.usage for attempt in reversed(job.history) if attempt.usage is not None), None)
