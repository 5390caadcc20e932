"""For users' tests: a temporary store, a clock you move, failures you order, crashes everywhere.

    async with redrive.testing.harness(rd) as t:
        await deliver.enqueue(...)
        t.fail_next(deliver, TimeoutError())
        await t.run()            # the first attempt fails
        await t.advance(60)      # an instant later the retry has run
        await t.assert_done(deliver)

Everything is real but the time: the store is SQLite in a temporary folder, the worker is redrive's own.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from redrive.api.redrive import Redrive
from redrive.core.commit import apply_each, commit_each
from redrive.core.job import Job, Json, State
from redrive.core.lifecycle import DEFERRED
from redrive.core.store import Commit, Filter, Outcome, Store, Wanted
from redrive.engine import context
from redrive.engine.approvals import question_of
from redrive.engine.attempt import Attempts
from redrive.engine.attempt_state import AttemptState
from redrive.engine.registry import Handler
from redrive.engine.scheduler import MOMENT, WEEK
from redrive.engine.steps import Steps
from redrive.engine.threads import Threads
from redrive.errors import InvalidOption
from redrive.flows.schedules import next_slot
from redrive.jobs.tasks import Task, read_seconds
from redrive.retries.comebacks import ANSWERS

DAY = 86_400.0
MOMENTS = 100_000
"""How many instants at which something falls due `advance` goes through."""
STEPS = 1_000
"""How many times `run` lets due jobs run at one instant before it says that they never stop."""


class FakeClock:
    """Time that moves only when told. Chance is always the middle: no jitter."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self._steady = 0.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._steady

    def chance(self) -> float:
        return 0.5

    def advance(self, passed: float) -> None:
        self._now += passed
        self._steady += passed


class CrashPoint(msgspec.Struct, frozen=True):
    """One place where a process was killed, and what became of the job."""

    where: str
    state: State
    runs: int
    effects: dict[str, int]
    """How often each `ctx.once` was performed, all lives together."""


class Crashed(BaseException):
    """The simulated kill: nothing after it is written by that process."""


