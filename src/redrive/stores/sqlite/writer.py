"""One thread owns the writing connection and group-commits: all writes that wait become one transaction.

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
    is_failed_sync,
    open_writer,
    refuse_moved,
    translate,
)
from redrive.stores.sqlite.file_guard import FileGuard
from redrive.stores.sqlite.fork_guard import use
from redrive.stores.sqlite.records import select
from redrive.stores.sqlite.wakeups import call_in_loop

log = logging.getLogger("redrive.store")
T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
Together = Callable[[apsw.Connection, list[Any]], list[Any]]
"""Does the same for many callers at once: their items in, their answers out."""

BATCH = 1_000
"""How many operations one transaction takes at most."""
WAITING = 20_000
"""How many operations may wait before callers are slowed down."""
CHECKPOINT_PAGES = 1_000
LOG_PAGES = 4_000
"""A log of so many pages is emptied although other processes have to wait for that."""
LOG_BUSY_MS = 1_000
LOG_PAUSE = 0.02
"""Seconds in which a process leaves the file to the one that empties the log."""


class _Op:
    """One caller's work, and the future that gets its answer."""

    __slots__ = ("before", "error", "future", "peek", "synced", "tells", "value", "wakes", "work")

    def __init__(
        self,
        work: Work[Any] | _Share,
        before: Work[None] | None,
        peek: Work[Any] | None = None,
        *,
        synced: bool = True,
        wakes: bool = True,
        tells: bool = True,
    ) -> None:
        self.work = work
        self.before = before
        self.synced = synced
        self.peek = peek
        self.wakes = wakes
        self.tells = tells
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.value: Any = None
        self.error: Exception | None = None


class _Share:
    """One caller's part of work that is cheaper together."""

    __slots__ = ("batch", "item")

    def __init__(self, batch: Together, item: Any) -> None:
        self.batch = batch
        self.item = item

    def __call__(self, connection: apsw.Connection) -> Any:
        return self.batch(connection, [self.item])[0]


class _Stop:
    """Tells the thread to finish the accepted work and end."""


