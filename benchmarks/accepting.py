"""Rows 1 to 3: how fast work is accepted. When a call returns, its job is synced to disk."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks import all_peers
from benchmarks.bench import CALLERS, Bench, Check, Contestant, per_second, ratio
from redrive import Redrive

BY_A_THREAD = "raw by a thread"


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
    size = bench.size(1_000, 100)
    contestants = {
        "redrive": Contestant("benchmarks.accepting:one_by_one", {"size": size}),
        "raw": Contestant("benchmarks.raw:enqueued", {"size": size}),
        BY_A_THREAD: Contestant("benchmarks.raw:enqueued_by_a_thread", {"size": size}),
        **all_peers.contestants("enqueued", bench.size(500, 50)),
    }
    values = bench.contest(work, contestants, bench.rounds())
    hop = ratio(values, BY_A_THREAD, "raw")
    return [
        Check(1, work, ratio(values, "redrive", "raw"), "≥", 0.6, "× raw", per_second(values, "raw"), values, 0.7),
        Check(1, "raw, handed to a thread and awaited, for comparison", hop, "≥", None, "× raw", {}),
    ]


def row_2(bench: Bench) -> list[Check]:
    work = f"{CALLERS} callers, each awaiting its own acceptance"
    contestants = {
        "redrive": Contestant("benchmarks.accepting:by_callers", {"size": bench.size(20_000, 500)}),
        "one at a time": Contestant("benchmarks.accepting:one_by_one", {"size": bench.size(1_000, 100)}),
    }
    values = bench.contest(work, contestants, bench.rounds(3))
    reached = ratio(values, "redrive", "one at a time")
    return [Check(2, work, reached, "≥", 12, "× one at a time", per_second(values), values)]


def row_3(bench: Bench) -> list[Check]:
    size = bench.size(20_000, 1_000)
    work = f"bulk enqueue: enqueue_many of {size:,}"
    contestants = {
        "redrive": Contestant("benchmarks.accepting:many", {"size": size}),
        "raw": Contestant("benchmarks.raw:enqueued_many", {"size": size}),
        **all_peers.contestants("enqueued_many", bench.size(5_000, 100)),
    }
    values = bench.contest(work, contestants, bench.rounds())
    return [Check(3, work, ratio(values, "redrive", "raw"), "≥", 0.5, "× raw", per_second(values, "raw"), values, 0.7)]
