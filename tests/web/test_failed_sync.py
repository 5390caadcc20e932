"""A failed sync in a program that has redrive built in: the program goes on, and everybody who asks is told."""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest

import redrive
from tests.chaos.vfs import FaultVFS, FileKind, Operation, installed
from tests.support import DEADLINE, eventually, soon
from tests.web.serving import Served, problem_in, serving


@pytest.fixture
def disk() -> Iterator[FaultVFS]:
    """`disk.arm(1)` makes the next sync of the log fail, once."""
    with installed(FaultVFS(None, errno.EIO, operations=(Operation.SYNC,), kinds=(FileKind.WAL,))) as fault:
        yield fault


@pytest.fixture
async def embedded(disk: FaultVFS, database: Path) -> AsyncIterator[Served]:
    """Worker and REST in this process, as `rd.lifespan(worker=True)` and a mounted `redrive.asgi` have them."""
    async with redrive.Redrive(database) as rd, serving(rd) as served:
        yield served


async def break_the_disk(rd: redrive.Redrive, disk: FaultVFS) -> None:
    disk.arm(1)
    with pytest.raises(redrive.StoreFailed, match="failed to sync"):
        await soon(rd.enqueue("greet", {"name": "x"}))
    assert disk.struck


@pytest.mark.behaviour("T-9a")
async def test_readyz_and_health_name_a_store_that_has_stopped(embedded: Served, disk: FaultVFS) -> None:
    rd = embedded.rd
    assert (await embedded.client.get("/readyz")).status_code == 200
    await break_the_disk(rd, disk)
    answer = await soon(embedded.client.get("/readyz"))
    assert answer.status_code == 503, answer.text
    problem = problem_in(answer)
    assert problem["type"].endswith(":store-failed") and "failed to sync" in problem["detail"]
    assert (await soon(embedded.client.get("/healthz"))).status_code == 200
    health = await soon(rd.health())
    assert health.status != "healthy" and any("failed to sync" in issue for issue in health.issues)
    for _ in range(2):
        with pytest.raises(redrive.StoreFailed):
            await soon(rd.enqueue("greet", {"name": "y"}))


async def test_a_store_that_has_stopped_is_not_tried_for_ever(
    disk: FaultVFS, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Worker, scheduler and heartbeats end, each with one line; closed and opened again, the store works."""
    async with redrive.Redrive(database, poll=0.01) as rd, rd.worker() as worker:
        await break_the_disk(rd, disk)
        await eventually(lambda: not worker.running)
        assert isinstance(worker.failing, redrive.StoreFailed)
    told = [record for record in caplog.records if "has stopped itself" in record.getMessage()]
    assert 1 <= len(told) <= 3 and {record.levelname for record in told} == {"CRITICAL"}
    async with redrive.Redrive(database) as rd:
        assert rd.store.failed is None
        await rd.enqueue("greet", {"name": "x"})


@pytest.mark.behaviour("T-9b")
async def test_run_worker_raises_and_does_not_end_the_process(disk: FaultVFS, database: Path) -> None:
    rd = redrive.Redrive(database)
    begun = asyncio.Event()

    @rd.task
    async def long() -> None:
        begun.set()
        await asyncio.sleep(3600)

    @rd.task
    async def quick() -> None:
        disk.arm(1)

    running = asyncio.create_task(rd.run_worker())
    await long.enqueue()
    await soon(begun.wait())
    await quick.enqueue()
    done, _ = await asyncio.wait({running}, timeout=DEADLINE)
    if not done:
        running.cancel()
        await asyncio.wait({running})
    assert done, "the worker goes on although its store has stopped"
    assert isinstance(running.exception(), redrive.StoreFailed)


@pytest.mark.behaviour("T-9d")
async def test_readyz_tells_of_writes_that_do_not_get_through(
    embedded: Served, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.store.STUCK_SECONDS", 0.2, raising=False)
    holder = apsw.Connection(str(database))
    holder.set_busy_timeout(30_000)  # the server may be writing this moment
    holder.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(embedded.rd.enqueue("greet", {"name": "x"}))

    async def unready() -> bool:
        return (await embedded.client.get("/readyz")).status_code == 503

    await eventually(unready)
    problem = problem_in(await embedded.client.get("/readyz"))
    assert problem["type"].endswith(":busy") and "has waited for" in problem["detail"]
    holder.execute("ROLLBACK")
    holder.close()
    await soon(writing)
    await eventually(lambda: _ready(embedded))


async def _ready(served: Served) -> bool:
    return (await served.client.get("/readyz")).status_code == 200
