"""One file, several processes: work crosses over, wakes the other side, and survives a kill."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from redrive import Redrive
from tests.support import eventually, line_of, opened, process, soon

WORKER = """
import asyncio, os, sys
import redrive

rd = redrive.Redrive(sys.argv[1])

@rd.task
async def where(n: int) -> int:
    return os.getpid()

@rd.task
async def stuck(ctx: redrive.Context) -> None:
    print("begun", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("told" if ctx.cancelled else "stopped", flush=True)

async def main():
    async with rd.worker(grace=0.1):
        print(os.getpid(), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    await rd.close()

asyncio.run(main())
"""

PRODUCER = """
import asyncio, os, signal, sys
import redrive

async def main():
    rd = redrive.Redrive(sys.argv[1])
    for n in range(int(sys.argv[2])):
        job = await rd.enqueue("where", {"n": n})
        print(job.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_work_of_one_process_is_done_in_another(database: Path) -> None:
    async with opened(database) as rd:
        with process(WORKER, database) as child:
            pid = int(await line_of(child))
            for n in range(3):
                job = await rd.enqueue("where", {"n": n})
                assert await job.result(15) == pid != os.getpid()


@pytest.mark.behaviour("C13")
async def test_an_idle_worker_is_woken_by_another_process(database: Path) -> None:
    """Its poll is an hour away: only the wake-up can bring the job."""
    done: list[str] = []
    async with opened(database, poll=3600.0) as rd:

        @rd.task
        async def where(n: int) -> None:
            done.append(str(n))

        async with rd.worker(scheduler=False) as worker:
            await eventually(lambda: worker._quiet_claim > 0)
            with process(PRODUCER, database, 3) as child:
                ids = [await line_of(child) for _ in range(3)]
            await eventually(lambda: len(done) == 3)
    assert len(set(ids)) == 3


@pytest.mark.behaviour("000-62")
async def test_an_accepted_job_survives_a_kill_in_the_next_instant(database: Path) -> None:
    with process(PRODUCER, database, 5) as child:
        ids = [await line_of(child) for _ in range(5)]
        assert await soon(asyncio.to_thread(child.wait)) == -signal.SIGKILL
    async with opened(database) as rd:
        assert [(await rd.jobs.get(id)).state for id in ids] == ["waiting"] * 5
        assert (await rd.stats())["accepted"] == 5


@pytest.mark.behaviour("000-4", "000-12")
async def test_what_a_killed_process_was_doing_is_done_by_another(database: Path) -> None:
    async with opened(database) as rd:
        with process(WORKER, database) as child:
            await line_of(child)
            job = await rd.enqueue("stuck")
            assert await line_of(child) == "begun"
            child.kill()
            await soon(asyncio.to_thread(child.wait))

        @rd.task
        async def stuck() -> str:
            return "done here"

        async with rd.worker():
            assert await job.result(15) == "done here"
        story = (await job.refresh()).history
        assert [attempt.outcome for attempt in story] == ["lost", "done"]
        assert (await job.refresh()).crashes == 1


DRAINS = """
import asyncio, sys
import redrive

rd = redrive.Redrive(sys.argv[1])

@rd.task
async def stuck() -> str:
    return "done there"

print(asyncio.run(rd.drain()), flush=True)
"""


async def test_draining_ends_where_a_job_has_to_run_alone(database: Path) -> None:
    async with opened(database) as rd:
        job = await rd.enqueue("stuck")
        for _ in range(2):
            with process(WORKER, database) as child:
                await line_of(child)
                assert await line_of(child) == "begun"
                child.kill()
                await soon(asyncio.to_thread(child.wait))

        async def is_due_again() -> bool:
            async with rd.worker():  # knows no task, and minds those whose worker is gone
                seen = await job.refresh()
            return seen.crashes == 2 and seen.run_at <= rd.clock.now()

        await eventually(is_due_again)
        with process(DRAINS, database) as child:
            assert await line_of(child) == "1"
        assert [attempt.outcome for attempt in (await job.refresh()).history] == ["lost", "lost", "done"]


async def test_a_job_cancelled_here_is_stopped_there(database: Path) -> None:
    async with opened(database) as rd:
        with process(WORKER, database) as child:
            await line_of(child)
            job = await rd.enqueue("stuck", lease=3)
            assert await line_of(child) == "begun"
            await job.cancel("enough")
            assert await line_of(child) == "told"
        assert (await job.refresh()).state == "discarded"


async def test_the_books_balance_over_processes(database: Path) -> None:
    async with opened(database) as rd:
        with process(WORKER, database) as one, process(WORKER, database) as two:
            pids = {int(await line_of(child)) for child in (one, two)}
            many = await rd.enqueue_many("where", [{"n": n} for n in range(400)])
            await eventually(_all_done(rd, 400))
        ran_in = {(await rd.jobs.get(str(id))).result for id in many.ids}
        assert ran_in <= pids
        stats = await rd.stats()
        assert (stats["accepted"], stats["totals"]["done"]) == (400, 400)


def _all_done(rd: Redrive, count: int) -> object:
    async def done() -> bool:
        return bool((await rd.stats())["totals"]["done"] == count)

    return done
