"""The checklist holds: every due line is shown by a test, every mark means something, the page is fresh."""

import pytest

from tools import checklist
from tools.checklist import Behaviour

FAMILIES = {"000-": 102, "001-": 43, "003-": 79, "004-": 60, "B": 53, "C": 48}
"""Every family of numbers in the list of behaviours that redrive is held to, and its last number."""


@pytest.mark.parametrize(("family", "last"), FAMILIES.items())
def test_the_numbers_of_a_family_have_no_holes(family: str, last: int) -> None:
    """A line that is not built stands there as later: a line that is absent would be counted nowhere."""
    lines, _ = checklist.behaviours()
    numbers = [int(line.id.removeprefix(family)) for line in lines if line.id.startswith(family)]
    assert sorted(numbers) == list(range(1, last + 1))


def test_what_is_not_built_is_part_of_the_sum() -> None:
    lines = [
        Behaviour("a-1", "shown", "heart", "A"),
        Behaviour("a-2", "missing", "heart", "A"),
        Behaviour("a-3", "unbuilt", "later", "A"),
        Behaviour("a-4", "in another part", "agents", "A"),
        Behaviour("a-5", "claimed", "claim", "A"),
    ]
    page = checklist.page(lines, ["heart"], {"a-1": ["tests/x.py::test"]})
    assert "There are 5 lines. 2 are due, and 1 of these are shown by a test." in page
    assert "2 are not due yet (a-3, a-4). 1 are claims that need no test (a-5)." in page
    every, reached = checklist.behaviours()
    later = [line.id for line in every if line.due not in (*reached, "claim")]
    assert f"{len(later)} are not due yet ({', '.join(later)})." in checklist.page(every, reached, checklist.marks())


def test_every_line_that_is_due_is_shown_by_a_test() -> None:
    lines, reached = checklist.behaviours()
    shown = checklist.marks()
    missing = [f"{line.id} {line.does}" for line in lines if line.due in reached and line.id not in shown]
    assert not missing, "no test is marked with:\n" + "\n".join(missing)


def test_every_mark_names_a_line() -> None:
    lines, _ = checklist.behaviours()
    unknown = {id: tests for id, tests in checklist.marks().items() if id not in {line.id for line in lines}}
    assert not unknown


def test_the_page_is_up_to_date() -> None:
    assert not checklist.stale(), "run ./dev docs"
