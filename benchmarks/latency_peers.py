"""Row 6 for raw SQLite and the other queues: from an enqueue in one process to the start of the work in another."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks import fleet_postgres, peers, peers_nats, raw
from benchmarks.bench import command, environment
from benchmarks.postgres import postgres

ASK_SECONDS = 0.001
"""How often those are asked for work that tell nobody when there is some."""
WARM_UP = 5
PATIENCE = 60.0


class Late:
    """How late each job was, in seconds; it knows when there are enough."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seconds: list[float] = []
        self.enough = asyncio.Event()

    def add(self, at: float) -> None:
        self.seconds.append(time.monotonic() - at)
        if len(self.seconds) == self.size + WARM_UP:
            self.enough.set()

    @property
    def milliseconds(self) -> float:
        """The median of those that count."""
        return statistics.median(self.seconds[WARM_UP:]) * 1e3

    async def wait(self) -> float:
        async with asyncio.timeout(PATIENCE + self.size):
            await self.enough.wait()
        return self.milliseconds


@contextmanager
def producing(function: str, folder: Path, size: int, **given: object) -> Iterator[None]:
    """Another process enqueues meanwhile, at moments that have nothing to do with the worker's rhythm."""
    run = command(function, folder, {"size": size + WARM_UP, **given})
    process = subprocess.Popen(run, env=environment(), stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def moments(size: int) -> Iterator[float]:
    """The time at which each job is handed in."""
    for _ in range(size):
        time.sleep(random.uniform(0.03, 0.08))
        yield time.monotonic()


async def moments_awaited(size: int) -> AsyncIterator[float]:
    for _ in range(size):
        await asyncio.sleep(random.uniform(0.03, 0.08))
        yield time.monotonic()


def _asked(folder: Path, size: int, producer: str, take: Callable[[], float | None]) -> float:
    """Ask for work every millisecond, without an event loop."""
    late, until = Late(size), time.monotonic() + PATIENCE + size
    with producing(f"benchmarks.latency_peers:{producer}", folder, size):
        while not late.enough.is_set():
            assert time.monotonic() < until, f"{len(late.seconds)} of {size} jobs came"
            at = take()
            if at is None:
                time.sleep(ASK_SECONDS)
            else:
                late.add(at)
    return late.milliseconds


# -- raw


def raw_started(folder: Path, size: int) -> float:
    connection = raw.open_file(folder / "raw.db")

    def take() -> float | None:
        if not connection.execute("SELECT 1 FROM jobs WHERE queue = 'q' AND state = 'waiting' LIMIT 1").fetchone():
            return None
        ((_, payload),) = raw.claim(connection, 1)
        return float(json.loads(payload)["at"])

    return _asked(folder, size, "raw_produced", take)


def raw_produced(folder: Path, size: int) -> None:
    connection = raw.open_file(folder / "raw.db")
    for at in moments(size):
        connection.execute(raw.INSERT, (json.dumps({"at": at}), time.time()))


# -- on SQLite


def huey_started(folder: Path, size: int) -> float:
    taken: list[float] = []
    huey, _ = peers.huey_with(folder, taken.append)

    def take() -> float | None:
        task = huey.dequeue()
        if task is not None:
            huey.execute(task)
        return taken.pop() if taken else None

    return _asked(folder, size, "huey_produced", take)


def huey_produced(folder: Path, size: int) -> None:
    _, task = peers.huey_with(folder, lambda at: None)
    for at in moments(size):
        task(at)


def litequeue_started(folder: Path, size: int) -> float:
    queue = peers.litequeue_on(folder, "FULL")

    def take() -> float | None:
        message = queue.pop()
        return None if message is None else float(message.data)

    return _asked(folder, size, "litequeue_produced", take)


def litequeue_produced(folder: Path, size: int) -> None:
    queue = peers.litequeue_on(folder, "FULL")
    for at in moments(size):
        queue.put(str(at))


# -- on servers


@asynccontextmanager
async def _running(work: Any) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 5)


async def pgqueuer_started(folder: Path, size: int) -> float:
    from pgqueuer import PgQueuer

    late = Late(size)
    with postgres(folder, synced=True) as url:
        connection, _ = await fleet_postgres.pgqueuer_on(url)
        queue = PgQueuer.from_asyncpg_connection(connection)

        async def noop(job: Any) -> None:
            late.add(float(job.payload))

        queue.entrypoint("noop")(noop)
        with producing("benchmarks.latency_peers:pgqueuer_produced", folder, size, url=url):
            async with _running(queue.run()):
                return await late.wait()


async def pgqueuer_produced(folder: Path, size: int, url: str) -> None:
    connection, queries = await fleet_postgres.pgqueuer_on(url, install=False)
    async for at in moments_awaited(size):
        await queries.enqueue("noop", str(at).encode())
    await connection.close()


async def procrastinate_started(folder: Path, size: int) -> float:
    late = Late(size)
    with postgres(folder, synced=True) as url:
        app, _ = fleet_postgres.procrastinate_on(url, late.add)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            with producing("benchmarks.latency_peers:procrastinate_produced", folder, size, url=url):
                async with _running(app.run_worker_async(install_signal_handlers=False)):
                    return await late.wait()


async def procrastinate_produced(folder: Path, size: int, url: str) -> None:
    app, noop = fleet_postgres.procrastinate_on(url, lambda at: None)
    async with app.open_async():
        async for at in moments_awaited(size):
            await noop.defer_async(n=at)


async def taskiq_started(folder: Path, size: int) -> float:
    late = Late(size)
    async with peers_nats.broker(folder, synced=True, did=late.add) as (made, _):
        (host,) = made.servers
        with producing("benchmarks.latency_peers:taskiq_produced", folder, size, url=host):
            async with peers_nats.receiving(made):
                return await late.wait()


async def taskiq_produced(folder: Path, size: int, url: str) -> None:
    broker, noop = peers_nats.broker_on(url, lambda at: None)
    await broker.startup()
    async for at in moments_awaited(size):
        await noop.kiq(at)
    await broker.shutdown()


STARTED = {
    "huey": "huey_started",
    "litequeue": "litequeue_started",
    "pgqueuer": "pgqueuer_started",
    "procrastinate": "procrastinate_started",
    "taskiq-nats": "taskiq_started",
}
