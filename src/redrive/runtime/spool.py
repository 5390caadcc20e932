"""The emergency spool: where accepted work waits while the store cannot take it.

One fsynced JSONL file per process. Whoever drains renames it under its lock, inserts every line (the ids make repeats
harmless) and removes it; an appender that loses that race starts a new one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec

from redrive.core.job import Job
from redrive.core.store import Put

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: one process at a time may use the spool
    fcntl = None

log = logging.getLogger("redrive.spool")


class Entry(msgspec.Struct, frozen=True):
    """A spooled job and the documents that go with it."""

    job: Job
    documents: list[Put] = []


Insert = Callable[[Job, list[Put]], Awaitable[None]]


class Spool:
    """Append is synced on return; draining loses nothing, whenever it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, entry: Entry) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync_folder(self.folder.parent)
        line = msgspec.json.encode(entry) + b"\n"
        path = self.folder / f"{os.getpid()}.jsonl"
        while not _append(path, line):
            continue  # a drainer took the file away while we waited for its lock
        _sync_folder(self.folder)

    def count(self) -> int:
        """Jobs that wait here."""
        return sum(len(_lines(path)) for path in self._files())

    def _files(self) -> list[Path]:
        return sorted([*self.folder.glob("*.jsonl"), *self.folder.glob("*.draining")])

    async def drain(self, insert: Insert) -> int:
        """Move everything into the store. A line nobody can read is kept aside and told."""
        moved = 0
        for path in self.folder.glob("*.jsonl"):
            _take_away(path)
        for path in sorted(self.folder.glob("*.draining")):
            with _held(path) as ours:
                if ours:
                    moved += await self._drain_file(path, insert)
                    path.unlink()
        return moved

    async def _drain_file(self, path: Path, insert: Insert) -> int:
        moved = 0
        for number, line in _lines(path):
            try:
                entry = msgspec.json.decode(line, type=Entry)
            except msgspec.MsgspecError as error:
                self._keep_aside(path, number, line, error)
                continue
            await insert(entry.job, list(entry.documents))
            moved += 1
        return moved

    def _keep_aside(self, path: Path, number: int, line: bytes, error: Exception) -> None:
        aside = path.with_suffix(".unreadable")
        with aside.open("ab") as file:
            file.write(line + b"\n")
        log.warning("line %d of spool %s is unreadable (%s); kept in %s", number, path.name, error, aside)


def _lines(path: Path) -> list[tuple[int, bytes]]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []  # drained this moment
    return [(number, line) for number, line in enumerate(text.split(b"\n"), start=1) if line.strip()]


def _is_still(path: Path, handle: int) -> bool:
    """Whether the name still means the file we opened."""
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def _append(path: Path, line: bytes) -> bool:
    """One synced line; False where the file was taken away under us."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
    try:
        _lock(handle)
        if not _is_still(path, handle):
            return False
        end = os.lseek(handle, 0, os.SEEK_END)
        if end and os.pread(handle, 1, end - 1) != b"\n":
            line = b"\n" + line  # a torn line of a crash before us must not swallow ours
        try:
            while line:
                line = line[os.write(handle, line) :]  # a nearly full disk may take a part only
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, end)  # the caller is told no, so it must not be drained later
            raise
    finally:
        os.close(handle)
    return True


def _take_away(path: Path) -> None:
    """Give the file a name no appender uses, between two appends."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return  # another drainer was faster
    try:
        _lock(handle)
        if _is_still(path, handle):
            path.rename(path.with_name(f"{path.stem}-{secrets.token_hex(4)}.draining"))
    finally:
        os.close(handle)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """The right to drain this file; False where another process has it."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield path.exists()
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
