"""Runs plain functions in threads. The threads are daemons: one that hangs must not keep the process from ending."""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, ClassVar, Final

from redrive.errors import Signal

Work = Callable[[], Any]


Answer = Callable[[Any, BaseException | None], None]
Queue = queue.SimpleQueue[tuple[Work, Answer] | None]


class Threads:
    """Pool of as many threads as sync tasks run at once; the threads are reused and never joined."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._work: Queue = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def run(self, function: Work) -> asyncio.Future[Any]:
        """Runs the function in a thread, as a future of the loop. Cancelling the future leaves the function running."""
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
        """Ends the idle threads. The busy ones end with their task, or with the process."""
        for _ in range(self._started):
            self._work.put(None)
        self._renew()


NOT_RUN: Final = (CoroutineType, asyncio.Future, GeneratorType, AsyncGeneratorType)


async def finish(value: Any) -> Any:
    """Awaits a function's return value until the function has run: a lambda or a decorator may return a coroutine."""
    while isinstance(value, NOT_RUN) or inspect.isawaitable(value):
        if isinstance(value, GeneratorType | AsyncGeneratorType):
            raise TypeError("it returned a generator, whose code has not run: return what it yields as a list")
        value = await value
    return value


async def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a user's function, plain or async. A plain one runs in a thread, so that the event loop need not wait."""
    if inspect.iscoroutinefunction(function):
        return await finish(function(*arguments))
    call, threads = _Call(function, arguments), Threads()
    try:
        value = await threads.run(call)
    except asyncio.CancelledError:
        call.give_up()
        raise
    finally:
        threads.stop()
    return await finish(value)


async def ask_within(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a user's function as `ask` does, with a limit of `seconds`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await ask(function, *arguments)
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise


MOST_GIVEN_UP: Final = 4
"""Number of hanging calls with which a function is not called again: each hanging call keeps a thread."""


class _Call:
    """A call of a plain function, which may go on after its caller has given up."""

    _hanging: ClassVar[dict[int, int]] = {}
    """Number of given-up calls that have not returned, by the function's identity; they keep the function alive."""
    _lock: ClassVar = threading.Lock()

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if self._hanging.get(id(function), 0) >= MOST_GIVEN_UP:
            raise TimeoutError(f"{MOST_GIVEN_UP} earlier calls have not returned; give what it waits for a timeout")
        self._function = function
        self._call = partial(copy_context().run, function, *arguments)
        self._over = self._given_up = False

    def __call__(self) -> Any:
        try:
            return self._call()
        finally:
            with self._lock:
                self._over = True
                self._count(-1 if self._given_up else 0)

    def give_up(self) -> None:
        with self._lock:
            self._given_up = not self._over
            self._count(1 if self._given_up else 0)

    @classmethod
    def forget_all(cls) -> None:
        """Forgets the calls of a parent process: a forked child has none of the threads that hang."""
        cls._hanging.clear()
        cls._lock = threading.Lock()

    def _count(self, more: int) -> None:
        number = self._hanging.pop(id(self._function), 0) + more
        if number:
            self._hanging[id(self._function)] = number


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Call.forget_all)


class CarriedError(Exception):
    """Carries an exception that a future cannot: one that would close or cancel the awaiting task, or end its loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


def _serve(work: Queue, idle: threading.Semaphore) -> None:
    while (item := work.get()) is not None:
        function, answer = item
        try:
            value = function()
        except StopIteration as error:
            wrapped = RuntimeError("the task raised StopIteration")
            wrapped.__cause__ = error
            answer(None, wrapped)  # a future cannot carry StopIteration
        except (Exception, Signal) as error:  # noqa: BLE001 - handed to the awaiting task
            answer(None, error)
        except BaseException as error:  # noqa: BLE001 - the same
            answer(None, CarriedError(error))
        else:
            answer(value, None)
        idle.release()
