"""PostgresLog by itself, on a real server: order, repeats, restarts, snapshots, words without credentials."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from redrive.errors import ConfigError, StoreRefused, StoreUnavailable
from redrive.stores.replica import ReplicaStore
from redrive.stores.replica import postgres as module
from redrive.stores.replica.log import LogChanged, LogFull, LogSnapshot, LogUnavailable, Manifest, ManifestMoved
from redrive.stores.replica.postgres import PostgresLog, judge_durability
from redrive.stores.replica.postgres_url import read_url
from tests import postgres_server
from tests.postgres_server import PASSWORD, Server
from tests.stores.jobs import a_job

PATIENCE = 30.0


@pytest.fixture
def url(postgres_server: Server) -> str:
    return postgres_server.url(namespace=f"log-{secrets.token_hex(6)}")


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may stop."""
    if postgres_server.binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres_server.started() as server:
        yield server


@pytest.fixture
def database(postgres_server: Server) -> Iterator[str]:
    """The name of an empty database."""
    name = f"db_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield name
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresLog]:
    log = PostgresLog(url)
    try:
        await log.open()
        yield log
    finally:
        await log.close()


async def heard(log: PostgresLog, number: int, after: int = 0) -> list[tuple[int, str]]:
    """The first messages after a position."""
    found: list[tuple[int, str]] = []
    async with asyncio.timeout(PATIENCE), aclosing(log.feed(after)) as feed:
        async for entries in feed:
            found += [(entry.position, entry.id) for entry in entries]
            if len(found) >= number:
                break
    return found


def snapshot(name: str, position: int = 1, pieces: int = 2) -> LogSnapshot:
    return LogSnapshot(name, position, b"c", "g", 1, "s", 10, pieces, 0.0)


async def two_pieces() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


# ---- appending and hearing


async def test_the_same_id_is_one_message(url: str) -> None:
    async with opened(url) as log:
        first = await log.append("a", b"1")
        assert await log.append("a", b"other") == first == 1
        assert await log.append("b", b"2") == 2
        entry = await log.entry(1)
        assert entry is not None and (entry.id, entry.data) == ("a", b"1")
        assert await log.entry(3) is None


async def test_positions_have_no_gaps_and_every_feed_hears_them_in_order(url: str) -> None:
    async with opened(url) as one, opened(url) as other, opened(url) as listener:
        listening = asyncio.ensure_future(heard(listener, 400))

        async def append(log: PostgresLog, name: str) -> list[int]:
            return [await log.append(f"{name}-{number}", b"x") for number in range(50)]

        logs = [(one, f"one{n}") for n in range(4)] + [(other, f"other{n}") for n in range(4)]
        own = await asyncio.gather(*(append(log, name) for log, name in logs))
        assert sorted(position for positions in own for position in positions) == list(range(1, 401))
        assert all(positions == sorted(positions) for positions in own)
        assert [position for position, _ in await listening] == list(range(1, 401))


