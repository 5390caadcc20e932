"""What the engine knows of one running attempt. The user's Context shows a part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from redrive.core.budget import compute_rest
from redrive.core.effects import Verdict, in_words
from redrive.core.job import Budget, Job, Json, Usage
from redrive.core.store import Lease, Put, Store
from redrive.engine.clock import Clock
from redrive.engine.registry import Handler
from redrive.retries.changes import Change
from redrive.retries.decision import Sitting


class Look(msgspec.Struct, frozen=True):
    """What the verifiers of a task saw of its effects."""

    verdict: Verdict
    """All effects together, in one word."""
    effects: dict[str, Verdict]
    removing: frozenset[str] = frozenset()
    """The effects that remove something."""
    witness: Json = None
    """What there was to look for."""

    @property
    def words(self) -> str:
        """As the advice names it: `note: there; mail: missing`."""
        return "; ".join(
            f"{name}: {in_words(verdict, 'absent' if name in self.removing else 'present')}"
            for name, verdict in self.effects.items()
        )

    def __str__(self) -> str:
        return ", ".join(f"{name} {verdict}" for name, verdict in self.effects.items()) or "nothing to look at"


def no_signal(error: BaseException) -> bool:
    """Say that no signal is behind an exception, where signals are not watched."""
    return False


class AttemptState(msgspec.Struct, eq=False):
    """One attempt: made by the worker, cycle or call that runs it, filled on its way, read when it is settled."""

    job: Job
    """The job as this attempt runs it: the payload of a workflow's step holds the outputs of earlier steps."""
    handler: Handler
    """The registered task of the job."""
    store: Store
    """Where steps, effects and progress of the task are written."""
    clock: Clock
    """The time by which they are written."""
    stored: Job | None = None
    """The job of a workflow's step as people see it, with the outputs of earlier steps only named."""
    sitting: Sitting = None
    """Who waits for this attempt: a caller, or a script in its cycle."""
    tries: int = 1
    """Which try in that sitting it is, from 1."""
    is_signal: Callable[[BaseException], bool] = no_signal
    """Tells whether a signal, and not the task, is behind an exception that ends a process."""
    awaited_by: asyncio.Task[Any] | None = None
    """The asyncio task of the caller that waits for this attempt."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that serves the BlockingContext of a plain function."""
    context: Any = None
    """The Context or BlockingContext of the task, once the task asks for it."""
    results: dict[str, Json] = {}
    """The outputs of earlier steps of the workflow, by step."""
    names: set[str] = set()
    """The steps, effects and approvals that the task has come to, each as `kind:name`."""
    taken: tuple[Change, ...] = ()
    """The changes that this attempt really runs with."""
    usage: Usage | None = None
    """What the task reported as spent so far."""
    recovered: bool = False
    """Something the task requires was away and is back."""
    cancelled: bool = False
    """The job no longer belongs to this worker: its lease was lost or the job was cancelled."""
    releasing: bool = False
    """The worker is stopping this attempt to give the job back."""
    sole: bool = False
    """The worker ran nothing else when it was told to stop."""
    signalled: str | None = None
    """The signal that this attempt sent to its own process."""
    late: bool = False
    """The timeout is over and the task goes on."""
    overran: float | None = None
    """The timeout after which the task went on to its end, where it did."""
    look: Look | None = None
    """What the verifiers saw last in this attempt."""
    looked: Literal["before", "after"] | None = None
    """Whether they looked before the task ran, or after it had failed."""
    witness: tuple[Put, ...] = ()
    """What an uncertain failure left to look for, while the failure is being settled."""
    open_error: Exception | None = None
    """The error by which an effect of `once` was left open whose verifier the next attempt asks."""
    error: BaseException | None = None
    """The exception that ended this attempt, for the log."""
    value: Any = None
    """What the task returned, where a caller or a cycle waits for it."""

    @property
    def lease(self) -> Lease:
        return Lease(self.job.id, self.job.token or "")

    def has_used(self, kind: str) -> bool:
        """Whether the task came to a step, or to an effect (`once`)."""
        return any(name.startswith(f"{kind}:") for name in self.names)

    def budget_left(self) -> Budget | None:
        """What is left of the job's budget, the usage of this attempt taken off; None without a budget."""
        budget = self.job.options.budget
        return compute_rest(budget, self.job, self.usage, self.clock.now()) if budget is not None else None


running_attempt: ContextVar[AttemptState | None] = ContextVar("redrive_attempt", default=None)
"""The attempt whose task runs here; None outside of tasks."""
