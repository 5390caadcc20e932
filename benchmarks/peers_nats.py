"""Measures taskiq-nats on the same servers."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.accepting import CALLERS
from benchmarks.nats_server import nats

PROMISES = {
    "taskiq-nats": (
        "`PullBasedJetStreamBroker` on a file stream, 100 messages per fetch, taskiq's own receiver with 1,000 tasks at"
        " once, messages acknowledged when the task has ended, results not stored. A message whose worker dies comes"
        " again after 30 s; a retry is a new message; no dead letters, schedules or priorities."
    ),
}


def installed() -> bool:
    return importlib.util.find_spec("taskiq_nats") is not None


@asynccontextmanager
async def broker(
    folder: Path, *, synced: bool = False, done: list[int] | None = None
) -> AsyncIterator[tuple[Any, Any]]:
    """taskiq's broker on a new server, and a task that does nothing."""
    from nats.js.api import ConsumerConfig
    from taskiq_nats import PullBasedJetStreamBroker

    with nats(folder, synced=synced) as (host,):
        made = PullBasedJetStreamBroker(
            [f"nats://{host}"], pull_consume_batch=100, pull_consume_timeout=1,
            consumer_config=ConsumerConfig(durable_name="taskiq_durable", max_ack_pending=100_000),
        )  # fmt: skip

        async def noop(n: int) -> int:
            if done is not None:
                done.append(n)
            return n

        task = made.register_task(noop, "noop")
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


async def drained(folder: Path, size: int, *, synced: bool = False) -> float:
    from taskiq.receiver import Receiver

    done: list[int] = []
    async with broker(folder, synced=synced, done=done) as (made, noop):
        for first in range(0, size, CALLERS):
            await asyncio.gather(*(noop.kiq(number) for number in range(first, first + CALLERS)))
        receiver = Receiver(made, ThreadPoolExecutor(1), max_async_tasks=1_000, max_prefetch=1_000, run_startup=False)
        begun = time.perf_counter()
        listening = asyncio.ensure_future(receiver.listen(asyncio.Event()))
        while len(done) < size or (await made.consumer.consumer_info()).num_ack_pending:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - begun
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert len(done) == size, f"{len(done)} of {size} tasks done"
    return size / seconds
