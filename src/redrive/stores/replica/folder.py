"""Keeps the replicas of one machine: a file for each process, and one folder with the signs of life of all."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Final

from redrive.errors import StoreUnavailable

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: one replica per folder
    fcntl = None

log = logging.getLogger("redrive.store")
MOST: Final = 256
DAY: Final = 86_400.0


class ReplicaFolder:
    """Gives every process a file; the next process uses the file of one that has ended."""

    def __init__(self, folder: Path, days: float = 30.0) -> None:
        """`days`: a file that was not opened for so long is deleted before anything reads it."""
        self.folder = folder
        self._seconds = days * DAY
        self.live = folder / "live"
        self._handle: int | None = None

    def take(self) -> Path:
        """Lock and return the first file that no living process uses."""
        self._make_folder()
        self._delete_old()
        for number in range(MOST):
            handle = self._open_lock(number)
            if self._try_lock(handle):
                self._handle = handle
                os.utime(handle)
                return self.folder / f"replica-{number}.db"
            os.close(handle)
        raise StoreUnavailable(f"{self.folder} has {MOST} replicas in use: let processes on this machine share a hub")

    def _delete_old(self) -> None:
        """Delete the copies that no process opened for long: they hold what was erased since."""
        limit = time.time() - self._seconds
        for lock in self.folder.glob("replica-*.lock"):
            file = lock.with_suffix(".db")
            files = [file, *(file.with_name(file.name + suffix) for suffix in ("-wal", "-shm"))]
            if file.exists() and _last_used([lock, *files]) < limit:
                self._delete(lock, files)

    def _delete(self, lock: Path, files: list[Path]) -> None:
        handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        try:
            if self._try_lock(handle):
                for file in files:
                    file.unlink(missing_ok=True)
                days = self._seconds / DAY
                log.warning("deleted the replica %s: no process had opened it for %g days", files[0], days)
        finally:
            os.close(handle)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._refuse_folder(error) from error

    def _open_lock(self, number: int) -> int:
        try:
            return os.open(self.folder / f"replica-{number}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._refuse_folder(error) from error

    def _refuse_folder(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"cannot keep a replica in {self.folder}: {error.strerror}")

    def _try_lock(self, handle: int) -> bool:
        if fcntl is None:
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def forked(self) -> None:
        """Leave the file to the parent, in a forked child. Closing the child's copy of the handle keeps the lock."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = None

    def release(self) -> None:
        if self._handle is not None:
            os.utime(self._handle)
            os.close(self._handle)
            self._handle = None


def _last_used(files: list[Path]) -> float:
    return max(file.stat().st_mtime for file in files if file.exists())


class FixedFile:
    """Gives the process the one file that its user has chosen."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> Path:
        return self._path

    def forked(self) -> None:
        """Do nothing: the user of the store chooses another file for the child."""

    def release(self) -> None:
        """Do nothing: no lock is held."""
