"""Performs the periodic duties: lapsed leases, pruning, comebacks, unroutable jobs, cron slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple

from redrive.core import lifecycle
from redrive.core.advice import RESOLVE
from redrive.core.commit import try_commit
from redrive.core.documents import CLOCK
from redrive.core.job import CYCLE, Ending, Failure, Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Filter, Put, Store, Wanted
from redrive.engine.approvals import read_question_of
from redrive.engine.clock import Clock
from redrive.engine.consents import Consents
from redrive.engine.duty_lease import release_duty, take_duty
from redrive.engine.loop import Loop
from redrive.engine.paging import read_jobs
from redrive.engine.registry import Registry
from redrive.engine.trusted_time import meet_clock, observe_clock, time_for_destroying
from redrive.engine.worker_registry import forget_gone, make_roster_fence
from redrive.errors import IllegalMove, StoreError, StoreFailed
from redrive.failures.classify import cause_of
from redrive.failures.fingerprint import fingerprint
from redrive.http.policy import HTTP_TASK

log = logging.getLogger("redrive.scheduler")
HOUR: Final = 3600.0
WEEK: Final = 7 * 86400.0
UNROUTABLE_AFTER: Final = HOUR
UNSEEN: Final = 600.0
"""Seconds between two checks after which absence proves nothing: a worker may have come and gone."""
BACKWARDS: Final = 5.0
MOMENT: Final = 1.0
"""Seconds that a round waits for `look_around`, which calls users' functions with notices."""
PAGE: Final = 1000


ROLES: Final = ("monitor", "triage", "retry", "upkeep")
LOOK_SECONDS: Final = 3.0
"""Seconds between two checks whether a role still belongs to this process. A lease lasts ten times as long."""
TAKE_OVER: Final = 30.0
"""Seconds after which a duty of another process is checked again, even if it is due less often."""


class PeriodicDuty(NamedTuple):
    """A periodic duty: its interval, its function and its role. Every process performs a duty without a role."""

    every: float
    perform: Callable[[], Awaitable[object]]
    role: str | None = None


