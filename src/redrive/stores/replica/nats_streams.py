"""Makes the two streams of a log on JetStream where they are missing, and checks them before they are used."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from redrive.errors import StoreRefused
from redrive.stores.replica.log import Durability, LogUnavailable
from redrive.stores.replica.nats_address import LOG_BYTES, SNAPSHOT_BYTES, Address
from redrive.stores.replica.nats_api import NAME_IN_USE, NO_STREAM, JetStreamRefused, StreamInfo, api, decode, encode
from redrive.stores.replica.nats_connection import WORDS_SECONDS, Connection

log = logging.getLogger("redrive.store")
SECOND: Final = 1_000_000_000
DUPLICATES_SECONDS: Final = 120
GENERATION: Final = "redrive-generation"
FORMAT: Final = "redrive-format"
NO_ROOM: Final = (10023, 10047, 10002)
OLDEST: Final = (2, 12, 3)
DAMAGING: Final = ((2, 14, 0), (2, 14, 6))
"""Versions from the first up to the second, which is sound, destroy a work queue that has a source."""
ADVISED: Final = (2, 12, 12)
SYNCS: Final = (2, 15, 0)
"""Earlier versions skipped syncs when they compacted, even with sync_interval always."""


class Names:
    """Names the streams and subjects of a namespace."""

    def __init__(self, namespace: str) -> None:
        self.log = f"RD_{namespace}"
        self.snapshots = f"RD_{namespace}_SNAP"
        self.subject = f"rd.{namespace}.log"
        self.pieces = f"rd.{namespace}.snap"
        self.manifest = f"rd.{namespace}.snap.manifest"


# -- versions


def check_version(text: str, url: str) -> None:
    """Refuse a server that damages what it keeps; warn of one that may."""
    version = read_version(text)
    if version < OLDEST or DAMAGING[0] <= version < DAMAGING[1]:
        raise StoreRefused(
            f"{url} runs nats-server {text}, which can lose messages: upgrade it to 2.15 (at least 2.12.3, not 2.14.0"
            " to 2.14.5)"
        )
    if version < ADVISED:
        log.warning(
            "%s runs nats-server %s, which can damage compressed or encrypted streams: upgrade it to 2.15", url, text
        )


def read_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3])


def judge_durability(address: Address, version: str, replicas: int) -> tuple[Durability, str]:
    """Say what an acknowledgement means, and how to get more."""
    syncs = read_version(version) >= SYNCS
    if address.synced and syncs:
        return "synced", ""
    old = f"nats-server {version} skips syncs: upgrade it to 2.15. " if address.synced else ""
    if replicas > 1:
        return "replicated", old.strip()
    return "unsynced", (
        f"{old}A power cut can take what was accepted in the last two minutes: run three servers and set replicas=3,"
        " or start the server with sync_interval: always (jetstream) and add synced=true to the URL"
    )


# -- making


async def ensure(connection: Connection, names: Names, until: float) -> StreamInfo:
    """Make or check both streams, and return the info of the log's stream."""
    address = connection.address
    limit = address.max_bytes or LOG_BYTES
    config = _config(names.log, names.subject, address.replicas or 1, limit, -1, secrets.token_hex(8))
    info = await _find_or_make(connection, config, until)
    _check(info, names.log, [names.subject], address)
    partial = info.config.get("max_msgs_per_subject", -1) > 0
    refuse_stream(names.log, address, {"it keeps only some messages per subject": partial})
    snapshots = await _find_or_make(connection, _snapshot_config(address, names, info), until)
    _check(snapshots, names.snapshots, [f"{names.pieces}.>"], address)
    info = await _raise_limits(connection, info, address.max_bytes, address.replicas)
    await _raise_limits(connection, snapshots, address.snapshot_bytes, address.replicas)
    return info


async def _find_or_make(connection: Connection, config: dict[str, Any], until: float) -> StreamInfo:
    """Find or make a stream once JetStream has a leader; log every few seconds what is missing."""
    name, address = config["name"], connection.address
    logged = time.monotonic()
    while True:
        try:
            info = await find_stream(connection, name) or await make_stream(connection, config)
            return info or await stream_info(connection, name)
        except LogUnavailable as error:
            now = time.monotonic()
            if now >= until:
                raise LogUnavailable(_advice(error, address)) from error
            if now - logged >= WORDS_SECONDS:
                logged = now
                log.warning("waiting for JetStream at %s: %s", address.public, error)
        await asyncio.sleep(0.1)


def _advice(error: LogUnavailable, address: Address) -> str:
    number = error.number if isinstance(error, JetStreamRefused) else 0
    if number in NO_ROOM:
        hint = "give the server more room (max_file_store), or the URL a smaller max_bytes and snapshot_bytes"
    elif address.replicas not in (None, 1):
        hint = f"replicas={address.replicas} needs as many servers with JetStream in one cluster; see that they run"
    else:
        hint = "start the server with JetStream (-js), see that most servers of its cluster run, and that these"
        hint += " credentials may use $JS.API.>"
    return f"JetStream at {address.public} cannot be used: {error}; {hint}"


