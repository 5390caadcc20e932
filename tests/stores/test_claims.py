"""Claims in a store of many queues: who gets which jobs, and that the queues a claim does not need cost it nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from redrive.core.job import PRIORITIES, Job
from redrive.stores.sqlite import SqliteStore
from tests.stores.jobs import T0, a_job
from tests.stores.openers import Openers
from tests.stores.test_sqlite import accept, counted_steps, take


def _expected(jobs: list[Job], slots: int) -> list[str]:
    """The most urgent first; the slots shared evenly between queues, by name; in each the oldest."""
    chosen: list[str] = []
    for priority in range(len(PRIORITIES)):
        left = {queue: [job for job in jobs if (job.queue, job.priority) == (queue, priority) and job.run_at <= T0 + 1]
                for queue in sorted({job.queue for job in jobs})}  # fmt: skip
        alive = {queue: sorted(due, key=lambda job: job.run_at) for queue, due in left.items() if due}
        while alive and len(chosen) < slots:
            share = -(-(slots - len(chosen)) // len(alive))
            full = {}
            for queue, due in alive.items():
                part = due[: min(share, slots - len(chosen))]
                chosen += [job.id for job in part]
                if len(part) == share:
                    full[queue] = due[share:]
            alive = {queue: due for queue, due in full.items() if due}
    return chosen


@pytest.mark.parametrize("slots", [1, 7, 150, 400])
@pytest.mark.parametrize("pressing", [0.0, 0.05, 1.0])
async def test_the_jobs_are_those_that_a_look_at_all_queues_would_choose(
    sqlite: Openers, slots: int, pressing: float
) -> None:
    """More queues than are read together, with jobs of every priority, some of them for later."""
    chance = random.Random(f"{slots} {pressing}")
    store = await sqlite.open()
    jobs = [
        a_job(
            f"q{chance.randrange(300):03}",
            priority=chance.randrange(2) if chance.random() < pressing else 2 + chance.randrange(2),
            run_at=T0 - number if chance.random() < 0.8 else T0 + 1000,
        )
        for number in range(600)
    ]
    await accept(store, *jobs)
    for _ in range(2):
        expected = _expected(jobs, slots)
        assert sorted(job.id for job in await take(store, slots)) == sorted(expected)
        jobs = [job for job in jobs if job.id not in expected]


@pytest.mark.parametrize("one", [False, True], ids=["any queue", "one queue"])
@pytest.mark.parametrize("priority", [0, 2], ids=["pressing", "usual"])
async def test_queues_that_a_claim_does_not_need_cost_it_nothing(folder: Path, one: bool, priority: int) -> None:
    """Five slots are full after five queues, however many more there are."""
    spent = {}
    for queues in (200, 2_000):
        with counted_steps() as steps:
            store = SqliteStore(folder / f"{queues}.db")
            await accept(store, *(a_job(f"q{number:05}") for number in range(queues)))
            await accept(store, *(a_job("q00150", priority=priority) for _ in range(20)))
            wanted = {"queues": frozenset({"q00150"})} if one else {}
            assert len(await take(store, 5, **wanted)) == 5
            before = steps.count
            assert len(await take(store, 5, **wanted)) == 5
            spent[queues] = steps.count - before
            await store.close()
    assert spent[2_000] <= spent[200] * 1.1, spent
