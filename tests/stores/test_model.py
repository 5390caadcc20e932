"""A model of all jobs beside the real SQLite store: whatever is done in whatever order, the two agree.

The model is the pure lifecycle: the job as the core says it is after each move. After every step the store's records,
its counters and the model are compared, and the books must balance.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from redrive.core import lifecycle
from redrive.core.job import Failure, Job, State
from redrive.core.lifecycle import MAX_GRANTS, Transition
from redrive.core.policy import DEFAULT, Policy, merge
from redrive.core.store import Applied, Commit, Filter, Lease, Outcome, Stale, Wanted
from redrive.engine.settle import make_transition
from redrive.errors import IllegalMove, StoreError
from redrive.failures.capture import capture_lost_lease
from redrive.failures.classify import classify
from redrive.failures.fingerprint import fingerprint
from redrive.retries.decision import Case
from redrive.retries.strategy import decide
from redrive.stores.sqlite import SqliteStore
from tests.stores.jobs import T0, a_job, an_attempt, keyed
from tests.stores.openers import Steady

T = TypeVar("T")
LEASE = 90.0
RETENTION = 50.0
POLICY = merge(Policy(max_attempts=3, jitter=0.0, max_age=500.0, max_crashes=1), DEFAULT)
FAILURES = (
    Failure("exception", ("builtins.ConnectionError",), "reset"),
    Failure("exception", ("shop.Strange",), "odd"),
    Failure("exception", ("builtins.TypeError",), "a bug"),
    Failure("exception", ("x.Busy",), "slow down", status=429, retry_after=20.0),
    Failure("exception", ("x.Expired",), "token expired", status=401),
    Failure("exception", ("redrive.errors.OutcomeUnknown",), "who knows"),
    Failure("signal", ("redrive.errors.GiveUp",), "no"),
)
ENDED_FOR_GOOD = (State.done, State.discarded, State.purged)
PEOPLE_MAY = {
    State.waiting: ("cancel", "hold"),
    State.running: ("cancel", "hold"),
    State.held: ("unblock", "unblock", "cancel", "resolve"),
    State.dead: ("redrive", "redrive", "redrive", "discard", "purge", "resolve"),
    State.discarded: ("restore", "restore", "purge"),
}
which = st.integers(0, 10_000)
"""Chooses one of whatever there is."""
orders = st.tuples(
    st.none() | st.integers(0, 6),
    st.sampled_from([0.0, 0.0, 5.0, 100.0]),
    st.integers(0, 3),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, None, "ann"]),
)
"""Key, delay, priority, queue and agent of a job."""


class Jobs(RuleBasedStateMachine):
    """Producers, workers, people and accidents, in any order."""

    make_store: Callable[[Path, Steady], SqliteStore] = staticmethod(  # type: ignore[assignment]
        lambda path, steady: SqliteStore(path, monotonic=steady)
    )
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="redrive-model-", dir=memory if memory.is_dir() else None))
        self.steady = Steady()
        self.store = self.make_store(self.folder / "jobs.db", self.steady)
        self.now = T0
        self.model: dict[str, Job] = {}
        self.outcomes: dict[str, list[tuple[int, str]]] = {}
        self.accepted = 0
        self.forgotten = 0
        self.held: dict[str, Job] = {}
        """Jobs that a worker holds, as it claimed them."""
        self.old: list[Job] = []
        """Running jobs as workers knew them before they lost or settled them."""

    def teardown(self) -> None:
        self.do(self.store.close())
        shutil.rmtree(self.folder)

    def do(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(_bounded(work))

    # -- choosing

    def among(self, *states: State) -> list[Job]:
        return [job for job in self.model.values() if job.state in states]

    def one(self, number: int, jobs: Sequence[Job]) -> Job:
        return jobs[number % len(jobs)]

    def has(self, *states: State) -> bool:
        return any(job.state in states for job in self.model.values())

    # -- writing

    def apply(self, transition: Transition) -> Outcome:
        (outcome,) = self.do(self.store.apply([Commit((transition,))]))
        return outcome

    def commit(self, transition: Transition) -> Job:
        """A move on the job as it is now: must be applied, and the job must be as the core says."""
        outcome = self.apply(transition)
        assert isinstance(outcome, Applied), f"{transition.move} of a fresh job was refused"
        return self.moved(transition, outcome.fences[0])

    def moved(self, transition: Transition, fence: int) -> Job:
        job = transition.job
        if job.state is State.running:
            self.old.append(job)
            self.held.pop(job.id, None)
        after = msgspec.structs.replace(transition.after(fence), history=())
        self.model[job.id] = after
        if transition.attempt:
            self.outcomes[job.id].append((transition.attempt.run, transition.attempt.outcome))
        return after

    # -- producers

    @initialize()
    def begin(self) -> None:
        for priority in (2, 1, 2):
            self.accept(a_job("a", priority=priority))

    @rule(asked=st.lists(orders, min_size=1, max_size=3))
    def enqueue(self, asked: list[tuple[int | None, float, int, str, str | None]]) -> None:
        for key, delay, priority, queue, agent in asked:
            fields: dict[str, Any] = {
                "run_at": self.now + delay, "priority": priority, "created_at": self.now, "updated_at": self.now,
                "agent": agent,
            }  # fmt: skip
            self.accept(a_job(queue, **fields) if key is None else keyed(f"key{key}", queue, **fields))

    def accept(self, job: Job) -> None:
        (answer,) = self.do(self.store.insert([job]))
        assert answer.duplicate == (job.id in self.model)
        if answer.duplicate:
            assert msgspec.structs.replace(answer.job, history=()) == self.model[job.id]
        else:
            self.accepted += 1
            self.model[job.id] = job
            self.outcomes[job.id] = []

    @precondition(lambda self: self.model)
    @rule(number=which)
    def enqueue_again(self, number: int) -> None:
        job = self.one(number, list(self.model.values()))
        (answer,) = self.do(self.store.insert([msgspec.structs.replace(job, state=State.waiting)]))
        assert answer.duplicate
        assert answer.job.state is job.state

    # -- workers

    @rule(slots=st.integers(1, 4), later=st.sampled_from([0.0, 0.5, 10.0, 120.0]))
    def claim(self, slots: int, later: float) -> None:
        self.now += later
        due = [job for job in self.among(State.waiting) if job.run_at <= self.now]
        claim = self.do(self.store.claim(Wanted(slots, lease=LEASE), "w1", self.now))
        assert len(claim.jobs) == min(slots, len(due))
        taken = {job.id for job in claim.jobs}
        assert taken <= {job.id for job in due}, "something runs early or twice"
        left = [job.priority for job in due if job.id not in taken]
        assert max((self.model[id].priority for id in taken), default=0) <= min(left, default=3)
        for job in claim.jobs:
            before = self.model[job.id]
            assert job.run == before.run + 1
            assert job.token and job.token not in {old.token for old in self.old if old.id == job.id}
            expected = msgspec.structs.replace(
                before, state=State.running, run=job.run, token=job.token, worker="w1", started_at=self.now,
                updated_at=self.now, version=job.version, lease=LEASE,
            )  # fmt: skip
            assert msgspec.structs.replace(job, history=()) == expected
            self.model[job.id] = expected
            self.held[job.id] = job

    @precondition(lambda self: self.held)
    @rule(number=which)
    def heartbeat(self, number: int) -> None:
        job = self.one(number, list(self.held.values()))
        assert self.do(self.store.heartbeat([_lease(job)])) == []

    @precondition(lambda self: self.held)
    @rule(number=which, how=st.sampled_from(["complete", "complete plainly", "snooze", "release"]))
    def end(self, number: int, how: str) -> None:
        """The attempt ends without a failure."""
        job = self.one(number, list(self.held.values()))
        if how == "snooze":
            attempt = an_attempt(job, "snoozed", self.now)
            after = self.commit(lifecycle.snoozed(job, self.now, run_at=self.now + 3, attempt=attempt))
        elif how == "release":
            after = self.commit(lifecycle.released(job, self.now, an_attempt(job, "released", self.now)))
        else:
            plain = how == "complete plainly"
            move = lifecycle.succeeded(job, self.now, '"ok"', an_attempt(job, at=self.now))
            after = self.commit(msgspec.structs.replace(move, attempt=None) if plain else move)
            if plain:
                self.outcomes[job.id].append((job.run, "done"))
        assert after.attempts == job.attempts + (after.state is State.done)

    @precondition(lambda self: self.held)
    @rule()
    def complete_all(self) -> None:
        moves = [lifecycle.succeeded(job, self.now, None, an_attempt(job, at=self.now)) for job in self.held.values()]
        outcomes = self.do(self.store.apply([Commit((move,)) for move in moves]))
        for move, outcome in zip(moves, outcomes, strict=True):
            assert isinstance(outcome, Applied)
            self.moved(move, outcome.fences[0])

    @precondition(lambda self: self.held)
    @rule(number=which, failure=st.sampled_from(FAILURES), chance=st.floats(0, 0.99))
    def fail(self, number: int, failure: Failure, chance: float) -> None:
        self.settle(self.one(number, list(self.held.values())), failure, chance)

    def settle(self, job: Job, failure: Failure, chance: float = 0.5, *, alone: bool = False) -> Job:
        """The one way of every failure."""
        cause = classify(failure)
        case = Case(job, failure, cause, POLICY, self.now, chance, alone=alone)
        decision = decide(case)
        outcome = "lost" if failure.kind == "lease_expired" else "failed"
        attempt = an_attempt(
            job, outcome, self.now, failure=failure, cause=cause, decision=decision.why,
            fingerprint=fingerprint(failure, job.task),
        )  # fmt: skip
        return self.commit(make_transition(case, decision, attempt))

    # -- people

    @precondition(lambda self: self.has(*PEOPLE_MAY))
    @rule(number=which, choice=which)
    def decide(self, number: int, choice: int) -> None:
        """A person does one of the things that can be done with a job as it is."""
        job = self.one(number, self.among(*PEOPLE_MAY))
        moves = PEOPLE_MAY[job.state]
        getattr(self, moves[choice % len(moves)])(job)

    def cancel(self, job: Job) -> None:
        self.commit(lifecycle.cancelled(job, self.now, who="ann", why=None))

    def hold(self, job: Job) -> None:
        self.commit(lifecycle.held_back(job, self.now, because="approval", why="asks", recommendation="answer"))

    def unblock(self, job: Job) -> None:
        self.commit(lifecycle.unblocked(job, self.now, who="ann"))

    def redrive(self, job: Job) -> None:
        spent = job.attempts >= (job.allowed if job.allowed is not None else 3)
        try:
            move = lifecycle.redriven(job, self.now, max_attempts=3, who="ann", why=None, run_at=self.now)
        except IllegalMove:
            assert (spent and job.grants == MAX_GRANTS) or job.payload is None
            return
        assert self.commit(move).grants == job.grants + spent

    def discard(self, job: Job) -> None:
        self.commit(lifecycle.discarded(job, self.now, who="ann", why="old"))

    def restore(self, job: Job) -> None:
        if job.payload is None:
            with pytest.raises(IllegalMove, match="contents were erased"):
                lifecycle.restored(job, self.now, who="ann", why=None)
            return
        self.commit(lifecycle.restored(job, self.now, who="ann", why=None))

    def purge(self, job: Job) -> None:
        self.commit(lifecycle.purged(job, self.now, who="ann", why=None))

    def resolve(self, job: Job) -> None:
        self.commit(lifecycle.resolved(job, self.now, who="ann", why="it landed"))

    # -- accidents

    @precondition(lambda self: self.old)
    @rule(number=which, failed=st.booleans())
    def come_back_late(self, number: int, failed: bool) -> None:
        """A worker that lost its job tries to settle it and to keep it: refused, always."""
        job = self.one(number, self.old)
        if job.id not in self.model:
            return
        attempt = an_attempt(job, "failed" if failed else "done", self.now)
        move = (
            lifecycle.released(job, self.now, attempt) if failed else lifecycle.succeeded(job, self.now, None, attempt)
        )
        try:
            outcome: object = self.apply(move)
        except StoreError as error:
            outcome = error
        assert isinstance(outcome, Stale), f"a stale {move.move} was not refused: {outcome}"
        assert self.do(self.store.heartbeat([_lease(job)])) == [_lease(job)]

    @precondition(lambda self: self.has(State.running))
    @rule(alone=st.booleans())
    def crash(self, alone: bool) -> None:
        """The worker is gone without a word: every lease ends, every job takes the normal failure path."""
        self.held.clear()
        self.look()
        lapsed = self.look(after=LEASE + 1)
        assert {job.id for job in lapsed} == {job.id for job in self.among(State.running)}
        for job in lapsed:
            assert msgspec.structs.replace(job, history=()) == self.model[job.id]
            after = self.settle(job, capture_lost_lease(job.worker), alone=alone)
            assert after.crashes == job.crashes + 1
            assert after.state is (State.dead if alone else State.waiting)

    def look(self, after: float = 2.0) -> list[Job]:
        self.steady.advance(after)
        return self.do(self.store.claim(Wanted(0), "observer", self.now)).lapsed

    @rule()
    def reopen(self) -> None:
        self.do(self.store.close())
        self.store = self.make_store(self.folder / "jobs.db", self.steady)

    @precondition(lambda self: self.has(*ENDED_FOR_GOOD))
    @rule(keys=st.booleans(), later=st.sampled_from([0.0, 60.0]))
    def prune(self, keys: bool, later: float) -> None:
        self.now += later
        pruned = self.do(self.store.prune(self.now, {}, RETENTION, RETENTION if keys else None))
        old = [job for job in self.among(*ENDED_FOR_GOOD) if job.updated_at < self.now - RETENTION]
        kept = {job.id for job in self.do(self.store.get([job.id for job in old]))}
        assert len(old) - len(kept) == pruned.keys
        assert len(kept) <= 1 if keys else len(kept) == len(old), "one may stay, to keep its number"
        self.forgotten += pruned.keys
        for job in old:
            self.outcomes[job.id] = []
            self.model[job.id] = msgspec.structs.replace(job, payload=None, result_json=None)
            if job.id not in kept:
                del self.model[job.id]

    # -- what must always hold

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        found = self.do(_scanned(self.store))
        assert len(found) == len({job.id for job in found}) == len(self.model)
        for job in found:
            expected = self.model[job.id]
            assert msgspec.structs.replace(job, history=()) == expected
            if job.payload is not None:
                assert [(attempt.run, attempt.outcome) for attempt in job.history] == self.outcomes[job.id]
        owners = Counter((job.queue, job.key) for job in found if job.key)
        assert all(number == 1 for number in owners.values())

    @invariant()
    def the_books_balance(self) -> None:
        counted = self.do(self.store.count(Filter(), by=("state",)))
        expected = Counter((str(job.state),) for job in self.model.values())
        if self.forgotten:
            expected[("forgotten",)] = self.forgotten
        assert counted == expected
        assert sum(counted.values()) == self.accepted

    @invariant()
    def no_job_is_completed_twice(self) -> None:
        for id, outcomes in self.outcomes.items():
            done = [run for run, outcome in outcomes if outcome == "done"]
            assert len(done) <= 1
            assert not done or self.model[id].state is State.done

    @invariant()
    def the_numbers_of_a_job_make_sense(self) -> None:
        for job in self.model.values():
            assert 0 <= job.attempts <= job.run
            assert 0 <= job.grants <= MAX_GRANTS
            assert job.allowed is None or job.attempts <= job.allowed
            assert (job.token is not None) == (job.state is State.running)
            if job.state in (State.waiting, State.running):
                assert job.attempts < (job.allowed if job.allowed is not None else 3)


def _lease(job: Job) -> Lease:
    assert job.token is not None
    return Lease(job.id, job.token)


async def _scanned(store: SqliteStore) -> list[Job]:
    return [job async for job in store.scan()]


async def _bounded(work: Awaitable[T]) -> T:
    async with asyncio.timeout(60):
        return await work


def play(machine: type[Jobs], **how: Any) -> None:
    """Play the machine in an event loop of its own."""
    how.setdefault("suppress_health_check", list(HealthCheck))
    with asyncio.Runner() as runner:
        machine.loop = runner.get_loop()
        run_state_machine_as_test(machine, settings=settings(deadline=None, print_blob=True, **how))


@pytest.mark.behaviour("000-99")
def test_the_store_agrees_with_the_model_whatever_happens(size: Callable[[int, int], int]) -> None:
    play(Jobs, max_examples=size(100, 5_000), stateful_step_count=size(50, 100))


# ---- the control


class Unfenced(SqliteStore):
    """Writes every move upon whatever the job is now, as a store would that does not look at the fence."""

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        return await super().apply([await self._forced(commit) for commit in group])

    async def _forced(self, commit: Commit) -> Commit:
        jobs = {job.id: job for job in await self.get([transition.job.id for transition in commit.transitions])}
        moves = []
        for transition in commit.transitions:
            now = jobs.get(transition.job.id, transition.job)
            job = msgspec.structs.replace(transition.job, version=now.version, token=now.token, state=now.state)
            moves.append(msgspec.structs.replace(transition, job=job))
        return msgspec.structs.replace(commit, transitions=tuple(moves))


class UnfencedJobs(Jobs):
    make_store = staticmethod(lambda path, steady: Unfenced(path, monotonic=steady))  # type: ignore[assignment]


def test_the_control_without_the_fence_the_model_is_violated() -> None:
    with pytest.raises(AssertionError, match="was not refused"):
        play(
            UnfencedJobs, max_examples=100, stateful_step_count=40, phases=[Phase.generate], derandomize=True,
            report_multiple_bugs=False, database=None,
        )  # fmt: skip