class Writer:
    """Runs work on the writing connection, one group commit after another."""

    def __init__(
        self,
        path: Path,
        woken: Callable[[], None],
        alive: Callable[[], None],
        serve: Work[Callable[[bool], None]],
        tell: Callable[[bool], None],
    ) -> None:
        self.path = path
        self.guard = FileGuard(path)
        self._woken = woken
        self._alive = alive
        self._serve_standing = serve
        self._tell_others = tell
        self._ops: queue.SimpleQueue[_Op | _Stop] = queue.SimpleQueue()
        self.failed: StoreError | None = None
        """Why nothing is written any more, after a failed sync."""
        self._began: float | None = None
        """When the group that is being written was taken up."""
        self._gate = threading.Lock()
        """Keeps callers from handing in work after `_Stop`."""
        self._closing = False
        self._waiting: list[_Op] = []
        """The group that is being written."""
        self._lock_wanted = 0.0
        """Since when this group has waited for the write lock."""
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

    def waited(self) -> float:
        """Seconds for which the oldest write has waited for its commit; 0 where none waits."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    async def run(
        self,
        work: Work[T],
        *,
        synced: bool = True,
        peek: Work[T | None] | None = None,
        before: Work[None] | None = None,
        wakes: bool = False,
        tells: bool = False,
    ) -> T:
        """Do `work` in the next group commit. `peek` may answer without a lock when there is nothing to write.

        `before` runs outside the transaction. Unsynced work is durable with the next synced one; `wakes` tells the
        waiting workers afterwards, also those of other processes; `tells` tells only other processes.
        """
        if self._ops.qsize() > WAITING:
            await self._until_there_is_room()
        op = _Op(work, before, peek, synced=synced, wakes=wakes, tells=tells or wakes)
        answer: T = await self._hand_in(op)
        return answer

    async def run_batched(self, batch: Together, item: Any, *, before: Work[None] | None = None) -> Any:
        """Like `run`, for work that is cheaper together: all waiting items of one batch are done in one call."""
        if self._ops.qsize() > WAITING:
            await self._until_there_is_room()
        return await self._hand_in(_Op(_Share(batch, item), before))

    async def _until_there_is_room(self) -> None:
        while self._ops.qsize() > WAITING:  # noqa: ASYNC110 - the other side is a thread
            await asyncio.sleep(0.01)

    def _hand_in(self, op: _Op) -> asyncio.Future[Any]:
        """Hand the operation to the thread. Every operation that passes the gate is answered."""
        if self.failed is not None:
            raise _copy_error(self.failed)
        with self._gate:
            if self._closing:
                raise StoreUnavailable(f"{self.path} is closed")
            self._ops.put(op)
        return op.future

    def _main(self) -> None:
        try:
            self.guard.take()
            with use:
                connection = self._open_file()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            self.guard.release()
            self.refused = True
            self._opened.set_exception(error)
            return
        connection.set_wal_hook(self._wal_grew)
        connection.set_busy_handler(self._wait_for_lock)
        self.opened = True
        self._opened.set_result(None)
        self._serve(connection)
        with use:
            self._end(connection)

    def _open_file(self) -> apsw.Connection:
        """Open the file and take the lock file before any claim: others take a process without one for dead."""
        connection = open_writer(self.path)
        try:
            refuse_moved(connection, self.path)
            self._alive()
            refuse_moved(connection, self.path)  # a mover marks the file first, then looks for living processes
        except BaseException:
            connection.close()
            raise
        return connection

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
                self._began = time.monotonic()
                with use:
                    self._group(connection, batch)
                self._began = None

    def _end(self, connection: apsw.Connection) -> None:
        if self.failed is None:
            self._checkpoint(connection, "TRUNCATE")
        connection.close()

    def _group(self, connection: apsw.Connection, batch: list[_Op]) -> None:
        """Run one group commit, from looking whether there is work to answering the callers."""
        if self.failed is not None:
            _answer(batch, self.failed)
            return
        self._waiting = batch
        try:
            batch = _skip_idle(connection, batch)
            wakes = bool(batch) and self._transaction(connection, batch)
        except Exception as error:  # noqa: BLE001 - every caller of the group gets it
            _roll_back(connection)
            _answer(batch, self._broken(error))
            return
        finally:
            self._waiting = []
        if wakes:
            self._woken()  # before the answers: the commit is on disk, and a worker may be idle
        if wakes or any(op.tells for op in batch):
            self._tell_others(wakes)
        _answer(batch)
        if self._wal_pages >= CHECKPOINT_PAGES:
            self._shorten_log(connection)

    def _transaction(self, connection: apsw.Connection, batch: list[_Op]) -> bool:
        """Write and commit; returns whether workers are to be woken."""
        synced = wakes = False
        for op in batch:
            synced, wakes = synced or op.synced, wakes or op.wakes
            if op.before is not None:
                op.before(connection)
                connection.set_busy_handler(self._wait_for_lock)  # it may have waited in another way
        if synced != self._synced:
            connection.execute("PRAGMA synchronous = FULL" if synced else "PRAGMA synchronous = NORMAL")
            self._synced = synced
        connection.execute("BEGIN IMMEDIATE")
        if len(batch) == 1:
            batch[0].value = batch[0].work(connection)
        else:
            _run_several(connection, batch)
        served = self._serve_standing(connection) if wakes else _serve_none
        try:
            connection.execute("COMMIT")
        except BaseException:
            served(False)
            raise
        served(True)
        return wakes

    def _wait_for_lock(self, tries: int) -> bool:
        """Decide whether to try again to get the write lock, which another process has.

        Callers whose jobs are in the spool by now have stopped waiting: for them alone we do not wait either.
        """
        if not tries:
            self._lock_wanted = time.monotonic()
        given_up = all(isinstance(op.work, _Share) and op.future.cancelled() for op in self._waiting)
        if time.monotonic() - self._lock_wanted >= BUSY_MS / 1000 or (self._waiting and given_up):
            return False
        time.sleep(_DELAYS[min(tries, len(_DELAYS) - 1)])
        return True

    def _broken(self, error: Exception) -> Exception:
        """Return the error for the callers. A failed sync stops the store for good, not the process."""
        if not isinstance(error, apsw.Error):
            return error
        translated = translate(error, str(self.path))
        translated.__cause__ = error.with_traceback(None)  # its frames hold the whole group
        if is_failed_sync(error):
            self.failed = translated
            log.critical("store stopped: %s", translated)
            self._woken()
        return translated

    def _shorten_log(self, connection: apsw.Connection) -> None:
        """Checkpoint, after the callers have their answers.

        Where several processes write all the time, the log would grow for ever: at its limit the writers wait for a
        moment, and not again before it has grown further, because a long read may keep it from being emptied.
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
        """Move the log into the database; True when all of it was, None where another process is doing so."""
        self._wal_pages = 0
        connection.set_busy_timeout(patience)  # while we wait for others, no other process can checkpoint
        try:
            ((busy, pages, _),) = select(connection, f"PRAGMA wal_checkpoint({mode})")
            return None if pages < 0 else not busy
        except apsw.BusyError:
            return False  # a reader holds the log: the next checkpoint will do it
        except apsw.Error as error:
            log.warning("checkpoint of %s failed: %s", self.path, self._broken(error))
            return False
        finally:
            connection.set_busy_handler(self._wait_for_lock)


