"""`./dev test` forgives a test that fails beside others only where it passes alone, every time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import retest

ROOT = Path(__file__).parents[1]
ONCE = """
from pathlib import Path

def test_it():
    seen = Path("seen").exists()
    Path("seen").touch()
    assert seen
"""


class Runs:
    """Stands in for pytest: the exit status of each run, and what the first one leaves in its cache."""

    def __init__(self, statuses: Sequence[int], failed: Sequence[str]) -> None:
        self.statuses = list(statuses)
        self.failed = failed
        self.asked: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> int:
        if not self.asked and self.failed:
            found = retest.CACHE / "v" / "cache" / "lastfailed"
            found.parent.mkdir(parents=True)
            found.write_text(json.dumps(dict.fromkeys(self.failed, True)))
        self.asked.append(list(arguments))
        return self.statuses.pop(0)


@pytest.mark.parametrize(
    ("statuses", "failed", "verdict"),
    [
        ([0], [], 0),
        ([1, 0, 0, 0], ["a", "b"], 0),
        ([1, 0, 0, 1], ["a"], 1),
        ([1, 1], ["a"], 1),
        ([1], list("abcdef"), 1),
        ([1], [], 1),
        ([2], ["a"], 2),
    ],
)
def test_the_verdict_of_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    statuses: list[int],
    failed: list[str],
    verdict: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = Runs(statuses, failed)
    monkeypatch.setattr(retest, "run", runs)
    assert retest.main(["-n", "3"]) == verdict
    assert runs.statuses == [] and runs.asked[0] == ["-n", "3"]
    assert all(asked[-len(failed) :] == failed and "-n" not in asked for asked in runs.asked[1:])
    named = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("FLAKY")]
    assert named == (failed if verdict == 0 else [])


def test_a_real_run_names_what_failed_once(tmp_path: Path) -> None:
    (tmp_path / "test_once.py").write_text(ONCE)
    command = [sys.executable, "-m", "tools.retest", "-q", "-p", "no:schemathesis", "test_once.py"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    made = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "FLAKY: test_once.py::test_it" in made.stdout
