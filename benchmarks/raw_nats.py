"""Measures what a careful person writes by hand with nats-py: the limit that a fleet on JetStream is measured against.

One file stream, JSON payloads, acknowledged publishes, a durable pull consumer whose messages are acknowledged one by
one. No ids, schedules, priorities, results, history, retries or tasks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import CALLERS
from benchmarks.nats_server import nats

BATCH = 200
"""Messages per fetch. Other numbers were not tried."""
PENDING = 1_000
"""How many publishes of a bulk wait for their acknowledgement."""
SUBJECT = "raw"


@asynccontextmanager
async def stream(folder: Path, *, synced: bool, nodes: int) -> AsyncIterator[Any]:
    """A server with one empty stream; yields nats-py's JetStream context."""
    from nats.aio.client import Client
    from nats.js.errors import Error

    with nats(folder, synced=synced, nodes=nodes) as hosts:
        client = Client()
        await client.connect([f"nats://{host}" for host in hosts])
        js = client.jetstream(publish_async_max_pending=PENDING)
        until = time.monotonic() + 30
        while True:
            try:
                await js.add_stream(name="RAW", subjects=[SUBJECT], num_replicas=nodes)
                break
            except (Error, TimeoutError):  # the cluster has no leader yet
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)
        try:
            yield js
        finally:
            await client.close()


def message(number: int) -> bytes:
    return json.dumps({"n": number}).encode()


async def one_by_one(folder: Path, size: int, *, synced: bool = False, nodes: int = 1) -> float:
    """`await js.publish(...)`, each before the next."""
    async with stream(folder, synced=synced, nodes=nodes) as js:
        for number in range(10):
            await js.publish(SUBJECT, message(number))
        begun = time.perf_counter()
        for number in range(size):
            await js.publish(SUBJECT, message(number))
        return size / (time.perf_counter() - begun)


async def by_callers(folder: Path, size: int, *, synced: bool = False, nodes: int = 1) -> float:
    """100 coroutines, each of which awaits its own acknowledgement before it publishes again."""
    async with stream(folder, synced=synced, nodes=nodes) as js:

        async def caller(count: int) -> None:
            for number in range(count):
                await js.publish(SUBJECT, message(number))

        await asyncio.gather(*(caller(1) for _ in range(CALLERS)))
        begun = time.perf_counter()
        await asyncio.gather(*(caller(size // CALLERS) for _ in range(CALLERS)))
        return size / (time.perf_counter() - begun)


async def many(folder: Path, size: int, *, synced: bool = False, nodes: int = 1) -> float:
    """`js.publish_async`: a thousand messages wait for their acknowledgements at a time."""
    async with stream(folder, synced=synced, nodes=nodes) as js:
        await publish(js, 10)
        begun = time.perf_counter()
        await publish(js, size)
        seconds = time.perf_counter() - begun
        state = (await js.stream_info("RAW")).state
    assert state.messages == size + 10, f"{state.messages} of {size + 10} messages stored"
    return size / seconds


async def publish(js: Any, size: int) -> None:
    """Publish messages and wait for the acknowledgement of each."""
    acks = [await js.publish_async(SUBJECT, message(number), wait_stall=30) for number in range(size)]
    await asyncio.gather(*acks)


async def drained(folder: Path, size: int, *, synced: bool = False, nodes: int = 1, confirmed: bool = False) -> float:
    """Fetch, read, acknowledge, until nothing is pending on the server."""
    from nats.js.api import ConsumerConfig

    async with stream(folder, synced=synced, nodes=nodes) as js:
        config = ConsumerConfig(max_ack_pending=size, ack_wait=120)
        consumer = await js.pull_subscribe(SUBJECT, durable="raw", config=config)
        loop = drain_confirmed if confirmed else drain
        await publish(js, BATCH)
        await loop(consumer, BATCH)
        await publish(js, size)
        begun = time.perf_counter()
        await loop(consumer, size)
        return size / (time.perf_counter() - begun)


async def drain(consumer: Any, size: int) -> None:
    """The raw loop: acknowledgements are sent without waiting; the server has all of them when this returns."""
    done = 0
    while done < size:
        for taken in await consumer.fetch(min(BATCH, size - done), timeout=30):
            json.loads(taken.data)["n"]
            await taken.ack()
            done += 1
    while (await consumer.consumer_info()).num_ack_pending:  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0)


async def drain_confirmed(consumer: Any, size: int) -> None:
    """The same, and the server confirms each acknowledgement: what is done stays done, as it does with redrive."""
    done = 0
    while done < size:
        taken = await consumer.fetch(min(BATCH, size - done), timeout=30)
        for message in taken:
            json.loads(message.data)["n"]
        await asyncio.gather(*(message.ack_sync(timeout=30) for message in taken))
        done += len(taken)
