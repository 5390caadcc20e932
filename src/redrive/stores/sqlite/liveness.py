"""Tells which processes are alive: by a lock file per process, and by leases on the observer's own monotonic clock.

A dead process on the same host is noticed at once, because the kernel releases its lock. A dead host is noticed when
a job's heartbeat has stood still for its whole lease as this process saw it, so clock jumps and sleep expire nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import apsw

from redrive.core.job import Ending
from redrive.core.store import LeftBehind
from redrive.errors import StoreUnavailable
from redrive.stores.sqlite.records import RouteCache, Row, select

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: leases alone
    fcntl = None

_held: dict[Path, int | None] = {}
"""Lock files of this process, without a handle while one is made. Locks belong to the process: opening its own file
again would get the lock, and closing it would release the lock."""


def _forget_parents_locks() -> None:
    _held.clear()  # a forked child holds none of them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_locks)


PLACE: Final = "~"
"""Stands between a hostname and the id of a lock folder in the names of processes."""
_ID: Final = ".id"


def _read_folder_id(folder: Path) -> str:
    """Return the random id of a lock folder, written once by the first process that uses the folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / _ID
    if not path.exists():
        fresh = folder / f"{_ID}.{os.getpid()}.{secrets.token_hex(4)}"
        fresh.write_text(secrets.token_hex(6), encoding="ascii")
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
    return path.read_text(encoding="ascii")


class ProcessLock:
    """The lock file of this process for one database, in one place however the database is spelled.

    Processes whose databases are replicas of one log share a `folder` on each host, and the random id in it is a part
    of their names: two containers may have one hostname and different folders, and must not judge each other by them.
    """

    def __init__(self, database: Path, *, folder: Path | None = None) -> None:
        database = Path(os.path.realpath(database))
        self.folder = folder or database.with_name(database.name + "-live")
        self.place = (
            socket.gethostname() if folder is None else f"{socket.gethostname()}{PLACE}{_read_folder_id(folder)}"
        )
        self.name = f"{self.place}-{os.getpid()}-{secrets.token_hex(3)}"

    def take(self) -> None:
        if fcntl is None:
            return
        sign = self.folder / self.name
        _held[sign] = None
        try:
            _held[sign] = self._make()
        except BaseException:
            del _held[sign]
            raise
        for path in self.folder.iterdir():
            if not path.name.startswith(_ID):
                self.is_dead(path.name)  # removes the files of processes that were killed

    def _make(self) -> int:
        """Make the file and lock it. The file counts only if it is still there once it is locked.

        Other processes may remove the folder, or take the file for that of a dead process, before the lock is held.
        """
        for _ in range(100):
            with contextlib.suppress(FileExistsError):  # with exist_ok=True it would look again, and find nothing
                self.folder.mkdir(mode=0o700)
            try:
                handle = os.open(self.folder / self.name, os.O_CREAT | os.O_RDWR, 0o600)
            except FileNotFoundError:
                continue
            if self._lock(handle):
                return handle
            os.close(handle)
            time.sleep(0.001)  # another process looks at the file: that takes no time
        raise StoreUnavailable(f"cannot create a lock file in {self.folder}")

    def _lock(self, handle: int) -> bool:
        """Whether the lock is ours, and the file is the one that others see."""
        if fcntl is None:
            return True
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(handle), os.stat(self.folder / self.name))
        except (BlockingIOError, PermissionError, FileNotFoundError):
            return False

    def release(self) -> None:
        handle = _held.pop(self.folder / self.name, None)
        if handle is not None:
            os.close(handle)
            with contextlib.suppress(FileNotFoundError):
                (self.folder / self.name).unlink()
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # by the last process that leaves

    def is_ours(self, process: str) -> bool:
        """Whether this very process claimed under that name."""
        return self.folder / process in _held

    def can_see(self, process: str) -> bool:
        """Whether that process is one of this host, whose lock file can be read."""
        return fcntl is not None and process.startswith(self.place + "-")

    def is_dead(self, process: str) -> bool:
        """Whether that process of this host is gone; False where that cannot be known."""
        return self.lives(process) is False

    def lives(self, process: str) -> bool | None:
        """Whether that process of this host holds its lock; None where that cannot be known."""
        path = self.folder / process
        if path in _held:
            return True
        if fcntl is None or not self.can_see(process):
            return None
        try:
            return _is_locked(path, remove=True)
        except OSError:
            return None


def _is_locked(path: Path, *, remove: bool = False) -> bool:
    """Whether a process holds the lock on this file; it may remove a file that none holds."""
    if fcntl is None:
        return True
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False  # its process closed the store and left its jobs behind
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        if remove:
            path.unlink(missing_ok=True)
        return False
    finally:
        os.close(handle)


def list_living(path: Path) -> list[str]:
    """List the processes that have the file open, by the names of their lock files, whatever host they name."""
    folder = ProcessLock(path).folder
    if not folder.is_dir():
        return []
    return sorted(sign.name for sign in folder.iterdir() if not sign.name.startswith(".") and _is_locked(sign))


RUNNING: Final = (
    "SELECT id, token, beat, ifnull(lease, 90.0), process FROM jobs"
    " WHERE state = 'running' AND state IN ('running', 'held')"
)
_SIGNS: Final = (
    "SELECT id, route, process, ifnull(lease, 90.0), max(started_at, ifnull(beat_at, 0)) FROM jobs"
    " WHERE state = 'running' AND state IN ('running', 'held') ORDER BY updated_at"
)
LATE: Final = 10.0
"""On a wall clock a lease counts as ended only so many seconds after its time: clocks differ."""


def find_left_behind(
    connection: apsw.Connection, routes: RouteCache, lock: ProcessLock, now: float
) -> list[LeftBehind]:
    """Group the running jobs that no living process renews, by the process that claimed them; never this process."""
    names = routes.names(connection)
    jobs: dict[str, list[Row]] = {}
    for row in select(connection, _SIGNS):
        jobs.setdefault(row[2] or "", []).append(row)
    left = []
    for process, rows in jobs.items():
        if lock.is_ours(process):
            continue
        gone = lock.is_dead(process)
        lost = rows if gone else [row for row in rows if now - row[4] > row[3] + LATE]
        if lost:
            host = process.rsplit("-", 2)[0].partition(PLACE)[0]
            ids, tasks = tuple(row[0] for row in lost), tuple(sorted({names[row[1]][1] for row in lost}))
            left.append(LeftBehind(process, host, gone, max(row[4] for row in lost), ids, tasks))
    return left


class Running(NamedTuple):
    """A running job as an observer sees it."""

    id: str
    token: str
    beat: int
    lease: float
    process: str


class Observer:
    """Tells which leases have ended, as seen from here."""

    def __init__(self, lock: ProcessLock) -> None:
        self._lock = lock
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def lapsed(self, running: list[Running], now: float) -> list[str]:
        """List jobs whose process is dead or whose heartbeat stood still for the lease. `now` is monotonic."""
        dead = {process for process in {job.process for job in running} if self._lock.is_dead(process)}
        seen, lapsed = {}, []
        for job in running:
            beat, since = self._seen.get((job.id, job.token), (-1, now))
            if beat != job.beat:
                since = now
            seen[job.id, job.token] = (job.beat, since)
            if job.process in dead or now - since >= job.lease:
                lapsed.append(job.id)
        self._seen = seen
        return lapsed

    def ending(self, process: str) -> Ending:
        """Tell what became of the process of a lapsed job."""
        lives = self._lock.lives(process)
        return "lapsed" if lives is None else "frozen" if lives else "died"
