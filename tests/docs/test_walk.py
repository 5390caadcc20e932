"""The walk's terminal half is true: typed word for word after a demo, every line answers what the page says."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tools.terminal import WALK, alike, steps, walk, written


@pytest.mark.behaviour("H-6f")
@pytest.mark.timeout(300)
def test_every_line_of_the_walk_answers_what_it_says(tmp_path: Path) -> None:
    found = walk(tmp_path)
    for step, answer in zip(steps(WALK), found.answers, strict=True):
        assert alike(answer) == alike(step.answer), step.line
    (said,) = [block.text for block in blocks(WALK) if block.language == "text"]
    assert alike(said)[0] in alike(found.demo)
    assert [line for line in alike(said) if line not in alike(found.demo)] == []


def test_the_walk_begins_with_the_demo_and_types_all_that_it_teaches() -> None:
    first = next(block for block in blocks(WALK) if block.language == "sh")
    assert first.text == "./dev demo\n"
    assert ".venv/bin/redrive demo" in (ROOT / "dev").read_text("utf-8")
    typed = [step.line for step in steps(WALK)]
    for verb in ("morning", "dead group", "dead list", "dead show", "dead reassign", "worker", "dead resolve-group"):
        assert any(line.startswith(f"redrive {verb} ") for line in typed), verb


def test_a_page_that_says_something_else_is_noticed_and_renewed() -> None:
    page = "Before\n\n```console\n$ redrive jobs\nNo jobs\n$ true\n```\n\nafter"
    assert written(page, ["One job\n", ""]) == "Before\n\n```console\n$ redrive jobs\nOne job\n$ true\n```\n\nafter"
    assert alike("1 job 06396e44 4 s ago") == alike("1 job 7b0c41d2 2 min ago") != alike("2 jobs 7b0c41d2 2 min ago")
