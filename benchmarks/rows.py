"""The rows of the table: their numbers, their names, and the part of the page on which each stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import (
    accepting,
    backlog,
    failing,
    fleet,
    fleet_postgres,
    fleet_starting,
    growth,
    idle,
    latency,
    opening,
    running,
    scale,
    starting,
    thin,
    watched,
    written,
)
from benchmarks.bench import Bench, Check


@dataclass(frozen=True)
class Row:
    number: int
    name: str
    """What one types to measure it alone."""
    part: str
    measure: Callable[[Bench], list[Check]]


PARTS = ("file", "growth", "fleet")
"""In the order of the page."""
ROWS = {
    row.name: row
    for row in (
        Row(1, "enqueue", "file", accepting.row_1),
        Row(2, "callers", "file", accepting.row_2),
        Row(3, "bulk", "file", accepting.row_3),
        Row(4, "drain", "file", running.row_4),
        Row(5, "failing", "file", running.row_5),
        Row(6, "latency", "file", latency.row_6),
        Row(7, "backlog", "file", backlog.row_7),
        Row(8, "start", "file", starting.row_8),
        Row(9, "judging", "file", failing.row_9),
        Row(10, "answers", "file", scale.row_10),
        Row(11, "watched", "file", watched.row_11),
        Row(12, "opening", "file", opening.row_12),
        Row(13, "hub-enqueue", "fleet", fleet.row_13),
        Row(14, "hub-callers", "fleet", fleet.row_14),
        Row(15, "hub-bulk", "fleet", fleet.row_15),
        Row(16, "hub-drain", "fleet", fleet.row_16),
        Row(17, "hub-synced", "fleet", fleet.row_17),
        Row(18, "three-nodes", "fleet", fleet.row_18),
        Row(19, "thin", "fleet", thin.row_19),
        Row(20, "lone", "fleet", thin.row_20),
        Row(21, "hub-start", "fleet", fleet_starting.row_21),
        Row(22, "postgres", "fleet", fleet_postgres.row_22),
        Row(23, "growth", "growth", growth.row_23),
        Row(24, "workers", "growth", growth.row_24),
        Row(25, "queues", "growth", growth.row_25),
        Row(26, "idle", "growth", idle.row_26),
        Row(27, "written", "growth", written.row_27),
    )
}


def find_row(said: str) -> Row | None:
    """By its name or its number."""
    return ROWS.get(said) or next((row for row in ROWS.values() if str(row.number) == said), None)


def rows_of(part: str) -> list[Row]:
    return [row for row in ROWS.values() if row.part == part]
