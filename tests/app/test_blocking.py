"""Without an event loop of one's own: scripts, Django views, notebook cells."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from redrive import InvalidPayload, JobDead, JobDiscarded, Redrive


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
