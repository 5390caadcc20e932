"""Where the stores under test keep their jobs. Another store joins the contract with one line in PLACES."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from redrive.core.store import Store
from redrive.stores.sqlite import SqliteStore

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


PLACES: dict[str, type[Place]] = {
    "sqlite": SqlitePlace,
}