_DELAYS = (0.001, 0.002, 0.005, 0.010, 0.015, 0.020, 0.025, 0.025, 0.025, 0.050, 0.050, 0.100)
"""Seconds between two tries to get the lock, as SQLite has them itself."""


def _serve_none(committed: bool) -> None:
    """No standing claim was served."""


def _skip_idle(connection: apsw.Connection, batch: list[_Op]) -> list[_Op]:
    """Answer those that have nothing to write, so that an idle worker never takes the write lock."""
    for op in batch:
        if op.peek is None:
            return batch
    busy = []
    for op in batch:
        op.value = op.peek(connection) if op.peek else None
        if op.value is None:
            busy.append(op)
    _answer([op for op in batch if op.value is not None])
    return busy


def _run_several(connection: apsw.Connection, ops: list[_Op]) -> None:
    """Run the work that is cheaper together in one call, the other work one by one."""
    together: dict[Together, dict[_Op, Any]] = {}
    alone = []
    for op in ops:
        if isinstance(op.work, _Share):
            together.setdefault(op.work.batch, {})[op] = op.work.item
        else:
            alone.append(op)
    for batch, members in together.items():
        if not _run_at_once(connection, batch, members):
            for op in members:
                _run_one(connection, op)
    for op in alone:
        _run_one(connection, op)


def _run_at_once(connection: apsw.Connection, batch: Together, items: dict[_Op, Any]) -> bool:
    """Make one call for all; returns False, and writes nothing, where one item makes the call fail."""
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


def _run_one(connection: apsw.Connection, op: _Op) -> None:
    """Run one operation in a savepoint, so that its failure does not touch the others."""
    connection.execute("SAVEPOINT op")
    try:
        op.value = op.work(connection)
    except apsw.Error as error:
        if not isinstance(error, apsw.ConstraintError):
            raise  # the disk, not the caller: the whole group fails
        op.error = StoreError(f"refused by the database: {error}")
        connection.execute("ROLLBACK TO op")
    except Exception as error:  # noqa: BLE001 - for its own caller
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
    """Answer the callers, with one wake-up per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Op]] = {}
    for op in ops:
        loops.setdefault(op.future.get_loop(), []).append(op)
    for loop, answered in loops.items():
        if not call_in_loop(loop, _resolve, answered, error):
            log.warning("%d writes were committed after their callers' event loop was closed", len(answered))


def _resolve(ops: list[_Op], error: Exception | None) -> None:
    for op in ops:
        if op.future.done():
            continue  # cancelled: the write happened all the same
        if failed := error or op.error:
            op.future.set_exception(_copy_error(failed))
        else:
            op.future.set_result(op.value)


def _copy_error(error: Exception) -> Exception:
    """Copy the error for each caller: one exception that is raised again and again would carry all their stacks."""
    if not isinstance(error, StoreError):
        return error
    fresh = type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh
