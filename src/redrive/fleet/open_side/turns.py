"""Gives each duty of the open side to one hub at a time, once its streams are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.engine.duty_lease import take_duty
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.nats_connection import Connection
from redrive.stores.replica.nats_streams import find_stream

if TYPE_CHECKING:
    from redrive.jobs.core import Core

LOOK_SECONDS: Final = 3.0
"""Seconds between two looks whether the duty is still this hub's. A lease lasts ten times as long."""


class DutyTurn:
    """Knows whether this process has one duty of the open side."""

    def __init__(self, core: Core, connection: Connection, names: OpenNames, duty: str) -> None:
        self._core = core
        self._connection = connection
        self._names = names
        self._duty = duty
        self._looked_at = -LOOK_SECONDS
        self._mine = False
        self._made = False

    async def is_mine(self) -> bool:
        """Whether this process has the duty now."""
        now = self._core.clock.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._mine = await self._are_made() and await take_duty(self._core.store, self._core.clock, self._duty)
            self._looked_at = now
        return self._mine

    async def _are_made(self) -> bool:
        if not self._made:
            self._made = await find_stream(self._connection, self._names.tasks) is not None
        return self._made

    def look_again(self) -> None:
        """Look again before the next step."""
        self._looked_at, self._made = -LOOK_SECONDS, False
