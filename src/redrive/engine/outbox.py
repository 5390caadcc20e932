"""Gathers the commits of finished attempts while the store is busy and applies them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Final

import msgspec

from redrive.core.commit import apply_each
from redrive.core.job import Job
from redrive.core.lifecycle import Transition
from redrive.core.store import Applied, Commit, Outcome, Stale, Store, Unknown
from redrive.errors import StoreFailed, StoreUnavailable

log = logging.getLogger("redrive.worker")
TRIES = 5
"""How often a result is tried that the store refuses because of its content."""
AGAIN = 0.5
"""Seconds between tries while the store cannot take a result."""
UNWRITABLE: Final = (ValueError, TypeError, OverflowError)
"""Errors of a commit whose texts or numbers cannot be written at all."""
Answered = tuple[Commit, Outcome]


class Outbox:
    """A queue of commits, applied in groups until the store took or refused each: a full disk loses no result."""

    def __init__(
        self,
        store: Store,
        settled: Callable[[Sequence[Commit], Sequence[Commit]], None],
        resume: Callable[[Sequence[Commit]], Awaitable[Sequence[Transition]]] | None = None,
        broken: Callable[[Job, Exception], Transition] | None = None,
    ) -> None:
        self._store = store
        self._settled = settled
        self._resume = resume
        """Moves the jobs that waited for these commits."""
        self._broken = broken
        """Makes the dead letter of a job whose end cannot be written."""
        self._waiting: list[Commit] = []
        self._task: asyncio.Task[None] | None = None
        self.refused = 0

    def add(self, *commits: Commit) -> asyncio.Task[None]:
        """Adds commits to the next group; returns the task that applies them, a new one after a cancelled one."""
        self._waiting.extend(commits)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush(), name="redrive-outbox")
        return self._task

    def waiting(self) -> list[Commit]:
        """Lists the commits that the store has not been given yet. Thread-safe."""
        return list(self._waiting)

    async def flushed(self) -> None:
        """Waits until all commits added so far are on disk or refused."""
        while self._waiting or (self._task is not None and not self._task.done()):
            await asyncio.wait({self.add()})

    async def _flush(self) -> None:
        batch: list[Commit] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._apply(batch)
                batch = []
        except StoreFailed as error:
            log.critical("results cannot be stored any more, their jobs will run again elsewhere: %s", error)
        except asyncio.CancelledError:  # the event loop ends: stopping the worker adds them once more
            self._waiting = [*batch, *self._waiting]
            raise
        finally:
            self._task = None

    async def _apply(self, batch: list[Commit]) -> None:
        while batch:
            answered = await self._insist(batch)
            stale = [(commit, outcome) for commit, outcome in answered if isinstance(outcome, Stale)]
            crowded = [commit for commit, outcome in stale if _companion_moved(commit, outcome)]
            refused = [commit for commit, outcome in stale if not _companion_moved(commit, outcome)]
            applied = [commit for commit, outcome in answered if isinstance(outcome, Applied)]
            self._settled(applied, refused)
            for commit in refused:
                self._refuse(commit)
            if self._resume is not None and (moves := await self._resume(applied)):
                self._settled([Commit(tuple(moves))], [])
            # Repeating is safe: a commit that was applied after all is stale then.
            batch = [commit for commit, outcome in answered if isinstance(outcome, Unknown)]
            if batch:
                log.warning("the store did not confirm %d results: trying again", len(batch))
                await asyncio.sleep(AGAIN)
            batch += [msgspec.structs.replace(commit, transitions=commit.transitions[:1]) for commit in crowded]

    async def _insist(self, batch: list[Commit], *, last: bool = False) -> list[Answered]:
        """Repeats the commits until the store answers, because a full disk or a lock only delays them."""
        for tries in count(1):
            try:
                return await apply_each(self._store, batch)
            except StoreFailed:
                raise
            except StoreUnavailable as error:
                log.warning("%d results wait for the store: %s", len(batch), error)
            except Exception as error:  # noqa: BLE001 - logged now, and again on the last try
                log.warning("the store does not take %d results: %s", len(batch), error)
                if len(batch) > 1:
                    return [answer for commit in batch for answer in await self._insist([commit])]
                if tries >= TRIES:
                    return await self._without(batch[0], error, last=last)
            await asyncio.sleep(AGAIN)
        raise AssertionError("counts for ever")

    async def _without(self, commit: Commit, error: Exception, *, last: bool) -> list[Answered]:
        """Makes a dead letter of a job whose result cannot be written, as running the job again would not help."""
        job = commit.transitions[0].job if commit.transitions else None
        if job is not None and self._broken is not None and isinstance(error, UNWRITABLE) and not last:
            return await self._insist([Commit((self._broken(job, error),))], last=True)
        log.critical("a result cannot be stored as it is, its job will run again", exc_info=error)
        return [(commit, Stale(job.id if job is not None else None))]

    def _refuse(self, commit: Commit) -> None:
        self.refused += 1
        jobs = ", ".join(transition.job.short_id for transition in commit.transitions)
        log.warning("the result of job %s was refused: its lease was lost, or it had been stored already", jobs)


def _companion_moved(commit: Commit, stale: Stale) -> bool:
    """Tells whether a commit was refused because of its other jobs; the end of its own job, the first, is valid."""
    return len(commit.transitions) > 1 and stale.job_id not in (None, commit.transitions[0].job.id)
