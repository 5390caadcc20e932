"""Row 27: what a job costs in processor time and in bytes that go to the disk, as the system counts them."""

from __future__ import annotations

import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import raw
from benchmarks.bench import CONCURRENCY, Bench, Check, Contestant, amount, command, environment
from benchmarks.idle import STATUS, counted
from redrive import Redrive

VERBS = {"one": "enqueue, one at a time", "many": "bulk enqueue", "drain": "drain of no-op jobs"}
_WAL_HEADER, _FRAME_HEADER = 32, 24


async def of_redrive(folder: Path, verb: str, size: int) -> dict[str, float]:
    return {**await _redrive(folder / "a.db", verb, size), **await _redrive(folder / "b.db", verb, size, held=True)}


async def _redrive(database: Path, verb: str, size: int, *, held: bool = False) -> dict[str, float]:
    rd = Redrive(database)

    @rd.task
    async def noop(n: int) -> int:
        return n

    async def one() -> None:
        for number in range(size):
            await rd.enqueue("noop", {"n": number})

    async def many() -> None:
        await rd.enqueue_many("noop", [{"n": number} for number in range(size)])

    async def drain() -> None:
        await rd.drain(concurrency=CONCURRENCY)

    async with rd:
        await rd.enqueue_many("noop", [{"n": number} for number in range(100)])
        await rd.drain(concurrency=CONCURRENCY)
        if verb == "drain":
            await many()
        await rd.enqueue("noop", {"n": 0})
        return await _used(database, {"one": one, "many": many, "drain": drain}[verb], size, held=held)


async def of_raw(folder: Path, verb: str, size: int) -> dict[str, float]:
    return {**await _raw(folder / "a.db", verb, size), **await _raw(folder / "b.db", verb, size, held=True)}


async def _raw(database: Path, verb: str, size: int, *, held: bool = False) -> dict[str, float]:
    connection = raw.open_file(database)
    raw.fill(connection, 100)
    raw.drain(connection)

    async def one() -> None:
        for number in range(size):
            raw.insert(connection, number, 1)

    async def many() -> None:
        raw.fill(connection, size)

    async def drain() -> None:
        raw.drain(connection)

    if verb == "drain":
        raw.fill(connection, size)
    raw.insert(connection, 0, 1)
    return await _used(database, {"one": one, "many": many, "drain": drain}[verb], size, held=held)


async def _used(database: Path, action: Callable[[], Awaitable[None]], size: int, *, held: bool) -> dict[str, float]:
    """Per job: processor time and bytes to the disk, or, with a reader that holds the log, the bytes of the log."""
    if held:
        with _reader(database) as logged:
            before = logged()
            await action()
            return {"log": (logged() - before) / size}
    begun, before = time.process_time(), counted()
    await action()
    seconds, used = time.process_time() - begun, counted() - before
    return {"CPU": seconds / size * 1e6, "disk": used.written / size}


@contextmanager
def _reader(database: Path) -> Iterator[Callable[[], int]]:
    """Another process reads from an old snapshot, so that the log cannot begin anew; it tells how long the log is."""
    run = command("benchmarks.written:hold", database.parent, {"file": database.name})
    process = subprocess.Popen(run, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asked, answers = process.stdin, process.stdout
    assert asked is not None and answers is not None

    def logged() -> int:
        asked.write("\n")
        asked.flush()
        return int(answers.readline())

    try:
        yield logged
    finally:
        process.kill()
        process.communicate()


def hold(folder: Path, file: str) -> None:
    connection = sqlite3.connect(folder / file, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    for _ in sys.stdin:
        print(_log_bytes(folder / f"{file}-wal"), flush=True)


def _log_bytes(log: Path) -> int:
    """The part of a WAL that is in use: its frames carry the salts of its header."""
    with log.open("rb") as file:
        header = file.read(_WAL_HEADER)
        step, salts, place = _FRAME_HEADER + int.from_bytes(header[8:12]), header[16:24], _WAL_HEADER
        while file.seek(place) and file.read(_FRAME_HEADER)[8:16] == salts:
            place += step
    return place


def row_27(bench: Bench) -> list[Check]:
    if not STATUS.exists():
        return [Check(27, "what a job costs", None, "≤", None, "", {})]
    return [check for verb in VERBS for check in _of_verb(bench, verb)]


def _of_verb(bench: Bench, verb: str) -> list[Check]:
    work, size = VERBS[verb], bench.size(500 if verb == "one" else 10_000, 100)
    contestants = {
        who: Contestant(f"benchmarks.written:of_{who}", {"verb": verb, "size": size}) for who in ("redrive", "raw")
    }
    found: Mapping[str, list[Any]] = bench.contest(f"what a job costs: {work}", contestants, bench.rounds(3))
    times = {who: [one["CPU"] for one in rounds] for who, rounds in found.items()}
    sizes = {f"{who}, {what}": [one[what] for one in found[who]] for who in found for what in ("disk", "log")}
    return [
        _check(f"{work}, processor time per job", "µs", times, "redrive", "raw"),
        _check(f"{work}, bytes written per job", "bytes", sizes, "redrive, disk", "raw, disk"),
    ]


def _check(work: str, unit: str, values: Mapping[str, list[float]], ours: str, other: str) -> Check:
    """Where files are in memory, nothing is written to a disk."""
    said = {name: f"{amount(statistics.median(taken))} {unit}" for name, taken in values.items()}
    shares = [a / b for a, b in zip(values[ours], values[other], strict=True) if b]
    return Check(27, work, statistics.median(shares) if shares else None, "≤", None, "× raw", said, values)