async def test_a_control_without_the_lock_appends_collide(postgres_server: Server, database: str) -> None:
    """What the advisory lock is for: without it two appends at once choose one position, and one of them fails."""
    url = postgres_server.url(database=database)
    async with opened(url) as one, opened(url) as other:
        with psycopg.connect(url, autocommit=True) as raw:
            ((text,),) = raw.execute(
                "SELECT pg_get_functiondef('rd_log_append_1(text, text[], bytea[])'::regprocedure)"
            ).fetchall()
            lock = "PERFORM pg_advisory_xact_lock(hashtextextended('redrive log ' || space, 0));"
            wait = "    FOR i IN 1"
            assert lock in text and wait in text
            raw.execute(text.replace(lock, "").replace(wait, f"PERFORM pg_sleep(0.2);\n{wait}").encode())
        outcomes = await asyncio.gather(one.append("a", b"1"), other.append("b", b"2"), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["UniqueViolation", "int"]


async def test_a_message_has_the_time_of_the_server(url: str, postgres_server: Server) -> None:
    async with opened(url) as log:
        await log.append("a", b"1")
        entry = await log.entry(1)
    with psycopg.connect(postgres_server.url()) as connection:
        ((now,),) = connection.execute("SELECT extract(epoch FROM now())::float8").fetchall()
    assert entry is not None and entry.at is not None
    assert now - 60 < entry.at <= now


async def test_the_feed_looks_by_itself_where_no_notification_comes(url: str, postgres_server: Server) -> None:
    async with opened(url) as log:
        listening = asyncio.ensure_future(heard(log, 1))
        await asyncio.sleep(0)
        async with await psycopg.AsyncConnection.connect(postgres_server.url(), autocommit=True) as raw:
            query = "INSERT INTO rd_log (ns, seq, id, data, at) VALUES (%s, 1, 'quiet', 'x', now())"
            await raw.execute(query, [log.namespace])
        assert await listening == [(1, "quiet")]


async def test_a_namespace_hears_its_own_messages_only(postgres_server: Server) -> None:
    urls = [postgres_server.url(namespace=f"log-{secrets.token_hex(6)}") for _ in range(2)]
    async with opened(urls[0]) as one, opened(urls[1]) as other:
        await one.append("a", b"1")
        assert await other.append("a", b"2") == 1
        assert (await other.end(), (await one.entry(1) or pytest.fail("nothing there")).data) == (1, b"1")


async def test_many_processes_make_the_tables_at_once(postgres_server: Server, database: str) -> None:
    url = postgres_server.url(database=database)
    logs = [PostgresLog(url) for _ in range(8)]
    try:
        infos = await asyncio.gather(*(log.open() for log in logs))
        assert len({info.generation for info in infos}) == 1
    finally:
        for log in logs:
            await log.close()


# ---- failing

FREEZING = """
import asyncio, sys
from redrive.stores.replica.postgres import PostgresLog

async def main(url):
    log = PostgresLog(url)
    await log.open()
    for number in range(100_000):
        await log.append(f"frozen-{number}", b"x" * 2_000_000)
        if number == 0:
            print("appends", flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_process_that_is_frozen_while_it_appends_holds_nobody_up(url: str) -> None:
    async with opened(url) as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FREEZING, url, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE * 2):
                assert child.stdout is not None
                await child.stdout.readline()
                for number in range(10):
                    os.kill(child.pid, signal.SIGSTOP)
                    await log.append(f"own-{number}", b"x")
                    await log.trim(await log.end())
                    os.kill(child.pid, signal.SIGCONT)
                    await asyncio.sleep(0.007 * number)
        finally:
            child.kill()
            await child.wait()


async def test_an_append_works_again_after_a_crash_of_the_server(own_server: Server) -> None:
    async with opened(own_server.url()) as log:
        await log.append("a", b"1")
        own_server.crash()
        with pytest.raises(LogUnavailable):
            await log.append("b", b"2")
        own_server.start()
        assert await log.append("b", b"2") == 2
        assert await log.append("a", b"1") == 1


async def test_a_store_goes_on_after_a_crash_of_the_server(own_server: Server, folder: Path) -> None:
    url = own_server.url()
    one = ReplicaStore(folder / "one.db", lambda: PostgresLog(url), live=folder / "live")
    other = ReplicaStore(folder / "other.db", lambda: PostgresLog(url), live=folder / "live")
    try:
        await other.open()
        await one.insert([before := a_job()])
        own_server.crash()
        inserting = asyncio.ensure_future(one.insert([after := a_job()]))
        await asyncio.sleep(0)
        own_server.start()
        async with asyncio.timeout(PATIENCE):
            await inserting
            while True:
                try:
                    assert len(await other.get([before.id, after.id])) == 2
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
    finally:
        await one.close()
        await other.close()


async def test_a_full_disk_is_told_as_full_and_leaves_no_gap(postgres_server: Server, database: str) -> None:
    url = postgres_server.url(database=database)
    async with opened(url) as log, await psycopg.AsyncConnection.connect(url, autocommit=True) as raw:
        await raw.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"
        )
        await raw.execute("CREATE TRIGGER full_disk BEFORE INSERT ON rd_log FOR EACH ROW EXECUTE FUNCTION full_disk()")
        with pytest.raises(LogFull, match="No space left"):
            await log.append("a", b"1")
        await raw.execute("DROP TRIGGER full_disk ON rd_log")
        assert await log.append("a", b"1") == 1


async def test_a_server_that_takes_no_writes_is_refused_in_words(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_SECONDS", 0.3)
    log = PostgresLog(f"{url}&options=-cdefault_transaction_read_only%3Don")
    with pytest.raises(LogUnavailable, match=r"cannot be opened: .*read-only"):
        await log.open()
    await log.close()


async def test_a_wrong_default_isolation_is_refused_with_the_remedy(url: str) -> None:
    log = PostgresLog(f"{url}&options=-cdefault_transaction_isolation%3Dserializable")
    with pytest.raises(StoreRefused, match="ALTER ROLE"):
        await log.open()
    await log.close()


async def test_a_role_that_may_not_make_tables_is_told_so(postgres_server: Server, database: str) -> None:
    url = postgres_server.url(database=database)
    role = f"poor_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'".encode())
        raw.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        log = PostgresLog(postgres_server.url(database=database, user=role))
        with pytest.raises(StoreRefused, match="permission denied"):
            await log.open()
        await log.close()
        raw.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DELETE FROM rd_log WHERE ns = %s AND seq > 1", "went back"),
        ("UPDATE rd_log SET id = 'other' WHERE ns = %s AND seq = 3", "the log was changed"),
    ],
)
async def test_a_log_that_was_set_back_is_noticed_by_those_who_follow_it(
    url: str, postgres_server: Server, change: str, words: str
) -> None:
    async with opened(url) as log, aclosing(log.feed(0)) as feed:
        for number in range(3):
            await log.append(str(number), b"x")
        async with asyncio.timeout(PATIENCE):
            position = 0
            while position < 3:
                position = (await anext(feed))[-1].position
            with psycopg.connect(postgres_server.url(), autocommit=True) as raw:
                raw.execute(change.encode(), [log.namespace])
            with pytest.raises(LogChanged, match=words):
                await anext(feed)


async def test_a_log_that_was_made_anew_is_noticed(url: str, postgres_server: Server) -> None:
    async with opened(url) as log:
        with psycopg.connect(postgres_server.url(), autocommit=True) as raw:
            raw.execute("UPDATE rd_log_state SET generation = 'other' WHERE ns = %s", [log.namespace])
        with pytest.raises(LogChanged, match="made anew"):
            await heard(log, 1)


async def test_a_trim_behind_a_feed_is_no_change(url: str) -> None:
    async with opened(url) as log, aclosing(log.feed(0)) as feed:
        await log.append("a", b"x")
        assert (await anext(feed))[-1].position == 1
        await log.append("b", b"x")
        await log.trim(2)
        assert (await anext(feed))[-1].position == 2


# ---- words


async def test_no_message_holds_the_password(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "OPEN_SECONDS", 0.3)
    log = PostgresLog(postgres_server.url().replace(PASSWORD, "wrong-secret") + "?namespace=x")
    with caplog.at_level(logging.DEBUG), pytest.raises(LogUnavailable) as caught:
        await log.open()
    await log.close()
    assert "secret" not in str(caught.value) + caplog.text + log.url + repr(read_url(postgres_server.url()))
    assert log.url.startswith("postgresql://127.0.0.1:") and log.url.endswith("?namespace=x")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:bad%zzsecret@h/d",
        "postgresql://u:secret@h/d?nonsense=1",
        "postgresql://u:secret@h/d?namespace=a b",
        "postgresql://u:secret@h/d?password",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PostgresLog(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("commit", "fsync", "standbys", "durability", "word"),
    [
        ("on", "on", "", "synced", ""),
        ("local", "on", "", "synced", ""),
        ("off", "on", "", "unsynced", "synchronous_commit is off"),
        ("off", "on", "a", "unsynced", "synchronous_commit is off"),
        ("on", "off", "", "unsynced", "fsync is off"),
        ("on", "on", "ANY 1 (a, b)", "replicated", ""),
        ("local", "on", "a", "synced", "synchronous_commit is local"),
        ("remote_write", "on", "a", "replicated", ""),
    ],
)
def test_the_durability_class(commit: str, fsync: str, standbys: str, durability: str, word: str) -> None:
    found, advice = judge_durability(commit, fsync, standbys)
    assert found == durability
    assert word in advice and bool(advice) == bool(word)


async def test_asynchronous_commits_are_found_and_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    log = PostgresLog(f"{url}&options=-csynchronous_commit%3Doff")
    info = await log.open()
    await log.close()
    assert info.durability == "unsynced"
    assert "synchronous_commit = on" in info.advice and info.advice in caplog.text


# ---- snapshots and trimming


async def test_a_trim_keeps_the_newest_message_and_positions_go_on(url: str) -> None:
    async with opened(url) as log:
        for number in range(5):
            await log.append(str(number), b"x")
        await log.trim(4)
        assert (await log.first(), await log.end()) == (4, 5)
        await log.trim(100)
        assert (await log.first(), await log.end()) == (5, 5)
        assert await log.append("next", b"x") == 6


async def test_the_manifest_moves_by_compare_and_set(url: str) -> None:
    async with opened(url) as log:
        assert await log.manifest() is None
        await log.put_pieces("a", two_pieces())
        await log.put_manifest(Manifest(snapshot("a")))
        found = await log.manifest()
        assert found == Manifest(snapshot("a"), version=1)
        for version in (0, 2):
            with pytest.raises(ManifestMoved):
                await log.put_manifest(Manifest(snapshot("a"), version=version))
        await log.put_manifest(Manifest(snapshot("a"), snapshot("a"), version=1))
        assert (await log.manifest() or pytest.fail("nothing there")).version == 2
        assert [piece async for piece in log.pieces(snapshot("a"))] == [b"one", b"two"]


async def test_a_snapshotter_that_was_frozen_drops_nothing_that_newer_manifests_name(url: str) -> None:
    async with opened(url) as log:
        for name in ("a", "b", "c"):
            await log.put_pieces(name, two_pieces())
        await log.put_manifest(Manifest(snapshot("a")))
        await log.put_manifest(Manifest(snapshot("b"), snapshot("a"), version=1))
        await log.put_manifest(Manifest(snapshot("c"), snapshot("b"), version=2))
        await log.drop_pieces(["a"])  # the process that wrote the first manifest wakes up
        for name in ("a", "b", "c"):
            assert len([piece async for piece in log.pieces(snapshot(name))]) == 2
        await log.drop_pieces(["c", "b"])
        with pytest.raises(LookupError):
            assert [piece async for piece in log.pieces(snapshot("a"))]


async def test_a_manifest_cannot_name_pieces_that_were_dropped(url: str) -> None:
    async with opened(url) as log:
        await log.put_pieces("a", two_pieces())
        await log.put_manifest(Manifest(snapshot("a")))
        await log.put_pieces("b", two_pieces())
        await log.drop_pieces(["a"])
        with pytest.raises(ManifestMoved):
            await log.put_manifest(Manifest(snapshot("b"), snapshot("a"), version=1))
        assert (await log.manifest() or pytest.fail("nothing there")).version == 1
