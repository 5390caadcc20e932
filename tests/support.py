"""What several suites share: a clock that is told the time, waiting for a condition, other processes."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from redrive import Redrive
from redrive.core import lifecycle
from redrive.core.job import Failure, Job
from redrive.core.store import Commit, Wanted
from redrive.failures.classify import classify
from tests import elsewhere

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


class LoopTime:
    """Moves the time of the running event loop, so that every timer within that time ends: sleeps, polls, timeouts.

    It is never moved back: a loop that outlives the test goes on with timers that are right for it.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._real = loop.time
        self._ahead = 0.0
        loop.time = lambda: self._real() + self._ahead  # type: ignore[method-assign]

    def leap(self, seconds: float) -> None:
        self._ahead += seconds
        asyncio.get_running_loop().call_soon(lambda: None)


class PassingTime:
    """Lets hours pass for workers that run by themselves: the clock and the event loop move together, step by step."""

    STEP = 15.0
    """Seconds: within it a worker announces itself and renews its leases, so that no step looks like its end."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._loop = LoopTime()

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> float:
        """Pass time until the condition holds; returns the seconds that passed on the clock."""
        begun = self._clock.now()

        async def step() -> bool:
            if await condition():
                return True
            self._clock.advance(self.STEP)
            self._loop.leap(self.STEP)
            await asyncio.sleep(0.01)
            return False

        end = time.monotonic() + 3 * DEADLINE
        while not await step():
            assert time.monotonic() < end, f"{what} did not come true in {self._clock.now() - begun:,.0f} s"
        return self._clock.now() - begun


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], what: str = "the condition", within: float = DEADLINE
) -> None:
    """Wait until it is true; fail, saying what was waited for, when it does not become so."""
    try:
        async with asyncio.timeout(within):
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


async def closed(what: str, closing: Awaitable[Any], within: float = DEADLINE) -> None:
    """Waits until something from outside, such as a browser, has closed; fails and names it when it does not."""
    try:
        async with asyncio.timeout(within):
            await closing
    except TimeoutError:
        raise AssertionError(f"{what} did not close within {within:g} s") from None


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
    if not elsewhere.replica_of(database).exists():
        return []
    own = "kind NOT IN ('replica', 'erasure')"  # what a replica says of itself, whatever it is asked
    tables = ("jobs", "moves", f"docs WHERE {own}", "routes")
    with contextlib.closing(elsewhere.connected(database)) as connection:
        return [connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables]


def count_in_files(folder: Path, *words: str) -> dict[str, int]:
    """How often any of the words stands in each file of a folder. Another process looks: a store may be open here."""
    done = subprocess.run([sys.executable, "-c", _COUNT, folder, *words], capture_output=True, check=True, timeout=60)
    found: dict[str, int] = json.loads(done.stdout)
    return found


_COUNT = """
import json, pathlib, sys
folder, *words = sys.argv[1:]
files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
print(json.dumps({path.name: sum(path.read_bytes().count(word.encode()) for word in words) for path in files}))
"""


def run_sql(database: Path, *statements: str) -> None:
    """Runs SQL on a database as another program would, from a process of its own."""
    subprocess.run([sys.executable, "-c", _RUN_SQL, database, *statements], check=True, timeout=60)


_RUN_SQL = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30)
with connection:
    for statement in sys.argv[2:]:
        connection.execute(statement)
connection.close()
"""


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


def ctrl_c() -> None:
    """A person interrupts this process: the signal comes from a thread that belongs to no job."""
    sending = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
    sending.start()
    sending.join()
    time.sleep(DEADLINE)  # interrupted


async def line_of(child: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert child.stdout is not None
    line: str = await soon(asyncio.to_thread(child.stdout.readline))
    return line.strip()


async def look_and_tell(rd: Redrive) -> None:
    """One look at the error groups and at what hurts, as a scheduler does it, then one round of the courier."""
    await rd.groups.look()
    await rd._pains.look()
    await rd.notices.deliver()


HOLDS_THE_LOCK = """
    import sqlite3, sys
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def locked(database: Path) -> Iterator[Callable[[], None]]:
    """Another process holds the write lock until the block ends, or what this gives is called."""
    with process(HOLDS_THE_LOCK, database) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"

        def release() -> None:
            child.kill()
            child.wait(DEADLINE)

        yield release
