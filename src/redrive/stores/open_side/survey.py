"""Describes all streams of a namespace, and the streams that take messages from them."""

from __future__ import annotations

import time
from typing import ClassVar, Final

import msgspec

from redrive.stores.open_side import streams
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.jetstream import read_time
from redrive.stores.replica.nats_api import StreamInfo, StreamList, api, decode, encode
from redrive.stores.replica.nats_connection import Connection
from redrive.stores.replica.nats_streams import Names, stream_info

TASKS, DEAD_LETTERS, RETRIES, LOG, SNAPSHOTS = "tasks", "dead letters", "retries", "log", "snapshots"
SLOW_SECONDS: Final = 10.0


class StreamView(msgspec.Struct, frozen=True):
    """One stream of a fleet. Answers show only what people need to know."""

    HIDDEN: ClassVar = ("bytes", "byte_limit", "replicas", "consumers", "behind")
    SHOWN: ClassVar = ("full",)
    name: str
    holds: str
    messages: int
    bytes: int
    limit: int | None
    """The limit of messages."""
    byte_limit: int | None
    replicas: int
    consumers: int
    behind: tuple[str, ...] = ()
    """Servers of the stream that are offline or not current."""

    @property
    def full(self) -> bool:
        return self.limit is not None and self.messages >= self.limit and self.holds == DEAD_LETTERS


class Survey(msgspec.Struct, frozen=True):
    """Describes all streams of a fleet, the open ones included."""

    streams: tuple[StreamView, ...]
    taken_by: tuple[str, ...]
    """Streams of other programs that mirror or source those of the fleet."""
    version: str
    clock_off: float
    """Seconds by which this machine's clock differs from the server's."""


async def survey(connection: Connection) -> Survey:
    namespace = connection.address.namespace
    log, names = Names(namespace), OpenNames(namespace)
    holds = {log.log: LOG, log.snapshots: SNAPSHOTS, names.tasks: TASKS, names.retries: RETRIES}
    holds |= dict.fromkeys(await streams.list_dead_letter_streams(connection, names), DEAD_LETTERS)
    before = time.time()
    everything = await _list_streams(connection)
    ts = (await stream_info(connection, log.log)).ts
    off = time.time() - read_time(ts) if ts else 0.0
    views = [_view(info, holds[info.config["name"]]) for info in everything if info.config["name"] in holds]
    return Survey(
        tuple(sorted(views, key=lambda view: view.name)),
        tuple(info.config["name"] for info in everything if _list_sources(info) & holds.keys()),
        connection.version,
        off if abs(off) > time.time() - before else 0.0,
    )


async def _list_streams(connection: Connection) -> list[StreamInfo]:
    listed: list[StreamInfo] = []
    while True:
        request = encode({"offset": len(listed)})
        page = decode(StreamList, await connection.ask(api("STREAM.LIST"), request, seconds=SLOW_SECONDS))
        listed += page.streams or []
        if not page.streams or len(listed) >= page.total:
            return listed


def _list_sources(info: StreamInfo) -> set[str]:
    """List the streams from which a stream takes messages."""
    mirror, sources = info.config.get("mirror"), info.config.get("sources") or []
    return {source["name"] for source in [mirror, *sources] if source}


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


def _limit(number: int) -> int | None:
    return number if number > 0 else None
