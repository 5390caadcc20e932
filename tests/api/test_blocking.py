"""Without an event loop of one's own: scripts, Django views, notebook cells."""

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redrive import InvalidPayload, JobDead, JobDiscarded, Redrive
from redrive.core.store import Store
from tests.support import eventually


def test_a_script_takes_runs_and_asks(database: Path) -> None:
    rd = Redrive(database)

    @rd.task(max_attempts=1)
    def double(n: int) -> int:
        if n < 0:
            raise ConnectionError("negative")
        return 2 * n

    with rd.blocking() as q:
        job = double.blocking.enqueue(4)
        bad = double.options(idempotency_key="k").blocking.enqueue(-1)
        assert q.enqueue("double", {"n": -1}, idempotency_key="k").duplicate
        assert q.enqueue_many("double", [{"n": 1}, {"n": "x"}]).accepted == 1
        assert q.drain() == 3
        assert job.result(5) == 8
        assert (job.state, job.refresh().state) == ("done", "done")
        with pytest.raises(JobDead):
            bad.result(5)
        later = q.enqueue("double", {"n": 1}, delay=60)
        assert later.cancel("no").state == "discarded"
        with pytest.raises(JobDiscarded):
            later.result(5)
        with pytest.raises(TimeoutError):
            q.enqueue("double", {"n": 1}, delay=60).result(0.01)
        with pytest.raises(InvalidPayload):
            q.enqueue("double", {"n": "x"})
        assert q.status(job.id).state == "done"
        assert q.health().total_dead_letter == 1
        assert [dead.id for dead in q.run(rd.dead.list()).jobs] == [bad.id]


async def test_inside_a_running_loop_it_works_as_in_a_notebook(database: Path) -> None:
    rd = Redrive(database)

    @rd.task
    async def work() -> int:
        return 1

    with rd.blocking() as q:
        job = work.blocking.enqueue()
        assert q.drain() == 1
        assert job.result(5) == 1


async def test_a_worker_here_does_what_a_thread_hands_in(live: Redrive) -> None:
    @live.task
    async def where() -> str:
        return threading.current_thread().name

    async with live.worker():
        name = await asyncio.to_thread(lambda: where.blocking.enqueue().result(15))
    assert name == threading.current_thread().name


def test_many_threads_at_once(database: Path) -> None:
    rd = Redrive(database)
    ids: list[str] = []

    def enqueue() -> None:
        with rd.blocking() as q:
            ids.extend(q.enqueue("work", {"n": n}).id for n in range(20))

    threads = [threading.Thread(target=enqueue) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with rd.blocking() as q:
        assert q.run(rd.stats())["accepted"] == len(set(ids)) == 100


def test_a_script_ends_by_itself(database: Path) -> None:
    """No thread of ours keeps the interpreter alive, closed or not."""
    code = """
import sys, redrive
rd = redrive.Redrive(sys.argv[1])

@rd.task
def work() -> int:
    return 1

job = work.blocking.enqueue()
print(job.state)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(database)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ran.stdout.strip(), ran.stderr, ran.returncode) == ("waiting", "", 0)


async def test_a_block_in_a_task_does_not_close_the_store_under_its_worker(database: Path) -> None:
    """Others would take this process for dead, and run its jobs again."""
    rd, other = Redrive(database), Redrive(database)
    left, over = threading.Event(), threading.Event()

    def work() -> None:
        with rd.blocking() as q:
            q.enqueue("something else")
        left.set()
        over.wait(20)

    rd.task("work")(work)
    other.task("work")(work)
    async with rd.worker():
        opened, job = rd.store, await rd.enqueue("work")
        await eventually(left.is_set)
        assert rd.store is opened
        async with other.worker():
            await asyncio.sleep(1.0)
        over.set()
        await job.result(15)
    assert [attempt.outcome for attempt in (await rd.jobs.get(job.id)).history] == ["done"]
    await rd.close()
    await other.close()


async def test_the_last_to_leave_closes_what_a_block_opened(database: Path) -> None:
    rd = Redrive(database)

    def enqueue() -> None:
        with rd.blocking() as q:
            q.enqueue("work")

    await asyncio.to_thread(enqueue)
    assert rd.core.holder.store is None
    async with rd.worker():
        await asyncio.to_thread(enqueue)
        assert rd.core.holder.store is not None
    async with rd, rd:
        pass
    assert rd.core.holder.store is None
    async with rd:
        async with rd:
            await asyncio.to_thread(enqueue)
        await rd.enqueue("work")
    assert rd.core.holder.store is None


def test_blocks_and_cycles_in_threads_do_not_wait_for_each_other(database: Path) -> None:
    rd = Redrive(database)
    rounds: list[str] = []

    def blocks() -> None:
        for _ in range(40):
            with rd.blocking() as q:
                q.enqueue("work")
            rounds.append("block")
            time.sleep(random.random() * 0.02)

    def cycles() -> None:
        for number in range(40):
            with rd.cycle("nightly", number, quiet=True) as cycle:
                assert cycle.run(_same, number).value == number
            rounds.append("cycle")
            time.sleep(random.random() * 0.02)

    threads = [threading.Thread(target=target, daemon=True) for target in (blocks, cycles)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(rounds) == {"block": 40, "cycle": 40}
    assert rd.core.holder.store is None


def _same(number: int) -> int:
    return number


def test_the_loop_of_blocking_callers_cannot_wait_for_itself(database: Path) -> None:
    rd = Redrive(database)

    @rd.task(max_attempts=1)
    async def work() -> None:
        other.blocking.enqueue()

    @rd.task
    async def other() -> None: ...

    with rd.blocking() as q:
        job = work.blocking.enqueue()
        q.drain()
        with pytest.raises(JobDead, match="use await"):
            job.result(5)


def test_threads_that_need_it_at_the_same_time_share_one_store(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would each keep a thread and a lock, and with `:memory:` the jobs of one were never seen again."""
    rd, made, together = Redrive(database), list[object](), threading.Barrier(4)
    make = rd.core.holder.make_store

    def slowly(*arguments: Any) -> Store:
        time.sleep(0.05)
        made.append(store := make(*arguments))
        return store

    monkeypatch.setattr(rd.core.holder, "make_store", slowly)

    def ask() -> None:
        together.wait(20)
        found.append(rd.store)

    found: list[Store] = []
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(made), len(set(map(id, found)))) == (1, 1)


async def test_a_close_that_is_cancelled_is_carried_through(database: Path) -> None:
    rd = Redrive(database)

    async def use() -> None:
        me = asyncio.current_task()
        assert me is not None
        async with rd:
            await rd.enqueue("work")
            asyncio.get_running_loop().call_soon(me.cancel)

    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(use())
    assert rd.core.holder.store is None
    assert not database.with_name(database.name + "-live").exists()  # nobody shows a sign of life


async def test_run_worker_leaves_the_store_to_others_who_need_it(database: Path) -> None:
    rd = Redrive(database)
    async with rd:
        opened, running = rd.store, asyncio.create_task(rd.run_worker())
        await eventually(lambda: bool(rd.local_workers))
        running.cancel()
        await asyncio.wait({running})
        assert rd.core.holder.store is opened
        await rd.enqueue("work")
    assert rd.core.holder.store is None
