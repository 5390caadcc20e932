"""Makes the open streams where they are missing, and brings them up to date. What an operator has raised stays."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.nats_api import JetStreamRefused, StreamInfo, StreamNames, api, decode, encode
from redrive.stores.replica.nats_connection import Connection
from redrive.stores.replica.nats_streams import (
    SECOND,
    configure_stream,
    find_stream,
    make_stream,
    refuse_stream,
    send_config,
)

DEAD_LETTERS: Final = 10_000
RETRIES: Final = 1_000
RETRIES_SECONDS: Final = 86_400
DUPLICATES_SECONDS: Final = 300
INTAKE: Final = "intake"
"""The one consumer of the tasks. The server keeps it, because it knows which tasks are not acknowledged."""
ACK_SECONDS: Final = 30.0
"""A task that is not acknowledged for so long is delivered again."""
MARK: Final = "redrive-open"
_NO_CONSUMER: Final = 10014
_OWN: Final = ("subjects", "retention", "discard", "max_age", "max_msgs_per_subject", "duplicate_window", "metadata")
"""What redrive decides. Bytes and a larger number of messages or of replicas are the operator's."""


class Ensured(msgspec.Struct, frozen=True):
    """Says what became of one stream."""

    name: str
    did: Literal["made", "updated", "unchanged"]
    limit: int | None = None
    replicas: int = 1


# -- configurations


def configure_tasks(names: OpenNames, replicas: int) -> dict[str, Any]:
    return _config(names.tasks, names.task_subjects, replicas, "tasks", retention="workqueue")


def configure_dead_letters(names: OpenNames, agent: str | None, replicas: int, limit: int) -> dict[str, Any]:
    """Keep one message per dead letter. A full stream refuses new ones: nothing is discarded silently."""
    name, subjects = names.dead_letter_stream(agent), names.dead_letter_subjects(agent)
    return _config(name, subjects, replicas, "dlq", max_msgs=limit, max_msgs_per_subject=1)


def configure_retries(names: OpenNames, replicas: int) -> dict[str, Any]:
    """Keep the latest retries of a day for programs that watch; the store has all of them."""
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
    shared = {
        "description": "redrive: open to other programs",
        "duplicate_window": DUPLICATES_SECONDS * SECOND,
        "metadata": {MARK: mark},
    }
    return configure_stream(name, subjects, replicas, **shared, **own)


# -- making and changing


async def ensure(connection: Connection, config: dict[str, Any], *, limit: int | None = None) -> Ensured:
    """Make a stream, or bring it up to date. `limit` is a number of messages that the caller asks for."""
    if limit is not None:
        config = config | {"max_msgs": limit}
    info = await find_stream(connection, config["name"])
    if info is None:
        did: Literal["made", "updated", "unchanged"] = "made" if await make_stream(connection, config) else "unchanged"
        return _ensured(did, config)
    _check(info, config, connection)
    wanted = _wanted(info.config, config, asked=limit is not None)
    if all(info.config.get(name) == value for name, value in wanted.items()):
        return _ensured("unchanged", info.config | wanted)
    await send_config(connection, "STREAM.UPDATE", info.config | wanted)
    return _ensured("updated", info.config | wanted)


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
    """Refuse a stream of another program: bringing it up to date would take messages from that program."""
    now = info.config
    problems = {
        "redrive has not made it": MARK not in (now.get("metadata") or {}),
        "it mirrors another stream": bool(now.get("mirror")),
        "it takes messages from other streams (sources)": bool(now.get("sources")),
        "its kind of retention differs": now.get("retention", "limits") != config["retention"],
    }
    refuse_stream(config["name"], connection.address, problems)


async def ensure_intake(connection: Connection, names: OpenNames) -> bool:
    """Make the consumer of the tasks, or bring it up to date. Return whether anything had to be done."""
    config = configure_intake()
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


def configure_intake() -> dict[str, Any]:
    """Configure the one consumer of the tasks: a task is delivered until it is acknowledged, after one fixed wait."""
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


async def list_dead_letter_streams(connection: Connection, names: OpenNames) -> list[str]:
    """List the streams of dead letters, one for each agent that had a dead letter."""
    listed: list[str] = []
    offset = 0
    while True:
        request = encode({"subject": f"{names.namespace}.dlq.>", "offset": offset})
        page = decode(StreamNames, await connection.ask(api("STREAM.NAMES"), request))
        listed += [name for name in page.streams or () if name.startswith(names.dead_letter_prefix)]
        offset += len(page.streams or ())
        if not page.streams or offset >= page.total:
            return sorted(listed)
