"""Does what is due from time to time beside the jobs: a scheduler calls these duties, `drain` does them once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.core.job import Json, keyed_id
from redrive.engine.scheduler import HOUR, PeriodicDuty, Scheduler
from redrive.errors import KeyReused
from redrive.flows.schedules import Schedules
from redrive.jobs.open_store import is_file

if TYPE_CHECKING:
    from redrive.api.dead import Dead
    from redrive.api.transactions import Transactions
    from redrive.deadletters.comebacks import Comebacks
    from redrive.deadletters.groups import Groups
    from redrive.deadletters.redrives import Redrives
    from redrive.engine.worker import Worker
    from redrive.jobs.core import Core
    from redrive.jobs.enqueuer import Enqueuer
    from redrive.notices.service import Notices
    from redrive.reports.pains import Pains
    from redrive.scripts.once import Effects

log = logging.getLogger("redrive")


@dataclass(eq=False)
class Duties:
    """Holds the services that have something to do from time to time."""

    core: Core
    enqueuer: Enqueuer
    transactions: Transactions
    notices: Notices
    pains: Pains
    groups: Groups
    redrives: Redrives
    comebacks: Comebacks
    dead: Dead
    effects: Effects

    def make_scheduler(self, worker: Worker, roles: Collection[str] | None = None) -> Scheduler:
        core, settings = self.core, self.core.settings
        duties = (
            PeriodicDuty(1.0, worker.mind_breakers),
            PeriodicDuty(1.0, worker.resume_workflows),
            PeriodicDuty(1.0, self.mind_schedules),
            PeriodicDuty(5.0, self.enqueuer.drain_spool),
            PeriodicDuty(1.0, self.transactions.mind_inbox),
            PeriodicDuty(1.0, self.redrives.advance, "retry"),
            PeriodicDuty(1.0, lambda: self.comebacks.work(worker.breakers, thorough=False), "triage"),
            PeriodicDuty(HOUR, self.notices.prune, "upkeep"),
            PeriodicDuty(HOUR, self.dead.prune_acts, "upkeep"),
            PeriodicDuty(6 * HOUR, self.effects.prune, "upkeep"),
        )
        return Scheduler(
            core.store,
            core.registry,
            core.clock,
            worker.settle_lapsed,
            retention=settings.retention,
            key_retention=settings.key_retention,
            watch=self.look,
            duties=duties,
            shared=not is_file(settings.url),
            roles=roles,
        )

    async def look(self) -> None:
        """Looks for what people are to be told, pages first. A look that fails does not stop the others."""
        try:
            await self.notices.look()
        finally:
            try:
                await self.pains.look()
            finally:
                await self.groups.look()

    async def take_in(self) -> None:
        """Moves jobs that wait beside the store into it: from the spool, and from the inbox of `within=`."""
        await self.enqueuer.drain_spool()
        await self.transactions.mind_inbox()

    async def see_to_the_overdue(self, worker: Worker) -> None:
        """Moves on what has waited long enough: questions, deferrals, dead letters that come back by themselves."""
        await self.make_scheduler(worker).see_to_the_overdue()
        await self.comebacks.work(worker.breakers)

    async def more_is_due(self, worker: Worker) -> bool:
        """Does what a scheduler does, where none runs; returns whether that made more jobs due."""
        minded = await worker.mind_breakers() or await worker.resume_workflows(None) or await self.mind_schedules()
        return bool(minded or await self.redrives.advance(thorough=True))

    # -- schedules

    async def mind_schedules(self) -> int:
        """Enqueues the jobs of due slots; returns how many."""
        return await Schedules(self.core, self.enqueue_slot).mind()

    async def enqueue_slot(self, task: str, payload: Mapping[str, Json], options: dict[str, Any]) -> str:
        """Enqueues the job of a slot; a job that a process with another payload made first stays."""
        plan = self.enqueuer.plan(task, options, "scheduled_job")
        try:
            job, _, _ = await self.enqueuer.insert_one(self.enqueuer.prepare(plan, payload))
        except KeyReused as known:
            log.warning("the slot has its job already, with another payload: %s", known)
            return keyed_id(plan.queue, options["idempotency_key"])
        return job.id
