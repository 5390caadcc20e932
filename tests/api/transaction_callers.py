"""The libraries whose transactions may hold a job: each opens one, enqueues in it, and commits or rolls back.

python -m tests.api.transaction_callers NAME DATABASE_URL QUEUE_URL enqueues one job, commits, and is killed at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from redrive import Redrive

ORDER = "INSERT INTO orders VALUES (1)"
Enqueue = Callable[[Any], Awaitable[object]]
EnqueueNow = Callable[[Any], object]


class RolledBack(Exception):
    """Raised in a transaction that must not be committed."""


class Work:
    """What is done inside the transaction, beside an order of the caller's own."""

    def __init__(self, rd: Redrive, *, commit: bool, key: str | None = None) -> None:
        self.rd = rd
        self.commit = commit
        self.options = {"idempotency_key": key} if key else {}
        self.handle: Any = None

    async def enqueue(self, within: Any) -> None:
        self.handle = await self.rd.enqueue("note", {"number": 7}, within=within, **self.options)
        self._end()

    def enqueue_now(self, within: Any) -> None:
        with self.rd.blocking() as queue:
            self.handle = queue.enqueue("note", {"number": 7}, within=within, **self.options)
        self._end()

    def _end(self) -> None:
        if not self.commit:
            raise RolledBack


def sqlalchemy_url(url: str, driver: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}+{driver}://{rest}"


def plain_driver(url: str) -> str:
    return "psycopg" if url.startswith("postgresql") else "pysqlite"


def async_driver(url: str) -> str:
    return "asyncpg" if url.startswith("postgresql") else "aiosqlite"


async def sqlalchemy_session(url: str, work: Work) -> None:
    import sqlalchemy
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(sqlalchemy_url(url, plain_driver(url)))
    try:
        with Session(engine) as session, session.begin():
            session.execute(sqlalchemy.text(ORDER))
            await work.enqueue(session)
    finally:
        engine.dispose()


async def sqlalchemy_connection(url: str, work: Work) -> None:
    def run() -> None:
        import sqlalchemy

        engine = sqlalchemy.create_engine(sqlalchemy_url(url, plain_driver(url)))
        try:
            with engine.begin() as connection:
                connection.execute(sqlalchemy.text(ORDER))
                work.enqueue_now(connection)
        finally:
            engine.dispose()

    await asyncio.to_thread(run)


async def sqlalchemy_async_session(url: str, work: Work) -> None:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(sqlalchemy_url(url, async_driver(url)))
    try:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(sqlalchemy.text(ORDER))
            await work.enqueue(session)
    finally:
        await engine.dispose()


async def sqlalchemy_async_connection(url: str, work: Work) -> None:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(sqlalchemy_url(url, async_driver(url)))
    try:
        async with engine.begin() as connection:
            await connection.execute(sqlalchemy.text(ORDER))
            await work.enqueue(connection)
    finally:
        await engine.dispose()


async def psycopg(url: str, work: Work) -> None:
    def run() -> None:
        import psycopg

        with psycopg.connect(url) as connection:
            connection.execute(ORDER)
            work.enqueue_now(connection)

    await asyncio.to_thread(run)


async def async_psycopg(url: str, work: Work) -> None:
    import psycopg
    from psycopg.rows import dict_row

    connect = psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row)
    async with await connect as connection, connection.transaction():
        await connection.execute(ORDER)
        await work.enqueue(connection)


async def asyncpg(url: str, work: Work) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(ORDER)
            await work.enqueue(connection)
    finally:
        await connection.close()


async def asyncpg_pool(url: str, work: Work) -> None:
    import asyncpg

    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        await connection.execute(ORDER)
        await work.enqueue(connection)


async def django(url: str, work: Work) -> None:
    await asyncio.to_thread(_django, url, work)


def _django(url: str, work: Work) -> None:
    from urllib.parse import urlsplit

    from django import setup
    from django.conf import settings

    if not settings.configured:
        settings.configure(USE_TZ=True, DATABASES={})
        setup()
    from django.db import connections, transaction
    from django.db.utils import ConnectionHandler
    from django.utils.connection import ConnectionProxy

    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        said = {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path[1:]}
    else:
        said = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username,
                "PASSWORD": parts.password, "HOST": parts.hostname, "PORT": str(parts.port)}  # fmt: skip
    connections["default"] = ConnectionHandler({"default": said})["default"]
    connection = ConnectionProxy(connections, "default")
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(ORDER)
            work.enqueue_now(connection)
    finally:
        connections["default"].close()


Caller = Callable[[str, Work], Awaitable[None]]
CALLERS: dict[str, Caller] = {
    "sqlalchemy": sqlalchemy_session,
    "sqlalchemy connection": sqlalchemy_connection,
    "sqlalchemy async": sqlalchemy_async_session,
    "sqlalchemy async connection": sqlalchemy_async_connection,
    "psycopg": psycopg,
    "psycopg async": async_psycopg,
    "asyncpg": asyncpg,
    "asyncpg pool": asyncpg_pool,
    "django": django,
}
ON_SQLITE = ("sqlalchemy", "sqlalchemy connection", "sqlalchemy async", "sqlalchemy async connection", "django")


async def main(name: str, url: str, queue: str) -> None:
    work = Work(Redrive(queue), commit=True)
    await CALLERS[name](url, work)
    print(work.handle.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
