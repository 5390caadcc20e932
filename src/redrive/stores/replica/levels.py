"""Levels of the Machine: every replica announces its own, and a higher one is activated once all that live have it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

import apsw

from redrive.core.commands import Hello
from redrive.errors import StoreError
from redrive.stores.replica.envelope import Level
from redrive.stores.sqlite.records import select

if TYPE_CHECKING:
    from redrive.stores.replica.engine import Engine

log = logging.getLogger("redrive.store")
ANNOUNCE_SECONDS: Final = 60.0
"""How often a replica says that it lives, and with which level."""
LIVE_SECONDS: Final = 300.0
"""A replica that has said nothing for so long is waited for no more. It stops where it meets the higher level.
A part of the replay: another number would make replicas differ."""


def behind(connection: apsw.Connection, number: int, at: float | None) -> int:
    """How many live replicas have announced a lower level, by the log's time: the same answer in every replica."""
    rows = select(connection, "SELECT seen_at, level FROM clients WHERE level IS NOT NULL")
    now = at if at is not None else max((seen for seen, _ in rows), default=0.0)
    return sum(level < number and now - seen <= LIVE_SECONDS for seen, level in rows)


async def keep(engine: Engine) -> None:
    """Announce this replica from time to time, and activate its level once no live replica has a lower one."""
    while True:
        await asyncio.sleep(ANNOUNCE_SECONDS)
        if engine.failed is not None:
            return
        try:
            await announce(engine)
        except StoreError as error:
            log.warning("%s could not be told that this replica lives: %s; trying again", engine.log.url, error)


async def announce(engine: Engine) -> None:
    """Say that this replica lives. Whether its level may be activated is decided by the replay, not by this look."""
    mine = engine.replay.level
    await engine.run_here(Hello(engine.client, time.time(), mine))
    if mine > engine.replay.here.level and not behind(engine.connection, mine, None):
        await engine.run_here(Level(mine))
        log.warning("%s: the fleet replays with level %d from now on", engine.log.url, engine.replay.here.level)
