"""Makes snapshots of a replica, checks them before the log is trimmed, and restores them.

The manifest names the two newest snapshots, and changes by compare-and-set. Messages are trimmed up to the older one,
so that one damaged snapshot costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import apsw

from redrive.errors import StoreError
from redrive.stores.replica.log import Log, LogInfo, LogSnapshot, LogUnavailable, Manifest, ManifestMoved
from redrive.stores.replica.replay import LogStanding, Replay, ReplicaStopped
from redrive.stores.sqlite import upkeep
from redrive.stores.sqlite.connection import BUSY_MS, open_reader, open_writer
from redrive.stores.sqlite.fork_guard import use
from redrive.stores.sqlite.machine import Machine

log = logging.getLogger("redrive.store")
PASSES: Final = 6
"""How many snapshots are tried until both that are kept are new enough."""
PIECE: Final = 512 * 1024
COPIED_PAGES: Final = 1_000
Watch = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


# -- opening


async def must_restore(log: Log, info: LogInfo, standing: LogStanding | None) -> bool:
    """Whether a file must be replaced by a snapshot before it can follow the log. Raises where it can never follow."""
    if standing is not None and standing.generation != info.generation:
        raise ReplicaStopped(
            f"{info.url} was made anew (generation {info.generation}, this file has {standing.generation}):"
            " move this file away to join the new log, or restore the old one"
        )
    if standing is None or standing.position == 0:
        return info.first > 1 or await log.manifest() is not None
    if standing.position > info.last:
        raise ReplicaStopped(
            f"{info.url} went back: it ends at message {info.last}, this file has executed {standing.position}."
            " Restore the log, or move this file away to accept what is lost"
        )
    if standing.position + 1 < info.first:
        return True
    entry = await log.entry(standing.position) if standing.position >= info.first else None
    if entry is not None and entry.id != standing.message:
        raise ReplicaStopped(
            f"message {standing.position} of {info.url} is not the one that this file has executed:"
            " the log was changed. Move this file away to accept the log as it is now"
        )
    return False


async def restore(log: Log, info: LogInfo, path: Path) -> None:
    """Replace the file by the newest sound snapshot."""
    complete = info.first <= 1 and read_standing(path) is None
    copy = await _fetch_newest(log, info, path, complete=complete)
    if copy is None:
        return
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(copy, path)


async def restore_open(log: Log, info: LogInfo, path: Path) -> None:
    """Replace the content of a file in use by the newest sound snapshot, in one transaction."""
    copy = await _fetch_newest(log, info, path)
    if copy is None:
        return
    try:
        await asyncio.to_thread(_copy_into, copy, path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            copy.with_name(copy.name + suffix).unlink(missing_ok=True)


async def _fetch_newest(log: Log, info: LogInfo, path: Path, *, complete: bool = False) -> Path | None:
    """Fetch the newest sound snapshot into a file beside `path`; return None where the log is complete."""
    manifest = await log.manifest()
    problems = []
    for snapshot in [manifest.newest, manifest.before] if manifest is not None else []:
        if snapshot is None:
            continue
        try:
            _check_fit(info, snapshot)
            return await fetch(log, snapshot, path)
        except (SnapshotDamaged, LogUnavailable) as error:
            problems.append(f"{snapshot.name}: {error}")
    if complete:
        return None
    raise ReplicaStopped(
        f"{info.url} begins at message {info.first} and has no sound snapshot of what was before"
        + (f" ({'; '.join(problems)})" if problems else "")
    )


def _copy_into(copy: Path, path: Path) -> None:
    """Write a database, brought to this version's schema, over one that is in use."""
    with use, contextlib.closing(open_writer(copy)) as source, contextlib.closing(apsw.Connection(str(path))) as target:
        target.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        target.set_busy_timeout(BUSY_MS)
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(COPIED_PAGES)


class SnapshotDamaged(StoreError):
    """A snapshot is not as it was stored, or cannot be used for this log."""


def _check_fit(info: LogInfo, snapshot: LogSnapshot) -> None:
    """Raise where this log does not continue the snapshot."""
    if snapshot.generation != info.generation:
        raise SnapshotDamaged(f"it belongs to another log (generation {snapshot.generation})")
    if snapshot.position > info.last:
        raise SnapshotDamaged(f"it holds message {snapshot.position}, and the log ends at {info.last}")
    if snapshot.position + 1 < info.first:
        raise SnapshotDamaged(f"it ends at message {snapshot.position}, and the log begins at {info.first}")


