"""Announces a replica and its level, makes its snapshots, and describes it.

The announcement says until when the file may be opened, so that `erase` knows how long it can hold erased contents.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import time
from typing import Final

import apsw
import msgspec

from redrive.core.commands import Apply, Hello
from redrive.core.documents import Kept, Kind
from redrive.core.store import Commit, Put
from redrive.errors import StoreError
from redrive.stores.replica import replay
from redrive.stores.replica.engine import Engine
from redrive.stores.replica.envelope import Level
from redrive.stores.replica.log import Fill, LogInfo, LogUnavailable, Manifest, ManifestMoved
from redrive.stores.replica.replay import LogStanding
from redrive.stores.replica.snapshots import is_older
from redrive.stores.sqlite import records

log = logging.getLogger("redrive.store")
ANNOUNCE_SECONDS: Final = 30.0
LEVEL_SECONDS: Final = 60.0
"""Seconds between two announcements of a replica's level."""
SNAPSHOT_MESSAGES: Final = 20_000
"""Messages between two snapshots."""
LOOK_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 2.0
"""How long a process that ends waits for its last announcement."""
DAY: Final = 86_400.0


class Presence(msgspec.Struct, frozen=True):
    """Describes a hub, in its own words."""

    host: str
    pid: int
    position: int
    generation: str
    level: int
    clock: float
    halted: str | None = None
    trouble: str | None = None


class ReplicaStatus(msgspec.Struct, frozen=True):
    """Describes one replica and its log."""

    info: LogInfo
    standing: LogStanding
    end: int
    fill: Fill
    manifest: Manifest | None
    replicas: tuple[float, ...] = ()
    """When the fleet last heard of each replica of the last day."""
    clients: tuple[float, ...] = ()
    """The same for processes without a replica."""


class Replica(msgspec.Struct, frozen=True):
    """Announces a file with the jobs of a log."""

    host: str
    pid: int
    position: int
    lag: int
    """Messages that the log had and this file had not."""
    generation: str
    level: int
    at: float
    until: float
    """When the file expires, unless it is opened earlier."""
    hub: bool = False
    open: bool = True
    trouble: str | None = None


class LastErasure(msgspec.Struct, frozen=True):
    """The position of the last message of the log that erases."""

    position: int
    at: float


REPLICA: Final = Kind[Replica]("replica", Replica)
"""Keyed by the host, the id of the folder and the name of the file."""
ERASURE: Final = Kind[LastErasure]("erasure", LastErasure)
LAST: Final = "last"


class Announcer:
    """Announces one replica when it opens, every half minute, after an erase, and when it closes."""

    def __init__(self, engine: Engine, name: str, days: float) -> None:
        self._engine = engine
        self._name = name
        self._seconds = days * DAY
        self.hub = False

    async def run(self) -> None:
        """Announce until cancelled, in the engine's thread. An empty log stays empty, so that jobs can move into it."""
        await self._engine.wait_for(1)
        await self._drop_expired()
        while True:
            self._engine.erased.clear()
            await self.announce()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANNOUNCE_SECONDS):
                    await self._engine.erased.wait()

    async def announce(self, *, open: bool = True) -> None:
        engine = self._engine
        if engine.file.position == 0:
            return
        try:
            here = engine.replay.here
            lag = max(0, await engine.log.end() - here.position)
            now = time.time()
            announcement = Replica(
                host=platform.node(),
                pid=os.getpid(),
                position=here.position,
                lag=lag,
                generation=here.generation,
                level=here.level,
                at=now,
                until=now + self._seconds,
                hub=self.hub,
                open=open,
                trouble=engine.trouble,
            )
            await self._write(REPLICA.put(self._name, announcement))
        except (StoreError, LogUnavailable) as error:
            log.warning("this replica could not announce itself in %s: %s", engine.log.url, error)

    async def _write(self, *puts: Put) -> None:
        if self._engine.failed is None:
            await self._engine.run_here(Apply((Commit(puts=puts),)))

    async def _drop_expired(self) -> None:
        """Remove the announcements of files that have expired."""
        now = time.time()
        old = [kept.key for kept in read_announcements(self._engine) if kept.value.until < now]
        if old:
            await self._write(*(REPLICA.drop(key) for key in old))

    async def announce_end(self) -> None:
        """Announce the last position, unless the log takes too long."""
        if self._engine.failed is None and self._engine.trouble is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.announce(open=False)


def read_announcements(engine: Engine) -> list[Kept[Replica]]:
    """Read the announcements of the log's replicas from this file."""
    return [REPLICA.read(document) for document in records.docs(engine.connection, REPLICA.name, "")]


def read_erased_at(engine: Engine) -> int:
    """Return the position of the last message that erases; 0 where there is none."""
    document = records.doc(engine.connection, ERASURE.name, LAST)
    return ERASURE.read(document).value.position if document is not None else 0


def describe_lingering(engine: Engine, manifest: Manifest | None, now: float) -> list[str]:
    """Describe where erased contents can still be read; empty once they are gone."""
    position = read_erased_at(engine)
    if not position:
        return []
    places = []
    if is_older(manifest, position):
        places.append(f"the log: until both snapshots that it keeps are newer than message {position:,}")
    generation = engine.replay.here.generation
    for kept in read_announcements(engine):
        replica = kept.value
        if replica.generation == generation and replica.position < position and replica.until > now:
            places.append(_describe_older(kept.key, replica, position, now))
    return places


def _describe_older(name: str, replica: Replica, position: int, now: float) -> str:
    where = f"the replica {name}: it has read {replica.position:,} of {position:,} messages"
    if replica.open and now - replica.at <= 2 * ANNOUNCE_SECONDS:
        return where
    left = (replica.until - now) / DAY
    return (
        f"{where} and is not running; start a process there, or delete the file and run `redrive fleet forget {name}`."
        f" It counts for {left:.0f} more days"
    )


# -- levels and snapshots


async def keep_level(engine: Engine) -> None:
    """Announce this replica's level every minute, and activate it once no live replica has a lower one."""
    while True:
        await asyncio.sleep(LEVEL_SECONDS)
        if engine.failed is not None:
            return
        try:
            await announce_level(engine)
        except StoreError as error:
            log.warning("%s did not take the announcement of this replica: %s; trying again", engine.log.url, error)


async def announce_level(engine: Engine) -> None:
    """Announce this replica's level. The replay decides whether the level is activated; this look saves a message."""
    mine = engine.replay.level
    await engine.run_here(Hello(engine.sender.client, time.time(), mine))
    if mine > engine.replay.here.level and not replay.count_behind(engine.connection, mine, None):
        await engine.run_here(Level(mine))
        log.warning("%s: the fleet replays with level %d from now on", engine.log.url, engine.replay.here.level)


async def keep_snapshots(engine: Engine, every: int) -> None:
    """Make a snapshot whenever the log has grown by so many messages, or an erase needs one."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if engine.failed is not None:
            continue
        try:
            manifest = await engine.log.manifest()
            last = manifest.newest.position if manifest is not None else 0
            if engine.file.position - last >= every:
                await engine.snapshots.make()
            if (position := read_erased_at(engine)) and is_older(await engine.log.manifest(), position):
                await engine.snapshots.pass_by(position)
        except ManifestMoved:
            continue  # another replica was faster
        except (LogUnavailable, StoreError, apsw.Error, OSError, TimeoutError) as error:
            log.warning("no snapshot of %s could be made: %s; trying again", engine.log.url, error)