async def stream_info(connection: Connection, name: str) -> StreamInfo:
    return decode(StreamInfo, await connection.ask(api(f"STREAM.INFO.{name}"), b""))


async def find_stream(connection: Connection, name: str) -> StreamInfo | None:
    """Return the info of a stream, or None where there is none."""
    try:
        return await stream_info(connection, name)
    except JetStreamRefused as error:
        if error.number == NO_STREAM:
            return None
        raise


async def make_stream(connection: Connection, config: dict[str, Any]) -> StreamInfo | None:
    """Make a stream; return None where another process was faster."""
    try:
        info = await send_config(connection, "STREAM.CREATE", config)
    except JetStreamRefused as error:
        if error.number == NAME_IN_USE:
            return None
        raise
    log.info("made the stream %s at %s", config["name"], connection.address.public)
    return info


async def send_config(connection: Connection, verb: str, config: dict[str, Any]) -> StreamInfo:
    """Create or update a stream."""
    return decode(StreamInfo, await connection.ask(api(f"{verb}.{config['name']}"), encode(config), seconds=5.0))


def _snapshot_config(address: Address, names: Names, info: StreamInfo) -> dict[str, Any]:
    limit = address.snapshot_bytes or max(SNAPSHOT_BYTES, 2 * (address.max_bytes or 0))
    if address.max_bytes is not None and address.snapshot_bytes is None:
        limit = 2 * address.max_bytes
    replicas, generation = int(info.config.get("num_replicas", 1)), generation_of(info)
    return _config(names.snapshots, f"{names.pieces}.>", replicas, limit, 1, generation)


def _config(name: str, subject: str, replicas: int, limit: int, per_subject: int, generation: str) -> dict[str, Any]:
    return configure_stream(
        name,
        subject,
        replicas,
        description="redrive: made and read by redrive alone",
        max_bytes=limit,
        max_msgs_per_subject=per_subject,
        duplicate_window=DUPLICATES_SECONDS * SECOND,
        metadata={GENERATION: generation, FORMAT: "1"},
    )


def configure_stream(name: str, subject: str, replicas: int, **own: Any) -> dict[str, Any]:
    """Make the configuration of a stream in files that discards nothing by itself, unless `own` says so."""
    return {
        "name": name,
        "subjects": [subject],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": replicas,
        "max_msgs": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
    } | own


# -- checking


def generation_of(info: StreamInfo) -> str:
    return str((info.config.get("metadata") or {}).get(GENERATION, ""))


def _check(info: StreamInfo, name: str, subjects: list[str], address: Address) -> None:
    """Refuse a stream that would lose, change or mix in messages."""
    config = info.config
    metadata = config.get("metadata") or {}
    problems = {
        "it mirrors another stream": bool(config.get("mirror")),
        "it takes messages from other streams (sources)": bool(config.get("sources")),
        "redrive has not made it": GENERATION not in metadata,
        "a newer redrive has made it; upgrade redrive here": metadata.get(FORMAT, "1") != "1",
        f"its subjects are {config.get('subjects')}": config.get("subjects") != subjects,
        "it changes subjects (subject_transform)": bool(config.get("subject_transform")),
        "it is kept in memory": config.get("storage") != "file",
        "it removes messages that were read (retention)": config.get("retention", "limits") != "limits",
        "it discards old messages when it is full": config.get("discard") != "new",
        "it removes messages by age": bool(config.get("max_age")),
        "it is limited by a number of messages": config.get("max_msgs", -1) > 0,
        "it acknowledges before it writes (persist_mode)": config.get("persist_mode") == "async",
        "it is sealed": bool(config.get("sealed")),
    }
    refuse_stream(name, address, problems)


def refuse_stream(name: str, address: Address, problems: Mapping[str, bool]) -> None:
    """Raise StoreRefused with the first problem that a stream has."""
    for problem, is_so in problems.items():
        if is_so:
            raise StoreRefused(
                f"the stream {name} at {address.public} cannot be used: {problem}."
                " Take another namespace in the URL, or move that stream away"
            )


# -- changing


async def _raise_limits(
    connection: Connection, info: StreamInfo, limit: int | None, replicas: int | None
) -> StreamInfo:
    """Give a stream the larger limit or more replicas that the URL asks for. Only an operator lowers them."""
    config = dict(info.config)
    before = config.get("max_bytes", -1), config.get("num_replicas", 1)
    if limit is not None and config.get("max_bytes", -1) > 0:
        config["max_bytes"] = max(limit, before[0])
    config["num_replicas"] = max(replicas or 1, before[1])
    after = config.get("max_bytes", -1), config["num_replicas"]
    if after == before:
        return info
    try:
        changed = await send_config(connection, "STREAM.UPDATE", config)
    except JetStreamRefused as error:
        raise LogUnavailable(_advice(error, connection.address)) from error
    log.warning("changed %s from %s bytes, %d replicas to %s bytes, %d replicas", config["name"], *before, *after)
    return changed
