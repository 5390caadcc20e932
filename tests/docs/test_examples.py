"""The programs in examples/ run, end by themselves and say what the docs say they do."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.zygote import start_zygote
from tests.docs.pages import PYTHON, REDRIVE, ROOT, blocks
from tests.docs.test_blocks import environment

EXAMPLES = ROOT / "examples"
SECONDS = 60
SAYS = {
    "django_shop": ["202 done order 7 is confirmed, 1 in all"],
    "effects": ["/articles/q3", "3 attempts, 1 summary, 1 post"],
    "hello": ["Hello, Ada"],
    "http_delivery": ["answered 200 after 3 tries, keys ['article-1']"],
    "limits": ["most at once: crm 2, index more than that: True"],
    "nightly": [
        "sites night 1: 4 jobs: 2 done, 1 comes back next cycle, 1 needs you → redrive morning",
        "sites night 1: 4 jobs: 2 already done, 1 comes back next cycle, 1 needs you → redrive morning",
        "sites night 2: 1 job (1 from earlier): 1 done",
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
ELSEWHERE = {"cms", "fastapi_app", "mounted", "sites"}
"""A module the others use, those that test_readme.py and tests/deploy run, and the one whose terminal a page shows."""


@pytest.mark.behaviour("001-41")
@pytest.mark.parametrize("name", SAYS)
def test_an_example_does_what_it_says(name: str, tmp_path: Path) -> None:
    words = (str(EXAMPLES / f"{name}.py"),)
    status, out, complaints = start_zygote().run(words, tmp_path, environment(tmp_path), None, SECONDS)
    assert status == 0, complaints
    assert out.splitlines() == SAYS[name]


def shown(page: str, command: str) -> str:
    """What a page says that a command prints."""
    console = "".join(block.text for block in blocks(ROOT / "docs" / page) if block.language == "console")
    found = re.search(rf"^\$ {re.escape(command)}\n(?P<answer>(?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    assert found is not None, f"{page} does not show {command}"
    return found["answer"]


def alike(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"\b[0-9a-f]{8}\b", "ID", re.sub(r"\d{4}-\d\d-\d\d", "DATE", text))


def in_a_terminal(folder: Path, *words: str) -> tuple[int, str]:
    ran = subprocess.run(
        words, cwd=folder, env=environment(folder), timeout=SECONDS, capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stdout


@pytest.mark.behaviour("001-1")
def test_a_nightly_script_tells_the_truth_in_the_terminal(tmp_path: Path) -> None:
    status, night = in_a_terminal(tmp_path, PYTHON, str(EXAMPLES / "sites.py"))
    assert alike(night) == alike(shown("howto/scripts.md", "python sites.py"))
    assert status == int(shown("howto/scripts.md", "echo $?")) == 1
    status, morning = in_a_terminal(tmp_path, REDRIVE, "--url", "sites.db", "morning")
    assert alike(morning) == alike(shown("howto/scripts.md", "redrive --url sites.db morning"))
    assert status == 1


def test_the_two_nights_are_shown_as_they_are() -> None:
    printed = [block.text.splitlines() for block in blocks(ROOT / "docs" / "howto" / "scripts.md")]
    assert SAYS["nightly"] in printed


def test_an_import_says_what_the_page_says(tmp_path: Path) -> None:
    five = '{"job_id":"%s","payload":{"slug":"q3"},"error_class":"TimeoutError","attempt":1,"failed_at":"2026-05-17"}\n'
    (tmp_path / "dead_letter.jsonl").write_text(five % "a" + five % "b" + '{"job_id":"c","pay', "utf-8")
    (tmp_path / "completed.jsonl").write_text("b\n", "utf-8")
    command = "redrive dead import dead_letter.jsonl --task publish --completed completed.jsonl"
    assert in_a_terminal(tmp_path, REDRIVE, *command.split()[1:]) == (1, shown("howto/jsonl.md", command))


def test_a_type_checker_says_what_the_page_says(tmp_path: Path) -> None:
    (wrong,) = [block.text for block in blocks(ROOT / "docs/howto/recipes.md") if "-> int:" in block.text]
    (tmp_path / "wrong.py").write_text(wrong, "utf-8")
    told = in_a_terminal(tmp_path, PYTHON, "-m", "mypy", "--strict", "wrong.py")
    assert told == (1, shown("howto/recipes.md", "mypy --strict wrong.py"))


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS) | ELSEWHERE
