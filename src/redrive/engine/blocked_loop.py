"""Acts for a worker whose event loop is blocked: gives its unbegun jobs back and announces the block in the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from redrive.core.commit import apply_each, try_commit
from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Commit, Filter, Put, Store, Unknown
from redrive.engine.paging import read_pages
from redrive.engine.runners import Key
from redrive.engine.worker_registry import ANNOUNCE_SECONDS, BlockedLoop

log = logging.getLogger("redrive.worker")
LOOK_SECONDS: Final = 2.0
"""How often the store is asked for jobs that it claimed for the worker and that did not arrive."""
LOOKED_AFTER: Final = 1.0
HURRIED_AFTER: Final = 0.5
"""Seconds of silence after which the event loop of a process that was told to end begins no more jobs."""
PAGE: Final = 500
KEPT_SECONDS: Final = 5.0
"""Seconds of silence after which an event loop is reported as blocked, and its unbegun jobs are given back."""


class RelievedWorker(Protocol):
    """The operations that a worker offers to its heartbeat thread. Each may be called from any thread."""

    id: str

    def withdraw(self, silent: float) -> list[Job]:
        """Withdraws unbegun jobs that have waited for some seconds, or for a third of a short lease."""

    def refuse(self, claimed: Iterable[Job]) -> list[Job]:
        """Returns those of the claimed jobs that have not arrived at the worker, which will not begin on arrival."""

    def given_back(self, settled: Sequence[Key]) -> None:
        """Notes that these jobs were given back in the store and no longer belong to the worker."""

    def release(self, job: Job, why: str) -> Transition:
        """Makes the move that gives an unbegun job back."""

    def announcement(self, blocked: BlockedLoop | None) -> Put:
        """Makes the put that announces the worker and what blocks its event loop."""

    def recovered(self) -> None:
        """Notes that the event loop answers again."""


class LoopRelief:
    """Acts for a worker in the thread of its heartbeats. Only jobs that have not begun are given back."""

    def __init__(self, worker: RelievedWorker, store: Store) -> None:
        self._worker = worker
        self._store = store
        self._held: dict[Key, Job] = {}
        """The jobs that are withdrawn and not yet given back."""
        self._looked = float("-inf")
        self._announced: tuple[BlockedLoop | None, float] = (None, float("-inf"))
        self.hurried = False
        """True once the process was told to end: unbegun jobs will not begin."""

    async def act(self, silent: float, blocked: BlockedLoop | None, *, told: bool) -> None:
        if blocked is None:
            await self._hand_in("the worker's event loop was blocked")
            return
        if told:
            await self._announce(blocked)
        hurried = self.hurried and silent >= HURRIED_AFTER
        await self._give_back(float("inf") if hurried else silent, blocked)

    def ended(self) -> None:
        self._announced = (None, float("-inf"))
        self._worker.recovered()

    async def _announce(self, blocked: BlockedLoop) -> None:
        """Announces in the store what blocks the worker, so that every other process can read the cause."""
        known, at = self._announced
        if known == blocked and time.monotonic() - at < ANNOUNCE_SECONDS:
            return
        self._announced = blocked, time.monotonic()
        await try_commit(self._store, puts=[self._worker.announcement(blocked)], what="a blocked worker was announced")

    async def _give_back(self, silent: float, blocked: BlockedLoop) -> None:
        jobs = [*self._worker.withdraw(silent), *await self._not_arrived(silent)]
        self._held |= {(job.id, job.token): job for job in jobs}
        await self._hand_in(f"it had not begun, and the worker's event loop was blocked by {blocked}")

    async def _hand_in(self, why: str) -> None:
        """Gives the withdrawn jobs back; those whose commit the store did not confirm are given back again later."""
        if not self._held:
            return
        given = [Commit((self._worker.release(job, why),)) for job in self._held.values()]
        answered = await apply_each(self._store, given)
        jobs = [whole.transitions[0].job for whole, outcome in answered if not isinstance(outcome, Unknown)]
        settled = [(job.id, job.token) for job in jobs]
        for key in settled:
            del self._held[key]
        log.warning("%d jobs are given back: %s", len(settled), why)
        self._worker.given_back(settled)

    async def _not_arrived(self, silent: float) -> list[Job]:
        """Finds jobs that the store claimed for the worker and whose claim the blocked loop has not yet received."""
        if silent < LOOKED_AFTER or time.monotonic() - self._looked < LOOK_SECONDS:
            return []
        self._looked = time.monotonic()
        late: list[Job] = []
        async for page in read_pages(self._store, Filter(states=(State.running,)), PAGE):
            late += [job for job in page if job.worker == self._worker.id and has_waited_too_long(job, silent)]
        return self._worker.refuse(late) if late else []


def has_waited_too_long(job: Job, silent: float) -> bool:
    """Tells whether an event loop that was silent for so many seconds delays this unbegun job for too long."""
    return silent >= min(KEPT_SECONDS, (job.lease or 3 * KEPT_SECONDS) / 3)
