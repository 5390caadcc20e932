"""The thread that notices other processes' commits and wakes what waits here: by a socket, and by looking as well."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from redrive.stores.sqlite.process_wakeups import DUE, WakeupSocket
from redrive.stores.sqlite.wakeups import ForeignCommits, Waiters, call_in_loop

POLL_SECONDS: Final = 0.04
"""How often the thread looks into the file where it has no socket."""
SLOW_POLL_SECONDS: Final = 0.5
"""How often it looks as well where it has one: older versions of redrive do not send."""
PAUSE_SECONDS: Final = 0.005
"""The shortest time between two looks, so that a process that commits all the time does not keep this one busy."""
MOVED_SECONDS: Final = 0.04
"""The shortest time between two wake-ups of workers by commits that made nothing due."""


class JobFollowers:
    """Callers that wait until certain jobs move in other processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_job: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_job)

    @contextlib.contextmanager
    def added(self, ids: Collection[str], changed: asyncio.Event) -> Iterator[None]:
        """Set the event whenever one of these jobs moves, until the block ends."""
        follower = (asyncio.get_running_loop(), changed)
        with self._lock:
            for id in ids:
                self._by_job.setdefault(id, set()).add(follower)
        try:
            yield
        finally:
            with self._lock:
                for id in ids:
                    self._by_job[id].discard(follower)
                    if not self._by_job[id]:
                        del self._by_job[id]

    def tell(self, ids: Iterable[str] | None) -> None:
        """Tell the followers of these jobs, or all of them. Called by the watcher's thread."""
        with self._lock:
            chosen = self._by_job.keys() if ids is None else self._by_job.keys() & set(ids)
            followers = {follower for id in chosen for follower in self._by_job[id]}
        for loop, changed in followers:
            call_in_loop(loop, changed.set)


class Watcher:
    """Looks when a byte comes, and from time to time, until the store is closed."""

    def __init__(
        self,
        foreign: ForeignCommits,
        socket: WakeupSocket,
        waiters: Waiters,
        followers: JobFollowers,
        wake: Callable[[], None],
        closed: threading.Event,
    ) -> None:
        self._foreign = foreign
        self._socket = socket
        self._waiters = waiters
        self._followers = followers
        self._wake = wake
        self._closed = closed
        self._owes = False
        """A commit was seen of which the workers have not been told yet."""
        self._not_before = 0.0

    def run(self) -> None:
        """Bind the socket first: what is committed before others see it is found by the first look."""
        self._socket.bind()
        try:
            self._look(DUE)
            while not self._closed.is_set():
                self._look(self._listen())
        finally:
            self._socket.close()

    def _listen(self) -> bytes:
        """Wait for a byte or for the next look."""
        if not self._socket.check():
            self._closed.wait(POLL_SECONDS)
            return b""
        soon = max(0.0, self._not_before - time.monotonic())
        return self._socket.receive(soon if self._owes else SLOW_POLL_SECONDS)

    def _look(self, heard: bytes) -> None:
        waited_for = bool(self._waiters or self._followers)
        if (heard or waited_for) and self._foreign.came():
            self._owes = True
            self._tell_followers()
        if self._owes and (DUE in heard or time.monotonic() >= self._not_before):
            self._owes = False
            self._not_before = time.monotonic() + MOVED_SECONDS
            self._wake()
        if heard:
            self._closed.wait(PAUSE_SECONDS if waited_for else POLL_SECONDS)

    def _tell_followers(self) -> None:
        if self._followers:
            self._followers.tell(self._foreign.list_moved())
        else:
            self._foreign.skip_moved()
