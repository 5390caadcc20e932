"""`./dev bench`: prints the table, with pass or MISS per row."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import (
    accepting,
    backlog,
    failing,
    fleet,
    fleet_postgres,
    fleet_report,
    fleet_starting,
    latency,
    opening,
    report,
    running,
    scale,
    starting,
    thin,
    watched,
)
from benchmarks.bench import ROOT, Bench, Check, ContestantFailed

ROWS: dict[int, Callable[[Bench], list[Check]]] = {
    1: accepting.row_1,
    2: accepting.row_2,
    3: accepting.row_3,
    4: running.row_4,
    5: running.row_5,
    6: latency.row_6,
    7: backlog.row_7,
    8: starting.row_8,
    9: failing.row_9,
    10: scale.row_10,
    11: watched.row_11,
    12: opening.row_12,
    13: fleet.row_13,
    14: fleet.row_14,
    15: fleet.row_15,
    16: fleet.row_16,
    17: fleet.row_17,
    18: fleet.row_18,
    19: thin.row_19,
    20: thin.row_20,
    21: fleet_starting.row_21,
    22: fleet_postgres.row_22,
}
PARTS = {"file": range(1, 13), "fleet": range(13, 23)}
"""The parts of the page, each measured in one run."""
PAGE = ROOT / "docs" / "performance.md"


class Bar:
    """The progress of the row that is being measured."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<72}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self.progress = Progress(*columns, console=console, refresh_per_second=2, disable=not console.is_terminal)
        self._task = self.progress.add_task("", total=1)
        self._taken = 0

    def begin(self, what: str, steps: int) -> None:
        self._taken = 0
        self.progress.reset(self._task, description=what, total=steps)

    def step(self, what: str) -> None:
        """Another one begins."""
        self.progress.update(self._task, description=what, completed=self._taken)
        self._taken += 1


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds, for a check in a minute")
    parser.add_argument("--only", type=int, action="append", metavar="ROW", choices=ROWS, help="this row; repeatable")
    parser.add_argument("--part", choices=PARTS, help="the rows of one part: a store in a file, or a fleet")
    parser.add_argument("--large", action="store_true", help="a million jobs where a hub starts (row 21)")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each contestant runs")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="on the disk to be measured (default: this one)")
    parser.add_argument("--json", action="store_true", help="everything that was measured, as JSON")
    parser.add_argument("--write", action="store_true", help="renew docs/performance.md, or its --part")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a row misses or could not be measured")
    said = parser.parse_args(given)
    if said.write and said.only:
        parser.error("--write needs every row of a part: leave --only out")
    if said.part and said.only:
        parser.error("choose --part or --only")
    if said.rounds is not None and said.rounds < 1:
        parser.error("--rounds must be at least 1")
    return said


def measured(said: argparse.Namespace, folder: Path) -> list[Check]:
    bar = Bar()
    bench = Bench(folder, bar, quick=said.quick, rounds=said.rounds, large=said.large)
    numbers = said.only or (PARTS[said.part] if said.part else ROWS)
    with bar.progress:
        return [check for number in numbers for check in one_row(number, bench)]


def one_row(number: int, bench: Bench) -> list[Check]:
    """A row that fails is told, and the others are measured all the same."""
    try:
        return ROWS[number](bench)
    except ContestantFailed as error:
        print(f"row {number} failed: {error}", file=sys.stderr)
        return [Check(number, "failed, see above", None, "≥", 0.0, "", {})]


def parts(checks: list[Check], notes: list[str], where: dict[str, str]) -> dict[str, str]:
    """The text of each part of the page that was measured."""
    of = {name: [check for check in checks if check.row in numbers] for name, numbers in PARTS.items()}
    texts = {}
    if of["file"]:
        texts["file"] = report.file_part(of["file"], notes, where)
    if of["fleet"]:
        texts["fleet"] = fleet_report.part(of["fleet"])
    return texts


def main(given: Sequence[str] | None = None) -> int:
    said = arguments(given)
    home = said.folder or ROOT / ".cache"
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="benchmarks-") as folder:
        checks = measured(said, Path(folder))
    notes = report.notes(quick=said.quick, rounds=said.rounds or (3 if said.quick else 5))
    where = report.machine(home)
    if said.json:
        print(json.dumps(report.data(checks, notes, where, quick=said.quick), indent=2, ensure_ascii=False))
    else:
        report.show(checks, notes)
    if said.write and any(check.passed is None for check in checks):
        print(f"{PAGE.name} is left as it was: not every row could be measured", file=sys.stderr)
    elif said.write:
        report.write_page(PAGE, parts(checks, notes, where))
    return int(said.strict and any(not check.passed for check in checks))


if __name__ == "__main__":
    sys.exit(main())
