"""Checks a job before a run → Ready | NotReady: a job that cannot succeed costs neither an attempt nor a token.

The checks run when a job is accepted (as advice), before every run, and before a dead letter is brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from redrive.core.agents import AgentFleet
from redrive.core.job import Job, Json
from redrive.core.policy import Policy
from redrive.retries.changes import Adapt, Counter, estimate, tokens
from redrive.retries.changes.shapes import find_model

WARN_ABOVE: Final = 0.8
SPLIT_TO: Final = 7
"""Tenths of the model's window that each part should fill: a whole number, so that the boundary is exact."""
LEAST_BYTES_PER_TOKEN: Final = 1.0
MOST_BYTES_PER_CHARACTER: Final = 4
FEW_IMAGES: Final = 1_000
"""Characters that are too few to name so many images that the images fill a model's window."""


class Ready(msgspec.Struct, frozen=True):
    """The job may run; `warnings` name what is close to a limit."""

    warnings: tuple[str, ...] = ()


class NotReady(msgspec.Struct, frozen=True):
    """The job may not run: the dead letter's reason, the cause's detail, and both in words."""

    because: str
    detail: str
    why: str
    recommendation: str


class Conditions(msgspec.Struct, frozen=True):
    """The inputs of the checks beside the job."""

    fleet: AgentFleet = AgentFleet()
    adapt: Adapt | None = None
    count: Counter = estimate
    model: str | None = None
    """The model that the task uses if neither job nor payload names one."""


def still_wanted(job: Job, policy: Policy, now: float) -> NotReady | None:
    """Reject a job that has been failing for longer than max_age, not counting the time for which it was held."""
    if policy.max_age is None or job.first_failed_at is None:
        return None
    age = now - job.first_failed_at - job.held_seconds
    if age <= policy.max_age:
        return None
    return NotReady(
        "too_old",
        "timeout",
        f"It has been failing for {age:.0f} s, longer than max_age {policy.max_age:.0f} s.",
        "Redrive it if it is still wanted, discard it if not. max_age= gives it longer.",
    )


def credentials(missing: Sequence[str]) -> NotReady | None:
    if not missing:
        return None
    names = ", ".join(missing)
    return NotReady(
        "preflight_rejected",
        "credentials",
        f"Not started: {names} is not set where the worker runs.",
        f"Set {names} for the worker, restart it, then redrive.",
    )


def fits(payload: Mapping[str, Json], model: str | None, conditions: Conditions) -> Ready | NotReady | None:
    """Compare the estimated tokens with the model's window. Equal passes; more is refused before a token is spent."""
    needed = tokens(payload, conditions.adapt, conditions.count)
    if needed is None:
        return None
    name = model or find_model(payload, conditions.adapt) or conditions.model
    budget = conditions.fleet.context(name)
    if needed > WARN_ABOVE * budget and name is not None and conditions.fleet.known_context(name) is None:
        return Ready((_ask_for_window(needed, name),))
    if needed > budget:
        return _too_long(needed, budget, name)
    if needed > WARN_ABOVE * budget:
        share = 100.0 * needed / budget
        return Ready((f"about {needed:,} tokens, {share:.0f} % of what {name or 'the model'} may read ({budget:,})",))
    return None


def _ask_for_window(needed: int, model: str) -> str:
    """Ask for the window of an undeclared model, which may read more or less than usual."""
    unknown = f"about {needed:,} tokens; how many {model} may read is not known here"
    return f'{unknown}: declare it in redrive.toml, [models."{model}"] context = …'


def _too_long(needed: int, budget: int, model: str | None) -> NotReady:
    parts = -(-10 * needed // (SPLIT_TO * budget))
    return NotReady(
        "preflight_rejected",
        "context_overflow",
        f"Not started: about {needed:,} tokens, and {model or 'the model'} may read {budget:,}.",
        f"Split it into {parts} subtasks, or compress its context; then enqueue those, or edit it and redrive.",
    )


def short_enough(fleet: AgentFleet, count: Counter) -> int:
    """Return a length in characters below which no payload's estimate comes near any model's limit."""
    per_token = 3.5 if count is estimate else LEAST_BYTES_PER_TOKEN
    return int(WARN_ABOVE * fleet.smallest * per_token / MOST_BYTES_PER_CHARACTER)


def surely_fits(text: str, short: int) -> bool:
    """Return whether a payload fits without counting. Blobs and images count more than their text; a few are fine."""
    return len(text) <= short and '"$blob"' not in text and (len(text) <= FEW_IMAGES or "image" not in text)
