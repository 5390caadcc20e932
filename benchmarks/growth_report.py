"""Writes the part of docs/performance.md about growth and about what a job and an idle worker cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import plot
from benchmarks.bench import Check, amount
from benchmarks.report import table

FIGURE = "performance-growth.svg"
QUEUES = "performance-queues.svg"


def figures(checks: Sequence[Check]) -> dict[str, str]:
    """A panel for each measure of row 23, and one for each line of rows 24 and 25."""
    grown, beside = ([_panel(check) for check in checks if check.row in rows and check.values]
                     for rows in ((23,), (24, 25)))  # fmt: skip
    return {FIGURE: plot.lines(grown), QUEUES: plot.bars(beside)}


def _panel(check: Check) -> plot.Panel:
    """Its title is the work up to the first comma; the unit is what follows the number in what was measured."""
    unit = next(iter(check.measured.values())).lstrip("0123456789.,").strip()
    return plot.Panel(
        check.work.partition(",")[0], unit, {name: statistics.median(taken) for name, taken in check.values.items()}
    )


def sizes_table(checks: Sequence[Check]) -> str:
    """A line for each measure, a column for each number of stored jobs."""
    grown = [check for check in checks if check.row == 23 and check.reached is not None]
    sizes = list(grown[0].values)
    head = ["with so many jobs stored", *sizes, "last ÷ first"]
    lines = [[check.work, *check.measured.values(), f"{amount(check.reached or 0)} ×"] for check in grown]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *lines))


def part(checks: Sequence[Check]) -> str:
    return TEXT.format(
        sizes=sizes_table(checks),
        figure=FIGURE,
        queues=QUEUES,
        beside=table([check for check in checks if check.row in (24, 25)]),
        costs=table([check for check in checks if check.row in (26, 27)]),
    )


TEXT = """## As it grows

The same store with a month of jobs in it: waiting, done and discarded ones, every eleventh a dead letter with its
history. New jobs are enqueued, claimed and run in front of all of them (row 23).

{sizes}

![Each measure by the number of stored jobs](images/{figure})

{beside}

![Worker processes and queues](images/{queues})

- Row 23: every round works on a fresh copy of the file. A claim takes 10 jobs; a list is the newest hundred dead
  letters; the overview is the first page of the dashboard, without a network; drain and memory are those of a worker
  with concurrency 1000 in the process that has just answered all of this. `--large` adds 11 million jobs.
- Row 24: the queue is let go when every worker process is there. What two of them share is the file: one writes at a
  time.
- Row 25: the same jobs in one queue and spread over many.

## What a job and an idle worker cost

As Linux counts it for the process and all of its threads.

{costs}

- Row 26: a worker process with nothing to do, on a store that was used before, alone and while a second one is idle
  beside it. A wake-up is a thread that waited and was run again (`voluntary_ctxt_switches`).
- Row 27: processor time of the whole process; *disk* is what it handed to the disk (`write_bytes`: the log and what is
  carried from it into the file), *log* what the write-ahead log grew by. One at a time every job is a commit of its
  own, which writes whole pages of 4 KB.

"""
