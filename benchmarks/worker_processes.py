"""Worker processes beside the one that measures, each with a task that does nothing."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import CONCURRENCY, command, environment
from redrive import Redrive


@contextmanager
def workers(database: Path, processes: int) -> Iterator[list[int]]:
    """So many workers of one file, once all of them are there; their process ids."""
    run = command("benchmarks.worker_processes:work", database.parent, {"file": database.name})
    running = [subprocess.Popen(run, env=environment(), stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        for one in running:
            assert one.stdout is not None and one.stdout.readline(), "a worker did not start"
        yield [one.pid for one in running]
    finally:
        for one in running:
            one.kill()
            one.communicate()


async def work(folder: Path, file: str) -> None:
    rd = Redrive(folder / file)

    @rd.task
    async def noop(n: int) -> int:
        return n

    async with rd, rd.worker(concurrency=CONCURRENCY):
        print("ready", flush=True)
        await asyncio.Event().wait()
