"""What can be seen of a fleet: the log, one replica of it, and what each replica says of itself."""

from __future__ import annotations

import msgspec

from redrive.stores.replica.log import Fill, LogInfo, Manifest
from redrive.stores.replica.replay import Standing


class Presence(msgspec.Struct, frozen=True):
    """What a hub says of itself."""

    host: str
    pid: int
    position: int
    generation: str
    level: int
    clock: float
    halted: str | None = None
    trouble: str | None = None


class Look(msgspec.Struct, frozen=True):
    """One replica and its log."""

    info: LogInfo
    standing: Standing
    end: int
    fill: Fill
    manifest: Manifest | None
    replicas: tuple[float, ...] = ()
    """When the fleet last heard of each replica; those of the last day are remembered."""
    clients: tuple[float, ...] = ()
    """The same for processes that have no replica."""
