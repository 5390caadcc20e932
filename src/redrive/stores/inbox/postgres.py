"""The inbox in a PostgreSQL database. One process at a time moves rows: the one that has the advisory lock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from redrive.core.inbox_table import InboxRow, Steps, make_table
from redrive.errors import ConfigError, InvalidInput, StoreUnavailable
from redrive.stores.replica.postgres_url import read_url

try:
    import psycopg
except ImportError as error:
    raise ConfigError('an inbox in PostgreSQL needs the package psycopg: pip install "redrive[postgres]"') from error

log = logging.getLogger("redrive.relay")
Connection = psycopg.AsyncConnection[tuple[Any, ...]]
_TRY_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('redrive inbox mover ' || %s, 0))"
_OLDEST: Final = """
    SELECT replace(id::text, '-', ''), namespace, payload FROM rd_inbox
    WHERE namespace = %s AND problem IS NULL ORDER BY created_at, id LIMIT %s
"""


_ASYNCHRONOUS: Final = (
    "synchronous_commit is off in %s: after a crash of its server a job may run whose own data was lost;"
    " run ALTER DATABASE … SET synchronous_commit = on"
)


class _PostgresBatch:
    def __init__(self, connection: Connection, rows: Sequence[InboxRow]) -> None:
        self._connection = connection
        self.rows = rows

    async def settle(self, moved: Sequence[str], problems: Mapping[str, str]) -> None:
        await self._connection.execute("DELETE FROM rd_inbox WHERE id = ANY(%s::uuid[])", [list(moved)])
        for id, problem in problems.items():
            await self._connection.execute("UPDATE rd_inbox SET problem = %s WHERE id = %s::uuid", [problem, id])


class PostgresInbox:
    """The inbox of a PostgreSQL database, by one connection that is made anew when it is lost."""

    def __init__(self, url: str) -> None:
        where = read_url(url)
        self.url = where.shown
        self._conninfo = where.conninfo
        self._namespace = where.namespace
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warned = False

    @asynccontextmanager
    async def take(self, limit: int) -> AsyncIterator[_PostgresBatch]:
        async with self._transaction() as connection:
            yield _PostgresBatch(connection, await self._rows(connection, limit))

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        try:
            connection = await self._open()
            async with connection.transaction():
                yield connection
        except psycopg.Error as error:
            await self.close()
            raise StoreUnavailable(f"the inbox {self.url} cannot be read: {' '.join(str(error).split())}") from error

    async def _rows(self, connection: Connection, limit: int) -> list[InboxRow]:
        cursor = await connection.execute(_TRY_LOCK, [self._namespace])
        if await cursor.fetchone() != (True,) or not await self._exists(connection):
            return []
        cursor = await connection.execute(_OLDEST, [self._namespace, limit])
        return [InboxRow(*row) for row in await cursor.fetchall()]

    async def _exists(self, connection: Connection) -> bool:
        """Make the table where that is allowed; False where it is not: then there are no rows either."""
        try:
            await _run_all(connection, make_table("postgresql"))
        except InvalidInput:
            return False
        return True

    async def marked(self) -> int:
        async with self._transaction() as connection:
            if not await self._exists(connection):
                return 0
            query = "SELECT count(*) FROM rd_inbox WHERE namespace = %s AND problem IS NOT NULL"
            ((number,),) = await (await connection.execute(query, [self._namespace])).fetchall()
            return int(number)

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self._connection is not None and self._loop is not loop:
            self._connection.pgconn.finish()  # belongs to an event loop that has ended
        if self._connection is None or self._connection.closed:
            self._loop = loop
            self._connection = await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True, prepare_threshold=None
            )
            await self._warn_asynchronous(self._connection)
        return self._connection

    async def _warn_asynchronous(self, connection: Connection) -> None:
        """Warn once of a database that forgets commits in a crash: a job may run though its data is gone."""
        cursor = await connection.execute("SHOW synchronous_commit")
        if await cursor.fetchone() == ("off",) and not self._warned:
            self._warned = True
            log.warning(_ASYNCHRONOUS, self.url)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _run_all(connection: Connection, steps: Steps) -> None:
    try:
        statement = next(steps)
        while True:
            cursor = await connection.execute(statement.sql.encode())
            statement = steps.send(await cursor.fetchall() if cursor.description else [])
    except StopIteration:
        return
