"""Rows 4 and 5: how fast one worker process runs jobs that succeed, and jobs that fail to the end."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import all_peers
from benchmarks.bench import CONCURRENCY, Bench, Check, Contestant, per_second, ratio
from redrive import Redrive

JOBS = 20_000
FAILING = 2_000
ATTEMPTS = 3


async def drained(folder: Path, size: int, concurrency: int = CONCURRENCY) -> float:
    """No-op async jobs, to the last synced result."""
    rd = Redrive(folder / "jobs.db")

    @rd.task
    async def noop(n: int) -> int:
        return n

    async with rd:
        await rd.enqueue_many("noop", [{"n": number} for number in range(200)])
        await rd.drain(concurrency=concurrency)
        await rd.enqueue_many("noop", [{"n": number} for number in range(size)])
        begun = time.perf_counter()
        made = await rd.drain(concurrency=concurrency)
        seconds = time.perf_counter() - begun
        (queue,) = await rd.queues.list()
    assert made == size, f"{made} attempts for {size} jobs"
    assert queue.done == size + 200, f"{queue.done} of {size + 200} jobs done"
    return size / seconds


async def buried(folder: Path, size: int, concurrency: int = CONCURRENCY) -> float:
    """Jobs that fail until they are dead letters; attempts per second."""
    rd = Redrive(folder / "jobs.db")

    @rd.task(max_attempts=ATTEMPTS, backoff="none", retry_on=(ValueError,))
    async def fail(n: int) -> int:
        raise ValueError(f"number {n} is not possible")

    async with rd:
        await rd.enqueue_many("fail", [{"n": number} for number in range(20)])
        await rd.drain(concurrency=concurrency)
        await rd.enqueue_many("fail", [{"n": number} for number in range(size)])
        begun = time.perf_counter()
        made = await rd.drain(concurrency=concurrency)
        seconds = time.perf_counter() - begun
        (queue,) = await rd.queues.list()
        letter = await rd.dead.show((await rd.dead.list(limit=1)).jobs[0].id)
    assert made == size * ATTEMPTS, f"{made} attempts for {size} jobs"
    assert queue.dead == size + 20, f"{queue.dead} of {size + 20} jobs dead"
    assert len(letter.history) == ATTEMPTS, f"{len(letter.history)} attempts in the history"
    return made / seconds


def row_4(bench: Bench) -> list[Check]:
    size = bench.size(JOBS, 1_000)
    work = f"drain of {size:,} no-op async jobs, one worker process"
    contestants = {
        "redrive": Contestant("benchmarks.running:drained", {"size": size}),
        "raw": Contestant("benchmarks.raw:drained", {"size": size}),
        "redrive, concurrency 100": Contestant("benchmarks.running:drained", {"size": size, "concurrency": 100}),
        **all_peers.contestants("drained", bench.size(500, 100)),
    }
    values = bench.contest(work, contestants, bench.rounds())
    said = per_second(values, "raw")
    return [
        Check(4, work, ratio(values, "redrive", "raw"), "≥", 0.45, "× raw", said, values, 0.6),
        Check(4, "the same", ratio(values, "redrive", "huey"), "≥", 8, "× huey", {}),
    ]


def row_5(bench: Bench) -> list[Check]:
    size = bench.size(FAILING, 100)
    work = f"{size:,} jobs that fail {ATTEMPTS} times each until they are dead letters, attempts"
    given = {"size": size, "attempts": ATTEMPTS}
    contestants = {
        "redrive": Contestant("benchmarks.running:buried", {"size": size}),
        "raw": Contestant("benchmarks.raw:failed", given),
        **all_peers.contestants("failed", bench.size(200, 40), attempts=ATTEMPTS),
    }
    values = bench.contest(work, contestants, bench.rounds())
    return [Check(5, work, ratio(values, "redrive", "raw"), "≥", 0.2, "× raw", per_second(values, "raw"), values, 0.3)]
