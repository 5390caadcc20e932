"""Row 7: a million jobs that wait or are scheduled cost those that run nothing."""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import CONCURRENCY, Bench, Check, child
from redrive import GiveUp, Redrive
from redrive.core.store import Wanted

SMALL = 1_000
LISTED = 100
CLAIMED = 10
"""Per claim; the small backlog has work until the end."""
CLAIMS = 40
WARM_UP = 5
RUN = 20_000
"""Jobs that the worker runs while its memory is watched."""


def _app(path: Path) -> Redrive:
    rd = Redrive(path)

    @rd.task
    async def noop(n: int) -> int:
        return n

    @rd.task
    async def refuse(n: int) -> int:
        raise GiveUp(f"number {n} is not wanted")

    return rd


def _chunks(size: int) -> Iterator[list[dict[str, int]]]:
    for first in range(0, size, 10_000):
        yield [{"n": number} for number in range(first, min(first + 10_000, size))]


async def _fill(path: Path, size: int, dead: int) -> None:
    """Half is due, half is scheduled for tomorrow, in one queue; dead letters beside them."""
    async with _app(path) as rd:
        for chunk in _chunks(dead):
            await rd.enqueue_many("refuse", chunk)
        await rd.drain(concurrency=CONCURRENCY)
        for chunk in _chunks(size // 2):
            await rd.enqueue_many("noop", chunk)
        for chunk in _chunks(size // 2):
            await rd.enqueue_many("noop", chunk, delay=86_400)


async def fill(folder: Path, size: int, dead: int) -> float:
    begun = time.perf_counter()
    await _fill(folder / "large.db", size, dead)
    return time.perf_counter() - begun


async def listing(folder: Path, times: int) -> float:
    """The median of listing the newest hundred dead letters, in ms."""
    taken = []
    async with _app(folder / "large.db") as rd:
        for _ in range(times + 2):
            begun = time.perf_counter()
            page = await rd.dead.list(limit=LISTED)
            taken.append(time.perf_counter() - begun)
            assert len(page.jobs) == LISTED
    return statistics.median(taken[2:]) * 1e3


async def memory(folder: Path, run: int) -> float:
    """The largest resident size, in MB, of a worker that runs jobs in front of the backlog."""
    rd = Redrive(folder / "large.db")
    ran = 0
    enough = asyncio.Event()

    @rd.task
    async def noop(n: int) -> int:
        nonlocal ran
        ran += 1
        if ran >= run:
            enough.set()
        return n

    async with rd, rd.worker(concurrency=CONCURRENCY):
        await enough.wait()
    return peak_megabytes()


def peak_megabytes() -> float:
    """Of this process alone: on Linux ru_maxrss begins with the size of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


async def claims(folder: Path) -> list[float]:
    """The median cost of a claim with a small and with the large backlog, in µs, measured in turn."""
    with tempfile.TemporaryDirectory(dir=folder) as small:
        await _fill(Path(small) / "small.db", SMALL, 0)
        async with _app(Path(small) / "small.db") as few, _app(folder / "large.db") as lots:
            taken: tuple[list[float], list[float]] = ([], [])
            for turn in range(CLAIMS):
                for rd, times in list(zip((few, lots), taken, strict=True))[:: -1 if turn % 2 else 1]:
                    times.append(await _claim(rd))
            await _give_back(lots)
    return [statistics.median(times[WARM_UP:]) * 1e6 for times in taken]


async def _claim(rd: Redrive) -> float:
    wanted = Wanted(CLAIMED, frozenset({"noop"}))
    begun = time.perf_counter()
    claim = await rd.store.claim(wanted, "benchmark", time.time())
    seconds = time.perf_counter() - begun
    assert len(claim.jobs) == CLAIMED, f"{len(claim.jobs)} of {CLAIMED} claimed"
    return seconds


async def _give_back(rd: Redrive) -> None:
    """What was claimed is cancelled, so that the next round does not find the jobs of a dead worker."""
    while page := (await rd.jobs.list(state="running")).jobs:
        for job in page:
            await rd.jobs.cancel(job.id)


def row_7(bench: Bench) -> list[Check]:
    size, dead = bench.size(1_000_000, 100_000), bench.size(10_000, 500)
    with tempfile.TemporaryDirectory(dir=bench.folder) as name:
        folder = Path(name)

        def run(function: str, **arguments: Any) -> Any:
            return child(f"benchmarks.backlog:{function}", folder, arguments)

        found = bench.stages(
            f"{size:,} waiting or scheduled",
            {
                "filling": lambda: run("fill", size=size, dead=dead),
                "listing dead letters": lambda: [run("listing", times=bench.size(50, 10))],
                "a worker's memory": lambda: [run("memory", run=bench.size(RUN, 5_000))],
                **{f"claims {n + 1}": lambda: run("claims") for n in range(bench.rounds())},
            },
        )
    pairs = [found[f"claims {n + 1}"] for n in range(bench.rounds())]
    few, lots = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    reached = statistics.median(b / a for a, b in zip(few, lots, strict=True))
    said = {f"at {size:,}": f"{statistics.median(lots):.0f} µs", f"at {SMALL:,}": f"{statistics.median(few):.0f} µs"}
    return [
        Check(7, f"claim with {size:,} waiting or scheduled", reached, "≤", 1.5, f"× at {SMALL:,}", said,
              {f"at {size:,}": lots, f"at {SMALL:,}": few}),
        _alone(f"list of {LISTED} dead letters at {size:,} jobs", found["listing dead letters"], 20, "ms"),
        _alone(f"a worker's memory at {size:,} jobs", found["a worker's memory"], 150, "MB"),
    ]  # fmt: skip


def _alone(work: str, values: list[float], limit: float, unit: str) -> Check:
    return Check(7, work, values[0], "<", limit, unit, {"redrive": f"{values[0]:.1f} {unit}"}, {"redrive": values})
