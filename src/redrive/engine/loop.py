"""Base class of all periodic loops: starts them, stops them, and keeps them running after errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from redrive.errors import StoreFailed

log = logging.getLogger("redrive")
AFTER_ERROR = 1.0
T = TypeVar("T")


class Loop:
    """A loop that calls `tick` until stopped. A tick returns the seconds until the next; an error only costs a pause.

    Only a store that has stopped itself ends the loop: no tick would work before the store is opened anew.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.errors = 0
        self.failing: Exception | None = None
        """The error of the last tick, while ticks fail."""
        self._stopping = asyncio.Event()
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def tick(self) -> float:
        """Does one round; returns how long to sleep at most before the next."""
        raise AssertionError(f"{type(self).__name__} has no tick")

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Starts the loop; idempotent."""
        if not self.running:
            self._stopping.clear()
            self._task = asyncio.create_task(self._run(), name=f"redrive-{self.name}")

    async def stop(self) -> None:
        """Stops the loop after the current tick; idempotent."""
        self._stopping.set()
        self._nudged.set()
        if self._task is not None:
            await asyncio.wait({self._task})  # a cancelled stop does not cancel the tick
            self._task = None

    def nudge(self) -> None:
        """Starts the next tick now."""
        self._nudged.set()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self._nudged.clear()
            try:
                pause = await self.tick()
                self.failing = None
            except StoreFailed as error:
                self.errors += 1
                self.failing = error
                log.critical("%s ended, as the store has stopped itself: %s", self.name, error)
                return
            except Exception as error:
                self.errors += 1
                self.failing = error
                log.warning("%s failed and goes on in %g s", self.name, AFTER_ERROR, exc_info=True)
                pause = AFTER_ERROR
            if pause > 0 and not self._stopping.is_set():
                await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._nudged.wait()
        except TimeoutError:
            return


async def carry_through(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end even if the caller is cancelled; raises the cancellation of the caller then."""
    task, cancelled = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled() and task.exception() is None:
        raise cancelled
    return await task


async def wait_for_first(*awaited: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of the first coroutine that ends, and cancels the others."""
    tasks = [asyncio.create_task(each) for each in awaited]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
