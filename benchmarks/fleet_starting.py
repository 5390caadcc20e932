"""Row 21: how long a new hub takes to open on a log with many jobs, and a thin worker to run its first; with memory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.backlog import peak_megabytes
from benchmarks.bench import Bench, Check, Contestant, child
from benchmarks.nats_server import nats
from benchmarks.thin import hub, thin
from redrive import Redrive

TOGETHER = 20_000


async def measured(folder: Path, size: int) -> dict[str, Any]:
    """Snapshot, hub and thin worker, one after the other on one server, each in a process of its own."""

    async def other(function: str, **given: object) -> Any:
        return await asyncio.to_thread(child, f"benchmarks.fleet_starting:{function}", folder, {"url": url, **given})

    with nats(folder) as (host,):
        url = f"nats://{host}/bench?max_bytes=8GB&snapshot_bytes=8GB"
        found = {"snapshot": await other("filled", size=size), "hub": await other("opened")}
        async with hub(folder, url), thin(url):
            found["worker"] = await other("started")
    return found


async def filled(folder: Path, url: str, size: int) -> float:
    """Fill a log with waiting jobs and store a snapshot of them; the seconds of the snapshot."""
    from redrive.stores.replica.jetstream import JetStreamLog
    from redrive.stores.replica.store import ReplicaStore

    path = folder / "first"
    async with Redrive(url, replica=True, replica_folder=str(path)) as rd:
        for first in range(0, size, TOGETHER):
            await rd.enqueue_many("noop", [{"n": number} for number in range(first, min(size, first + TOGETHER))])
    store = ReplicaStore(next(path.glob("*.db")), lambda: JetStreamLog(url))
    engine = await store._ready()
    begun = time.perf_counter()
    await engine.call(engine.snapshots.make)
    seconds = time.perf_counter() - begun
    await store.close()
    return seconds


async def opened(folder: Path, url: str) -> list[float]:
    """Open a hub with an empty folder: its seconds, and its largest resident size in MB."""
    begun = time.perf_counter()
    async with Redrive(url, replica=True, replica_folder=str(folder / "second")):
        return [time.perf_counter() - begun, peak_megabytes()]


async def started(folder: Path, url: str) -> list[float]:
    """Start a thin worker: the seconds until its first job has begun, and its largest resident size in MB."""
    ran = asyncio.Event()
    begun = time.perf_counter()
    rd = Redrive(url)

    @rd.task
    async def noop(n: int) -> int:
        ran.set()
        return n

    async with rd, rd.worker():
        await ran.wait()
        return [time.perf_counter() - begun, peak_megabytes()]


def row_21(bench: Bench) -> list[Check]:
    jobs = 1_000_000 if bench.large else bench.size(100_000, 1_000)
    work = f"new hub on a log with {jobs:,} jobs, open from its snapshot"
    contestant = Contestant("benchmarks.fleet_starting:measured", {"size": jobs})
    found = bench.stages(work, {"hub and thin worker": lambda: bench.once(contestant)})["hub and thin worker"]
    (hub_seconds, hub_memory), (worker_seconds, worker_memory) = found["hub"], found["worker"]
    said = {"memory": f"{hub_memory:.0f} MB", "snapshot made in": f"{found['snapshot']:.1f} s"}
    values = {name: found[name] for name in ("hub", "worker")}
    return [
        Check(21, work, hub_seconds, "≤", None, "s", said, values),
        Check(
            21, "thin worker, start to first job", worker_seconds, "≤", None, "s",
            {"memory": f"{worker_memory:.0f} MB"},
        ),
    ]  # fmt: skip
