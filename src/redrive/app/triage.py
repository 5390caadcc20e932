"""Triage: the verbs that a person, or an agent for them, has for dead letters, as orders for `acts`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast, get_args

from redrive.app.acts import SIZE_WITH_DOCUMENTS, Arrow, Decided, Order
from redrive.core import lifecycle
from redrive.core.checks import check_name
from redrive.core.documents import JOB_NOTE
from redrive.core.job import Job, Lane, State, iso
from redrive.core.moments import Given, later
from redrive.core.preflight import NotReady
from redrive.core.triage import NOTE_LIMIT, Note, reassigned
from redrive.errors import IllegalMove, InvalidInput, InvalidOption, JobNotFound, JobNotReady
from redrive.runtime.inputs import preflight

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.app.core import Core

LONGEST_DEFERRAL: Final = 366 * 86400.0
WOULD_REPEAT: Final = "is for a person: nobody knows whether it landed; look, then resolve it, or name it by its id"
LOOK_FIRST: Final = (
    "job {id} is for a person: nobody knows whether it landed; look, then `redrive resolve {id}`, or"
    " `redrive dead redrive {id}` to run it again"
)
FOR_EYES: Final = {"lane": "manual"}
"""Somebody wanted to see to it: it does not come back by itself."""


def redriven(
    app: Redrive | Core,
    job: Job,
    now: float,
    who: str,
    why: str | None,
    changed: Mapping[str, str] = lifecycle.NO_CHANGE,
    by: lifecycle.Revival | None = None,
) -> lifecycle.Transition:
    """The one way back to the queue. Refused where the job, as it would then be, could not start."""
    move = lifecycle.redriven(
        job, now, max_attempts=_grant(app, job), who=who, why=why, run_at=now, changed=changed, by=by
    )
    handler = app.registry.handlers.get(job.task)
    verdict = preflight(move.after(job.version), handler, app.registry, now)
    if isinstance(verdict, NotReady):
        raise JobNotReady(f"job {job.short_id} would die again: {verdict.why} {verdict.recommendation}", job_id=job.id)
    return move


def _grant(app: Redrive | Core, job: Job) -> int:
    """As many attempts as its task gives; where the task is not known here, as many as it had at first."""
    if job.task not in app.registry.handlers and job.allowed is not None:
        return max(1, job.allowed // (job.grants + 1))
    return app.registry.policy_for(job).max_attempts or 1


def check_not_landed(job: Job) -> None:
    """What may have landed goes back only where somebody meant it: it could happen twice."""
    if job.state is State.dead and job.may_have_landed:
        raise JobNotReady(f"job {job.short_id} {WOULD_REPEAT}", job_id=job.id)


def redriving(app: Redrive, who: str, why: str | None) -> Order:
    return Order("redrive", who, why, lambda job, now: redriven(app, job, now, who, why))


def reviving(app: Redrive, who: str, why: str) -> Order:
    """The same where nobody has looked at it: a program asks for it again."""

    def arrow(job: Job, now: float) -> lifecycle.Transition:
        if job.state is State.dead and job.may_have_landed:
            raise JobNotReady(LOOK_FIRST.format(id=job.short_id), job_id=job.id)
        return redriven(app, job, now, who, why)

    return Order("redrive", who, why, arrow)


def reassigning(app: Redrive, agent: str, who: str, why: str | None) -> Order:
    """Another agent does it: a redrive with set_agent. What was consented to for the old one does not count."""
    check_name("agent", agent)

    def arrow(job: Job, now: float) -> lifecycle.Transition:
        return redriven(app, job, now, who, why, reassigned(job, agent))

    said = {"agent": agent}
    return Order("reassign", who, why, arrow, said, size=SIZE_WITH_DOCUMENTS, unless=check_not_landed)


def deferring(app: Redrive, owner: str, until: Given, who: str, why: str | None) -> Order:
    check_name("owner", owner)
    now = app.clock.now()
    at = later("until", until, now)
    if at - now > LONGEST_DEFERRAL:
        raise InvalidOption(field="until", problem="must be a year from now at most")

    def arrow(job: Job, now: float) -> lifecycle.Transition:
        return lifecycle.deferred(job, now, owner=owner, until=at, who=who, why=why)

    return Order("defer", who, why, arrow, {"owner": owner, "until": iso(at)})


def recalling(who: str, why: str | None) -> Order:
    """Only what is deferred; what was redriven is taken back with `undo`."""

    def arrow(job: Job, now: float) -> lifecycle.Transition:
        if job.state is not State.held:
            raise IllegalMove(f"job {job.short_id} is {job.state}, not deferred; it has no recall", job_id=job.id)
        return lifecycle.recalled(job, now, who=who, why=why, trouble=FOR_EYES)

    return Order("recall", who, why, arrow, recalls=False)


def discarding(who: str, why: str | None) -> Order:
    return Order("discard", who, why, lambda job, now: lifecycle.discarded(job, now, who=who, why=why))


def restoring(who: str, why: str | None) -> Order:
    return Order("restore", who, why, lambda job, now: lifecycle.restored(job, now, who=who, why=why))


def rerouting(lane: str, who: str, why: str | None) -> Order:
    if lane not in get_args(Lane):
        raise InvalidInput(field="lane", problem=f"{lane!r} is not one of {', '.join(get_args(Lane))}")
    chosen = cast(Lane, lane)

    def arrow(job: Job, now: float) -> lifecycle.Transition:
        return lifecycle.rerouted(job, now, lane=chosen, who=who, why=why)

    unless = check_not_landed if lane == "delayed" else None
    return Order("move_lane", who, why, arrow, {"lane": lane}, unless=unless)


def noting(text: str, who: str) -> Order:
    return Order("note", who, None, noted(text, who), recalls=False)


def noted(text: object, who: str) -> Arrow:
    """A note beside the job; it moves nothing."""
    if not isinstance(text, str) or not text.strip() or len(text) > NOTE_LIMIT:
        raise InvalidInput(field="text", problem=f"must be 1 to {NOTE_LIMIT} characters")

    said = text

    def arrow(job: Job, now: float) -> Decided:
        if job.state is State.purged:
            raise JobNotFound(f"job {job.short_id} was purged: there is nothing left to note", job_id=job.id)
        key = f"{job.id}/{int(now * 1000):013x}.{secrets.token_hex(4)}"
        return Decided(None, (JOB_NOTE.put(key, Note(now, who, said)),))

    return arrow
