"""How many bytes a job takes in the file, by its state: `python -m tools.sizes [JOBS]`. For docs/sizing.md.

Sizes depend on what is stored, not on the machine or its load. Each row is a new file; the pages that are in use at its
end, less those of an empty file, are divided by the jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import redrive
from redrive import Policy, Redrive
from redrive.engine.scheduler import prune

JOBS = 10_000
DAY = 86400.0
SMALL = {"slug": "q3-report", "text": "x" * 60}
LARGE = {"slug": "q3-report", "text": "x" * 10_000}


def make(file: Path) -> Redrive:
    rd = Redrive(file, queues={"work": Policy(max_attempts=3, backoff="none")}, comebacks=())

    @rd.task(queue="work")
    async def work(slug: str, text: str) -> str:
        return f"/articles/{slug}"

    @rd.task(queue="work", retry_on=(ValueError,))
    async def broken(slug: str, text: str) -> str:
        raise ValueError("the receiver did not understand the request")

    return rd


async def waiting(rd: Redrive, jobs: int, payload: dict[str, str]) -> None:
    await rd.enqueue_many("work", [payload] * jobs)


async def done(rd: Redrive, jobs: int, payload: dict[str, str]) -> None:
    await waiting(rd, jobs, payload)
    await rd.drain(concurrency=1000)


async def dead(rd: Redrive, jobs: int, payload: dict[str, str]) -> None:
    await rd.enqueue_many("broken", [payload] * jobs)
    await rd.drain(concurrency=1000)


async def pruned(rd: Redrive, jobs: int, payload: dict[str, str]) -> None:
    await done(rd, jobs, payload)
    await prune(rd.store, rd.registry, time.time() + 15 * DAY, 14 * DAY, None)


ROWS: dict[str, tuple[Callable[[Redrive, int, dict[str, str]], Awaitable[None]], dict[str, str]]] = {
    "waiting, payload of 90 bytes": (waiting, SMALL),
    "done, payload of 90 bytes": (done, SMALL),
    "done, payload of 10 KB": (done, LARGE),
    "done, payload of 90 bytes, after its retention": (pruned, SMALL),
    "done, payload of 10 KB, after its retention": (pruned, LARGE),
    "dead after three failed attempts, payload of 90 bytes": (dead, SMALL),
}


async def size_of(fill: Callable[[Redrive], Awaitable[None]]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.db"
        async with make(file) as rd:
            await fill(rd)
        return used(file)


def used(file: Path) -> int:
    """The bytes of the pages that hold something. Free pages stay in the file and are used again."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        number, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((number - free) * size)


async def main(jobs: int) -> None:
    async def nothing(rd: Redrive) -> None:
        await rd.stats()

    empty = await size_of(nothing)
    print(f"redrive {redrive.__version__}, {jobs:,} jobs each; an empty file has {empty:,} bytes")
    for name, (fill, payload) in ROWS.items():
        size = await size_of(lambda rd, fill=fill, payload=payload: fill(rd, jobs, payload))  # type: ignore[misc]
        print(f"{name:<56} {(size - empty) / jobs:>8,.0f} bytes per job")


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS))
