"""What people may write into a field: each refusal names the field and the limit."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.checks import (
    NAME_LIMIT,
    TEXT_LIMIT,
    check_choice,
    check_id,
    check_limit,
    check_name,
    check_names,
    check_number,
    check_range,
    check_texts,
    check_words,
    is_part_of_id,
    optional_name,
    the_only,
)
from redrive.errors import InvalidInput


@pytest.mark.parametrize("name", ["a", "n" * NAME_LIMIT, "Zoë's queue", "q/1"])
def test_a_name_is_given_back(name: str) -> None:
    assert check_name("queue", name) == name == optional_name("queue", name)


@pytest.mark.parametrize("name", ["", "n" * (NAME_LIMIT + 1), "two\nlines", "\x1b[2J", 7, b"q", None])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match=f"^queue: .* must be 1 to {NAME_LIMIT} printable characters$"):
        check_name("queue", name)


def test_a_refused_book_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidInput) as refused:
        check_name("queue", "n" * 1_000_000)
    assert len(str(refused.value)) < 200


def test_a_name_that_need_not_be_said() -> None:
    assert optional_name("queue", None) is None
    with pytest.raises(InvalidInput):
        optional_name("queue", "")


@pytest.mark.parametrize("names", [["mail"], ("mail",), {"mail"}, iter(["mail"]), {"mail": 1}, []])
def test_several_names_are_given_back(names: Any) -> None:
    assert check_names("queues", names) in (("mail",), ())


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("mail", r"is a list of names: queues=\['mail'\]"), (5, "5 is not a list of names"), (True, "True is not"),
        ([5], "5 must be"), (b"mail", "109 must be"), ([""], "'' must be"), (["mail", None], "None must be"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_names_is_refused(names: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=f"^queues: {problem}"):
        check_names("queues", names)


@pytest.mark.parametrize("text", ["", "t" * (TEXT_LIMIT + 1), 7, ["a"]])
def test_texts_name_the_field_that_is_wrong(text: Any) -> None:
    check_texts(a=None, b="t" * TEXT_LIMIT)
    with pytest.raises(InvalidInput) as refused:
        check_texts(a="fine", token=text)
    assert refused.value.field == "token"


@pytest.mark.parametrize(
    ("who", "why", "field"),
    [("", None, "who"), ("w" * 201, None, "who"), (None, None, "who"), ("mira", 7, "why"), ("mira", "w" * 1001, "why")],
)
def test_who_and_why_have_limits(who: Any, why: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_words(who, why)
    assert refused.value.field == field


@pytest.mark.parametrize("why", [None, "", "because", "w" * 1000])
def test_a_reason_may_be_left_out(why: str | None) -> None:
    check_words("mira", why)


@pytest.mark.parametrize("limit", [0, -1, 10_001, 2.0, "10", True, None])
def test_a_limit_is_a_whole_number_in_its_range(limit: Any) -> None:
    assert check_limit(1) == 1
    assert check_limit(10_000) == 10_000
    with pytest.raises(InvalidInput, match=r"^limit: .* is not a whole number from 1 to 10000$"):
        check_limit(limit)


def test_a_range_holds_both_its_ends() -> None:
    assert [check_range("canary", number, 0, 3) for number in (0, 3)] == [0, 3]
    for number in (-1, 4):
        with pytest.raises(InvalidInput, match=r"^canary: "):
            check_range("canary", number, 0, 3)


@pytest.mark.parametrize("number", [-1, 10**17, 10**400, float("nan"), float("inf"), "1", True, None, 1j])
def test_a_number_is_finite_and_in_its_range(number: Any) -> None:
    assert [check_number("cost", fine) for fine in (0, 0.5, 10**15)] == [0, 0.5, 10**15]
    with pytest.raises(InvalidInput, match=r"^cost: .* is not a number from 0 to 9007199254740992$"):
        check_number("cost", number)


def test_a_number_may_have_to_be_above_the_least() -> None:
    assert check_number("lease", 0.1, above=True) == 0.1
    with pytest.raises(InvalidInput, match=r"^lease: 0 is not a number above 0"):
        check_number("lease", 0, above=True)


@pytest.mark.parametrize("word", ["", "Store", "stor", 5, None, ["store"]])
def test_a_choice_is_one_of_the_words(word: Any) -> None:
    assert check_choice("scope", "store", ("process", "store")) == "store"
    with pytest.raises(InvalidInput, match=r"^scope: .* is not one of process, store$"):
        check_choice("scope", word, ("process", "store"))


@pytest.mark.parametrize(
    ("found", "part", "only"), [(["abcd"], "abc", "abcd"), ([], "abc", None), (["abcd"], "ab", None)]
)
def test_one_thing_is_found_by_a_part_of_its_id_that_is_long_enough(
    found: list[str], part: str, only: str | None
) -> None:
    assert the_only(found, part, "act") == only


def test_a_part_that_several_ids_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'abc' is part of several ids; give more of it") as refused:
        the_only(["abcd", "abce"], "abc", "act")
    assert refused.value.field == "act"
    assert the_only(["abcd", "abce"], "ab", "act") is None, "it is no part by which anything is found"


@pytest.mark.parametrize("id", [None, 5, b"abc", ["abc"]])
def test_an_id_is_a_text(id: Any) -> None:
    assert [check_id("id", text) for text in ("", "abc", "é")] == ["", "abc", "é"]
    with pytest.raises(InvalidInput, match=r"^id: .* is not an id: ids are texts$"):
        check_id("id", id)
    with pytest.raises(InvalidInput, match=r"^id: is not UTF-8"):
        check_id("id", "\ud800")


@pytest.mark.parametrize(("text", "is_one"), [("abc", True), ("ab", False), ("a" * 33, False), ("a-bc", False)])
def test_what_a_job_may_be_found_by(text: str, is_one: bool) -> None:
    assert is_part_of_id(text) is is_one
