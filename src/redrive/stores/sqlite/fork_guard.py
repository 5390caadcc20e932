"""Keeps a fork out of transactions: the child would inherit their locks and never release them."""

from __future__ import annotations

import logging
import os
import threading

log = logging.getLogger("redrive.store")
PATIENCE = 5.0
"""Seconds that a fork waits for threads that work in SQLite."""


class Use:
    """A thread works in SQLite inside `with`: a fork waits until no thread does, and keeps others out meanwhile."""

    def __init__(self) -> None:
        self._fresh()

    def _fresh(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._users = 0
        self._forking = False

    def __enter__(self) -> None:
        with self._changed:
            while self._forking:
                self._changed.wait()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._users -= 1
            if self._forking and not self._users:
                self._changed.notify_all()

    def before_fork(self) -> None:
        self._changed.acquire()
        self._forking = True
        if not self._changed.wait_for(lambda: not self._users, PATIENCE):
            log.warning(_FORKED_LATE, PATIENCE)

    def after_in_parent(self) -> None:
        self._forking = False
        self._changed.notify_all()
        self._changed.release()

    def after_in_child(self) -> None:
        """Start anew: of all threads only the forking one is left."""
        self._fresh()


_FORKED_LATE = (
    "forked while a transaction has been going on for %g s: a child that uses this store may not be able to write;"
    " fork earlier, or start processes by spawn"
)
use = Use()
generation = 0
"""Grows in every forked child, so that a store notices at once that it must open anew what it inherited."""


def _count_generations() -> None:
    global generation
    generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=use.before_fork, after_in_parent=use.after_in_parent, after_in_child=use.after_in_child)
    os.register_at_fork(after_in_child=_count_generations)