class Harness:
    """What `harness(rd)` gives."""

    def __init__(self, rd: Redrive, clock: FakeClock) -> None:
        self._rd = rd
        self.clock = clock
        self._ordered: dict[str, deque[BaseException]] = {}
        self._wrapped: list[tuple[Handler, Callable[..., Any]]] = []

    # -- time and work

    async def run(self) -> int:
        """Run everything that is due at this instant; returns how many attempts were made."""
        made = 0
        for _ in range(STEPS):
            claimed = await self._rd.drain(heartbeats=False)
            made += claimed
            if not claimed:
                return made
        raise AssertionError(f"jobs were still due after {STEPS} rounds: does one retry without a delay for ever?")

    async def advance(self, passed: float | timedelta) -> int:
        """Let so much time pass, running what falls due on the way, in order."""
        end = self.clock.now() + read_seconds(passed, "advance")
        made = await self.run()
        for _ in range(MOMENTS):
            due = await self._next_due(end)
            if due is None:
                break
            self.clock.advance(max(0.0, due - self.clock.now()))
            made += await self.run()
        else:
            raise AssertionError(f"something fell due {MOMENTS:,} times: advance in smaller steps")
        self.clock.advance(max(0.0, end - self.clock.now()))
        return made + await self.run()

    async def _next_due(self, end: float) -> float | None:
        waiting = await self._all(Filter(states=(State.waiting,)))
        known = [job.run_at for job in waiting if job.task in self._rd.registry.handlers]
        crons = [cron for handler in self._rd.registry.handlers.values() for cron in handler.schedules]
        known += [next_slot(cron.line, cron.tz, self.clock.now()) for cron in crons]
        known += [breaker.until for breaker in await self._rd.breakers() if breaker.state == "open"]
        known += await self._waited_for()
        return min((at for at in known if self.clock.now() < at <= end), default=None)

    async def _waited_for(self) -> list[float]:
        """When questions expire, deferrals end, dead letters come back, and nobody has resolved what is held."""
        held = await self._all(Filter(states=(State.held,)))
        asked = [await question_of(self._rd.store, job) for job in held if job.because == "approval"]
        known = [one.approval.expires_at or 0.0 for one in asked if one is not None]
        known += [job.run_at for job in held if job.because == DEFERRED]
        known += [job.updated_at + WEEK + 1 for job in held if job.because == "outcome_unknown"]
        known += [group.next_at for group in await self._rd.store.returning(self.clock.now())]
        return known + [kept.value.since + MOMENT for kept in await ANSWERS.all(self._rd.store)]

    def fail_next(self, task: Task[Any, Any] | str, error: BaseException, times: int = 1) -> None:
        """The next attempts of this task fail with this error, before the task's own code runs."""
        handler = self._handler(task)
        name = handler.name
        if not isinstance(error, BaseException):
            raise InvalidOption(field="error", problem=f"{error!r:.80} is not an exception, such as TimeoutError()")
        if name not in self._ordered:
            self._ordered[name] = deque()
            self._wrap(handler, self._ordered[name])
        self._ordered[name].extend([error] * times)

    def _handler(self, task: Task[Any, Any] | str) -> Handler:
        name = _name(task)
        handler = self._rd.registry.handlers.get(name)
        if handler is None:
            raise InvalidOption(field="task", problem=f"{name!r} is not a task of this Redrive")
        return handler

    def _wrap(self, handler: Handler, orders: deque[BaseException]) -> None:
        original = handler.function
        self._wrapped.append((handler, original))

        def fail_if_ordered() -> None:
            if orders:
                raise orders.popleft()

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            fail_if_ordered()
            return await original(*args, **kwargs)

        def called(*args: Any, **kwargs: Any) -> Any:
            fail_if_ordered()
            return original(*args, **kwargs)

        handler.function = awaited if handler.is_async else called

    def restore(self) -> None:
        """Give the tasks their own functions back."""
        for handler, original in self._wrapped:
            handler.function = original

    # -- looking

    async def jobs(self, task: Task[Any, Any] | str | None = None) -> list[Job]:
        """All jobs, or those of one task, oldest first, with their history."""
        found = await self._all(Filter(task=_name(task) if task is not None else None))
        return await self._rd.store.get([job.id for job in reversed(found)])

    async def _all(self, filter: Filter) -> list[Job]:
        found: list[Job] = []
        cursor = None
        while True:
            page = await self._rd.store.find(filter, cursor, 1000)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                return found

    async def assert_enqueued(self, task: Task[Any, Any] | str, payload: Mapping[str, Json] | None = None) -> Job:
        """A job of this task was accepted (with this payload, if given)."""
        return self._one(await self.jobs(task), task, payload, tuple(State))

    async def assert_done(self, task: Task[Any, Any] | str, payload: Mapping[str, Json] | None = None) -> Job:
        return self._one(await self.jobs(task), task, payload, (State.done,))

    async def assert_dead(
        self, task: Task[Any, Any] | str, payload: Mapping[str, Json] | None = None, *, because: str | None = None
    ) -> Job:
        job = self._one(await self.jobs(task), task, payload, (State.dead,))
        if because is not None and job.because != because:
            raise AssertionError(f"{job.task} is dead because of {job.because}, not {because}: {job.error}")
        return job

    def _one(
        self,
        jobs: Sequence[Job],
        task: Task[Any, Any] | str,
        payload: Mapping[str, Json] | None,
        states: Sequence[State],
    ) -> Job:
        wanted = [job for job in jobs if payload is None or job.arguments == payload]
        for job in wanted:
            if job.state in states:
                return job
        listed = "".join(f"\n  {job.short_id} {job.state} {job.payload} {job.error or ''}" for job in jobs) or " none"
        expected = " or ".join(states) if len(states) < len(State) else "accepted"
        raise AssertionError(f"no job of {_name(task)!r} is {expected}; there are:{listed}")

    # -- crashing

    async def crash_everywhere(self, task: Task[Any, Any] | str, payload: Mapping[str, Json]) -> list[CrashPoint]:
        """Kill the worker before and after every write of this job, let another take over, and count the effects.

        Retries are lived through, too, and no other job runs meanwhile. Raises AssertionError where an effect was
        performed twice although its task is not idempotent, or where the job did not end. One that is held since
        nobody can tell whether its effect landed is where it belongs. Returns what happened at each point.
        """
        handler = self._handler(task)
        points: list[CrashPoint] = []
        while True:
            point = await self._crash_at(len(points), handler.name, payload)
            if point is None:
                return points
            points.append(point)
            self._judge(point, handler)

    def _judge(self, point: CrashPoint, handler: Handler) -> None:
        twice = [name for name, times in point.effects.items() if times > 1]
        if twice and not handler.idempotent:
            raise AssertionError(
                f"killed {point.where}: {', '.join(twice)} happened {max(point.effects.values())} times"
            )

    async def _crash_at(self, number: int, name: str, payload: Mapping[str, Json]) -> CrashPoint | None:
        """One life cut short at the given point and as many more as it takes; None if there is no such point."""
        whole, effects = self._rd.store, Counter[str]()
        crashing = _CrashingStore(whole, number)
        handle = await self._rd.enqueue(name, payload, idempotency_key=secrets.token_hex(8))  # each point its own job
        with _counted(effects):
            for _ in range(STEPS):
                job = await self._live(handle.id, whole if crashing.crashed else crashing)
                if _at_rest(job, crashing.where):
                    return CrashPoint(crashing.where, job.state, job.run, dict(effects)) if crashing.crashed else None
        raise AssertionError(f"{_killed(crashing.where)}: the job never ends")

    async def _live(self, job_id: str, store: Any) -> Job:
        """One attempt of a process that may be killed in it: when the job is due, or given up by the one before."""
        await self._come_to(job_id)
        attempts = Attempts(store, self._rd.registry, self.clock, Threads())
        for job in (await self._rd.store.claim(Wanted(slots=1, ids=(job_id,)), "harness", self.clock.now())).jobs:
            try:
                end = await attempts.run(attempts.begin(job))
                await apply_each(store, [end] if end is not None else [])
            except Crashed:
                break
        return await self._rd.jobs.get(job_id)

    async def _come_to(self, job_id: str) -> None:
        """Time passes until the job is due. Where its process is dead, its lease ends first: a failure like any."""
        job = await self._rd.jobs.get(job_id)
        if job.state is State.running:
            self.clock.advance((job.lease or DAY) + 1.0)
            await self._give_up(job_id)
            job = await self._rd.jobs.get(job_id)
        if job.state is State.waiting:
            self.clock.advance(max(0.0, job.run_at - self.clock.now()))

    async def _give_up(self, job_id: str) -> None:
        attempts = Attempts(self._rd.store, self._rd.registry, self.clock, Threads())
        claim = await self._rd.store.claim(Wanted(slots=0), "harness", self.clock.now())
        lost = [attempts.settle_lost(job, alone=False) for job in claim.lapsed if job.id == job_id]
        await commit_each(self._rd.store, lost)


