"""Wakes what waits in event loops for a change of the store, by whatever thread or process."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from redrive.stores.sqlite.connection import open_reader
from redrive.stores.sqlite.fork_guard import use
from redrive.stores.sqlite.records import select

log = logging.getLogger("redrive.store")
T = TypeVar("T")
TURNS: Final = 10
MOVED: Final = 1_000
"""How many moves are read at once; after more, any job may have moved."""
_MOVED: Final = (
    "SELECT moves.seq, jobs.id FROM moves JOIN jobs ON jobs.seq = moves.job"
    " WHERE moves.seq > ? ORDER BY moves.seq LIMIT ?"
)


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> bool:
    """Let the loop make this call; False where the loop was closed, so that no caller waits there any more."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True


def is_cancelled() -> bool:
    """Whether the caller of the running task has cancelled it; otherwise what the task waited for was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Gate:
    """Lets other threads hand work to an event loop until the gate is shut. What was let in is begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shut = False

    def enter(self, hand_over: Callable[[], T]) -> T | None:
        """Hand something over; None where the loop takes nothing more."""
        with self._lock:
            return None if self._is_shut else hand_over()

    async def shut(self) -> None:
        """Take nothing more, and let what was taken run. Called in the loop itself."""
        with self._lock:
            self._is_shut = True
        for _ in range(TURNS):
            await asyncio.sleep(0)


class Waiters:
    """Counts changes: `mark` is the number of the last one, so that a change between two steps is not missed."""

    def __init__(self) -> None:
        self.mark = 0
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def wake(self) -> None:
        """Count a change and wake everyone who waits, from any thread."""
        self.mark += 1
        for loop, event in list(self._waiters):
            if not call_in_loop(loop, event.set):
                self._waiters.discard((loop, event))

    async def wait(self, mark: int, seconds: float | None, woken: asyncio.Event | None = None) -> bool:
        """Sleep until something changed since the mark or `woken` is set (True), or so long (False)."""
        waiter = (asyncio.get_running_loop(), woken or asyncio.Event())
        self._waiters.add(waiter)
        try:
            if self.mark != mark:
                return True
            async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
                return await waiter[1].wait()
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)


class ForeignCommits:
    """Notices commits of other processes by `data_version`, which costs hardly any I/O. Logs an error once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: apsw.Connection | None = None
        self._seen: object = None
        self._last_move: int | None = None
        """The last move that `list_moved` has read."""
        self._failing = False
        self.came()

    def came(self) -> bool:
        """Whether another process has committed since the last call, or may have, unseen."""
        try:
            with use:
                now = self._version()
        except apsw.Error as error:
            if not self._failing:
                log.warning("other processes' commits to %s are noticed late, by polling: %s", self._path, error)
            self._failing = True
            self.close()
            return False
        self._failing = False
        seen, self._seen = self._seen, now
        return seen != now

    def list_moved(self) -> list[str] | None:
        """List the jobs that have moved since the last call; None where any may have."""
        try:
            with use:
                return self._read_moved()
        except (apsw.Error, UnicodeDecodeError):  # `came` logs what keeps this process from looking; or a damaged id
            self._last_move = None
            return None

    def skip_moved(self) -> None:
        """Read no moves, because no caller follows a job; the next list cannot tell what moved meanwhile."""
        self._last_move = None

    def _read_moved(self) -> list[str] | None:
        if self._connection is None:
            return None
        if self._last_move is None:
            ((self._last_move,),) = select(self._connection, "SELECT ifnull(max(seq), 0) FROM moves")
            return None
        moved = select(self._connection, _MOVED, (self._last_move, MOVED + 1))
        self._last_move = None if len(moved) > MOVED else moved[-1][0] if moved else self._last_move
        return None if len(moved) > MOVED else [id for _, id in moved]

    def _version(self) -> object:
        if self._connection is None:
            self._connection = open_reader(self._path)
        return self._connection.pragma("data_version")

    def close(self) -> None:
        """Close the connection. The next look opens a new one and assumes that a commit came meanwhile."""
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            with use:
                connection.close(True)
