"""Probes: whether what a task needs is there. Where something is missing the task is not called."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from redrive.errors import RedriveError
from redrive.runtime.clock import Clock

log = logging.getLogger("redrive.probes")
COOL_DOWN: Final = 30.0
"""Seconds before a probe that said no is asked again."""


class ResourceDown(RedriveError):
    """Something that the task needs is not there now. Tried again later."""

    error_kind = "server_error"


class Probe:
    """Something a task needs, and how to see whether it is there: `requires=[Probe("vault", is_open)]`.

    `check()` says True where it is; it may be async. An exception says no, and does not start the cool-down.
    """

    def __init__(self, name: str, check: Callable[[], Awaitable[bool] | bool], *, cool_down: float = COOL_DOWN) -> None:
        self.name = name
        self.cool_down = cool_down
        self._check = check
        self._down_since: float | None = None
        self._asked = float("-inf")
        self._lock: asyncio.Lock | None = None
        self._problem = ""

    @property
    def down(self) -> bool:
        """As far as anybody knows, without asking."""
        return self._down_since is not None

    async def ready(self, clock: Clock) -> bool:
        """Asked afresh unless it said no a moment ago. One at a time; who waited hears the answer that came."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            now = clock.monotonic()
            if self.down and now - self._asked < self.cool_down:
                return False
            return await self._ask(now)

    async def _ask(self, now: float) -> bool:
        try:
            found = self._check()
            there = bool(await found if inspect.isawaitable(found) else found)
        except Exception as error:  # noqa: BLE001 - the probe itself is broken, which is told with the job
            self._problem = f"{type(error).__name__}: {error}"
            self._down_since = now if self._down_since is None else self._down_since
            self._asked = float("-inf")
            return False
        self._asked = now
        self._problem = "" if there else "its probe says no"
        self._down_since = None if there else (now if self._down_since is None else self._down_since)
        return there

    @property
    def problem(self) -> str:
        return self._problem


async def lacking(probes: Sequence[Probe], clock: Clock) -> tuple[list[Probe], bool]:
    """What is not there, of these alone; and whether something that was down is back."""
    missing, recovered = [], False
    for probe in probes:
        was_down = probe.down
        if await probe.ready(clock):
            recovered = recovered or was_down
        else:
            missing.append(probe)
    if recovered:
        log.warning("back again: %s", ", ".join(probe.name for probe in probes if not probe.down))
    return missing, recovered and not missing


def down(missing: Sequence[Probe]) -> ResourceDown:
    """The typed failure of a task that was not called."""
    said = ", ".join(f"{probe.name} ({probe.problem or 'asked a moment ago'})" for probe in missing)
    return ResourceDown(f"not called: {said} is not there")
