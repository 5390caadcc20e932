"""For users' tests: a temporary store, a clock you move, failures you order, crashes everywhere.

    async with redrive.testing.harness(rd) as t:
        await deliver.enqueue(...)
        t.fail_next(deliver, TimeoutError())
        await t.run()            # the first attempt fails
        await t.advance(60)      # an instant later the retry has run
        await t.assert_done(deliver)

Only the time is not real: the store is SQLite in a temporary folder, the worker is redrive's own.
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
from redrive.engine.approvals import read_question_of
from redrive.engine.attempt import AttemptRunner
from redrive.engine.attempt_state import AttemptState
from redrive.engine.paging import read_pages
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
"""How many instants `advance` goes through at which something falls due."""
STEPS = 1_000
"""How many times `run` lets due jobs run at one instant before it says that they never stop."""


class FakeClock:
    """A clock that moves only by `advance`. Chance is always the middle: no jitter."""

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
    """How often each `ctx.once` was performed, in all processes together."""


class Crashed(BaseException):
    """Simulates a kill: the process writes nothing after it."""


class Harness:
    """Moves time, orders failures and looks at jobs; `harness(rd)` gives one."""

    def __init__(self, rd: Redrive, clock: FakeClock) -> None:
        self._rd = rd
        self.clock = clock
        self._ordered: dict[str, deque[BaseException]] = {}
        self._wrapped: list[tuple[Handler, Callable[..., Any]]] = []

    # -- time and work

    async def run(self) -> int:
        """Run everything that is due at this instant; return how many attempts were made."""
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
        handlers = self._rd.registry.handlers
        known = [job.run_at for job in await self._all(Filter(states=(State.waiting,))) if job.task in handlers]
        crons = [cron for handler in handlers.values() for cron in handler.schedules]
        known += [next_slot(cron.line, cron.tz, self.clock.now()) for cron in crons]
        known += [breaker.until for breaker in await self._rd.breakers() if breaker.state == "open"]
        known += await self._ends_of_waits()
        return min((at for at in known if self.clock.now() < at <= end), default=None)

    async def _ends_of_waits(self) -> list[float]:
        """List when questions expire, deferrals end, dead letters come back, and held jobs are reported."""
        held = await self._all(Filter(states=(State.held,)))
        asked = [await read_question_of(self._rd.store, job) for job in held if job.because == "approval"]
        known = [question.approval.expires_at or 0.0 for question in asked if question is not None]
        known += [job.run_at for job in held if job.because == DEFERRED]
        known += [job.updated_at + WEEK + 1 for job in held if job.because == "outcome_unknown"]
        known += [group.next_at for group in await self._rd.store.returning(self.clock.now())]
        return known + [kept.value.since + MOMENT for kept in await ANSWERS.all(self._rd.store)]

    def fail_next(self, task: Task[Any, Any] | str, error: BaseException, times: int = 1) -> None:
        """Let the next attempts of this task fail with this error, before the task's own code runs."""
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

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            fail_if_ordered()
            return await original(*args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            fail_if_ordered()
            return original(*args, **kwargs)

        handler.function = call_async if handler.is_async else call

    def restore(self) -> None:
        """Give the tasks their own functions back."""
        for handler, original in self._wrapped:
            handler.function = original

    # -- looking

    async def jobs(self, task: Task[Any, Any] | str | None = None) -> list[Job]:
        """All jobs, or those of one task, oldest first, with their history."""
        jobs = await self._all(Filter(task=_name(task) if task is not None else None))
        return await self._rd.store.get([job.id for job in reversed(jobs)])

    async def _all(self, filter: Filter) -> list[Job]:
        return [job async for page in read_pages(self._rd.store, filter, 1000) for job in page]

    async def assert_enqueued(self, task: Task[Any, Any] | str, payload: Mapping[str, Json] | None = None) -> Job:
        """Check that a job of this task was accepted (with this payload, if given)."""
        return await self._find(task, payload, tuple(State))

    async def assert_done(self, task: Task[Any, Any] | str, payload: Mapping[str, Json] | None = None) -> Job:
        return await self._find(task, payload, (State.done,))

    async def assert_dead(
        self, task: Task[Any, Any] | str, payload: Mapping[str, Json] | None = None, *, because: str | None = None
    ) -> Job:
        job = await self._find(task, payload, (State.dead,))
        if because is not None and job.because != because:
            raise AssertionError(f"{job.task} is dead because of {job.because}, not {because}: {job.error}")
        return job

    async def _find(
        self, task: Task[Any, Any] | str, payload: Mapping[str, Json] | None, states: Sequence[State]
    ) -> Job:
        jobs = await self.jobs(task)
        for job in jobs:
            if job.state in states and (payload is None or job.arguments == payload):
                return job
        listed = "".join(f"\n  {job.short_id} {job.state} {job.payload} {job.error or ''}" for job in jobs) or " none"
        expected = " or ".join(states) if len(states) < len(State) else "accepted"
        raise AssertionError(f"no job of {_name(task)!r} is {expected}; there are:{listed}")

    # -- crashing

    async def crash_everywhere(self, task: Task[Any, Any] | str, payload: Mapping[str, Json]) -> list[CrashPoint]:
        """Kill the worker before and after every write of this job, let another take over, and count the effects.

        Retries run, too, and no other job runs meanwhile. Raises AssertionError where an effect was performed twice
        although its task is not idempotent, or where the job did not end. A job that is held because its outcome is
        unknown is where it belongs. Returns what happened at each point.
        """
        handler = self._handler(task)
        points: list[CrashPoint] = []
        while True:
            point = await self._crash_at(len(points), handler.name, payload)
            if point is None:
                return points
            points.append(point)
            twice = [name for name, times in point.effects.items() if times > 1]
            if twice and not handler.idempotent:
                number = max(point.effects.values())
                raise AssertionError(f"killed {point.where}: {', '.join(twice)} happened {number} times")

    async def _crash_at(self, number: int, name: str, payload: Mapping[str, Json]) -> CrashPoint | None:
        """Kill the worker at the given point, and run until the job rests; None if there is no such point."""
        real, effects = self._rd.store, Counter[str]()
        crashing = _CrashingStore(real, number)
        handle = await self._rd.enqueue(name, payload, idempotency_key=secrets.token_hex(8))  # each point its own job
        with _count_performed(effects):
            for _ in range(STEPS):
                job = await self._live(handle.id, real if crashing.crashed else crashing)
                if _at_rest(job, crashing.where):
                    return CrashPoint(crashing.where, job.state, job.run, dict(effects)) if crashing.crashed else None
        raise AssertionError(f"{_describe_kill(crashing.where)}: the job never ends")

    async def _live(self, job_id: str, store: Any) -> Job:
        """Make one attempt, in which the process may be killed, once the job is due."""
        await self._come_to(job_id)
        attempts = AttemptRunner(store, self._rd.registry, self.clock, Threads())
        for job in (await self._rd.store.claim(Wanted(slots=1, ids=(job_id,)), "harness", self.clock.now())).jobs:
            try:
                end = await attempts.run(attempts.begin(job))
                await apply_each(store, [end] if end is not None else [])
            except Crashed:
                break
        return await self._rd.jobs.get(job_id)

    async def _come_to(self, job_id: str) -> None:
        """Let time pass until the job is due. Where its process is dead, its lease ends first: a failure like any."""
        job = await self._rd.jobs.get(job_id)
        if job.state is State.running:
            self.clock.advance((job.lease or DAY) + 1.0)
            await self._give_up(job_id)
            job = await self._rd.jobs.get(job_id)
        if job.state is State.waiting:
            self.clock.advance(max(0.0, job.run_at - self.clock.now()))

    async def _give_up(self, job_id: str) -> None:
        attempts = AttemptRunner(self._rd.store, self._rd.registry, self.clock, Threads())
        claim = await self._rd.store.claim(Wanted(slots=0), "harness", self.clock.now())
        lost = [attempts.settle_lost(job, alone=False) for job in claim.lapsed if job.id == job_id]
        await commit_each(self._rd.store, lost)


def _at_rest(job: Job, where: str) -> bool:
    """Whether a job has ended, or only a person can tell what happened. Another hold is an error."""
    if job.state is State.held and job.because != "outcome_unknown":
        held = f"the job is held ({job.because}) and does not end"
        raise AssertionError(f"{_describe_kill(where)}: {held}: {job.recommendation}")
    return job.ended or job.state is State.held


def _describe_kill(where: str) -> str:
    return f"killed {where}" if where else "not killed"


@contextmanager
def _count_performed(effects: Counter[str]) -> Iterator[None]:
    """Counts the effects that are really performed, whatever is recorded of them."""
    perform_effect = context.perform_effect

    def count(state: AttemptState, name: str, key: str, function: Callable[[str], Any]) -> Steps:
        value = yield from perform_effect(state, name, key, function)
        effects[name] += 1
        return value

    with patch.object(context, "perform_effect", count):
        yield


class _CrashingStore:
    """Kills its process before or after the nth write of a job."""

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
            self.where = self.where or f"{when} {_describe(commits)}"
            self.crashed = True
            raise Crashed
        self._left -= 1


def _describe(commits: Sequence[Commit]) -> str:
    puts = [put for commit in commits for put in commit.puts]
    names = [f"{put.kind} {put.key.partition('/')[2]!r} was written" for put in puts]
    names += [f"the job was {move.move}" for commit in commits for move in commit.transitions]
    return ", ".join(names)


def _name(task: Task[Any, Any] | str) -> str:
    return task if isinstance(task, str) else task.name


@asynccontextmanager
async def harness(rd: Redrive, *, start: float = 1_800_000_000.0) -> AsyncIterator[Harness]:
    """Gives `rd` a temporary store and a clock of its own; both are put back afterwards."""
    clock = FakeClock(start)
    holder, real_clock = rd.core.holder, rd.clock
    store = holder.store
    with tempfile.TemporaryDirectory(prefix="redrive-test-") as folder:
        t = Harness(rd, clock)
        rd.use_store(holder.make_store(str(Path(folder) / "jobs.db"), clock), clock)
        loud, rd.notices.quiet = rd.notices.quiet, True  # a test calls no channel
        try:
            yield t
        finally:
            t.restore()
            rd.notices.quiet = loud
            await rd.close()
            rd.use_store(store, real_clock)
