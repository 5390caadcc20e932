"""Runners: what has not begun can be withdrawn, also by another thread, and then never begins."""

import asyncio
import threading

from redrive.engine.runners import Key, Runners
from tests.support import soon


def key(number: int) -> Key:
    return str(number), "token"


async def test_what_is_withdrawn_never_begins_and_what_has_begun_is_not_withdrawn() -> None:
    begun: list[int] = []
    go = asyncio.Event()

    async def work(number: int) -> None:
        begun.append(number)
        await go.wait()

    runners = Runners(lambda: None)
    runners.add(key(0), "work", work, 0)
    runners.start()
    await asyncio.sleep(0)
    for number in range(1, 5):
        runners.add(key(number), "work", work, number)
        runners.start()
    assert runners.withdraw({key(0), key(2), key(4)}) == [key(2), key(4)]
    assert runners.unbegun() == [key(1), key(3)]
    go.set()
    await soon(runners.idle())
    assert sorted(begun) == [0, 1, 3]


async def test_each_piece_begins_or_is_withdrawn_while_a_thread_competes() -> None:
    """Every piece has one fate, however the thread and the event loop take turns."""
    begun: list[Key] = []
    withdrawn: list[Key] = []
    over = threading.Event()

    async def work(number: int) -> None:
        begun.append(key(number))
        await asyncio.sleep(0)

    runners = Runners(lambda: None)

    def compete() -> None:
        while not over.is_set():
            withdrawn.extend(runners.withdraw(set(runners.unbegun()[::2])))

    thread = threading.Thread(target=compete)
    thread.start()
    for number in range(3000):
        runners.add(key(number), "work", work, number)
        runners.start()
        if number % 20 == 0:
            await asyncio.sleep(0)
    for _ in range(50):
        runners.rest()
        await asyncio.sleep(0.001)
    over.set()
    await asyncio.to_thread(thread.join)
    runners.rest()
    await soon(runners.idle())
    assert len(begun) + len(withdrawn) == 3000
    assert {*begun, *withdrawn} == {key(number) for number in range(3000)}
    assert not runners
