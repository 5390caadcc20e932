"""The triager: works through what was escalated, by rule and without a model. On by the setting `triage`.

A dead letter that the escalation agent owns is brought back once, with the strategy that has worked best against its
trouble; what that cures counts as resolved by itself. Where nothing is known to work, or that one try failed, a person
gets it, deferred for a day. What may have landed outside, and what somebody must consent to, is not touched.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.app.acts import SIZE_WITH_DOCUMENTS, Acts, Decided, Order
from redrive.app.triage import redriven
from redrive.core import lifecycle
from redrive.core.changes import decode, merge
from redrive.core.changes.change import anew, named_in
from redrive.core.job import CYCLE, Job, State
from redrive.core.lifecycle import MAX_GRANTS
from redrive.core.store import Filter, Lesson, Put
from redrive.core.triage import Remedy, hands_off, remedy
from redrive.runtime.effects import effects_of
from redrive.runtime.registry import Handler

if TYPE_CHECKING:
    from redrive.app import Redrive

log = logging.getLogger("redrive.triage")
TRIAGER: Final = "triager"
TRIED: Final = "triaged"
"""A document under the id of each job that was tried once."""
PAGE: Final = 200


class Triaged(msgspec.Struct, frozen=True):
    """What a round did."""

    redriven: int = 0
    deferred: int = 0
    left: int = 0
    """Letters that no machine may decide about: they wait for eyes."""


class Triager:
    """One round looks at some of the letters, oldest first, and the next goes on where it stopped."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._acts = Acts(app)
        self._cursor: str | None = None
        self._lessons: dict[str, list[Lesson]] = {}

    async def work(self) -> Triaged:
        """One round. Safe to run in many processes: each job is moved once, by whoever is first."""
        escalated = Filter(states=(State.dead,), lane="manual", owner=self._app.registry.fleet.escalation)
        page = await self._app.store.find(escalated, self._cursor, PAGE, oldest=True)
        self._cursor, self._lessons = page.cursor, {}
        cures: dict[str, Remedy] = {}
        put_off: dict[str, str] = {}
        left = 0
        for job in await self._app.store.get([job.id for job in page.jobs]):
            found = await self._judged(job)
            if isinstance(found, Remedy):
                cures[job.id] = found
            elif found is None:
                left += 1
            else:
                put_off[job.id] = found
        redriven = await self._redrive(cures)
        deferred = await self._defer(put_off)
        if redriven or deferred:
            log.warning("triage: %d redriven, %d deferred to %s, %d left for a person", redriven, deferred,
                        self._app.settings.triage_owner, left)  # fmt: skip
        return Triaged(redriven, deferred, left)

    async def _judged(self, job: Job) -> Remedy | str | None:
        """What to try; or why a person gets it; or None where it is not the triager's to touch."""
        handler = self._app.registry.handlers.get(job.task)
        if handler is None or handler.consent or handler.retry_policy == "manual" or job.queue.startswith(CYCLE):
            return None  # whoever has the code, or the script, decides
        if hands_off(job, await effects_of(self._app.store, job.id)) is not None:
            return None
        if await self._app.store.doc(TRIED, job.id) is not None:
            return "the best known strategy was tried once, and it failed again"
        if job.grants >= MAX_GRANTS:
            return f"it was brought back with fresh attempts {MAX_GRANTS} times already"
        found = await self._remedy(job, handler)
        return found if found is not None else "nothing is known to work against this trouble"

    async def _remedy(self, job: Job, handler: Handler) -> Remedy | None:
        if not job.fingerprint:
            return None
        if job.fingerprint not in self._lessons:
            self._lessons[job.fingerprint] = await self._app.store.lessons(job.fingerprint)
        registry = self._app.registry
        abilities = handler.abilities(registry.fleet, registry.count)
        return remedy(
            job, self._lessons[job.fingerprint], abilities, registry.policy_for(job), self._app.clock.now()
        )  # fmt: skip

    async def _redrive(self, cures: dict[str, Remedy]) -> int:
        """Brought back changed as the strategy says; that it was tried is part of the same commit."""

        def arrow(job: Job, now: float) -> Decided:
            cure = cures[job.id]
            move = redriven(self._app, job, now, TRIAGER, cure.why, _changed(job, cure), by="auto")
            return Decided(move, (Put(TRIED, job.id, msgspec.json.encode({"at": now, "strategy": cure.strategy})),))

        order = Order(
            "redrive", TRIAGER, "the best known strategy, once", arrow, size=SIZE_WITH_DOCUMENTS, recalls=False
        )
        return (await self._acts.many(order, list(cures))).moved if cures else 0

    async def _defer(self, put_off: dict[str, str]) -> int:
        settings = self._app.settings

        def arrow(job: Job, now: float) -> Decided:
            move = lifecycle.deferred(
                job, now, owner=settings.triage_owner, until=now + settings.triage_defer, who=TRIAGER,
                why=f"For a person: {put_off[job.id]}.",
            )  # fmt: skip
            return Decided(move)

        said = {"owner": settings.triage_owner}
        order = Order("defer", TRIAGER, "nothing more that a machine should try", arrow, said, recalls=False)
        return (await self._acts.many(order, list(put_off))).moved if put_off else 0


def _changed(job: Job, cure: Remedy) -> dict[str, str]:
    """A strategy without changes leaves the job as it is."""
    if not cure.changes:
        return {}
    return anew(merge(decode(job.changes_json), cure.changes), *named_in(cure.changes))
