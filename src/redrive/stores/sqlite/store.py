"""SqliteStore: the verbs of core/store.py on one SQLite file."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from redrive.core.job import Job, State
from redrive.core.store import (
    Claim,
    Commit,
    Document,
    Event,
    Filter,
    Group,
    Info,
    Inserted,
    Lease,
    Lesson,
    Minute,
    Outcome,
    OutcomeTally,
    Page,
    Pruned,
    Put,
    Seal,
    Tally,
    Total,
    Unknown,
    Wanted,
)
from redrive.errors import CommitUnknown, StoreError
from redrive.stores.sqlite import claims, commits, ledger, reads, spans
from redrive.stores.sqlite.bulk import bulks
from redrive.stores.sqlite.connection import open_reader, translate
from redrive.stores.sqlite.foreign import Foreign
from redrive.stores.sqlite.forks import use
from redrive.stores.sqlite.handing import handed
from redrive.stores.sqlite.liveness import Observer, ProcessLock, Running
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.standing import Found, Standing, nothing
from redrive.stores.sqlite.unreadable import put_off
from redrive.stores.sqlite.writer import Work, Writer

log = logging.getLogger("redrive.store")
T = TypeVar("T")
WATCH_SECONDS = 0.04
"""How often a waiting process looks for other processes' commits."""
OBSERVE_SECONDS = 1.0
"""How often a claim looks for ended leases."""
STAMP_SECONDS = 3.0
"""How far the latest stamp may be ahead of the one on record."""
EMPTYING = 25
EMPTYING_PAUSE = 0.1
"""How often the log is tried to be emptied of what was erased, and the seconds between two tries."""
MAX_RECORD = 512 * 1024 * 1024

_abandoned: list[object] = []
"""What a forked child inherited: SQLite connections must be neither used nor closed there."""
_generation = 0
"""Grows in every forked child, so that a store notices at once that it must open its file anew."""


