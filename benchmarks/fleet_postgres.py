"""Row 22: redrive on PostgreSQL beside pgqueuer and procrastinate. Measured and said, without a promise."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import fleet
from benchmarks.bench import Bench, Check, Contestant, per_second, ratio
from benchmarks.postgres import postgres
from redrive import Redrive
from tests import postgres_server

PROMISES = {
    "pgqueuer": (
        "asyncpg, `PgQueuer.run(mode=drain)` with batches of 100; a finished job's row moves to a log table, results"
        " are not stored; retries only where the task asks for them."
    ),
    "procrastinate": (
        "`PsycopgConnector`, `run_worker_async(wait=False, concurrency=100)`; each job is fetched and finished by a"
        " statement of its own, results are not stored; retries, schedules and priorities."
    ),
}


TOGETHER = 100
"""Jobs per commit."""


def installed() -> list[str]:
    """Those that can be measured here."""
    if postgres_server.binaries() is None:
        return []
    return [name for name in PROMISES if importlib.util.find_spec(name) is not None]


async def redrive_enqueued(folder: Path, size: int, *, synced: bool = False) -> float:
    with postgres(folder, synced=synced) as url:
        async with _app(folder, url) as rd:
            return await fleet.enqueue_one_by_one(rd, size)


async def redrive_drained(folder: Path, size: int, *, synced: bool = False) -> float:
    with postgres(folder, synced=synced) as url:
        async with _app(folder, url) as rd:
            return await fleet.drain(rd, size)


def _app(folder: Path, url: str) -> Redrive:
    rd = Redrive(url, replica_folder=str(folder / "replica"))

    @rd.task
    async def noop(n: int) -> int:
        return n

    return rd


async def pgqueuer_enqueued(folder: Path, size: int, *, synced: bool = False) -> float:
    with postgres(folder, synced=synced) as url:
        connection, queries = await pgqueuer_on(url)
        await queries.enqueue("noop", b"{}")
        begun = time.perf_counter()
        for number in range(size):
            await queries.enqueue("noop", json.dumps({"n": number}).encode())
        seconds = time.perf_counter() - begun
        await connection.close()
    return size / seconds


async def pgqueuer_enqueued_many(folder: Path, size: int, *, synced: bool = False) -> float:
    with postgres(folder, synced=synced) as url:
        connection, queries = await pgqueuer_on(url)
        await queries.enqueue("noop", b"{}")
        begun = time.perf_counter()
        for first in range(0, size, TOGETHER):
            payloads = [json.dumps({"n": first + number}).encode() for number in range(TOGETHER)]
            await queries.enqueue(["noop"] * TOGETHER, payloads, [0] * TOGETHER)
        seconds = time.perf_counter() - begun
        await connection.close()
    return size / seconds


async def pgqueuer_drained(folder: Path, size: int, *, synced: bool = False) -> float:
    from pgqueuer import PgQueuer
    from pgqueuer.types import QueueExecutionMode

    done: list[int] = []
    with postgres(folder, synced=synced) as url:
        connection, queries = await pgqueuer_on(url)
        payloads = [json.dumps({"n": number}).encode() for number in range(size)]
        await queries.enqueue(["noop"] * size, payloads, [0] * size)
        queue = PgQueuer.from_asyncpg_connection(connection)

        async def noop(job: Any) -> None:
            done.append(json.loads(job.payload)["n"])

        queue.entrypoint("noop")(noop)
        begun = time.perf_counter()
        await queue.run(mode=QueueExecutionMode.drain, batch_size=100)
        seconds = time.perf_counter() - begun
        await connection.close()
    assert len(done) == size, f"{len(done)} of {size} jobs done"
    return size / seconds


async def pgqueuer_on(url: str, *, install: bool = True) -> tuple[Any, Any]:
    """A connection, and its queries; with new tables."""
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    if install:
        await queries.install()
    return connection, queries


async def procrastinate_enqueued(folder: Path, size: int, *, synced: bool = False) -> float:
    with postgres(folder, synced=synced) as url:
        app, noop = procrastinate_on(url, lambda n: None)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await noop.defer_async(n=0)
            begun = time.perf_counter()
            for number in range(size):
                await noop.defer_async(n=number)
            return size / (time.perf_counter() - begun)


async def procrastinate_enqueued_many(folder: Path, size: int, *, synced: bool = False) -> float:
    with postgres(folder, synced=synced) as url:
        app, noop = procrastinate_on(url, lambda n: None)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await noop.defer_async(n=0)
            begun = time.perf_counter()
            for first in range(0, size, TOGETHER):
                await noop.batch_defer_async(*({"n": first + number} for number in range(TOGETHER)))
            return size / (time.perf_counter() - begun)


async def procrastinate_failed(folder: Path, size: int, attempts: int, *, synced: bool = False) -> float:
    with postgres(folder, synced=synced) as url:
        app, _ = procrastinate_on(url, lambda n: None)
        made: list[int] = []

        async def fail(n: int) -> None:
            made.append(n)
            raise ValueError(f"number {n} is not possible")

        task = app.task(name="fail", retry=attempts - 1)(fail)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await task.batch_defer_async(*({"n": number} for number in range(size)))
            begun = time.perf_counter()
            while len(made) < size * attempts:
                await app.run_worker_async(wait=False, concurrency=100, install_signal_handlers=False)
            seconds = time.perf_counter() - begun
    assert len(made) == size * attempts, f"{len(made)} attempts for {size} jobs"
    return len(made) / seconds


async def procrastinate_drained(folder: Path, size: int, *, synced: bool = False) -> float:
    with postgres(folder, synced=synced) as url:
        done: list[int] = []
        app, noop = procrastinate_on(url, done.append)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await noop.batch_defer_async(*({"n": number} for number in range(size)))
            begun = time.perf_counter()
            await app.run_worker_async(wait=False, concurrency=100, install_signal_handlers=False)
            seconds = time.perf_counter() - begun
    assert len(done) == size, f"{len(done)} of {size} jobs done"
    return size / seconds


def procrastinate_on(url: str, did: Callable[[Any], object]) -> tuple[Any, Any]:
    """An app, and its task, which does nothing but to tell that it ran."""
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url))

    async def noop(n: Any) -> None:
        did(n)

    return app, app.task(name="noop")(noop)


def row_22(bench: Bench) -> list[Check]:
    checks = []
    for verb, words, size in (
        ("enqueued", "enqueue one at a time", bench.size(500, 50)),
        ("drained", "drain of no-op async jobs", bench.size(1_000, 50)),
    ):
        work = f"PostgreSQL, {words}"
        if postgres_server.binaries() is None:
            checks.append(Check(22, work, None, "≥", None, "× pgqueuer", {}))
            continue
        names = ["redrive", *installed()]
        contestants = {name: Contestant(f"benchmarks.fleet_postgres:{name}_{verb}", {"size": size}) for name in names}
        values = bench.contest(work, contestants, bench.rounds(2))
        for name in installed():
            first = name == installed()[0]
            checks.append(
                Check(
                    22, work if first else "the same", ratio(values, "redrive", name), "≥", None, f"× {name}",
                    per_second(values) if first else {}, values if first else {},
                )
            )  # fmt: skip
    return checks
