"""Obeys SIGTERM although the event loop is blocked: a thread ends the process when the grace is over."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from redrive.engine.interrupts import ended_by_a_job

if TYPE_CHECKING:
    from redrive.engine.worker import Worker

log = logging.getLogger("redrive.worker")
ANSWER_SECONDS: Final = 0.5
"""An event loop that does not answer within this time is blocked."""
BY_A_JOB: Final = 128 + signal.SIGTERM
"""Exit status where a job told the process to end: a process manager sees by it that the end was not its own order."""
FAREWELL_SECONDS: Final = 0.4
"""Seconds that the store has to take the jobs that are given back."""


class ShutdownWatch:
    """Ends a process that was told to end and whose event loop is blocked. A loop that answers ends by itself."""

    def __init__(self, workers: Callable[[], Iterable[Worker]], grace: float, status: int = 0) -> None:
        self._workers = workers
        self._grace = grace
        self._status = status
        self._loop = asyncio.get_running_loop()
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        """A queue instead of an event, because a signal may arrive while another one's handler runs: setting an event
        takes a lock that the interrupted handler holds, and both handlers would wait for ever."""
        self._over = threading.Event()

    def hear(self, *numbers: signal.Signals) -> None:
        """Listens for these signals, which the event loop handles as well; the loop's handler must be there already.

        The loop's handler runs only when the loop is free, Python's handler also while a task blocks the loop.
        """
        for number in numbers:
            signal.signal(number, lambda *_: self.tell())
        threading.Thread(target=self._watch, name="redrive-ending", daemon=True).start()

    def tell(self) -> None:
        """Reports that the process was told to end. May be called by a signal handler, also while that handler runs."""
        self._told.put(None)

    def over(self) -> None:
        """Reports that everything that had to stop has stopped."""
        self._over.set()
        self.tell()

    def _watch(self) -> None:
        self._told.get()
        for worker in self._workers():
            worker.hurry()
        self._over.wait(self._grace)
        while not self._over.is_set():
            if not self._answers():
                self._end()
            self._over.wait(ANSWER_SECONDS)

    def _answers(self) -> bool:
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed: there is nothing left to watch
            self._over.set()
            return True
        return answered.wait(ANSWER_SECONDS)

    def _end(self) -> None:
        """Ends the process. The blocking job is not given back: the lock file tells other processes at once."""
        for worker in self._workers():
            try:
                asyncio.run(asyncio.wait_for(worker.abandon(), FAREWELL_SECONDS))
            except Exception as error:  # noqa: BLE001 - the process ends; its lock file tells the others
                log.warning("worker %s could not give back its jobs: %r", worker.id, error)
        order = ended_by_a_job()
        log.critical("told to end%s, and the event loop is blocked: the process ends without it", _by(order))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._status or (BY_A_JOB if order is not None else 0))


def _by(job: str | None) -> str:
    return f" ({job})" if job is not None else ""
