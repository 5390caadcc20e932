"""Sends a worker's heartbeats from a separate thread and event loop, so that a blocked loop does not lose leases."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from redrive.core.job import Job
from redrive.core.store import Lease, Store
from redrive.engine.worker_registry import BlockedLoop
from redrive.errors import StoreFailed

log = logging.getLogger("redrive.worker")
BEAT_SECONDS = 5.0
"""The longest time between two renewals of a running job's lease; also how soon a cancelled job is noticed."""
PULSE_SECONDS = 1.0
BLOCKED_AFTER = 5.0
DEAF_AFTER = 2.0
"""Seconds without an answer after which an event loop gets no new work."""

Named = Callable[[asyncio.Task[Any]], tuple[str, str | None]]
"""Names a task of the event loop, and the id of the job that the task runs."""


class LoopHelper(Protocol):
    """Acts for a worker while its event loop is blocked; called in the thread of its heartbeats."""

    async def act(self, silent: float, blocked: BlockedLoop | None, *, told: bool) -> None:
        """Acts on a loop that was silent for some seconds, and what blocks the loop; `told`: the block was logged."""

    def ended(self) -> None:
        """Notes that the loop answers again; called on that loop."""


class Heartbeats:
    """Renews the leases of running jobs, reports lost leases, and notices when the event loop is blocked."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        running: Callable[[], list[Job]],
        lost: Callable[[Lease], None],
        *,
        named: Named = lambda task: (task.get_name(), None),
        blocked_after: float = BLOCKED_AFTER,
        helps: LoopHelper | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._loop = loop
        self._running = running
        self._lost = lost
        self._named = named
        self._blocked_after = blocked_after
        self._helps = helps
        self._now = now
        self._stopping = threading.Event()
        self._asked = False
        """True while the event loop owes an answer."""
        self._looked = 0.0
        self.silent = 0.0
        """Seconds for which the event loop has not answered while this thread ran: a frozen process is not a block."""
        self._blocked: BlockedLoop | None = None
        self._beaten: dict[tuple[str, str | None], float] = {}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="redrive-heart", daemon=True)

    @property
    def blocked(self) -> str | None:
        """The name of the task that blocks the event loop now; None where the loop is not blocked."""
        return str(self._blocked) if self._blocked is not None else None

    def hears(self) -> bool:
        """Tells whether the event loop would soon notice new work."""
        return self.silent < DEAF_AFTER

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def _main(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._round()
            except StoreFailed:
                return  # no lease can be renewed any more; the worker's own loop reports the error
            except Exception:
                log.warning("heartbeat failed and will be repeated", exc_info=True)
            await self._pause(min([PULSE_SECONDS, *(_interval(job) / 2 for job in self._running())]))

    async def _pause(self, seconds: float) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._stopping.wait, seconds)

    async def _round(self) -> None:
        """Renews leases, then checks the event loop, also where a renewal failed."""
        try:
            await self._beat()
        finally:
            await self._look()

    async def _beat(self) -> None:
        jobs = self._running()
        now = time.monotonic()
        self._beaten = {_run(job): self._beaten.get(_run(job), now) for job in jobs}
        due = [job for job in jobs if now - self._beaten[_run(job)] >= _interval(job)]
        if not due:
            return
        self._beaten.update((_run(job), now) for job in due)
        lost = await self._store.heartbeat([Lease(job.id, job.token or "") for job in due], self._now())
        for lease in lost:
            self._tell(self._lost, lease)

    async def _look(self) -> None:
        """Asks the worker's loop to answer; if the loop stays silent, reports the task that blocks the loop."""
        now, before = time.monotonic(), self._looked
        self._looked = now
        if self._asked:
            self.silent += min(now - before, 2 * PULSE_SECONDS)
            self._report()
        else:
            self._asked, self.silent = True, 0.0
            self._tell(self._answered)
        if self._helps is not None:
            blocked = self._blocked or (self.culprit() if self.silent else None)
            await self._helps.act(self.silent, blocked, told=self._blocked is not None)

    def _report(self) -> None:
        if self._blocked is not None or self.silent <= self._blocked_after:
            return
        self._blocked = self.culprit()
        log.warning(
            "the event loop has been blocked for %.1f s by %s: use `await`, or make it a plain `def` task, which "
            "runs in a thread",
            self.silent,
            self._blocked,
        )

    def _answered(self) -> None:
        self._asked, self.silent = False, 0.0
        if self._blocked is not None:
            self._blocked = None
            if self._helps is not None:
                self._helps.ended()

    def culprit(self) -> BlockedLoop:
        """Finds the task that occupies the event loop."""
        task = asyncio.current_task(self._loop)
        name, job_id = self._named(task) if task is not None else ("something outside redrive's tasks", None)
        return BlockedLoop(name, job_id, self._now() - self.silent)

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._stopping.set()  # the loop is closed and cannot be called any more


def _run(job: Job) -> tuple[str, str | None]:
    return job.id, job.token


def _interval(job: Job) -> float:
    return min((job.lease or 90.0) / 3.0, BEAT_SECONDS)
