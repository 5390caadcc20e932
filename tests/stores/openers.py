"""Any number of stores on one place, each as another process would have it, and a clock for their leases."""

from __future__ import annotations

import time
from pathlib import Path

from redrive.core.job import Job
from redrive.core.store import Store, Wanted
from tests.stores.jobs import T0
from tests.stores.places import Monotonic, Place


class Steady:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds


class Openers:
    """Opens stores on one place and closes them in the end."""

    def __init__(self, kind: str, folder: Path, place: Place) -> None:
        self.kind = kind
        self.folder = folder
        self.place = place
        self._open: list[Store] = []

    async def open(self, monotonic: Monotonic = time.monotonic) -> Store:
        store = self.place.store(monotonic)
        self._open.append(store)
        await store.open()
        return store

    async def open_backup(self, target: Path) -> Store:
        store = self.place.store_at(str(target))
        self._open.append(store)
        await store.open()
        return store

    async def observer(self) -> Observer:
        """A store that looks for ended leases by a clock of its own."""
        steady = Steady()
        return Observer(await self.open(steady), steady)

    async def close(self) -> None:
        for store in self._open:
            await store.close()


class Observer:
    """Looks at other workers' leases and takes no work."""

    def __init__(self, store: Store, steady: Steady) -> None:
        self.store = store
        self.steady = steady

    async def look(self, after: float = 2.0, now: float = T0) -> list[Job]:
        """The running jobs whose lease has ended by now, as seen `after` seconds later on the observer's clock."""
        await self.store.get([])  # a claim does not wait for what other openers committed
        self.steady.advance(after)
        return (await self.store.claim(Wanted(0), "observer", now)).lapsed
