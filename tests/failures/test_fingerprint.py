"""One error, one group."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.job import Failure
from redrive.failures.fingerprint import LENGTH, _replace_variables, fingerprint, model_family, normalise

BASE = Failure(
    "exception", ("shop.PaymentError", "builtins.Exception"), "cannot charge order", status=503,
    frames=("shop.pay:charge:10", "shop.pay:run:20", "shop:main:30"),
)  # fmt: skip


def group(message: str = BASE.message, task: str = "pay", model: str | None = None, **fields: Any) -> str:
    return fingerprint(msgspec.structs.replace(BASE, message=message, **fields), task, model)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("order 17 failed", "order 180412 failed"),
        ("took 1.5 s", "took 20,75 s"),
        ("job 7f3a9c21d4 failed", "job 00aa11bb22cc failed"),
        ("id 6ba7b810-9dad-11d1-80b4-00c04fd430c8", "id 123e4567-e89b-12d3-a456-426614174000"),
        ("no user 'ann'", "no user 'bob smith'"),
        ('no user "ann"', 'no user "x"'),
        ("cannot read /srv/data/a.json", "cannot read /home/ann/b/c.txt"),
        ("GET https://a.example/x?y=1 failed", "GET https://b.example/ failed"),
        ("expired at 2025-01-02T03:04:05Z", "expired at 2024-11-12 13:14:15.123+02:00"),
        ("request req_8aZ19 refused", "request req_77bbX refused"),
        ("at 0x7f1234567890", "at 0x55aa00112233"),
    ],
)
def test_what_differs_from_one_occurrence_to_the_next_does_not_count(one: str, two: str) -> None:
    assert normalise(one) == normalise(two)
    assert group(one) == group(two)


@pytest.mark.parametrize(
    "other",
    [
        {"types": ("shop.RefundError",)},
        {"status": 500},
        {"task": "refund"},
        {"code": "card_declined"},
        {"message": "cannot refund order"},
        {"frames": ("shop.refund:charge:10",)},
        {"model": "claude-sonnet-4"},
    ],
)
def test_what_makes_another_group(other: dict[str, Any]) -> None:
    assert group(**other) != group()


def test_a_line_number_does_not_make_a_group() -> None:
    moved = ("shop.pay:charge:99", "shop.pay:run:98", "shop:main:97")
    assert group(frames=moved) == group()


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet"),
        ("claude-sonnet-4-6", "claude-sonnet"),
        ("gpt-4o", "gpt"),
        ("mistral", "mistral"),
        (None, ""),
        ("", ""),
    ],
)
def test_models_of_one_family_are_one(model: str | None, family: str) -> None:
    assert model_family(model) == family


def test_a_group_is_stable_and_short() -> None:
    assert group() == group()
    assert len(group()) == 16
    assert int(group(), 16) >= 0


@given(st.text(max_size=3_000), st.text(max_size=20), st.none() | st.text(max_size=20))
def test_any_text_has_a_group(message: str, task: str, model: str | None) -> None:
    found = fingerprint(Failure("exception", (), message), task, model)
    assert found == fingerprint(Failure("exception", (), message), task, model)
    assert len(found) == 16


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=2))
def test_no_number_makes_a_group(numbers: list[int]) -> None:
    one, two = (f"row {number} of table orders is broken" for number in numbers)
    assert group(one) == group(two)


@pytest.mark.parametrize("text", ["a" * 100_000, "'" * 50_000, "/" * 50_000, "1," * 50_000, "a_" * 50_000 + "1"])
def test_a_hostile_message_takes_no_longer_than_its_beginning(text: str) -> None:
    assert len(normalise(text)) <= 10_000


def test_the_frames_of_the_application_count_where_a_library_raised() -> None:
    """Two libraries, or two versions of one, below the same line of the application are one trouble."""
    below = {"frames": ("httpx._client:send:9", "shop.pay:charge:10"), "origin": ("shop.pay:charge:10",)}
    other = {"frames": ("httpx._transports:handle:7", "shop.pay:charge:10"), "origin": ("shop.pay:charge:11",)}
    assert group(**below) == group(**other)
    assert group(**below) != group(**{**below, "origin": ("shop.refund:run:3",)})


def test_a_number_in_a_code_does_not_make_a_new_group_either() -> None:
    groups = {
        fingerprint(Failure("exception", ("shop.Refused",), "no", code=f"order-{number} is closed"), "t")
        for number in range(5)
    }
    assert len(groups) == 1


_PIECES = st.one_of(
    st.text(max_size=5), st.from_regex(r"[0-9a-fx_-]{1,12}", fullmatch=True), st.sampled_from([
        "0x7f12", "5x12", "2026-11-16T03:04:05", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "/srv/a7", "'x9'", "req_8a"
    ])
)  # fmt: skip


@given(st.lists(_PIECES, max_size=8).map(" ".join))
def test_looking_digits_up_as_one_changes_no_group(message: str) -> None:
    """Groups are stored: a message must not belong to another one because it is found quicker."""
    assert normalise(message) == _replace_variables.__wrapped__(message[:LENGTH])
