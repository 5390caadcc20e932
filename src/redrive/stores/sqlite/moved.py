"""Marks a file whose jobs are moved to a fleet, so that no process works on them in both places."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

import apsw
import msgspec

from redrive.errors import StoreRefused
from redrive.stores.sqlite.liveness import ProcessLock

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: every lock file counts
    fcntl = None

KIND: Final = "moved"
KEY: Final = "store"


class Mark(msgspec.Struct, frozen=True):
    """Where the jobs of a file go, and how far they are."""

    token: str
    """Names this move in the log of its target."""
    to: str
    """For people: without credentials."""
    stage: Literal["moving", "moved", "undone"]
    at: float


def read_mark(connection: apsw.Connection) -> Mark | None:
    row = connection.execute("SELECT value FROM docs WHERE kind = ? AND key = ?", (KIND, KEY)).fetchone()
    return msgspec.json.decode(row[0], type=Mark) if row else None


def write_mark(connection: apsw.Connection, mark: Mark) -> None:
    connection.execute(
        "INSERT INTO docs (kind, key, value) VALUES (?1, ?2, ?3)"
        " ON CONFLICT (kind, key) DO UPDATE SET value = ?3, version = version + 1",
        (KIND, KEY, msgspec.json.encode(mark)),
    )


def drop_mark(connection: apsw.Connection) -> None:
    connection.execute("DELETE FROM docs WHERE kind = ? AND key = ?", (KIND, KEY))


def refuse_moved(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file whose jobs have gone elsewhere, and say where they are."""
    mark = read_mark(connection)
    if mark is None or mark.stage == "undone":
        return
    if mark.stage == "moved":
        raise StoreRefused(f"{path} was moved to {mark.to}: set REDRIVE_URL to it")
    raise StoreRefused(
        f"{path} is being moved to {mark.to}: run `redrive move --from {path} --to …` again to finish it, or with"
        " --undo to open the file again"
    )


def living(path: Path) -> list[str]:
    """The processes that have the file open, by the names of their lock files, whatever hostname they go by."""
    folder = ProcessLock(path).folder
    if not folder.is_dir():
        return []
    return sorted(sign.name for sign in folder.iterdir() if not sign.name.startswith(".") and _is_locked(sign))


def _is_locked(sign: Path) -> bool:
    if fcntl is None:
        return True
    try:
        handle = os.open(sign, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
