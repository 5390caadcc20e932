"""One thread owns the writing connection and group-commits: everything that waits becomes one transaction.

Each caller's future resolves after the commit that holds its write. A cancelled await is an unknown outcome, not a
cancelled write.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import apsw

from redrive.errors import StoreError, StoreUnavailable
from redrive.stores.sqlite.connection import (
    BUSY_MS,
    CHECKPOINT_BUSY_MS,
    CHECKPOINT_PAGES,
    LOG_BUSY_MS,
    LOG_PAGES,
    LOG_PAUSE,
    failed_sync,
    open_writer,
    translate,
)
from redrive.stores.sqlite.forks import use
from redrive.stores.sqlite.handing import handed
from redrive.stores.sqlite.rows import select

log = logging.getLogger("redrive.store")
T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
Batch = Callable[[apsw.Connection, list[Any]], list[Any]]
"""Does the same for many callers at once: their items in, their answers out."""

BATCH = 1_000
"""How many operations one transaction takes at most."""
WAITING = 20_000
"""How many operations may wait before callers are slowed down."""


class _Op:
    """One caller's work and where its answer goes."""

    __slots__ = ("before", "error", "future", "loop", "peek", "synced", "value", "wakes", "work")

    def __init__(
        self,
        work: Work[Any] | _Share,
        before: Work[None] | None,
        peek: Work[Any] | None = None,
        *,
        synced: bool = True,
        wakes: bool = True,
    ) -> None:
        self.work = work
        self.before = before
        self.synced = synced
        self.peek = peek
        self.wakes = wakes
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.value: Any = None
        self.error: Exception | None = None


class _Share:
    """One caller's part of work that is cheaper together."""

    __slots__ = ("batch", "item")

    def __init__(self, batch: Batch, item: Any) -> None:
        self.batch = batch
        self.item = item

    def __call__(self, connection: apsw.Connection) -> Any:
        return self.batch(connection, [self.item])[0]


class _Stop:
    """Tells the thread to finish what was accepted and end."""


