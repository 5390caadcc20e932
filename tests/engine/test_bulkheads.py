"""Bulkheads: a queue or a host whose jobs hang leaves slots to the others."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import Policy, Redrive
from redrive.engine.worker import Worker
from tests.engine.gate import Gate, look
from tests.support import eventually, soon


@asynccontextmanager
async def _hanging(live: Redrive, gate: Gate, takes: int, **options: Any) -> AsyncIterator[Worker]:
    """A worker whose queue `slow` hangs in so many slots, has more that is due, and may have no more."""
    await live.enqueue_many("slow", [{}] * (takes + 20))
    async with live.worker(**options) as worker:
        try:
            await eventually(lambda: gate.inside["slow"] >= takes, f"{takes} slow jobs hang")
            if worker.slots.free:
                await look(worker)
            assert worker.slots.running == takes
            yield worker
        finally:
            gate.opened.set()
            await soon(worker.idle())


@pytest.mark.behaviour("T-11a")
async def test_another_queues_job_starts_while_a_hundred_jobs_hang(live: Redrive) -> None:
    """The hanging jobs come first; the limits are the default ones."""
    gate, provisioned = Gate(), asyncio.Event()

    @live.task
    async def slow() -> None:
        await gate("slow")

    @live.task(queue="provisioning")
    async def provision() -> None:
        provisioned.set()

    await live.enqueue_many("slow", [{}] * 100)
    async with live.worker() as worker:
        await eventually(lambda: gate.inside["slow"] >= 80, "the slow jobs hang")
        job = await provision.enqueue()
        await eventually(provisioned.is_set, "the job of the other queue runs")
        await soon(job.result())
        assert gate.inside["slow"] == 80
        gate.opened.set()
        await soon(worker.idle())


@pytest.mark.behaviour("T-11b")
async def test_plain_functions_leave_slots_too(live: Redrive) -> None:
    """A plain function holds a thread; its queue keeps to the same share."""
    begun, go, provisioned = threading.Semaphore(0), threading.Event(), asyncio.Event()

    @live.task
    def slow() -> None:
        begun.release()
        go.wait()

    @live.task
    async def provision() -> None:
        provisioned.set()

    await live.enqueue_many("slow", [{}] * 10)
    try:
        async with live.worker(concurrency=5) as worker:
            for _ in range(4):
                assert await soon(asyncio.to_thread(begun.acquire))
            await provision.enqueue()
            await eventually(provisioned.is_set, "the job of the other queue runs")
            await eventually(lambda: worker.slots.running == 4)
            go.set()
            await eventually(lambda: worker.slots.running == 0)
    finally:
        go.set()


@pytest.mark.behaviour("T-11c")
@pytest.mark.parametrize("concurrency", [1, 2, 5])
async def test_a_worker_with_one_queue_uses_every_slot(live: Redrive, concurrency: int) -> None:
    gate = Gate()

    @live.task
    async def slow() -> None:
        await gate("slow")

    async with _hanging(live, gate, concurrency, concurrency=concurrency) as worker:
        assert worker.slots.free == 0


@pytest.mark.behaviour("T-11c")
async def test_a_worker_for_one_of_many_queues_uses_every_slot(live: Redrive) -> None:
    gate = Gate()

    @live.task
    async def slow() -> None:
        await gate("slow")

    @live.task
    async def other() -> None: ...

    async with _hanging(live, gate, 5, concurrency=5, queues=["slow"]) as worker:
        assert worker.slots.free == 0


@pytest.mark.behaviour("T-11d")
@pytest.mark.parametrize(("concurrency", "takes"), [(1, 1), (2, 1), (4, 3), (5, 4), (6, 4)])
async def test_how_many_slots_one_of_two_queues_takes(live: Redrive, concurrency: int, takes: int) -> None:
    gate = Gate()

    @live.task
    async def slow() -> None:
        await gate("slow")

    @live.task
    async def other() -> None: ...

    async with _hanging(live, gate, takes, concurrency=concurrency) as worker:
        assert worker.slots.free == concurrency - takes


@pytest.mark.behaviour("T-11e")
async def test_a_queues_own_limit_replaces_the_rule(database: Path) -> None:
    gate = Gate()
    async with Redrive(database, queues={"slow": Policy(concurrency=5)}) as rd:

        @rd.task
        async def slow() -> None:
            await gate("slow")

        @rd.task
        async def other() -> None: ...

        async with _hanging(rd, gate, 5, concurrency=5) as worker:
            assert worker.slots.free == 0


@pytest.mark.behaviour("T-11f")
async def test_a_downstream_that_hangs_leaves_slots_to_jobs_of_the_same_queue(live: Redrive) -> None:
    gate, posted = Gate(), asyncio.Event()

    @live.task(queue="mixed", downstream="crm")
    async def slow() -> None:
        await gate("slow")

    @live.task(queue="mixed", downstream="cms")
    async def post() -> None:
        posted.set()

    async with _hanging(live, gate, 4, concurrency=5):
        await post.enqueue()
        await eventually(posted.is_set, "the job that calls another downstream runs")
        assert gate.inside["slow"] == 4


@pytest.mark.behaviour("T-11g")
async def test_a_host_that_hangs_leaves_slots_to_deliveries_to_others(database: Path) -> None:
    """Deliveries to one host wait for an answer; then comes one to another known host, in the same queue."""
    waiting, go = Counter[str](), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting["hung"] += 1
        await go.wait()
        await _answer(writer)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting["answered"] += 1
        await _answer(writer)

    async with (
        await asyncio.start_server(hang, "127.0.0.1") as slow,
        await asyncio.start_server(answer, "127.0.0.1") as quick,
        Redrive(database, delivery={"allow": ["127.0.0.1"]}) as rd,
    ):
        await rd.enqueue_http("POST", _url(quick))
        await soon(rd.drain())
        for _ in range(12):
            await rd.enqueue_http("POST", _url(slow))
        async with rd.worker(concurrency=10) as worker:
            try:
                await eventually(lambda: waiting["hung"] == 8, "the hanging host gets what it may")
                await look(worker)
                job = await rd.enqueue_http("POST", _url(quick))
                await eventually(lambda: waiting["answered"] == 2, "the other host is called")
                await soon(job.result())
                assert waiting["hung"] == 8
            finally:
                go.set()
            await soon(worker.idle())


def _url(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def _answer(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()
