"""Defines the state of one running attempt. The user's Context shows a part of that state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from redrive.core.budget import compute_rest
from redrive.core.change import Change
from redrive.core.effects import Verdict, in_words
from redrive.core.job import Budget, Job, Json, Usage
from redrive.core.store import Lease, Put, Store
from redrive.engine.clock import Clock
from redrive.engine.registry import Handler
from redrive.retries.decision import Sitting


class Look(msgspec.Struct, frozen=True):
    """The verdicts of a task's verifiers on its effects."""

    verdict: Verdict
    """The combined verdict on all effects."""
    effects: dict[str, Verdict]
    removing: frozenset[str] = frozenset()
    """The effects that remove something."""
    witness: Json = None
    """The witness that the verifiers were given, shortened."""

    @property
    def words(self) -> str:
        """The effects as advice names them: `note: there; mail: missing`."""
        return "; ".join(
            f"{name}: {in_words(verdict, 'absent' if name in self.removing else 'present')}"
            for name, verdict in self.effects.items()
        )

    def __str__(self) -> str:
        return ", ".join(f"{name} {verdict}" for name, verdict in self.effects.items()) or "nothing to look at"


def no_signal(error: BaseException) -> bool:
    """Tells that no signal is behind an exception: the default where signals are not watched."""
    return False


class AttemptState(msgspec.Struct, eq=False):
    """The state of one attempt: made by the worker, cycle or call that runs the attempt, read when it is settled."""

    job: Job
    """The job as this attempt runs it: the payload of a workflow's step holds the outputs of earlier steps."""
    handler: Handler
    """The registered task of the job."""
    store: Store
    """The store that keeps steps, effects and progress of the task."""
    clock: Clock
    """The clock that stamps those documents."""
    stored: Job | None = None
    """The job of a workflow's step as stored, with the outputs of earlier steps only named."""
    sitting: Sitting = None
    """The kind of waiter for this attempt: a caller, or a script in its cycle."""
    tries: int = 1
    """The number of this try within the sitting, from 1."""
    is_signal: Callable[[BaseException], bool] = no_signal
    """Tells whether a signal, and not the task, caused an exception that ends a process."""
    awaited_by: asyncio.Task[Any] | None = None
    """The asyncio task of the caller that waits for this attempt."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that serves the BlockingContext of a plain function."""
    context: Any = None
    """The Context or BlockingContext of the task, made when the task first asks for one."""
    results: dict[str, Json] = {}
    """The outputs of earlier steps of the workflow, by step."""
    names: set[str] = set()
    """The steps, effects and approvals that the task has reached, each as `kind:name`."""
    taken: tuple[Change, ...] = ()
    """The changes that this attempt runs with."""
    usage: Usage | None = None
    """The usage that the task has reported so far."""
    recovered: bool = False
    """True where a resource that the task requires was down and is back."""
    cancelled: bool = False
    """True where the job no longer belongs to this worker: its lease was lost or the job was cancelled."""
    releasing: bool = False
    """True while the worker stops this attempt to give the job back."""
    sole: bool = False
    """True where the worker ran no other job when the worker was told to stop."""
    signalled: str | None = None
    """The signal that this attempt sent to its own process."""
    late: bool = False
    """True where the task goes on after its timeout."""
    overran: float | None = None
    """The timeout that the task ran past before it ended; None where the task kept to its timeout."""
    look: Look | None = None
    """The last look of the verifiers in this attempt."""
    looked: Literal["before", "after"] | None = None
    """Whether the verifiers looked before the task ran, or after the task had failed."""
    witness: tuple[Put, ...] = ()
    """The put of the witness that an uncertain failure left, while the failure is being settled."""
    open_error: Exception | None = None
    """The error that left an effect of `once` open; the next attempt asks the verifier of that effect."""
    error: BaseException | None = None
    """The exception that ended this attempt, for the log."""
    value: Any = None
    """The value that the task returned, where a caller or a cycle waits for that value."""

    @property
    def lease(self) -> Lease:
        return Lease(self.job.id, self.job.token or "")

    def has_used(self, kind: str) -> bool:
        """Tells whether the task reached a step, or an effect (`once`)."""
        return any(name.startswith(f"{kind}:") for name in self.names)

    def budget_left(self) -> Budget | None:
        """Computes the rest of the job's budget after the usage of this attempt; None without a budget."""
        budget = self.job.options.budget
        return compute_rest(budget, self.job, self.usage, self.clock.now()) if budget is not None else None


running_attempt: ContextVar[AttemptState | None] = ContextVar("redrive_attempt", default=None)
"""The attempt whose task runs here; None outside of tasks."""
