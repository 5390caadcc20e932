"""Holds what every service stands on: the store, the registry of tasks, the clock, the settings and the bus."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.config import Settings
from redrive.core.store import Store
from redrive.engine.bus import Bus
from redrive.engine.clock import Clock
from redrive.engine.registry import Registry
from redrive.jobs.store_refcount import StoreHolder


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """Gives a service the five things that nearly every service needs.

    The value never changes. The store is opened at first use and can be closed and opened again, so `store` asks the
    holder each time: a service keeps the core, never the store.
    """

    registry: Registry
    bus: Bus
    holder: StoreHolder

    @property
    def store(self) -> Store:
        """The open store, made on first use."""
        store = self.holder.store
        return store if store is not None else self.holder.make()

    @property
    def clock(self) -> Clock:
        return self.holder.clock

    @property
    def settings(self) -> Settings:
        return self.holder.settings
