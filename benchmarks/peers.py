"""Other queues on SQLite, each synced on every commit, and what each of them promises."""

from __future__ import annotations

import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOGETHER = 100
"""Jobs per commit."""
MODULES = {"huey": "huey", "litequeue": "litequeue", "persist-queue": "persistqueue"}
PROMISES = {
    "huey": (
        "`SqliteHuey(fsync=True)`: WAL, synchronous=FULL, results stored, tasks executed by one worker in turn, as its "
        "consumer does but without its pauses. A task is deleted when it is taken: a kill while it runs loses it. "
        "Retries; no dead letters."
    ),
    "litequeue": (
        "`LiteQueue` sets synchronous=NORMAL; here FULL is set on its connection. Put, pop, done: messages only, "
        "nothing runs them, retries them or notices a consumer that died (locked messages can be listed by age). "
        "Results are not stored."
    ),
    "persist-queue": (
        "`SQLiteAckQueue` with its JSON serializer: WAL, synchronous=FULL set on its connection. Put, get, ack: "
        "messages only; unacknowledged ones come back when the queue is opened again. Results are not stored."
    ),
}


def installed() -> list[str]:
    return [name for name, module in MODULES.items() if importlib.util.find_spec(module) is not None]


def huey_with(folder: Path, did: Callable[[Any], object], *, fsync: bool = True) -> tuple[Any, Any]:
    """A queue, and its task, which does nothing but to tell that it ran."""
    from huey import SqliteHuey

    huey = SqliteHuey(filename=str(folder / "huey.db"), fsync=fsync)

    def noop(n: Any) -> Any:
        did(n)
        return n

    return huey, huey.task()(noop)


def _huey(folder: Path, *, fsync: bool) -> tuple[Any, Any]:
    return huey_with(folder, lambda n: None, fsync=fsync)


def huey_enqueued(folder: Path, size: int) -> float:
    huey, noop = _huey(folder, fsync=True)
    noop(0)
    begun = time.perf_counter()
    for number in range(size):
        noop(number)
    seconds = time.perf_counter() - begun
    assert huey.storage.queue_size() == size + 1
    return size / seconds


def huey_failed(folder: Path, size: int, attempts: int) -> float:
    """Attempts per second; after the last one huey forgets the task."""
    from huey import SqliteHuey

    huey, made = SqliteHuey(filename=str(folder / "huey.db"), fsync=True), 0

    def fail(n: int) -> None:
        nonlocal made
        made += 1
        raise ValueError(f"number {n} is not possible")

    task = huey.task(retries=attempts - 1)(fail)
    for number in range(size):
        task(number)
    begun = time.perf_counter()
    while (taken := huey.dequeue()) is not None:
        huey.execute(taken)
    seconds = time.perf_counter() - begun
    assert made == size * attempts, f"{made} attempts for {size} jobs"
    return made / seconds


def huey_drained(folder: Path, size: int) -> float:
    filling, noop = _huey(folder, fsync=False)
    for number in range(size):
        noop(number)
    filling.storage.close()
    huey, _ = _huey(folder, fsync=True)
    begun, done = time.perf_counter(), 0
    while (task := huey.dequeue()) is not None:
        huey.execute(task)
        done += 1
    seconds = time.perf_counter() - begun
    assert done == huey.result_count() == size
    return size / seconds


def litequeue_on(folder: Path, synchronous: str) -> Any:
    from litequeue import LiteQueue

    queue = LiteQueue(folder / "litequeue.db")
    queue.conn.execute(f"PRAGMA synchronous = {synchronous}")
    return queue


def litequeue_enqueued(folder: Path, size: int) -> float:
    queue = litequeue_on(folder, "FULL")
    queue.put("{}")
    begun = time.perf_counter()
    for number in range(size):
        queue.put(json.dumps({"n": number}))
    seconds = time.perf_counter() - begun
    assert queue.qsize() == size + 1
    return size / seconds


def litequeue_enqueued_many(folder: Path, size: int) -> float:
    """A hundred puts per transaction: it has no call for many."""
    queue = litequeue_on(folder, "FULL")
    queue.put("{}")
    begun = time.perf_counter()
    for first in range(0, size, TOGETHER):
        with queue.transaction(mode="IMMEDIATE"):
            for number in range(first, first + TOGETHER):
                queue.put(json.dumps({"n": number}))
    seconds = time.perf_counter() - begun
    assert queue.qsize() == size + 1
    return size / seconds


def litequeue_drained(folder: Path, size: int) -> float:
    filling = litequeue_on(folder, "OFF")
    for number in range(size):
        filling.put(json.dumps({"n": number}))
    filling.close()
    queue = litequeue_on(folder, "FULL")
    begun = time.perf_counter()
    while (message := queue.pop()) is not None:
        json.loads(message.data)
        queue.done(message.message_id)
    seconds = time.perf_counter() - begun
    assert queue.qsize() == 0
    return size / seconds


def _persistqueue(folder: Path, synchronous: str) -> Any:
    from persistqueue import SQLiteAckQueue
    from persistqueue.serializers import json as serializer

    queue: Any = SQLiteAckQueue(str(folder), serializer=serializer)
    queue._putter.execute(f"PRAGMA synchronous = {synchronous}")
    return queue


def persistqueue_enqueued(folder: Path, size: int) -> float:
    queue = _persistqueue(folder, "FULL")
    queue.put({})
    begun = time.perf_counter()
    for number in range(size):
        queue.put({"n": number})
    seconds = time.perf_counter() - begun
    assert queue.size == size + 1
    return size / seconds


def persistqueue_drained(folder: Path, size: int) -> float:
    from persistqueue import Empty

    warnings.simplefilter("ignore")
    filling = _persistqueue(folder, "OFF")
    for number in range(size):
        filling.put({"n": number})
    filling.close()
    queue = _persistqueue(folder, "FULL")
    begun = time.perf_counter()
    while True:
        try:
            message = queue.get(block=False, raw=True)
        except Empty:
            break
        queue.ack(id=message["pqid"])
    seconds = time.perf_counter() - begun
    assert queue.acked_count() == size
    return size / seconds
