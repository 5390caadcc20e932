"""The inbox in a SQLite file of the caller.

Python's sqlite3 reads it, as the caller's code does: two SQLite libraries in one process would drop each other's locks.
The one process that locks a file beside the database moves rows, so that the writes of the caller do not wait.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from redrive.core.inbox_table import InboxRow
from redrive.errors import StoreUnavailable

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

T = TypeVar("T")
BUSY_SECONDS: Final = 5.0
_OLDEST: Final = """
    SELECT id, namespace, payload FROM rd_inbox WHERE namespace = ? AND problem IS NULL ORDER BY created_at, id LIMIT ?
"""


class _SqliteBatch:
    def __init__(self, inbox: SqliteInbox, rows: Sequence[InboxRow]) -> None:
        self._inbox = inbox
        self.rows = rows

    async def settle(self, moved: Sequence[str], problems: Mapping[str, str]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("DELETE FROM rd_inbox WHERE id = ?", [(id,) for id in moved])
                marks = [(problem, id) for id, problem in problems.items()]
                connection.executemany("UPDATE rd_inbox SET problem = ? WHERE id = ?", marks)

        if moved or problems:
            await self._inbox.use(work)


class SqliteInbox:
    """The inbox of a SQLite file, opened for each use."""

    def __init__(self, url: str, namespace: str) -> None:
        self.path = Path(unquote(urlsplit(url).path.removeprefix("/")))
        self.url = f"sqlite:///{self.path}"
        self._namespace = namespace

    @asynccontextmanager
    async def take(self, limit: int) -> AsyncIterator[_SqliteBatch]:
        with self._alone() as alone:
            rows = await self._select(_OLDEST, limit) if alone else []
            yield _SqliteBatch(self, [InboxRow(*row) for row in rows])

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process moves rows while the block runs. Without such locks two movers are harmless."""
        if fcntl is None or not self.path.exists():
            yield True
            return
        handle = self._open_lock()
        try:
            yield _lock(handle)
        finally:
            os.close(handle)

    def _open_lock(self) -> int:
        name = self.path.with_name(f"{self.path.name}-rd_inbox.lock")
        try:
            return os.open(name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"the inbox {self.url} cannot be used: {name}: {error.strerror}") from error

    async def marked(self) -> int:
        query = "SELECT count(*) FROM rd_inbox WHERE namespace = ? AND problem IS NOT NULL"
        return sum(number for (number,) in await self._select(query))

    async def _select(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Select rows of this namespace; none where the file or the table does not exist."""

        def work(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'rd_inbox'").fetchall():
                return []
            return connection.execute(query, (self._namespace, *values)).fetchall()

        return await self.use(work) if self.path.exists() else []

    async def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def opened() -> T:
            with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as connection:
                return work(connection)

        try:
            return await asyncio.to_thread(opened)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the inbox {self.url} cannot be used: {error}") from error

    async def close(self) -> None:
        """Do nothing: nothing stays open."""


def _lock(handle: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
