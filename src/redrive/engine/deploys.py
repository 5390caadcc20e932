"""Remembers which versions of the application ran here, and when each was first seen."""

from __future__ import annotations

from typing import Final

from redrive.core.deploys import Deploy, last_deploy, with_version
from redrive.core.documents import Kind
from redrive.core.store import Store
from redrive.engine.capacity import DELIVERIES
from redrive.engine.worker_registry import EVERYBODY, ROSTER, WORKER

DEPLOYS: Final = Kind[tuple[Deploy, ...]]("deploys", tuple[Deploy, ...])
RECENT: Final = "recent"


async def note_version(store: Store, version: str, at: float) -> None:
    """Records a version that was not seen before; a known version costs only a read."""
    await DEPLOYS.update(store, RECENT, lambda known: _add_version(known, version, at))


def _add_version(known: tuple[Deploy, ...] | None, version: str, at: float) -> tuple[Deploy, ...]:
    after = with_version(known or (), version, at)
    return known if known is not None and after is known else after


async def read_last_deploy(store: Store) -> Deploy | None:
    """Finds the last deploy. A worker that only delivers HTTP requests, beside a dashboard, is not the application."""
    kept = await DEPLOYS.get(store, RECENT)
    workers = [one.value for one in await WORKER.all(store)]
    starts = [worker.since for worker in workers if worker.since is not None and worker.tasks - DELIVERIES]
    return last_deploy(kept.value if kept is not None else (), starts or await _read_last_arrival(store))


async def _read_last_arrival(store: Store) -> list[float]:
    """Reads the time at which a worker last arrived, for a store without live workers."""
    kept = await ROSTER.get(store, EVERYBODY)
    return [kept.value] if kept is not None and kept.value > 0 else []
