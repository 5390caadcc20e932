"""Shows a store as a fleet: its log, its replicas, its workers and how durable it is, for every door alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from redrive.engine.worker_registry import WORKER
from redrive.jobs.open_store import hide_credentials
from redrive.stores.replica.chores import ANNOUNCE_SECONDS, REPLICA, Replica

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.stores.replica.chores import ReplicaStatus


class HubView(msgspec.Struct, frozen=True):
    """A hub that answered."""

    host: str
    pid: int
    position: int
    lag: int
    generation: str
    clock_off: float
    """Seconds by which its clock differs from this machine's."""
    halted: str | None = None
    trouble: str | None = None


class SnapshotView(msgspec.Struct, frozen=True):
    position: int
    behind: int
    """Messages of the log since then."""
    size: int
    age: float


class OpenStream(msgspec.Struct, frozen=True):
    """A stream of the fleet, as far as people need to know."""

    name: str
    holds: str
    messages: int
    limit: int | None
    full: bool


class ReplicaView(msgspec.Struct, frozen=True):
    """A file with the jobs of the log, as its process announced it."""

    name: str
    host: str
    pid: int
    position: int
    lag: int
    """Messages that the log had and this file had not, when it was announced."""
    seen_at: float
    hub: bool
    state: Literal["running", "silent", "closed"]
    trouble: str | None = None


class FleetWorker(msgspec.Struct, frozen=True):
    """A worker that lives."""

    id: str
    host: str
    running: int
    concurrency: int
    seen_at: float


class FleetStatus(msgspec.Struct, frozen=True):
    """A store as one process and its servers see it: where jobs are, who keeps them and who runs them.

    A plain file has no log, no replicas and no streams.
    """

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
    """Replicas that wrote something within the last day, those that ended meanwhile included."""
    clients: int = 0
    """The same for processes without a replica."""
    streams: tuple[OpenStream, ...] = ()
    files: tuple[ReplicaView, ...] = ()
    """Every replica that was announced and may still be read."""
    workers: tuple[FleetWorker, ...] = ()
    waits_for: tuple[str, ...] = ()
    """Where erased words can still be read."""


async def fleet_view(core: Core) -> FleetStatus:
    """What the store itself says. Asks no other hub, and works on a file and behind hubs, too."""
    info, now = await core.store.open(), core.clock.now()
    files = [kept for kept in await REPLICA.all(core.store) if kept.value.until > now]
    status = FleetStatus(
        url=hide_credentials(core.settings.url),
        durability=info.durability,
        end=max((kept.value.position for kept in files), default=0),
        files=tuple(_file(kept.key, kept.value, now) for kept in files),
        workers=await _workers(core, now),
        waits_for=tuple(await core.store.lingering()),
    )
    look = getattr(core.store, "look", None)
    return with_log(status, await look(), now) if look is not None else status


def with_log(status: FleetStatus, look: ReplicaStatus, now: float) -> FleetStatus:
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


def _file(name: str, said: Replica, now: float) -> ReplicaView:
    state: Literal["running", "silent", "closed"] = "running" if said.open else "closed"
    if said.open and now - said.at > 2 * ANNOUNCE_SECONDS:
        state = "silent"
    return ReplicaView(name, said.host, said.pid, said.position, said.lag, said.at, said.hub, state, said.trouble)


async def _workers(core: Core, now: float) -> tuple[FleetWorker, ...]:
    kept: Any = await WORKER.all(core.store)
    return tuple(
        FleetWorker(id, id.rsplit("-", 2)[0], said.running, said.concurrency, said.at)
        for id, said, _ in kept
        if said.lives(now)
    )
