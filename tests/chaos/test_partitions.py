"""Parts of a fleet hear nothing of the others, while every connection stays open: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from redrive.core.job import State
from redrive.errors import StoreError
from redrive.stores.replica import ReplicaStore
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.replica.log import LogUnavailable
from redrive.stores.replica.nats_streams import stream_info
from tests.chaos.history import assert_history
from tests.chaos.ledger import audit
from tests.chaos.processes import Child, Zygote, until
from tests.chaos.proxy import Proxy
from tests.chaos.test_fleet import CONCURRENCY, Fleet, address, assert_all_replicas_alike
from tests.nats import Server, cluster, free_ports, need_server, own_server
from tests.stores.fleet import insert_many, opened, replica, total, work

pytestmark = pytest.mark.chaos

LEASE = 4.0
PATIENCE = 60.0


@contextmanager
def a_server(folder: Path) -> Iterator[Server]:
    """Syncs before it acknowledges, and notices a client that says nothing within some seconds."""
    storage = f'jetstream {{ store_dir: "{folder / "store"}", sync_interval: always, max_file_store: 1GB }}'
    with own_server(folder, lines=[storage, 'ping_interval: "1s"', "ping_max: 2"]) as server:
        yield server


def through(proxy: Proxy, server: Server) -> str:
    return address(server).replace(f":{server.port}", f":{proxy.port}")


# ---- one worker


@asynccontextmanager
async def a_worker_behind_a_proxy(
    zygote: Zygote, folder: Path, seed: int
) -> AsyncIterator[tuple[Fleet, Proxy, Child, str]]:
    """A hub, a worker behind a proxy that runs a job, and another one."""
    with a_server(folder / "nats") as server, Proxy(server.port) as proxy:
        fleet = Fleet(zygote, folder, address(server), seed)
        await fleet.start_hub("hub-a")
        async with fleet.rd:
            cut_off = fleet.start("worker", url=through(proxy, server))
            handle = await fleet.rd.enqueue("gated", {"gate": "gate", "ignore": True}, lease=LEASE)
            fleet.ledger.accepted([handle.id])
            await until("the job starts", lambda: fleet.ledger.read().starts)
            fleet.workers = [cut_off, fleet.start("worker")]
            yield fleet, proxy, cut_off, handle.id
            await fleet.leave()
            await assert_all_replicas_alike(folder, fleet.url, [folder / "hub-a" / "replica-0.db"])


@pytest.mark.behaviour("F-7")
@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_a_worker_that_is_cut_off_loses_its_job_and_completes_nothing(
    zygote: Zygote, folder: Path, seed: int, how: str
) -> None:
    """A reset alone costs nothing: the worker connects again, and the job stays its own."""
    async with a_worker_behind_a_proxy(zygote, folder, seed) as (fleet, proxy, cut_off, job_id):
        if how == "cut":
            proxy.cut()
            came = proxy.up, proxy.down
            await until("another one starts it", lambda: fleet.ledger.read().started(job_id) == 2)
            assert (proxy.up, proxy.down) == came, "something came through"
            (folder / "gate-2").touch()
            await until("it is completed", lambda: fleet.ledger.read().completed[job_id])
            (folder / "gate-1").touch()
            await until("the first one has finished, too", lambda: len(fleet.ledger.read().ends) == 2)
            proxy.heal()
        else:
            proxy.reset()
            (folder / "gate-1").touch()
        await until("every job ends", fleet._ended)
        (await audit(fleet.rd, fleet.ledger, concurrency=CONCURRENCY, expiries=1)).assert_sound()
        await assert_history(fleet.rd, fleet.ledger)
        last = {pid for job, _, pid in fleet.ledger.read().starts[-1:]}
        assert (cut_off.pid in last) == (how == "reset")


# ---- one hub

FIRST = 30


async def test_a_hub_that_is_cut_off_ends_no_lease_and_catches_up(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]
) -> None:
    """Others serve its workers meanwhile. When it hears again it judges nobody by the time in which it was deaf."""
    number = size(60, 1_000)
    with a_server(folder / "nats") as server, Proxy(server.port) as proxy:
        fleet = Fleet(zygote, folder, address(server), seed)
        await fleet.start_hub("hub-a", url=through(proxy, server))
        await fleet.start_hub("hub-b")
        async with fleet.rd:
            fleet.hire()
            held = await fleet.rd.enqueue("gated", {"gate": "gate"}, lease=20.0)
            fleet.ledger.accepted([held.id])
            await until("the job starts", lambda: fleet.ledger.read().starts)
            # Both hubs answer requests that come after the worker's receipt of the job: a hub that is cut off before it
            # has the receipt gives the job back, as it must.
            before = fleet.start("producer", name="before", number=FIRST)
            assert await before.exited(PATIENCE) == 0, before.log()
            await until("the first jobs end", lambda: _completed(fleet) >= FIRST // 3, PATIENCE)
            for _ in range(size(1, 10)):
                proxy.cut()
                came, done = proxy.down, sum(fleet.ledger.read().completed.values())
                producer = fleet.start("producer", name=f"p{done}", number=number)
                await until("others go on", lambda done=done: _completed(fleet) >= done + number // 3, PATIENCE)  # type: ignore[misc]
                assert proxy.down == came, "something came through"
                proxy.heal()
                fleet.strikes += 1
                assert await producer.exited(PATIENCE) == 0, producer.log()
            assert fleet.ledger.read().started(held.id) == 1, "a job was taken from a worker that had it"
            (folder / "gate").touch()
            await until("every job ends", fleet._ended, PATIENCE)
            await fleet.books(number * size(1, 10) + FIRST + 1)
            await fleet.leave()
        known = [folder / name / "replica-0.db" for name in fleet.hubs]
        await assert_all_replicas_alike(folder, fleet.url, known)


def _completed(fleet: Fleet) -> int:
    return sum(fleet.ledger.read().completed.values())


# ---- one node


@contextmanager
def a_cluster_of_proxies(folder: Path) -> Iterator[tuple[list[Server], list[Proxy]]]:
    """Three servers whose routes go through proxies that know who connects."""
    need_server()
    names = [f"node{index}" for index in range(3)]
    ways = free_ports(3)
    with contextlib.ExitStack() as stack:
        proxies: list[Proxy] = []
        with cluster(folder, ways=ways, start=False) as servers:
            for server, way in zip(servers, ways, strict=True):
                proxies.append(stack.enter_context(Proxy(server.route, port=way, names=names)))
            for server in servers:
                server.start()
            yield servers, proxies


def isolate(proxies: list[Proxy], index: int) -> None:
    """The node hears none of the others, and they not it. Every link must be known, or one of them would leak."""
    links = sorted(sorted((name, f"node{to}")) for to, proxy in enumerate(proxies) for name in proxy.connected)
    assert links == [["node0", "node1"], ["node0", "node2"], ["node1", "node2"]], links
    proxies[index].cut()
    for other, proxy in enumerate(proxies):
        if other != index:
            proxy.cut(f"node{index}")


def node_of(store: ReplicaStore, servers: list[Server]) -> int:
    """The number of the node that a replica is connected to."""
    assert store._engine is not None
    log = store._engine.log
    assert isinstance(log, JetStreamLog) and log._connection.client.connected_url is not None
    return [server.port for server in servers].index(log._connection.client.connected_url.port or 0)


async def leader_of(url: str) -> int:
    """The number of the node that leads the log."""
    async with opened(url) as log:
        info = await stream_info(log._connection, log._names.log)
    return int(info.cluster.leader.removeprefix("node")) if info.cluster and info.cluster.leader else -1


async def is_whole(url: str) -> bool:
    """Whether every node has all that the leader of the log has."""
    try:
        async with opened(url) as log:
            info = await stream_info(log._connection, log._names.log)
    except (LogUnavailable, StoreError):
        return False
    peers = (info.cluster.replicas if info.cluster else None) or []
    return len(peers) == 2 and all(peer.current and not peer.offline for peer in peers)


@pytest.mark.parametrize("control", [False, True])
async def test_a_node_that_is_cut_off_from_its_peers_costs_nothing_that_was_accepted(
    folder: Path, size: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """The others choose another leader; whoever is connected to the lonely node goes to one of them.

    The control stays where it is connected, and hears nothing for as long as the node is alone.
    """
    if control:
        monkeypatch.setattr(JetStreamLog, "_leave_deaf", lambda self: None)
        monkeypatch.setattr("redrive.stores.replica.sender.GIVE_UP", 10.0)
    with a_cluster_of_proxies(folder) as (servers, proxies):
        places = ",".join(server.url.removeprefix("nats://") for server in servers)
        url = f"nats://{places}/shop?replicas=3&max_bytes=64MB"
        accepted: list[str] = []
        unknown: list[str] = []
        done: list[str] = []
        async with replica(folder, url) as store:
            for round in range(size(1, 20)):
                await until("the cluster is whole", lambda: is_whole(url), PATIENCE)
                await insert_many(store, 5, accepted, unknown)
                lonely = node_of(store, servers) if round % 2 == 0 else await leader_of(url)
                isolate(proxies, lonely)
                before, tries = len(accepted), len(unknown) + (1 if control else 3)
                while len(accepted) < before + 5 and len(unknown) < tries:
                    await insert_many(store, 1, accepted, unknown)
                if control:
                    assert len(accepted) == before and unknown, "the node was not alone"
                    return
                assert len(accepted) == before + 5
                for proxy in proxies:
                    proxy.heal()
            await until("the cluster is whole", lambda: is_whole(url), PATIENCE)
            stop = asyncio.Event()
            stop.set()
            await work(store, stop, done)
            stored = await total(store, State.done)
        assert set(accepted) <= set(done) <= {*accepted, *unknown} and len(done) == len(set(done)) == stored
        print(f"{len(accepted)} accepted, {len(unknown)} unknown, the last one alone was node{lonely}")
        await assert_all_replicas_alike(folder, url, [folder / "replica.db"])
