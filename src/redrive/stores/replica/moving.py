"""Moves the jobs of a file into an empty log, and the jobs of a log into a new file.

Into a log: a mark keeps processes from opening the file; message 1 of the log says that jobs arrive; and the file
becomes the first snapshot, standing behind that message. A replica that begins without the snapshot stops at message 1.
The jobs have moved once the manifest names the snapshot. Out of a log: a message that no replica passes closes the log,
and a replica standing before it becomes the file. A move that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import apsw
import msgspec

from redrive.core.commands import Ticket
from redrive.errors import StoreError, StoreRefused
from redrive.stores.replica import envelope as wire
from redrive.stores.replica import snapshots
from redrive.stores.replica.chores import ERASURE, REPLICA
from redrive.stores.replica.envelope import Arrived
from redrive.stores.replica.folder import fcntl
from redrive.stores.replica.log import Log, LogInfo, Manifest
from redrive.stores.replica.replay import FleetMoved, LogStanding
from redrive.stores.replica.store import ReplicaStore
from redrive.stores.sqlite.connection import KIND, MoveMark, drop_mark, open_writer, read_mark, sync_folder, write_mark
from redrive.stores.sqlite.file_guard import FileGuard
from redrive.stores.sqlite.fork_guard import use
from redrive.stores.sqlite.liveness import list_living

Report = Callable[[str, int, int], None]
"""Is called with the step under way, how much of it is done, and of how much."""
FIRST: Final = 1
_ARRIVED: Final = "arrived:"


class Count(msgspec.Struct, frozen=True):
    """Says how much was moved."""

    jobs: dict[str, int]
    """By state."""
    moves: int
    documents: int
    size: int
    again: bool = False
    """An earlier run had finished the move."""


# -- a file into a log


async def move_in(path: Path, log: Log, report: Report) -> Count:
    """Move the jobs of a file into an empty log. Raises StoreRefused where the file or the log is in use."""
    with _lock_moves(path), _open_file(path) as source:
        report("connect", 0, 1)
        info = await log.open()
        try:
            return await _move_in(path, source, log, info, report)
        finally:
            await log.close()


async def _move_in(path: Path, source: apsw.Connection, log: Log, info: LogInfo, report: Report) -> Count:
    mark = _mark_for(path, read_mark(source), info.url)
    if mark.stage == "moved":
        return _count(source, path, again=True)
    if not await _has_arrived(log, mark.token, path):
        await _refuse_used(log, mark.token)
        _close_source(path, source, mark, report)
        report("claim", 0, 1)
        at = await _claim_log(log, info, mark.token)
        await _seed(path, log, info, mark.token, at, report)
    report("finish", 0, 1)
    write_mark(source, msgspec.structs.replace(mark, stage="moved"))
    report("finish", 1, 1)
    return _count(source, path)


def _mark_for(path: Path, known: MoveMark | None, to: str) -> MoveMark:
    """Return the mark of an earlier run to the same target, or a new mark."""
    if known is None or (known.stage == "undone" and known.to != to):
        return MoveMark(secrets.token_hex(8), to, "moving", time.time())
    if known.to != to:
        done = "was moved" if known.stage == "moved" else "is being moved"
        raise StoreRefused(f"{path} {done} to {known.to}, not to {to}: name that target")
    return msgspec.structs.replace(known, stage="moving") if known.stage == "undone" else known


async def _refuse_used(log: Log, token: str) -> None:
    """Refuse a log that holds anything but the first message of this move."""
    entry, end = await log.entry(FIRST), await log.end()
    if await log.manifest() is not None or end > FIRST or (entry is not None and entry.id != _id(token)):
        raise StoreRefused(f"{log.url} holds jobs already: move into a namespace that was not used before")


def _close_source(path: Path, source: apsw.Connection, mark: MoveMark, report: Report) -> None:
    """Mark the file, then look who has it open: a process that opens it later sees the mark."""
    report("close the file", 0, 1)
    known = read_mark(source)
    write_mark(source, mark)
    processes = list_living(path)
    if not processes:
        return
    if known is None:
        drop_mark(source)
    elif known.stage == "undone":
        write_mark(source, known)
    raise StoreRefused(f"{path} is open in {len(processes)} other processes ({', '.join(processes)}): stop them first")


async def _claim_log(log: Log, info: LogInfo, token: str) -> float:
    """Make the arrival the first message of the log, and return the log's time of it."""
    entry = await log.entry(FIRST)
    if entry is None:
        data = wire.pack(Ticket(_id(token), 1, 0), info.generation, 0, b"", [wire.encode_item(Arrived(token))])
        position = await log.append(_id(token), data)
        entry = await log.entry(FIRST)
        if position != FIRST or entry is None:
            raise StoreRefused(f"{log.url} was used by another process meanwhile: move into an unused namespace")
    return entry.at or 0.0


