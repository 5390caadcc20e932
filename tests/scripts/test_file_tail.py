"""A file that another program appends to is read whole: over rotation, truncation and lines that are not done yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.jobs.jsonl import Line
from redrive.scripts.file_tail import Tail

MANY, LARGE = 1_000, 16 * 1024 * 1024
pytestmark = pytest.mark.behaviour("H-6b")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "failures.jsonl"


@pytest.fixture
def tail(path: Path) -> Iterator[Tail]:
    made = Tail(path)
    yield made
    made.close()


def add(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def taken(tail: Tail) -> list[bytes]:
    return [line.raw for line in tail.take(MANY, LARGE)]


def test_a_file_that_is_not_there_is_waited_for(path: Path, tail: Tail) -> None:
    assert taken(tail) == [] and not tail.found
    add(path, b"a\n")
    assert taken(tail) == [b"a"] and tail.found
    assert taken(tail) == []


def test_a_line_is_taken_when_it_has_ended(path: Path, tail: Tail) -> None:
    add(path, b'a\n{"job')
    assert taken(tail) == [b"a"]
    add(path, b'_id": 1}')
    assert taken(tail) == []
    add(path, b"\r\nc\n")
    assert tail.take(MANY, LARGE) == [Line(2, b'{"job_id": 1}'), Line(3, b"c")]


def test_a_renamed_file_is_read_on_beside_the_new_one(path: Path, tail: Tail) -> None:
    add(path, b"a\nto")
    assert taken(tail) == [b"a"]
    with path.open("ab") as writer:
        path.rename(path.with_suffix(".1"))
        add(path, b"new\n")
        assert taken(tail) == [b"new"]
        writer.write(b"rn\nlate\n")  # its writer had it open still
    assert taken(tail) == [b"torn", b"late"]


def test_the_torn_end_of_a_file_that_was_renamed_twice_is_given_as_torn(path: Path, tail: Tail) -> None:
    add(path, b"a\ntorn")
    assert taken(tail) == [b"a"]
    for number, name in enumerate((b"b\n", b"c\n"), start=1):
        path.rename(path.with_suffix(f".{number}"))
        add(path, name)
        assert taken(tail) == [name.strip()]
    assert tail.take(MANY, LARGE) == [Line(2, b"torn", ended=False)]
    assert taken(tail) == []
    add(path.with_suffix(".1"), b"too late\n")
    assert taken(tail) == []


def test_a_removed_file_is_read_to_its_end(path: Path, tail: Tail) -> None:
    add(path, b"a\n")
    assert taken(tail) == [b"a"]
    with path.open("ab") as writer:
        path.unlink()
        writer.write(b"b\n")
    assert taken(tail) == [b"b"]
    add(path, b"c\n")
    assert taken(tail) == [b"c"]


@pytest.mark.parametrize("rewritten", [b"c\n", b"c\nd\n", b"c\nd\ne\nf\n"], ids=["shorter", "as long", "longer"])
def test_a_truncated_file_is_read_from_its_beginning(path: Path, tail: Tail, rewritten: bytes) -> None:
    add(path, b"a\nb\n")
    assert taken(tail) == [b"a", b"b"]
    os.truncate(path, 0)
    add(path, rewritten)
    assert taken(tail) == rewritten.split()


def test_the_torn_line_of_a_truncated_file_is_given_as_torn(path: Path, tail: Tail) -> None:
    add(path, b"a\nbe")
    assert taken(tail) == [b"a"]
    os.truncate(path, 0)
    add(path, b"gun\n")
    assert tail.take(MANY, LARGE) == [Line(2, b"be", ended=False), Line(1, b"gun")]


def test_little_is_taken_at_once(path: Path, tail: Tail) -> None:
    add(path, b"".join(b"%d\n" % n for n in range(10)))
    assert [line.raw for line in tail.take(3, LARGE)] == [b"0", b"1", b"2"]
    assert [line.raw for line in tail.take(MANY, 2)] == [b"3", b"4"]
    assert len(taken(tail)) == 5


def test_a_line_without_an_end_costs_no_more_than_the_limit(path: Path) -> None:
    tail = Tail(path, longest=4)
    add(path, b"abcdefgh")
    assert taken(tail) == []
    add(path, b"ijk\nnext\n")
    assert tail.take(MANY, LARGE) == [Line(1, b"abcd", cut=True), Line(2, b"next")]
    tail.close()


def test_a_large_file_is_read_in_pieces(path: Path, tail: Tail) -> None:
    lines = [b"x" * (n % 7000) for n in range(1_000)]
    add(path, b"\n".join(lines) + b"\n")
    got: list[bytes] = []
    while chunk := tail.take(100, LARGE):
        got += [line.raw for line in chunk]
    assert got == lines
