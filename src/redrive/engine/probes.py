"""Probes check whether the resources of a task are available. If one is missing, the task is not called."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from redrive.engine.clock import Clock
from redrive.engine.threads import ask_within
from redrive.errors import RedriveError

log = logging.getLogger("redrive.probes")
COOL_DOWN: Final = 30.0
"""Seconds before a probe that answered no is asked again."""
TIMEOUT: Final = 10.0


class ResourceDown(RedriveError):
    """The error for a missing resource of a task; the job is retried when its probe may be asked again."""

    error_kind = "contention"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Probe:
    """A resource of a task and the check whether it is available: `requires=[Probe("vault", is_open)]`.

    `check()` returns True if it is; it may be async, a plain function runs in a thread. An exception, or no answer
    within `timeout` seconds, means no and does not start the cool-down.
    """

    def __init__(
        self,
        name: str,
        check: Callable[[], Awaitable[bool] | bool],
        *,
        cool_down: float = COOL_DOWN,
        timeout: float = TIMEOUT,
    ) -> None:
        self.name = name
        self.cool_down = cool_down
        self.timeout = timeout
        self.problem = ""
        self._check = check
        self._down = False
        self._asked = float("-inf")
        self._lock = threading.Lock()
        self._asking: dict[asyncio.AbstractEventLoop, asyncio.Task[bool]] = {}

    @property
    def down(self) -> bool:
        """Whether the last check failed; does not ask again."""
        return self._down

    def cooling(self, clock: Clock) -> float:
        """Returns the seconds until the probe may be asked again."""
        return max(0.0, self._asked + self.cool_down - clock.monotonic()) if self._down else 0.0

    async def ready(self, clock: Clock) -> bool:
        """Asks the probe, except during its cool-down. Concurrent callers share one check and its answer."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.cooling(clock) > 0:
                return False
            asking = self._asking.get(loop)
            if asking is None or asking.done():
                asking = self._asking[loop] = loop.create_task(self._ask(clock))
        try:
            return await asyncio.shield(asking)
        finally:
            with self._lock:
                if asking.done() and self._asking.get(loop) is asking:
                    del self._asking[loop]

    async def _ask(self, clock: Clock) -> bool:
        try:
            there = bool(await ask_within(self.timeout, self._check))
        except Exception as error:  # noqa: BLE001 - the probe itself is broken; the job reports it
            self._note(there=False, asked=float("-inf"), problem=f"{type(error).__name__}: {error}".rstrip(": "))
            return False
        self._note(there=there, asked=clock.monotonic(), problem="" if there else "its probe says no")
        return there

    def _note(self, *, there: bool, asked: float, problem: str) -> None:
        with self._lock:
            self._down, self._asked, self.problem = not there, asked, problem


async def find_missing(probes: Sequence[Probe], clock: Clock) -> tuple[list[Probe], bool]:
    """Lists the missing resources; and tells whether none is missing and one that was down is back."""
    missing, back = [], []
    for probe in probes:
        was_down = probe.down
        if not await probe.ready(clock):
            missing.append(probe)
        elif was_down:
            back.append(probe.name)
    if back:
        log.warning("back again: %s", ", ".join(back))
    return missing, bool(back) and not missing


def make_resource_down(missing: Sequence[Probe], clock: Clock) -> ResourceDown:
    """Makes the error of a task that was not called."""
    names = ", ".join(f"{probe.name} ({probe.problem})" for probe in missing)
    wait = max(max(probe.cooling(clock), 1.0) for probe in missing)
    return ResourceDown(f"not called: {names} is not there", wait)
