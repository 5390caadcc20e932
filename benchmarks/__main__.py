"""`./dev bench`: prints the table, with what each row must reach, pass or MISS."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import against, page, report, sizing
from benchmarks.bench import ROOT, Bench, Check, ContestantFailed
from benchmarks.rows import PARTS, ROWS, Row, find_row, rows_of

PAGE = ROOT / "docs" / "performance.md"
KEPT = ROOT / ".cache" / "benchmarks.json"
"""What the last run measured, for `--from`."""
SIZING = ROOT / "docs" / "sizing.md"
"""It quotes some rates."""


class Bar:
    """The progress of the row that is being measured; where nobody watches, a line when a row is done."""

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

    def done(self, what: str, begun: float) -> None:
        """It took so long since then."""
        self.progress.console.print(f"{what:<44} {time.monotonic() - begun:6.0f} s", highlight=False)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__, epilog=f"rows: {', '.join(ROWS)}")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="only these rows, by name or number (default: all)")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds, for a check in a minute")
    parser.add_argument("--part", choices=PARTS, help="the rows of one part of the page")
    parser.add_argument("--large", action="store_true", help="also 11 million jobs (growth), a million for a new hub")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each contestant runs")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="on the disk to be measured (default: this one)")
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="another checkout of redrive, in turn with this one"
    )
    parser.add_argument("--json", action="store_true", help="everything that was measured, as JSON")
    parser.add_argument(
        "--from",
        type=Path,
        dest="earlier",
        metavar="FILE",
        help="what --json said, or .cache/benchmarks.json",
    )
    parser.add_argument("--write", action="store_true", help="renew the docs (performance, sizing), or a --part")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 where a row misses, or is slower than before"
    )
    said = parser.parse_args(given)
    if problem := _problem(said):
        parser.error(problem)
    return said


def _problem(said: argparse.Namespace) -> str | None:
    unknown = [name for name in said.rows if find_row(name) is None]
    if unknown:
        return f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}"
    if said.write and (said.rows or said.against):
        return "--write needs every row of a part: name no rows, and no other checkout"
    if said.part and said.rows:
        return "choose --part or rows"
    if said.rounds is not None and said.rounds < 1:
        return "--rounds must be at least 1"
    return None


def chosen(said: argparse.Namespace) -> list[Row]:
    if said.part:
        return rows_of(said.part)
    return [row for name in said.rows if (row := find_row(name))] or list(ROWS.values())


def measured(said: argparse.Namespace, folder: Path, keep: Callable[[list[Check]], None]) -> list[Check]:
    """Row by row; what is measured is kept at once, so that an interrupted run was not for nothing."""
    bar, begun = Bar(), time.monotonic()
    bench = Bench(folder, bar, quick=said.quick, rounds=said.rounds, large=said.large)
    checks: list[Check] = []
    with bar.progress:
        for row in chosen(said):
            checks += one_row(row, bench, bar)
            keep(checks)
        bar.done("total", begun)
    return checks


def one_row(row: Row, bench: Bench, bar: Bar) -> list[Check]:
    """A row that fails is told, and the others are measured all the same."""
    begun = time.monotonic()
    try:
        return row.measure(bench)
    except (ContestantFailed, subprocess.CalledProcessError) as error:
        print(f"row {row.number} ({row.name}) failed: {error}", file=sys.stderr)
        return [Check(row.number, f"{row.name}: failed, see above", None, "≥", 0.0, "", {})]
    finally:
        bar.done(row.name, begun)


def in_new_folder(home: Path) -> tempfile.TemporaryDirectory[str]:
    home.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(dir=home, prefix="benchmarks-")


def compared(said: argparse.Namespace, home: Path) -> int:
    """Two checkouts of redrive, in turn."""
    bar, begun = Bar(), time.monotonic()
    names = [row.name for row in chosen(said)] if said.rows or said.part else []
    with in_new_folder(home) as folder, bar.progress:
        bench = Bench(Path(folder), bar, quick=said.quick, rounds=said.rounds)
        found = against.compare(bench, said.against, names, bar.done)
        bar.done("total", begun)
    if missing := sorted(set(names) - {one.row for one in found}):
        print(f"rows that are not compared: {', '.join(missing)}", file=sys.stderr)
    if said.json:
        print(json.dumps(against.data(found), indent=2, ensure_ascii=False))
    else:
        against.show(found)
    return int(said.strict and any(one.verdict in ("SLOWER", "not measured") for one in found))


def run(said: argparse.Namespace, home: Path) -> Mapping[str, Any]:
    """What is measured now, or was by an earlier run."""
    if said.earlier:
        return dict(json.loads(said.earlier.read_text("utf-8")))
    where = report.machine(said.folder or ROOT)
    notes = report.notes(quick=said.quick, rounds=said.rounds)

    def data(checks: list[Check]) -> dict[str, Any]:
        return report.data(checks, notes, where, quick=said.quick)

    def keep(checks: list[Check]) -> None:
        if said.folder is None:
            KEPT.write_text(json.dumps(data(checks)), "utf-8")

    with in_new_folder(home) as folder:
        return data(measured(said, Path(folder), keep))


def main(given: Sequence[str] | None = None) -> int:
    said = arguments(given)
    home = said.folder or ROOT / ".cache"
    if said.against:
        return compared(said, home)
    data = run(said, home)
    checks = report.checks_of(data)
    if said.json:
        print(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        report.show(checks, data["notes"])
    if said.write:
        write(checks, data, said.part)
    return int(said.strict and any(not check.passed for check in checks))


def write(checks: list[Check], data: Mapping[str, Any], part: str | None) -> None:
    texts = page.texts(checks, data["notes"], data["machine"])
    kept = {name: text for name, text in texts.items() if part in (None, name)}
    page.write(PAGE, kept, page.figures(checks, kept))
    sizing.renew(SIZING, sizing.blocks([check for name in kept for check in checks if check.row in page.numbers(name)]))
    for name in sorted(({part} if part else set(PARTS)) - set(kept)):
        print(f"{PAGE.name}: {name} is left as it was, not every row of it was measured", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
