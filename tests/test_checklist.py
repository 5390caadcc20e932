"""The checklist holds: every due line is shown by a test, every mark means something, the page is fresh."""

from tools import checklist


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
