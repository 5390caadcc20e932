"""What the relay needs of an inbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from redrive.core.inbox_table import Row


class Batch(Protocol):
    """Some committed rows, which no other process moves now."""

    rows: Sequence[Row]

    async def settle(self, moved: Sequence[str], problems: Mapping[str, str]) -> None:
        """Delete the rows that were moved; keep and mark those that cannot be."""


class Inbox(Protocol):
    """One table rd_inbox."""

    url: str
    """For people: without credentials."""

    def take(self, limit: int) -> AbstractAsyncContextManager[Batch]:
        """The oldest rows; none while another process moves them. Raises StoreUnavailable."""

    async def marked(self) -> int:
        """How many rows could not be moved and wait for a person."""

    async def close(self) -> None:
        """Leave the database."""
