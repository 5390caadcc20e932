"""Decisions by a number: a view of a replica that is behind must not make anybody act on what was true before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive.core import lifecycle
from redrive.core.job import Job, State
from redrive.core.store import Commit, Filter, Wanted
from redrive.engine.breakers import Breakers
from redrive.retries.breaker import BREAKER, close_breaker, open_breaker
from redrive.stores.replica import ReplicaStore
from redrive.stores.replica.log import LogEntry
from tests.chaos.processes import until
from tests.stores.jobs import T0, a_job
from tests.stores.memory_log import MemoryLog, MemoryMessages
from tests.support import FakeClock

KEY = "host:api.example.org"
PARKED = Filter(states=(State.held,), because="circuit_open")


class Behind(MemoryLog):
    """A log whose feed stands still for this process alone."""

    def __init__(self, kept: MemoryMessages) -> None:
        super().__init__(kept)
        self.goes = threading.Event()
        self.goes.set()

    async def feed(self, after: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        async for entries in super().feed(after):
            await asyncio.to_thread(self.goes.wait, 30)
            yield entries


class TwoHubs:
    """What a thin client has: documents from one hub, and views from the other."""

    def __init__(self, first: ReplicaStore, second: ReplicaStore, *, blind: bool = False) -> None:
        self._first, self._second, self._blind = first, second, blind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first, name)

    async def count(self, filter: Filter, by: Sequence[str] = (), *, current: bool = False) -> Any:
        return await self._second.count(filter, by, current=current and not self._blind)


@pytest.fixture
async def hubs(folder: Path) -> AsyncIterator[tuple[ReplicaStore, ReplicaStore, Behind]]:
    kept = MemoryMessages()
    log = Behind(kept)
    first = ReplicaStore(folder / "first.db", lambda: MemoryLog(kept), live=folder / "live", clamps=False)
    second = ReplicaStore(folder / "second.db", lambda: log, live=folder / "live", clamps=False)
    for store in (first, second):
        await store.open()
    yield first, second, log
    log.goes.set()
    for store in (first, second):
        await store.close()


async def parked(store: ReplicaStore) -> Job:
    """A job that waits for something that answers again by now."""
    await store.insert([a_job()])
    (job,) = (await store.claim(Wanted(1), "w", T0 + 1)).jobs
    breaker = close_breaker(open_breaker(KEY, "it is down", job.id, T0 + 1, pause=5.0, release=1.0), T0 + 1)
    held = lifecycle.held_back(
        job, T0 + 1, because="circuit_open", why="it is down", recommendation="Wait.", held_for=KEY
    )
    await store.apply([Commit((held,), (BREAKER.put(KEY, breaker, 0),))])
    return job


@pytest.mark.behaviour("F-9")
async def test_a_count_for_a_decision_waits_for_what_was_committed_before(
    hubs: tuple[ReplicaStore, ReplicaStore, Behind],
) -> None:
    first, second, log = hubs
    log.goes.clear()
    await parked(first)
    assert sum((await second.count(PARKED)).values()) == 0, "a view does not wait"
    counting = asyncio.ensure_future(second.count(PARKED, current=True))
    done, _ = await asyncio.wait({counting}, timeout=0.2)
    assert not done
    log.goes.set()
    async with asyncio.timeout(20):
        assert sum((await counting).values()) == 1


@pytest.mark.parametrize("control", [False, True])
async def test_a_breaker_with_parked_jobs_is_not_forgotten_by_a_hub_that_is_behind(
    hubs: tuple[ReplicaStore, ReplicaStore, Behind], control: bool
) -> None:
    """The control counts what the hub has: none, and all its jobs come back at once instead of at their pace."""
    first, second, log = hubs
    log.goes.clear()
    await parked(first)
    clock = FakeClock(T0 + 2)
    breakers = Breakers(TwoHubs(first, second, blind=control), clock)  # type: ignore[arg-type]
    minding = asyncio.ensure_future(breakers.mind())
    if not control:
        await until("it waits for the hub", lambda: second._engine is not None and second._engine._behind)
        log.goes.set()
    async with asyncio.timeout(20):
        await minding
    assert (await BREAKER.get(first, KEY) is None) == control


async def test_jobs_of_a_breaker_that_opened_after_the_look_stay_parked(
    hubs: tuple[ReplicaStore, ReplicaStore, Behind], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were counted, and their breaker was not there when it looked: it looks again before it lets them go."""
    first, _, _ = hubs
    clock = FakeClock(T0 + 2)
    breakers = Breakers(first, clock)  # type: ignore[arg-type]
    count = first.count

    async def parked_meanwhile(*given: Any, **how: Any) -> Any:
        monkeypatch.setattr(first, "count", count)
        await parked(first)
        return await count(*given, **how)

    monkeypatch.setattr(first, "count", parked_meanwhile)
    assert await breakers.mind() == []
    assert sum((await first.count(PARKED, current=True)).values()) == 1
