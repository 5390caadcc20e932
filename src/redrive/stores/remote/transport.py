"""How requests reach a hub: bytes there, bytes back."""

from __future__ import annotations

from typing import Protocol


class HubUnavailable(Exception):
    """No hub answered. `sent` tells whether one may have got the request."""

    def __init__(self, problem: str, *, sent: bool) -> None:
        super().__init__(problem)
        self.sent = sent


class Transport(Protocol):
    """One way to the hubs. Used in one event loop only."""

    url: str
    """For people: without credentials."""

    async def ask(self, request: bytes, seconds: float) -> bytes:
        """The answer of a hub, any of them; raises HubUnavailable where none answers in this time."""

    async def tell(self, request: bytes) -> None:
        """Send a request to every hub that may keep one of ours; its answer does not matter."""

    async def close(self) -> None:
        """Leave nothing behind."""
