"""ReplicaFile: holds the SQLite file of one replica, and executes messages of the log in a transaction.

The file is written by the engine's thread alone. Its commits are not synced: the log is what makes them durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw

from redrive.core.commands import Erase, Forget
from redrive.errors import StoreError, StoreUnavailable
from redrive.stores.replica.envelope import CommandItem, Envelope
from redrive.stores.replica.log import LogEntry
from redrive.stores.replica.replay import Replay, Replayed
from redrive.stores.sqlite import upkeep
from redrive.stores.sqlite.connection import open_writer, translate
from redrive.stores.sqlite.file_guard import FileGuard
from redrive.stores.sqlite.fork_guard import use

CHECKPOINT_PAGES: Final = 4_000
"""Pages between two checkpoints: 16 MB. A checkpoint syncs the file while callers wait."""


class ReplicaFile:
    """Owns the writing connection to the file."""

    def __init__(self, path: Path, replay: Replay) -> None:
        self.path = path
        self.guard = FileGuard(path)
        self.replay = replay
        self.is_dirty = False
        """Whether executed messages, which only this connection sees, wait for their commit."""
        self.has_erased = False
        """Whether SQLite's log still holds contents that were erased."""
        self._connection: apsw.Connection | None = None

    @property
    def connection(self) -> apsw.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"the replica {self.path} is not open")
        return self._connection

    @property
    def position(self) -> int:
        """The position of the last message that was executed."""
        standing = self.replay.standing
        return standing.position if standing is not None else 0

    def open(self) -> apsw.Connection:
        with use:
            connection = self._connection = open_writer(self.path)
            connection.pragma("synchronous", "NORMAL")
            connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            self.replay.load(connection)
        return connection

    def close(self) -> None:
        if self._connection is not None:
            with use:
                if self.has_erased:
                    upkeep.empty_log(self._connection)
                self._connection.close()
            self._connection = None

    def reload(self) -> None:
        """Read the position again after another connection replaced the content of the file."""
        with use:
            self.replay.load(self.connection)

    def execute(self, entries: Sequence[LogEntry]) -> list[Replayed]:
        """Execute messages in a transaction that later ones may join until it is committed."""
        connection = self.connection
        with use:
            try:
                if not self.is_dirty:
                    connection.execute("BEGIN IMMEDIATE")
                    self.is_dirty = True
                replayed = [self.replay.message(connection, entry) for entry in entries]
            except BaseException:
                self._undo()
                raise
        self.has_erased = self.has_erased or any(erases(message.envelope) for message in replayed)
        return replayed

    def commit(self) -> None:
        """Commit the executed messages; where that fails roll them back."""
        if not self.is_dirty:
            return
        connection = self.connection
        with use:
            try:
                connection.execute("COMMIT")
            except BaseException:
                self._undo()
                raise
            self.is_dirty = False
            if self.has_erased and upkeep.empty_log(connection):  # where another connection reads, the next one tries
                self.has_erased = False

    def _undo(self) -> None:
        connection = self.connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self.is_dirty = False
        self.replay.load(connection)

    def translate(self, error: apsw.Error) -> StoreError:
        """Turn an error of SQLite into one that names this file."""
        return translate(error, str(self.path))


def erases(envelope: Envelope | None) -> bool:
    """Whether a message erases contents of jobs."""
    items = envelope.items if envelope is not None else ()
    return any(isinstance(item, CommandItem) and isinstance(item.command, Erase | Forget) for item in items)
