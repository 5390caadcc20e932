"""The emergency spool: one synced JSONL file per process, in which accepted jobs wait for the store.

A drain renames a file under its lock, inserts every line (the ids make repeats harmless) and removes the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from redrive.core.job import Job
from redrive.core.store import Put
from redrive.jobs import jsonl

log = logging.getLogger("redrive.spool")


class SpoolEntry(msgspec.Struct, frozen=True):
    """A spooled job and the documents that go with it."""

    job: Job
    documents: list[Put] = []
    on_duplicate: str = "return"


Insert = Callable[[SpoolEntry], Awaitable[None]]


class Spool:
    """Append is synced on return; draining loses nothing, whenever it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, *entries: SpoolEntry) -> None:
        """Append all entries, or none."""
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            jsonl.sync_folder(self.folder.parent)
        jsonl.append_lines(
            self.folder / f"{os.getpid()}.jsonl", [msgspec.json.encode(entry) + b"\n" for entry in entries]
        )
        jsonl.sync_folder(self.folder)

    def count(self) -> int:
        """Count the jobs that wait here."""
        return sum(len(_read_lines(path)) for path in self._files())

    def _files(self) -> list[Path]:
        return sorted([*self.folder.glob("*.jsonl"), *self.folder.glob("*.draining")])

    async def drain(self, insert: Insert) -> int:
        """Move everything into the store. Lines that cannot be read are kept in another file and logged."""
        moved = 0
        for path in self.folder.glob("*.jsonl"):
            _take_away(path)
        for path in sorted(self.folder.glob("*.draining")):
            with _hold(path) as ours:
                if ours:
                    moved += await self._drain_file(path, insert)
                    path.unlink()
        return moved

    async def _drain_file(self, path: Path, insert: Insert) -> int:
        moved, unreadable = 0, list[bytes]()
        for number, line in _read_lines(path):
            try:
                entry = msgspec.json.decode(line, type=SpoolEntry)
            except msgspec.MsgspecError as error:
                unreadable.append(line + b"\n")
                log.warning("line %d of spool %s is unreadable: %s", number, path.name, error)
                continue
            await insert(entry)
            moved += 1
        if unreadable:  # not before the rest went in: a drain that fails is made again
            aside = path.with_suffix(".unreadable")
            jsonl.append_lines(aside, unreadable)
            log.warning("%d unreadable lines of spool %s are kept in %s", len(unreadable), path.name, aside)
        return moved


def _read_lines(path: Path) -> list[tuple[int, bytes]]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []  # drained this moment
    return [(number, line) for number, line in enumerate(text.split(b"\n"), start=1) if line.strip()]


def _take_away(path: Path) -> None:
    """Give the file, between two appends, a name that no appender uses."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return  # another drainer was faster
    try:
        jsonl.lock(handle)
        if jsonl.still_names(path, handle):
            path.rename(path.with_name(f"{path.stem}-{secrets.token_hex(4)}.draining"))
    finally:
        os.close(handle)


@contextlib.contextmanager
def _hold(path: Path) -> Iterator[bool]:
    """Take the right to drain this file; False where another process has it."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            jsonl.lock(handle, wait=False)
        except OSError:
            yield False
        else:
            yield path.exists()
    finally:
        os.close(handle)
