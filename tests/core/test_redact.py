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
    ("DB_PASSWORD=hunter22", "hunter22"),
    ("OPENAI_API_KEY=abcdef0123456789", "abcdef0123456789"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
    ("AccountKey=abcdefgh==;x=1", "abcdefgh"),
    ("auth_token: abcdef", "abcdef"),
    ("id_token=abcdef", "abcdef"),
    ("VERCEL_TOKEN=$abcdef", "abcdef"),
    ("DEPLOY_TOKEN=123+abc", "abc"),
    ("secret_key=abcdefgh", "abcdefgh"),
    ("clientSecret=abcdefgh", "abcdefgh"),
    ("pwd=hunter22", "hunter22"),
    ("Uid=ada;Pwd=hunter22;", "hunter22"),
    ("redis://:hunter22@host:6379/0", "hunter22"),
    ("postgres://app:hun@ter22@db.example/x", "ter22"),
    ("github_pat_11ABCDEFG0abcdefghijkl_mnop is wrong", "11ABCDEFG0"),
    ("ghu_abcdefghijklmnopqrstuvwxyz0123", "abcdefghij"),
    ("hf_abcdefghijklmnopqrstuvwxyz012345", "abcdefghij"),
    ("rk_live_abcdefghijklmnop", "abcdefghij"),
    ("xapp-1-A0000-abcdefghijkl", "abcdefghij"),
    ("glpat-abcdefghijklmnop", "abcdefghij"),
    ("GET /x?X-Amz-Signature=abcdef0123456789&x=1", "abcdef0123456789"),
    ("GET /x?se=2030&sig=abcdef0123%2B456789", "abcdef0123"),
    ('{"signature": "abcdef"}', "abcdef"),
    ("Authorization: ApiKey abcdefgh12345678", "abcdefgh12345678"),
    ("authorization=abcdefgh12345678", "abcdefgh12345678"),
    ("{'Authorization': 'abcdefgh'}", "abcdefgh"),
    ("ENCRYPTION_KEY: abcdef", "abcdef"),
    ("Cookie: session=abcdef", "abcdef"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_what_looks_like_a_secret_is_masked(text: str, secret: str) -> None:
    shown = redact_text(text)
    assert secret not in shown
    assert MASK in shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "connection reset by peer",
        "the token bucket is empty",
        "monkey business at the keyboard",
        "GET https://example.com/path?x=1 answered 503",
        "order 123456789 failed after 3 tries",
        "basic idea: ask again",
        "used tokens=312000, max_tokens: 5, max_token=4096, total_token: 1,234",
        "token limit exceeded after 4096 prompt tokens",
        "the max_token parameter is too large",
        "set tokenizer.pad_token = tokenizer.eos_token",
        "token_type: word, next_page_token=abcdef",
        "PWD=/home/ada",
        "the signature: verification failed, sig=SIGTERM",
        "Authorization: header validation failed",
        "the key of constraint pk_orders_customer_id exists",
        "hf_hub_download_of_the_model failed for a key",
        'the key "http://host:80","mail":"ada@example.org"',
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


def test_a_password_may_be_a_number_but_a_count_is_none() -> None:
    secret = {"password": 12345678, "db_pwd": 1234, "client_secret": 1.5, "pwd": "hunter22"}
    assert redact(secret) == dict.fromkeys(secret, MASK)
    count = {"max_tokens": 5, "token": 5, "password_length": 12, "password": True, "secrets": 3, "PWD": "/home/ada"}
    assert redact(count) == count


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


@pytest.mark.parametrize(
    "text",
    [
        "token " * 20_000, "a" * 100_000 + "://", "=:" * 40_000, "eyJ" * 30_000, "eyJaaaaaaaaaaaa-" * 25_000,
        "-----BEGIN A-----" * 25_000, "token=[ " * 50_000, "token={ " * 50_000, "token='\\" * 50_000,
        "://a:" * 50_000, "token=" + " " * 100_000, "token " + "'" * 100_000, "eyJaaaaaaaaaaaa." * 25_000,
        "-----BEGIN A-----" + "-" * 200_000, "-----BEGIN A-----" + "-----END " * 20_000,
    ],
)  # fmt: skip
def test_a_hostile_text_is_only_text(text: str) -> None:
    """Read again from every place where a secret might begin, some would take minutes."""
    assert isinstance(redact_text(text), str)


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA0Z3VS5JJcds3xfn\nygWyF8PbnGy0AHB7MhgwMbRvI0MBZhpI"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"bad key {KEY}", f"bad key {MASK}"),
        (f"bad key {KEY}\n-----END RSA PRIV", f"bad key {MASK}"),
        (f"bad key {KEY}\n-----END RSA PRIVATE KEY----", f"bad key {MASK}"),
        (f"bad key {KEY}\n-----E", f"bad key {MASK}"),
        (f"{KEY} and {KEY}\n-----END RSA PRIVATE KEY----- and so on", f"{MASK}{MASK} and so on"),
        ("login with password='hunter2 is", f"login with password={MASK}"),
        ('login with "password": "hunter2 \\', f'login with "password": {MASK}\\'),
        ("the credentials: {'user': 'ada', 'wo", f"the credentials: {MASK}"),
        ("the secret=['ada', 'hunter", f"the secret={MASK}"),
    ],
)
def test_a_secret_that_was_cut_off_is_masked_to_the_end(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "expected -----BEGIN PRIVATE KEY----- at the start of the file, found <html>",
        "no '-----BEGIN PRIVATE KEY-----' in the file",
        "password=''",
        "token: {}",
    ],
)
def test_what_only_speaks_of_a_secret_stays(text: str) -> None:
    assert redact_text(text) == text
