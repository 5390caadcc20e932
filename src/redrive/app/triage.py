"""Triage: the verbs that a person, or an agent for them, has for dead letters, as orders for `acts`."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, cast, get_args

import msgspec

from redrive.app.accept import check_name
from redrive.app.acts import NOTE, Arrow, Decided, Order
from redrive.core import lifecycle
from redrive.core.job import Job, Lane, State, iso
from redrive.core.store import Put
from redrive.core.triage import NOTE_LIMIT, Note, reassigned
from redrive.errors import IllegalMove, InvalidInput, InvalidOption, JobNotFound
from redrive.tasks import seconds

if TYPE_CHECKING:
    from redrive.app import Redrive

LEAST_BEGINNING: Final = 3
LONGEST_DEFERRAL: Final = 366 * 86400.0
FOR_EYES: Final = {"lane": "manual"}
"""Somebody wanted to see to it: it does not come back by itself."""


def redriving(app: Redrive, who: str, why: str | None) -> Order:
    return Order("redrive", who, why, lambda job, now: app.dead._redriven(job, now, who, why))


def reassigning(app: Redrive, agent: str, who: str, why: str | None) -> Order:
    """Another agent does it: a redrive with set_agent. What was consented to for the old one does not count."""
    check_name("agent", agent)

    def arrow(job: Job, now: float) -> lifecycle.Transition:
        return app.dead._redriven(job, now, who, why, reassigned(job, agent))

    return Order("reassign", who, why, arrow, {"agent": agent})


def deferring(app: Redrive, owner: str, until: datetime | timedelta | float, who: str, why: str | None) -> Order:
    check_name("owner", owner)
    at = instant(until, app.clock.now())

    def arrow(job: Job, now: float) -> lifecycle.Transition:
        return lifecycle.deferred(job, now, owner=owner, until=at, who=who, why=why)

    return Order("defer", who, why, arrow, {"owner": owner, "until": iso(at)})


def recalling(who: str, why: str | None) -> Order:
    """Only what is deferred; what was redriven is taken back with `undo`."""

    def arrow(job: Job, now: float) -> lifecycle.Transition:
        if job.state is not State.held:
            raise IllegalMove(f"job {job.short_id} is {job.state}, not deferred; it has no recall", job_id=job.id)
        return lifecycle.recalled(job, now, who=who, why=why, trouble=FOR_EYES)

    return Order("recall", who, why, arrow)


def discarding(who: str, why: str | None) -> Order:
    return Order("discard", who, why, lambda job, now: lifecycle.discarded(job, now, who=who, why=why))


def restoring(who: str, why: str | None) -> Order:
    return Order("restore", who, why, lambda job, now: lifecycle.restored(job, now, who=who, why=why))


def rerouting(lane: str, who: str, why: str | None) -> Order:
    if lane not in get_args(Lane):
        raise InvalidInput(field="lane", problem=f"{lane!r} is not one of {', '.join(get_args(Lane))}")
    chosen = cast(Lane, lane)
    return Order(
        "move_lane", who, why, lambda job, now: lifecycle.rerouted(job, now, lane=chosen, who=who, why=why),
        {"lane": lane},
    )  # fmt: skip


def noting(text: str, who: str) -> Order:
    return Order("note", who, None, noted(text, who))


def noted(text: object, who: str) -> Arrow:
    """A note beside the job; it moves nothing."""
    if not isinstance(text, str) or not text.strip() or len(text) > NOTE_LIMIT:
        raise InvalidInput(field="text", problem=f"must be 1 to {NOTE_LIMIT} characters")

    said = text

    def arrow(job: Job, now: float) -> Decided:
        if job.state is State.purged:
            raise JobNotFound(f"job {job.short_id} was purged: there is nothing left to note", job_id=job.id)
        key = f"{job.id}/{int(now * 1000):013x}.{secrets.token_hex(4)}"
        return Decided(None, (Put(NOTE, key, msgspec.json.encode(Note(now, who, said))),))

    return arrow


def instant(until: datetime | timedelta | float, now: float) -> float:
    """When a deferral ends: a time with its zone, or a span from now."""
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise InvalidOption(field="until", problem=f"{until} has no time zone")
        at = until.timestamp()
    else:
        at = now + seconds(until, "until")
    if not 0 < at - now <= LONGEST_DEFERRAL:
        raise InvalidOption(field="until", problem="must be in the future, a year from now at most")
    return at


async def fingerprint_of(app: Redrive, beginning: str) -> str:
    """A group's fingerprint by itself, or by a beginning of it that no other has."""
    if await app.store.groups(fingerprints=[beginning]):
        return beginning
    found: list[str] = []
    if len(beginning) >= LEAST_BEGINNING:
        known = (group.fingerprint for group in await app.store.groups())
        found = [fingerprint for fingerprint in known if fingerprint.startswith(beginning)]
    if len(found) > 1:
        raise InvalidInput(field="group", problem=f"{beginning!r} begins several groups; give more of it")
    if not found:
        raise InvalidInput(field="group", problem=f"there is no group {beginning!r}")
    return found[0]