def _at_rest(job: Job, where: str) -> bool:
    """Ended, or where only a person can tell what happened. Another hold means that the rest is never tried."""
    if job.state is State.held and job.because != "outcome_unknown":
        held = f"the job is held ({job.because}) and does not end"
        raise AssertionError(f"{_killed(where)}: {held}: {job.recommendation}")
    return job.ended or job.state is State.held


def _killed(where: str) -> str:
    return f"killed {where}" if where else "not killed"


@contextmanager
def _counted(effects: Counter[str]) -> Iterator[None]:
    """Count the effects that are really performed, whatever is recorded of them."""
    perform_effect = context.perform_effect

    def count(state: AttemptState, name: str, key: str, function: Callable[[str], Any]) -> Steps:
        value = yield from perform_effect(state, name, key, function)
        effects[name] += 1
        return value

    with patch.object(context, "perform_effect", count):
        yield


class _CrashingStore:
    """A store that kills its process before or after the nth write of a job."""

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self._left = number
        self.crashed = False
        self.where = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, commits: Sequence[Commit]) -> list[Outcome]:
        self._maybe_crash("before", commits)
        outcomes = await self._store.apply(commits)
        self._maybe_crash("after", commits)
        return outcomes

    def _maybe_crash(self, when: str, commits: Sequence[Commit]) -> None:
        if self.crashed or self._left == 0:
            self.where = self.where or f"{when} {_described(commits)}"
            self.crashed = True
            raise Crashed
        self._left -= 1


def _described(commits: Sequence[Commit]) -> str:
    puts = [put for commit in commits for put in commit.puts]
    names = [f"{put.kind} {put.key.partition('/')[2]!r} was written" for put in puts]
    names += [f"the job was {move.move}" for commit in commits for move in commit.transitions]
    return ", ".join(names)


def _name(task: Task[Any, Any] | str) -> str:
    return task if isinstance(task, str) else task.name


@asynccontextmanager
async def harness(rd: Redrive, *, start: float = 1_800_000_000.0) -> AsyncIterator[Harness]:
    """Give `rd` a temporary store and a clock of its own; both are put back afterwards."""
    clock = FakeClock(start)
    holder, real_clock = rd.core.holder, rd.clock
    store = holder.store
    with tempfile.TemporaryDirectory(prefix="redrive-test-") as folder:
        t = Harness(rd, clock)
        rd.use_store(holder.make_store(str(Path(folder) / "jobs.db"), clock), clock)
        loud, rd.notices.quiet = rd.notices.quiet, True  # nobody is told of what a test does
        try:
            yield t
        finally:
            t.restore()
            rd.notices.quiet = loud
            await rd.close()
            rd.use_store(store, real_clock)
