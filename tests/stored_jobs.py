"""Jobs put into a real store by hand."""

from typing import Any

from redrive.core.job import Attempt, Failure, Job, State, new_id
from redrive.core.lifecycle import Transition, buried, held_back, succeeded
from redrive.core.store import Applied, Commit, Store, Wanted
from tests.support import FakeClock

_numbers = iter(range(1_000_000))


def a_job(clock: FakeClock, task: str = "work", **fields: Any) -> Job:
    now = clock.now()
    base: dict[str, Any] = {
        "id": new_id(now, next(_numbers)), "queue": task, "task": task, "agent": None, "state": State.waiting,
        "priority": 2, "run_at": now, "version": 1, "created_at": now, "updated_at": now, "payload": "{}",
        "allowed": 5,
    }  # fmt: skip
    return Job(**base | fields)


async def claimed(store: Store, clock: FakeClock, **fields: Any) -> Job:
    """A job that is running under a lease of worker "w1"."""
    job = a_job(clock, **fields)
    await store.insert([job])
    (running,) = (await store.claim(Wanted(slots=1, tasks=frozenset({job.task})), "w1", clock.now())).jobs
    return running


def done(job: Job, at: float, result: str | None = None) -> Commit:
    return Commit((succeeded(job, at, result, Attempt(job.run, "done")),))


async def write(store: Store, transition: Transition) -> Job:
    (outcome,) = await store.apply([Commit((transition,))])
    assert isinstance(outcome, Applied)
    return transition.after(outcome.fences[0])


async def dead(store: Store, clock: FakeClock, *, lane: Any = "manual", **fields: Any) -> Job:
    from redrive.failures.classify import classify

    job = await claimed(store, clock, **fields)
    failure = Failure("exception", ("builtins.ConnectionError",), "down")
    attempt = Attempt(job.run, "failed", failure=failure)
    return await write(
        store,
        buried(
            job, clock.now(), because="permanent", why="down", recommendation="wait", failure=failure,
            cause=classify(failure), fingerprint=None, lane=lane, attempt=attempt,
        ),
    )  # fmt: skip


async def held(store: Store, clock: FakeClock, because: str = "outcome_unknown", **fields: Any) -> Job:
    job = await claimed(store, clock, **fields)
    return await write(store, held_back(job, clock.now(), because=because, why="nobody knows"))
