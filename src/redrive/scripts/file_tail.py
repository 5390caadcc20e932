"""Follows files that other programs append to, as `tail -F` does: whole lines, over rotation and truncation."""

from __future__ import annotations

import os
from collections import deque
from io import FileIO
from pathlib import Path
from typing import Final

from redrive.jobs.jsonl import LONGEST, Line

_PIECE: Final = 1024 * 1024
_MARK: Final = 256
"""How many bytes before the reading position are remembered: where they differ, the file was written anew."""
_KEPT_OPEN: Final = 2


class Tail:
    """Reads the lines of a file as they are appended, each when it has ended.

    A file that was renamed is read on until the next one is renamed as well: programs that have it open may still write
    to it. A file that was truncated or written anew is read from its beginning. A file may also appear later.
    """

    def __init__(self, path: Path, longest: int = LONGEST) -> None:
        self._path = path
        self._longest = longest
        self._files: list[_Open] = []

    @property
    def found(self) -> bool:
        """Whether the file was there at any look so far."""
        return bool(self._files)

    def take(self, most: int, size: int) -> list[Line]:
        """Return the next lines: at most `most`, and none after `size` bytes."""
        self._look()
        lines: list[Line] = []
        for file in self._files:
            while len(lines) < most and size > 0 and (line := file.next()) is not None:
                lines.append(line)
                size -= len(line.raw)
        self._give_up()
        return lines

    def close(self) -> None:
        """Close the files. A last line without its end is left out: its writer may not be done with it."""
        for file in self._files:
            file.close()
        self._files = []

    def _look(self) -> None:
        """Open the file that has the name now, unless that file is open already."""
        try:
            named = self._path.stat()
            if not self._files or not self._files[-1].is_file(named):
                self._files.append(_Open(self._path.open("rb", buffering=0), self._longest))
        except FileNotFoundError:
            return  # the file is not there yet, or is being renamed: the next look finds it

    def _give_up(self) -> None:
        """Close a file that was renamed before another one was, once its last line is taken."""
        while len(self._files) > _KEPT_OPEN and self._files[0].end():
            self._files.pop(0).close()


class _Open:
    """One open file, and how far it was read."""

    def __init__(self, file: FileIO, longest: int) -> None:
        self._file = file
        self._longest = longest
        opened = os.fstat(file.fileno())
        self._identity = (opened.st_dev, opened.st_ino)
        self._lines: deque[Line] = deque()
        self._number = 0
        self._begun, self._cut = b"", False
        self._mark = b""

    def is_file(self, named: os.stat_result) -> bool:
        return self._identity == (named.st_dev, named.st_ino)

    def close(self) -> None:
        self._file.close()

    def next(self) -> Line | None:
        """Return the next line; None where no further one has ended yet."""
        while not self._lines:
            if not self._read():
                return None
        return self._lines.popleft()

    def end(self) -> bool:
        """End the last line, although its writer did not; return whether no line is left to be taken."""
        if self._begun:
            self._add(ended=False)
        return not self._lines

    def _read(self) -> bool:
        """Read a piece, and divide it into lines. False at the end of the file."""
        piece = self._file.read(_PIECE) or b""
        if self._was_rewritten(len(piece)):
            self._begin_anew()
            return True
        self._mark = (self._mark + piece)[-_MARK:]
        *ended, last = piece.split(b"\n")
        for part in ended:
            self._append(part)
            self._add(ended=True)
        self._append(last)
        return bool(piece)

    def _was_rewritten(self, read: int) -> bool:
        """Say whether the file ends before the reading position, or has other bytes before it."""
        before = self._file.tell() - read - len(self._mark)
        return os.pread(self._file.fileno(), len(self._mark), before) != self._mark

    def _begin_anew(self) -> None:
        self.end()
        self._file.seek(0)
        self._number, self._mark = 0, b""

    def _append(self, part: bytes) -> None:
        """Add to the line that is being read. Of a line that is too long only the beginning is kept."""
        self._begun += part
        if len(self._begun) > self._longest:
            self._begun, self._cut = self._begun[: self._longest], True

    def _add(self, *, ended: bool) -> None:
        self._number += 1
        self._lines.append(Line(self._number, self._begun.rstrip(b"\r"), ended, self._cut))
        self._begun, self._cut = b"", False
