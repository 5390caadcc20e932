"""Rows 1 to 3: how fast work is accepted. When a call returns, its job is synced to disk."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.bench import Bench, Check, Contestant, per_second, ratio
from benchmarks.peers import MODULES, installed
from redrive import Redrive

BY_A_THREAD = "the same by a thread"
CALLERS = 100
MANY = 20_000


def _app(folder: Path) -> Redrive:
    rd = Redrive(folder / "jobs.db")

    @rd.task
    async def noop(n: int) -> int:
        return n

    return rd


async def one_by_one(folder: Path, size: int) -> float:
    async with _app(folder) as rd:
        for number in range(10):
            await rd.enqueue("noop", {"n": number})
        begun = time.perf_counter()
        for number in range(size):
            await rd.enqueue("noop", {"n": number})
        return size / (time.perf_counter() - begun)


async def by_callers(folder: Path, size: int) -> float:
    """Each caller awaits the acceptance of its job before it hands in the next."""
    async with _app(folder) as rd:

        async def caller(count: int) -> None:
            for number in range(count):
                await rd.enqueue("noop", {"n": number})

        await asyncio.gather(*(caller(1) for _ in range(CALLERS)))
        begun = time.perf_counter()
        await asyncio.gather(*(caller(size // CALLERS) for _ in range(CALLERS)))
        return size / (time.perf_counter() - begun)


async def many(folder: Path, size: int) -> float:
    async with _app(folder) as rd:
        await rd.enqueue_many("noop", [{"n": number} for number in range(10)])
        items = [{"n": number} for number in range(size)]
        begun = time.perf_counter()
        accepted = await rd.enqueue_many("noop", items)
        seconds = time.perf_counter() - begun
    assert accepted.accepted == size, f"{accepted.accepted} of {size} jobs accepted"
    return size / seconds


def row_1(bench: Bench) -> list[Check]:
    work = "durable enqueue, one at a time"
    size = {"size": bench.size(1_000, 200)}
    contestants = {
        "redrive": Contestant("benchmarks.accepting:one_by_one", size),
        "raw one-row commit": Contestant("benchmarks.raw:one_row_commits", size),
        BY_A_THREAD: Contestant("benchmarks.raw:one_row_commits_by_a_thread", size),
        **{name: Contestant(f"benchmarks.peers:{MODULES[name]}_enqueued", size) for name in installed()},
    }
    values = bench.contest(work, contestants)
    reached = ratio(values, "redrive", "raw one-row commit")
    said = per_second(values)
    said[BY_A_THREAD] += f" ({ratio(values, BY_A_THREAD, 'raw one-row commit'):.2f} ×)"
    return [Check(1, work, reached, "≥", 0.8, "× raw", said, values)]


def row_2(bench: Bench) -> list[Check]:
    work = f"{CALLERS} callers, each awaiting its own acceptance"
    contestants = {
        "redrive": Contestant("benchmarks.accepting:by_callers", {"size": bench.size(20_000, 2_000)}),
        "one at a time": Contestant("benchmarks.accepting:one_by_one", {"size": bench.size(1_000, 200)}),
    }
    values = bench.contest(work, contestants)
    reached = ratio(values, "redrive", "one at a time")
    return [Check(2, work, reached, "≥", 12, "× one at a time", per_second(values), values)]


def row_3(bench: Bench) -> list[Check]:
    work = f"enqueue_many of {MANY:,}"
    contestants = {
        "redrive": Contestant("benchmarks.accepting:many", {"size": MANY}),
        "raw, 1,000 per commit": Contestant("benchmarks.raw:inserts", {"size": MANY}),
    }
    values = bench.contest(work, contestants, bench.rounds(7))
    reached = ratio(values, "redrive", "raw, 1,000 per commit")
    return [Check(3, work, reached, "≥", 0.6, "× raw", per_second(values), values)]
