"""A running replica that others have trimmed away from: it goes on from a snapshot by itself."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive.core.store import Commit, Filter, Wanted
from redrive.errors import CommitUnknown
from redrive.stores.replica import ReplicaStore
from redrive.stores.replica.engine import Engine
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.replica.log import Log, LogEntry, LogUnavailable
from redrive.stores.replica.postgres import PostgresLog
from redrive.stores.replica.replay import ReplicaStopped
from tests.nats import shared_server
from tests.postgres_server import Server
from tests.stores.fleet import until
from tests.stores.jobs import T0, a_job, success
from tests.stores.memory_log import MemoryLog, MemoryMessages
from tests.support import eventually

Make = Callable[[], Log]


class Held:
    """A log whose feed can stand still, as that of a process that was frozen."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.is_held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def feed(self, after: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        async for entries in self._log.feed(after):
            if self.is_held:
                await until(lambda: not self.is_held)
                raise LogUnavailable("the feed stood still")
            yield entries


class Scene:
    """Two replicas of one log; the feed of one of them stands still while the other goes on, and trims."""

    def __init__(self, folder: Path, make: Make) -> None:
        self.log = Held(make())
        self.slow = ReplicaStore(folder / "slow.db", lambda: self.log, live=folder / "live-slow")  # type: ignore[arg-type, return-value]
        self.fast = ReplicaStore(folder / "fast.db", make, live=folder / "live-fast")

    async def __aenter__(self) -> Scene:
        await self.slow.open()
        await self.fast.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.is_held = False
        await self.slow.close()
        await self.fast.close()

    async def go_on(self, number: int) -> None:
        """The other replica takes in jobs and makes snapshots, until the log begins after what the slow one has."""
        engine = engine_of(self.fast)
        for _ in range(number):
            await self.fast.insert([a_job()])
            await engine.call(engine.snapshots.make)
        first = await engine.call(self.first)
        assert first > engine_of(self.slow).replay.here.position + 1, "nothing was trimmed"

    async def first(self) -> int:
        return await engine_of(self.fast).log.first()


def engine_of(store: ReplicaStore) -> Engine:
    assert store._engine is not None
    return store._engine


def in_memory() -> Make:
    kept = MemoryMessages()
    return lambda: MemoryLog(kept)


def on_jetstream() -> Make:
    url = f"{shared_server().url}/t{secrets.token_hex(6)}?max_bytes=64MB"
    return lambda: JetStreamLog(url)


def on_postgres() -> Make:
    url = Server.running().url(namespace=f"test-{secrets.token_hex(6)}")
    return lambda: PostgresLog(url)


@pytest.fixture(params=[in_memory, on_jetstream, on_postgres], ids=["memory", "jetstream", "postgres"])
async def scene(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Scene]:
    if request.param is on_postgres:
        request.getfixturevalue("postgres_server")
    async with Scene(folder, request.param()) as scene:
        yield scene


async def soon(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(30):
        return await work


def same_place(scene: Scene) -> Callable[[], bool]:
    return lambda: engine_of(scene.slow).replay.here[1:4] == engine_of(scene.fast).replay.here[1:4]


@pytest.mark.behaviour("F-5a")
async def test_it_goes_on_from_a_snapshot_and_works_on(scene: Scene) -> None:
    await scene.slow.insert([a_job()])
    assert sum((await scene.slow.count(Filter())).values()) == 1  # a reader has the file open from now on
    scene.log.is_held = True
    await scene.go_on(4)
    reading = asyncio.ensure_future(scene.slow.get([]))  # waits for what the log held now
    scene.log.is_held = False
    await soon(reading)
    assert sum((await scene.slow.count(Filter())).values()) == 5
    claim = await soon(scene.slow.claim(Wanted(10), "w", T0 + 1))
    assert len(claim.jobs) == 5
    await soon(scene.slow.apply([Commit((success(job),)) for job in claim.jobs]))
    await soon(scene.fast.get([]))
    await until(same_place(scene))
    assert scene.slow.failed is None


@pytest.mark.behaviour("F-5a")
async def test_what_was_under_way_is_told_as_unknown_and_what_it_took_goes_back(scene: Scene) -> None:
    await scene.slow.insert([a_job()])
    scene.log.is_held = True
    claiming = asyncio.ensure_future(scene.slow.claim(Wanted(1), "w", T0 + 1))
    await until(lambda: bool(engine_of(scene.slow).sender._in_flight))
    await soon(scene.fast.get([]))
    await until(lambda: engine_of(scene.fast).replay.here.position > engine_of(scene.slow).replay.here.position)
    await scene.go_on(4)
    scene.log.is_held = False
    with pytest.raises(CommitUnknown):
        await soon(claiming)

    async def all_wait() -> bool:
        return (await scene.fast.count(Filter(), by=("state",))).get(("waiting",)) == 5

    await eventually(all_wait, "what was taken waits again")


@pytest.mark.behaviour("F-5a")
async def test_without_a_sound_snapshot_it_stops_and_keeps_what_it_has(folder: Path) -> None:
    kept = MemoryMessages()
    async with Scene(folder, lambda: MemoryLog(kept)) as scene:
        await scene.slow.insert([a_job()])
        scene.log.is_held = True
        await scene.go_on(4)
        for pieces in kept.snapshots.values():
            pieces.clear()
        scene.log.is_held = False
        assert "no sound snapshot" in await soon(scene.slow.until_failed())
        assert engine_of(scene.slow).replay.here.position < kept.trimmed
        with pytest.raises(ReplicaStopped):
            await scene.slow.insert([a_job()])
        assert sum((await scene.slow.count(Filter())).values()) == 1


@pytest.mark.behaviour("F-2")
async def test_a_gap_in_the_middle_of_the_log_is_no_reason_for_a_snapshot(folder: Path) -> None:
    kept = MemoryMessages()
    async with Scene(folder, lambda: MemoryLog(kept)) as scene:
        await scene.slow.insert([a_job()])
        scene.log.is_held = True
        for _ in range(3):
            await scene.fast.insert([a_job()])
        del kept.entries[-2]
        scene.log.is_held = False
        assert "jumps" in await soon(scene.slow.until_failed())
