"""A process that claims whatever it is woken for, and says so. Without a byte it would sleep for an hour."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from redrive.core.store import Wanted
from redrive.stores.sqlite import SqliteStore, store, watcher
from redrive.stores.sqlite.process_wakeups import WakeupSocket
from tests.stores.jobs import T0
from tests.support import eventually

NEVER = 3600.0


class ListeningSocket(WakeupSocket):
    """Notes when its thread listens for the first time: from then on only a byte makes it look."""

    listens = False

    def receive(self, seconds: float) -> bytes:
        self.listens = True
        return super().receive(seconds)


async def begun(store: Any, waiting: asyncio.Future[bool]) -> None:
    """Returns when only a byte can end the wait, or when it has ended already."""
    await eventually(lambda: waiting.done() or (store._wakeup_socket.listens and bool(store._waiters)))


async def claim_and_wait(store: SqliteStore) -> None:
    claim = await store.claim(Wanted(1), "waiter", T0)
    for job in claim.jobs:
        print(job.id, flush=True)
    if claim.jobs:
        return
    waiting = asyncio.ensure_future(store.wait(claim.mark, NEVER))
    await begun(store, waiting)
    if not waiting.done():
        print("waits", flush=True)
        await waiting
        print("woken", flush=True)


async def run(path: str) -> None:
    waiter = SqliteStore(path)
    await waiter.open()
    while True:
        await claim_and_wait(waiter)


def main() -> None:
    watcher.SLOW_POLL_SECONDS = watcher.POLL_SECONDS = NEVER  # type: ignore[misc]
    store.WakeupSocket = ListeningSocket  # type: ignore[misc, attr-defined]
    asyncio.run(run(sys.argv[1]))
