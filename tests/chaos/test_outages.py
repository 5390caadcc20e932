"""What a fleet lives through: hubs that die before they answer, servers that die together, freeze or are full."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from redrive.core.job import State
from redrive.core.store import Applied, Commit, Lease, Put, Wanted
from redrive.errors import StoreError, StoreFull
from redrive.stores.replica import ReplicaStore, replay
from redrive.stores.replica.file import ReplicaFile
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.replica.sender import Sender
from tests.chaos.history import assert_history
from tests.chaos.ledger import audit
from tests.chaos.processes import Zygote, until
from tests.chaos.proxy import Proxy
from tests.chaos.test_fleet import CONCURRENCY, HASTE, Fleet, address, assert_all_replicas_alike, synced_server
from tests.nats import Server, cluster, need_server, own_server
from tests.stores.fleet import opened, replica, total
from tests.stores.jobs import T0, a_job, success

pytestmark = pytest.mark.chaos

PATIENCE = 90.0


# ---- a hub that is killed after it has written, before it says so


@pytest.mark.behaviour("F-20c")
@pytest.mark.parametrize("what", ["insert", "claim", "settle", "settle without sessions"])
async def test_a_hub_is_killed_in_the_middle_of_its_answer(
    zygote: Zygote, folder: Path, seed: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client goes to another hub, and what was asked has happened once.

    The control: without sessions the worker is told that a completion does not count which did.
    """
    monkeypatch.setattr("redrive.stores.remote.nats.SILENT_SECONDS", HASTE)
    kind, forgetful = what.split()[0], "without" in what
    with synced_server(folder / "nats") as server:
        fleet = Fleet(zygote, folder, address(server), seed)
        await fleet.start_hub("hub-a", silent=kind, forgetful=forgetful)
        async with fleet.rd:
            fleet.workers = [fleet.start("worker", hasty=True)]
            handing_in = asyncio.ensure_future(fleet.rd.enqueue("work", {"n": 1}))
            await until("the hub has written it", (folder / "silent").exists)
            fleet.hubs["hub-a"].send(signal.SIGKILL)
            await fleet.hubs.pop("hub-a").exited()
            fleet.strikes += 1
            await fleet.start_hub("hub-b", forgetful=forgetful)
            async with asyncio.timeout(PATIENCE):
                handle = await handing_in
            fleet.ledger.accepted([handle.id])
            await until("the job ends", fleet._ended)
            await until("the worker was told", lambda: forgetful or fleet.ledger.read().completed[handle.id])
            (job,) = [job async for job in fleet.rd.store.scan()]
            await fleet.leave()
            if not forgetful:
                known = [folder / name / "replica-0.db" for name in ("hub-a", "hub-b")]
                await assert_all_replicas_alike(folder, fleet.url, known)
            assert job.id == handle.id
            assert (job.state, job.run, [attempt.outcome for attempt in job.history]) == ("done", 1, ["done"])
            assert len(fleet.ledger.read().starts) == 1
            assert fleet.ledger.read().completed[handle.id] == (0 if forgetful else 1)


# ---- publisher and server stand still past the window for duplicates


@pytest.mark.behaviour("F-4")
@pytest.mark.parametrize("control", [False, True])
async def test_a_claim_is_sent_again_after_the_window_for_duplicates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """The server keeps the message twice, and the replay executes it once. The control claims jobs for nobody, and
    gives them back together with the one that somebody has."""
    monkeypatch.setattr("redrive.stores.replica.nats_streams.DUPLICATES_SECONDS", 1)
    if control:
        monkeypatch.setattr("redrive.stores.sqlite.sessions.find_outcome", lambda connection, ticket: None)
        monkeypatch.setattr("redrive.stores.sqlite.sessions.remember", lambda *_: None)
    with own_server(folder / "nats") as server, Proxy(server.port) as proxy:
        direct = f"{server.url}/shop"
        async with replica(folder, direct.replace(f":{server.port}", f":{proxy.port}")) as store, opened(direct) as log:
            await store.insert([a_job() for _ in range(5)])
            end = await log.end()
            proxy.cut(up=False)  # the publisher hears no acknowledgement, and sends it again
            claiming = asyncio.ensure_future(store.claim(Wanted(1), "w", T0 + 1))
            await until("the server has it", lambda: _ends_after(log, end))
            server.freeze()
            frozen = time.monotonic()
            await until("the window is over", lambda: time.monotonic() > frozen + 1.5)
            server.thaw()
            await until("the server has it twice", lambda: _ends_after(log, end + 1))
            proxy.heal()
            async with asyncio.timeout(PATIENCE):
                claim = await claiming
            await store.get(["all that the log has"])
            running = await total(store, State.running)
        assert len(claim.jobs) == 1
        assert (running != 1) == control, f"{running} jobs run"
        if not control:
            await assert_all_replicas_alike(folder, direct, [folder / "replica.db"])


