"""Row 11: what it costs a worker that twenty people watch it on the dashboard.

`redrive serve` runs worker and dashboard in one process. Compared is the processor time of that process alone, per job,
with and without watchers, so that what the watchers themselves cost does not count.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from benchmarks.bench import CONCURRENCY, ROOT, Bench, Check, Contestant, ContestantFailed, environment, ratio
from redrive import Redrive

CLIENTS = 20
REFRESH_SECONDS = 1.0
LIMIT = 15
STAT = Path("/proc/self/stat")
QUEUE = "noop"
LONGEST_SECONDS = 600


async def cpu_per_job(folder: Path, size: int, clients: int) -> float:
    """µs of the serving process per no-op job, from the moment the queue is let go to the last result."""
    async with Redrive(folder / "jobs.db") as rd:
        await rd.queues.pause(QUEUE, who="benchmark", why="until everybody is there", new=True)
        for first in range(0, size, 10_000):
            await rd.enqueue_many(QUEUE, [{"n": n} for n in range(first, min(first + 10_000, size))])
        with _served(folder / "jobs.db") as (pid, port, token):
            async with _watching(port, token, clients):
                begun = cpu_seconds(pid)
                await rd.queues.resume(QUEUE, who="benchmark")
                await _drained(rd, size)
                used = cpu_seconds(pid) - begun
    return used / size * 1e6


async def _drained(rd: Redrive, size: int) -> None:
    """Until every job is done; asked from outside the measured process, by its counters."""
    ends = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < ends:
        (queue,) = await rd.queues.list()
        if queue.done == size:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{size} jobs were not drained in {LONGEST_SECONDS} s")


def cpu_seconds(pid: int) -> float:
    """Of one process, user and system, with all its threads."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


# -- the server


@contextmanager
def _served(database: Path) -> Iterator[tuple[int, int, str]]:
    """`redrive serve` on a free port; it is gone when the block ends."""
    token = secrets.token_urlsafe(32)
    command = [sys.executable, "-m", "redrive", "serve", "benchmarks.noop_app:rd", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--concurrency", str(CONCURRENCY)],
        env={**environment(), "REDRIVE_URL": str(database), "REDRIVE_TOKEN": token},
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        told = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
        if told is None:
            raise ContestantFailed(f"redrive serve does not say where it serves: {said!r}")
        yield server.pid, int(told[1]), token
    finally:
        server.terminate()
        server.communicate(timeout=60)


# -- those who watch


class Watchers:
    """What came of watching, so that a benchmark of nothing is noticed."""

    def __init__(self, clients: int) -> None:
        self.ticks = [0] * clients
        self.pages = 0


@asynccontextmanager
async def _watching(port: int, token: str, clients: int) -> AsyncIterator[None]:
    if not clients:
        yield
        return
    seen = Watchers(clients)
    tasks = [asyncio.create_task(_listen(port, token, seen, number)) for number in range(clients)]
    tasks.append(asyncio.create_task(_refresh(port, token, seen)))
    try:
        await _seen_by_all(seen, tasks, 1)
        yield
        await _seen_by_all(seen, tasks, 2)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
    assert not broken, f"watchers gave up: {broken[:2]}"


async def _seen_by_all(seen: Watchers, tasks: list[asyncio.Task[None]], times: int) -> None:
    """The first tick says where a stream begins, the second that something happened: nobody watched in vain."""
    ends = time.monotonic() + 60
    while min(*seen.ticks, seen.pages) < times:
        assert time.monotonic() < ends and not any(task.done() for task in tasks), f"{seen.ticks}, {seen.pages} pages"
        await asyncio.sleep(0.05)


async def _opened(port: int, token: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    await writer.drain()
    status = await reader.readline()
    assert b" 200 " in status, f"{path} answered {status!r}"
    return reader, writer


async def _listen(port: int, token: str, seen: Watchers, number: int) -> None:
    reader, writer = await _opened(port, token, "/live")
    try:
        while line := await reader.readline():
            seen.ticks[number] += line.startswith(b"event: tick")
    finally:
        writer.close()
    raise ConnectionError("the stream ended")


async def _refresh(port: int, token: str, seen: Watchers) -> None:
    while True:
        begun = time.monotonic()
        reader, writer = await _opened(port, token, "/")
        body = await reader.read(-1)
        writer.close()
        assert b"</html>" in body, f"the page was cut off after {len(body)} bytes"
        seen.pages += 1
        await asyncio.sleep(max(0.0, REFRESH_SECONDS - (time.monotonic() - begun)))


def row_11(bench: Bench) -> list[Check]:
    size = bench.size(100_000, 2_000)
    work = f"drain of {size:,} no-op jobs by `redrive serve`, watched by {CLIENTS} streams and a page every second"
    if not STAT.exists():  # processor time of another process: Linux alone says it so
        return [Check(11, work, None, "≤", LIMIT, "% more CPU per job", {})]
    contestants = {
        "alone": Contestant("benchmarks.watched:cpu_per_job", {"size": size, "clients": 0}),
        "watched": Contestant("benchmarks.watched:cpu_per_job", {"size": size, "clients": CLIENTS}),
    }
    values = bench.contest(work, contestants, bench.rounds(3))
    more = ratio(values, "watched", "alone")
    said = {name: f"{sorted(taken)[len(taken) // 2]:.1f} µs" for name, taken in values.items()}
    reached = None if more is None else max(0.0, (more - 1) * 100)
    return [Check(11, work, reached, "≤", LIMIT, "% more CPU per job", said, values)]
