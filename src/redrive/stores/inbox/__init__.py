"""Reads committed rows out of the table rd_inbox of a caller's database, for the relay that moves them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from redrive.core.inbox_table import NAMESPACE, InboxRow
from redrive.errors import ConfigError
from redrive.stores.replica.postgres_url import check_namespace, is_postgres, show

_DRIVER = re.compile(r"^(postgresql|postgres|sqlite)\+\w+://")


class InboxBatch(Protocol):
    """Committed rows that this process alone moves now."""

    rows: Sequence[InboxRow]

    async def settle(self, moved: Sequence[str], problems: Mapping[str, str]) -> None:
        """Delete the rows that were moved; keep and mark those that cannot be."""


class InboxTable(Protocol):
    """The table rd_inbox of one database."""

    url: str
    """For people: without credentials."""

    def take(self, limit: int) -> AbstractAsyncContextManager[InboxBatch]:
        """Take the oldest rows; none while another process moves them. Raises StoreUnavailable."""

    async def marked(self) -> int:
        """Count the rows that could not be moved and wait for a person."""

    async def close(self) -> None:
        """Leave the database."""


def open_inbox(url: str) -> InboxTable:
    """Open the inbox behind postgresql://… or sqlite:///…, also with a driver's name as SQLAlchemy writes it."""
    url = _DRIVER.sub(r"\1://", url)
    if is_postgres(url):
        from redrive.stores.inbox.postgres import PostgresInbox

        return PostgresInbox(url)
    if url.startswith("sqlite:///"):
        from redrive.stores.inbox.sqlite import SqliteInbox

        return SqliteInbox(url, namespace_of(url))
    raise ConfigError(f"inbox: {show(url)!r} is neither postgresql://… nor sqlite:///…")


def namespace_of(url: str | None) -> str:
    """Return the namespace that the URL of an inbox names."""
    named = dict(parse_qsl(urlsplit(url).query)) if url else {}
    return check_namespace(named.get("namespace", NAMESPACE))
