"""Threads for sync tasks."""

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from redrive.engine.threads import MOST_GIVEN_UP, Threads, ask
from tests.support import eventually, soon


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


# ---- a function of the user's, plain or async

said: ContextVar[str] = ContextVar("said", default="nothing")


async def test_a_plain_function_is_asked_in_a_daemon_thread_in_the_callers_context() -> None:
    said.set("hello")

    def where(more: str) -> tuple[str, bool, bool]:
        return said.get() + more, threading.current_thread().daemon, threading.current_thread() is asyncio_thread

    asyncio_thread = threading.current_thread()
    assert await soon(ask(where, "!")) == ("hello!", True, False)


async def test_an_async_function_and_one_that_returns_an_awaitable_are_awaited_here() -> None:
    async def here(more: int) -> tuple[int, threading.Thread]:
        return more, threading.current_thread()

    assert await soon(ask(here, 1)) == (1, threading.current_thread())
    assert await soon(ask(lambda: here(2))) == (2, threading.current_thread())


async def test_what_a_plain_function_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await soon(ask(lambda: 1 // 0))


async def test_nobody_waits_for_a_function_that_is_given_up() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ask(release.wait, 20)
    release.set()


async def test_a_function_whose_calls_all_hang_is_not_called_again_until_one_returns() -> None:
    """Each would keep a thread for ever."""
    release, begun = threading.Event(), threading.Semaphore(0)
    calls: list[int] = []

    def hang(number: int) -> int:
        calls.append(number)
        begun.release()
        release.wait(20)
        return number

    async def given_up(number: int) -> None:
        waiting = asyncio.create_task(ask(hang, number))
        await soon(asyncio.to_thread(begun.acquire))
        waiting.cancel()
        await asyncio.wait({waiting})

    for number in range(MOST_GIVEN_UP):
        await given_up(number)
    with pytest.raises(TimeoutError, match="4 earlier calls have not returned"):
        await ask(hang, 99)
    assert await soon(ask(lambda: "another")) == "another"
    assert calls == list(range(MOST_GIVEN_UP))
    release.set()

    async def answers() -> bool:
        try:
            return await ask(hang, 100) == 100
        except TimeoutError:
            return False

    await eventually(answers)


def test_a_forked_child_does_not_count_calls_that_hang_in_its_parent() -> None:
    code = """
import asyncio, os, threading
from redrive.engine.threads import MOST_GIVEN_UP, ask_within

released = threading.Event()
def hang():
    return released.wait(30)

async def ask(seconds):
    try:
        return await ask_within(seconds, hang)
    except TimeoutError as error:
        return str(error)

for _ in range(MOST_GIVEN_UP):
    asyncio.run(ask(0.05))
if (child := os.fork()) == 0:
    released.set()
    os._exit(0 if asyncio.run(ask(20)) is True else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), asyncio.run(ask(20)), flush=True)
os._exit(0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.startswith(f"0 {MOST_GIVEN_UP} earlier calls have not returned"), ran.stderr
