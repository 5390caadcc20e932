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
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from redrive.errors import StoreUnavailable

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: leases alone
    fcntl = None

_held: dict[Path, int | None] = {}
"""Lock files of this process, without a handle while one is put up. Locks belong to the process: opening one's own
again would get the lock, and release it when closed, so nobody may."""


def _forget_parents_locks() -> None:
    _held.clear()  # a forked child holds none of them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_locks)


class ProcessLock:
    """This process's sign of life for one database, in one place however the database is spelled."""

    def __init__(self, database: Path) -> None:
        database = Path(os.path.realpath(database))
        self.folder = database.with_name(database.name + "-live")
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"

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

    def is_dead(self, process: str) -> bool:
        """Whether that process of this host is gone. False where we cannot know."""
        path = self.folder / process
        if fcntl is None or path in _held or not process.startswith(socket.gethostname() + "-"):
            return False
        try:
            handle = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return True  # it closed the store and left its jobs behind
        except OSError:
            return False
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return True
        finally:
            os.close(handle)


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
