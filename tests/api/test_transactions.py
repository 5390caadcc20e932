"""Enqueue inside the caller's own transaction, and the relay, with the real libraries."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from redrive import InvalidInput, InvalidOption, JobHandle, JobNotFound, Redrive
from redrive.core.job import State
from redrive.core.store import Filter
from redrive.errors import ConfigError, StoreUnavailable
from redrive.stores.inbox import namespace_of, open_inbox
from tests.api.transaction_callers import CALLERS, ON_SQLITE, RolledBack, Work
from tests.nats import shared_server
from tests.postgres_server import PASSWORD, Server
from tests.stores.jobs import a_job

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
CASES = [(name, "postgresql") for name in CALLERS] + [(name, "sqlite") for name in ON_SQLITE]


class Database:
    """A caller's own database, with a table of orders."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    def rows(self, query: str) -> list[Any]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection, connection:
                return connection.execute(query).fetchall()
        with psycopg.connect(self.url, autocommit=True) as other:
            cursor = other.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def orders(self) -> int:
        return int(self.rows("SELECT count(*) FROM orders")[0][0])


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    name = f"app_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield postgres_server.url(database=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def postgres(postgres_url: str) -> Database:
    database = Database("postgresql", postgres_url)
    database.rows("CREATE TABLE orders (number integer)")
    return database


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    database = Database("sqlite", f"sqlite:///{tmp_path / 'app.db'}")
    database.rows("CREATE TABLE orders (number integer)")
    return database


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue({"postgresql": "postgres", "sqlite": "sqlite"}[request.param])
    return found


