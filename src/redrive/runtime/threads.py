"""Threads for plain functions. Daemons: one that never returns must not keep the process from ending."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

Work = Callable[[], Any]


Answer = Callable[[Any, BaseException | None], None]
Queue = queue.SimpleQueue[tuple[Work, Answer] | None]


class Threads:
    """As many threads as there are sync tasks running at once, reused, never joined."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._work: Queue = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def run(self, function: Work) -> asyncio.Future[Any]:
        """The function's result, as a future of the running loop. Cancelling the future does not stop the function."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def answer(value: Any, error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value, error)

        if not self._idle.acquire(blocking=False):
            self._started += 1
            name = f"redrive-task-{self._started}"
            threading.Thread(target=_serve, args=(self._work, self._idle), name=name, daemon=True).start()
        self._work.put((function, answer))
        return future

    def stop(self) -> None:
        """Let the idle threads end. Those at work end with their task, or with the process."""
        for _ in range(self._started):
            self._work.put(None)
        self._renew()


async def asked(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the user's answers, plain or async. Nobody else has to wait for a plain one."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    threads, call = Threads(), copy_context().run
    try:
        found = await threads.run(lambda: call(function, *arguments))
    finally:
        threads.stop()
    return await found if inspect.isawaitable(found) else found


def _serve(work: Queue, idle: threading.Semaphore) -> None:
    while (item := work.get()) is not None:
        function, answer = item
        try:
            value = function()
        except StopIteration as error:
            wrapped = RuntimeError("the task raised StopIteration")
            wrapped.__cause__ = error
            answer(None, wrapped)  # a future cannot carry StopIteration
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
            answer(None, error)
        else:
            answer(value, None)
        idle.release()
