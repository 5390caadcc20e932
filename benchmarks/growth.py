"""Rows 23 to 25: what a store costs as it grows, with two worker processes, with ten thousand queues."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.backlog import peak_megabytes
from benchmarks.bench import CALLERS, CONCURRENCY, Bench, Check, Contestant, Values, amount, ratio
from benchmarks.scale import TOKEN, ask, filled
from benchmarks.worker_processes import workers
from redrive import Redrive, asgi

CLAIMED = 10
"""Jobs per claim."""
LISTED = 100
MEASURES = {
    "claim": (f"claim of {CLAIMED} jobs", "ms"),
    "enqueue": ("enqueue, one at a time", "ms"),
    "list": (f"list of {LISTED} dead letters", "ms"),
    "overview": ("overview of the dashboard, server time", "ms"),
    "drained": ("drain of no-op jobs in front", "/s"),
    "memory": ("largest memory of that worker", "MB"),
    "size": ("size of the file", "MB"),
}
"""What is measured at each size, and its unit."""


def _app(path: Path, did: Callable[[], None] = lambda: None) -> Redrive:
    rd = Redrive(path)

    @rd.task
    async def noop(n: int) -> int:
        did()
        return n

    return rd


async def _milliseconds(times: int, action: Callable[[int], Awaitable[object]]) -> float:
    """The median of one call."""
    taken = []
    for number in range(times + 2):
        begun = time.perf_counter()
        await action(number)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[2:]) * 1e3


async def with_jobs(folder: Path, jobs: int, times: int, run: int) -> dict[str, float]:
    """Everything that is measured with so many jobs stored, on a copy of the file that has them."""
    stored, ran, enough = Path(filled(folder, jobs)), itertools.count(1), asyncio.Event()
    shutil.copyfile(stored, folder / "jobs.db")
    async with _app(folder / "jobs.db", lambda: enough.set() if next(ran) == run else None) as rd:
        found = {"size": stored.stat().st_size / 1e6, **await _asked(rd, times)}
        await rd.enqueue_many("noop", [{"n": number} for number in range(run)])
        begun = time.perf_counter()
        async with rd.worker(concurrency=CONCURRENCY, queues=["noop"]):
            await enough.wait()
            found["drained"] = run / (time.perf_counter() - begun)
    return {**found, "memory": peak_megabytes()}


async def _asked(rd: Redrive, times: int) -> dict[str, float]:
    from redrive.core.store import Wanted

    async def enqueue(number: int) -> None:
        for _ in range(CLAIMED):
            await rd.enqueue("noop", {"n": number})

    async def claim(number: int) -> None:
        claim = await rd.store.claim(Wanted(CLAIMED, frozenset({"noop"})), "benchmark", time.time())
        assert len(claim.jobs) == CLAIMED, f"{len(claim.jobs)} of {CLAIMED} claimed"

    async def dead(number: int) -> None:
        await rd.dead.list(limit=LISTED)

    async def overview(number: int) -> None:
        status, body = await ask(server, "/")
        assert status == 200, body[:300]

    server = asgi(rd, token=TOKEN)
    found = {
        "enqueue": await _milliseconds(times, enqueue) / CLAIMED,
        "claim": await _milliseconds(times, claim),
        "list": await _milliseconds(times, dead),
    }
    return {**found, "overview": await _milliseconds(times, overview)}


def sizes(bench: Bench) -> list[int]:
    """Every eleventh job is a dead letter."""
    full = [1_100, 110_000, 1_100_000, *([11_000_000] if bench.large else [])]
    return [1_100, 11_000] if bench.quick else full


def row_23(bench: Bench) -> list[Check]:
    work = "as the store grows"
    given = {"times": bench.size(20, 3), "run": bench.size(5_000, 300)}
    everything = sizes(bench)
    bench.stages(work, {f"making {jobs:,} jobs": partial(filled, bench.folder, jobs) for jobs in everything})
    contestants = {
        f"{jobs:,}": Contestant("benchmarks.growth:with_jobs", {"jobs": jobs, **given}) for jobs in everything
    }
    found: Mapping[str, list[Any]] = bench.contest(work, contestants, bench.rounds(3))
    return [_grown(name, found) for name in MEASURES]


def _grown(name: str, found: Mapping[str, list[Any]]) -> Check:
    """One measure at every size; what is reached is the last beside the first."""
    work, unit = MEASURES[name]
    values = {jobs: [one[name] for one in rounds] for jobs, rounds in found.items()}
    first, *_, last = values
    said = {f"at {jobs}": f"{amount(statistics.median(taken))} {unit}" for jobs, taken in values.items()}
    return Check(23, work, ratio(values, last, first), "≤", None, f"× at {first}", said, values)


# -- several worker processes


async def drained_by(folder: Path, size: int, processes: int) -> float:
    """Jobs per second, from the moment at which all workers are let go to the last result."""
    async with _app(folder / "jobs.db") as rd:
        await rd.queues.pause("noop", who="benchmark", why="until every worker is there", new=True)
        for first in range(0, size, 10_000):
            await rd.enqueue_many("noop", [{"n": n} for n in range(first, min(first + 10_000, size))])
        with workers(folder / "jobs.db", processes):
            begun = time.perf_counter()
            await rd.queues.resume("noop", who="benchmark")
            await _until_done(rd, size)
            return size / (time.perf_counter() - begun)


async def _until_done(rd: Redrive, size: int) -> None:
    async with asyncio.timeout(600):
        while (await rd.queues.list())[0].done < size:  # noqa: ASYNC110 - asked from outside, by its counters
            await asyncio.sleep(0.02)


def row_24(bench: Bench) -> list[Check]:
    size = bench.size(20_000, 500)
    work = f"drain by worker processes of one file, {size:,} no-op jobs"
    values = bench.contest(
        work,
        {
            name: Contestant("benchmarks.growth:drained_by", {"size": size, "processes": number})
            for name, number in (("one", 1), ("two", 2))
        },
        bench.rounds(3),
    )
    said = {name: f"{statistics.median(rates):,.0f}/s" for name, rates in values.items()}
    return [Check(24, work, ratio(values, "two", "one"), "≥", None, "× one", said, values)]


# -- many queues


async def in_queues(folder: Path, size: int, queues: int) -> dict[str, float]:
    """The same jobs in one queue or in many: their drain, and what looks at the queues."""
    async with _app(folder / "jobs.db") as rd:

        async def caller(first: int) -> None:
            for number in range(first, size, CALLERS):
                await rd.enqueue("noop", {"n": number}, queue=f"queue-{number % queues:05}")

        begun = time.perf_counter()
        await asyncio.gather(*(caller(first) for first in range(CALLERS)))
        found = {"enqueue": size / (time.perf_counter() - begun)}
        begun = time.perf_counter()
        made = await rd.drain(concurrency=CONCURRENCY)
        found["drain"] = size / (time.perf_counter() - begun)
        assert made == size, f"{made} attempts for {size} jobs"
        server = asgi(rd, token=TOKEN)
        return {**found, "overview": await _milliseconds(5, lambda _: ask(server, "/"))}


def row_25(bench: Bench) -> list[Check]:
    many, size = bench.size(10_000, 100), bench.size(10_000, 500)
    work = f"{size:,} jobs in one queue and in {many:,}"
    contestants = {
        f"{queues:,} queue{'s' if queues > 1 else ''}": Contestant(
            "benchmarks.growth:in_queues", {"size": size, "queues": queues}
        )
        for queues in (1, many)
    }
    found: Mapping[str, list[Any]] = bench.contest(work, contestants, bench.rounds(3))
    said = (
        ("enqueue", f"enqueue by {CALLERS} callers, {work}", "/s"),
        ("drain", f"drain, {work}", "/s"),
        ("overview", f"overview of the dashboard, {work}", " ms"),
    )
    return [_beside_one(name, words, unit, found) for name, words, unit in said]


def _beside_one(name: str, work: str, unit: str, found: Mapping[str, list[Any]]) -> Check:
    values: Values = {queues: [one[name] for one in rounds] for queues, rounds in found.items()}
    one, many = values
    said = {queues: f"{amount(statistics.median(taken))}{unit}" for queues, taken in values.items()}
    return Check(25, work, ratio(values, many, one), "≥", None, "× one queue", said, values)
