"""Log lines that repeat are counted, not written; nothing that differs is left out, and every number is told."""

import io
import logging
from collections.abc import Iterator

import pytest

from redrive.doors.cli import logs
from redrive.doors.cli.logs import RepeatFilter


class Book:
    """A logger of its own whose lines can be read, and a clock that stands still."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        self.now = 100.0
        handler = logging.StreamHandler(self.text)
        self.repeats = RepeatFilter(handler, now=lambda: self.now)
        handler.addFilter(self.repeats)
        self.log = logging.Logger("book")  # noqa: LOG001 - it is to be gone with the test
        self.log.addHandler(handler)

    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


@pytest.fixture
def book() -> Iterator[Book]:
    book = Book()
    yield book
    book.repeats.flush()


pytestmark = pytest.mark.behaviour("T-13d")


def test_a_line_that_repeats_is_written_once_and_then_counted(book: Book) -> None:
    for _ in range(4214):
        book.log.warning("out of %s", "descriptors")
    assert book.lines() == ["out of descriptors"]
    book.now += 60
    book.log.warning("something else")
    assert book.lines()[1:] == ["out of descriptors … repeated 4,213 times in 60 s", "something else"]
    book.log.warning("out of descriptors")
    assert book.lines()[-1] == "out of descriptors", "a new minute begins with the line itself"


def test_lines_that_differ_are_all_written(book: Book) -> None:
    for number in range(50):
        book.log.warning("job %d failed", number)
    book.log.error("job 0 failed")
    for error in (OSError(24, "Too many open files"), OSError(5, "Input/output error")):
        book.log.error("it broke", exc_info=error)
    said = book.lines()
    assert sum(line.startswith("job ") for line in said) == 51
    assert sum(line == "it broke" for line in said) == 2


def test_a_number_is_told_although_the_line_never_comes_again(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SECONDS", 0.05)
    for _ in range(3):
        book.log.warning("again")
    timer = book.repeats._timer
    assert timer is not None
    book.now += 0.06
    timer.join(20)
    assert book.lines() == ["again", "again … repeated 2 times in 0 s"]


def test_at_the_end_every_number_is_told(book: Book) -> None:
    for _ in range(3):
        book.log.warning("again")
    book.now += 7
    book.repeats.flush()
    assert book.lines() == ["again", "again … repeated 2 times in 7 s"]


def test_what_is_remembered_is_bounded(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST", 10)
    book.log.warning("flood")
    book.log.warning("flood")
    for number in range(1000):
        book.log.warning("line %d", number)
    assert len(book.repeats._seen) <= 10
    assert "flood … repeated 1 times in 0 s" in book.lines()


def test_a_record_that_cannot_be_written_is_the_handler_s_to_report(
    book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    book.log.warning("%d", "no number")
    assert "Logging error" in capsys.readouterr().err
