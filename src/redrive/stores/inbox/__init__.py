"""Reads committed rows out of the table rd_inbox of a caller's database, for the relay that moves them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from redrive.core.inbox_table import NAMESPACE
from redrive.errors import ConfigError
from redrive.stores.replica.postgres_url import check_namespace, is_postgres, show

if TYPE_CHECKING:
    from redrive.stores.inbox.batch import Inbox

_DRIVER = re.compile(r"^(postgresql|postgres|sqlite)\+\w+://")


def open_inbox(url: str) -> Inbox:
    """The inbox behind a URL: postgresql://… or sqlite:///…, also with a driver's name as SQLAlchemy writes it."""
    url = _DRIVER.sub(r"\1://", url)
    if is_postgres(url):
        from redrive.stores.inbox.postgres import PostgresInbox

        return PostgresInbox(url)
    if url.startswith("sqlite:///"):
        from redrive.stores.inbox.sqlite import SqliteInbox

        return SqliteInbox(url)
    raise ConfigError(f"inbox: {show(url)!r} is neither postgresql://… nor sqlite:///…")


def namespace_of(url: str | None) -> str:
    """The namespace that the URL of an inbox names."""
    named = dict(parse_qsl(urlsplit(url).query)) if url else {}
    return check_namespace(named.get("namespace", NAMESPACE))
