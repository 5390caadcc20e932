"""Announces replicas in the log: which files hold its jobs, how far each has read, and which process has it.

A file that is not opened for some days is deleted before it is read again. Its announcement says until when it may
be read, so that `erase` knows for how long a file can hold what was erased.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import time
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core.commands import Apply
from redrive.core.documents import Kept, Kind
from redrive.core.store import Commit, Put
from redrive.errors import StoreError
from redrive.stores.replica.log import LogUnavailable, Manifest
from redrive.stores.replica.snapshots import older
from redrive.stores.sqlite import records

if TYPE_CHECKING:
    from redrive.stores.replica.engine import Engine

log = logging.getLogger("redrive.store")
ANNOUNCE_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 2.0
"""How long a process that ends waits until the log has its last word."""
DAY: Final = 86_400.0


class Replica(msgspec.Struct, frozen=True):
    """A file with the jobs of a log, as its process announces it."""

    host: str
    pid: int
    position: int
    lag: int
    """Messages that the log had and this file had not."""
    generation: str
    level: int
    at: float
    until: float
    """When the file is deleted before it is read, unless it is opened earlier."""
    hub: bool = False
    open: bool = True
    trouble: str | None = None


class Erasure(msgspec.Struct, frozen=True):
    """The last message of the log with which something was erased."""

    position: int
    at: float


REPLICA: Final = Kind[Replica]("replica", Replica)
"""Under the host, the id of the folder and the name of the file."""
ERASURE: Final = Kind[Erasure]("erasure", Erasure)
LAST: Final = "last"


class Announcer:
    """Announces one replica: when it opens, every half minute, when something was erased, and when it closes."""

    def __init__(self, engine: Engine, name: str, days: float) -> None:
        self._engine = engine
        self._name = name
        self._seconds = days * DAY
        self.hub = False

    async def run(self) -> None:
        """Announce until cancelled, in the engine's thread. An empty log stays empty, so that jobs can move into it."""
        await self._engine.reached(1)
        await self._drop_old()
        while True:
            self._engine.erased.clear()
            await self.say()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANNOUNCE_SECONDS):
                    await self._engine.erased.wait()

    async def say(self, *, open: bool = True) -> None:
        """Write the announcement into the log."""
        engine = self._engine
        if self._is_empty():
            return
        try:
            here = engine.replay.here
            lag = max(0, await engine.log.end() - here.position)
            now = time.time()
            said = Replica(
                platform.node(), os.getpid(), here.position, lag, here.generation, here.level, now,
                now + self._seconds, self.hub, open, engine.trouble,
            )  # fmt: skip
            await self._write(REPLICA.put(self._name, said))
        except (StoreError, LogUnavailable) as error:
            log.warning("this replica could not announce itself in %s: %s", engine.log.url, error)

    def _is_empty(self) -> bool:
        return self._engine.replay.here.position == 0

    async def _write(self, *puts: Put) -> None:
        if self._engine.failed is None:
            await self._engine.run_here(Apply((Commit(puts=puts),)))

    async def _drop_old(self) -> None:
        """Remove announcements of files that are deleted before anything reads them."""
        now = time.time()
        old = [kept.key for kept in announced(self._engine) if kept.value.until < now]
        if old:
            await self._write(*(REPLICA.drop(key) for key in old))

    async def say_closed(self) -> None:
        """Announce the last position, where the log takes it soon."""
        if self._engine.failed is None and self._engine.trouble is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.say(open=False)


def announced(engine: Engine) -> list[Kept[Replica]]:
    """The announcements of the log's replicas, from this file."""
    return [REPLICA.read(document) for document in records.docs(engine.connection, REPLICA.name, "")]


def erased_at(engine: Engine) -> int:
    """The message up to which something was erased; 0 where nothing was."""
    document = records.doc(engine.connection, ERASURE.name, LAST)
    return ERASURE.read(document).value.position if document is not None else 0


def lingering(engine: Engine, manifest: Manifest | None, now: float) -> list[str]:
    """Where erased words can still be read, in words; empty once they are gone."""
    position = erased_at(engine)
    if not position:
        return []
    said = []
    if manifest is None or older(manifest, position):
        said.append(f"the log: until both snapshots that it keeps are newer than message {position:,}")
    generation = engine.replay.here.generation
    for kept in announced(engine):
        replica = kept.value
        if replica.generation == generation and replica.position < position and replica.until > now:
            said.append(_holder(kept.key, replica, position, now))
    return said


def _holder(name: str, replica: Replica, position: int, now: float) -> str:
    where = f"the replica {name}: it has read {replica.position:,} of {position:,} messages"
    if replica.open and now - replica.at <= 2 * ANNOUNCE_SECONDS:
        return where
    left = (replica.until - now) / DAY
    return (
        f"{where} and is not running; start a process there, or delete the file and run `redrive fleet forget {name}`."
        f" It counts for {left:.0f} more days"
    )
