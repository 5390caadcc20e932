"""PostgresLog: keeps the log of a namespace in tables of a PostgreSQL database.

An advisory lock serializes the appends of a namespace, so that position n is never visible before n - 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from redrive.errors import ConfigError, StoreRefused

try:
    import psycopg
    from psycopg import errors, sql
except ImportError as error:
    raise ConfigError('postgresql:// needs the package psycopg: pip install "redrive[postgres]"') from error

from redrive.stores.replica.log import (
    Answered,
    Durability,
    Fill,
    LogChanged,
    LogEntry,
    LogFull,
    LogInfo,
    LogSnapshot,
    LogUnavailable,
    Manifest,
    ManifestMoved,
)
from redrive.stores.replica.postgres_schema import EXISTS, LOCK, TABLES
from redrive.stores.replica.postgres_url import read_url

log = logging.getLogger("redrive.store")
T = TypeVar("T")
Connection = psycopg.AsyncConnection[tuple[Any, ...]]
MAX_MESSAGE: Final = 4 * 1024 * 1024
OLDEST_SERVER: Final = 120_000
BATCH: Final = 200
BATCH_BYTES: Final = 8 * 1024 * 1024
"""The most that one look of the feed or one append carries."""
POLL_SECONDS: Final = 1.0
"""Seconds between two looks of the feed without a notification, which a pooler may hold back."""
OPEN_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 15.0
TRIM_ROWS: Final = 10_000
_FIRST_MANIFEST: Final = (
    "INSERT INTO rd_manifest (data, ns, version) VALUES (%s, %s, %s + 1) ON CONFLICT DO NOTHING RETURNING ns"
)
_NEXT_MANIFEST: Final = (
    "UPDATE rd_manifest SET version = version + 1, data = %s WHERE ns = %s AND version = %s RETURNING ns"
)
_AT_POSITION: Final = "SELECT seq, id, data, extract(epoch from at)::float8 FROM rd_log WHERE ns = %s AND seq = %s"
_TRIM: Final = """
    DELETE FROM rd_log WHERE ns = %s AND seq IN (
        SELECT seq FROM rd_log WHERE ns = %s AND seq < %s AND seq < (SELECT max(seq) FROM rd_log WHERE ns = %s)
        ORDER BY seq LIMIT %s) RETURNING seq
"""
_FROM_POSITION: Final = """
    SELECT seq, id, CASE WHEN seq > %s THEN data ELSE '' END, extract(epoch from at)::float8
    FROM rd_log WHERE ns = %s AND seq >= %s ORDER BY seq LIMIT %s
"""


class _Link:
    """Keeps one connection, and makes it anew when it is lost."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` with the connection, one caller at a time, and translate its errors."""
        async with self._turn:
            try:
                with _translated():
                    async with asyncio.timeout(ANSWER_SECONDS):
                        return await work(await self._open())
            except (LogUnavailable, asyncio.CancelledError):
                await self._drop()
                raise

    async def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        async def work(connection: Connection) -> list[tuple[Any, ...]]:
            cursor = await connection.execute(query.encode(), values, binary=True)
            return await cursor.fetchall() if cursor.description else []

        return await self.use(work)

    async def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self._conninfo)
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        async with self._turn:
            await self._drop()


