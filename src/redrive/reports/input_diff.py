"""What each run of a job was given, and what two of them were given differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.core.change import own_names
from redrive.core.checks import MOST, check_range
from redrive.core.job import Attempt, Job, Json
from redrive.core.redact import redact
from redrive.errors import InvalidInput
from redrive.retries.changes import apply, decode, diff

if TYPE_CHECKING:
    from redrive.jobs.core import Core


def inputs(core: Core, job: Job, *, secrets: bool) -> dict[int, Json]:
    """By run."""
    given = {attempt.run: _input(core, job, attempt) for attempt in job.history}
    return given if secrets else {run: redact(one) for run, one in given.items()}


def difference(core: Core, job: Job, one: int, other: int, *, secrets: bool) -> list[str]:
    """In words; empty where nothing was different."""
    for run in (one, other):
        check_range("run", run, 0, MOST)
    runs = {attempt.run: attempt for attempt in job.history}
    given = inputs(core, job, secrets=secrets)
    if missing := {one, other} - given.keys():
        known = ", ".join(map(str, given)) or "none"
        raise InvalidInput(field="run", problem=f"{min(missing)} is not a run of this job; there are {known}")
    handler = core.registry.handlers.get(job.task)
    adapt, count = handler.adapt if handler else None, core.registry.count
    return _by_whom(runs[one], runs[other]) + diff(given[one], given[other], adapt=adapt, count=count)


def _input(core: Core, job: Job, attempt: Attempt) -> Json:
    handler = core.registry.handlers.get(job.task)
    adapt, count = handler.adapt if handler else None, core.registry.count
    return apply(job.arguments, decode(attempt.changes), adapt, count, names=own_names(attempt)).payload


def _by_whom(one: Attempt, other: Attempt) -> list[str]:
    """Who ran, and with which model, where that differs."""
    names = (("agent", one.agent, other.agent), ("model", one.model, other.model))
    return [f"{name}: {before or 'none'} → {after or 'none'}" for name, before, after in names if before != after]
