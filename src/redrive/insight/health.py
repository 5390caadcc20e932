"""Health in words, and the signals that say when it hurts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from redrive.core.policy import Policy

OLD_DEFERRAL: Final = 7 * 86400.0
"""What was deferred so long ago may have been forgotten."""
REPEAT_AFTER: Final = 300.0
"""An identical signal is not repeated for so long, counted from its delivery."""


class QueueNumbers(msgspec.Struct, frozen=True):
    """What is known of one queue at one moment."""

    name: str
    policy: Policy
    due: int = 0
    waiting: int = 0
    running: int = 0
    held: int = 0
    blocked: int = 0
    """Held steps of workflows that only wait for the step before: nobody has to do anything."""
    deferred: int = 0
    """Dead letters that somebody sees to later."""
    overdue: int = 0
    """Deferred ones whose time has come, and that nobody has recalled."""
    put_off: int = 0
    """Deferred ones that have been so for longer than a week."""
    done: int = 0
    dead: int = 0
    discarded: int = 0
    purged: int = 0
    forgotten: int = 0
    paused: bool = False
    unattended: int = 0
    """Due ones that no living worker takes."""
    stalled: Sequence[str] = ()
    """Descriptions of jobs that have run longer than stalled_after."""

    @property
    def pending(self) -> int:
        return self.due

    @property
    def backed_up(self) -> bool:
        """More is due than its policy thinks right."""
        return self.due > (self.policy.health_depth or 0)

    @property
    def needs_eyes(self) -> bool:
        """Something is wrong with it, or somebody has stopped it."""
        return self.paused or bool(_issues(self))

    def public(self) -> dict[str, Any]:
        """As stats show it."""
        body = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("policy", "stalled")}
        return body | {"criticality": self.policy.criticality, "max_attempts": self.policy.max_attempts}


class Health(msgspec.Struct, frozen=True):
    """healthy or degraded, in numbers and in words."""

    status: str
    total_pending: int
    total_dead_letter: int
    issues: list[str]


def health(queues: Sequence[QueueNumbers], troubles: Sequence[str] = ()) -> Health:
    """Degraded as soon as anything needs eyes: dead letters, a backlog, a stalled job, a blocked loop."""
    issues = [issue for queue in sorted(queues, key=lambda queue: queue.name) for issue in _issues(queue)]
    issues.extend(troubles)
    return Health(
        "degraded" if issues else "healthy",
        sum(queue.pending for queue in queues),
        sum(queue.dead for queue in queues),
        issues,
    )


def _issues(queue: QueueNumbers) -> list[str]:
    issues = []
    if queue.dead:
        issues.append(f"{queue.name}: {queue.dead} dead letter{'s' if queue.dead != 1 else ''}")
    if queue.backed_up:
        issues.append(f"{queue.name}: {queue.pending} pending (backed up)")
    held = queue.held - queue.blocked - queue.deferred
    if held > 0:
        issues.append(f"{queue.name}: {held} held (waiting for a person or a dependency)")
    if queue.overdue:
        issues.append(f"{queue.name}: {queue.overdue} deferred and overdue (their time has come)")
    if queue.put_off:
        issues.append(f"{queue.name}: {queue.put_off} deferred for more than a week (does anybody see to them?)")
    issues.extend(f"{queue.name}: {stalled}" for stalled in queue.stalled)
    return issues


class Pain(msgspec.Struct, frozen=True):
    """A reliability signal for whoever heals things."""

    kind: str
    queue: str
    severity: float
    message: str


def pains(queues: Sequence[QueueNumbers]) -> list[Pain]:
    """Depth over its threshold hurts more the deeper it is; dead letters over theirs hurt at least 0.7."""
    return [
        Pain(kind, queue.name, _scaled(number, threshold, least), f"{queue.name}: {number} {words}")
        for queue in queues
        for kind, number, threshold in _measured(queue)
        if number > threshold
        for least, words in (_HURTS[kind],)
    ]


def sore(queues: Sequence[QueueNumbers]) -> set[tuple[str, str]]:
    """What hurts, by kind and queue, and what has hurt and is not over: a number that hovers around its threshold is
    one pain, not one every time it crosses it. It is over at half of the threshold."""
    return {
        (kind, queue.name)
        for queue in queues
        for kind, number, threshold in _measured(queue)
        if number > threshold // 2
    }


_HURTS: Final = {
    "depth": (0.3, "due jobs are waiting; is what they call down?"),
    "dead_letters": (0.7, "dead letters need attention"),
}
"""How much it hurts at least, and in which words."""


def _measured(queue: QueueNumbers) -> tuple[tuple[str, int, int], ...]:
    """What of a queue may hurt: its kind, the number, and the threshold of that."""
    return (
        ("depth", queue.pending, queue.policy.pain_depth or 0),
        ("dead_letters", queue.dead, queue.policy.pain_dead or 0),
    )


def _scaled(value: int, threshold: int, least: float) -> float:
    """From `least` just over the threshold towards 1.0 at ten times as much, and always growing."""
    over = value / max(threshold, 1) - 1.0
    return round(least + (1.0 - least) * (1.0 - 1.0 / (1.0 + over / 3.0)), 6)


class Remembered:
    """Which signals were delivered when, so that identical ones are not repeated. Only delivery counts."""

    def __init__(self, repeat_after: float = REPEAT_AFTER) -> None:
        self._delivered: dict[tuple[str, str], float] = {}
        self._heard: dict[tuple[str, str], set[int]] = {}
        self._repeat_after = repeat_after

    def fresh(self, pain: Pain, now: float) -> bool:
        at = self._delivered.get((pain.kind, pain.queue))
        return at is None or abs(now - at) >= self._repeat_after  # also where a clock that was ahead was put right

    def heard(self, pain: Pain) -> set[int]:
        """Who has taken it already, to be spared while another must be told again."""
        return self._heard.setdefault((pain.kind, pain.queue), set())

    def delivered(self, pain: Pain, now: float) -> None:
        self._delivered[pain.kind, pain.queue] = now
        self._heard.pop((pain.kind, pain.queue), None)

    def over(self, still: Collection[tuple[str, str]]) -> None:
        """Forget what no longer hurts, so that it is told at once when it comes back."""
        self._delivered = {key: at for key, at in self._delivered.items() if key in still}
        self._heard = {key: heard for key, heard in self._heard.items() if key in still}
