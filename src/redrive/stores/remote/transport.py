"""Declares how requests reach a hub: bytes in both directions."""

from __future__ import annotations

from typing import Protocol


class HubUnavailable(Exception):
    """No hub answered. `sent` says whether a hub may have got the request."""

    def __init__(self, problem: str, *, sent: bool) -> None:
        super().__init__(problem)
        self.sent = sent


class Transport(Protocol):
    """Carries requests to the hubs, in one event loop only."""

    url: str
    """For people: without credentials."""

    async def ask(self, request: bytes, seconds: float) -> bytes:
        """Return the answer of any hub; raise HubUnavailable where none answers in this time."""

    async def tell(self, request: bytes) -> None:
        """Send a request, without waiting for an answer, to every hub that may keep one of this client."""

    async def close(self) -> None:
        """Close every connection."""
