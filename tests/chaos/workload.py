"""A store's whole life in a few dozen commits, told step by step: for cutting the power and failing the disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from redrive.core import lifecycle
from redrive.core.job import Attempt, Failure, Job, State, new_id
from redrive.core.lifecycle import Transition
from redrive.core.store import Applied, Commit, Guard, Lease, Put, Unknown, Wanted
from redrive.errors import CommitUnknown, StoreError
from redrive.failures.classify import classify
from redrive.stores.sqlite import SqliteStore

DATABASE = "jobs.db"
NOW = 1_800_000_000.0
FAILURE = Failure("exception", ("builtins.ConnectionError",), "no answer")

MOVES = (
    "SELECT id, 'enqueued' FROM jobs"
    " UNION ALL SELECT jobs.id, moves.move || ' ' || moves.run FROM moves JOIN jobs ON jobs.seq = moves.job"
    " UNION ALL SELECT key, 'written' FROM docs WHERE kind = 'effect'"
    " UNION ALL SELECT 'books', CASE WHEN count(*) = 0 THEN 'balanced' ELSE 'wrong' END FROM routes WHERE "
    + " OR ".join(
        f"{state} <> (SELECT count(*) FROM jobs WHERE jobs.route = routes.id AND jobs.state = '{state}')"
        for state in State
    )
)
"""Every enqueue, move and document that is stored, and whether the counters agree with the records."""

Told = Callable[[tuple[str, str]], None]


def acknowledged(marks: tuple[tuple[str, str], ...]) -> set[tuple[str, str]]:
    """What must be there after these acknowledgements: all of it, and balanced books."""
    return {*marks, ("books", "balanced")} if marks else set()


class Life:
    """Does to a store what producers, workers and people do, and tells what was acknowledged."""

    def __init__(self, path: Path, seed: int, told: Told) -> None:
        self.store = SqliteStore(path)
        self.rng = random.Random(seed)
        self.told = told
        self.now = NOW
        self.dead: list[Job] = []

    async def live(self, rounds: int) -> None:
        await self.store.open()
        for number in range(rounds):
            await self.enqueue(self.rng.randint(1, 3), f"queue{number % 3}")
            await self.work()
            if self.dead and self.rng.random() < 0.5:
                await self.redrive(self.dead.pop())
        await self.store.close()

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    async def enqueue(self, count: int, queue: str) -> None:
        now = self._tick()
        size = self.rng.choice((10, 10, 10, 3_000))
        jobs = [
            Job(
                id=new_id(now, self.rng.getrandbits(74)), queue=queue, task="work", agent=None, state=State.waiting,
                priority=2, run_at=now, version=1, created_at=now, updated_at=now,
                payload=msgspec.json.encode({"text": "x" * size}).decode(), allowed=3,
            )
            for _ in range(count)
        ]  # fmt: skip
        await self.store.insert(jobs)
        for job in jobs:
            self.told((job.id, "enqueued"))

    async def work(self) -> None:
        """Claim some, note an effect, settle them all in one group."""
        claim = await self.store.claim(Wanted(slots=self.rng.randint(1, 4)), "worker", self._tick())
        moves: list[Transition] = []
        for job in claim.jobs:
            if self.rng.random() < 0.3:
                await self.note_effect(job)
            moves.append(self.settled(job))
        if self.rng.random() < 0.5:
            await self.apply(*moves)
        else:
            for move in moves:
                await self.apply(move)

    async def note_effect(self, job: Job) -> None:
        key = f"{job.id}/post"
        commit = Commit(puts=(Put("effect", key, b"{}"),), guards=(Guard(Lease(job.id, job.token or "")),))
        (outcome,) = await self.store.apply([commit])
        _check(outcome)
        self.told((key, "written"))

    def settled(self, job: Job) -> Transition:
        now = self._tick()
        attempt = Attempt(job.run, "done", job.started_at, now, job.worker)
        if self.rng.random() < 0.5:
            return lifecycle.succeeded(job, now, '"ok"', attempt)
        cause = classify(FAILURE)
        failed = msgspec.structs.replace(attempt, outcome="failed", failure=FAILURE, cause=cause, decision="again")
        if job.attempts < 1:
            return lifecycle.retried(
                job, now, run_at=now, allowed=3, failure=FAILURE, cause=cause, fingerprint="f", attempt=failed
            )
        return lifecycle.buried(
            job, now, because="attempts_exhausted", why="enough", recommendation="look", failure=FAILURE, cause=cause,
            fingerprint="f", attempt=failed,
        )  # fmt: skip

    async def redrive(self, job: Job) -> None:
        (job,) = await self.store.get([job.id])
        now = self._tick()
        await self.apply(lifecycle.redriven(job, now, max_attempts=3, who="somebody", why=None, run_at=now))

    async def apply(self, *moves: Transition) -> None:
        if not moves:
            return
        outcomes = await self.store.apply([Commit((move,)) for move in moves])
        for outcome in outcomes:
            _check(outcome)
        for move in moves:
            self.told((move.job.id, f"{move.move} {move.job.run}"))
            if move.to is State.dead:
                self.dead.append(move.job)


def _check(outcome: object) -> None:
    """An unknown outcome acknowledges nothing; nobody else is here who could have been faster."""
    if isinstance(outcome, Unknown):
        raise CommitUnknown(outcome.problem)
    assert isinstance(outcome, Applied), outcome


async def live_until_error(life: Life, rounds: int) -> StoreError | None:
    """The error that ended the life early, if one did. Anything that is not a StoreError is a defect."""
    try:
        await life.live(rounds)
    except StoreError as error:
        return error
    return None
