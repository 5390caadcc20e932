"""From the store's threads to whoever waits in an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")
TURNS: Final = 10


def handed(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> bool:
    """Let the loop make this call; False where it was closed, so that nobody waits there any more."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True


def is_cancelled() -> bool:
    """Whether the caller of the running task has cancelled it; otherwise what it waited for was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Gate:
    """Lets other threads hand work to an event loop until it is shut. What was let in is begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shut = False

    def enter(self, hand_over: Callable[[], T]) -> T | None:
        """Hand something over; None where the loop takes nothing more."""
        with self._lock:
            return None if self._is_shut else hand_over()

    async def shut(self) -> None:
        """Take nothing more, and let what was taken have its turns. In the loop itself."""
        with self._lock:
            self._is_shut = True
        for _ in range(TURNS):
            await asyncio.sleep(0)
