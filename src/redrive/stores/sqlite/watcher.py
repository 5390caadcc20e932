"""The thread that notices other processes' commits and wakes what waits here: by a socket, and by looking as well."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from redrive.stores.sqlite.process_wakeups import DUE, WakeupSocket
from redrive.stores.sqlite.wakeups import ForeignCommits, Waiters, call_in_loop

log = logging.getLogger("redrive.store")
POLL_SECONDS: Final = 0.04
"""How often the thread looks into the file where it has no socket, or while the last look has found a commit."""
SLOW_POLL_SECONDS: Final = 0.5
"""How often it looks otherwise: older versions of redrive do not send."""
PAUSE_SECONDS: Final = 0.005
"""The shortest time between two looks."""
LONGEST_PAUSE_SECONDS: Final = 0.04
"""Up to which it doubles while other processes commit one thing after another and nothing of it is for this one."""
QUIET_SECONDS: Final = 0.1
"""After so long without a commit the pause is short again."""
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

    def tell(self, ids: Iterable[str] | None) -> bool:
        """Tell the followers of these jobs, or all of them; whether there are any. Called by the watcher's thread."""
        with self._lock:
            chosen = self._by_job.keys() if ids is None else self._by_job.keys() & set(ids)
            followers = {follower for id in chosen for follower in self._by_job[id]}
        for loop, changed in followers:
            call_in_loop(loop, changed.set)
        return bool(followers)


class Watcher:
    """Looks when a byte comes, and from time to time, until the store is closed."""

    def __init__(
        self,
        foreign: ForeignCommits,
        socket: WakeupSocket,
        waiters: Waiters,
        followers: JobFollowers,
        wake: Callable[[], None],
        count_claimed: Callable[[], int],
        closed: threading.Event,
    ) -> None:
        self._foreign = foreign
        self._socket = socket
        self._waiters = waiters
        self._followers = followers
        self._wake = wake
        self._count_claimed = count_claimed
        """Counts the jobs that this process has claimed so far."""
        self._closed = closed
        self._failing = False
        self._owes = False
        """A commit was seen of which the workers have not been told yet."""
        self._not_before = 0.0
        self._active = True
        """The last look has found a commit, or there was none: so the next look comes soon, whoever waits."""
        self._claimed = 0
        self._told = False
        self._looked = 0.0
        self._pause = PAUSE_SECONDS

    def run(self) -> None:
        """Bind the socket, then look: the first time also without a byte, as others may not have seen the socket."""
        try:
            self._socket.bind()
            while not self._closed.is_set():
                self._look_and_survive()
        finally:
            self._socket.close()

    def _look_and_survive(self) -> None:
        """Listen and look. After an error wake all that wait and go on: without this thread they would hear nothing."""
        try:
            self._look(self._listen())
        except Exception:
            if not self._failing:
                log.exception("looking for other processes' commits failed; it goes on, but please report this")
            self._failing = True
            self._wake()
            self._followers.tell(None)
            self._closed.wait(SLOW_POLL_SECONDS)
        else:
            self._failing = False

    def _listen(self) -> bytes:
        """Wait for a byte or for the next look."""
        if not self._socket.check():
            self._closed.wait(POLL_SECONDS)
            return b""
        if not self._active and not self._owes:
            return self._socket.receive(SLOW_POLL_SECONDS)
        soon = self._not_before - time.monotonic()
        return self._socket.receive(max(0.0, soon) if self._owes else POLL_SECONDS)

    def _look(self, heard: bytes) -> None:
        self._socket.take_rouse(True)
        wanted = heard or self._active or self._waiters or self._followers
        self._active = bool(wanted) and self._foreign.came()
        if self._active:
            self._socket.take_rouse(False)  # the next look comes soon anyway
            self._owes = True
            self._tell_followers()
        if self._owes and (DUE in heard or time.monotonic() >= self._not_before):
            self._owes = False
            self._not_before = time.monotonic() + MOVED_SECONDS
            self._wake()
        if heard:
            self._closed.wait(self._choose_pause())

    def _tell_followers(self) -> None:
        if self._followers:
            self._told = self._followers.tell(self._foreign.list_moved()) or self._told
        else:
            self._foreign.skip_moved()

    def _choose_pause(self) -> float:
        """Choose how long to leave the others' bytes unread: longer each time if none has brought anything."""
        claimed, now = self._count_claimed(), time.monotonic()
        useful = self._told or claimed != self._claimed or now - self._looked > QUIET_SECONDS
        self._pause = PAUSE_SECONDS if useful else min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._told, self._claimed, self._looked = False, claimed, now
        return self._pause
