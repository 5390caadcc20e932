"""Makes the store behind a URL: a file, hubs, or a replica of a log."""

from __future__ import annotations

import hashlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from redrive.config import Settings, default_path
from redrive.engine.clock import Clock, SystemClock
from redrive.errors import ConfigError

if TYPE_CHECKING:
    from redrive.core.store import Store
    from redrive.stores.replica.log import Log

HUBS: Final = ("http", "https")
NATS: Final = ("nats", "tls")
POSTGRES: Final = ("postgresql", "postgres")
FILES: Final = ("", "sqlite")


def read_scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else ""


def is_file(url: str) -> bool:
    return read_scheme(url) in FILES


def make_store(settings: Settings, clock: Clock) -> Store:
    """Make the store behind the URL of these settings."""
    url = settings.url
    scheme = read_scheme(url)
    if scheme in FILES:
        return _make_file_store(url, clock)
    if scheme in HUBS:
        return _make_http_store(url)
    if scheme in NATS:
        return _make_replica(settings, clock) if settings.replica else _make_nats_store(url)
    if scheme in POSTGRES:
        return _make_replica(settings, clock)
    raise ConfigError(
        f"{hide_credentials(url)!r}: redrive knows files (jobs.db), hubs (https://host:8420), nats://host/namespace and"
        " postgresql://host/database"
    )


def make_log(url: str) -> Log:
    """Make the log behind the URL of a fleet."""
    if read_scheme(url) in NATS:
        from redrive.stores.replica.jetstream import JetStreamLog

        return JetStreamLog(url)
    if read_scheme(url) in POSTGRES:
        from redrive.stores.replica.postgres import PostgresLog

        return PostgresLog(url)
    raise ConfigError(f"{hide_credentials(url)!r} has no log: name nats://host/namespace or postgresql://host/database")


def _make_file_store(url: str, clock: Clock) -> Store:
    from redrive.stores.sqlite import SqliteStore

    path = Path(sqlite_path(url)).expanduser()
    if path == default_path(os.environ):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return SqliteStore(path, monotonic=clock.monotonic)


def _make_http_store(url: str) -> Store:
    from redrive.stores.remote import RemoteStore
    from redrive.stores.remote.http import VARIABLE, HttpTransport, read_servers

    known = read_servers(url, os.environ.get(VARIABLE))
    return RemoteStore(lambda: HttpTransport(known), url=hide_credentials(url))


def _make_nats_store(url: str) -> Store:
    from redrive.stores.remote import RemoteStore
    from redrive.stores.remote.nats import NatsTransport

    return RemoteStore(lambda: NatsTransport(url), url=hide_credentials(url))


def _make_replica(settings: Settings, clock: Clock) -> Store:
    from redrive.stores.replica import ReplicaStore
    from redrive.stores.replica.folder import ReplicaFolder

    folder = ReplicaFolder(find_replica_folder(settings), settings.replica_days)
    return ReplicaStore(
        folder,
        lambda: make_log(settings.url),
        live=folder.live,
        monotonic=clock.monotonic,
        clamps=isinstance(clock, SystemClock),
        days=settings.replica_days,
    )


def find_replica_folder(settings: Settings) -> Path:
    """Find the folder of this machine's replicas: one per fleet, whatever credentials its URL holds."""
    if settings.replica_folder:
        return Path(settings.replica_folder).expanduser().absolute()
    name = hashlib.sha256(hide_credentials(settings.url).encode()).hexdigest()[:12]
    return default_path(os.environ).parent / "replicas" / name


def find_local_files(settings: Settings) -> Path:
    """Find the path beside which this machine keeps the token and the spool of the store."""
    if is_file(settings.url):
        return Path(sqlite_path(settings.url)).expanduser().absolute()
    return find_replica_folder(settings) / "fleet"


def find_spool_folder(settings: Settings) -> Path:
    """Find the folder in which jobs wait while the store cannot take them. Each store in memory has another."""
    if settings.spool:
        return Path(settings.spool).expanduser().absolute()
    if sqlite_path(settings.url) == ":memory:":
        import tempfile

        return Path(tempfile.gettempdir()) / f"redrive-spool-{os.getpid()}-{next(_in_memory)}"
    beside = find_local_files(settings)
    return beside.with_name(beside.name + "-spool")


_in_memory = itertools.count(1)
"""Numbers the stores in memory of this process."""


def hide_credentials(url: str) -> str:
    """Remove user, password and parameters with secrets from a URL, to show it to people."""
    if "://" not in url:
        return url
    if read_scheme(url) in POSTGRES:
        return _hide_in_one(url)  # its hosts, and passwords, may hold commas
    return ",".join(_hide_in_one(server) for server in url.split(",") if server)


_SECRET: Final = ("password", "token", "pass", "sslpassword")


def _hide_in_one(url: str) -> str:
    if "://" not in url:
        return url.rpartition("@")[2]
    parts = urlsplit(url)
    query = "&".join(f"{name}={value}" for name, value in parse_qsl(parts.query) if name.lower() not in _SECRET)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def sqlite_path(url: str) -> str:
    for prefix in ("sqlite:///", "sqlite://", "sqlite:"):
        if url.startswith(prefix):
            rest = url[len(prefix) :]
            return ("/" if prefix == "sqlite:///" and not rest.startswith("/") else "") + rest
    return url
