"""What a decision is made of, and what it looks like: a Case, and RetryLater, Bury or HoldBack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from redrive.core.agents import AgentFleet
from redrive.core.budget import recent
from redrive.core.change import own_names
from redrive.core.job import Attempt, Cause, Ending, Failure, Job, Json, Lane, Usage
from redrive.core.policy import Policy
from redrive.retries.changes import Adapt, Change, Counter, apply, decode, estimate

LONGEST_WAIT: Final = 365 * 86400.0


Sitting = Literal["call", "cycle"] | None
"""Who waits while an attempt runs: a caller, a script in its cycle, or None."""


class RetryLater(msgspec.Struct, frozen=True, gc=False):
    """Run again after `delay` seconds, perhaps changed. `changes` are all that hold from then on; None: as before."""

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
    """Tries that this decision adds to the allowed ones: a changed try brings its own."""
    asked: float = 0.0
    """Seconds of the delay that a server asked for: they do not make the job older."""


class Bury(msgspec.Struct, frozen=True, gc=False):
    """A dead letter: why, where it waits, and what a person can do."""

    because: str
    why: str
    recommendation: str
    lane: Lane = "manual"
    strategy: str = "bury"
    changes: tuple[Change, ...] | None = None
    agent: str | None = None
    model: str | None = None
    owner: str | None = None
    """Who must see to it."""
    costs_attempt: bool = True
    crashed: bool = False
    comes_back_at: float | None = None
    """When it comes back by itself, out of the delayed lane."""
    on_top: int = 0
    """Tries that this decision adds to the allowed ones, for when it comes back changed."""


class HoldBack(msgspec.Struct, frozen=True, gc=False):
    """Wait, visibly, for a person or for what is called. Costs no attempt."""

    because: str
    why: str
    recommendation: str
    held_for: str | None = None
    strategy: str = "hold"


Decision = RetryLater | Bury | HoldBack


class Abilities(msgspec.Struct, frozen=True):
    """What a task can take, and what there is to change to."""

    fleet: AgentFleet = AgentFleet()
    adapt: Adapt | None = None
    count: Counter = estimate
    model: str | None = None
    """The one the task uses where neither job nor payload names one."""
    output_tokens: int | None = None
    """The limit of its answer where the payload names none."""
    offer: tuple[Change, ...] = ()
    """The task's own answer to this failure."""


NOTHING: Final = Abilities()


class Case(msgspec.Struct, frozen=True, gc=False):
    """Everything a strategy may look at."""

    job: Job
    failure: Failure
    cause: Cause
    policy: Policy
    now: float
    chance: float = 0.5
    idempotent: bool = False
    alone: bool = False
    ending: Ending = "died"
    """How the job lost its worker, where it did."""
    abilities: Abilities = NOTHING
    effects: bool = False
    """The task has said that it does something outside."""
    effects_seen: str | None = None
    """What its verifiers saw of that, in words; empty where they did not look, None where it has none."""
    manual: bool = False
    """The task leaves every failure to a person."""
    usage: Usage | None = None
    """What this attempt has spent."""
    breaker: str | None = None
    """The open breaker of what it calls."""
    probes: bool = False
    """This attempt was sent to see whether that answers again."""
    sitting: Sitting = None
    """Who waits for the attempt: a caller, or a script in its cycle."""
    tries: int = 1
    """Tries made in this sitting, this one included."""
    trusted_now: float | None = None
    """The time by which a job may be too old; None means `now`."""

    @property
    def cap(self) -> float:
        """No wait of our own is longer."""
        return LONGEST_WAIT if self.policy.cap is None else self.policy.cap

    @property
    def max_wait(self) -> float:
        """The longest wait that a server may ask for."""
        return LONGEST_WAIT if self.policy.max_wait is None else min(self.policy.max_wait, LONGEST_WAIT)

    @property
    def called(self) -> bool:
        """Whether a caller waits for the job: at this moment, or for word of how the call that failed ends."""
        return self.sitting == "call" or self.job.reason == "retry"

    @property
    def runs_once(self) -> bool:
        """Whether the job was allowed a single attempt: then nothing brings another, a change neither."""
        return self.allowed == 1

    @property
    def failures(self) -> int:
        """Failed attempts, this one included."""
        return self.job.attempts + 1

    @property
    def allowed(self) -> int:
        return self.job.allowed if self.job.allowed is not None else self.policy.max_attempts or 1

    def allowed_with(self, on_top: int) -> int:
        """What is allowed from now on: a try on top is one that it has, however many it had before."""
        return max(self.allowed, self.failures) + on_top if on_top else self.allowed

    @property
    def recent(self) -> Sequence[Attempt]:
        """Earlier attempts since a person last brought the job back."""
        return recent(self.job)

    def seen(self, detail: str) -> int:
        """How often this cause was there before."""
        return sum(attempt.cause is not None and attempt.cause.detail == detail for attempt in self.recent)

    @property
    def changed_tries(self) -> int:
        """How many changed tries the job has had since a person last brought it back, whatever they were for."""
        return sum(attempt.cause is not None and attempt.cause.category == "conditional" for attempt in self.recent)

    @property
    def names(self) -> frozenset[str]:
        """The job's own names that its task goes by."""
        return own_names(self.job)

    def input(self) -> dict[str, Json]:
        """What the failed attempt ran with."""
        if self.job.changes_json is None:
            return self.job.arguments
        abilities, changes = self.abilities, decode(self.job.changes_json)
        return apply(self.job.arguments, changes, abilities.adapt, abilities.count, names=self.names).payload
