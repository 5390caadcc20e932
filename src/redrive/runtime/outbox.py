"""Commits of finished attempts, gathered while the store is busy and applied together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from redrive.core.lifecycle import Transition
from redrive.core.store import Applied, Commit, Outcome, Stale, Store
from redrive.errors import StoreFailed

log = logging.getLogger("redrive.worker")
AGAIN = 0.5
"""Seconds between tries while the store cannot take a result."""


class Outbox:
    """Applies commits in groups until the store has taken each; a result is never dropped because the disk was full."""

    def __init__(self, store: Store, committed: Callable[[Transition], None]) -> None:
        self._store = store
        self._committed = committed
        self._waiting: list[Commit] = []
        self._task: asyncio.Task[None] | None = None
        self.refused = 0

    def add(self, commit: Commit) -> None:
        self._waiting.append(commit)
        if self._task is None:
            self._task = asyncio.create_task(self._flush(), name="redrive-outbox")

    async def flushed(self) -> None:
        """Everything added so far is on disk."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._apply(batch)
        finally:
            self._task = None

    async def _apply(self, batch: list[Commit]) -> None:
        outcomes = await self._insist(batch)
        for commit, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Applied):
                for transition in commit.transitions:
                    self._committed(transition)
            else:
                self._refuse(commit, outcome)

    async def _insist(self, batch: list[Commit]) -> list[Outcome]:
        """A full disk or a lock: the results wait until the store takes them."""
        while True:
            try:
                return await self._store.apply(batch)
            except StoreFailed:
                raise
            except Exception as error:  # noqa: BLE001 - told, and tried again
                log.warning("%d results wait for the store: %s", len(batch), error)
                await asyncio.sleep(AGAIN)

    def _refuse(self, commit: Commit, outcome: object) -> None:
        self.refused += 1
        jobs = ", ".join(transition.job.short_id for transition in commit.transitions)
        what = "was refused: the lease was lost" if isinstance(outcome, Stale) else f"is unknown: {outcome}"
        log.warning("the result of job %s %s", jobs, what)
