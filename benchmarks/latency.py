"""Row 6: from enqueue to the start of the task while nothing else happens."""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks import raw
from benchmarks.bench import Bench, Check, Contestant, command, environment
from redrive import Redrive

IDLE_SECONDS = 0.03
WARM_UP = 5


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
    late: list[float] = []
    enough = asyncio.Event()

    @rd.task
    async def noop(at: float) -> None:
        late.append(time.monotonic() - at)
        if len(late) == WARM_UP + size:
            enough.set()

    async with rd, rd.worker():
        function = "benchmarks.latency:produce"
        producer = subprocess.Popen(command(function, folder, {"size": WARM_UP + size}), env=environment())
        try:
            async with asyncio.timeout(60 + size):
                await enough.wait()
        finally:
            producer.kill()
            producer.wait()
    return statistics.median(late[WARM_UP:]) * 1e3


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


async def produce(folder: Path, size: int) -> None:
    """One job at a time, at moments that have nothing to do with the worker's rhythm."""
    async with Redrive(folder / "jobs.db") as rd:
        for _ in range(size):
            await asyncio.sleep(random.uniform(0.05, 0.15))
            await rd.enqueue("noop", {"at": time.monotonic()})


def row_6(bench: Bench) -> list[Check]:
    work = "enqueue → task start, idle, same process (p50)"
    here = bench.contest(
        work, {"both": Contestant("benchmarks.latency:same_process", {"size": bench.size(100, 30)})}, bench.rounds(3)
    )["both"]
    values = {"redrive": [pair[0] for pair in here], "two raw commits": [pair[1] for pair in here]}  # type: ignore[index]
    reached = statistics.median(a / b for a, b in zip(*values.values(), strict=True))
    said = {name: f"{statistics.median(times):.2f} ms" for name, times in values.items()}
    work_2 = "the same from another process (p50)"
    far = bench.contest(
        work_2, {"redrive": Contestant("benchmarks.latency:other_process", {"size": bench.size(100, 20)})}, 1
    )
    p50 = statistics.median(far["redrive"])
    work_3 = "task end → its result in another process (p50)"
    back = bench.contest(
        work_3, {"redrive": Contestant("benchmarks.latency:result_of_other_process", {"size": bench.size(100, 20)})}, 1
    )
    back_p50 = statistics.median(back["redrive"])
    return [
        Check(6, work, reached, "≤", 1.2, "× two raw commits", said, values),
        Check(6, work_2, p50, "≤", 60, "ms", {"redrive": f"{p50:.1f} ms"}, far),
        Check(6, work_3, back_p50, "≤", 60, "ms", {"redrive": f"{back_p50:.1f} ms"}, back),
    ]
