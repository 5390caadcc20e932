"""Tokens as values: what a role may do, whose a secret is, and how an act is signed."""

import hmac
from typing import Any, get_args

import pytest

from redrive.core import tokens
from redrive.core.tokens import (
    ROLES,
    Caller,
    NewToken,
    Role,
    Token,
    compose_signature,
    cookie_of,
    digest_of,
    find_holder,
    list_signers,
)

SECRET = "s3cret-" + "x" * 36


def a_token(secret: str = SECRET, **how: Any) -> Token:
    cookie = digest_of(cookie_of(secret)[1].encode())
    said = {"name": "ann", "role": "act", "at": 100.0, "by": "ada", **how}
    return Token(digest=digest_of(secret.encode()), cookie=cookie, **said)


@pytest.mark.behaviour("H-3a")
def test_each_role_may_do_what_the_one_before_it_may_and_a_worker_stands_apart() -> None:
    assert get_args(Role) == ROLES
    allowed = {role: [needs for needs in ROLES if Caller(None, role).may(needs)] for role in ROLES}
    assert allowed == {
        "look": ["look"],
        "act": ["look", "act"],
        "purge": ["look", "act", "purge", "worker"],
        "worker": ["worker"],
    }


def test_a_token_is_its_holders_until_it_is_revoked_or_has_expired() -> None:
    assert find_holder([a_token()], SECRET.encode(), 200) == a_token()
    assert find_holder([a_token()], cookie_of(SECRET)[1].encode(), 200, cookie=True) == a_token()
    for wrong in (b"", SECRET[:-1].encode(), a_token().digest.encode(), cookie_of(SECRET)[1].encode()):
        assert find_holder([a_token()], wrong, 200) is None
    assert find_holder([a_token()], SECRET.encode(), 200, cookie=True) is None, "a token is no cookie"
    ends = a_token(expires_at=200.0)
    assert (ends.standing(199.9), ends.standing(200)) == ("good", "expired")
    assert find_holder([ends], SECRET.encode(), 200) is None
    assert find_holder([a_token(revoked_at=150.0)], SECRET.encode(), 160) is None


@pytest.mark.behaviour("H-3c")
def test_digests_are_compared_in_constant_time_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    known = [a_token(f"{SECRET}{n}", name=f"t{n}") for n in range(5)]
    monkeypatch.setattr(tokens, "hmac", type("Fake", (), {"compare_digest": staticmethod(compare)}))
    found = find_holder(known, f"{SECRET}1".encode(), 200)
    assert found is not None and found.name == "t1"
    assert [one for one, _ in compared] == [token.digest for token in known], "also those after the right one"


@pytest.mark.behaviour("H-3d")
@pytest.mark.parametrize(
    ("name", "said", "who"),
    [
        ("ann", "ann", "ann"),
        ("ann", "editor", "ann (as editor)"),
        ("ann", "bob", "ann (as bob)"),
        ("ann", "bob (as carl)", "ann (as bob (as carl))"),
        (None, "editor", "editor"),
    ],
)
def test_the_tokens_name_stands_first_whatever_the_caller_says(name: str | None, said: str, who: str) -> None:
    assert compose_signature(name, said) == who


def test_what_is_said_too_long_is_cut_and_the_name_is_kept() -> None:
    found = compose_signature("ann", "x" * 200)
    assert len(found) == 200 and found.startswith("ann (as xxx") and found.endswith("…)")


def test_who_signed_is_known_by_each_name() -> None:
    assert list_signers("ann (as editor)") == ("ann (as editor)", "ann", "editor")
    assert list_signers("ann") == ("ann",)
    assert list_signers("somebody else (as ann)") == ("somebody else (as ann)",), "no token is called so"


def test_a_new_token_is_not_printed_by_accident() -> None:
    made = NewToken(a_token(), SECRET)
    assert SECRET not in repr(made) and SECRET not in str(made) and SECRET not in f"{made}"
    assert "digest" not in a_token().public(0.0) and a_token().digest not in str(a_token().public(0.0))
