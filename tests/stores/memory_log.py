"""MemoryLog: keeps a log in the memory of one process for tests, with the faults of a real log."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from redrive.stores.replica.log import (
    Answered,
    Fill,
    LogEntry,
    LogFull,
    LogInfo,
    LogSnapshot,
    LogUnavailable,
    Manifest,
    ManifestMoved,
)
from redrive.stores.sqlite.wakeups import call_in_loop

BATCH: Final = 100


class Faults(msgspec.Struct):
    """Says which faults happen from now on."""

    down: bool = False
    """Nothing can be reached."""
    lose_acks: int = 0
    """How many appends lose their answer, although they are kept."""
    repeat: bool = False
    """Every message is appended a second time, as after a duplicate window."""
    hold: bool = False
    """The feed stands still."""
    full: bool = False


class MemoryMessages:
    """Holds the messages and snapshots of all logs on them."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.generation = secrets.token_hex(8)
        self.entries: list[LogEntry] = []
        self.trimmed = 0
        self.ids: dict[str, int] = {}
        self.snapshots: dict[str, list[bytes]] = {}
        self.manifest: Manifest | None = None
        self.faults = Faults()
        self.limit: int | None = None
        """The limit of bytes that the log reports."""
        self.listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def tell(self) -> None:
        for loop, event in list(self.listeners):
            if not call_in_loop(loop, event.set):
                self.listeners.discard((loop, event))


class MemoryLog:
    """One process's connection to a log in memory."""

    def __init__(self, kept: MemoryMessages | None = None, *, max_message: int = 1 << 20) -> None:
        self.kept = kept or MemoryMessages()
        self.url = "memory:"
        self._max_message = max_message

    async def open(self) -> LogInfo:
        self._reach()
        kept = self.kept
        return LogInfo(self.url, "unsynced", self._max_message, kept.generation, kept.trimmed + 1, await self.end())

    async def close(self) -> None:
        """Nothing is open."""

    def _reach(self) -> None:
        if self.kept.faults.down:
            raise LogUnavailable("the log in memory is down")

    def send(self, id: str, data: bytes, answered: Answered) -> bool:
        return False  # appends are at once here

    async def append(self, id: str, data: bytes) -> int:
        self._reach()
        kept = self.kept
        if kept.faults.full:
            raise LogFull("the log in memory is full")
        if len(data) > self._max_message:
            raise ValueError("larger than the log takes")
        with kept.lock:
            position = kept.ids.get(id)
            if position is None:
                position = self._keep(id, data)
            if kept.faults.repeat:
                self._keep(id, data)
        kept.tell()
        if kept.faults.lose_acks:
            kept.faults.lose_acks -= 1
            raise LogUnavailable("the answer was lost")
        return position

    def _keep(self, id: str, data: bytes) -> int:
        kept = self.kept
        position = kept.trimmed + len(kept.entries) + 1
        kept.entries.append(LogEntry(position, id, data, kept.clock() if kept.clock is not None else None))
        kept.ids[id] = position
        return position

    async def feed(self, after: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        kept = self.kept
        came = asyncio.Event()
        listener = (asyncio.get_running_loop(), came)
        kept.listeners.add(listener)
        try:
            while True:
                came.clear()
                entries = [] if kept.faults.hold or kept.faults.down else self._after(after)
                if entries:
                    after = entries[-1].position
                    yield entries
                else:
                    await came.wait()
        finally:
            kept.listeners.discard(listener)

    def _after(self, position: int) -> list[LogEntry]:
        with self.kept.lock:
            start = max(0, position - self.kept.trimmed)
            return self.kept.entries[start : start + BATCH]

    async def end(self) -> int:
        self._reach()
        return self.kept.trimmed + len(self.kept.entries)

    async def first(self) -> int:
        self._reach()
        return self.kept.trimmed + 1

    async def entry(self, position: int) -> LogEntry | None:
        self._reach()
        entries = self._after(position - 1)[:1]
        return entries[0] if entries and entries[0].position == position else None

    async def fill(self) -> Fill:
        return Fill(sum(len(entry.data) for entry in self.kept.entries), self.kept.limit)

    async def manifest(self) -> Manifest | None:
        self._reach()
        return self.kept.manifest

    async def put_pieces(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        self._reach()
        self.kept.snapshots[name] = [piece async for piece in pieces]
        return len(self.kept.snapshots[name])

    async def pieces(self, snapshot: LogSnapshot) -> AsyncIterator[bytes]:
        self._reach()
        for piece in self.kept.snapshots[snapshot.name]:
            yield piece

    async def put_manifest(self, manifest: Manifest) -> None:
        self._reach()
        with self.kept.lock:
            current = self.kept.manifest.version if self.kept.manifest else 0
            if current != manifest.version:
                raise ManifestMoved
            self.kept.manifest = msgspec.structs.replace(manifest, version=current + 1)

    async def drop_pieces(self, keep: Sequence[str]) -> None:
        """Remove the others where the current manifest names exactly these, as the log on PostgreSQL does."""
        with self.kept.lock:
            manifest = self.kept.manifest
            named = set(manifest.names) if manifest is not None else set()
            if named == set(keep):
                for name in set(self.kept.snapshots) - named:
                    del self.kept.snapshots[name]

    async def trim(self, before: int) -> None:
        with self.kept.lock:
            number = min(before - 1 - self.kept.trimmed, len(self.kept.entries) - 1)
            if number > 0:
                del self.kept.entries[:number]
                self.kept.trimmed += number