class Writer:
    """Runs work on the writing connection, one group commit after another."""

    def __init__(
        self, path: Path, woken: Callable[[], None], alive: Callable[[], None], serve: Work[Callable[[bool], None]]
    ) -> None:
        self.path = path
        self._woken = woken
        self._alive = alive
        self._serve_standing = serve
        self._ops: queue.SimpleQueue[_Op | _Stop] = queue.SimpleQueue()
        self._failed: StoreError | None = None
        self._gate = threading.Lock()
        """Nothing is handed in behind the last one."""
        self._closing = False
        self._wal_pages = 0
        self._log_limit = LOG_PAGES
        self._synced = True
        self._opened: Future[None] = Future()
        self.opened = False
        self.refused = False
        """The file could not be opened; a later try may do better."""
        self._thread = threading.Thread(target=self._main, name="redrive-writer", daemon=True)

    def start(self) -> None:
        """Open the file in the thread that will own it."""
        self._thread.start()

    async def ready(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self._opened))

    async def stop(self) -> None:
        """Finish everything accepted so far, then close."""
        with self._gate:
            self._closing = True
            self._ops.put(_Stop())
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def run(
        self,
        work: Work[T],
        *,
        synced: bool = True,
        peek: Work[T | None] | None = None,
        before: Work[None] | None = None,
        wakes: bool = False,
    ) -> T:
        """Do `work` in the next group commit. `peek` may answer without a lock when there is nothing to write.

        `before` runs outside the transaction. Unsynced work is durable with the next synced one; `wakes` tells the
        waiting workers afterwards.
        """
        answer: T = await self._hand_in(_Op(work, before, peek, synced=synced, wakes=wakes))
        return answer

    async def run_batched(self, batch: Batch, item: Any, *, before: Work[None] | None = None) -> Any:
        """Like `run`, for work that is cheaper together: all waiting items of one batch are done in one call."""
        return await self._hand_in(_Op(_Share(batch, item), before))

    async def _hand_in(self, op: _Op) -> Any:
        """Whatever passes the gate is answered."""
        while self._ops.qsize() > WAITING:  # noqa: ASYNC110 - the other side is a thread
            await asyncio.sleep(0.01)
        if self._failed is not None:
            raise _anew(self._failed)
        with self._gate:
            if self._closing:
                raise StoreUnavailable(f"{self.path} is closed")
            self._ops.put(op)
        return await op.future

    def _main(self) -> None:
        try:
            with use:
                connection = open_writer(self.path)
            self._alive()  # before anybody can claim: others take who shows no sign of life for dead
        except Exception as error:  # noqa: BLE001 - handed to the caller
            self.refused = True
            self._opened.set_exception(error)
            return
        connection.set_wal_hook(self._wal_grew)
        self.opened = True
        self._opened.set_result(None)
        self._serve(connection)
        with use:
            self._end(connection)

    def _wal_grew(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _serve(self, connection: apsw.Connection) -> None:
        stopping = False
        while not stopping:
            first = self._ops.get()
            batch = [first] if isinstance(first, _Op) else []
            stopping = isinstance(first, _Stop)
            while len(batch) < BATCH and not stopping:
                try:
                    op = self._ops.get_nowait()
                except queue.Empty:
                    break
                if isinstance(op, _Op):
                    batch.append(op)
                else:
                    stopping = True
            if batch:
                with use:
                    self._group(connection, batch)

    def _end(self, connection: apsw.Connection) -> None:
        if self._failed is None:
            self._checkpoint(connection, "TRUNCATE")
        connection.close()

    def _group(self, connection: apsw.Connection, batch: list[_Op]) -> None:
        """One group commit, from looking whether there is work to telling the callers."""
        if self._failed is not None:
            _answer(batch, self._failed)
            return
        try:
            batch = _skip_idle(connection, batch)
            if batch:
                self._transaction(connection, batch)
        except Exception as error:  # noqa: BLE001 - every caller of the group is told
            _roll_back(connection)
            _answer(batch, self._broken(error))
            return
        if any(op.wakes for op in batch):
            self._woken()  # before the answers: it is on disk, and somebody may be idle
        _answer(batch)
        if self._wal_pages >= CHECKPOINT_PAGES:
            self._shorten_log(connection)

    def _transaction(self, connection: apsw.Connection, batch: list[_Op]) -> None:
        for op in batch:
            if op.before is not None:
                op.before(connection)
        synced = any(op.synced for op in batch)
        if synced != self._synced:
            connection.execute("PRAGMA synchronous = FULL" if synced else "PRAGMA synchronous = NORMAL")
            self._synced = synced
        connection.execute("BEGIN IMMEDIATE")
        if len(batch) == 1:
            batch[0].value = batch[0].work(connection)
        else:
            _several(connection, batch)
        served = self._serve_standing(connection) if any(op.wakes for op in batch) else _nobody
        try:
            connection.execute("COMMIT")
        except BaseException:
            served(False)
            raise
        served(True)

    def _broken(self, error: Exception) -> Exception:
        """What to tell the callers; a failed sync stops the store for good, not the process."""
        if not isinstance(error, apsw.Error):
            return error
        told = translate(error, str(self.path))
        told.__cause__ = error.with_traceback(None)  # its frames hold the whole group
        if failed_sync(error):
            self._failed = told
            log.critical("store stopped: %s", told)
        return told

    def _shorten_log(self, connection: apsw.Connection) -> None:
        """After the callers have their answers.

        Where several processes write all the time, one has always added to the log by the time another has written it
        back, and it would grow for ever: then they wait for a moment. Not for long, and not again before it has grown
        further: whoever reads for long cannot be helped.
        """
        pages = self._wal_pages
        if pages < self._log_limit:
            self._checkpoint(connection, "PASSIVE")
            return
        emptied = self._checkpoint(connection, "RESTART", LOG_BUSY_MS)
        if emptied is None:
            time.sleep(LOG_PAUSE)
        else:
            self._log_limit = LOG_PAGES if emptied else pages + LOG_PAGES

    def _checkpoint(self, connection: apsw.Connection, mode: str, patience: int = CHECKPOINT_BUSY_MS) -> bool | None:
        """Move the log into the database; True when all of it was, None where somebody else is doing so."""
        self._wal_pages = 0
        connection.set_busy_timeout(patience)  # while we wait for others, nobody else can checkpoint
        try:
            ((busy, pages, _),) = select(connection, f"PRAGMA wal_checkpoint({mode})")
            return None if pages < 0 else not busy
        except apsw.BusyError:
            return False  # somebody reads: the next checkpoint will do it
        except apsw.Error as error:
            log.warning("checkpoint of %s failed: %s", self.path, self._broken(error))
            return False
        finally:
            connection.set_busy_timeout(BUSY_MS)


def _nobody(committed: bool) -> None:
    """No standing claim was served."""


def _skip_idle(connection: apsw.Connection, batch: list[_Op]) -> list[_Op]:
    """Answer those that have nothing to write, so that an idle worker never takes the write lock."""
    if any(op.peek is None for op in batch):
        return batch
    busy = []
    for op in batch:
        op.value = op.peek(connection) if op.peek else None
        if op.value is None:
            busy.append(op)
    _answer([op for op in batch if op.value is not None])
    return busy


def _several(connection: apsw.Connection, ops: list[_Op]) -> None:
    """Those that go together, together; the others one by one."""
    together: dict[Batch, dict[_Op, Any]] = {}
    alone = []
    for op in ops:
        if isinstance(op.work, _Share):
            together.setdefault(op.work.batch, {})[op] = op.work.item
        else:
            alone.append(op)
    for batch, members in together.items():
        if not _all_at_once(connection, batch, members):
            for op in members:
                _one(connection, op)
    for op in alone:
        _one(connection, op)


def _all_at_once(connection: apsw.Connection, batch: Batch, items: dict[_Op, Any]) -> bool:
    """One call for all; False, and nothing written, where one of them spoils it for the others."""
    connection.execute("SAVEPOINT batch")
    try:
        values = batch(connection, list(items.values()))
    except Exception as error:
        if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError):
            raise  # the disk, not a caller
        connection.execute("ROLLBACK TO batch")
        connection.execute("RELEASE batch")
        return False
    connection.execute("RELEASE batch")
    for op, value in zip(items, values, strict=True):
        op.value = value
    return True