async def fetch(log: Log, snapshot: LogSnapshot, path: Path) -> Path:
    """Write a snapshot into a file beside `path`, and check it."""
    copy = path.with_name(f"{path.name}.{secrets.token_hex(4)}.restoring")
    unpack, digest = zlib.decompressobj(), hashlib.sha256()
    try:
        with copy.open("wb") as file:
            os.chmod(copy, 0o600)
            async for piece in log.pieces(snapshot):
                data = unpack.decompress(piece)
                digest.update(data)
                file.write(data)
            file.write(rest := unpack.flush())
            digest.update(rest)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != snapshot.sha256:
            raise SnapshotDamaged("its content is not what was stored")
        standing = read_standing(copy)
        if standing is None or (standing.position, standing.chain) != (snapshot.position, snapshot.chain):
            raise SnapshotDamaged("it does not stand where the manifest says")
    except (zlib.error, apsw.Error, LookupError) as error:
        copy.unlink(missing_ok=True)
        raise SnapshotDamaged(str(error)) from error
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


def read_standing(path: Path) -> LogStanding | None:
    """Read the position of a file in its log without changing the file."""
    with use, contextlib.closing(open_reader(path)) as connection:
        return Replay(Machine()).load(connection)


# -- making


class Snapshots:
    """Makes the snapshots of one replica. `commit` lets other connections see what the replica has executed."""

    def __init__(self, log: Log, path: Path, commit: Callable[[], Awaitable[None]]) -> None:
        self._log = log
        self._path = path
        self._commit = commit

    async def make(self) -> LogSnapshot:
        """Store a copy of the replica, check it, name it in the manifest, and trim what both snapshots hold."""
        known = await self._log.manifest()
        await self._commit()
        with tempfile.TemporaryDirectory(prefix="redrive-snapshot-", dir=self._path.parent) as folder:
            copy = Path(folder) / "copy.db"
            await asyncio.to_thread(copy_file, self._path, copy)
            standing = await asyncio.to_thread(read_standing, copy)
            if standing is None:
                raise SnapshotDamaged("the copy is no replica")
            snapshot = await store_file(self._log, copy, standing)
        newest = known.newest if known is not None else None
        if newest is not None and newest.position > snapshot.position:
            raise ManifestMoved
        manifest = Manifest(snapshot, newest, known.version if known is not None else 0)
        await self._log.put_manifest(manifest)
        await self._tidy(manifest)
        return snapshot

    async def pass_by(self, position: int) -> None:
        """Make snapshots until both that are kept hold this message; those of other replicas count."""
        for _ in range(PASSES):
            manifest = await self._log.manifest()
            if manifest is not None and not is_older(manifest, position):
                await self._tidy(manifest)
                return
            try:
                await self.make()
            except ManifestMoved:
                continue
        if is_older(await self._log.manifest(), position):
            raise ManifestMoved

    async def _tidy(self, manifest: Manifest) -> None:
        """Remove the messages and snapshots that this manifest does not need."""
        await self._log.drop_pieces(manifest.names)
        if manifest.before is not None:
            await self._log.trim(manifest.before.position + 1)


async def store_file(log: Log, copy: Path, standing: LogStanding, watch: Watch | None = None) -> LogSnapshot:
    """Store a file as a snapshot, and check it. `watch` passes the pieces on."""
    name = secrets.token_hex(8)
    digest = await asyncio.to_thread(sha256_of, copy)
    pieces = pack_file(copy)
    size = copy.stat().st_size  # noqa: ASYNC240 - a look at one local file
    number = await log.put_pieces(name, pieces if watch is None else watch(pieces))
    snapshot = LogSnapshot(
        name=name,
        position=standing.position,
        chain=standing.chain,
        generation=standing.generation,
        level=standing.level,
        sha256=digest,
        size=size,
        pieces=number,
        made_at=time.time(),
    )
    (await fetch(log, snapshot, copy)).unlink()
    return snapshot


def copy_file(path: Path, target: Path) -> None:
    """Copy a database that may be in use, as it is at one moment."""
    with use, contextlib.closing(open_reader(path)) as connection:
        upkeep.backup(connection, target)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def pack_file(path: Path) -> AsyncIterator[bytes]:
    """Compress a file into the pieces of a snapshot."""
    pack = zlib.compressobj(1)
    with path.open("rb") as file:
        while data := file.read(PIECE):
            if piece := pack.compress(data):
                yield piece
            await asyncio.sleep(0)
    yield pack.flush()


def is_older(manifest: Manifest | None, position: int) -> bool:
    """Whether one of the two snapshots is missing or does not hold this message yet."""
    if manifest is None:
        return True
    return manifest.newest.position < position or manifest.before is None or manifest.before.position < position
