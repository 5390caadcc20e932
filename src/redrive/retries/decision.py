"""Defines the input of a decision, a Case, and its results: RetryLater, Bury and HoldBack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from redrive.core.agents import AgentFleet
from redrive.core.budget import recent
from redrive.core.change import Change, decode, own_names
from redrive.core.job import Attempt, Cause, Ending, Failure, Job, Json, Lane, Usage
from redrive.core.policy import Policy
from redrive.retries.changes import Adapt, Counter, apply, estimate

LONGEST_WAIT: Final = 365 * 86400.0


Sitting = Literal["call", "cycle"] | None
"""What waits while an attempt runs: a caller, a script in its cycle, or None."""


class RetryLater(msgspec.Struct, frozen=True, gc=False):
    """A retry after `delay` seconds. `changes` are all changes that apply from then on; None keeps the current ones."""

    delay: float
    why: str
    strategy: str = "retry"
    changes: tuple[Change, ...] | None = None
    agent: str | None = None
    model: str | None = None
    tier: Literal["immediate", "delayed"] = "delayed"
    costs_attempt: bool = True
    crashed: bool = False
    on_top: int = 0
    """Tries that this decision adds to the allowed ones: a changed try adds one."""
    asked: float = 0.0
    """Seconds of the delay that a server asked for: these seconds do not count towards the job's age."""


class Bury(msgspec.Struct, frozen=True, gc=False):
    """A dead letter: why the job died, the lane in which the dead letter waits, and what a person can do."""

    because: str
    why: str
    recommendation: str
    lane: Lane = "manual"
    strategy: str = "bury"
    changes: tuple[Change, ...] | None = None
    agent: str | None = None
    model: str | None = None
    owner: str | None = None
    """The owner, who must deal with the dead letter."""
    costs_attempt: bool = True
    crashed: bool = False
    comes_back_at: float | None = None
    """When the dead letter comes back by itself from the delayed lane."""
    on_top: int = 0
    """Tries that this decision adds to the allowed ones, for a comeback with changes."""


class HoldBack(msgspec.Struct, frozen=True, gc=False):
    """A held job, visible to people, that waits for a person or for a downstream. Holding costs no attempt."""

    because: str
    why: str
    recommendation: str
    held_for: str | None = None
    strategy: str = "hold"


Decision = RetryLater | Bury | HoldBack


class Abilities(msgspec.Struct, frozen=True):
    """The changes that a task can take, and the agents and models that are available for a change."""

    fleet: AgentFleet = AgentFleet()
    adapt: Adapt | None = None
    count: Counter = estimate
    model: str | None = None
    """The model that the task uses if neither job nor payload names one."""
    output_tokens: int | None = None
    """The task's limit for the answer in tokens if the payload names none."""
    offer: tuple[Change, ...] = ()
    """The changes that the task's own handler offers for this failure."""


NOTHING: Final = Abilities()


class Case(msgspec.Struct, frozen=True, gc=False):
    """All inputs that a strategy may read."""

    job: Job
    failure: Failure
    cause: Cause
    policy: Policy
    now: float
    chance: float = 0.5
    idempotent: bool = False
    alone: bool = False
    ending: Ending = "died"
    """How the job lost its worker, if it did."""
    abilities: Abilities = NOTHING
    effects: bool = False
    """Whether the task declares that it has effects outside."""
    effects_seen: str | None = None
    """What the task's verifiers saw of the effects, in words; empty if they did not look, None without verifiers."""
    manual: bool = False
    """Whether the task leaves every failure to a person."""
    usage: Usage | None = None
    """The tokens and cost that this attempt has spent."""
    breaker: str | None = None
    """The open breaker of the downstream that the job calls."""
    probes: bool = False
    """Whether this attempt was sent to test if the downstream answers again."""
    sitting: Sitting = None
    """What waits for the attempt: a caller, or a script in its cycle."""
    tries: int = 1
    """Tries made while the caller or script has been waiting, this one included."""
    trusted_now: float | None = None
    """The time used to judge whether a job is too old; None means `now`."""

    @property
    def cap(self) -> float:
        """The longest wait that redrive itself chooses."""
        return LONGEST_WAIT if self.policy.cap is None else self.policy.cap

    @property
    def max_wait(self) -> float:
        """The longest wait that a server may ask for."""
        return LONGEST_WAIT if self.policy.max_wait is None else min(self.policy.max_wait, LONGEST_WAIT)

    @property
    def called(self) -> bool:
        """Whether a caller waits for the job: at this moment, or for the outcome of a call that failed."""
        return self.sitting == "call" or self.job.reason == "retry"

    @property
    def runs_once(self) -> bool:
        """Whether the job was allowed a single attempt: then a change does not add another one either."""
        return self.allowed == 1

    @property
    def failures(self) -> int:
        """Failed attempts, this one included."""
        return self.job.attempts + 1

    @property
    def allowed(self) -> int:
        return self.job.allowed if self.job.allowed is not None else self.policy.max_attempts or 1

    def allowed_with(self, on_top: int) -> int:
        """Return the allowed attempts plus `on_top`. The added tries are usable even if all others are used up."""
        return max(self.allowed, self.failures) + on_top if on_top else self.allowed

    @property
    def recent(self) -> Sequence[Attempt]:
        """Earlier attempts since a person last brought the job back."""
        return recent(self.job)

    def seen(self, detail: str) -> int:
        """Count the earlier attempts with this cause."""
        return sum(attempt.cause is not None and attempt.cause.detail == detail for attempt in self.recent)

    @property
    def changed_tries(self) -> int:
        """Changed tries, for any cause, that the job has had since a person last brought the job back."""
        return sum(attempt.cause is not None and attempt.cause.category == "conditional" for attempt in self.recent)

    @property
    def names(self) -> frozenset[str]:
        """The job's own fields (model, agent) that its task reads."""
        return own_names(self.job)

    def input(self) -> dict[str, Json]:
        """Return the input of the failed attempt."""
        if self.job.changes_json is None:
            return self.job.arguments
        abilities, changes = self.abilities, decode(self.job.changes_json)
        return apply(self.job.arguments, changes, abilities.adapt, abilities.count, names=self.names).payload
