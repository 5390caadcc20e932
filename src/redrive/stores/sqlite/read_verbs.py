"""ReadVerbs: what every store on a SQLite file answers from that file, each time from one short snapshot."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw

from redrive.core.job import Job
from redrive.core.store import Claim, Document, Filter, LeftBehind, Wanted
from redrive.stores.sqlite import feed, fork_guard, records, rollups, search, upkeep
from redrive.stores.sqlite.connection import open_reader, translate
from redrive.stores.sqlite.fork_guard import use
from redrive.stores.sqlite.liveness import RUNNING, Observer, ProcessLock, Running, find_left_behind
from redrive.stores.sqlite.machine import Machine
from redrive.stores.sqlite.records import RouteCache
from redrive.stores.sqlite.standing_claim import NONE_LAPSED, Claimed, Lapsed, StandingClaim
from redrive.stores.sqlite.wakeups import Waiters

T = TypeVar("T")
P = ParamSpec("P")


def _answer_by(
    query: Callable[Concatenate[apsw.Connection, RouteCache, P], T],
) -> Callable[Concatenate[ReadVerbs, P], Coroutine[Any, Any, T]]:
    """Make a verb that answers by a query on one snapshot."""

    async def verb(self: ReadVerbs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(lambda connection: query(connection, self._routes, *args, **kwargs))

    return verb


class ReadVerbs(ABC):
    """The reading half of a store. The writing half opens the file and says when it is ready."""

    path: Path
    _lock: ProcessLock
    _observer: Observer

    @property
    @abstractmethod
    def failed(self) -> str | None:
        """Why the store has stopped itself."""

    @property
    def answers(self) -> bool:
        return True

    def hurry(self) -> None:  # noqa: B027 - for stores on other machines
        """Do nothing: this store asks no other machine."""

    def _fresh(self) -> None:
        """Make everything that belongs to this process; a forked child makes it anew."""
        self._generation = fork_guard.generation
        self._opening = threading.Lock()
        self._readers: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._machine = Machine()
        self._waiters = Waiters()
        self._failure_waiters = Waiters()
        self._standing: dict[StandingClaim, None] = {}
        """The standing claims of idle workers, in the order in which they came."""
        self._stamped = 0.0

    def _start_readers(self) -> None:
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="redrive-reader")

    @abstractmethod
    async def _ready(self) -> object:
        """Open the file where it is not open yet."""

    async def until_failed(self) -> str:
        await self._ready()
        waiters = self._failure_waiters
        mark = waiters.mark
        while (why := self.failed) is None:
            await waiters.wait(mark, None)
            mark = waiters.mark
        return why

    async def wait(self, mark: int, seconds: float, woken: asyncio.Event | None = None) -> bool:
        await self._ready()
        return await self._waiters.wait(mark, seconds, woken)

    def follow(self, ids: Collection[str], changed: asyncio.Event) -> AbstractAsyncContextManager[None]:
        """Set nothing: a store that is not told at once of other processes' commits leaves its callers to look."""
        return nullcontext()

    async def claim_next(
        self,
        wanted: Wanted,
        worker: str,
        clock: Callable[[], float],
        mark: int,
        seconds: float,
        woken: asyncio.Event,
        hears: Callable[[], bool] = lambda: True,
    ) -> Claim | None:
        standing = StandingClaim(wanted, worker, clock, woken, hears)
        self._standing[standing] = None
        try:
            await self.wait(mark, seconds, woken)
        finally:
            self._standing.pop(standing, None)
            claimed = await standing.withdraw()
        return await self._read_claim(claimed) if claimed is not None else None

    async def _read_claim(self, claimed: Claimed) -> Claim:
        return claimed.read()

    def _find_lapsed(self, connection: apsw.Connection, now: float) -> Lapsed:
        """Find running jobs whose lease ended; `now` is the time by which this store counts the age of leases."""
        running = [Running(*row) for row in connection.execute(RUNNING)]
        ids = self._observer.lapsed(running, now)
        if not ids:
            return NONE_LAPSED
        endings = {job.id: self._observer.ending(job.process) for job in running if job.id in ids}
        return Lapsed(records.get(connection, self._routes, ids), endings)

    @property
    def _routes(self) -> RouteCache:
        return self._machine.routes

    def _reader(self) -> apsw.Connection:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = open_reader(self.path)
        return connection

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        await self._ready()

        def run() -> T:
            """Read one short snapshot, however many queries."""
            try:
                with use:
                    connection = self._reader()
                    connection.execute("BEGIN")
                    try:
                        return work(connection)
                    finally:
                        connection.execute("COMMIT")
            except apsw.Error as error:
                raise translate(error, str(self.path)) from error

        return await asyncio.get_running_loop().run_in_executor(self._readers, run)

    async def _read_current(self, work: Callable[[apsw.Connection], T]) -> T:
        """Like `_read`, from a file that holds everything that was committed before this call.

        A store on one file always does; a replica may have to wait until it has replayed that.
        """
        return await self._read(work)

    find = _answer_by(search.find)
    first = _answer_by(search.find_first)
    seal = _answer_by(search.seal)
    overdue = _answer_by(search.find_overdue)
    returning = _answer_by(search.count_returning)
    quiet = _answer_by(search.find_quiet)
    durations = _answer_by(search.measure_durations)
    timings = _answer_by(search.measure_timings)
    latest = _answer_by(feed.read_latest)
    moves = _answer_by(feed.read_moves)
    story = _answer_by(feed.read_story)
    events = _answer_by(feed.read_events)
    tallies = _answer_by(rollups.read_tallies)
    totals = _answer_by(rollups.read_totals)
    outcomes = _answer_by(rollups.read_outcomes)
    minutes = _answer_by(rollups.read_minutes)
    groups = _answer_by(rollups.read_groups)
    lessons = _answer_by(rollups.read_lessons)

    async def left_behind(self, now: float) -> list[LeftBehind]:
        return await self._read(lambda connection: find_left_behind(connection, self._routes, self._lock, now))

    async def count(
        self, filter: Filter, by: Sequence[str] = (), *, current: bool = False
    ) -> dict[tuple[str | None, ...], int]:
        read = self._read_current if current else self._read
        return await read(lambda connection: search.count(connection, self._routes, filter, by))

    async def get(self, ids: Sequence[str]) -> list[Job]:
        return await self._read_current(lambda connection: records.get(connection, self._routes, ids))

    async def doc(self, kind: str, key: str) -> Document | None:
        return await self._read_current(lambda connection: records.doc(connection, kind, key))

    async def docs(self, kind: str, prefix: str = "") -> list[Document]:
        return await self._read_current(lambda connection: records.docs(connection, kind, prefix))

    async def scan_page(self, after: int) -> tuple[list[Job], int]:
        """Return some records after a number, in order, and the number after which to go on."""
        return await self._read_current(lambda connection: records.scan(connection, self._routes, after))

    async def scan(self) -> AsyncIterator[Job]:
        last = 0
        while True:
            jobs, last = await self.scan_page(last)
            if not jobs:
                return
            for job in jobs:
                yield job

    async def backup(self, target: str) -> int:
        return await self._read_current(lambda connection: upkeep.backup(connection, Path(target)))

    async def process(self) -> str:
        await self._ready()
        return self._lock.name

    async def ended(self, processes: Collection[str]) -> dict[str, bool]:
        await self._ready()
        lock = self._lock

        def look() -> dict[str, bool]:
            return {process: lock.is_dead(process) for process in processes if lock.can_see(process)}

        return await asyncio.get_running_loop().run_in_executor(self._readers, look)