def _one(connection: apsw.Connection, op: _Op) -> None:
    """One operation beside others gets a savepoint, so that its failure is its own."""
    connection.execute("SAVEPOINT op")
    try:
        op.value = op.work(connection)
    except apsw.Error as error:
        if not isinstance(error, apsw.ConstraintError):
            raise  # the disk, not the caller: the whole group fails
        op.error = StoreError(f"refused by the database: {error}")
        connection.execute("ROLLBACK TO op")
    except Exception as error:  # noqa: BLE001 - told to its own caller
        op.error = error
        connection.execute("ROLLBACK TO op")
    connection.execute("RELEASE op")


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except apsw.Error as error:
            log.warning("rollback failed: %s", error)


def _answer(ops: list[_Op], error: Exception | None = None) -> None:
    """Tell the callers, one wake-up per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Op]] = {}
    for op in ops:
        loops.setdefault(op.loop, []).append(op)
    for loop, told in loops.items():
        if not handed(loop, _resolve, told, error):
            log.warning("%d writes were committed after their callers' event loop was closed", len(told))


def _resolve(ops: list[_Op], error: Exception | None) -> None:
    for op in ops:
        if op.future.done():
            continue  # cancelled: the write happened all the same
        if failed := error or op.error:
            op.future.set_exception(_anew(failed))
        else:
            op.future.set_result(op.value)


def _anew(error: Exception) -> Exception:
    """The same for each caller: one exception that is raised again and again would carry all their stacks along."""
    if not isinstance(error, StoreError):
        return error
    fresh = type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh
