"""Numbers of one queue at one moment, and the issues that follow from the numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from redrive.core.policy import Policy
from redrive.core.timings import Span
from redrive.core.view import Name, Shown
from redrive.core.words import span
from redrive.reports.workforce import Paces, failure_rate

OLD_DEFERRAL: Final = 7 * 86400.0
"""Age from which on a deferral may have been forgotten."""


class QueueNumbers(Shown, msgspec.Struct, frozen=True):
    """Numbers of one queue at one moment."""

    HIDDEN: ClassVar = ("policy", "retrying_later")
    SHOWN: ClassVar[tuple[str, ...]] = ("pending", "criticality", "policy.max_attempts")
    name: Name
    policy: Policy
    due: int = 0
    waiting: int = 0
    retrying: int = 0
    """Jobs that wait after a failed attempt: a part of `waiting`."""
    retrying_later: int = 0
    """Retrying jobs that are not due yet."""
    running: int = 0
    held: int = 0
    parked: int = 0
    """Jobs that a breaker holds until what they call answers again: a part of `held`."""
    blocked: int = 0
    """Held steps of workflows that only wait for the step before."""
    deferred: int = 0
    """Deferred dead letters."""
    overdue: int = 0
    """Deferred dead letters whose time has come and that were not recalled."""
    put_off: int = 0
    """Dead letters that have been deferred for longer than a week."""
    done: int = 0
    dead: int = 0
    comes_back: int = 0
    """Dead letters of the delayed lane, which come back by themselves: a part of `dead`."""
    next_back: float | None = None
    """Seconds until the next dead letter comes back by itself; None where its script brings the dead letter back."""
    discarded: int = 0
    purged: int = 0
    forgotten: int = 0
    paused: bool = False
    unattended: int = 0
    """Due jobs that no living worker takes."""

    @property
    def pending(self) -> int:
        """Jobs to do now or after a failure, each job once; jobs planned for later do not count."""
        return self.due + self.retrying_later + self.parked

    @property
    def criticality(self) -> str | None:
        return self.policy.criticality

    @property
    def manual(self) -> int:
        """Dead letters that wait for a person."""
        return self.dead - self.comes_back

    @property
    def backed_up(self) -> bool:
        """Whether more jobs are pending than the policy of the queue allows."""
        return self.pending > (self.policy.health_depth or 0)

    @property
    def too_many_due(self) -> bool:
        """Whether more jobs are due than the policy of the queue allows: the workers do not keep up."""
        return self.due > (self.policy.health_depth or 0)

    @property
    def needs_eyes(self) -> bool:
        """Whether something is wrong with the queue, or a person has stopped it."""
        return self.paused or bool(issues_of(self))


class QueueView(QueueNumbers, frozen=True):
    """Numbers of a queue and how fast the queue goes: an item of `rd.queues.list()`."""

    SHOWN: ClassVar = (*QueueNumbers.SHOWN, "failure_rate")
    succeeded: int = 0
    """Attempts of the last day that succeeded."""
    failed: int = 0
    """Attempts of the last day that failed."""
    waited: Span | None = None
    """Seconds from the time the last successes were due until they started."""
    took: Span | None = None
    """Seconds from the start of the last successes until they were done."""

    @property
    def failure_rate(self) -> float | None:
        """The share of the last day's attempts that failed; None where there were none."""
        return failure_rate(self.succeeded, self.failed)


def with_paces(queues: Sequence[QueueNumbers], paces: Paces) -> list[QueueView]:
    """Adds to the numbers of queues how fast the queues go."""
    return [QueueView(**msgspec.structs.asdict(numbers), **paces.of(numbers.name)) for numbers in queues]


def returning(number: int, next_back: float | None) -> str:
    """Writes `12 come back by themselves, the next in 8 min`."""
    one = number == 1
    who = "1 comes back by itself" if one else f"{number} come back by themselves"
    if next_back is None:
        return who
    when = f"in {span(next_back)}" if next_back >= 1 else "now"
    return f"{who}, {when}" if one else f"{who}, the next {when}"


def issues_of(queue: QueueNumbers) -> list[str]:
    """Describes in words what is wrong in one queue."""
    held = queue.held - queue.blocked - queue.deferred - queue.parked
    issues = (
        (queue.manual, f"{queue.manual} dead letter{'s' if queue.manual != 1 else ''}"),
        (queue.comes_back, returning(queue.comes_back, queue.next_back)),
        (queue.backed_up, f"{queue.pending} pending (backed up)"),
        (queue.retrying, f"{queue.retrying} retrying after failures"),
        (held, f"{held} held (waiting for a person or a dependency)"),
        (queue.overdue, f"{queue.overdue} deferred and overdue (their time has come)"),
        (queue.put_off, f"{queue.put_off} deferred for more than a week (are they still wanted?)"),
    )
    return [f"{queue.name}: {text}" for number, text in issues if number > 0]
