"""The result of a job that another process runs comes without a look by the clock: those are an hour apart here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redrive import JobDead
from redrive.jobs import wait_for_job
from redrive.jobs.tasks import JobHandle
from redrive.stores.sqlite import watcher
from tests.support import line_of, opened, process, soon

WORKER = """
import asyncio, sys
import redrive
from redrive.stores.sqlite import watcher

watcher.SLOW_POLL_SECONDS = watcher.POLL_SECONDS = 3600.0
rd = redrive.Redrive(sys.argv[1], poll=3600.0)

@rd.task
async def double(n: int) -> int:
    return 2 * n

@rd.task(max_attempts=1)
async def fail() -> None:
    raise ValueError("no")

async def main():
    async with rd.worker(scheduler=False):
        print("works", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    await rd.close()

asyncio.run(main())
"""

pytestmark = pytest.mark.file("only processes on one file wake each other by sockets")


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SLOW_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(watcher, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(wait_for_job, "FOLLOW_SECONDS", 3600.0)


async def test_a_result_comes_from_another_process(database: Path) -> None:
    async with opened(database) as rd:
        with process(WORKER, database) as worker:
            assert await line_of(worker) == "works"
            for n in range(5):
                job = await rd.enqueue("double", {"n": n})
                assert await soon(job.result()) == 2 * n


async def test_many_results_come_from_another_process(database: Path) -> None:
    async with opened(database) as rd:
        with process(WORKER, database) as worker:
            assert await line_of(worker) == "works"
            jobs = [await rd.enqueue("double", {"n": n}) for n in range(50)]
            assert await soon(asyncio.gather(*(job.result() for job in jobs))) == [2 * n for n in range(50)]


async def test_a_death_in_another_process_is_told(database: Path) -> None:
    async with opened(database) as rd:
        with process(WORKER, database) as worker:
            assert await line_of(worker) == "works"
            job = await rd.enqueue("fail")
            with pytest.raises(JobDead):
                await soon(job.result())


async def test_a_workflow_in_another_process_ends(database: Path) -> None:
    async with opened(database) as rd:
        with process(WORKER, database) as worker:
            assert await line_of(worker) == "works"
            flow = rd.workflow("one")
            flow.add("double", {"n": 4})
            assert await soon((await flow.start()).result()) == {"double": 8}


async def test_who_waits_for_one_job_does_not_look_when_others_end(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    refresh = JobHandle.refresh

    async def counted(self: JobHandle[Any]) -> Any:
        looks.append(self.id)
        return await refresh(self)

    monkeypatch.setattr(JobHandle, "refresh", counted)
    async with opened(database) as rd:
        with process(WORKER, database) as worker:
            assert await line_of(worker) == "works"
            never = [asyncio.ensure_future((await rd.enqueue("unknown", {"n": n})).result()) for n in range(20)]
            for n in range(30):
                assert await soon((await rd.enqueue("double", {"n": n})).result()) == 2 * n
            assert looks.count(looks[0]) <= 3, "once at the beginning, and for nothing when the store begins to follow"
            for waiting in never:
                waiting.cancel()
            await asyncio.gather(*never, return_exceptions=True)
