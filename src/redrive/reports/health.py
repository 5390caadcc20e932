"""Writes health in words, and makes pains from queue numbers, needs and breakers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from redrive.core.pain import Pain
from redrive.core.view import Shown
from redrive.reports.needs import Need
from redrive.reports.queue_numbers import QueueNumbers, issues_of
from redrive.retries.breaker import Breaker, in_words

Status = Literal["healthy", "degraded", "broken"]


class Health(Shown, msgspec.Struct, frozen=True):
    """Health of the store (healthy, degraded or broken), in numbers and in words."""

    status: Status
    total_pending: int
    total_dead_letter: int
    issues: list[str]
    """Everything that is wrong: what needs a person, and what heals by itself."""
    needs: list[Need] = []
    """Needs of a person. Empty if everything is well or heals by itself."""
    retrying: int = 0
    parked: int = 0
    comes_back: int = 0

    @property
    def exit_code(self) -> int:
        """0: well, or healing by itself. 1: a person is needed. 3: the store cannot be used."""
        return 3 if self.status == "broken" else 1 if self.needs else 0


_IN_QUEUES: Final = frozenset(
    {"dead_manual", "conflicting_input", "backed_up", "approval", "consent", "outcome_unknown", "deferred_overdue"}
)
"""Kinds of needs that the sentence of a queue counts already."""


def health(queues: Sequence[QueueNumbers], needs: Sequence[Need] = (), facts: Sequence[str] = ()) -> Health:
    """Makes the health of the store: degraded if anything needs a person, is retried or is parked.

    `facts` heal by themselves.
    """
    issues = [issue for queue in sorted(queues, key=lambda queue: queue.name) for issue in issues_of(queue)]
    issues += [need.sentence for need in needs if need.kind not in _IN_QUEUES or not need.queue]
    issues += facts
    return Health(
        "degraded" if issues or needs else "healthy",
        sum(queue.pending for queue in queues),
        sum(queue.dead for queue in queues),
        issues,
        list(needs),
        sum(queue.retrying for queue in queues),
        sum(queue.parked for queue in queues),
        sum(queue.comes_back for queue in queues),
    )


def broken(needs: Sequence[Need]) -> Health:
    """Makes the health of a store that cannot be used, from what is known without it."""
    return Health("broken", 0, 0, [need.sentence for need in needs], list(needs))


def pains(queues: Sequence[QueueNumbers]) -> list[Pain]:
    """Scores queue numbers above their thresholds: depth by how deep, dead letters at least 0.7."""
    return [
        Pain(kind, queue.name, _scale(number, threshold, least), f"{queue.name}: {number} {words}")
        for queue in queues
        for kind, number, threshold, least, words in _measure(queue)
        if number > threshold
    ]


def sore(queues: Sequence[QueueNumbers]) -> set[tuple[str, str]]:
    """Lists kinds and queues whose pain is not over: a pain ends at half of its threshold.

    So a number that hovers around its threshold is one pain, not one every time the number crosses the threshold.
    """
    return {
        (kind, queue.name)
        for queue in queues
        for kind, number, threshold, *_ in _measure(queue)
        if number > threshold // 2
    }


def _measure(queue: QueueNumbers) -> tuple[tuple[str, int, int, float, str], ...]:
    """Returns what of a queue may be a pain: the kind, the number, its threshold, the least severity, and words."""
    policy = queue.policy
    return (
        ("depth", queue.pending, policy.pain_depth or 0, 0.3, "jobs are pending; is what they call down?"),
        ("dead_letters", queue.manual, policy.pain_dead or 0, 0.7, "dead letters need attention"),
    )


def _scale(value: int, threshold: int, least: float) -> float:
    """Scales a value over its threshold: from `least` just over the threshold towards 1.0, and always growing."""
    over = max(0.0, value / max(threshold, 1) - 1.0)
    return round(least + (1.0 - least) * (1.0 - 1.0 / (1.0 + over / 3.0)), 6)


TOLD: Final = ("process_gone", "cycle_missing", "cycle_died", "cycle_short", "stalled", "loop_blocked", "disk_low",
               "clock_jumped", "unattended")  # fmt: skip
"""Kinds of needs that are sent to people as pains."""


def aching(needs: Sequence[Need]) -> list[Pain]:
    """Turns the needs of the kinds in TOLD, and effects with an unknown outcome, into pains."""
    return [
        Pain(need.kind, need.queue, 0.7, need.sentence, need.id.partition(":")[2])
        for need in needs
        if need.kind in TOLD or (need.kind == "outcome_unknown" and not need.queue)  # an effect without a job
    ]


def downstreams(down: Sequence[tuple[Breaker, int]]) -> list[Pain]:
    """Makes a pain of each downstream that does not answer: the more jobs are parked for it, the more severe."""
    return [
        Pain("downstream_down", "", _scale(parked, 10, 0.5), in_words(breaker, parked), breaker.key)
        for breaker, parked in down
    ]
