"""Renews the rates that docs/sizing.md quotes from the table, between the comments that name them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.bench import CALLERS, CONCURRENCY, Check

FILE_RATES = {
    "`await enqueue(…)`, one after the other": (1, "redrive"),
    f"the same from {CALLERS} callers at once: one sync serves all that wait": (2, "redrive"),
    "`enqueue_many`": (3, "redrive"),
    f"jobs that do nothing, run by one worker process with `concurrency={CONCURRENCY}`": (4, "redrive"),
    "the same with the default `concurrency=100`": (4, "redrive, concurrency 100"),
    "failed attempts, each classified, decided and kept": (5, "redrive"),
}
FLEET_RATES = {"hub": (13, "redrive"), "NATS": (19, "over NATS"), "HTTP": (19, "over HTTP"), "PG": (22, "redrive")}
FLEET = """

A fleet costs speed: enqueueing one after the other reaches {hub} per second on a hub with JetStream, {NATS} (NATS) and
{HTTP} (HTTP) through a hub, {PG} on PostgreSQL. The difference is smaller when many callers enqueue at once
([A fleet](performance.md#a-fleet)).

"""
"""Blank lines keep it a paragraph of its own beside the comments."""


def blocks(checks: Sequence[Check]) -> dict[str, str]:
    """The blocks all of whose rows were measured, by name."""
    found = {}
    if (rates := _rates(checks, FILE_RATES)) is not None:
        lines = "".join(f"| {work} | {rate} |\n" for work, rate in rates.items())
        found["file rates"] = f"\n\n| | per second |\n| --- | --- |\n{lines}\n"
    if (rates := _rates(checks, FLEET_RATES)) is not None:
        found["fleet rates"] = FLEET.format(**rates)
    return found


def _rates(checks: Sequence[Check], wanted: Mapping[str, tuple[int, str]]) -> dict[str, str] | None:
    """Their medians; the first check of a row has its rates."""
    values = {row: next((one.values for one in checks if one.row == row), {}) for row, _ in wanted.values()}
    if any(not values[row].get(who) for row, who in wanted.values()):
        return None
    return {work: f"{statistics.median(values[row][who]):,.0f}" for work, (row, who) in wanted.items()}


def renew(path: Path, blocks: Mapping[str, str]) -> None:
    text = path.read_text("utf-8")
    for name, block in blocks.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        text, times = re.subn(rf"(?s)({begin}).*?({end})", lambda found, block=block: found[1] + block + found[2], text)
        assert times == 1, f"{path.name} has {begin} {times} times"
    path.write_text(text, "utf-8")
