"""Reads the URL of a log on PostgreSQL, and writes it without credentials for people."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from redrive.errors import ConfigError

SCHEMES: Final = ("postgresql", "postgres")
DEFAULT_NAMESPACE: Final = "default"
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,48}")
_WANTED: Final = {
    "application_name": "redrive",
    "connect_timeout": "5",
    "keepalives_count": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "target_session_attrs": "read-write",
    "tcp_user_timeout": "10000",
}
"""Parameters that notice a hanging connection within seconds, and choose the primary of several hosts."""


class PostgresUrl(msgspec.Struct, frozen=True):
    """The address of a log on PostgreSQL."""

    conninfo: str
    """For psycopg alone, with the password."""
    namespace: str
    shown: str
    """For people: without credentials."""

    def __repr__(self) -> str:
        return f"PostgresUrl({self.shown})"


def is_postgres(url: str) -> bool:
    return url.partition("://")[0] in SCHEMES


def read_url(url: str) -> PostgresUrl:
    """Read postgresql://user:password@host:5432/database?namespace=name. Other parameters go to libpq as they are."""
    parts = urlsplit(url)
    try:
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ConfigError(f"{show(url)}: what follows the ? must be name=value pairs with & between") from None
    namespace = check_namespace(options.pop("namespace", DEFAULT_NAMESPACE))
    query = urlencode(_WANTED | options, quote_via=quote)
    conninfo = f"postgresql://{parts.netloc}{parts.path}?{query}"
    return PostgresUrl(conninfo, namespace, show(url))


def check_namespace(name: str) -> str:
    if not _NAMESPACE.fullmatch(name):
        raise ConfigError(
            f"namespace {name!r} cannot be used: give up to 48 letters, digits, dots, hyphens or underscores"
        )
    return name


def show(url: str) -> str:
    """Write a URL without its user, its password and all parameters but the namespace."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    named = [value for key, value in parse_qsl(parts.query) if key == "namespace"]
    suffix = f"?namespace={quote(named[0])}" if named else ""
    return f"postgresql://{unquote(hosts)}{parts.path}{suffix}"
