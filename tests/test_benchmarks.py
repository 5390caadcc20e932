"""The benchmarks run, and their table has its rows. What they measure is judged by people, not here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report, watched
from benchmarks.__main__ import PARTS, ROWS
from benchmarks.bench import Check
from tests.nats import need_server

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.timeout(400)  # what it runs may take 300 s


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
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
    times = said["checks"][0]["values"]
    assert all(len(taken) == 1 and taken[0] > 0 for taken in times.values())
    (bare,), (imported,), (program,) = (times[n] for n in ("bare interpreter", "import redrive", "redrive --version"))
    assert said["checks"][0]["reached"] == pytest.approx(imported - bare)  # on a busy machine this may be below 0
    assert said["checks"][2]["reached"] == program
    assert said["quick"] is True


def test_every_row_belongs_to_one_part() -> None:
    assert list(ROWS) == list(range(1, 23))
    assert [number for numbers in PARTS.values() for number in numbers] == list(ROWS)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("row", "limit"),
    [
        (13, 0.35),
        pytest.param(16, 0.75, marks=LONG),
        (19, 0.7),
        pytest.param(20, 6.0, marks=LONG),
        pytest.param(21, None, marks=LONG),
    ],
)
def test_a_fleet_is_measured(tmp_path: Path, row: int, limit: float | None) -> None:
    """Without taskiq-nats, which only `./dev bench` installs, what is compared with it is not measured."""
    need_server()
    first, *_ = json.loads(bench("--only", str(row), "--json", "--folder", str(tmp_path)))["checks"]
    assert first["limit"] == limit
    assert all(value > 0 for values in first["values"].values() for value in values)
    assert first["reached"] is None or first["reached"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_is_not_measured_stays_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    report.write_page(page, {"file": "one\n", "fleet": "two\n"})
    report.write_page(page, {"fleet": "three\n"})
    assert page.read_text("utf-8") == f"{report.HEAD}<!-- part: file -->\none\n<!-- part: fleet -->\nthree\n"


def test_opening_a_foreign_file_is_measured_with_and_without_the_guard(tmp_path: Path) -> None:
    (check,) = json.loads(bench("--only", "12", "--json", "--folder", str(tmp_path)))["checks"]
    assert check["values"].keys() == {"guarded", "without"}
    assert all(taken > 0 for times in check["values"].values() for taken in times)


def test_every_page_and_answer_is_asked(tmp_path: Path) -> None:
    """Small here. The rows name what was slowest, so the addresses were found at all."""
    said = json.loads(bench("--only", "10", "--json", "--folder", str(tmp_path)))
    pages, answers = said["checks"]
    assert {"/", "/dead", "/morning", "/queues"} <= pages["values"].keys()
    assert {"/v1/jobs", "/v1/jobs/{id}", "/v1/dead-letters?queue", "/v1/reports/morning"} <= answers["values"].keys()
    assert all(len(times) > 1 for check in said["checks"] for times in check["values"].values())
    assert pages["reached"] > 0 and answers["reached"] > 0


def test_watchers_watch(tmp_path: Path) -> None:
    """They fail by themselves where they see nothing. Only Linux says what another process has used."""
    (check,) = json.loads(bench("--only", "11", "--json", "--folder", str(tmp_path)))["checks"]
    assert check["values"].keys() == ({"alone", "watched"} if watched.STAT.exists() else set())
    assert (check["reached"] is not None) is watched.STAT.exists()


def test_a_verdict_follows_its_limit() -> None:
    def verdict(reached: float | None, relation: str) -> bool | None:
        return Check(1, "work", reached, relation, 2.0, "×", {}).passed  # type: ignore[arg-type]

    assert [verdict(number, "≥") for number in (1.9, 2.0, 2.1)] == [False, True, True]
    assert [verdict(number, "≤") for number in (1.9, 2.0, 2.1)] == [True, True, False]
    assert [verdict(number, "<") for number in (1.9, 2.0, 2.1)] == [True, False, False]
    assert verdict(None, "≥") is None
    assert Check(1, "work", 0.1, "≥", None, "×", {}).passed is True  # measured and said
