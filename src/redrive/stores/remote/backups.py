"""Backs up a hub's store for a client: the hub copies its store into a file, and the client fetches it in pieces.

A copy belongs to the hub that made it. Other hubs of the fleet answer that they do not have it, and the client asks
again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from redrive.core.store import Store
from redrive.errors import StoreUnavailable
from redrive.stores.sqlite.upkeep import refuse_unfit_target

NAME: Final = "copy.db"
PREFIX: Final = "redrive-backup-"
OLD_SECONDS: Final = 86_400.0
PIECE: Final = 512 * 1024
KEPT_SECONDS: Final = 120.0
"""A copy for which no client has asked for so long is deleted."""
TRIES: Final = 200
"""How often a piece is asked for in a row: any hub of a fleet may get the request."""


class Copied(msgspec.Struct, frozen=True, array_like=True):
    """A copy that a hub keeps for a client."""

    id: str
    size: int
    sha256: str


class Copies:
    """Keeps the copies of one hub until they are fetched, or until no client asks for them for some time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folders: dict[str, Path] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def begin(self) -> Copied:
        id, parent = secrets.token_hex(8), _folder_of(self._store)
        await asyncio.to_thread(_delete_old, parent)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            size = await self._store.backup(str(folder / NAME))
            digest = await asyncio.to_thread(_sha256, folder / NAME)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._folders[id] = folder
        self._keep(id)
        return Copied(id, size, digest)

    async def piece(self, id: str, offset: int) -> bytes | None:
        """Read a piece of a copy; None where this hub has no such copy."""
        folder = self._folders.get(id)
        if folder is None:
            return None
        self._keep(id)
        return await asyncio.to_thread(_read, folder / NAME, offset)

    async def end(self, id: str) -> None:
        self._drop(id)

    def _keep(self, id: str) -> None:
        if (timer := self._timers.pop(id, None)) is not None:
            timer.cancel()
        self._timers[id] = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._drop, id)

    def _drop(self, id: str) -> None:
        if (timer := self._timers.pop(id, None)) is not None:
            timer.cancel()
        if (folder := self._folders.pop(id, None)) is not None:
            shutil.rmtree(folder, ignore_errors=True)


async def fetch(
    target: Path, begin: Callable[[], Awaitable[Copied]], piece: Callable[[str, int], Awaitable[bytes | None]]
) -> Copied:
    """Write a hub's copy into a new file. Where that fails, no file is left."""
    refuse_unfit_target(target)
    copied = await begin()
    part = target.with_name(f"{target.name}.{copied.id}.part")
    try:
        digest = await _fetch_into(part, copied, piece)
        if digest != copied.sha256:
            raise StoreUnavailable("the backup that arrived is not the one that the hub made: try again")
        os.rename(part, target)
    finally:
        part.unlink(missing_ok=True)
    return copied


async def _fetch_into(part: Path, copied: Copied, piece: Callable[[str, int], Awaitable[bytes | None]]) -> str:
    digest, offset = hashlib.sha256(), 0
    with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        while offset < copied.size:
            data = await _fetch_piece(copied.id, offset, piece)
            file.write(data)
            digest.update(data)
            offset += len(data)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


async def _fetch_piece(id: str, offset: int, piece: Callable[[str, int], Awaitable[bytes | None]]) -> bytes:
    for _ in range(TRIES):
        data = await piece(id, offset)
        if data:
            return data
    raise StoreUnavailable("the hub that made the backup does not answer any more: try again")


def _folder_of(store: Store) -> Path:
    """Find the folder of the store's own file, which has room for a copy."""
    path: Path = getattr(store, "path", Path(tempfile.gettempdir(), NAME))
    return path.parent


def _delete_old(parent: Path) -> None:
    """Delete the copies of hubs that were killed."""
    limit = time.time() - OLD_SECONDS
    for folder in parent.glob(f"{PREFIX}*"):
        if folder.stat().st_mtime < limit:
            shutil.rmtree(folder, ignore_errors=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read(file: Path, offset: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(PIECE)
