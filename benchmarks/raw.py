"""The limit that redrive is measured against: the fewest statements that keep jobs, by Python's own sqlite3.

One thread, WAL, synchronous=FULL. Jobs have a number, a payload, a time when they are due, attempts, a result and an
error. There are no other callers, no leases, no fences, no history, no retries after a crash and no tasks.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

TABLE = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, queue TEXT NOT NULL, payload TEXT NOT NULL, state TEXT NOT NULL, run_at REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, result TEXT, error TEXT
);
CREATE INDEX due ON jobs (queue, run_at) WHERE state = 'waiting';
"""
INSERT = "INSERT INTO jobs (queue, payload, state, run_at) VALUES ('q', ?, 'waiting', ?)"
CLAIM = (
    "UPDATE jobs SET state = 'running', attempts = attempts + 1 WHERE id IN (SELECT id FROM jobs"
    " WHERE queue = 'q' AND state = 'waiting' AND run_at <= ? ORDER BY run_at LIMIT ?) RETURNING id, payload"
)
FINISH = "UPDATE jobs SET state = 'done', result = ? WHERE id = ?"
FAIL = (
    "UPDATE jobs SET state = CASE WHEN attempts < ? THEN 'waiting' ELSE 'dead' END, error = ?, run_at = ? WHERE id = ?"
)
TOGETHER = 100
"""Jobs per commit."""


def open_file(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if not connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
        connection.executescript(TABLE)
    return connection


def insert(connection: sqlite3.Connection, first: int, count: int) -> None:
    rows = [(json.dumps({"n": number}), time.time()) for number in range(first, first + count)]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, rows)
    connection.execute("COMMIT")


def claim(connection: sqlite3.Connection, limit: int) -> list[Any]:
    """Take jobs in a committed transaction."""
    connection.execute("BEGIN IMMEDIATE")
    claimed = connection.execute(CLAIM, (time.time(), limit)).fetchall()
    connection.execute("COMMIT")
    return claimed


def finish(connection: sqlite3.Connection, claimed: list[Any]) -> None:
    """Write their results in a second one."""
    results = [(json.dumps(json.loads(payload)["n"]), id) for id, payload in claimed]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(FINISH, results)
    connection.execute("COMMIT")


def fail(connection: sqlite3.Connection, claimed: list[Any], attempts: int) -> None:
    """Write their errors in a second one; they wait again, or are dead after so many attempts."""
    errors = [
        (attempts, f"number {json.loads(payload)['n']} is not possible", time.time(), id) for id, payload in claimed
    ]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(FAIL, errors)
    connection.execute("COMMIT")


def drain(connection: sqlite3.Connection) -> int:
    """The raw loop."""
    done = 0
    while claimed := claim(connection, TOGETHER):
        finish(connection, claimed)
        done += len(claimed)
    return done


def fill(connection: sqlite3.Connection, size: int) -> None:
    for first in range(0, size, TOGETHER):
        insert(connection, first, min(TOGETHER, size - first))


def enqueued(folder: Path, size: int) -> float:
    """One job per commit."""
    connection = open_file(folder / "raw.db")
    insert(connection, 0, 10)
    begun = time.perf_counter()
    for number in range(size):
        insert(connection, number, 1)
    return size / (time.perf_counter() - begun)


async def enqueued_by_a_thread(folder: Path, size: int) -> float:
    """The same where an event loop must not wait for the disk: handed to a thread, and the caller woken afterwards."""
    loop, work = asyncio.get_running_loop(), SimpleQueue[tuple[int, asyncio.Future[None]] | None]()
    writer = threading.Thread(target=_serve, args=(folder / "raw.db", loop, work))
    writer.start()

    async def hand_in(number: int) -> None:
        answer = loop.create_future()
        work.put((number, answer))
        await answer

    for number in range(10):
        await hand_in(number)
    begun = time.perf_counter()
    for number in range(size):
        await hand_in(number)
    seconds = time.perf_counter() - begun
    work.put(None)
    writer.join()
    return size / seconds


def _serve(path: Path, loop: asyncio.AbstractEventLoop, work: SimpleQueue[Any]) -> None:
    connection = open_file(path)
    while (item := work.get()) is not None:
        number, answer = item
        insert(connection, number, 1)
        loop.call_soon_threadsafe(answer.set_result, None)


def enqueued_many(folder: Path, size: int) -> float:
    connection = open_file(folder / "raw.db")
    insert(connection, 0, 10)
    begun = time.perf_counter()
    fill(connection, size)
    return size / (time.perf_counter() - begun)


def drained(folder: Path, size: int) -> float:
    connection = open_file(folder / "raw.db")
    fill(connection, 200)
    drain(connection)
    fill(connection, size)
    begun = time.perf_counter()
    done = drain(connection)
    seconds = time.perf_counter() - begun
    assert done == size, f"{done} of {size} jobs done"
    return size / seconds


def failed(folder: Path, size: int, attempts: int) -> float:
    """Attempts per second of jobs that fail until they are dead."""
    connection = open_file(folder / "raw.db")
    fill(connection, size)
    begun, made = time.perf_counter(), 0
    while claimed := claim(connection, TOGETHER):
        fail(connection, claimed, attempts)
        made += len(claimed)
    seconds = time.perf_counter() - begun
    assert made == size * attempts, f"{made} attempts for {size} jobs"
    return made / seconds
