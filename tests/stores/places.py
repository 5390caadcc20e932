"""Where the stores under test keep their jobs. Another store joins the contract with one line in PLACES."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Protocol

from redrive.core.store import Claim, Store, Wanted
from redrive.stores.replica import ReplicaStore
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.sqlite import SqliteStore
from tests.nats import shared_server
from tests.postgres_server import Server
from tests.stores.hubs import RemoteOnItsOwnHub, Serve, over_http, over_nats
from tests.stores.memory_log import MemoryLog, MemoryMessages

Monotonic = Callable[[], float]


class Place(Protocol):
    """One store's data. Every call of `store` is another opener of the same data, as another process would be."""

    def __init__(self, folder: Path) -> None: ...

    def store(self, monotonic: Monotonic = time.monotonic) -> Store:
        """A store that is not open yet."""

    def store_at(self, target: str) -> Store:
        """A store on what `backup(target)` wrote."""


class SqlitePlace:
    """A SQLite file in the folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"

    def store(self, monotonic: Monotonic = time.monotonic) -> Store:
        return SqliteStore(self.path, monotonic=monotonic)

    def store_at(self, target: str) -> Store:
        return SqliteStore(target)


class MemoryPlace:
    """A log in this process's memory, and a replica for each opener."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = MemoryMessages()
        self._numbers = count()

    def store(self, monotonic: Monotonic = time.monotonic) -> Store:
        path = self.folder / f"replica-{next(self._numbers)}.db"
        return ReplicaStore(path, lambda: MemoryLog(self.kept), live=self.folder / "live", monotonic=monotonic)

    def store_at(self, target: str) -> Store:
        return SqliteStore(target)


class CurrentReplica(ReplicaStore):
    """Claims only once it has replayed what other openers did before: a worker would be woken and claim again."""

    async def claim(self, wanted: Wanted, worker: str, now: float) -> Claim:
        engine = await self._ready()
        await engine.call(engine.wait_until_current)
        return await super().claim(wanted, worker, now)


class JetStreamPlace:
    """A namespace of a NATS server, and a replica for each opener. Another process finds its URL in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count()
        note = folder / "jetstream.url"
        if not note.exists():
            limits = "max_bytes=256MB"
            note.write_text(f"{shared_server().url}/t{secrets.token_hex(6)}?{limits}")
        self.url = note.read_text()

    def store(self, monotonic: Monotonic = time.monotonic) -> Store:
        path = self.folder / f"replica-{os.getpid()}-{next(self._numbers)}.db"
        return CurrentReplica(path, lambda: JetStreamLog(self.url), live=self.folder / "live", monotonic=monotonic)

    def store_at(self, target: str) -> Store:
        return SqliteStore(target)


class PostgresPlace:
    """A namespace of the PostgreSQL server that the tests started, and a replica for each opener.

    Other processes learn the URL from a file in the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count()
        note = folder / "postgres.url"
        if not note.exists():
            note.write_text(Server.running().url(namespace=f"test-{secrets.token_hex(6)}"))
        self.url = note.read_text()

    def store(self, monotonic: Monotonic = time.monotonic) -> Store:
        from redrive.stores.replica.postgres import PostgresLog

        path = self.folder / f"replica-{os.getpid()}-{next(self._numbers)}.db"
        return ReplicaStore(path, lambda: PostgresLog(self.url), live=self.folder / "live", monotonic=monotonic)

    def store_at(self, target: str) -> Store:
        return SqliteStore(target)


class HttpPlace:
    """A SQLite file behind a hub over HTTP: every opener is a store without a file, with a hub of its own."""

    serve: Serve = staticmethod(over_http)

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"

    def store(self, monotonic: Monotonic = time.monotonic) -> Store:
        return RemoteOnItsOwnHub(SqliteStore(self.path, monotonic=monotonic), self.serve)

    def store_at(self, target: str) -> Store:
        return SqliteStore(target)


class NatsPlace(HttpPlace):
    """The same over NATS. The server is started here: it ends with the thread that started it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shared_server()

    serve = staticmethod(over_nats)


PLACES: dict[str, type[Place]] = {
    "jetstream": JetStreamPlace,
    "memory": MemoryPlace,
    "remote-http": HttpPlace,
    "remote-nats": NatsPlace,
    "postgres": PostgresPlace,
    "sqlite": SqlitePlace,
}

REMOTE = frozenset({"remote-http", "remote-nats"})
"""Places whose stores have no file themselves."""
