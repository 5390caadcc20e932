"""The open streams: made where they are missing, and brought up to date. What an operator has raised stays."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from redrive.errors import StoreRefused
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.nats_api import (
    NAME_IN_USE,
    NO_STREAM,
    JetStreamRefused,
    StreamInfo,
    StreamNames,
    api,
    decode,
    encode,
)
from redrive.stores.replica.nats_connection import Connection
from redrive.stores.replica.nats_streams import stream_info

SECOND: Final = 1_000_000_000
LETTERS: Final = 10_000
RETRIES: Final = 1_000
RETRIES_SECONDS: Final = 86_400
DUPLICATES_SECONDS: Final = 300
INTAKE: Final = "intake"
"""The one consumer of the tasks. It is kept, because it knows what was handed out and not acknowledged."""
ACK_SECONDS: Final = 30.0
"""After so long a task that was not acknowledged is handed out again."""
MARK: Final = "redrive-open"
_NO_CONSUMER: Final = 10014
_OWN: Final = ("subjects", "retention", "discard", "max_age", "max_msgs_per_subject", "duplicate_window", "metadata")
"""What is ours to say. Bytes and a larger number of messages or of replicas are the operator's."""


class Ensured(msgspec.Struct, frozen=True):
    """What became of one stream."""

    name: str
    did: Literal["made", "updated", "unchanged"]
    limit: int | None = None
    replicas: int = 1


# -- how they are


def tasks_config(names: OpenNames, replicas: int) -> dict[str, Any]:
    return _config(names.tasks, names.task_subjects, replicas, "tasks", retention="workqueue")


def letters_config(names: OpenNames, agent: str | None, replicas: int, limit: int) -> dict[str, Any]:
    """One message per dead letter. At its limit it refuses what is new: nothing is discarded silently."""
    name, subjects = names.letters_of(agent), names.letter_subjects(agent)
    return _config(name, subjects, replicas, "dlq", max_msgs=limit, max_msgs_per_subject=1)


def retries_config(names: OpenNames, replicas: int) -> dict[str, Any]:
    """The latest of a day, for whoever watches; the store keeps the truth."""
    return _config(
        names.retries,
        names.retry_subjects,
        replicas,
        "retry",
        max_msgs=RETRIES,
        max_age=RETRIES_SECONDS * SECOND,
        discard="old",
    )


def _config(name: str, subjects: str, replicas: int, mark: str, **own: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": "redrive: open to other programs",
        "subjects": [subjects],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": replicas,
        "max_msgs": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "duplicate_window": DUPLICATES_SECONDS * SECOND,
        "metadata": {MARK: mark},
    } | own


# -- making and changing them


async def find(connection: Connection, name: str) -> StreamInfo | None:
    try:
        return await stream_info(connection, name)
    except JetStreamRefused as error:
        if error.number == NO_STREAM:
            return None
        raise


async def ensure(connection: Connection, config: dict[str, Any], *, limit: int | None = None) -> Ensured:
    """Make a stream, or bring it up to date. `limit` is a number of messages that was asked for now."""
    if limit is not None:
        config = config | {"max_msgs": limit}
    info = await find(connection, config["name"])
    if info is None:
        return await _make(connection, config)
    _check(info, config, connection)
    wanted = _wanted(info.config, config, asked=limit is not None)
    did: Literal["updated", "unchanged"] = "unchanged"
    if any(info.config.get(name) != value for name, value in wanted.items()):
        await _ask(connection, "STREAM.UPDATE", dict(info.config) | wanted)
        did = "updated"
    return _ensured(did, dict(info.config) | wanted)


async def _make(connection: Connection, config: dict[str, Any]) -> Ensured:
    try:
        await _ask(connection, "STREAM.CREATE", config)
    except JetStreamRefused as error:
        if error.number != NAME_IN_USE:
            raise
        return _ensured("unchanged", config)
    return _ensured("made", config)


async def _ask(connection: Connection, verb: str, config: dict[str, Any]) -> None:
    answer = await connection.ask(api(f"{verb}.{config['name']}"), encode(config), seconds=5.0)
    decode(StreamInfo, answer)


def _wanted(now: dict[str, Any], config: dict[str, Any], *, asked: bool) -> dict[str, Any]:
    wanted = {name: config[name] for name in _OWN if name != "metadata"}
    wanted["metadata"] = (now.get("metadata") or {}) | config["metadata"]
    wanted["num_replicas"] = max(now.get("num_replicas", 1), config["num_replicas"])
    wanted["max_msgs"] = config["max_msgs"] if asked else now.get("max_msgs", config["max_msgs"])
    return wanted


def _ensured(did: Literal["made", "updated", "unchanged"], config: dict[str, Any]) -> Ensured:
    limit = config.get("max_msgs", -1)
    return Ensured(config["name"], did, limit if limit > 0 else None, config.get("num_replicas", 1))


def _check(info: StreamInfo, config: dict[str, Any], connection: Connection) -> None:
    """Refuse a stream of somebody else: bringing it up to date would take its messages away from them."""
    now = info.config
    problems = {
        "redrive has not made it": MARK not in (now.get("metadata") or {}),
        "it mirrors another stream": bool(now.get("mirror")),
        "it takes messages from other streams (sources)": bool(now.get("sources")),
        "its kind of retention differs": now.get("retention", "limits") != config["retention"],
    }
    for problem, found in problems.items():
        if found:
            raise StoreRefused(
                f"the stream {config['name']} at {connection.address.public} cannot be used: {problem}."
                " Take another namespace in the URL, or move that stream away"
            )


async def ensure_intake(connection: Connection, names: OpenNames) -> bool:
    """Make the consumer of the tasks, or bring it up to date. Whether anything had to be done."""
    config = intake_config()
    try:
        info = decode(StreamInfo, await connection.ask(api(f"CONSUMER.INFO.{names.tasks}.{INTAKE}"), b""))
        if all(info.config.get(name) == value for name, value in config.items()) and not info.config.get("backoff"):
            return False
    except JetStreamRefused as error:
        if error.number != _NO_CONSUMER:
            raise
    request = encode({"stream_name": names.tasks, "config": config})
    answer = await connection.ask(api(f"CONSUMER.CREATE.{names.tasks}.{INTAKE}"), request, seconds=5.0)
    decode(StreamInfo, answer)
    return True


def intake_config() -> dict[str, Any]:
    """Delivered until acknowledged, after one wait: the one place that says how often and how long."""
    return {
        "durable_name": INTAKE,
        "name": INTAKE,
        "ack_policy": "explicit",
        "ack_wait": int(ACK_SECONDS * SECOND),
        "max_deliver": -1,
        "max_ack_pending": 1_000,
        "deliver_policy": "all",
        "replay_policy": "instant",
    }


async def streams_of_letters(connection: Connection, names: OpenNames) -> list[str]:
    """The streams of dead letters that there are, one for each agent that had one."""
    found: list[str] = []
    offset = 0
    while True:
        request = encode({"subject": f"{names.namespace}.dlq.>", "offset": offset})
        page = decode(StreamNames, await connection.ask(api("STREAM.NAMES"), request))
        found += [name for name in page.streams or () if name.startswith(names.letters)]
        offset += len(page.streams or ())
        if not page.streams or offset >= page.total:
            return sorted(found)
