"""Reads files of JSON lines without filling the memory, appends to them, and writes them whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, Final, NamedTuple

from redrive.errors import InvalidInput

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: one process at a time may append
    fcntl = None

LONGEST: Final = 64 * 1024 * 1024
"""Bytes of one line that are held in memory; of a longer line only its beginning is read."""
_PIECE: Final = 1024 * 1024
PRIVATE: Final = 0o600


class Line(NamedTuple):
    """One line of a file, numbered from 1. `ended`: its writer was done with it; `cut`: only its beginning is here."""

    number: int
    raw: bytes
    ended: bool = True
    cut: bool = False

    @property
    def blank(self) -> bool:
        return not self.raw.strip()


def read_lines(file: BinaryIO, longest: int = LONGEST) -> Iterator[Line]:
    """Yield every line. A line that never ends costs no more than `longest` bytes."""
    number = 0
    while piece := file.readline(longest):
        number += 1
        last = piece
        while not last.endswith(b"\n") and (rest := file.readline(_PIECE)):
            last = rest
        yield Line(number, piece.rstrip(b"\r\n"), last.endswith(b"\n"), last is not piece)


def number_lines(lines: Iterable[bytes | str]) -> Iterator[Line]:
    """Number lines that are in memory already; they count as ended."""
    for number, line in enumerate(lines, start=1):
        raw = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
        yield Line(number, raw.rstrip(b"\r\n"))


def append_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Append whole lines, or none, under a lock, synced on return. Ends a torn line that a crash left behind first."""
    new = not path.exists()
    while not _append(path, lines):
        continue  # another process took the file away while this one waited for its lock
    if new:
        sync_folder(path.parent)


def _append(path: Path, lines: Iterable[bytes]) -> bool:
    """Append; returns False, and writes nothing, where the name means another file once this one is locked."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, PRIVATE)
    try:
        lock(handle)
        if not still_names(path, handle):
            return False
        end = os.lseek(handle, 0, os.SEEK_END)
        try:
            if end and os.pread(handle, 1, end - 1) != b"\n":
                _write(handle, b"\n")  # a torn line of a crash before us must not swallow ours
            for line in lines:
                _write(handle, line)
            os.fsync(handle)
        except BaseException:
            os.ftruncate(handle, end)  # the caller gets an error, so no reader may find the lines later
            raise
    finally:
        os.close(handle)
    return True


def lock(handle: int, *, wait: bool = True) -> None:
    """Lock a file until it is closed. Raises OSError where another process has it and `wait` is false."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def still_names(path: Path, handle: int) -> bool:
    """Whether the name still means the file that was opened."""
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]  # a nearly full disk may take a part only


@contextlib.contextmanager
def replace_file(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Write a new private file that has its name only once it is complete and synced."""
    if not overwrite and path.exists():
        raise _already_exists(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE)
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _rename(temporary, path, overwrite=overwrite)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _rename(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Give the file its name. Without `overwrite` by a link, which refuses a file that was made meanwhile."""
    if overwrite:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _already_exists(path) from None
    except OSError:  # a filesystem without links
        if path.exists():
            raise _already_exists(path) from None
        temporary.rename(path)


def _already_exists(path: Path) -> InvalidInput:
    return InvalidInput(field="path", problem=f"{path} exists already; choose another file, or say overwrite")


def sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
