"""JetStreamLog on a real nats-server: what servers do to it, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.core.store import Applied, Commit, Wanted
from redrive.errors import ConfigError, StoreError, StoreFull, StoreRefused
from redrive.stores.replica import jetstream, nats_connection
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.replica.log import LogEntry, LogFull, LogSnapshot, LogUnavailable, Manifest, ManifestMoved
from redrive.stores.replica.nats_address import read_address
from redrive.stores.replica.nats_streams import check_version, judge_durability
from redrive.stores.replica.replay import ReplicaStopped
from tests.nats import Server, own_server, shared_server
from tests.stores.fleet import PATIENCE, insert_many, opened, replica, standing, total, until, until_failed
from tests.stores.jobs import T0, a_job, success
from tests.stores.outside import outsider
from tests.stores.places import JetStreamPlace


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """A server of this test alone."""
    with own_server(folder / "server") as server:
        yield server


@pytest.fixture
def url(folder: Path) -> str:
    """A namespace of the shared server."""
    return JetStreamPlace(folder).url


async def read(log: JetStreamLog, number: int, after: int = 0) -> list[LogEntry]:
    """The next messages of a feed."""
    entries: list[LogEntry] = []
    async with asyncio.timeout(PATIENCE):
        async with contextlib.aclosing(log.feed(after)) as feed:
            async for some in feed:
                entries += some
                if len(entries) >= number:
                    return entries
    raise AssertionError


async def consumers(url: str, *, some: bool = False) -> list[str]:
    """The names of the consumers, as soon as there are `some`."""
    names: list[str] = []
    async with opened(url) as log, asyncio.timeout(PATIENCE):
        for pause in itertools.chain([0.0], itertools.repeat(0.01)):
            await asyncio.sleep(pause)
            answer = await log._connection.ask(f"$JS.API.CONSUMER.NAMES.RD_{log.address.namespace}", b"")
            names = json.loads(answer)["consumers"] or []
            if names or not some:
                break
    return names


async def append(log: JetStreamLog, id: str) -> None:
    """Append as soon as the server answers."""
    async with asyncio.timeout(PATIENCE):
        for _ in itertools.count():
            try:
                await log.append(id, b"x")
                return
            except LogUnavailable:
                await asyncio.sleep(0.05)


class TestAddress:
    def test_all_of_it(self, tmp_path: Path) -> None:
        creds = tmp_path / "a.creds"
        creds.touch()
        address = read_address(
            f"tls://ann:p%40ss@one:4333,two,[::1]:5/shop?replicas=3&creds={creds}&max_bytes=4GB&synced=true"
        )
        assert address.hosts == ("one:4333", "two:4222", "[::1]:5")
        assert (address.namespace, address.tls, address.replicas) == ("shop", True, 3)
        assert (address.user, address.password, address.max_bytes) == ("ann", "p@ss", 4 << 30)
        assert (address.creds, address.synced, address.replica) == (str(creds), True, False)

    def test_little_of_it(self) -> None:
        address = read_address("nats://localhost")
        assert (address.public, address.replicas) == ("nats://localhost:4222/redrive", None)

    def test_credentials_are_not_printed(self) -> None:
        address = read_address("nats://ann:hunter2@one,two/shop?replicas=3")
        assert address.public == "nats://one:4222,two:4222/shop"
        assert "hunter2" not in f"{address} {address!r} {JetStreamLog(address).url}"
        assert "ann" not in repr(address)

    @pytest.mark.parametrize(
        ("url", "word"),
        [
            ("nats://ann:hunter2@one/a.b", "namespace"),
            ("nats://ann:hunter2@one/a b", "namespace"),
            ("nats://ann:hunter2@one/shop_SNAP", "namespace"),
            ("nats://ann:hunter2@one/shop_TASKS", "namespace"),
            ("nats://ann:hunter2@one/shop_DLQ_ann", "namespace"),
            ("nats://ann:hunter2@one/>", "namespace"),
            ("nats://ann:hunter2@one/shop?replicas=2", "replicas"),
            ("nats://ann:hunter2@one/shop?max_bytes=many", "max_bytes"),
            ("nats://ann:hunter2@one/shop?creds=/no/such", "creds"),
            ("nats://ann:hunter2@one/shop?synced=maybe", "synced"),
            ("nats://ann:hunter2@one/shop?durable=x", "durable"),
            ("nats://ann:hunter2@one:port/shop", "host"),
            ("nats://ann:hunter2@/shop", "names its servers"),
            ("http://ann:hunter2@one/shop", "nats://"),
        ],
    )
    def test_what_cannot_be_used_is_named(self, url: str, word: str) -> None:
        with pytest.raises(ConfigError, match=word) as caught:
            read_address(url)
        assert "hunter2" not in str(caught.value)


class TestVersions:
    @pytest.mark.parametrize("version", ["2.10.26", "2.12.2", "2.14.0", "2.14.5"])
    def test_what_loses_messages_is_refused(self, version: str) -> None:
        with pytest.raises(StoreRefused, match=version):
            check_version(version, "nats://one")

    @pytest.mark.parametrize("version", ["2.12.12", "2.14.6", "2.15.0", "2.15.1", "3.0.0"])
    def test_what_is_sound_is_taken(self, version: str, caplog: pytest.LogCaptureFixture) -> None:
        check_version(version, "nats://one")
        assert not caplog.records

    def test_an_old_one_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        check_version("2.12.8", "nats://one")
        assert "2.12.8" in caplog.text

    def test_durability_is_told(self) -> None:
        plain, word = read_address("nats://one"), read_address("nats://one?synced=true")
        assert judge_durability(plain, "2.15.1", 3) == ("replicated", "")
        assert judge_durability(word, "2.15.1", 1) == ("synced", "")
        assert judge_durability(word, "2.14.6", 3)[0] == "replicated"
        level, advice = judge_durability(word, "2.14.6", 1)
        assert level == "unsynced" and "2.15" in advice
        level, advice = judge_durability(plain, "2.15.1", 1)
        assert level == "unsynced" and "replicas=3" in advice and "synced=true" in advice


class TestOpening:
    async def test_it_tells_what_it_is(self, url: str) -> None:
        log = JetStreamLog(url)
        info = await log.open()
        await log.close()
        assert (info.first, info.last, info.durability, info.url) == (1, 0, "unsynced", log.url)
        assert info.generation and 1_000_000 < info.max_message < 1 << 20
        async with opened(url) as again:
            assert again._generation == info.generation

    async def test_two_that_make_it_at_once_agree(self, url: str) -> None:
        logs = [JetStreamLog(url) for _ in range(5)]
        infos = await asyncio.gather(*(log.open() for log in logs))
        assert len({info.generation for info in infos}) == 1
        await asyncio.gather(*(log.close() for log in logs))

    async def test_no_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jetstream, "OPEN_SECONDS", 0.3)
        log = JetStreamLog("nats://ann:hunter2@127.0.0.1:1/shop")
        with pytest.raises(LogUnavailable, match="check that it runs") as caught:
            await log.open()
        assert "hunter2" not in str(caught.value)
        await log.close()

    async def test_one_seed_of_two_is_enough(self, url: str) -> None:
        place = url.removeprefix("nats://")
        async with opened(f"nats://127.0.0.1:1,{place}") as log:
            assert await log.end() == 0

    async def test_jetstream_is_off(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jetstream, "OPEN_SECONDS", 0.5)
        with own_server(folder / "server", lines=["# no jetstream"]) as server:
            log = JetStreamLog(server.url)
            with pytest.raises(LogUnavailable, match="-js"):
                await log.open()
            await log.close()

    async def test_more_replicas_than_servers(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jetstream, "OPEN_SECONDS", 0.5)
        log = JetStreamLog(f"{url}&replicas=3")
        with pytest.raises(LogUnavailable, match="replicas=3 needs as many servers"):
            await log.open()
        await log.close()

    async def test_too_little_room(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jetstream, "OPEN_SECONDS", 0.5)
        log = JetStreamLog(f"{url.partition('?')[0]}?max_bytes=5TB")
        with pytest.raises(LogUnavailable, match="max_file_store"):
            await log.open()
        await log.close()

    async def test_a_larger_limit_is_given(self, url: str) -> None:
        url = url.partition("?")[0]
        async with opened(f"{url}?max_bytes=10MB") as log:
            assert (await log.fill()).limit == 10 << 20
        async with opened(f"{url}?max_bytes=20MB") as log:
            assert (await log.fill()).limit == 20 << 20
        async with opened(f"{url}?max_bytes=10MB") as log:
            assert (await log.fill()).limit == 20 << 20

    @pytest.mark.parametrize(
        ("config", "word"),
        [
            ({"subjects": ["rd.NS.log"]}, "has not made it"),
            ({"subjects": ["rd.NS.log"], "retention": "workqueue", "metadata": {"redrive-generation": "x"}}, "reten"),
            ({"subjects": ["rd.NS.log"], "storage": "memory", "metadata": {"redrive-generation": "x"}}, "memory"),
            ({"subjects": ["rd.NS.>"], "metadata": {"redrive-generation": "x"}}, "subjects"),
            ({"sources": [{"name": "OTHER"}], "metadata": {"redrive-generation": "x"}}, "sources"),
            ({"mirror": {"name": "OTHER"}, "metadata": {"redrive-generation": "x"}}, "mirrors"),
        ],
    )
    async def test_a_foreign_stream_is_refused(self, url: str, config: dict[str, Any], word: str) -> None:
        import nats

        namespace = read_address(url).namespace
        client = await nats.connect(shared_server().url)
        config = {"name": f"RD_{namespace}", **config}
        if "subjects" in config:
            config["subjects"] = [subject.replace("NS", namespace) for subject in config["subjects"]]
        answer = await client.request(f"$JS.API.STREAM.CREATE.RD_{namespace}", json.dumps(config).encode(), timeout=5)
        assert b'"error"' not in answer.data, answer.data
        await client.close()
        log = JetStreamLog(url)
        with pytest.raises(StoreRefused, match=word):
            await log.open()
        await log.close()


class TestSecrets:
    async def test_user_and_password(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        lines = ["authorization { user: ann, password: hunter2 }"]
        with own_server(folder / "server", lines=lines) as server:
            place = server.url.removeprefix("nats://")
            async with opened(f"nats://ann:hunter2@{place}") as log:
                assert await log.append("a", b"x") == 1
            wrong = JetStreamLog(f"nats://ann:hunter3@{place}")
            with pytest.raises(StoreRefused, match="credentials") as caught:
                await wrong.open()
            await wrong.close()
        assert "hunter" not in caplog.text + str(caught.value)

    async def test_tls(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cert, key = certificate(folder)
        lines = [f'tls {{ cert_file: "{cert}", key_file: "{key}" }}']
        with own_server(folder / "server", lines=lines) as server:
            place = server.url.removeprefix("nats://")
            async with opened(f"tls://{place}?tls_ca={cert}") as log:
                assert await log.append("a", b"x") == 1
            monkeypatch.setattr(jetstream, "OPEN_SECONDS", 0.5)
            log = JetStreamLog(f"tls://{place}")
            with pytest.raises(LogUnavailable, match=r"(?i)certificate"):
                await log.open()
            await log.close()

    async def test_tls_means_tls(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """No credentials go to a server that does not encrypt."""
        monkeypatch.setattr(jetstream, "OPEN_SECONDS", 0.5)
        log = JetStreamLog(url.replace("nats://", "tls://ann:hunter2@"))
        with pytest.raises(LogUnavailable, match="secure connection"):
            await log.open()
        await log.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


class TestMessages:
    async def test_the_same_id_is_once(self, url: str) -> None:
        async with opened(url) as log:
            assert [await log.append(id, b"x") for id in ("a", "b", "a", "b", "c")] == [1, 2, 1, 2, 3]
            assert await log.end() == 3

    async def test_they_are_fed_in_order_with_their_time(self, url: str) -> None:
        async with opened(url) as log:
            await asyncio.gather(*(log.append(f"m{number}", b"%d" % number) for number in range(700)))
            entries = await read(log, 650, after=50)
        assert [entry.position for entry in entries] == list(range(51, 701))
        assert all(entry.at is not None and abs(entry.at - time.time()) < 60 for entry in entries)

    async def test_large_ones(self, url: str) -> None:
        """More than one request asks for."""
        async with opened(url) as log:
            for number in range(30):
                await log.append(f"m{number}", bytes([number]) * 900_000)
            entries = await read(log, 30)
            assert [entry.data[0] for entry in entries] == list(range(30))
            with pytest.raises(ValueError, match="larger"):
                await log.append("x", bytes(1 << 21))

    async def test_one_is_read_as_it_was_fed(self, url: str) -> None:
        async with opened(url) as log:
            await log.append("a", b"\x00\xff")
            [fed] = await read(log, 1)
            one = await log.entry(1)
            assert one is not None and (one.position, one.id, one.data) == (1, "a", b"\x00\xff")
            assert one.at == pytest.approx(fed.at, abs=1e-5)
            assert await log.entry(2) is None and await log.entry(0) is None

    async def test_no_consumer_is_left(self, url: str) -> None:
        async with opened(url) as log:
            await log.append("a", b"x")
            await read(log, 1)
            feeding = asyncio.ensure_future(read(log, 5))
            await consumers(url, some=True)
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        assert await consumers(url) == []

    async def test_a_removed_consumer_is_made_anew(self, url: str) -> None:
        async with opened(url) as log, opened(url) as other:
            await log.append("a", b"x")
            feeding = asyncio.ensure_future(read(log, 2))
            names = await consumers(url, some=True)
            stream = f"RD_{log.address.namespace}"
            await other._connection.ask(f"$JS.API.CONSUMER.DELETE.{stream}.{names[0]}", b"")
            await log.append("b", b"y")
            assert [entry.id for entry in await feeding] == ["a", "b"]

    async def test_full(self, url: str) -> None:
        async with opened(f"{url.partition('?')[0]}?max_bytes=1MB&snapshot_bytes=1MB") as log:
            with pytest.raises(LogFull, match="10077"):
                for number in range(20):
                    await log.append(f"m{number}", bytes(100_000))
            fill = await log.fill()
            assert 0.8 < fill.share <= 1.0
            await log.trim(await log.end())
            assert await log.append("again", bytes(100_000)) == await log.end()

    async def test_the_newest_is_never_trimmed(self, url: str) -> None:
        async with opened(url) as log:
            assert await log.first() == 1
            for number in range(5):
                await log.append(f"m{number}", b"x")
            await log.trim(4)
            assert (await log.first(), await log.end()) == (4, 5)
            await log.trim(100)
            assert (await log.first(), await log.end()) == (5, 5)


def a_snapshot(name: str, position: int, pieces: int = 1) -> LogSnapshot:
    return LogSnapshot(name, position, b"chain", "generation", 1, "sha", 10, pieces, T0)


async def some(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class TestSnapshots:
    async def test_pieces_come_back(self, url: str) -> None:
        async with opened(url) as log:
            number = await log.put_pieces("one", some(b"a" * 1_300_000, b"b", b"c" * 10))
            assert number == 5
            pieces = [piece async for piece in log.pieces(a_snapshot("one", 1, number))]
            assert b"".join(pieces) == b"a" * 1_300_000 + b"b" + b"c" * 10

    async def test_a_missing_piece(self, url: str) -> None:
        async with opened(url) as log:
            await log.put_pieces("one", some(b"a"))
            with pytest.raises(LookupError, match="piece 1"):
                [piece async for piece in log.pieces(a_snapshot("one", 1, 2))]

    async def test_the_manifest_moves_by_compare_and_set(self, url: str) -> None:
        async with opened(url) as log, opened(url) as other:
            assert await log.manifest() is None
            await log.put_manifest(Manifest(a_snapshot("one", 1)))
            with pytest.raises(ManifestMoved):
                await other.put_manifest(Manifest(a_snapshot("late", 1)))
            known = await other.manifest()
            assert known is not None and known.newest.name == "one"
            await other.put_manifest(Manifest(a_snapshot("two", 2), known.newest, known.version))
            with pytest.raises(ManifestMoved):
                await log.put_manifest(Manifest(a_snapshot("late", 3), known.newest, known.version))
            now = await log.manifest()
            assert now is not None and (now.newest.name, now.before) == ("two", known.newest)

    async def test_pieces_in_the_making_are_not_dropped(self, url: str) -> None:
        """Another snapshotter that read the manifest may be about to name them."""
        async with opened(url) as log, opened(url) as other:
            await log.put_pieces("old", some(b"a"))
            await log.put_pieces("one", some(b"a"))
            await log.put_manifest(Manifest(a_snapshot("one", 1)))
            await other.put_pieces("two", some(b"b"))
            await log.drop_pieces(["one"])
            assert [piece async for piece in log.pieces(a_snapshot("two", 2))] == [b"b"]
            assert await log._snapshot_names() == {"one", "two"}

    async def test_abandoned_pieces_do_not_fill_the_stream(self, url: str) -> None:
        async with opened(f"{url.partition('?')[0]}?max_bytes=1MB&snapshot_bytes=1MB") as log:
            for number in range(10):
                await log.put_pieces(f"left{number}", some(bytes(400_000)))
                current = await log.manifest()
                version = current.version if current is not None else 0
                await log.put_manifest(Manifest(a_snapshot(f"named{number}", number), None, version))

    async def test_a_full_stream_is_told(self, url: str) -> None:
        async with opened(f"{url.partition('?')[0]}?max_bytes=1MB&snapshot_bytes=1MB") as log:
            with pytest.raises(LogUnavailable, match="snapshot_bytes"):
                await log.put_pieces("large", some(bytes(3_000_000)))
            assert await log._snapshot_names() == set()


class TestServersThatDie:
    @pytest.mark.parametrize("seconds", [4.0, 9.0], ids=["longer_than_an_ack", "until_it_is_left"])
    async def test_frozen(self, folder: Path, server: Server, seconds: float) -> None:
        """A frozen server takes bytes and answers nothing; after some seconds its connection is given up."""
        async with replica(folder, server.url) as store:
            accepted: list[str] = []
            unknown: list[str] = []
            await insert_many(store, 3, accepted, unknown)
            server.freeze()
            callers = [asyncio.ensure_future(insert_many(store, 5, accepted, unknown)) for _ in range(10)]
            await asyncio.wait(callers, timeout=seconds)
            assert len(accepted) == 3
            server.thaw()
            await asyncio.gather(*callers)
            assert unknown == [] and len(accepted) == 53
            assert await total(store) == 53

    async def test_trouble_is_told_once(self, folder: Path, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        async with opened(server.url) as log:
            server.kill()
            await until(lambda: log._connection._repeated >= 5)
            await asyncio.to_thread(server.start)
            await until(lambda: log._connection.is_connected)
        told = [record for record in caplog.records if record.name == "redrive.store"]
        assert [record.levelname for record in told] == ["WARNING", "WARNING"]
        assert "answers again" in told[1].getMessage()

    async def test_a_client_that_gave_up_is_replaced(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        """nats-py closes for ever where a server ends the connection with an error."""
        async with opened(server.url) as log:
            first = log._connection.client
            await first._process_err("'maximum connections exceeded'")
            await until(lambda: log._connection._client is not first and log._connection.is_connected)
            assert await log.append("a", b"x") == 1

    def test_a_server_that_is_left_is_tried_last(self) -> None:
        seeds = ["nats://a", "nats://b:4222", "nats://c:5222"]
        for left, last in (("a:4222", 0), ("b:4222", 1), ("c:5222", 2)):
            assert {nats_connection._in_any_order(seeds, left)[-1] for _ in range(20)} == {seeds[last]}
        assert len({tuple(nats_connection._in_any_order(seeds, "")) for _ in range(200)}) == 6

    async def test_a_feed_lives_through_a_restart(self, server: Server) -> None:
        async with opened(server.url) as log:
            await log.append("a", b"x")
            feeding = asyncio.ensure_future(read(log, 2))
            await until(lambda: bool(log._consumers))
            server.kill()
            await asyncio.to_thread(server.start)
            await append(log, "b")
            assert [entry.id for entry in await feeding] == ["a", "b"]


class TestFull:
    async def test_jobs_are_refused_and_settled_on(self, folder: Path, url: str) -> None:
        url = f"{url.partition('?')[0]}?max_bytes=2MB&snapshot_bytes=64MB"
        async with replica(folder, url) as store:
            accepted = 0
            with pytest.raises(StoreFull, match="full"):
                for _ in range(300):
                    await store.insert([a_job(payload='{"a":"' + "x" * 20_000 + '"}')])
                    accepted += 1
                    store._filled = (-100.0, 0.0)  # look at each insert
            assert 60 < accepted < 100
            claim = await store.claim(Wanted(10), "w", T0 + 1)
            assert len(claim.jobs) == 10
            outcomes = await store.apply([Commit((success(job),)) for job in claim.jobs])
            assert all(isinstance(outcome, Applied) for outcome in outcomes)


class TestLogsThatChanged:
    async def test_made_anew_while_in_use(self, folder: Path, url: str) -> None:
        async with replica(folder, url) as store:
            await store.insert([a_job()])
            await self.delete(url)
            async with opened(url):
                said = await until_failed(store)
            assert "made anew" in said and "move this replica's file away" in said
            with pytest.raises(ReplicaStopped):
                await store.insert([a_job()])

    async def delete(self, url: str) -> None:
        async with opened(url) as log:
            await log._connection.ask(f"$JS.API.STREAM.DELETE.RD_{log.address.namespace}", b"")

    async def test_made_anew_in_between(self, folder: Path, url: str) -> None:
        async with replica(folder, url) as store:
            await store.insert([a_job()])
        await self.delete(url)
        with pytest.raises(StoreError, match="made anew"):
            async with replica(folder, url):
                pass

    async def test_went_back_while_in_use(self, folder: Path, server: Server) -> None:
        async with replica(folder, server.url) as store:
            await store.insert([a_job()])
            server.kill()
            shutil.copytree(server.folder / "store", folder / "older")
            await asyncio.to_thread(server.start)
            for _ in range(5):
                await store.insert([a_job()])
            server.kill()
            shutil.rmtree(server.folder / "store")
            shutil.copytree(folder / "older", server.folder / "store")
            await asyncio.to_thread(server.start)
            assert "went back" in await until_failed(store)

    async def test_went_back_and_on(self, folder: Path, server: Server) -> None:
        """Another replica has written other messages at the same positions."""
        async with replica(folder, server.url) as store:
            await store.insert([a_job()])
            server.kill()
            shutil.copytree(server.folder / "store", folder / "older")
            await asyncio.to_thread(server.start)
            await store.insert([a_job()])
        server.kill()
        shutil.rmtree(server.folder / "store")
        shutil.copytree(folder / "older", server.folder / "store")
        server.start()
        async with replica(folder, server.url, "other") as other:
            for _ in range(5):
                await other.insert([a_job()])
        with pytest.raises(StoreError, match="not the one that this file has executed"):
            async with replica(folder, server.url):
                pass


class TestReplicas:
    async def test_they_leave_no_consumer(self, folder: Path, url: str) -> None:
        async with replica(folder, url) as store, replica(folder, url, "other"):
            await store.insert([a_job()])
            assert len(await consumers(url, some=True)) == 2
        assert await consumers(url) == []

    async def test_a_newcomer_restores_a_snapshot(self, folder: Path, url: str) -> None:
        async with replica(folder, url) as store:
            jobs = [a_job() for _ in range(50)]
            for job in jobs:
                await store.insert([job])
                engine = store._engine
                assert engine is not None
                if job in (jobs[20], jobs[40]):
                    await engine.call(engine.snapshots.make)
            async with opened(url) as log:
                assert await log.first() > 20
            async with replica(folder, url, "newcomer") as newcomer:
                assert await total(newcomer) == 50
        assert standing(folder / "newcomer.db") == standing(folder / "replica.db")

    async def test_two_processes_agree(self, folder: Path) -> None:
        place = JetStreamPlace(folder)
        async with outsider("jetstream", folder) as other, replica(folder, place.url) as store:
            for number in range(20):
                await other.ask(f"insert job-{number}")
                await store.insert([a_job()])
                claim = await store.claim(Wanted(1), "w", T0 + 1)
                await other.ask("claim 1")
                await store.apply([Commit((success(job),)) for job in claim.jobs])
            await other.leave()
            assert await total(store) == 40
        theirs = folder / f"replica-{other.process.pid}-0.db"
        async with replica(folder, place.url, "rebuilt"):
            pass
        mine = standing(folder / "replica.db")
        assert mine == standing(folder / "rebuilt.db")
        assert standing(theirs).position <= mine.position
        assert chain_at(folder / "replica.db", standing(theirs).position) == standing(theirs).chain


def chain_at(path: Path, position: int) -> bytes:
    import apsw

    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        row = connection.execute("SELECT chain FROM replica_chain WHERE position = ?", (position,)).fetchone()
        return bytes(row[0])
    finally:
        connection.close()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "redrive.stores.replica.nats_client", None)
    with pytest.raises(ConfigError, match=r"redrive\[nats\]"):
        nats_connection.make_client(read_address("nats://one"))