async def _seed(path: Path, log: Log, info: LogInfo, token: str, at: float, report: Report) -> None:
    """Store the file as the first snapshot, read it back, and name it in the manifest."""
    with tempfile.TemporaryDirectory(prefix=f"{path.name}-moving-", dir=path.parent) as folder:
        copy = Path(folder) / "copy.db"
        report("copy", 0, 1)
        await asyncio.to_thread(snapshots.copy_file, path, copy)
        await asyncio.to_thread(_stand_behind_first, copy, info.generation, token, at)
        standing = LogStanding(info.generation, FIRST, _id(token), _chain(token), at, 1, None)
        total = max(1, -(-copy.stat().st_size // snapshots.PIECE))
        snapshot = await snapshots.store_file(log, copy, standing, lambda pieces: _report_upload(pieces, total, report))
    report("arrive", 0, 1)
    await log.put_manifest(Manifest(snapshot))
    await log.drop_pieces(Manifest(snapshot).names)


async def _report_upload(pieces: AsyncIterator[bytes], total: int, report: Report) -> AsyncIterator[bytes]:
    """Pass the pieces of the file on, and report each; then that the snapshot is checked."""
    number = 0
    async for piece in pieces:
        report("upload", min(number, total), total)
        yield piece
        number += 1
    report("check", 0, 1)


def _stand_behind_first(copy: Path, generation: str, token: str, at: float) -> None:
    """Make the copy a replica that stands behind the first message. Its chain is no replica's that began empty."""
    with use, _change_copy(copy) as connection:
        drop_mark(connection)
        _strip(connection)
        connection.execute("DELETE FROM docs WHERE kind = ?", (KIND,))
        connection.execute("INSERT INTO docs (kind, key, value) VALUES (?, ?, ?)", (KIND, _ARRIVED + token, b"{}"))
        connection.execute(
            "INSERT INTO replica (one, generation, position, message, chain, at, level) VALUES (1, ?, ?, ?, ?, ?, 1)",
            (generation, FIRST, _id(token), _chain(token), at),
        )
        connection.execute("INSERT INTO replica_chain (position, chain) VALUES (?, ?)", (FIRST, _chain(token)))


async def _has_arrived(log: Log, token: str, path: Path) -> bool:
    """Whether the log's newest snapshot holds what this move brought."""
    manifest = await log.manifest()
    if manifest is None:
        return False
    copy = await snapshots.fetch(log, manifest.newest, path)
    try:
        with use, _change_copy(copy) as connection:
            return bool(
                connection.execute("SELECT 1 FROM docs WHERE kind = ? AND key = ?", (KIND, _ARRIVED + token)).fetchone()
            )
    finally:
        copy.unlink()


async def undo(path: Path, log: Log) -> None:
    """Open a marked file again, unless its jobs have arrived."""
    with _lock_moves(path), _open_file(path) as source:
        mark = read_mark(source)
        if mark is None or mark.stage == "undone":
            raise StoreRefused(f"{path} is not being moved: there is nothing to undo")
        info = await log.open()
        try:
            _mark_for(path, mark, info.url)
            if mark.stage == "moved" or await log.manifest() is not None:
                raise StoreRefused(f"the jobs of {path} have arrived at {mark.to}: move them back into a new file")
        finally:
            await log.close()
        write_mark(source, msgspec.structs.replace(mark, stage="undone"))


# -- a log into a file


async def move_out(make_log: Callable[[], Log], target: Path, report: Report) -> Count:
    """Close a log for good and write its jobs into a file that does not exist yet. Its path is absolute."""
    work = target.with_name(target.name + "-moving")
    with _lock_moves(target):
        work.mkdir(mode=0o700, exist_ok=True)
        report("replay", 0, 1)
        again = await asyncio.to_thread(os.path.lexists, target)
        try:
            await _close_log(make_log, work / "replica.db", target, again)
        except StoreError:
            shutil.rmtree(work)
            raise
        if not again:
            report("write", 0, 1)
            await asyncio.to_thread(_write_file, work, target)
        report("finish", 0, 1)
        shutil.rmtree(work)
        with _open_file(target) as connection:
            return _count(connection, target, again=again)


async def _close_log(make_log: Callable[[], Log], replica: Path, target: Path, written: bool) -> None:
    """Append the message that no replica passes, unless an earlier run has."""
    store = ReplicaStore(replica, make_log, live=replica.with_name("live"))
    try:
        await store.open()
        if written:
            raise StoreRefused(f"{target} exists already: move into a new file")
        await store.leave_for(str(target))
    except FleetMoved as moved:
        if moved.to == str(target):
            return
        raise StoreRefused(f"{moved}; it cannot be moved to {target}") from None
    finally:
        await store.close()
    raise StoreError(f"the log was not closed: run the same command again to move it to {target}")


def _write_file(work: Path, target: Path) -> None:
    copy = work / "copy.db"
    copy.unlink(missing_ok=True)
    snapshots.copy_file(work / "replica.db", copy)
    with use, _change_copy(copy) as connection:
        _strip(connection)
        connection.execute("DELETE FROM docs WHERE kind = ?", (KIND,))
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    os.link(copy, target)  # refuses a file that came meanwhile
    sync_folder(target.parent)


# -- for both


def _id(token: str) -> str:
    return f"move-{token}"


def _chain(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=16).digest()


def _strip(connection: apsw.Connection) -> None:
    """Remove the rows that make a file a replica."""
    for table in ("replica", "replica_chain", "replica_parts"):
        connection.execute(f"DELETE FROM {table}")
    for kind in (REPLICA, ERASURE):
        connection.execute("DELETE FROM docs WHERE kind = ?", (kind.name,))


@contextlib.contextmanager
def _lock_moves(path: Path) -> Iterator[None]:
    """Hold the lock of a file's moves, so that no second move overtakes one that only stands still."""
    sign = path.with_name(path.name + ".move-lock")
    handle = os.open(sign, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        _lock(handle, sign, path)
        try:
            yield
        finally:
            sign.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _lock(handle: int, sign: Path, path: Path) -> None:
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(sign)):
            return
    raise StoreRefused(f"another `redrive move` of {path} is under way: let it finish or stop it")


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[apsw.Connection]:
    """Open the file with its writer's safeguards, by this process alone."""
    guard = FileGuard(path)
    guard.take()
    try:
        with use:
            connection = open_writer(path)
        try:
            yield connection
        finally:
            with use:
                connection.close()
    finally:
        guard.release()


@contextlib.contextmanager
def _change_copy(path: Path) -> Iterator[apsw.Connection]:
    """Change a copy that no other process knows in one transaction, and leave it as one file."""
    connection = apsw.Connection(str(path))
    try:
        connection.pragma("secure_delete", True)
        connection.pragma("journal_mode", "delete")
        with connection:
            yield connection
        connection.pragma("journal_mode", "wal")
    finally:
        connection.close()


def _count(connection: apsw.Connection, path: Path, *, again: bool = False) -> Count:
    rows = connection.execute("SELECT state, count(*) FROM jobs GROUP BY state ORDER BY state").fetchall()
    jobs = {str(state): int(str(number)) for state, number in rows}
    moves = connection.execute("SELECT count(*) FROM moves").get
    documents = connection.execute("SELECT count(*) FROM docs WHERE kind <> ?", (KIND,)).get
    return Count(jobs, moves, documents, path.stat().st_size, again)
