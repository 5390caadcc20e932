"""Describes a store as a fleet, for every door: its log, its replicas, its workers and its durability."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from redrive.engine.worker_registry import WORKER
from redrive.jobs.open_store import hide_credentials
from redrive.stores.open_side.survey import StreamView
from redrive.stores.replica.chores import ANNOUNCE_SECONDS, REPLICA, Presence, Replica

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.stores.replica.chores import ReplicaStatus


class HubView(Presence, frozen=True, kw_only=True):
    """A hub that answered."""

    HIDDEN: ClassVar = ("level", "clock")
    lag: int
    clock_off: float
    """Seconds by which the hub's clock differs from this machine's."""


class SnapshotView(msgspec.Struct, frozen=True):
    position: int
    behind: int
    """Messages of the log since then."""
    size: int
    age: float


class ReplicaView(msgspec.Struct, frozen=True):
    """A file with the jobs of the log, as its process announced it."""

    name: str
    host: str
    pid: int
    position: int
    lag: int
    """Messages that the log had and the file had not, when the process announced it."""
    seen_at: float
    hub: bool
    state: Literal["running", "silent", "closed"]
    trouble: str | None = None


class FleetWorker(msgspec.Struct, frozen=True):
    """A live worker of the store."""

    id: str
    host: str
    running: int
    concurrency: int
    seen_at: float


class FleetStatus(msgspec.Struct, frozen=True):
    """Describes a store as one process and its servers see it. A file has no log, no replicas and no streams."""

    url: str
    durability: Literal["synced", "replicated", "unsynced"]
    advice: str = ""
    generation: str = ""
    end: int = 0
    """The last position of the log."""
    log_bytes: int = 0
    log_limit: int | None = None
    snapshot: SnapshotView | None = None
    halted: str | None = None
    hubs: tuple[HubView, ...] = ()
    replicas: int = 0
    """Replicas that wrote something within the last day, even if they have ended."""
    clients: int = 0
    streams: tuple[StreamView, ...] = ()
    files: tuple[ReplicaView, ...] = ()
    """Every announced replica whose file has not expired."""
    workers: tuple[FleetWorker, ...] = ()
    waits_for: tuple[str, ...] = ()
    """Where erased contents can still be read."""


async def describe_fleet(core: Core) -> FleetStatus:
    """Describe the store without asking other hubs. Works on every kind of store."""
    info, now = await core.store.open(), core.clock.now()
    files = [replica for replica in await REPLICA.all(core.store) if replica.value.until > now]
    status = FleetStatus(
        url=hide_credentials(core.settings.url),
        durability=info.durability,
        end=max((replica.value.position for replica in files), default=0),
        files=tuple(_describe_file(replica.key, replica.value, now) for replica in files),
        workers=await _workers(core, now),
        waits_for=tuple(await core.store.lingering()),
    )
    look = getattr(core.store, "look", None)
    return _add_log(status, await look(), now) if look is not None else status


def _add_log(status: FleetStatus, look: ReplicaStatus, now: float) -> FleetStatus:
    """Add what a replica knows of its log."""
    newest = look.manifest.newest if look.manifest is not None else None
    snapshot = (
        SnapshotView(newest.position, look.end - newest.position, newest.size, max(0.0, now - newest.made_at))
        if newest is not None
        else None
    )
    return msgspec.structs.replace(
        status,
        url=look.info.url,
        durability=look.info.durability,
        advice=look.info.advice,
        generation=look.info.generation,
        end=look.end,
        log_bytes=look.fill.bytes,
        log_limit=look.fill.limit,
        snapshot=snapshot,
        halted=look.standing.halted,
        replicas=len(look.replicas),
        clients=len(look.clients),
    )


def _describe_file(name: str, known: Replica, now: float) -> ReplicaView:
    state: Literal["running", "silent", "closed"] = "running" if known.open else "closed"
    if known.open and now - known.at > 2 * ANNOUNCE_SECONDS:
        state = "silent"
    host, pid = known.host, known.pid
    return ReplicaView(name, host, pid, known.position, known.lag, known.at, known.hub, state, known.trouble)


async def _workers(core: Core, now: float) -> tuple[FleetWorker, ...]:
    return tuple(
        FleetWorker(id, id.rsplit("-", 2)[0], worker.running, worker.concurrency, worker.at)
        for id, worker, _ in await WORKER.all(core.store)
        if worker.lives(now)
    )
