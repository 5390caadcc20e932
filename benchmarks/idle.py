"""Row 26: what a worker costs that has nothing to do, as the system counts it for its process."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, Check, Contestant, amount
from benchmarks.worker_processes import workers
from redrive import Redrive

STATUS = Path("/proc/self/schedstat")
"""Where it is missing (elsewhere than on Linux) nothing can be measured."""
SETTLED_SECONDS = 2.0
"""What starting needs does not count."""


@dataclass(frozen=True)
class Counted:
    """What a process and all its threads have used so far."""

    seconds: float
    wake_ups: int
    written: int
    """Bytes handed to the disk."""

    def __sub__(self, other: Counted) -> Counted:
        return Counted(self.seconds - other.seconds, self.wake_ups - other.wake_ups, self.written - other.written)


def counted(pid: int | str = "self") -> Counted:
    process = Path(f"/proc/{pid}")
    threads = list((process / "task").iterdir())
    spent = sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9
    waits = sum(int(_field(one / "status", "voluntary_ctxt_switches")) for one in threads)
    return Counted(spent, waits, int(_field(process / "io", "write_bytes")))


def _field(path: Path, name: str) -> str:
    return next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:")).split()[1]


async def measured(folder: Path, seconds: float, beside: int = 0, settled: float = SETTLED_SECONDS) -> dict[str, float]:
    """Per second, of a worker process that is idle, while so many other workers of the file are, too."""
    await _filled(folder)
    with workers(folder / "jobs.db", 1 + beside) as (pid, *_):
        await asyncio.sleep(settled)
        begun, before = time.perf_counter(), counted(pid)
        await asyncio.sleep(seconds)
        used, taken = counted(pid) - before, time.perf_counter() - begun
    return {
        "wake-ups": used.wake_ups / taken,
        "CPU": used.seconds / taken * 1e3,
        "written": used.written / taken / 1e3,
    }


async def _filled(folder: Path) -> None:
    """A store that was used: idle, and not new."""
    rd = Redrive(folder / "jobs.db")

    @rd.task
    async def noop(n: int) -> int:
        return n

    async with rd:
        await rd.enqueue_many("noop", [{"n": number} for number in range(100)])
        await rd.drain()


def row_26(bench: Bench) -> list[Check]:
    work = "an idle worker process"
    if not STATUS.exists():
        return [Check(26, work, None, "≤", None, "", {})]
    given = {"seconds": bench.size(4, 1), "settled": SETTLED_SECONDS if not bench.quick else 0.2}
    contestants = {
        name: Contestant("benchmarks.idle:measured", {**given, "beside": beside})
        for name, beside in (("alone", 0), ("beside another", 1))
    }
    found: Mapping[str, list[Any]] = bench.contest(work, contestants, bench.rounds(3))
    return [
        _of_all("wake-ups", f"{work}, wake-ups per second", "/s", found),
        _of_all("CPU", f"{work}, processor time per second", "ms/s", found),
        _of_all("written", f"{work}, written to disk per second", "KB/s", found),
    ]


def _of_all(name: str, work: str, unit: str, found: Mapping[str, list[Any]]) -> Check:
    values = {who: [one[name] for one in rounds] for who, rounds in found.items()}
    said = {who: f"{amount(statistics.median(taken))} {unit}" for who, taken in values.items()}
    return Check(26, work, statistics.median(values["alone"]), "≤", None, unit, said, values)
