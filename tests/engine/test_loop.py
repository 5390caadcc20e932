"""The one base of everything that runs again and again."""

import asyncio
import logging

import pytest

from redrive.engine import loop as loops
from redrive.engine.loop import Loop, carry_through
from tests.support import eventually, soon


class Counted(Loop):
    def __init__(self, pause: float = 0.0, failing: int = 0) -> None:
        super().__init__("counted")
        self.ticks = 0
        self.pause = pause
        self.bad_rounds = failing

    async def tick(self) -> float:
        self.ticks += 1
        await asyncio.sleep(0)
        if self.ticks <= self.bad_rounds:
            raise RuntimeError("this round failed")
        return self.pause


async def test_it_ticks_until_stopped() -> None:
    loop = Counted()
    loop.start()
    await eventually(lambda: loop.ticks > 5)
    await soon(loop.stop())
    ticks = loop.ticks
    await asyncio.sleep(0)
    assert (loop.running, loop.ticks) == (False, ticks)


async def test_start_and_stop_may_be_repeated() -> None:
    loop = Counted(pause=3600)
    await loop.stop()
    loop.start()
    loop.start()
    await eventually(lambda: loop.ticks == 1)
    await soon(loop.stop())
    await soon(loop.stop())
    loop.start()
    await eventually(lambda: loop.ticks == 2)
    await soon(loop.stop())


async def test_an_error_costs_a_pause_not_the_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loops, "AFTER_ERROR", 0.001)
    loop = Counted(failing=3)
    loop.start()
    await eventually(lambda: loop.ticks > 5)
    await soon(loop.stop())
    assert loop.errors == 3
    told = [record for record in caplog.records if "counted failed" in record.getMessage()]
    assert len(told) == 3 and all(record.levelno == logging.WARNING and record.exc_info for record in told)


async def test_a_nudge_ends_the_sleep() -> None:
    loop = Counted(pause=3600)
    loop.start()
    for expected in range(1, 6):
        await eventually(lambda: loop.ticks == expected)  # noqa: B023
        loop.nudge()
    await soon(loop.stop())


async def test_a_tick_under_way_is_finished() -> None:
    begun, release, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(Loop):
        async def tick(self) -> float:
            begun.set()
            await release.wait()
            finished.set()
            return 3600

    loop = Slow("slow")
    loop.start()
    await soon(begun.wait())
    stopping = asyncio.create_task(loop.stop())
    release.set()
    await soon(stopping)
    assert finished.is_set()


async def test_a_loop_without_a_tick_says_so() -> None:
    with pytest.raises(AssertionError, match="has no tick"):
        await Loop("empty").tick()


async def test_what_must_end_is_carried_through_however_often_somebody_cancels() -> None:
    release, over = asyncio.Event(), list[str]()

    async def work() -> None:
        await release.wait()
        over.append("done")

    caller = asyncio.create_task(carry_through(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(caller)
    assert over == ["done"]


async def test_an_error_of_what_is_carried_through_is_told_although_the_caller_was_cancelled() -> None:
    release = asyncio.Event()

    async def work() -> None:
        await release.wait()
        raise OSError("the disk")

    caller = asyncio.create_task(carry_through(work()))
    await asyncio.sleep(0)
    caller.cancel()
    release.set()
    with pytest.raises(OSError, match="the disk"):
        await soon(caller)
