"""Rows 19 and 20: how fast processes without a replica enqueue and run jobs through a hub; what idle ones cost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks import fleet, peers_nats
from benchmarks.bench import Bench, Check, Contestant, environment, per_second, ratio
from benchmarks.nats_server import free_ports, nats
from redrive import Redrive
from redrive.errors import StoreError

IDLE_WORKERS = 32
PATIENCE = 30.0
LIMIT_MESSAGES = 6.0


@asynccontextmanager
async def hub(folder: Path, url: str, *, http: bool = False) -> AsyncIterator[str]:
    """A hub in a process of its own; the URL by which thin processes reach it."""
    (port,) = free_ports(1)
    serve = ["serve", "--no-worker", "--no-auth", "--port", str(port)]
    given = {"REDRIVE_URL": url, "REDRIVE_REPLICA_FOLDER": str(folder / "replica")}
    with (folder / "hub.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "redrive", *(serve if http else ["hub"])],
            env={**environment(), **given}, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}" if http else url
    finally:
        process.terminate()
        process.wait(PATIENCE)


@asynccontextmanager
async def thin(url: str) -> AsyncIterator[Redrive]:
    """An application without a replica, once a hub answers it."""
    rd = Redrive(url)

    @rd.task
    async def noop(n: int) -> int:
        return n

    until = time.monotonic() + PATIENCE
    while True:
        try:
            await rd.store.open()
            break
        except StoreError:  # the hub is starting
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
    async with rd:
        yield rd


@asynccontextmanager
async def through_a_hub(folder: Path, *, http: bool) -> AsyncIterator[Redrive]:
    with nats(folder) as (host,):
        async with hub(folder, f"nats://{host}/bench", http=http) as url, thin(url) as rd:
            yield rd


async def one_by_one(folder: Path, size: int, *, http: bool = False) -> float:
    async with through_a_hub(folder, http=http) as rd:
        return await fleet.enqueue_one_by_one(rd, size)


async def drained(folder: Path, size: int, *, http: bool = False) -> float:
    async with through_a_hub(folder, http=http) as rd:
        return await fleet.drain(rd, size)


async def messages_per_job(folder: Path, size: int, workers: int) -> float:
    """Messages that one job alone adds to the log, from its enqueue to its result, while many workers wait."""
    from nats.aio.client import Client

    with nats(folder) as (host,):
        client = Client()
        await client.connect(f"nats://{host}")
        async with hub(folder, f"nats://{host}/bench") as url, AsyncExitStack() as stack:
            apps = [await stack.enter_async_context(thin(url)) for _ in range(workers)]
            for rd in apps:
                await stack.enter_async_context(rd.worker())
            await _run_alone(apps[0], 3)
            before = await _last(client)
            await _run_alone(apps[0], size)
            added = await _last(client) - before
        await client.close()
    return added / size


async def _run_alone(rd: Redrive, size: int) -> None:
    for number in range(size):
        job = await rd.enqueue("noop", {"n": number})
        assert await job.result(timeout=PATIENCE) == number
        await asyncio.sleep(0.2)  # every worker waits again


async def _last(client: Any) -> int:
    return int((await client.jetstream().stream_info("RD_bench")).state.last_seq)


def row_19(bench: Bench) -> list[Check]:
    checks = []
    for verb, words, size, limit in (
        ("one_by_one", "enqueue one at a time", bench.size(1_000, 50), 0.7),
        ("drained", "drain of no-op async jobs", bench.size(10_000, 500), 1.5),
    ):
        work = f"thin process through a hub, {words}"
        given = {"size": size}
        contestants = {
            "over NATS": Contestant(f"benchmarks.thin:{verb}", given),
            "over HTTP": Contestant(f"benchmarks.thin:{verb}", {**given, "http": True}),
        }
        if peers_nats.installed():
            contestants["taskiq-nats"] = Contestant(f"benchmarks.peers_nats:{verb}", given)
        if verb == "one_by_one":
            contestants["bare hop"] = Contestant("benchmarks.raw_hop:one_by_one", given)
        values = bench.contest(work, contestants, bench.rounds(3))
        reached = ratio(values, "over NATS", "taskiq-nats")
        checks.append(Check(19, work, reached, "≥", limit, "× taskiq-nats", per_second(values), values))
        if "bare hop" in values:
            hop = ratio(values, "bare hop", "taskiq-nats")
            checks.append(Check(19, "a bare hop of nats-py, for comparison", hop, "≥", None, "× taskiq-nats", {}))
        by_http = ratio(values, "over HTTP", "taskiq-nats")
        checks.append(Check(19, "the same over HTTP", by_http, "≥", None, "× taskiq-nats", {}))
    return checks


def row_20(bench: Bench) -> list[Check]:
    workers = bench.size(IDLE_WORKERS, 4)
    work = f"messages in the log per lone job, {workers} idle thin workers"
    given = {"size": bench.size(30, 5), "workers": workers}
    values = bench.contest(work, {"redrive": Contestant("benchmarks.thin:messages_per_job", given)}, bench.rounds(2))
    reached = max(values["redrive"])
    return [Check(20, work, reached, "≤", LIMIT_MESSAGES, "messages", {"redrive": f"{reached:.1f}"}, values)]
