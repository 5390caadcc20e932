"""What must happen from time to time: lapsed leases, pruning, the delayed lane, unroutable jobs, cron slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from redrive.core import lifecycle
from redrive.core.advice import RESOLVE
from redrive.core.classify import cause_of
from redrive.core.fingerprint import fingerprint
from redrive.core.job import CYCLE, Failure, Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Applied, Commit, Filter, Put, Store, Wanted
from redrive.errors import IllegalMove
from redrive.runtime.bus import Bus, told
from redrive.runtime.clock import Clock
from redrive.runtime.consents import Consents
from redrive.runtime.living import take_down
from redrive.runtime.loop import Loop
from redrive.runtime.paging import pages
from redrive.runtime.questions import question_of
from redrive.runtime.registry import HTTP_TASK, Registry

log = logging.getLogger("redrive.scheduler")
HOUR: Final = 3600.0
WEEK: Final = 7 * 86400.0
UNROUTABLE_AFTER: Final = HOUR
BACKWARDS: Final = 5.0
MOMENT: Final = 1.0
"""Seconds that a round waits for the look around, in which functions of the user's are told of what hurts."""
PAGE: Final = 1000


class Scheduler(Loop):
    """One round a second; each duty at its own pace. A duty that fails is told and does not stop the others."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        bus: Bus,
        clock: Clock,
        settle_lapsed: Callable[[list[Job]], Awaitable[None]],
        *,
        retention: float,
        key_retention: float | None = None,
        watch: Callable[[], Coroutine[Any, Any, object]] | None = None,
        drain_spool: Callable[[], Awaitable[None]] | None = None,
        mind_breakers: Callable[[], Awaitable[object]] | None = None,
        resume_workflows: Callable[[], Awaitable[object]] | None = None,
        mind_schedules: Callable[[], Awaitable[object]] | None = None,
        prune_notices: Callable[[], Awaitable[object]] | None = None,
        advance_redrives: Callable[[], Awaitable[object]] | None = None,
        triage: Callable[[], Awaitable[object]] | None = None,
        prune_acts: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__("scheduler")
        self._store = store
        self._registry = registry
        self._bus = bus
        self._clock = clock
        self._settle_lapsed = settle_lapsed
        self._retention = retention
        self._key_retention = key_retention
        self._unannounced: dict[str, float] = {}
        self._watch = watch or _nothing
        self._looking: asyncio.Task[object] | None = None
        self._duties: list[tuple[float, Callable[[], Awaitable[object]]]] = [
            (1.0, self.recover),
            (1.0, mind_breakers or _nothing),
            (1.0, resume_workflows or _nothing),
            (1.0, mind_schedules or _nothing),
            (1.0, advance_redrives or _nothing),
            (5.0, self.look_around),
            (5.0, drain_spool or _nothing),
            (5.0, self.mind_the_clock),
            (10.0, self.expire_questions),
            (10.0, self.recall_deferred),
            (60.0, self.let_consented_go),
            (60.0, self.bury_unroutable),
            (60.0, triage or _nothing),
            (600.0, self.pull_delayed),
            (600.0, self.bury_unresolved),
            (HOUR, self.prune),
            (HOUR, prune_notices or _nothing),
            (HOUR, prune_acts or _nothing),
        ]
        self._last: dict[int, float] = {}

    async def tick(self) -> float:
        now = self._clock.monotonic()
        for number, (every, duty) in enumerate(self._duties):
            if now - self._last.get(number, float("-inf")) >= every:
                self._last[number] = now
                try:
                    await duty()
                except Exception:
                    self.errors += 1
                    log.warning("%s failed and will be tried again", getattr(duty, "__name__", duty), exc_info=True)
        return 1.0

    async def see_to_the_overdue(self) -> None:
        """What has waited long enough, for whoever drains where no scheduler runs."""
        await self.expire_questions()
        await self.recall_deferred()
        await self.pull_delayed()
        await self.bury_unresolved()

    async def stop(self) -> None:
        """Whom a look is still telling something is told again later: it was not written down as told."""
        await super().stop()
        if (looking := self._looking) is not None:
            self._looking = None
            looking.cancel()
            (left,) = await asyncio.gather(looking, return_exceptions=True)
            if isinstance(left, Exception):
                log.warning("the last look around failed: %r", left)

    # -- duties

    async def look_around(self) -> None:
        """One look at a time. A function that hangs while it is told something keeps no job waiting for a scheduler."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._watch())
        done, _ = await asyncio.wait({self._looking}, timeout=MOMENT)
        if done:
            looked, self._looking = self._looking, None
            looked.result()

    async def recover(self) -> None:
        """Running jobs whose lease ended take the normal failure path."""
        claim = await self._store.claim(Wanted(slots=0), "scheduler", self._clock.now())
        await self._settle_lapsed(claim.lapsed)

    async def prune(self) -> None:
        await prune(self._store, self._registry, self._clock.now(), self._retention, self._key_retention)

    async def mind_the_clock(self) -> None:
        """If the clock has gone back, jobs stamped in the future get their delay from now."""
        now = self._clock.now()
        document = await self._store.doc("clock", "last")
        last = msgspec.json.decode(document.value) if document else 0.0
        if last > now + BACKWARDS:
            for line in await self._store.repair(now):
                log.warning("looked through the store because the clock went back %.0f s: %s", last - now, line)
        await self._store.apply([Commit(puts=(Put("clock", "last", msgspec.json.encode(now)),))])

    async def pull_delayed(self) -> None:
        """The delayed lane comes back by itself an hour later. It grants no attempts: at the cap it is manual."""
        waited = Filter(states=(State.dead,), lane="delayed", until=self._clock.now() - HOUR)
        async for job in self._every(waited):
            if not job.queue.startswith(CYCLE):  # whose next cycle brings it back
                most = self._registry.policy_for(job).max_attempts or 1
                await self._move(lifecycle.pulled, job, max_attempts=most, who="scheduler", why="the delayed lane")

    async def recall_deferred(self) -> None:
        """What somebody put off is a dead letter again when its time comes: nothing is put off for ever."""
        now = self._clock.now()
        due = Filter(states=(State.held,), because=lifecycle.DEFERRED, due_at=now)
        async for job in self._every(due):
            await self._move(
                lifecycle.recalled, job, who="scheduler", why="the time it was deferred to has come",
                trouble={"lane": "manual"},
            )  # fmt: skip

    async def bury_unresolved(self) -> None:
        """An unknown outcome that nobody looked at for a week becomes a dead letter, where somebody will."""
        now = self._clock.now()
        held = Filter(states=(State.held,), because="outcome_unknown", until=now - WEEK)
        async for job in self._every(held):
            failure = Failure("exception", ("redrive.errors.OutcomeUnknown",), job.error or "unknown outcome")
            await self._move(
                lifecycle.buried, job, because="outcome_unknown", why="Nobody resolved it for seven days.",
                recommendation=RESOLVE,
                failure=failure, cause=cause_of("outcome_unknown", "unresolved", failure), fingerprint=job.fingerprint,
                who="scheduler",
            )  # fmt: skip

    async def expire_questions(self) -> None:
        """A question that nobody answered in time: its task goes on, and hears that."""
        now = self._clock.now()
        held = Filter(states=(State.held,), because="approval")
        async for job in self._every(held):
            asked = await question_of(self._store, job)  # an older one, not asked any more, says nothing about it
            if asked is not None and asked.approval.expired(now):
                await self._move(lifecycle.unblocked, job, who="scheduler", why="nobody answered in time")

    async def let_consented_go(self) -> None:
        """Whoever gives consent lets go what waits for it. What they did not see, or did not live to, is seen here."""
        async for job in Consents(self._store, self._clock).overlooked(self._registry):
            await self._move(lifecycle.unblocked, job, who="scheduler", why="consent was given")

    async def bury_unroutable(self) -> None:
        """Due jobs whose task no live worker has announced for an hour, while some worker lives."""
        now, steady = self._clock.now(), self._clock.monotonic()
        announced = await self._announced(now)
        if announced is None:
            self._unannounced.clear()
            return
        waiting = await self._store.count(Filter(states=(State.waiting,)), by=("task",))
        orphans = {str(task) for (task,) in waiting} - announced
        self._unannounced = {task: self._unannounced.get(task, steady) for task in orphans}
        for task, since in self._unannounced.items():
            if steady - since >= UNROUTABLE_AFTER:
                await self._bury_task(task, now)

    async def _announced(self, now: float) -> frozenset[str] | None:
        """What living workers know; None where none lives. Whoever is gone is taken down.

        A worker that knows nothing but the built-in delivery, as a dashboard has one, tells nothing of the others.
        """
        known = [worker.tasks for worker in await take_down(self._store, now) if worker.tasks - {HTTP_TASK}]
        return frozenset({HTTP_TASK}).union(*known) if known else None

    async def _bury_task(self, task: str, now: float) -> None:
        due = Filter(states=(State.waiting,), task=task, due_at=now - UNROUTABLE_AFTER)
        async for job in self._every(due):
            if job.queue.startswith(CYCLE):
                continue  # waits for its script, not for a worker
            failure = Failure("exception", ("redrive.Unroutable",), f"no worker knows the task {task!r}")
            await self._move(
                lifecycle.buried, job, because="unroutable",
                why=f"No handler: no live worker has announced the task {task!r} for an hour.",
                recommendation=f"Start a worker whose code has the task {task!r} (is its module imported?); redrive.",
                failure=failure, cause=cause_of("unroutable", "unroutable", failure),
                fingerprint=fingerprint(failure, task), who="scheduler",
            )  # fmt: skip

    async def _every(self, chosen: Filter) -> AsyncIterator[Job]:
        """The oldest first, however many are passed over: none of them hides another."""
        async for page in pages(self._store, chosen, PAGE, oldest=True):
            for job in page:
                yield job

    async def _move(self, arrow: Callable[..., Transition], job: Job, **how: object) -> None:
        try:
            transition = arrow(job, self._clock.now(), **how)
        except IllegalMove as error:
            log.warning("%s", error)
            return
        (outcome,) = await self._store.apply([Commit((transition,))])
        if isinstance(outcome, Applied):
            log.warning("job %s (%s): %s: %s", job.short_id, job.task, transition.move, transition.why)
            self._bus.publish(told(transition))


async def prune(store: Store, registry: Registry, now: float, retention: float, keys: float | None) -> None:
    """Batch by batch, until nothing is left that is older than its queue keeps it."""
    own = {name: policy.retention for name, policy in registry.queues.items() if policy.retention is not None}
    while (pruned := await store.prune(now, own, retention, keys)).payloads or pruned.keys:
        continue


async def _nothing() -> None:
    return
