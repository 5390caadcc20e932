"""Measures taskiq-nats on the same servers."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import CALLERS
from benchmarks.nats_server import find_server, nats

PROMISES = {
    "taskiq-nats": (
        "`PullBasedJetStreamBroker` on a file stream, 100 messages per fetch, taskiq's own receiver with 1,000 tasks at"
        " once, messages acknowledged when the task has ended, results not stored. A message whose worker dies comes"
        " again after 30 s; a retry is a new message; no dead letters, schedules or priorities."
    ),
}


def installed() -> bool:
    return importlib.util.find_spec("taskiq_nats") is not None and find_server() is not None


def broker_on(url: str, did: Callable[[Any], object]) -> tuple[Any, Any]:
    """taskiq's broker, and a task that does nothing but to tell that it ran."""
    from nats.js.api import ConsumerConfig
    from taskiq_nats import PullBasedJetStreamBroker

    made = PullBasedJetStreamBroker(
        [url], pull_consume_batch=100, pull_consume_timeout=1,
        consumer_config=ConsumerConfig(durable_name="taskiq_durable", max_ack_pending=100_000),
    )  # fmt: skip

    async def noop(n: Any) -> Any:
        did(n)
        return n

    return made, made.register_task(noop, "noop")


@asynccontextmanager
async def broker(
    folder: Path, *, synced: bool = False, did: Callable[[Any], object] = lambda n: None
) -> AsyncIterator[tuple[Any, Any]]:
    """The same on a new server."""
    with nats(folder, synced=synced) as (host,):
        made, task = broker_on(f"nats://{host}", did)
        await made.startup()
        try:
            yield made, task
        finally:
            await made.shutdown()


async def one_by_one(folder: Path, size: int, *, synced: bool = False) -> float:
    async with broker(folder, synced=synced) as (_, noop):
        for number in range(10):
            await noop.kiq(number)
        begun = time.perf_counter()
        for number in range(size):
            await noop.kiq(number)
        return size / (time.perf_counter() - begun)


async def by_callers(folder: Path, size: int, *, synced: bool = False) -> float:
    async with broker(folder, synced=synced) as (_, noop):

        async def caller(count: int) -> None:
            for number in range(count):
                await noop.kiq(number)

        await asyncio.gather(*(caller(1) for _ in range(CALLERS)))
        begun = time.perf_counter()
        await asyncio.gather(*(caller(size // CALLERS) for _ in range(CALLERS)))
        return size / (time.perf_counter() - begun)


async def failed(folder: Path, size: int, attempts: int, *, synced: bool = False) -> float:
    """Attempts per second: the middleware of taskiq sends a failed task again, at once, until it gives up."""
    from taskiq import SimpleRetryMiddleware

    made: list[int] = []

    async def fail(n: int) -> None:
        made.append(n)
        raise ValueError(f"number {n} is not possible")

    async with broker(folder, synced=synced) as (bare, _):
        using = bare.with_middlewares(SimpleRetryMiddleware())
        task = using.register_task(fail, "fail", retry_on_error=True, max_retries=attempts)
        for first in range(0, size, CALLERS):
            await asyncio.gather(*(task.kiq(number) for number in range(first, min(size, first + CALLERS))))
        begun = time.perf_counter()
        async with receiving(using):
            while len(made) < size * attempts or (await using.consumer.consumer_info()).num_ack_pending:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            seconds = time.perf_counter() - begun
    assert len(made) == size * attempts, f"{len(made)} attempts for {size} jobs"
    return len(made) / seconds


@asynccontextmanager
async def receiving(broker: Any) -> AsyncIterator[None]:
    """taskiq's own receiver takes messages and runs their tasks."""
    from taskiq.receiver import Receiver

    receiver = Receiver(broker, ThreadPoolExecutor(1), max_async_tasks=1_000, max_prefetch=1_000, run_startup=False)
    listening = asyncio.ensure_future(receiver.listen(asyncio.Event()))
    try:
        yield
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def drained(folder: Path, size: int, *, synced: bool = False) -> float:
    done: list[int] = []
    async with broker(folder, synced=synced, did=done.append) as (made, noop):
        for first in range(0, size, CALLERS):
            await asyncio.gather(*(noop.kiq(number) for number in range(first, min(size, first + CALLERS))))
        begun = time.perf_counter()
        async with receiving(made):
            while len(done) < size or (await made.consumer.consumer_info()).num_ack_pending:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            seconds = time.perf_counter() - begun
    assert len(done) == size, f"{len(done)} of {size} tasks done"
    return size / seconds
