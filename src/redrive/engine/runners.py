"""Many small pieces of work on few asyncio tasks.

A task of its own for every job costs more than most jobs do. A runner takes one piece after the other for as long as
they do not have to wait; when one does, the next runner, which is already scheduled, takes over. So work that waits
never delays other work, and work that does not wait costs no task. Every piece runs in a context of its own.
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
"""A job and the token of its lease: one attempt."""
BREATH = 50
"""After so many pieces in a row the event loop gets its turn."""


class Runners:
    """Runs what is added, at once and side by side, each piece under its key."""

    def __init__(self, all_begun: Callable[[], None]) -> None:
        self._all_begun = all_begun
        self.running: dict[Key, asyncio.Task[None]] = {}
        """The task that runs a piece now."""
        self._ready: deque[tuple[Key, str, Callable[..., Work], tuple[Any, ...]]] = deque()
        self._spare = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self.running) + len(self._ready)

    @property
    def waiting(self) -> bool:
        """Something has not begun yet; `all_begun` is called when nothing is left that has not."""
        return bool(self._ready)

    def add(self, key: Key, name: str, work: Callable[..., Work], *arguments: Any) -> None:
        self._ready.append((key, name, work, arguments))
        self._idle.clear()

    def start(self) -> None:
        """Has a runner begin with what was added."""
        if self._ready and not self._spare:
            self._provide()

    def take_back(self) -> list[Key]:
        """The keys of what has not begun yet; it will not."""
        keys = self.withdraw(set(self.unbegun()))
        self.rest()
        return keys

    def unbegun(self) -> list[Key]:
        """The keys of what has not begun yet. Any thread may ask."""
        return [key for key, *_ in list(self._ready)]

    def withdraw(self, keys: Collection[Key]) -> list[Key]:
        """Keeps these pieces from beginning; those that have begun are left out. Any thread may call it."""
        withdrawn = []
        for piece in [piece for piece in list(self._ready) if piece[0] in keys]:
            with suppress(ValueError, IndexError):  # its runner was faster
                self._ready.remove(piece)
                withdrawn.append(piece[0])
        return withdrawn

    async def idle(self) -> None:
        """Nothing runs and nothing is about to."""
        await self._idle.wait()

    def _provide(self) -> None:
        """While something is ready, one runner that has not begun yet stands by."""
        self._spare = True
        task = asyncio.create_task(GuardedCoroutine(self._run()), name="redrive-runner")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        self._spare = False
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - for the type checker: a coroutine of ours always runs in a task
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
        """Tells those who wait for `idle` where nothing is left."""
        if not self.running and not self._ready:
            self._idle.set()


@types.coroutine
def _isolated(work: Work) -> Generator[Any, Any, None]:
    """Awaits a coroutine inside a context of its own, so that nothing it sets is seen by the next."""
    run = copy_context().run
    try:
        yielded = run(work.send, None)
        while True:
            try:
                sent = yield yielded
            except BaseException as error:  # noqa: BLE001 - it is the work's to handle
                yielded = run(work.throw, error)
            else:
                yielded = run(work.send, sent)
    except StopIteration:
        return


class GuardedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine for an asyncio task that is not closed by what it awaits.

    Python closes a coroutine into which GeneratorExit is thrown, and so asyncio does where a future failed with it: the
    attempt could not be settled any more. Here it arrives inside as `Raised`.
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
        return getattr(self._work, name)  # whoever looks at the task sees the coroutine
