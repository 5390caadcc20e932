"""Row 6: from enqueue to the start of the task while nothing else happens, in one process and between two."""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks import all_peers, raw
from benchmarks.bench import Bench, Check, Contestant, Values, command, environment
from benchmarks.latency_peers import STARTED, WARM_UP, Late, moments_awaited, producing
from redrive import Redrive

IDLE_SECONDS = 0.03


async def same_process(folder: Path, size: int) -> list[float]:
    """The medians, in ms, of redrive and of two raw commits, measured in turn."""
    rd = Redrive(folder / "jobs.db")
    started: list[float] = []
    told = asyncio.Event()

    @rd.task
    async def noop(n: int) -> None:
        started.append(time.perf_counter())
        told.set()

    ours: list[float] = []
    beside: list[float] = []
    connection = raw.open_file(folder / "raw.db")
    async with rd, rd.worker():
        for number in range(WARM_UP + size):
            await asyncio.sleep(IDLE_SECONDS)
            begun = time.perf_counter()
            await rd.enqueue("noop", {"n": number})
            await told.wait()
            told.clear()
            ours.append(started.pop() - begun)
            await asyncio.sleep(IDLE_SECONDS)
            begun = time.perf_counter()
            raw.insert(connection, number, 1)
            raw.claim(connection, 1)
            beside.append(time.perf_counter() - begun)
    return [statistics.median(ours[WARM_UP:]) * 1e3, statistics.median(beside[WARM_UP:]) * 1e3]


async def other_process(folder: Path, size: int) -> float:
    """The median in ms: the worker here, the producer in a process of its own."""
    rd = Redrive(folder / "jobs.db")
    late = Late(size)

    @rd.task
    async def noop(at: float) -> None:
        late.add(at)

    async with rd, rd.worker():
        with producing("benchmarks.latency:produce", folder, size):
            return await late.wait()


async def produce(folder: Path, size: int) -> None:
    async with Redrive(folder / "jobs.db") as rd:
        async for at in moments_awaited(size):
            await rd.enqueue("noop", {"at": at})


async def result_of_other_process(folder: Path, size: int) -> float:
    """The median in ms from the end of a task in a worker's process to its result here."""
    late: list[float] = []
    async with Redrive(folder / "jobs.db") as rd:
        worker = subprocess.Popen(command("benchmarks.latency:work", folder, {}), env=environment())
        try:
            async with asyncio.timeout(60 + size):
                for _ in range(WARM_UP + size):
                    await asyncio.sleep(random.uniform(0.05, 0.15))
                    ended = await (await rd.enqueue("ends_at")).result()
                    late.append(time.monotonic() - ended)
        finally:
            worker.kill()
            worker.wait()
    return statistics.median(late[WARM_UP:]) * 1e3


async def work(folder: Path) -> None:
    """A worker until it is killed."""
    rd = Redrive(folder / "jobs.db")

    @rd.task
    async def ends_at() -> float:
        return time.monotonic()

    async with rd, rd.worker():
        await asyncio.Event().wait()


def same_process_check(bench: Bench) -> Check:
    work = "enqueue → task start, idle, same process (p50)"
    here = bench.contest(
        work, {"both": Contestant("benchmarks.latency:same_process", {"size": bench.size(50, 10)})}, bench.rounds(3)
    )["both"]
    values = {"redrive": [pair[0] for pair in here], "two raw commits": [pair[1] for pair in here]}  # type: ignore[index]
    reached = statistics.median(a / b for a, b in zip(*values.values(), strict=True))
    return Check(6, work, reached, "≤", 1.2, "× two raw commits", _milliseconds(values), values)


def other_process_check(bench: Bench) -> Check:
    work = "enqueue in one process → task start in another, idle (p50)"
    given = {"size": bench.size(30, 5)}
    contestants = {
        "redrive": Contestant("benchmarks.latency:other_process", given),
        "raw": Contestant("benchmarks.latency_peers:raw_started", given),
        **{
            name: Contestant(f"benchmarks.latency_peers:{STARTED[name]}", given)
            for name in all_peers.installed()
            if name in STARTED
        },
    }
    values = bench.contest(work, contestants, bench.rounds(3))
    return Check(6, work, statistics.median(values["redrive"]), "≤", 3, "ms", _milliseconds(values), values, 1.5)


def result_check(bench: Bench) -> Check:
    work = "end of a task in one process → its result in another (p50)"
    given = {"size": bench.size(40, 5)}
    values = bench.contest(
        work, {"redrive": Contestant("benchmarks.latency:result_of_other_process", given)}, bench.rounds(3)
    )
    return Check(6, work, statistics.median(values["redrive"]), "≤", 3, "ms", _milliseconds(values), values, 1.5)


def _milliseconds(values: Values) -> dict[str, str]:
    return {name: f"{statistics.median(times):.2f} ms" for name, times in values.items()}


def row_6(bench: Bench) -> list[Check]:
    return [same_process_check(bench), other_process_check(bench), result_check(bench)]