def _forked() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class SqliteStore:
    """The embedded store. `:memory:` means a temporary file."""

    def __init__(self, path: str | Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._temporary = _temporary_folder() if str(path) == ":memory:" else None
        self.path = self._temporary / "jobs.db" if self._temporary else Path(path).expanduser().absolute()
        self._monotonic = monotonic
        self._fresh()

    def _fresh(self) -> None:
        """Everything that belongs to this process, and is made anew in a forked child."""
        self._generation = _generation
        self._opening = threading.Lock()
        self._writer: Writer | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._routes = Routes()
        self._lock = ProcessLock(self.path)
        self._observer = Observer(self._lock)
        self._observed = -OBSERVE_SECONDS
        self._stamped = 0.0
        self._plenty = False
        """The last claim got all it wanted: the next will not look first whether there is anything."""
        self._insert = self._insert_waiting(self._routes)
        self._standing: set[Standing] = set()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._mark = 0
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()

    # -- opening and closing

    async def open(self) -> Info:
        await self._ready()
        return Info(f"sqlite:{self.path}", "synced", MAX_RECORD, await self._read(reads.schema_number))

    async def _ready(self) -> Writer:
        writer = self._writer
        if writer is not None and writer.opened and self._generation == _generation:
            return writer
        return await self._open()

    async def _open(self) -> Writer:
        if self._generation != _generation:
            _abandoned.append((self._writer, self._readers, self._local))
            self._fresh()
        with self._opening:
            writer = self._writer
            if writer is None or writer.refused:
                if self._temporary:
                    self._temporary.mkdir(mode=0o700, exist_ok=True)  # closed before, and used again
                writer = self._writer = Writer(self.path, self._wake, self._lock.take, self._serve_standing)
                writer.start()
                self._readers = ThreadPoolExecutor(2, thread_name_prefix="redrive-reader")
        await writer.ready()
        return writer

    async def close(self) -> None:
        """Takes the parts out first, so that a cancelled close leaves a store that can be used again.

        When it returns, nobody here has the file open: whoever opens it next may be the only one, and after a failed
        sync has to be (see `rewrite_log`).
        """
        writer, readers, lock, closed, watcher = (
            self._writer, self._readers, self._lock, self._closed, self._watcher,
        )  # fmt: skip
        if writer is None or self._generation != _generation:
            return
        self._wake()
        self._fresh()
        closed.set()
        await writer.stop()
        loop = asyncio.get_running_loop()
        if readers is not None:
            await loop.run_in_executor(None, readers.shutdown)
        if watcher is not None:
            await loop.run_in_executor(None, watcher.join)
        lock.release()
        if self._temporary:
            _remove(self._temporary)

    # -- reading

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

    async def get(self, ids: Sequence[str]) -> list[Job]:
        return await self._read(lambda connection: reads.get(connection, self._routes, ids))

    async def doc(self, kind: str, key: str) -> Document | None:
        return await self._read(lambda connection: reads.doc(connection, kind, key))

    async def docs(self, kind: str, prefix: str = "") -> list[Document]:
        return await self._read(lambda connection: reads.docs(connection, kind, prefix))

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

    async def count(self, filter: Filter, by: Sequence[str] = ()) -> dict[tuple[str | None, ...], int]:
        return await self._read(lambda connection: reads.count(connection, self._routes, filter, by))

    async def events(self, after: str | None, limit: int = 1000) -> list[Event]:
        return await self._read(lambda connection: reads.events(connection, self._routes, after, limit))

    async def latest(self, limit: int = 50) -> list[Event]:
        return await self._read(lambda connection: reads.latest(connection, self._routes, limit))

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

    async def scan(self) -> AsyncIterator[Job]:
        last = 0
        while True:
            jobs, last = await self._read(partial(reads.scan, routes=self._routes, after=last))
            if not jobs:
                return
            for job in jobs:
                yield job

    # -- writing

    async def _write(self, work: Work[T], **how: Any) -> T:
        writer = await self._ready()
        return await writer.run(work, **how)

    async def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> list[Inserted]:
        writer = await self._ready()
        before = self._routes.make([(job.queue, job.task, job.agent) for job in jobs])
        inserted: list[Inserted] = await writer.run_batched(self._insert, (jobs, documents), before=before)
        return inserted

    def _insert_waiting(
        self, routes: Routes
    ) -> Callable[[apsw.Connection, list[commits.Accepted]], list[list[Inserted]]]:
        def insert(connection: apsw.Connection, callers: list[commits.Accepted]) -> list[list[Inserted]]:
            """Also keeps the latest time anybody stamped a job with, so that a clock gone back is noticed."""
            latest = max((job.created_at for jobs, _ in callers for job in jobs), default=0.0)
            if latest > self._stamped + STAMP_SECONDS:
                self._stamped = latest
                connection.execute(commits.STAMP, (str(latest).encode(),))
            return commits.insert(connection, routes, callers)

        return insert

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        moved = [transition for commit in group for transition in commit.transitions]
        wakes = any(move.to is State.waiting for move in moved) or any(commit.puts for commit in group)
        commits.refuse_large(group)
        routes, ready = self._routes, bulks(group)
        try:
            return await self._write(
                lambda connection: commits.apply(connection, routes, group, ready),
                before=routes.make(commits.routes_of(moved)),
                wakes=wakes,
            )
        except CommitUnknown as error:
            return [Unknown(str(error))] * len(group)

    async def claim(self, wanted: Wanted, worker: str, now: float) -> Claim:
        await self._ready()
        self._watch()
        found: Found = await self._write(
            lambda connection: self._claim(connection, wanted, worker, now),
            synced=wanted.synced,
            peek=None if self._plenty and wanted.slots > 0 else lambda connection: self._peek(connection, wanted, now),
        )
        return await self._read_claim(found)

    async def _read_claim(self, found: Found) -> Claim:
        """Nobody would run what was claimed and cannot be read, until its lease ends: it is given back."""
        try:
            return found.read()
        except Exception as error:
            number = await self._write(found.give_back) or found.number
            raise StoreError(
                f"{number} of {found.number} due jobs of {self.path} cannot be read ({error}); they wait on."
                " `redrive doctor --full` tells which: the file may be damaged, or a newer version has written it"
            ) from error

    def _peek(self, connection: apsw.Connection, wanted: Wanted, now: float) -> Found | None:
        """The answer when nothing is due, found without taking the write lock."""
        mark = self._mark
        if wanted.ids:
            return None
        if wanted.slots <= 0:
            return nothing(self._lapsed(connection), mark)
        routes = claims.open_routes(connection, wanted, now)
        if any(route.due for route in routes):
            return None
        return nothing(self._lapsed(connection), mark, claims.next_due(connection, routes, now))

    def _claim(
        self, connection: apsw.Connection, wanted: Wanted, worker: str, now: float, *, look_ahead: bool = True
    ) -> Found:
        """What cannot be read is put off, and the rest is claimed."""
        try:
            return self._take(connection, wanted, worker, now, look_ahead=look_ahead)
        except reads.UNREADABLE:
            if wanted.ids or not self._put_off(connection, wanted, now):
                raise
            return self._take(connection, wanted, worker, now, look_ahead=look_ahead)

    def _put_off(self, connection: apsw.Connection, wanted: Wanted, now: float) -> int:
        due = claims.open_routes(connection, wanted, now)
        return put_off(connection, self._routes, due, wanted.slots, now)

    def _take(self, connection: apsw.Connection, wanted: Wanted, worker: str, now: float, *, look_ahead: bool) -> Found:
        """Raises, and changes nothing, where a record cannot be read."""
        mark = self._mark
        routes = [] if wanted.ids else claims.open_routes(connection, wanted, now)
        room = claims.Room(connection, wanted, now)
        if wanted.ids:
            picked = claims.pick_ids(connection, wanted.ids, self._routes.names(connection))
        else:
            picked = claims.pick(connection, routes, room, now)
            self._plenty = room.slots <= 0
        claimant = claims.Claimant(worker, self._lock.name, secrets.token_hex(8), now)
        claims.take(connection, picked, wanted, claimant)
        try:
            storied = claims.storied(connection, self._routes, picked)
        except reads.UNREADABLE:
            claims.give_back(connection, picked, claimant)
            raise
        claims.note_starts(connection, picked, wanted, now)
        ahead = look_ahead and room.slots > 0
        due = claims.next_due(connection, routes, now, room.opens(routes)) if ahead else None
        lapsed = self._lapsed(connection)
        return Found(
            sum(each.number for each in picked),
            lambda: Claim(claims.jobs(picked, wanted, claimant, storied()), lapsed, mark, due),
            lambda connection: self._give_back(connection, picked, claimant, wanted),
        )

    def _give_back(
        self, connection: apsw.Connection, picked: list[claims.Picked], claimant: claims.Claimant, wanted: Wanted
    ) -> int:
        claims.give_back(connection, picked, claimant)
        return 0 if wanted.ids else self._put_off(connection, wanted, claimant.now)

    async def claim_next(
        self, wanted: Wanted, worker: str, clock: Callable[[], float], mark: int, seconds: float, woken: asyncio.Event
    ) -> Claim | None:
        standing = Standing(wanted, worker, clock, woken)
        self._standing.add(standing)
        try:
            await self.wait(mark, seconds, woken)
        finally:
            self._standing.discard(standing)
            found = await standing.withdraw()
        return await self._read_claim(found) if found is not None else None

    def _serve_standing(self, connection: apsw.Connection) -> Callable[[bool], None]:
        """Idle workers take what this transaction makes due; told once it is committed."""
        served: list[tuple[Standing, Found | None]] = []
        for standing in list(self._standing):
            if standing.begin():
                try:
                    wanted, worker, now = standing.wanted, standing.worker, standing.clock()
                    found = self._claim(connection, wanted, worker, now, look_ahead=False)
                except BaseException:
                    standing.end(None)
                    _tell(served, committed=False)
                    raise
                served.append((standing, found if found.number else None))
        return lambda committed: _tell(served, committed=committed)

    def _lapsed(self, connection: apsw.Connection) -> list[Job]:
        """Running jobs whose lease ended, looked for at most once a second."""
        now = self._monotonic()
        if now - self._observed < OBSERVE_SECONDS:
            return []
        self._observed = now
        running = [Running(*row) for row in connection.execute(reads.RUNNING)]
        ids = self._observer.lapsed(running, now)
        return reads.get(connection, self._routes, ids) if ids else []

    async def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        return await self._write(lambda connection: commits.heartbeat(connection, leases), synced=False)

    async def prune(
        self, now: float, retention: Mapping[str, float], default: float, keys: float | None = None
    ) -> Pruned:
        pruned = await self._write(lambda connection: commits.prune(connection, now, retention, default, keys))
        if not pruned.payloads and not pruned.keys:
            await self._add_up(spans.of_late(now))
        return pruned

    async def _add_up(self, since: int) -> None:
        """While a deployment goes on, an older process may work on this file, and knows only some of the sums.

        Compared by a reader: it takes longer than writers should wait, and nearly always there is nothing to write.
        """
        if await self._read(lambda connection: spans.wrong_days(connection, since)):
            days = await self._write(lambda connection: spans.add_up(connection, since))
            said = spans.in_words(days)
            log.warning("sums of %s were wrong and have been added up anew: does an older version run here?", said)

    async def erase(self, ids: Sequence[str]) -> int:
        erased = await self._write(lambda connection: commits.erase(connection, ids))
        if not await self._empty_log():
            log.warning(
                "what was erased can still be read in %s or its log: somebody has been reading the file all the time."
                " Erase it once more when they have ended; closing the store empties the log, too", self.path,
            )  # fmt: skip
        return erased

    async def _empty_log(self) -> bool:
        """The old bytes stand there, too. Short tries: between them others write, and whoever reads may end."""
        tried: list[bool] = []
        for _ in range(EMPTYING):
            await self._write(lambda _: None, before=lambda connection: tried.append(commits.empty_log(connection)))
            if tried[-1]:
                return True
            await asyncio.sleep(EMPTYING_PAUSE)
        return False

    async def repair(self, now: float) -> list[str]:
        return await self._write(lambda connection: commits.repair(connection, now), wakes=True)

    async def backup(self, target: str) -> int:
        return await self._read(lambda connection: reads.backup(connection, Path(target)))

    # -- waking up

    def _wake(self) -> None:
        """Something changed: tell every waiting worker of this process, from whatever thread."""
        self._mark += 1
        for loop, event in list(self._waiters):
            if not handed(loop, event.set):
                self._waiters.discard((loop, event))

    async def wait(self, mark: int, seconds: float, woken: asyncio.Event | None = None) -> bool:
        await self._ready()
        waiter = (asyncio.get_running_loop(), woken or asyncio.Event())
        self._waiters.add(waiter)
        try:
            if self._mark != mark:
                return True
            async with asyncio.timeout(max(0.0, seconds)):
                return await waiter[1].wait()
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)

    def _watch(self) -> None:
        """Look for other processes' commits from now on, those between this claim and the wait after it included."""
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=self._look_around, args=(Foreign(self.path), self._closed), name="redrive-watcher", daemon=True
            )
            self._watcher.start()

    def _look_around(self, foreign: Foreign, closed: threading.Event) -> None:
        try:
            while not closed.wait(WATCH_SECONDS):
                if self._waiters and foreign.came():
                    self._wake()
        finally:
            foreign.close()


def _tell(served: list[tuple[Standing, Found | None]], *, committed: bool) -> None:
    for standing, found in served:
        standing.end(found if committed else None)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _temporary_folder() -> Path:
    """Gone when the process that made it ends; not when a forked child of it does."""
    import tempfile  # with all that it brings along, a tenth of the time in which a program starts

    folder = Path(tempfile.mkdtemp(prefix="redrive-"))

    def remove(maker: int = os.getpid()) -> None:
        if os.getpid() == maker:
            _remove(folder)

    atexit.register(remove)
    return folder
