"""Row 12: what the guard of the database costs a program that opens other files."""

from __future__ import annotations

import asyncio
import statistics
import sys
import timeit
from pathlib import Path

from benchmarks.bench import Bench, Check, Contestant

TIMES = 20_000
LIMIT_MICROSECONDS = 1.0


def announced(folder: Path, *, guarded: bool) -> float:
    """Microseconds in which Python announces to all audit hooks that a foreign file is about to be opened.

    That is all the guard adds to `open()`, whose own 5 to 20 µs would hide it on a busy machine.
    """
    if not guarded:
        sys.addaudithook = lambda hook: None
    return asyncio.run(_announced(folder))


async def _announced(folder: Path) -> float:
    from redrive import Redrive

    name, audit = str(folder / "foreign.txt"), sys.audit
    async with Redrive(folder / "jobs.db"):
        taken = min(timeit.repeat(lambda: audit("open", name, "rb", 0), number=TIMES, repeat=9))
    return taken / TIMES * 1e6


def row_12(bench: Bench) -> list[Check]:
    function = "benchmarks.opening:announced"
    contestants = {
        "guarded": Contestant(function, {"guarded": True}),
        "without": Contestant(function, {"guarded": False}),
    }
    values = bench.contest("opening a foreign file", contestants)
    added = statistics.median(a - b for a, b in zip(values["guarded"], values["without"], strict=True))
    said = {name: f"{statistics.median(taken):.2f} µs" for name, taken in values.items()}
    return [Check(12, "the guard, per opening of a foreign file", added, "≤", LIMIT_MICROSECONDS, "µs", said, values)]