async def _ends_after(log: JetStreamLog, position: int) -> bool:
    return await log.end() > position


# ---- quorum lost for longer than a lease


@pytest.mark.behaviour("F-7")
@pytest.mark.parametrize("control", [False, True])
async def test_quorum_is_lost_for_longer_than_a_lease(
    folder: Path, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """Nobody can renew anything meanwhile, so nobody is judged by that time. The control counts silent time."""
    if control:
        monkeypatch.setattr(Sender, "lose_touch", lambda self: None)
        monkeypatch.setattr(Sender, "_touch", _count_silence)
    need_server()
    lease = 5.0
    with cluster(folder) as servers:
        url = url_of(servers)
        async with (
            _on_its_own_host(folder, url, "holder") as holder,
            _on_its_own_host(folder, url, "observer") as observer,
        ):
            await holder.insert([a_job(), a_job()])
            (job,) = (await holder.claim(Wanted(1, lease=lease), "holder", T0 + 1)).jobs
            assert await holder.heartbeat([Lease(job.id, job.token or "")]) == []
            assert await _looks(observer, seconds=0.5) == []
            for server in servers[1:]:
                server.kill()
            lost = time.monotonic()
            await until("longer than the lease", lambda: time.monotonic() > lost + lease + 1.0)
            for server in servers[1:]:
                await asyncio.to_thread(server.start)
            found = await _looks(observer, seconds=0.0)
            assert found == ([job.id] if control else []), "a lease was judged by silent time"
            if control:
                return
            assert await holder.heartbeat([Lease(job.id, job.token or "")]) == []
            assert isinstance((await holder.apply([Commit((success(job),))]))[0], Applied)
            (other,) = (await observer.claim(Wanted(5), "other", T0 + 1)).jobs
            assert other.id != job.id
        await assert_all_replicas_alike(folder, url, [folder / "holder.db", folder / "observer.db"])


def _count_silence(sender: Sender, sent_at: float) -> None:
    sender.counted = time.monotonic()


@contextlib.asynccontextmanager
async def _on_its_own_host(folder: Path, url: str, name: str) -> AsyncIterator[ReplicaStore]:
    """A replica that sees no other process but by the log."""
    store = ReplicaStore(folder / f"{name}.db", lambda: JetStreamLog(url), live=folder / f"live-{name}")
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def _looks(store: ReplicaStore, seconds: float) -> list[str]:
    """The jobs that this replica finds lost: it looks once it can, and then for so long."""
    found: list[str] = []
    looked, until_then = False, time.monotonic() + PATIENCE
    while not looked or time.monotonic() < until_then:
        store._observed = -100.0  # look at each claim
        try:
            claim = await store.claim(Wanted(1, queues=frozenset({"none"})), "observer", T0 + 1)
            found += [job.id for job in claim.lapsed]
            if not looked:
                looked, until_then = True, time.monotonic() + seconds
        except StoreError:
            assert time.monotonic() < until_then, "the log does not come back"
        await asyncio.sleep(0.05)
    return found


def url_of(servers: list[Server], **settings: str) -> str:
    places = ",".join(server.url.removeprefix("nats://") for server in servers)
    said = "&".join(f"{key}={value}" for key, value in {"replicas": "3", "max_bytes": "64MB", **settings}.items())
    return f"nats://{places}/chaos?{said}"


# ---- all servers at once


@contextmanager
def servers_of(folder: Path, number: int) -> Iterator[tuple[list[Server], str]]:
    """One server or a cluster, synced always, and the fleet's URL."""
    need_server()
    if number == 1:
        with synced_server(folder) as server:
            yield [server], address(server)
    else:
        with cluster(folder, number, sync="always") as servers:
            yield servers, url_of(servers, snapshot_bytes="128MB")


@pytest.mark.behaviour("F-1")
@pytest.mark.parametrize("nodes", [1, 3])
async def test_every_server_is_killed_at_once(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int], nodes: int
) -> None:
    """Synced always: what was acknowledged is there when they come back. 200 kills in the long run."""
    kills = size(2 if nodes == 1 else 1, 200 // nodes)
    with servers_of(folder / "nats", nodes) as (servers, url):
        fleet = Fleet(zygote, folder, url, seed)
        for name in ("hub-a", "hub-b"):
            await fleet.start_hub(name)
        async with fleet.rd:
            fleet.hire()
            handed_in = 0
            for kill in range(kills):
                done, number = _completed(fleet), 30
                producer = fleet.start("producer", name=f"p{kill}", number=number)
                handed_in += number
                await until("work goes on", lambda done=done: _completed(fleet) > done + 5, PATIENCE)  # type: ignore[misc]
                for server in servers:
                    server.kill()
                fleet.strikes += 1
                for server in servers:
                    await asyncio.to_thread(server.start)
                assert await producer.exited(PATIENCE) == 0, producer.log()
            await until("every job ends", fleet._ended, PATIENCE)
            await fleet.books(handed_in)
            await fleet.leave()
        known = [folder / name / "replica-0.db" for name in fleet.hubs]
        await assert_all_replicas_alike(folder, fleet.url, known)


def _completed(fleet: Fleet) -> int:
    return sum(fleet.ledger.read().completed.values())


# ---- full


@pytest.mark.behaviour("F-12")
async def test_a_full_log_says_so_and_goes_on_once_it_has_room(folder: Path) -> None:
    """New jobs are refused at four fifths, settling goes on until the last byte, and nothing is lost at it."""
    with own_server(folder / "nats") as server:
        url = f"{server.url}/shop?max_bytes=1MB&snapshot_bytes=64MB"
        async with replica(folder, url) as store:
            accepted = await _fill(store)
            claim = await store.claim(Wanted(5), "w", T0 + 1)
            assert len(claim.jobs) == 5
            written = 0
            for length in (10_000, 1_000, 10):
                with pytest.raises(StoreFull, match="full"):
                    for _ in range(200):
                        put = Put("note", str(written), b"x" * length)
                        assert isinstance((await store.apply([Commit(puts=(put,))]))[0], Applied)
                        written += 1
            assert written >= 5, "nothing was written after new jobs were refused"
            with pytest.raises(StoreFull):
                await store.apply([Commit((success(claim.jobs[0]),))])
        async with replica(folder, url.replace("max_bytes=1MB", "max_bytes=2MB")) as store:
            outcomes = await store.apply([Commit((success(job),)) for job in claim.jobs])
            assert all(isinstance(outcome, Applied) for outcome in outcomes)
            assert await total(store) == accepted and len(await store.docs("note")) == written
            await store.insert([a_job()])
        await assert_all_replicas_alike(folder, url, [folder / "replica.db"])


async def _fill(store: ReplicaStore) -> int:
    """Hand in jobs until no more are taken; how many were."""
    accepted = 0
    with pytest.raises(StoreFull, match="takes no new jobs"):
        for _ in range(200):
            store._filled = (-100.0, 0.0)  # look at each insert
            await store.insert([a_job(payload='{"a":"' + "x" * 20_000 + '"}')])
            accepted += 1
    return accepted


@pytest.mark.behaviour("F-2")
@pytest.mark.parametrize("control", [False, True])
async def test_the_disk_of_one_replica_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch, control: bool) -> None:
    """It says why it does not follow, tries again, and ends equal to the others.

    The control passes over what it cannot write, as a consumer that acknowledges would: it is a job short for ever.
    """
    if control:
        monkeypatch.setattr(ReplicaFile, "execute", _or_pass_over(ReplicaFile.execute))
    with own_server(folder / "nats") as server:
        url = f"{server.url}/shop"
        async with replica(folder, url, "full") as full, replica(folder, url, "sound") as sound:
            await sound.insert([a_job()])
            await full.get(["x"])
            await _limit(full, 2)
            for _ in range(5):
                await sound.insert([a_job(payload='{"a":"' + "x" * 50_000 + '"}')])
            assert await total(sound) == 6, "the others wait for it"
            if not control:
                await until("it says so", lambda: "cannot be written" in _trouble(full))
            await _limit(full, 1_000_000)
            await sound.insert([a_job()])
            async with asyncio.timeout(PATIENCE):
                await full.get(["x"])
            assert await total(full) == (7 if not control else 2)
            assert control or _trouble(full) == ""
        if not control:
            await assert_all_replicas_alike(folder, url, [folder / "full.db", folder / "sound.db"])