async def connect(conninfo: str) -> Connection:
    """Connect. Statements are not prepared, because a pooler may give each one another server process."""
    return await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn errors of PostgreSQL into those of a log."""
    try:
        yield
    except errors.DiskFull as error:
        raise LogFull(describe_error(error)) from error
    except (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction) as error:
        raise LogUnavailable(describe_error(error)) from error
    except TimeoutError as error:
        raise LogUnavailable(f"no answer within {ANSWER_SECONDS:.0f} s") from error
    except errors.InsufficientPrivilege as error:
        raise StoreRefused(
            f"{describe_error(error)}: grant it to redrive's role, or open this URL once as the owner of the schema,"
            " which makes the tables"
        ) from error


def describe_error(error: Exception) -> str:
    """Write an error of the server in one line."""
    return " ".join(str(error).split()) or type(error).__name__


class _Append(NamedTuple):
    """One message that waits for its position."""

    id: str
    data: bytes
    future: asyncio.Future[int]


class PostgresLog:
    """Holds one process's connections to a log on PostgreSQL."""

    def __init__(self, url: str) -> None:
        where = read_url(url)
        _check(where.conninfo, where.shown)
        self.url = where.shown
        self.namespace = where.namespace
        self._conninfo = where.conninfo
        self._waiting: list[_Append] = []
        self._flusher: asyncio.Task[None] | None = None
        self._came: set[asyncio.Event] = set()
        self._generation = ""
        self._last: LogEntry | None = None
        """The newest entry that a feed has handed on."""
        self._writer, self._reader = _Link(self._conninfo), _Link(self._conninfo)

    # -- opening and closing

    async def open(self) -> LogInfo:
        await self._wait_for_server()
        await self._refuse_unfit()
        generation = self._generation = await self._make()
        settings = ("synchronous_commit", "fsync", "synchronous_standby_names")
        durability, advice = judge_durability(*await self._settings(*settings))
        if advice:
            log.warning("%s is %s: %s", self.url, durability, advice)
        return LogInfo(self.url, durability, MAX_MESSAGE, generation, await self.first(), await self.end(), advice)

    async def _wait_for_server(self) -> None:
        """Wait for a server that takes writes, and log what is missing."""
        until, logged = time.monotonic() + OPEN_SECONDS, False
        while True:
            try:
                await self._reader.rows("SELECT 1")
                return
            except LogUnavailable as error:
                if time.monotonic() >= until:
                    raise LogUnavailable(f"{self.url} cannot be opened: {error}") from error
                if not logged:
                    log.warning("waiting up to %.0f s for %s: %s", OPEN_SECONDS, self.url, error)
                logged = True
            await asyncio.sleep(0.25)

    async def _refuse_unfit(self) -> None:
        version, isolation = await self._settings("server_version_num", "default_transaction_isolation")
        if int(version) < OLDEST_SERVER:
            raise StoreRefused(f"{self.url} is older than PostgreSQL {OLDEST_SERVER // 10_000}: upgrade the server")
        if isolation != "read committed":
            raise StoreRefused(
                f"{self.url} has default_transaction_isolation = {isolation!r}:"
                " run ALTER ROLE … SET default_transaction_isolation = 'read committed' for redrive's role"
            )

    async def _settings(self, *names: str) -> list[str]:
        rows = await self._reader.rows(
            "SELECT coalesce(current_setting(n, true), '') FROM unnest(%s::text[]) n", list(names)
        )
        return [value for (value,) in rows]

    async def _make(self) -> str:
        """Make missing tables and the log, one process at a time; return the generation of the log."""

        async def work(connection: Connection) -> str:
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})".encode(), ["schema"])
                cursor = await connection.execute(EXISTS)
                if await cursor.fetchone() != (True,):
                    await connection.execute(TABLES)
                await connection.execute(
                    "INSERT INTO rd_log_state (ns, generation) VALUES (%s, %s) ON CONFLICT (ns) DO NOTHING",
                    [self.namespace, secrets.token_hex(8)],
                )
                cursor = await connection.execute("SELECT generation FROM rd_log_state WHERE ns = %s", [self.namespace])
                ((generation,),) = await cursor.fetchall()
            return str(generation)

        return await self._writer.use(work)

    async def close(self) -> None:
        flusher = self._flusher
        if flusher is not None:
            flusher.cancel()
            await asyncio.gather(flusher, return_exceptions=True)
        await self._writer.close()
        await self._reader.close()

    # -- appending

    def send(self, id: str, data: bytes, answered: Answered) -> bool:
        return False  # appends that wait go together

    async def append(self, id: str, data: bytes) -> int:
        if len(data) > MAX_MESSAGE:
            raise ValueError("larger than the log takes")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Append(id, data, future))
        if self._flusher is None:
            self._flusher = asyncio.ensure_future(self._flush())
        return await future

    async def _flush(self) -> None:
        """Append all that waits, batch by batch; messages that come during one commit share the next."""
        try:
            while batch := self._batch():
                await self._append_batch(batch)
        finally:
            self._flusher = None
            _answer_all(self._waiting, LogUnavailable("the log was closed"))
            self._waiting.clear()

    def _batch(self) -> list[_Append]:
        batch, size = list[_Append](), 0
        while self._waiting and len(batch) < BATCH:
            size += len(self._waiting[0].data)
            if batch and size > BATCH_BYTES:
                break
            append = self._waiting.pop(0)
            if not append.future.done():
                batch.append(append)
        return batch

    async def _append_batch(self, batch: Sequence[_Append]) -> None:
        ids, messages = [append.id for append in batch], [append.data for append in batch]
        try:
            ((positions,),) = await self._writer.rows(
                "SELECT rd_log_append_1(%s, %b::text[], %b::bytea[])", self.namespace, ids, messages
            )
        except BaseException as error:
            _answer_all(batch, error if isinstance(error, Exception) else LogUnavailable("the log was closed"))
            if not isinstance(error, Exception):
                raise
            return
        for append, position in zip(batch, positions, strict=True):
            if not append.future.done():
                append.future.set_result(position)
        for event in self._came:
            event.set()

    # -- reading

    async def feed(self, after: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        came = asyncio.Event()
        self._came.add(came)
        listener = asyncio.ensure_future(self._listen(came))
        reader = _Link(self._conninfo)
        try:
            await self._refuse_other_generation()
            while True:
                came.clear()
                if entries := await self._after(reader, after):
                    self._last = entries[-1]
                    after = self._last.position
                    yield entries
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await came.wait()
        finally:
            self._came.discard(came)
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
            await reader.close()

    async def _refuse_other_generation(self) -> None:
        rows = await self._reader.rows("SELECT generation FROM rd_log_state WHERE ns = %s", self.namespace)
        generation = rows[0][0] if rows else "none"
        if generation != self._generation:
            raise LogChanged.made_anew(self.url, generation, self._generation)

    async def _after(self, reader: _Link, position: int) -> list[LogEntry]:
        """Read what follows a position, once the message there is the one that was read last: it is never deleted."""
        rows = await reader.rows(_FROM_POSITION, position, self.namespace, position, BATCH + 1)
        entries = [LogEntry(*row) for row in rows]
        here = entries.pop(0) if entries and entries[0].position == position else None
        if here is None and not entries and position:
            raise LogChanged.went_back(self.url, f"message {position} was executed here and is gone")
        last = self._last
        if here is not None and last is not None and here.position == last.position and here.id != last.id:
            raise LogChanged.replaced(self.url, here.position)
        return entries

    async def _listen(self, came: asyncio.Event) -> None:
        """Set the event at every notification. Without notifications the feed looks each second by itself."""
        logged = False
        while True:
            try:
                connection = await connect(self._conninfo)
                try:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"rd_log_{self.namespace}")))
                    came.set()
                    async for _ in connection.notifies():
                        came.set()
                finally:
                    await connection.close()
            except psycopg.Error as error:
                if not logged:
                    log.warning("%s sends no notifications (%s); looking each second", self.url, describe_error(error))
                logged = True
            await asyncio.sleep(POLL_SECONDS)

    async def end(self) -> int:
        ((last,),) = await self._reader.rows("SELECT coalesce(max(seq), 0) FROM rd_log WHERE ns = %s", self.namespace)
        return int(last)

    async def first(self) -> int:
        ((first,),) = await self._reader.rows("SELECT coalesce(min(seq), 1) FROM rd_log WHERE ns = %s", self.namespace)
        return int(first)

    async def entry(self, position: int) -> LogEntry | None:
        rows = await self._reader.rows(_AT_POSITION, self.namespace, position)
        return LogEntry(*rows[0]) if rows else None

    async def fill(self) -> Fill:
        ((size,),) = await self._reader.rows("SELECT pg_total_relation_size('rd_log')")
        return Fill(int(size))

    # -- snapshots

    async def manifest(self) -> Manifest | None:
        rows = await self._reader.rows("SELECT version, data FROM rd_manifest WHERE ns = %s", self.namespace)
        return _manifest(rows[0]) if rows else None

    async def put_pieces(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        number = 0
        async for piece in pieces:
            query = "INSERT INTO rd_snapshot (ns, name, number, data) VALUES (%s, %s, %s, %s)"
            await self._reader.rows(query, self.namespace, name, number, piece)
            number += 1
        return number

    async def pieces(self, snapshot: LogSnapshot) -> AsyncIterator[bytes]:
        for number in range(snapshot.pieces):
            query = "SELECT data FROM rd_snapshot WHERE ns = %s AND name = %s AND number = %s"
            rows = await self._reader.rows(query, self.namespace, snapshot.name, number)
            if not rows:
                raise LookupError(f"piece {number} of {snapshot.pieces} is missing")
            yield rows[0][0]

    async def put_manifest(self, manifest: Manifest) -> None:
        """Write the manifest if it is the next one and no other process has dropped the pieces that it names."""
        packed = msgspec.msgpack.encode(msgspec.structs.replace(manifest, version=manifest.version + 1))
        query = _NEXT_MANIFEST if manifest.version else _FIRST_MANIFEST

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                cursor = await connection.execute(query.encode(), [packed, self.namespace, manifest.version])
                if not await cursor.fetchall():
                    raise ManifestMoved
                cursor = await connection.execute(
                    "SELECT count(*) FROM rd_snapshot WHERE ns = %s AND name = %s",
                    [self.namespace, manifest.newest.name],
                )
                if await cursor.fetchone() != (manifest.newest.pieces,):
                    raise ManifestMoved

        await self._reader.use(work)

    async def drop_pieces(self, keep: Sequence[str]) -> None:
        """Remove the other snapshots, unless another process has written a later manifest."""

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                cursor = await connection.execute(
                    "SELECT version, data FROM rd_manifest WHERE ns = %s FOR UPDATE", [self.namespace]
                )
                row = await cursor.fetchone()
                if row is None or set(_manifest(row).names) != set(keep):
                    return
                await connection.execute(
                    "DELETE FROM rd_snapshot WHERE ns = %s AND name <> ALL(%s::text[])", [self.namespace, list(keep)]
                )

        await self._reader.use(work)

    async def trim(self, before: int) -> None:
        while True:
            ns = self.namespace
            rows = await self._reader.rows(_TRIM, ns, ns, before, ns, TRIM_ROWS)
            if len(rows) < TRIM_ROWS:
                return


def _check(conninfo: str, shown: str) -> None:
    """Refuse a URL that libpq cannot read. The message of libpq is not shown: it may quote the password."""
    try:
        psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        raise ConfigError(
            f"{shown}: PostgreSQL's library cannot read this URL. Write special characters of user and password as %XX,"
            " and check the names of the parameters"
        ) from None


def judge_durability(commit: str, fsync: str, standbys: str) -> tuple[Durability, str]:
    """Return the durability class that the server's settings give, and how to get a better one."""
    if fsync == "off":
        return "unsynced", "fsync is off, and a crash of the server's machine ruins the database; set fsync = on"
    if commit == "off":
        return "unsynced", (
            "synchronous_commit is off, and a crash of the server loses jobs that were accepted last;"
            " run ALTER ROLE … SET synchronous_commit = on for redrive's role"
        )
    if not standbys.strip():
        return "synced", ""
    if commit == "local":
        return "synced", (
            "synchronous_commit is local, so accepted jobs may not be on a standby yet;"
            " run ALTER ROLE … SET synchronous_commit = on for redrive's role"
        )
    return "replicated", ""


def _manifest(row: Sequence[Any]) -> Manifest:
    return msgspec.structs.replace(msgspec.msgpack.decode(row[1], type=Manifest), version=int(row[0]))


def _answer_all(batch: Sequence[_Append], error: Exception) -> None:
    for append in batch:
        if not append.future.done():
            append.future.set_exception(type(error)(*error.args))
