"""Looks at all streams of a namespace, and at who takes from them."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from redrive.stores.open_side import streams
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.jetstream import seconds
from redrive.stores.replica.nats_api import StreamInfo, StreamList, api, decode, encode
from redrive.stores.replica.nats_connection import Connection
from redrive.stores.replica.nats_streams import Names, stream_info

TASKS, DEAD_LETTERS, RETRIES, LOG, SNAPSHOTS = "tasks", "dead letters", "retries", "log", "snapshots"
SLOW_SECONDS: Final = 10.0


class StreamView(msgspec.Struct, frozen=True):
    """One stream of a fleet."""

    name: str
    holds: str
    messages: int
    bytes: int
    limit: int | None
    """Of messages."""
    byte_limit: int | None
    replicas: int
    consumers: int
    behind: tuple[str, ...] = ()
    """Servers that should keep it and are offline or not current."""

    @property
    def full(self) -> bool:
        return self.limit is not None and self.messages >= self.limit and self.holds == DEAD_LETTERS


class Survey(msgspec.Struct, frozen=True):
    """All streams of a fleet, the open ones included."""

    streams: tuple[StreamView, ...]
    taken_by: tuple[str, ...]
    """Streams of others that mirror or source ours."""
    version: str
    clock_off: float
    """Seconds by which this machine's clock differs from the server's."""


async def survey(connection: Connection) -> Survey:
    namespace = connection.address.namespace
    log, names = Names(namespace), OpenNames(namespace)
    holds = {log.log: LOG, log.snapshots: SNAPSHOTS, names.tasks: TASKS, names.retries: RETRIES}
    holds |= dict.fromkeys(await streams.list_dead_letter_streams(connection, names), DEAD_LETTERS)
    before = time.time()
    everything = await _all(connection)
    ts = (await stream_info(connection, log.log)).ts
    off = time.time() - seconds(ts) if ts else 0.0
    views = [_view(info, holds[info.config["name"]]) for info in everything if info.config["name"] in holds]
    return Survey(
        tuple(sorted(views, key=lambda view: view.name)),
        tuple(info.config["name"] for info in everything if _takes(info) & holds.keys()),
        connection.version,
        off if abs(off) > time.time() - before else 0.0,
    )


async def _all(connection: Connection) -> list[StreamInfo]:
    found: list[StreamInfo] = []
    while True:
        request = encode({"offset": len(found)})
        page = decode(StreamList, await connection.ask(api("STREAM.LIST"), request, seconds=SLOW_SECONDS))
        found += page.streams or []
        if not page.streams or len(found) >= page.total:
            return found


def _takes(info: StreamInfo) -> set[str]:
    """The streams that this one takes messages from."""
    mirror, sources = info.config.get("mirror"), info.config.get("sources") or []
    return {one["name"] for one in [mirror, *sources] if one}


def _view(info: StreamInfo, holds: str) -> StreamView:
    config, peers = info.config, (info.cluster.replicas or [] if info.cluster else [])
    return StreamView(
        config["name"],
        holds,
        info.state.messages,
        info.state.bytes,
        _limit(config.get("max_msgs", -1)),
        _limit(config.get("max_bytes", -1)),
        config.get("num_replicas", 1),
        info.state.consumer_count,
        tuple(peer.name for peer in peers if peer.offline or not peer.current),
    )


def _limit(said: int) -> int | None:
    return said if said > 0 else None
