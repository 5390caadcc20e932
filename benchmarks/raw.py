"""What a careful person writes by hand with apsw in one thread: the limit that redrive is measured against.

Unique ids, JSON payloads and results, priorities, schedules, leases and random tokens that fence the result; WAL and
synchronous=FULL. No history, no retries, no counters, no classification, no other callers, no tasks.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
import uuid
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw

TABLE = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, queue TEXT NOT NULL, task TEXT, payload TEXT, state TEXT NOT NULL, priority INT, run_at REAL,
    attempts INT DEFAULT 0, token TEXT, lease_until REAL, created_at REAL, updated_at REAL, result TEXT
);
CREATE INDEX waiting ON jobs (queue, priority, run_at) WHERE state = 'waiting';
CREATE INDEX leases ON jobs (lease_until) WHERE state = 'running';
"""
INSERT = (
    "INSERT INTO jobs (id, queue, task, payload, state, priority, run_at, created_at, updated_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
CLAIM = (
    "UPDATE jobs SET state = 'running', token = ?, lease_until = ?, attempts = attempts + 1, updated_at = ?"
    " WHERE rowid IN (SELECT rowid FROM jobs WHERE queue = 'q' AND state = 'waiting' AND priority = 2 AND run_at <= ?"
    " ORDER BY run_at LIMIT ?) RETURNING id, payload"
)
FINISH = "UPDATE jobs SET state = 'done', result = ?, updated_at = ?, token = NULL WHERE id = ? AND token = ?"
STRIPPED = (
    "UPDATE jobs SET state = 'done', updated_at = ?"
    " WHERE rowid IN (SELECT rowid FROM jobs WHERE queue = 'q' AND state = 'waiting' AND priority = 2 AND run_at <= ?"
    " ORDER BY run_at LIMIT ?) RETURNING id, payload"
)


def open_file(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute(TABLE)
    return connection


def new_row(number: int) -> tuple[str, str, str, str, str, int, float, float, float]:
    now = time.time()
    return (str(uuid.uuid4()), "q", "noop", json.dumps({"n": number}), "waiting", 2, now, now, now)


def insert(connection: apsw.Connection, first: int, count: int) -> None:
    rows = [new_row(number) for number in range(first, first + count)]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, rows)
    connection.execute("COMMIT")


def claim(connection: apsw.Connection, limit: int) -> tuple[str, list[Any]]:
    """A committed transaction: these jobs are ours until the lease ends."""
    token, now = secrets.token_hex(8), time.time()
    connection.execute("BEGIN IMMEDIATE")
    claimed = connection.execute(CLAIM, (token, now + 90, now, now, limit)).fetchall()
    connection.execute("COMMIT")
    return token, claimed


def finish(connection: apsw.Connection, token: str, claimed: list[Any]) -> None:
    """A second committed transaction: each result by id and token."""
    results = [(json.dumps(json.loads(payload)["n"]), time.time(), id, token) for id, payload in claimed]
    connection.execute("BEGIN IMMEDIATE")
    for result in results:
        connection.execute(FINISH, result)
    connection.execute("COMMIT")


def drain(connection: apsw.Connection) -> int:
    """The raw loop: 100 per commit."""
    done = 0
    while True:
        token, claimed = claim(connection, 100)
        if not claimed:
            return done
        finish(connection, token, claimed)
        done += len(claimed)


def one_row_commits(folder: Path, size: int) -> float:
    connection = open_file(folder / "raw.db")
    insert(connection, 0, 10)
    begun = time.perf_counter()
    for number in range(size):
        insert(connection, number, 1)
    return size / (time.perf_counter() - begun)


async def one_row_commits_by_a_thread(folder: Path, size: int) -> float:
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


def inserts(folder: Path, size: int) -> float:
    connection = open_file(folder / "raw.db")
    insert(connection, 0, 10)
    begun = time.perf_counter()
    for first in range(0, size, 1_000):
        insert(connection, first, min(1_000, size - first))
    return size / (time.perf_counter() - begun)


def drained(folder: Path, size: int) -> float:
    connection = open_file(folder / "raw.db")
    insert(connection, 0, 200)
    drain(connection)
    insert(connection, 0, size)
    begun = time.perf_counter()
    done = drain(connection)
    seconds = time.perf_counter() - begun
    assert done == size, f"{done} of {size} jobs done"
    return size / seconds


def drained_stripped(folder: Path, size: int) -> float:
    """For information: claim and finish in one commit. A kill loses what was claimed; there is no fence, no result."""
    connection = open_file(folder / "raw.db")
    insert(connection, 0, size)
    begun, done = time.perf_counter(), 0
    while done < size:
        now = time.time()
        connection.execute("BEGIN IMMEDIATE")
        claimed: list[Any] = connection.execute(STRIPPED, (now, now, 100)).fetchall()
        connection.execute("COMMIT")
        done += len([json.loads(payload)["n"] for _, payload in claimed])
    return size / (time.perf_counter() - begun)
