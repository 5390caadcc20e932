"""A way to a hub in the same process, with the faults of a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from redrive.stores.remote.service import Hub
from redrive.stores.remote.transport import HubUnavailable


class Faults(msgspec.Struct):
    """What goes wrong from now on."""

    down: bool = False
    lose_answers: int = 0
    """So many requests are performed, and their answer is lost."""


class DirectTransport:
    """Hands the bytes to a hub, in the event loop of that hub's store or in any other."""

    def __init__(self, hub: Callable[[], Hub], faults: Faults | None = None) -> None:
        self.url = "direct:"
        self._hub = hub()
        self.faults = faults or Faults()

    async def ask(self, request: bytes, seconds: float) -> bytes:
        if self.faults.down:
            raise HubUnavailable("the hub is down", sent=False)
        try:
            async with asyncio.timeout(seconds):
                answer = await self._hub.answer(request)
        except TimeoutError:
            raise HubUnavailable("the hub did not answer", sent=True) from None
        if self.faults.lose_answers:
            self.faults.lose_answers -= 1
            raise HubUnavailable("the answer was lost", sent=True)
        return answer

    async def tell(self, request: bytes) -> None:
        await self._hub.answer(request)

    async def close(self) -> None:
        """Nothing is open."""
