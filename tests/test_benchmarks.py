"""The benchmarks run, and their table has its rows. What they measure is judged by people, not here."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import ROWS
from benchmarks.bench import Check

ROOT = Path(__file__).parent.parent


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_has_the_row_that_was_asked_for(tmp_path: Path) -> None:
    lines = [line for line in bench("--only", "2", "--folder", str(tmp_path)).splitlines() if "100 callers" in line]
    assert len(lines) == 1
    assert "≥ 12 × one at a time" in lines[0]
    assert "pass" in lines[0] or "MISS" in lines[0]
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_everything_measured_is_there_as_json(tmp_path: Path) -> None:
    said = json.loads(bench("--only", "8", "--json", "--folder", str(tmp_path)))
    assert [check["row"] for check in said["checks"]] == [8, 8, 8]
    assert all(check["reached"] > 0 for check in said["checks"])
    assert said["quick"] is True


def test_there_are_nine_rows() -> None:
    assert list(ROWS) == list(range(1, 10))


def test_a_verdict_follows_its_limit() -> None:
    def verdict(reached: float | None, relation: str) -> bool | None:
        return Check(1, "work", reached, relation, 2.0, "×", {}).passed  # type: ignore[arg-type]

    assert [verdict(number, "≥") for number in (1.9, 2.0, 2.1)] == [False, True, True]
    assert [verdict(number, "≤") for number in (1.9, 2.0, 2.1)] == [True, True, False]
    assert [verdict(number, "<") for number in (1.9, 2.0, 2.1)] == [True, False, False]
    assert verdict(None, "≥") is None
