"""Rows 13 to 18: how fast a hub, a process with a replica, accepts and runs jobs beside raw nats-py and taskiq-nats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import peers_nats
from benchmarks.bench import CALLERS, CONCURRENCY, Bench, Check, Contestant, per_second, ratio
from benchmarks.nats_server import nats
from redrive import Redrive


@asynccontextmanager
async def hub(folder: Path, *, synced: bool, nodes: int) -> AsyncIterator[Redrive]:
    """An application with a replica of its own, on new servers."""
    with nats(folder, synced=synced, nodes=nodes) as hosts:
        url = f"nats://{','.join(hosts)}/bench?replicas={nodes}&synced={str(synced).lower()}"
        rd = Redrive(url, replica=True, replica_folder=str(folder / "replica"))

        @rd.task
        async def noop(n: int) -> int:
            return n

        async with rd:
            yield rd


async def enqueue_one_by_one(rd: Redrive, size: int) -> float:
    for number in range(10):
        await rd.enqueue("noop", {"n": number})
    begun = time.perf_counter()
    for number in range(size):
        await rd.enqueue("noop", {"n": number})
    return size / (time.perf_counter() - begun)


async def enqueue_by_callers(rd: Redrive, size: int) -> float:
    """Each caller awaits the acceptance of its job before it hands in the next."""

    async def caller(count: int) -> None:
        for number in range(count):
            await rd.enqueue("noop", {"n": number})

    await asyncio.gather(*(caller(1) for _ in range(CALLERS)))
    begun = time.perf_counter()
    await asyncio.gather(*(caller(size // CALLERS) for _ in range(CALLERS)))
    return size / (time.perf_counter() - begun)


async def enqueue_many(rd: Redrive, size: int) -> float:
    await rd.enqueue_many("noop", [{"n": number} for number in range(10)])
    items = [{"n": number} for number in range(size)]
    begun = time.perf_counter()
    accepted = await rd.enqueue_many("noop", items)
    seconds = time.perf_counter() - begun
    assert accepted.accepted == size, f"{accepted.accepted} of {size} jobs accepted"
    return size / seconds


async def drain(rd: Redrive, size: int, concurrency: int = CONCURRENCY) -> float:
    """Run no-op jobs until the log has every result."""
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


async def one_by_one(folder: Path, size: int, *, synced: bool = False, nodes: int = 1) -> float:
    async with hub(folder, synced=synced, nodes=nodes) as rd:
        return await enqueue_one_by_one(rd, size)


async def by_callers(folder: Path, size: int, *, synced: bool = False, nodes: int = 1) -> float:
    async with hub(folder, synced=synced, nodes=nodes) as rd:
        return await enqueue_by_callers(rd, size)


async def many(folder: Path, size: int, *, synced: bool = False, nodes: int = 1) -> float:
    async with hub(folder, synced=synced, nodes=nodes) as rd:
        return await enqueue_many(rd, size)


async def drained(folder: Path, size: int, *, synced: bool = False, nodes: int = 1) -> float:
    async with hub(folder, synced=synced, nodes=nodes) as rd:
        return await drain(rd, size)


def contestants(verb: str, size: int, *, peer: bool = False, **arguments: object) -> dict[str, Contestant]:
    """A hub, raw nats-py and, where it is asked for and installed, taskiq-nats, doing the same work."""
    given = {"size": size, **arguments}
    found = {
        "redrive": Contestant(f"benchmarks.fleet:{verb}", given),
        "raw": Contestant(f"benchmarks.raw_nats:{verb}", given),
    }
    if peer and peers_nats.installed():
        found["taskiq-nats"] = Contestant(f"benchmarks.peers_nats:{verb}", given)
    return found


def row_13(bench: Bench) -> list[Check]:
    work = "hub on JetStream, enqueue one at a time"
    values = bench.contest(work, contestants("one_by_one", bench.size(2_000, 100), peer=True), bench.rounds(3))
    return [Check(13, work, ratio(values, "redrive", "raw"), "≥", 0.35, "× raw", per_second(values), values)]


def row_14(bench: Bench) -> list[Check]:
    work = f"hub on JetStream, {CALLERS} callers"
    values = bench.contest(work, contestants("by_callers", bench.size(10_000, 500), peer=True), bench.rounds(3))
    return [Check(14, work, ratio(values, "redrive", "raw"), "≥", 0.7, "× raw", per_second(values), values)]


def row_15(bench: Bench) -> list[Check]:
    work = "hub on JetStream, enqueue_many"
    values = bench.contest(work, contestants("many", bench.size(20_000, 1_000)), bench.rounds(3))
    return [Check(15, work, ratio(values, "redrive", "raw"), "≥", 1.1, "× raw", per_second(values), values)]


def row_16(bench: Bench) -> list[Check]:
    work = "hub on JetStream, drain of no-op async jobs"
    values = bench.contest(work, contestants("drained", bench.size(10_000, 500), peer=True), bench.rounds(3))
    return [
        Check(16, work, ratio(values, "redrive", "raw"), "≥", 0.75, "× raw", per_second(values), values),
        Check(16, "the same", ratio(values, "redrive", "taskiq-nats"), "≥", 2.5, "× taskiq-nats", {}),
    ]


def row_17(bench: Bench) -> list[Check]:
    size = bench.size(3_000, 200)
    work = f"hub on JetStream, sync always, {CALLERS} callers"
    values = bench.contest(work, contestants("by_callers", size, synced=True), bench.rounds(3))
    accepting = Check(17, work, ratio(values, "redrive", "raw"), "≥", 3.0, "× raw", per_second(values), values)
    work = "hub on JetStream, sync always, drain"
    runs = contestants("drained", size, synced=True)
    given = {"size": size, "synced": True, "confirmed": True}
    runs["raw, confirmed"] = Contestant("benchmarks.raw_nats:drained", given)
    values = bench.contest(work, runs, bench.rounds(3))
    confirmed, plain = ratio(values, "redrive", "raw, confirmed"), ratio(values, "redrive", "raw")
    return [
        accepting,
        Check(17, work, confirmed, "≥", 2.5, "× raw with confirmed acks", per_second(values), values),
        Check(17, "the same", plain, "≥", None, "× raw that does not wait for its acks", {}),
    ]


def row_18(bench: Bench) -> list[Check]:
    checks = []
    for verb, words, size in (
        ("one_by_one", "enqueue one at a time", bench.size(1_000, 50)),
        ("by_callers", f"{CALLERS} callers", bench.size(5_000, 200)),
        ("many", "enqueue_many", bench.size(10_000, 200)),
        ("drained", "drain", bench.size(5_000, 200)),
    ):
        work = f"hub on three nodes of one machine (R3), {words}"
        values = bench.contest(work, contestants(verb, size, nodes=3), bench.rounds(2))
        checks.append(Check(18, work, ratio(values, "redrive", "raw"), "≥", None, "× raw", per_second(values), values))
    return checks