@pytest.fixture
def queue(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def consumer(queue: str, inbox: str, seen: list[int], **settings: Any) -> Redrive:
    rd = Redrive(queue, inbox=inbox, **settings)

    @rd.task("note")
    async def note(number: int) -> int:
        seen.append(number)
        return number

    return rd


# ---- the libraries


@pytest.mark.behaviour("F-18")
@pytest.mark.parametrize(("name", "database"), CASES, indirect=["database"])
async def test_a_job_is_committed_with_the_callers_data(name: str, database: Database, queue: str) -> None:
    work, seen = Work(Redrive(queue), commit=True), list[int]()
    await CALLERS[name](database.url, work)
    assert (database.orders(), work.handle.pending, work.handle.duplicate) == (1, True, False)
    assert not Path(queue).exists(), "the producer needs no store"
    async with consumer(queue, database.url, seen) as rd:
        assert await rd.drain() == 1
        assert (await rd.status(work.handle.id)).state is State.done
        assert (seen, database.rows("SELECT * FROM rd_inbox")) == ([7], [])


@pytest.mark.behaviour("F-18")
@pytest.mark.parametrize(("name", "database"), CASES, indirect=["database"])
async def test_a_transaction_that_is_rolled_back_leaves_no_job(name: str, database: Database, queue: str) -> None:
    work, seen = Work(Redrive(queue), commit=False), list[int]()
    with pytest.raises(RolledBack):
        await CALLERS[name](database.url, work)
    assert database.orders() == 0
    async with consumer(queue, database.url, seen) as rd:
        assert await rd.drain() == 0
        with pytest.raises(JobNotFound):
            await rd.status(work.handle.id)
    assert seen == []


@pytest.mark.behaviour("F-18")
@pytest.mark.parametrize(
    ("name", "database"),
    [(name, "postgresql") for name in ("sqlalchemy", "psycopg", "asyncpg", "django")]
    + [(name, "sqlite") for name in ("sqlalchemy", "django")],
    indirect=["database"],
)
async def test_a_job_runs_though_its_producer_was_killed_after_the_commit(
    name: str, database: Database, queue: str
) -> None:
    command = [sys.executable, "-m", "tests.api.transaction_callers", name, database.url, queue]
    killed = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, stdout=subprocess.PIPE, timeout=PATIENCE, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    seen: list[int] = []
    rd = consumer(queue, database.url, seen)
    async with rd, rd.worker():
        assert await result_of(rd, killed.stdout.decode().strip()) == 7
    assert (seen, database.orders()) == ([7], 1)


async def result_of(rd: Redrive, job_id: str) -> Any:
    """The result of a job that another process enqueued, once it was moved and run."""
    job = a_job(id=job_id)
    return await JobHandle(rd.jobs, job, pending=True).result(timeout=PATIENCE)


# ---- in front of every store


@pytest.mark.parametrize("kind", ["nats", "postgresql"])
async def test_the_inbox_stands_in_front_of_a_fleet(
    kind: str, postgres: Database, postgres_server: Server, tmp_path: Path
) -> None:
    name = f"t{secrets.token_hex(6)}"
    url = f"{shared_server().url}/{name}" if kind == "nats" else postgres_server.url(namespace=name)
    rd = consumer(url, postgres.url, [], replica=True, replica_folder=str(tmp_path / "replicas"))
    work = Work(rd, commit=True)
    await CALLERS["psycopg"](postgres.url, work)
    async with rd:
        assert await rd.drain() == 1
        assert (await rd.status(work.handle.id)).state is State.done


# ---- handles


async def test_the_handle_says_that_it_cannot_know_duplicates_and_waits_for_the_commit(
    postgres: Database, queue: str
) -> None:
    rd = consumer(queue, postgres.url, [])
    async with rd, rd.worker(), await psycopg.AsyncConnection.connect(postgres.url) as connection:
        handle = await rd.enqueue("note", {"number": 7}, within=connection, idempotency_key="one")
        assert handle.pending and any("cannot be said until then" in warning for warning in handle.warnings)
        assert "pending=True" in repr(handle)
        result = asyncio.ensure_future(handle.result(timeout=PATIENCE))
        await connection.commit()
        assert await result == 7


async def test_a_task_takes_within_beside_its_arguments_or_as_an_option(postgres: Database, queue: str) -> None:
    rd = Redrive(queue, inbox=postgres.url)

    @rd.task("add")
    async def add(a: int, b: int) -> int:
        return a + b

    @rd.task("enclose")
    async def enclose(within: str) -> str:
        return within

    async with rd, await psycopg.AsyncConnection.connect(postgres.url) as connection:
        one = await add.enqueue(1, b=2, within=connection)  # type: ignore[call-arg]
        other = await add.options(within=connection, priority="high").enqueue(3, 4)
        many = await rd.enqueue_many("add", [{"a": 5, "b": 6}, {"a": "x"}], within=connection)
        own = await enclose.enqueue(within="a box")
        assert (one.pending, other.pending, own.pending) == (True, True, False)
        assert (many.accepted, list(many.refused)) == (1, [1])
        await connection.commit()
        assert await rd.drain() == 4
        assert [await handle.result() for handle in (one, other, own)] == [3, 7, "a box"]
        assert (await rd.status(many.ids[0] or "")).state is State.done


async def test_the_same_key_in_two_transactions_is_one_job(postgres: Database, queue: str) -> None:
    seen: list[int] = []
    rd = consumer(queue, postgres.url, seen)
    for _ in range(2):
        await CALLERS["psycopg"](postgres.url, Work(rd, commit=True, key="order-1"))
    async with rd:
        assert await rd.drain() == 1
    assert seen == [7]


async def test_a_key_that_stands_for_other_work_becomes_a_dead_letter(postgres: Database, queue: str) -> None:
    rd = consumer(queue, postgres.url, [])
    async with rd:
        await rd.enqueue("note", {"number": 1}, idempotency_key="order-1")
        await CALLERS["psycopg"](postgres.url, Work(rd, commit=True, key="order-1"))
        await rd.drain()
        (letter,) = (await rd.dead.list()).jobs
        assert "order-1" in str(letter.error)
        assert postgres.rows("SELECT * FROM rd_inbox") == []


# ---- refusals


async def test_a_connection_without_a_transaction_is_refused(postgres: Database, queue: str) -> None:
    rd = Redrive(queue)
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        with pytest.raises(InvalidOption, match="no open transaction"):
            await rd.enqueue("note", {"number": 7}, within=connection)


@pytest.mark.parametrize("within", [object(), "postgresql://h/d", sqlite3])
async def test_anything_else_is_refused_with_the_reason(within: Any, queue: str) -> None:
    with pytest.raises(InvalidOption, match="give a session or connection of SQLAlchemy"):
        await Redrive(queue).enqueue("note", {"number": 7}, within=within)


async def test_a_session_without_a_database_and_another_dialect_are_refused(queue: str) -> None:
    from sqlalchemy.orm import Session

    with Session() as session, pytest.raises(InvalidOption, match="several databases or none"):
        await Redrive(queue).enqueue("note", {"number": 7}, within=session)
    with pytest.raises(InvalidOption, match="not in 'mysql'"):
        Redrive.inbox_ddl("mysql")


def test_an_async_connection_cannot_be_used_without_await(postgres: Database, queue: str) -> None:
    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(postgres.url)

    with asyncio.Runner() as runner:
        connection = runner.run(connect())
        with Redrive(queue).blocking() as blocking, pytest.raises(InvalidOption, match="must be awaited"):
            blocking.enqueue("note", {"number": 7}, within=connection)
        runner.run(connection.close())


async def test_a_bad_payload_and_a_fallback_are_refused_before_anything_is_written(
    postgres: Database, queue: str
) -> None:
    rd = consumer(queue, postgres.url, [])
    async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
        for payload, options in [({"numbr": 7}, {}), ({"number": 7}, {"fallback": True})]:
            with pytest.raises(InvalidInput):
                await rd.enqueue("note", payload, within=connection, **options)
        assert connection.info.transaction_status == 0


async def test_a_user_who_may_not_make_the_table_gets_its_statement_and_keeps_the_transaction(
    postgres: Database, postgres_server: Server, queue: str
) -> None:
    role = f"poor_{secrets.token_hex(4)}"
    postgres.rows(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    postgres.rows("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    url = postgres.url.replace("redrive_test:", f"{role}:")
    rd = Redrive(queue)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        with pytest.raises(InvalidInput, match="CREATE TABLE IF NOT EXISTS rd_inbox"):
            await rd.enqueue("note", {"number": 7}, within=connection)
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
        await connection.commit()
        postgres.rows(rd.inbox_ddl("postgresql"))
        postgres.rows(f"GRANT INSERT ON rd_inbox TO {role}")
        await rd.enqueue("note", {"number": 7}, within=connection)
    assert len(postgres.rows("SELECT id FROM rd_inbox")) == 1
    postgres.rows(f"DROP OWNED BY {role}")
    postgres.rows(f"DROP ROLE {role}")


async def test_two_first_transactions_at_once_make_one_table(postgres: Database, queue: str) -> None:
    rd = Redrive(queue)

    async def one() -> None:
        async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
            await rd.enqueue("note", {"number": 7}, within=connection)

    await asyncio.gather(*(one() for _ in range(8)))
    assert len(postgres.rows("SELECT id FROM rd_inbox")) == 8


# ---- the relay


class Crash(Exception):
    """What happens between the insert of a job and the delete of its row."""


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
async def test_a_relay_that_dies_after_the_insert_makes_no_second_job(database: Database, queue: str) -> None:
    seen: list[int] = []
    rd = consumer(queue, database.url, seen)
    await CALLERS["sqlalchemy"](database.url, Work(rd, commit=True))
    async with rd:
        relay = rd.relay()
        inbox = relay._inbox
        with pytest.raises(Crash):
            async with inbox.take(10) as batch:
                assert [await relay._take_in(row) for row in batch.rows] == [None]
                raise Crash
        assert await rd.drain() == 1
        assert await relay.move() == 0
        assert await rd.drain() == 0
        await relay.close()
    assert seen == [7]


@pytest.mark.behaviour("F-16")
async def test_asynchronous_commits_of_the_callers_database_are_found_and_told(
    postgres: Database, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = open_inbox(f"{postgres.url}{'&' if '?' in postgres.url else '?'}options=-csynchronous_commit%3Doff")
    for _ in range(2):
        await inbox.marked()
        await inbox.close()
    assert caplog.text.count("synchronous_commit is off") == 1


@pytest.mark.behaviour("F-16")
@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
async def test_one_relay_at_a_time_moves_rows(database: Database, queue: str) -> None:
    await CALLERS["sqlalchemy"](database.url, Work(Redrive(queue), commit=True))
    one, other = open_inbox(database.url), open_inbox(database.url)
    async with one.take(10) as batch:
        assert len(batch.rows) == 1
        async with other.take(10) as nothing:
            assert nothing.rows == []
    async with other.take(10) as batch:
        assert len(batch.rows) == 1
    await one.close()
    await other.close()


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
async def test_a_row_that_cannot_be_read_is_kept_marked_and_told(
    database: Database, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    rd = consumer(queue, database.url, seen := list[int]())
    await CALLERS["sqlalchemy"](database.url, Work(rd, commit=True))
    id = "0" * 32
    database.rows(f"INSERT INTO rd_inbox (id, namespace, payload) VALUES ('{id}', 'default', 'no job')")
    async with rd:
        assert await rd.drain() == 1
        assert f"row {id} of the inbox" in caplog.text
        ((payload, problem),) = database.rows("SELECT payload, problem FROM rd_inbox")
        assert payload == "no job" and "DecodeError" in problem
        caplog.clear()
        assert await rd.drain() == 0
        assert "kept and marked" not in caplog.text
    again = rd.relay()
    with caplog.at_level(logging.WARNING):
        assert await again.move() == 0
    await again.close()
    assert "1 rows of the inbox" in caplog.text
    assert seen == [7]


async def test_a_relay_moves_many_rows_and_only_those_of_its_namespace(postgres: Database, queue: str) -> None:
    producer = Redrive(queue, inbox=f"{postgres.url}?namespace=mine")
    async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
        await producer.enqueue_many("note", [{"number": n} for n in range(250)], within=connection)
        await Redrive(queue).enqueue("note", {"number": -1}, within=connection)
    async with producer:
        relay = producer.relay()
        assert await relay.move() == 250
        await relay.close()
        assert await producer.store.count(Filter()) == {(): 250}
    assert len(postgres.rows("SELECT id FROM rd_inbox")) == 1


async def test_an_inbox_that_cannot_be_reached_is_told_once_without_its_password(
    queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    rd = consumer(queue, f"postgresql://u:{PASSWORD}@127.0.0.1:1/app?connect_timeout=1", [])
    async with rd:
        for _ in range(2):
            assert await rd.drain() == 0
        with pytest.raises(StoreUnavailable) as caught:
            await rd.relay().move()
    assert caplog.text.count("trying again") == 1
    assert PASSWORD not in caplog.text + str(caught.value)


def test_the_url_of_an_inbox() -> None:
    assert namespace_of(None) == "default"
    assert namespace_of("postgresql+asyncpg://h/d?namespace=orders") == "orders"
    assert open_inbox("postgresql+psycopg://u:p@h/d").url == "postgresql://h/d"
    assert open_inbox("sqlite+aiosqlite:////var/app.db").url == "sqlite:////var/app.db"
    with pytest.raises(ConfigError, match="neither") as caught:
        open_inbox("mysql://u:secret@h/d")
    assert "secret" not in str(caught.value)


def test_the_command_moves_once_and_prints_the_statement(sqlite: Database, queue: str) -> None:
    asyncio.run(CALLERS["sqlalchemy"](sqlite.url, Work(Redrive(queue), commit=True)))
    command = [sys.executable, "-m", "redrive", "relay", "--url", queue]

    def run(*words: str) -> str:
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=PATIENCE, check=True)
        return done.stdout

    assert msgspec.json.decode(run("--from", sqlite.url, "--once", "--json")) == {"moved": 1}
    assert run("--ddl", "sqlite").startswith("CREATE TABLE IF NOT EXISTS rd_inbox")
