"""Who is still alive: a lock file per process, and leases measured on the observer's own monotonic clock.

A dead process on the same host is noticed at once, because the kernel releases its lock. A dead host is noticed when
a job's heartbeat has stood still for its whole lease as *we* saw it, so clock jumps and sleep expire nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from redrive.core.job import Ending
from redrive.core.store import LeftBehind
from redrive.errors import StoreUnavailable

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: leases alone
    fcntl = None

Row = tuple[Any, ...]
_held: dict[Path, int | None] = {}
"""Lock files of this process, without a handle while one is put up. Locks belong to the process: opening one's own
again would get the lock, and release it when closed, so nobody may."""


def _forget_parents_locks() -> None:
    _held.clear()  # a forked child holds none of them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_locks)


PLACE: Final = "~"
"""Stands between a hostname and the id of a lock folder in the names of processes."""
_ID: Final = ".id"


def host_of_process(process: str) -> str:
    """The host on which a process runs, as its name tells."""
    return process.rsplit("-", 2)[0].partition(PLACE)[0]


def _id_of(folder: Path) -> str:
    """The random id of a lock folder, written once by the first process that uses it."""
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
    """This process's sign of life for one database, in one place however the database is spelled.

    Processes whose databases are replicas of one log share a `folder` on each host, and the random id in it is a part
    of their names: two containers may have one hostname and different folders, and must not judge each other by them.
    """

    def __init__(self, database: Path, *, folder: Path | None = None) -> None:
        database = Path(os.path.realpath(database))
        self.folder = folder or database.with_name(database.name + "-live")
        self.place = socket.gethostname() if folder is None else f"{socket.gethostname()}{PLACE}{_id_of(folder)}"
        self.name = f"{self.place}-{os.getpid()}-{secrets.token_hex(3)}"

    def take(self) -> None:
        if fcntl is None:
            return
        sign = self.folder / self.name
        _held[sign] = None
        try:
            _held[sign] = self._locked()
        except BaseException:
            del _held[sign]
            raise
        for path in self.folder.iterdir():
            if path.name.startswith(_ID):
                continue
            self.is_dead(path.name)  # takes down the signs of processes that were killed

    def _locked(self) -> int:
        """The file, and our lock on it.

        The last process to leave may be removing the folder this moment; and whoever looks at the file before it is
        locked takes it for that of a dead process and removes it, so that it counts only if it is still there.
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
            time.sleep(0.001)  # somebody looks at it: that takes no time
        raise StoreUnavailable(f"cannot create a lock file in {self.folder}")

    def _lock(self, handle: int) -> bool:
        """Whether the file is ours, and the one that others see."""
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
                self.folder.rmdir()  # the last one tidies up

    def is_ours(self, process: str) -> bool:
        """Whether this very process claimed under that name."""
        return self.folder / process in _held

    def can_see(self, process: str) -> bool:
        """Whether that process is one of this host, whose lock can be looked at."""
        return fcntl is not None and process.startswith(self.place + "-")

    def is_dead(self, process: str) -> bool:
        """Whether that process of this host is gone. False where we cannot know."""
        return self.lives(process) is False

    def lives(self, process: str) -> bool | None:
        """Whether that process of this host holds its lock. None where we cannot know."""
        path = self.folder / process
        if path in _held:
            return True
        if fcntl is None or not self.can_see(process):
            return None
        try:
            handle = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False  # it closed the store and left its jobs behind
        except OSError:
            return None
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return False
        finally:
            os.close(handle)


LATE: Final = 10.0
"""A lease counts as ended on somebody's wall clock only so long after its time: clocks differ."""


def left_behind(
    lock: ProcessLock, signs: Iterable[Row], names: Mapping[int, tuple[str, str, str | None]], now: float
) -> list[LeftBehind]:
    """Group the running jobs that no living process renews, by the process that claimed them.

    A process that asks is alive: its own jobs are never among them.

    `signs` are (job, route, process, lease, last sign of life) rows.
    """
    jobs: dict[str, list[Row]] = {}
    for row in signs:
        jobs.setdefault(row[2] or "", []).append(row)
    found = []
    for process, mine in jobs.items():
        if lock.is_ours(process):
            continue
        gone = lock.is_dead(process)
        lost = mine if gone else [row for row in mine if now - row[4] > row[3] + LATE]
        if lost:
            host = host_of_process(process)
            ids, tasks = tuple(row[0] for row in lost), tuple(sorted({names[row[1]][1] for row in lost}))
            found.append(LeftBehind(process, host, gone, max(row[4] for row in lost), ids, tasks))
    return found


class Running(NamedTuple):
    """What an observer sees of a running job."""

    id: str
    token: str
    beat: int
    lease: float
    process: str


class Observer:
    """Decides nothing but this: whose lease has ended, as seen from here."""

    def __init__(self, lock: ProcessLock) -> None:
        self._lock = lock
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def lapsed(self, running: list[Running], now: float) -> list[str]:
        """Ids of jobs whose process is dead or whose heartbeat stood still for the lease. `now` is monotonic."""
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
        """What became of the process of a lapsed job."""
        lives = self._lock.lives(process)
        return "lapsed" if lives is None else "frozen" if lives else "died"