def _or_pass_over(transaction: Callable[..., object]) -> Callable[..., object]:
    """Move on over a message whose execution failed."""

    def passing(self: ReplicaFile, entries: object) -> object:
        try:
            return transaction(self, entries)
        except apsw.FullError:
            standing = self.replay.here
            last = list(entries)[-1]  # type: ignore[call-overload]
            self.connection.execute("UPDATE replica SET position = ?, message = ?", (last.position, last.id))
            self.replay.standing = standing._replace(position=last.position, message=last.id)
            return []

    return passing


async def _limit(store: ReplicaStore, more: int) -> None:
    """Leave room for so many pages in its file."""
    engine = store._engine
    assert engine is not None

    async def limit() -> None:
        pages = engine.connection.pragma("page_count")
        engine.connection.pragma("max_page_count", pages + more)

    await engine.call(limit)


def _trouble(store: ReplicaStore) -> str:
    engine = store._engine
    assert engine is not None
    return engine.trouble or ""


# ---- two levels of the Machine


@pytest.mark.behaviour("F-6")
async def test_hubs_of_two_levels_work_together_until_the_older_one_has_left(
    zygote: Zygote, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "LIVE_SECONDS", 3.0)  # as in the hubs: it is a part of the replay
    with synced_server(folder / "nats") as server:
        fleet = Fleet(zygote, folder, address(server), seed)
        await fleet.start_hub("hub-a", level=1)
        await fleet.start_hub("hub-b", level=2)
        async with fleet.rd:
            fleet.hire()
            producer = fleet.start("producer", name="p", number=30)
            assert await producer.exited(PATIENCE) == 0, producer.log()
            assert fleet.hubs["hub-a"].running(), fleet.hubs["hub-a"].log()
            assert await _level(folder, fleet.url) == 1
            old = fleet.hubs.pop("hub-a")
            old.send(signal.SIGTERM)
            await old.exited()
            await until("the newer level is active", lambda: _is_active(folder, fleet.url, 2))
            late = fleet.start("hub", name="hub-a", level=1)
            assert await late.exited(PATIENCE) != 0
            assert "has moved to level 2" in late.log() and "upgrade redrive here" in late.log()
            await until("every job ends", fleet._ended)
            (await audit(fleet.rd, fleet.ledger, concurrency=CONCURRENCY, expiries=CONCURRENCY)).assert_sound()
            await assert_history(fleet.rd, fleet.ledger)
            await fleet.leave()


async def _is_active(folder: Path, url: str, level: int) -> bool:
    return await _level(folder, url) == level


async def _level(folder: Path, url: str) -> int:
    """With which level the fleet replays."""
    store = ReplicaStore(folder / "looking.db", lambda: JetStreamLog(url), live=folder / "live", level=2)
    try:
        await store.open()
        return (await store.look()).standing.level
    finally:
        await store.close()
