"""Replicas on JetStream for tests, and callers and workers that use them while servers die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from redrive.core.job import State
from redrive.core.store import Applied, Commit, Filter, Store, Unknown, Wanted
from redrive.errors import CommitUnknown
from redrive.stores.replica import ReplicaStore, snapshots
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.replica.replay import LogStanding
from tests.stores.jobs import T0, a_job, success

PATIENCE = 60.0


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[JetStreamLog]:
    log = JetStreamLog(url)
    try:
        await log.open()
        yield log
    finally:
        await log.close()


@contextlib.asynccontextmanager
async def replica(folder: Path, url: str, name: str = "replica", **how: Any) -> AsyncIterator[ReplicaStore]:
    store = ReplicaStore(folder / f"{name}.db", lambda: JetStreamLog(url), live=folder / "live", **how)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        for _ in itertools.count():
            if true():
                return
            await asyncio.sleep(0.01)


async def total(store: Store, *states: State) -> int:
    """How many jobs there are."""
    return sum((await store.count(Filter(states=states))).values())


async def until_failed(store: ReplicaStore) -> str:
    async with asyncio.timeout(PATIENCE):
        return await store.until_failed()


def standing(path: Path) -> LogStanding:
    found = snapshots.read_standing(path)
    assert found is not None
    return found


async def insert_many(store: Store, number: int, accepted: list[str], unknown: list[str]) -> None:
    """Hand in jobs one by one; a lost answer leaves its job unknown."""
    for _ in range(number):
        job = a_job()
        try:
            await store.insert([job])
            accepted.append(job.id)
        except CommitUnknown:
            unknown.append(job.id)


async def work(store: Store, stop: asyncio.Event, done: list[str]) -> None:
    """Claim and settle until told to stop and nothing is left."""
    while True:
        claim = await store.claim(Wanted(5), "w", T0 + 1)
        outcomes = await store.apply([Commit((success(job),)) for job in claim.jobs])
        for job, outcome in zip(claim.jobs, outcomes, strict=True):
            assert isinstance(outcome, Applied | Unknown)
            if isinstance(outcome, Applied):
                done.append(job.id)
        if not claim.jobs:
            if stop.is_set():
                return
            await store.wait(claim.mark, 0.05)
