"""`rd.database`: what operators do with the store as a whole: check, back up, repair, and wait for its failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from redrive.reports.needs import Need, Snapshot, needs

if TYPE_CHECKING:
    from redrive.jobs.core import Core


class Database:
    """The store as a whole, for operators."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def path(self) -> Path | None:
        """The file behind the store; None if the store is not one file."""
        path: Path | None = getattr(self._core.store, "path", None)
        return path

    async def probe(self) -> None:
        """Read once and take the write lock once, without writing. Raises what keeps the store from being used."""
        await self._core.store.check()
        await self._core.store.heartbeat([])

    async def backup(self, target: str) -> int:
        """Copy everything into a new file while work goes on; returns its size in bytes."""
        return await self._core.store.backup(target)

    async def repair(self) -> list[str]:
        """Restore counters, sums and wake-ups from the records; returns what was wrong."""
        return await self._core.store.repair(self._core.clock.now())

    async def left_behind(self) -> list[Need]:
        """List what needs a person because a process ended without giving its running jobs back."""
        now = self._core.clock.now()
        return needs(Snapshot(now, now, left_behind=await self._core.store.left_behind(now)))

    async def until_failed(self) -> str:
        """Wait until the store stops itself; returns why."""
        return await self._core.store.until_failed()

    def hurry(self) -> None:
        """Stop waiting for a store that does not answer: this process is about to end."""
        self._core.store.hurry()
