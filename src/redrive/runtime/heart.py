"""A worker's heartbeats, from a thread with an event loop of its own, so that a blocked loop does not lose leases."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from redrive.core.job import Job
from redrive.core.store import Lease, Store

log = logging.getLogger("redrive.worker")
BEAT_SECONDS = 5.0
"""How often a running job's lease is renewed at the latest; also how soon a cancelled job is noticed."""
PULSE_SECONDS = 1.0
BLOCKED_AFTER = 5.0


class Heart:
    """Renews the leases of what runs, tells which were lost, and notices when the event loop stands still."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        running: Callable[[], list[Job]],
        lost: Callable[[Lease], None],
        *,
        named: Callable[[asyncio.Task[Any]], str] = lambda task: f"task {task.get_name()}",
        blocked_after: float = BLOCKED_AFTER,
    ) -> None:
        self._store = store
        self._loop = loop
        self._running = running
        self._lost = lost
        self._named = named
        self._blocked_after = blocked_after
        self._stopping = threading.Event()
        self._pulse = time.monotonic()
        self._reported = False
        self._beaten: dict[tuple[str, str | None], float] = {}
        self.blocked: str | None = None
        """The name of the task that blocks the event loop now, if one does."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="redrive-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def _main(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._round()
            except Exception:
                log.warning("heartbeat failed and will be repeated", exc_info=True)
            await self._pause(min([PULSE_SECONDS, *(_interval(job) / 2 for job in self._running())]))

    async def _pause(self, seconds: float) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._stopping.wait, seconds)

    async def _round(self) -> None:
        self._check_pulse()
        jobs = self._running()
        now = time.monotonic()
        self._beaten = {_run(job): self._beaten.get(_run(job), now) for job in jobs}
        due = [job for job in jobs if now - self._beaten[_run(job)] >= _interval(job)]
        if not due:
            return
        self._beaten.update((_run(job), now) for job in due)
        lost = await self._store.heartbeat([Lease(job.id, job.token or "") for job in due])
        for lease in lost:
            self._tell(self._lost, lease)

    def _check_pulse(self) -> None:
        """Ask the worker's loop to answer; if it does not for long, say which task keeps it."""
        silent = time.monotonic() - self._pulse
        if silent > self._blocked_after and not self._reported:
            self._reported = True
            self.blocked = self._culprit()
            log.warning(
                "the event loop has been blocked for %.1f s by %s: use `await`, or make it a plain `def` task, which "
                "runs in a thread",
                silent,
                self.blocked,
            )
        self._tell(self._answered)

    def _answered(self) -> None:
        self._pulse = time.monotonic()
        self._reported = False
        self.blocked = None

    def _culprit(self) -> str:
        task = asyncio.current_task(self._loop)
        return self._named(task) if task is not None else "something outside redrive's tasks"

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._stopping.set()  # the loop is closed: nobody is left to tell


def _run(job: Job) -> tuple[str, str | None]:
    return job.id, job.token


def _interval(job: Job) -> float:
    return min((job.lease or 90.0) / 3.0, BEAT_SECONDS)
