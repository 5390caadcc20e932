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

from benchmarks import accepting, backlog, failing, latency, report, running, scale, starting, watched
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
}
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
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each contestant runs")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="on the disk to be measured (default: this one)")
    parser.add_argument("--json", action="store_true", help="everything that was measured, as JSON")
    parser.add_argument("--write", action="store_true", help="renew docs/performance.md")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a row misses or could not be measured")
    said = parser.parse_args(given)
    if said.write and said.only:
        parser.error("--write needs every row: leave --only out")
    if said.rounds is not None and said.rounds < 1:
        parser.error("--rounds must be at least 1")
    return said


def measured(said: argparse.Namespace, folder: Path) -> list[Check]:
    bar = Bar()
    bench = Bench(folder, bar, quick=said.quick, rounds=said.rounds)
    with bar.progress:
        return [check for number in said.only or ROWS for check in one_row(number, bench)]


def one_row(number: int, bench: Bench) -> list[Check]:
    """A row that fails is told, and the others are measured all the same."""
    try:
        return ROWS[number](bench)
    except ContestantFailed as error:
        print(f"row {number} failed: {error}", file=sys.stderr)
        return [Check(number, "failed, see above", None, "≥", 0.0, "", {})]


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
        PAGE.write_text(report.markdown(checks, notes, where), encoding="utf-8")
    return int(said.strict and any(not check.passed for check in checks))


if __name__ == "__main__":
    sys.exit(main())
