"""What several suites share: a clock that is told the time, waiting for a condition, other processes."""

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from redrive import Redrive
from redrive.core import lifecycle
from redrive.core.classify import classify
from redrive.core.job import Failure, Job
from redrive.core.store import Commit, Wanted

DEADLINE = 20.0
"""Seconds after which a test stops waiting and fails: far more than anything here takes."""


class FakeClock:
    """Stands still until it is told to go on."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now
        self._steady = 1_000.0
        self.luck = 0.5

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._steady

    def chance(self) -> float:
        return self.luck

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._steady += seconds


async def eventually(condition: Callable[[], bool | Awaitable[bool]], what: str = "the condition") -> None:
    """Wait until it is true; fail, saying what was waited for, when it does not become so."""
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                found = condition()
                if await found if isinstance(found, Awaitable) else found:
                    return
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true") from None


async def soon(awaitable: Awaitable[Any]) -> Any:
    """The value, or a failure when it does not come."""
    async with asyncio.timeout(DEADLINE):
        return await awaitable


@contextlib.asynccontextmanager
async def opened(url: Path | str, **settings: Any) -> AsyncIterator[Redrive]:
    """A Redrive that is closed whatever happens."""
    async with Redrive(url, **settings) as rd:
        yield rd


async def drain_until_over(rd: Redrive, clock: FakeClock, rounds: int = 40, step: float = 700.0) -> None:
    """Run everything, going on in time, until nothing waits any more."""
    for _ in range(rounds):
        await soon(rd.drain())
        if not (await rd.jobs.list(state="waiting")).jobs:
            return
        clock.advance(step)
    raise AssertionError("jobs still wait")


async def may_have_landed(rd: Redrive, task: str, **payload: Any) -> str:
    """A dead letter of which nobody knows whether its effect landed."""
    handle = await rd.enqueue(task, payload)
    (job,) = (await rd.store.claim(Wanted(1), "w", rd.clock.now())).jobs
    failure = Failure("lease_expired", ("redrive.LeaseExpired",), "worker w stopped")
    move = lifecycle.buried(
        job, rd.clock.now(), because="outcome_unknown", why="lost", recommendation="Look whether it landed.",
        failure=failure, cause=classify(failure), fingerprint="f" * 16,
    )  # fmt: skip
    await rd.store.apply([Commit((move,))])
    return handle.id


async def only_job(rd: Redrive) -> Job:
    (job,) = (await rd.jobs.list()).jobs
    return await rd.jobs.get(job.id)


def snapshot(database: Path) -> list[Any]:
    """Everything that a store file says about jobs, to show that something changed nothing."""
    import apsw

    if not database.exists():
        return []
    connection = apsw.Connection(str(database))
    try:
        tables = ("jobs", "moves", "docs", "routes")
        return [connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables]
    finally:
        connection.close()


@contextlib.contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another Python process; it is gone when the block ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


async def line_of(child: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert child.stdout is not None
    line: str = await soon(asyncio.to_thread(child.stdout.readline))
    return line.strip()
