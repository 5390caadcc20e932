"""Runs many small pieces of work on few asyncio tasks.

One asyncio task per job costs more than most jobs do. A runner takes one piece after the other as long as the pieces
do not wait; when a piece waits, the next runner, which is already scheduled, takes over. So work that waits never
delays other work, and work that does not wait costs no task. Every piece runs in a separate context.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from redrive.engine.threads import CarriedError

Work = Coroutine[Any, Any, None]
Key = tuple[str, str | None]
"""The key of an attempt: a job and the token of its lease."""
BREATH = 50
"""The number of pieces in a row after which a runner yields to the event loop."""


class Runners:
    """A set of runners that run the added pieces at once and concurrently, each under its key."""

    def __init__(self, all_begun: Callable[[], None]) -> None:
        self._all_begun = all_begun
        self.running: dict[Key, asyncio.Task[None]] = {}
        """The asyncio task that runs each piece now."""
        self._ready: deque[tuple[Key, str, Callable[..., Work], tuple[Any, ...]]] = deque()
        self._spare = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self.running) + len(self._ready)

    @property
    def waiting(self) -> bool:
        """Whether a piece has not begun yet; `all_begun` is called when all pieces have begun."""
        return bool(self._ready)

    def add(self, key: Key, name: str, work: Callable[..., Work], *arguments: Any) -> None:
        self._ready.append((key, name, work, arguments))
        self._idle.clear()

    def start(self) -> None:
        """Starts a runner for the pieces that were added."""
        if self._ready and not self._spare:
            self._provide()

    def take_back(self) -> list[Key]:
        """Withdraws all pieces that have not begun; returns their keys."""
        keys = self.withdraw(set(self.unbegun()))
        self.rest()
        return keys

    def unbegun(self) -> list[Key]:
        """Returns the keys of the pieces that have not begun. Thread-safe."""
        return [key for key, *_ in list(self._ready)]

    def withdraw(self, keys: Collection[Key]) -> list[Key]:
        """Withdraws those of these pieces that have not begun; returns their keys. Thread-safe."""
        withdrawn = []
        for piece in [piece for piece in list(self._ready) if piece[0] in keys]:
            with suppress(ValueError, IndexError):  # its runner was faster
                self._ready.remove(piece)
                withdrawn.append(piece[0])
        return withdrawn

    async def idle(self) -> None:
        """Waits until no piece runs or is ready."""
        await self._idle.wait()

    def _provide(self) -> None:
        """Schedules a spare runner, because one must stand by while pieces are ready."""
        self._spare = True
        task = asyncio.create_task(GuardedCoroutine(self._run()), name="redrive-runner")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        self._spare = False
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - for the type checker: this coroutine always runs in a task
        in_a_row = 0
        while self._ready:
            try:
                key, name, work, arguments = self._ready.popleft()
            except IndexError:
                return  # the last piece was withdrawn by another thread a moment ago
            if not self._ready:
                self._all_begun()
            elif not self._spare:
                self._provide()
            self.running[key] = me
            me.set_name(name)
            try:
                await _isolated(work(*arguments))
            finally:
                del self.running[key]
                self.rest()
            while me.uncancel():
                continue  # a cancellation was for that piece alone
            in_a_row += 1
            if in_a_row % BREATH == 0:
                await asyncio.sleep(0)

    def rest(self) -> None:
        """Wakes the callers that wait for `idle` if no piece is left."""
        if not self.running and not self._ready:
            self._idle.set()


@types.coroutine
def _isolated(work: Work) -> Generator[Any, Any, None]:
    """Awaits a coroutine inside a separate context, so that the next one does not see the variables it sets."""
    run = copy_context().run
    try:
        yielded = run(work.send, None)
        while True:
            try:
                sent = yield yielded
            except BaseException as error:  # noqa: BLE001 - passed on to the work
                yielded = run(work.throw, error)
            else:
                yielded = run(work.send, sent)
    except StopIteration:
        return


class GuardedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine for an asyncio task that is not closed by what it awaits.

    Python closes a coroutine into which GeneratorExit is thrown, as asyncio does where a future failed with it: the
    attempt could not be settled any more. Here GeneratorExit arrives inside as `CarriedError`.
    """

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work

    def __await__(self) -> Any:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, error: Any, *rest: Any) -> Any:
        return self._work.throw(CarriedError(error) if isinstance(error, GeneratorExit) else error, *rest)

    def close(self) -> None:
        self._work.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)  # an inspected task looks like its coroutine
