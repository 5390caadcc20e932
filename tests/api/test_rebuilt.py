"""What a fleet's log says is all there is: a replica that was deleted comes back the same, and erased words do not."""

from __future__ import annotations

import json
import secrets
import shutil
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive.stores.replica.engine import Engine
from redrive.stores.replica.jetstream import JetStreamLog
from tests.fleet_hosts import HOUR, Fleet, at
from tests.nats import shared_server
from tests.support import FakeClock, count_in_files, soon

CANARY = "kestrel-4711-canary"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(at(2026, 3, 3, 9))


@pytest.fixture
def url() -> str:
    return f"{shared_server().url}/t{secrets.token_hex(6)}?max_bytes=64MB"


@asynccontextmanager
async def replica(url: str, folder: Path, clock: FakeClock, **settings: Any) -> AsyncIterator[redrive.Redrive]:
    async with redrive.Redrive(url, replica=True, replica_folder=str(folder), clock=clock, **settings) as rd:
        yield rd


def engine_of(rd: redrive.Redrive) -> Engine:
    engine: Engine = rd.store._engine  # type: ignore[attr-defined]
    return engine


async def all_reports(rd: redrive.Redrive) -> dict[str, Any]:
    """Everything that the reports say, as data."""
    found = {
        "weekly": await rd.reports.weekly(),
        "monthly": await rd.reports.monthly(),
        "failures": await rd.reports.failures(),
        "activity": await rd.reports.activity(),
        "load": await rd.reports.load(),
        "glance": await rd.reports.glance(),
        "groups": await rd.groups.list(),
        "dead": (await rd.dead.list(limit=1000)).jobs,
    }
    told: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return told


async def live(fleet: Fleet) -> None:
    """Days on which some jobs come back by themselves, and some wait for a person."""
    for fine in (20, 11, 7):
        await fleet.live(fine=fine, expires=2, gives_up=3)
        await fleet.bring_back()
        fleet.clock.advance(24 * HOUR)


@pytest.mark.behaviour("F-1c")
@pytest.mark.parametrize("by", ["the log alone", "a snapshot and the log"])
async def test_a_deleted_replica_comes_back_with_the_same_reports(
    url: str, tmp_path: Path, clock: FakeClock, by: str
) -> None:
    async with replica(url, tmp_path / "replica", clock) as rd:
        fleet = Fleet(rd, clock)
        await live(fleet)
        if by != "the log alone":
            engine = engine_of(rd)
            for _ in range(2):
                await engine.call(engine.snapshots.make)
        await fleet.live(fine=5, gives_up=1)
        before = await all_reports(rd)
    shutil.rmtree(tmp_path / "replica")
    async with replica(url, tmp_path / "replica", clock) as rd:
        assert await all_reports(rd) == before
    assert before["monthly"]["rows"] and len(before["dead"]) == 10


@pytest.mark.behaviour("F-13")
async def test_erased_words_are_gone_from_replicas_log_and_snapshots(
    url: str, tmp_path: Path, clock: FakeClock
) -> None:
    async with replica(url, tmp_path / "one", clock) as one, replica(url, tmp_path / "two", clock) as two:

        @one.task(max_attempts=1)
        async def breaks(text: str) -> None:
            raise ValueError(f"broken by {text}")

        handle = await one.enqueue("breaks", {"text": CANARY})
        await soon(one.drain())
        engine = engine_of(one)
        await engine.call(engine.snapshots.make)
        assert {"log", "snapshots"} == set(await words_in(url))
        assert await one.jobs.erase(handle.id)
        assert await two.jobs.get(handle.id)
        assert await words_in(url) == []
    found = count_in_files(tmp_path, CANARY)
    assert found and not any(found.values()), found


async def words_in(url: str) -> list[str]:
    """Where the word can be read on the server."""
    log, found = JetStreamLog(url), list[str]()
    try:
        info = await log.open()
        entries = [await log.entry(position) for position in range(info.first, info.last + 1)]
        if any(entry is not None and CANARY.encode() in entry.data for entry in entries):
            found.append("log")
        manifest = await log.manifest()
        for snapshot in (manifest.newest, manifest.before) if manifest is not None else ():
            pieces = [piece async for piece in log.pieces(snapshot)] if snapshot is not None else []
            if pieces and CANARY.encode() in zlib.decompress(b"".join(pieces)):
                found.append("snapshots")
    finally:
        await log.close()
    return found
