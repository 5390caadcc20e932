"""The programs in examples/ run, end by themselves and say what the docs say they do."""

import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import PYTHON, ROOT
from tests.docs.test_blocks import environment

EXAMPLES = ROOT / "examples"
SECONDS = 60
SAYS = {
    "effects": ["/articles/q3", "3 attempts, 1 summary, 1 post"],
    "http_delivery": ["answered 200 after 3 tries, keys ['article-1']"],
    "limits": ["most at once: crm 2, index more than that: True"],
    "nightly": [
        "sites night 1: 4 jobs: 2 done, 1 comes back next cycle, 1 needs you → redrive morning",
        "sites night 1: 4 jobs: 2 already done, 1 comes back next cycle, 1 needs you → redrive morning",
        "sites night 2: 2 jobs (1 from earlier): 1 done, 1 already done",
        "  left from before: 1 post (needs you)",
        "posted: home blog news | exit codes: 1 1 0",
    ],
    "script": [
        "refused item 2: payload: Object missing required field `width`",
        "cover-800.png",
        "degraded: 1 dead",
        "b: GiveUp: b: width -1 makes no sense. Correct the list, enqueue anew.",
    ],
}
ELSEWHERE = {"cms", "fastapi_app"}
"""A module the others use, and the one that test_readme.py runs."""


@pytest.mark.behaviour("001-41")
@pytest.mark.parametrize("name", SAYS)
def test_an_example_does_what_it_says(name: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [PYTHON, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path, env=environment(tmp_path), timeout=SECONDS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == SAYS[name]


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS) | ELSEWHERE
