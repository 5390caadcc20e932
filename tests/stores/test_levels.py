"""Two levels of the Machine in one fleet: the higher one waits for all that live, and there is no way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redrive.core.commands import Ticket
from redrive.core.store import Wanted
from redrive.stores.replica import ReplicaStore, chores, replay
from redrive.stores.replica import envelope as wire
from redrive.stores.replica.replay import Replay, ReplicaStopped
from tests.stores.jobs import T0, a_job
from tests.stores.memory_log import MemoryLog, MemoryMessages

PATIENCE = 30.0


class Fleet:
    """Replicas of different levels on one log in memory, whose clock is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = T0
        self.kept = MemoryMessages(clock=lambda: self.now)
        self.stores: list[ReplicaStore] = []

    async def join(self, name: str, level: int) -> ReplicaStore:
        store = ReplicaStore(
            self.folder / f"{name}.db", lambda: MemoryLog(self.kept), live=self.folder / f"live-{name}", level=level
        )
        self.stores.append(store)
        await store.open()
        await self.announce(store)
        return store

    async def announce(self, store: ReplicaStore) -> None:
        engine = store._engine
        assert engine is not None
        await engine.call(lambda: chores.announce_level(engine))

    async def leave(self, store: ReplicaStore) -> None:
        self.stores.remove(store)
        await store.close()

    def level(self, store: ReplicaStore) -> int:
        engine = store._engine
        assert engine is not None
        return engine.replay.here.level


@pytest.fixture
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(folder)
    yield fleet
    for store in fleet.stores:
        await store.close()


async def works(store: ReplicaStore) -> None:
    """Hand in a job here and claim it."""
    await store.insert([a_job()])
    assert len((await store.claim(Wanted(1), "w", T0 + 1)).jobs) == 1


@pytest.mark.behaviour("F-6")
async def test_a_level_is_activated_once_every_live_replica_has_announced_it(fleet: Fleet) -> None:
    old, new = await fleet.join("old", 1), await fleet.join("new", 2)
    for store in (new, old, new):
        await works(store)
        await fleet.announce(store)
    assert (fleet.level(old), fleet.level(new)) == (1, 1), "nobody was left behind"
    await fleet.leave(old)
    fleet.now += replay.LIVE_SECONDS + 1
    await fleet.announce(new)
    assert fleet.level(new) == 2
    await works(new)


@pytest.mark.behaviour("F-6")
async def test_an_older_replica_that_was_away_stops_in_words_and_cannot_come_back(fleet: Fleet) -> None:
    """Also by a file of its own that was behind, by a snapshot, and as a newcomer."""
    old, new = await fleet.join("old", 1), await fleet.join("new", 2)
    await works(old)
    fleet.kept.faults.hold = True  # it is frozen: it neither hears nor says anything
    fleet.now += replay.LIVE_SECONDS + 1
    announcing = asyncio.ensure_future(fleet.announce(new))
    fleet.kept.faults.hold = False
    fleet.kept.tell()
    await announcing
    async with asyncio.timeout(PATIENCE):
        assert "has moved to level 2" in await old.until_failed()
    await fleet.leave(old)
    await works(new)
    for name in ("old", "newcomer"):
        with pytest.raises(ReplicaStopped, match="upgrade redrive here"):
            await fleet.join(name, 1)
        fleet.stores.pop()
    await fleet.leave(new)
    with pytest.raises(ReplicaStopped, match="this version has 1: upgrade redrive here"):
        await fleet.join("new", 1)
    fleet.stores.pop()
    again = await fleet.join("new", 2)
    assert fleet.level(again) == 2, "it went back"


@pytest.mark.behaviour("F-6")
async def test_what_a_hasty_replica_asks_for_is_decided_by_the_replay(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own look was older than the log: an old replica has greeted since. All refuse it alike."""
    old, new = await fleet.join("old", 1), await fleet.join("new", 2)
    hasty = new._engine
    assert hasty is not None
    with pytest.raises(Exception, match="1 live replicas have announced a lower level"):
        await hasty.run(wire.Level(2))
    await works(old)
    await works(new)
    assert (fleet.level(old), fleet.level(new)) == (1, 1)


async def test_the_control_without_the_look_at_the_others_the_old_replica_is_thrown_out(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "count_behind", lambda *_: 0)
    old = await fleet.join("old", 1)
    await fleet.join("new", 2)
    async with asyncio.timeout(PATIENCE):
        assert "has moved to level 2" in await old.until_failed()


async def test_the_control_with_the_level_of_the_issuer_in_its_messages_the_old_replica_is_thrown_out(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = wire.pack

    def as_it_was(ticket: Ticket, generation: str, position: int, chain: bytes, items: Any, level: int) -> bytes:
        return pack(ticket, generation, position, chain, items, 2)

    old = await fleet.join("old", 1)
    monkeypatch.setattr(wire, "pack", as_it_was)
    await fleet.join("new", 2)
    async with asyncio.timeout(PATIENCE):
        assert "needs level 2" in await old.until_failed()


async def test_the_control_without_the_check_at_opening_an_old_replica_follows_what_it_cannot_replay(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.leave(await fleet.join("new", 2))
    monkeypatch.setattr(Replay, "refuse_higher_level", lambda self: None)
    old = ReplicaStore(fleet.folder / "new.db", lambda: MemoryLog(fleet.kept), live=fleet.folder / "live", level=1)
    fleet.stores.append(old)
    await old.open()
    assert fleet.level(old) == 2
