"""Secrets out of what is shown; everything else untouched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.redact import MASK, redact, redact_text

SECRETS = [
    ("Authorization: Bearer abcDEF123456789", "abcDEF123456789"),
    ("sent with basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    ("key sk-proj-abcdefghijklmnop1234 is wrong", "sk-proj-abcdefghijklmnop1234"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123 expired", "ghp_abcdefghijklmnopqrstuvwxyz0123"),
    ("AKIAIOSFODNN7EXAMPLE was refused", "AKIAIOSFODNN7EXAMPLE"),
    ("xoxb-123456789012-abcdefghij", "xoxb-123456789012-abcdefghij"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "eyJzdWIiOiIxMjM0In0"),
    ("password=hunter22 was wrong", "hunter22"),
    ("{'api_key': 'abc123xyz'}", "abc123xyz"),
    ('{"client_secret": "s3cr3tvalue"}', "s3cr3tvalue"),
    ("postgres://app:p4ssw0rd@db.example/x", "p4ssw0rd"),
    ("access_token: qwertyuiop", "qwertyuiop"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_what_looks_like_a_secret_is_masked(text: str, secret: str) -> None:
    shown = redact_text(text)
    assert secret not in shown
    assert MASK in shown


@pytest.mark.parametrize(
    "text",
    [
        "connection reset by peer",
        "the token bucket is empty",
        "monkey business at the keyboard",
        "GET https://example.com/path?x=1 answered 503",
        "order 123456789 failed after 3 tries",
        "basic idea: ask again",
        "",
    ],
)
def test_what_does_not_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


def test_what_stands_around_a_secret_stays() -> None:
    assert redact_text("login of ann with password=hunter22 failed") == f"login of ann with password={MASK} failed"
    assert redact_text("postgres://app:p4ssw0rd@db.example/x") == f"postgres://app:{MASK}@db.example/x"


@pytest.mark.parametrize(
    "name",
    ["password", "PASSWORD", "db_password", "passwd", "secret", "client_secret", "token", "access_token", "api_key",
     "apiKey", "api-key", "Authorization", "credentials", "Cookie", "private_key", "signature"],
)  # fmt: skip
def test_fields_named_like_secrets_are_masked(name: str) -> None:
    assert redact({name: "anything", "user": "ann"}) == {name: MASK, "user": "ann"}
    assert redact({"deep": [{name: {"nested": 1}}]}) == {"deep": [{name: MASK}]}


@pytest.mark.parametrize("value", [{"passenger": "ann"}, {"n": 1.5, "t": True, "x": None}, [], "words", 7])
def test_other_values_come_back_equal(value: Any) -> None:
    assert redact(value) == value


def test_an_empty_secret_is_no_secret() -> None:
    assert redact({"password": "", "token": None}) == {"password": "", "token": None}


def test_texts_inside_values_are_masked_too() -> None:
    assert redact({"note": ["use Bearer abcDEF123456789"]}) == {"note": [f"use Bearer {MASK}"]}


def test_nothing_that_was_given_is_changed() -> None:
    value = {"password": "x", "list": [{"token": "y"}]}
    redact(value)
    assert value == {"password": "x", "list": [{"token": "y"}]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_any_value_can_be_redacted_and_twice_is_once(value: Any) -> None:
    once = redact(value)
    assert redact(once) == once


@pytest.mark.parametrize("text", ["token " * 20_000, "a" * 100_000 + "://", "=:" * 40_000, "eyJ" * 30_000])
def test_a_hostile_text_is_only_text(text: str) -> None:
    assert isinstance(redact_text(text), str)
