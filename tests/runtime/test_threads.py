"""Threads for sync tasks."""

import asyncio
import threading
from typing import Any

import pytest

from redrive.runtime.threads import Threads
from tests.support import soon


async def test_results_and_errors_come_back() -> None:
    threads = Threads()
    assert await soon(threads.run(lambda: threading.current_thread().daemon)) is True
    with pytest.raises(ZeroDivisionError):
        await soon(threads.run(lambda: 1 // 0))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await soon(threads.run(lambda: next(iter([]))))
    threads.stop()


async def test_as_many_run_at_once_as_are_asked_for() -> None:
    threads, barrier = Threads(), threading.Barrier(20)
    await soon(asyncio.gather(*(threads.run(lambda: barrier.wait(20)) for _ in range(20))))
    threads.stop()


async def test_a_thread_that_is_stuck_holds_up_nobody_after_a_restart() -> None:
    threads, release = Threads(), threading.Event()
    stuck = threads.run(lambda: release.wait(20))
    threads.stop()
    try:
        assert await soon(threads.run(lambda: "quick")) == "quick"
        assert await soon(threads.run(lambda: "again")) == "again"
    finally:
        release.set()
    assert await soon(stuck) is True
    threads.stop()


async def test_a_cancelled_wait_does_not_hurt_the_thread() -> None:
    threads, release, done = Threads(), threading.Event(), threading.Event()

    def work() -> None:
        release.wait(20)
        done.set()

    future: asyncio.Future[Any] = threads.run(work)
    future.cancel()
    release.set()
    assert await asyncio.to_thread(done.wait, 20)
    assert await soon(threads.run(lambda: 1)) == 1
    threads.stop()
