"""Computes the input of each run of a job, and the difference between the inputs of two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.core.change import decode, own_names
from redrive.core.checks import MOST, check_range
from redrive.core.job import Attempt, Job, Json
from redrive.core.redact import redact
from redrive.errors import InvalidInput
from redrive.retries.changes import apply, diff

if TYPE_CHECKING:
    from redrive.jobs.core import Core


def inputs(core: Core, job: Job, *, secrets: bool) -> dict[int, Json]:
    """Returns the input of each run, by the number of the run."""
    given = {attempt.run: _input(core, job, attempt) for attempt in job.history}
    return given if secrets else {run: redact(one) for run, one in given.items()}


def difference(core: Core, job: Job, one: int, other: int, *, secrets: bool) -> list[str]:
    """Describes the difference between two runs in words; empty if there is none."""
    for run in (one, other):
        check_range("run", run, 0, MOST)
    runs = {attempt.run: attempt for attempt in job.history}
    given = inputs(core, job, secrets=secrets)
    if missing := {one, other} - given.keys():
        known = ", ".join(map(str, given)) or "none"
        raise InvalidInput(field="run", problem=f"{min(missing)} is not a run of this job; there are {known}")
    handler = core.registry.handlers.get(job.task)
    adapt, count = handler.adapt if handler else None, core.registry.count
    return compare_whose(runs[one], runs[other]) + diff(given[one], given[other], adapt=adapt, count=count)


def _input(core: Core, job: Job, attempt: Attempt) -> Json:
    handler = core.registry.handlers.get(job.task)
    adapt, count = handler.adapt if handler else None, core.registry.count
    return apply(job.arguments, decode(attempt.changes), adapt, count, names=own_names(attempt)).payload


def compare_whose(one: Attempt, other: Attempt) -> list[str]:
    """Describes the agent and the model of two runs where they differ."""
    names = (("agent", one.agent, other.agent), ("model", one.model, other.model))
    return [f"{name}: {before or 'none'} → {after or 'none'}" for name, before, after in names if before != after]