class Scheduler(Loop):
    """A loop of one round a second that performs each duty at its interval. A failed duty does not stop the others."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        clock: Clock,
        settle_lapsed: Callable[[list[Job], Mapping[str, Ending]], Awaitable[None]],
        *,
        retention: float,
        key_retention: float | None = None,
        watch: Callable[[], Coroutine[Any, Any, object]] | None = None,
        duties: Iterable[PeriodicDuty] = (),
        shared: bool = False,
        roles: Collection[str] | None = None,
    ) -> None:
        """Sets up the duties: its own, and `duties` of other services.

        `shared`: other hosts have schedulers, too, and one process at a time has each role. `roles`: perform the duties
        of these roles only.
        """
        super().__init__("scheduler")
        self._shared = shared
        meet_clock(clock)
        self._store = store
        self._registry = registry
        self._clock = clock
        self._settle_lapsed = settle_lapsed
        self._retention = retention
        self._key_retention = key_retention
        self._unannounced: dict[str, float] = {}
        self._looked = float("-inf")
        self._watch = watch or _nothing
        self._looking: asyncio.Task[object] | None = None
        every_duty = [
            PeriodicDuty(5.0, self.mind_the_clock),  # first: other duties may delete data by the clock
            PeriodicDuty(1.0, self.recover),
            *duties,
            PeriodicDuty(5.0, self.look_around, "monitor"),
            PeriodicDuty(10.0, self.expire_questions, "triage"),
            PeriodicDuty(10.0, self.recall_deferred, "triage"),
            PeriodicDuty(60.0, self.let_consented_go, "triage"),
            PeriodicDuty(60.0, self.bury_unroutable, "triage"),
            PeriodicDuty(600.0, self.bury_unresolved, "triage"),
            PeriodicDuty(HOUR, self.prune, "upkeep"),
        ]
        self._duties = [duty for duty in every_duty if roles is None or duty.role in roles]
        self._mine: dict[str, tuple[float, bool]] = {}
        """When each role was last checked, and whether this process had it."""
        self._last: dict[int, float] = {}

    async def tick(self) -> float:
        now = self._clock.monotonic()
        for number, duty in enumerate(self._duties):
            if self._stopping.is_set():
                break  # the next process does the rest
            if now - self._last.get(number, float("-inf")) >= duty.every:
                self._last[number] = now
                try:
                    if await self._has(duty.role):
                        await duty.perform()
                    else:
                        self._last[number] = now + min(0.0, TAKE_OVER - duty.every)
                except StoreFailed:
                    raise  # no duty can be done any more
                except Exception:
                    self.errors += 1
                    name = getattr(duty.perform, "__name__", duty.perform)
                    log.warning("%s failed and will be tried again", name, exc_info=True)
        return 1.0

    async def _has(self, role: str | None) -> bool:
        """Tells whether this process has a role now; checked every few seconds."""
        if role is None or not self._shared:
            return True
        now = self._clock.monotonic()
        at, mine = self._mine.get(role, (float("-inf"), False))
        if now - at >= LOOK_SECONDS:
            mine = await take_duty(self._store, self._clock, f"role/{role}")
            self._mine[role] = now, mine
        return mine

    async def _release(self) -> None:
        """Releases the roles of this process for the other processes."""
        for role, (_, mine) in self._mine.items():
            if mine:
                await release_duty(self._store, f"role/{role}")
        self._mine.clear()

    async def see_to_the_overdue(self) -> None:
        """Moves held jobs whose time is over, for callers that drain where no scheduler runs."""
        await self.expire_questions()
        await self.recall_deferred()
        await self.bury_unresolved()

    async def stop(self) -> None:
        """Stops the loop and cancels a running `look_around`; its unrecorded notices are sent again later."""
        await super().stop()
        if (looking := self._looking) is not None:
            self._looking = None
            looking.cancel()
            (left,) = await asyncio.gather(looking, return_exceptions=True)
            if isinstance(left, Exception):
                log.warning("the last look around failed: %r", left)
        try:
            await self._release()
        except StoreError as error:
            log.warning("other processes take over the roles of this one when its leases end: %s", error)

    # -- duties

    async def look_around(self) -> None:
        """Looks for new notices, once at a time. A user's function that hangs does not hold up the scheduler."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._watch())
        done, _ = await asyncio.wait({self._looking}, timeout=MOMENT)
        if done:
            looked, self._looking = self._looking, None
            looked.result()

    async def recover(self) -> None:
        """Sends running jobs whose lease ended down the normal failure path."""
        claim = await self._store.claim(Wanted(slots=0), "scheduler", self._clock.now())
        await self._settle_lapsed(claim.lapsed, claim.endings)

    async def prune(self) -> None:
        now = await time_for_destroying(self._store, self._clock)
        await prune(self._store, self._registry, now, self._retention, self._key_retention)

    async def mind_the_clock(self) -> None:
        """Records the time. If the clock has gone back, jobs stamped in the future get their delay from now."""
        await observe_clock(self._store, self._clock)
        now = self._clock.now()
        kept = await CLOCK.get(self._store, "last")
        last = kept.value if kept is not None else 0.0
        if last > now + BACKWARDS:
            for line in await self._store.repair(now):
                log.warning("looked through the store because the clock went back %.0f s: %s", last - now, line)
        await try_commit(self._store, puts=[CLOCK.put("last", now)], what="the time was noted")

    async def recall_deferred(self) -> None:
        """Makes deferred jobs dead letters again when their time comes: no job is deferred for ever."""
        now = self._clock.now()
        due = Filter(states=(State.held,), because=lifecycle.DEFERRED, due_at=now)
        async for job in read_jobs(self._store, due, PAGE, oldest=True):
            await self._move(
                lifecycle.recalled,
                job,
                who="scheduler",
                why="the time it was deferred to has come",
                failure_fields={"lane": "manual"},
            )

    async def bury_unresolved(self) -> None:
        """Makes unknown outcomes that stay unresolved for a week dead letters, where people will see them."""
        now = await time_for_destroying(self._store, self._clock)
        held = Filter(states=(State.held,), because="outcome_unknown", until=now - WEEK)
        async for job in read_jobs(self._store, held, PAGE, oldest=True):
            failure = Failure("exception", ("redrive.errors.OutcomeUnknown",), job.error or "unknown outcome")
            await self._move(
                lifecycle.buried,
                job,
                because="outcome_unknown",
                why="It was not resolved for seven days.",
                recommendation=RESOLVE,
                failure=failure,
                cause=cause_of("outcome_unknown", "unresolved", failure),
                fingerprint=job.fingerprint,
                who="scheduler",
            )

    async def expire_questions(self) -> None:
        """Resumes jobs whose question was not answered in time; the task is told so."""
        now = await time_for_destroying(self._store, self._clock)
        held = Filter(states=(State.held,), because="approval")
        async for job in read_jobs(self._store, held, PAGE, oldest=True):
            asked = await read_question_of(self._store, job)  # an older question does not count
            if asked is not None and asked.approval.expired(now):
                await self._move(lifecycle.unblocked, job, who="scheduler", why="it was not answered in time")

    async def let_consented_go(self) -> None:
        """Unblocks jobs whose consent was given, where the granting process missed them or died first."""
        async for job in Consents(self._store, self._clock).overlooked(self._registry):
            await self._move(lifecycle.unblocked, job, who="scheduler", why="consent was given")

    async def bury_unroutable(self) -> None:
        """Buries due jobs whose task no live worker has announced for an hour, while some worker lives."""
        now, steady = self._clock.now(), self._clock.monotonic()
        announced = await self._announced(now)
        if announced is None or steady - self._looked > UNSEEN:
            self._unannounced.clear()  # a worker may have come and gone unseen meanwhile
        self._looked = steady
        if announced is None:
            return
        waiting = await self._store.count(Filter(states=(State.waiting,)), by=("task",))
        orphans = {str(task) for (task,) in waiting} - announced
        self._unannounced = {task: self._unannounced.get(task, steady) for task in orphans}
        for task, since in self._unannounced.items():
            if steady - since >= UNROUTABLE_AFTER:
                await self._bury_task(task, await time_for_destroying(self._store, self._clock))

    async def _announced(self, now: float) -> frozenset[str] | None:
        """Collects the tasks of the live workers, and drops the workers that are gone; None where none lives.

        A worker that knows only the built-in delivery, such as that of a dashboard, does not count.
        """
        known = [worker.tasks for worker in await forget_gone(self._store, now) if worker.tasks - {HTTP_TASK}]
        return frozenset({HTTP_TASK}).union(*known) if known else None

    async def _bury_task(self, task: str, now: float) -> None:
        due = Filter(states=(State.waiting,), task=task, due_at=now - UNROUTABLE_AFTER)
        async for job in read_jobs(self._store, due, PAGE, oldest=True):
            if job.queue.startswith(CYCLE):
                continue  # waits for its script, not for a worker
            fence = await make_roster_fence(self._store)
            if task in (await self._announced(self._clock.now()) or {task}):
                return  # a worker came meanwhile, or none is left
            failure = Failure("exception", ("redrive.Unroutable",), f"no worker knows the task {task!r}")
            await self._move(
                lifecycle.buried,
                job,
                because="unroutable",
                why=f"No handler: no live worker has announced the task {task!r} for an hour.",
                recommendation=f"Start a worker whose code has the task {task!r} (is its module imported?); redrive.",
                failure=failure,
                cause=cause_of("unroutable", "unroutable", failure),
                fingerprint=fingerprint(failure, task),
                who="scheduler",
                fence=fence,
            )

    async def _move(
        self, arrow: Callable[..., Transition], job: Job, *, fence: Put | None = None, **how: object
    ) -> None:
        try:
            transition = arrow(job, self._clock.now(), **how)
        except IllegalMove as error:
            log.warning("%s", error)
            return
        what = f"job {job.short_id} was {transition.move}"
        if await try_commit(self._store, [transition], [fence] if fence is not None else [], what=what) is not None:
            log.warning("job %s (%s): %s: %s", job.short_id, job.task, transition.move, transition.why)


async def prune(store: Store, registry: Registry, now: float, retention: float, keys: float | None) -> None:
    """Drops contents in batches until none is older than the retention of its queue.

    `now` is the time for destroying, not the clock's: dropped data does not come back when the clock does.
    """
    own = {name: policy.retention for name, policy in registry.queues.items() if policy.retention is not None}
    while (pruned := await store.prune(now, own, retention, keys)).payloads or pruned.keys:
        continue


async def _nothing() -> None:
    return
