"""ReadVerbs: what every store on a SQLite file answers from that file, each time from one short snapshot."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from redrive.core.job import Job
from redrive.core.store import (
    Document,
    Event,
    Filter,
    Group,
    LeftBehind,
    Lesson,
    Minute,
    MoveFilter,
    MovePage,
    OutcomeTally,
    Page,
    Quiet,
    Returning,
    Seal,
    Tally,
    Total,
)
from redrive.core.timings import TimedBy, Timing
from redrive.stores.sqlite import ledger, move_list, pace, reads
from redrive.stores.sqlite.connection import open_reader, translate
from redrive.stores.sqlite.forks import use
from redrive.stores.sqlite.liveness import ProcessLock, left_behind
from redrive.stores.sqlite.machine import Machine
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import select
from redrive.stores.sqlite.waiters import Waiters

T = TypeVar("T")


class ReadVerbs(ABC):
    """The reading half of a store. The writing half opens the file and says when it is ready."""

    path: Path
    _machine: Machine
    _lock: ProcessLock
    _waiters: Waiters
    _failure_waiters: Waiters

    @property
    @abstractmethod
    def failed(self) -> str | None:
        """Why the store has stopped itself."""

    @property
    def answers(self) -> bool:
        return True

    def hurry(self) -> None:  # noqa: B027 - for stores on other machines
        """Nothing is asked of other machines here."""

    def _fresh_readers(self) -> None:
        self._readers: ThreadPoolExecutor | None = None
        self._local = threading.local()

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

    @property
    def _routes(self) -> Routes:
        return self._machine.routes

    def _reader(self) -> apsw.Connection:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = open_reader(self.path)
        return connection

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        await self._ready()

        def run() -> T:
            """One short snapshot, however many queries."""
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

    async def get(self, ids: Sequence[str]) -> list[Job]:
        return await self._read_current(lambda connection: reads.get(connection, self._routes, ids))

    async def doc(self, kind: str, key: str) -> Document | None:
        return await self._read_current(lambda connection: reads.doc(connection, kind, key))

    async def docs(self, kind: str, prefix: str = "") -> list[Document]:
        return await self._read_current(lambda connection: reads.docs(connection, kind, prefix))

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100, *, oldest: bool = False) -> Page:
        routes = self._routes
        return await self._read(lambda connection: reads.find(connection, routes, filter, cursor, limit, oldest=oldest))

    async def first(self, filters: Sequence[Filter], *, oldest: bool = False) -> list[Job | None]:
        return await self._read(lambda connection: reads.first(connection, self._routes, filters, oldest=oldest))

    async def seal(self, filter: Filter) -> Seal:
        return await self._read(lambda connection: reads.seal(connection, self._routes, filter))

    async def overdue(
        self, now: float, queue: str | None = None, limit: int = 1, *, task: str | None = None
    ) -> list[Job]:
        return await self._read(lambda connection: reads.overdue(connection, self._routes, now, queue, task, limit))

    async def count(
        self, filter: Filter, by: Sequence[str] = (), *, current: bool = False
    ) -> dict[tuple[str | None, ...], int]:
        read = self._read_current if current else self._read
        return await read(lambda connection: reads.count(connection, self._routes, filter, by))

    async def left_behind(self, now: float) -> list[LeftBehind]:
        lock, names = self._lock, self._routes.names
        return await self._read(
            lambda connection: left_behind(lock, select(connection, reads.SIGNS), names(connection), now)
        )

    async def returning(self, now: float) -> list[Returning]:
        return await self._read(lambda connection: reads.returning(connection, self._routes, now))

    async def quiet(self, since: float, limit: int = 100) -> list[Quiet]:
        return await self._read(lambda connection: reads.quiet(connection, self._routes, since, limit))

    async def durations(self, task: str, last: int = 100) -> list[float]:
        return await self._read(lambda connection: reads.durations(connection, self._routes, task, last))

    async def timings(self, by: TimedBy) -> list[Timing]:
        return await self._read(lambda connection: pace.timings(connection, self._routes, by))

    async def events(self, after: str | None, limit: int = 1000) -> list[Event]:
        return await self._read(lambda connection: reads.events(connection, self._routes, after, limit))

    async def latest(self, limit: int = 50) -> list[Event]:
        return await self._read(lambda connection: reads.latest(connection, self._routes, limit))

    async def moves(self, filter: MoveFilter, cursor: str | None = None, limit: int = 50) -> MovePage:
        return await self._read(lambda connection: move_list.moves(connection, self._routes, filter, cursor, limit))

    async def story(self, job_id: str) -> list[Event]:
        return await self._read(lambda connection: reads.story(connection, self._routes, job_id))

    async def tallies(self, since: float, until: float, *, whole: bool = False) -> list[Tally]:
        return await self._read(lambda connection: ledger.tallies(connection, self._routes, since, until, whole=whole))

    async def totals(self, since: float, until: float) -> list[Total]:
        return await self._read(lambda connection: ledger.totals(connection, self._routes, since, until))

    async def outcomes(self, since: float, until: float, *, whole: bool = False) -> list[OutcomeTally]:
        return await self._read(lambda connection: ledger.outcomes(connection, self._routes, since, until, whole=whole))

    async def minutes(self, since: float, until: float) -> list[Minute]:
        return await self._read(lambda connection: ledger.minutes(connection, since, until))

    async def groups(self, since: float = 0.0, fingerprints: Sequence[str] | None = None) -> list[Group]:
        return await self._read(lambda connection: ledger.groups(connection, self._routes, since, fingerprints))

    async def lessons(self, *fingerprints: str) -> list[Lesson]:
        return await self._read(lambda connection: ledger.lessons(connection, fingerprints))

    async def scan_page(self, after: int) -> tuple[list[Job], int]:
        """Some records after a number, in order, and the number after which to go on."""
        return await self._read_current(partial(reads.scan, routes=self._routes, after=after))

    async def scan(self) -> AsyncIterator[Job]:
        last = 0
        while True:
            jobs, last = await self.scan_page(last)
            if not jobs:
                return
            for job in jobs:
                yield job

    async def backup(self, target: str) -> int:
        return await self._read_current(lambda connection: reads.backup(connection, Path(target)))

    async def process(self) -> str:
        await self._ready()
        return self._lock.name

    async def ended(self, processes: Collection[str]) -> dict[str, bool]:
        await self._ready()
        lock = self._lock

        def look() -> dict[str, bool]:
            return {process: lock.is_dead(process) for process in processes if lock.can_see(process)}

        return await asyncio.get_running_loop().run_in_executor(self._readers, look)
