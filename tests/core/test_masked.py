"""An input without its secrets comes back edited, and has them again where nobody touched them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.redact import MASK, redact
from redrive.errors import InvalidInput
from redrive.insight.masked import unmasked

GIVEN: dict[str, Any] = {
    "password": "hunter22",
    "login": {"credentials": {"user": "ada"}, "name": "ada"},
    "text": "call with Bearer abcdefghijkl",
    "hooks": [{"token": "first"}, {"token": "second", "n": 2}],
    "n": 1,
}


def test_what_is_left_masked_keeps_its_value_and_the_rest_is_edited() -> None:
    shown = redact(GIVEN)
    assert "hunter22" not in str(shown) and "second" not in str(shown)
    edited = {**shown, "n": 2, "login": {**shown["login"], "name": "bob"}}
    assert unmasked(edited, GIVEN) == {**GIVEN, "n": 2, "login": {**GIVEN["login"], "name": "bob"}}


@pytest.mark.parametrize(("was", "now"), [(1, True), (0, False), (True, 1), (1, 1.0)])
def test_a_number_becomes_a_switch_where_somebody_writes_one(was: Any, now: Any) -> None:
    """To Python they are equal; a task that asks for the one is not served with the other."""
    edited: Any = unmasked({"a": now, "list": [now]}, {"a": was, "list": [was]})
    assert [type(value) for value in (edited["a"], *edited["list"])] == [type(now)] * 2


def test_a_secret_can_be_replaced_or_removed() -> None:
    shown = redact(GIVEN)
    del shown["login"]
    assert unmasked({**shown, "password": "new one"}, GIVEN)["password"] == "new one"
    assert "login" not in unmasked(shown, GIVEN)


def test_entries_of_a_list_are_known_again_where_they_moved() -> None:
    shown = redact(GIVEN)
    shown["hooks"] = [{"token": MASK, "n": 2}]
    assert unmasked(shown, GIVEN)["hooks"] == [{"token": "second", "n": 2}]


@pytest.mark.parametrize("left", [[{"token": MASK}], [{"token": MASK}] * 3])
def test_which_of_several_secrets_is_meant_is_not_guessed(left: list[Any]) -> None:
    """One was taken out, or put in: nobody knows which secrets the others are."""
    given_payload: dict[str, Any] = {"hooks": [{"token": "first"}, {"token": "second"}]}
    with pytest.raises(InvalidInput) as refused:
        unmasked({"hooks": left}, given_payload)
    assert refused.value.field == "payload.hooks[0]"
    alike: dict[str, Any] = {"hooks": [{"token": "same"}, {"token": "same"}]}
    assert unmasked({"hooks": left}, alike)["hooks"] == [{"token": "same"}] * len(left)


ANN, BOB = {"name": "ann", "password": "of ann"}, {"name": "bob", "password": "of bob"}


def masked(name: str) -> dict[str, str]:
    return {"name": name, "password": MASK}


@pytest.mark.parametrize(
    ("left", "at"),
    [
        ([masked("bob"), masked("carl")], 1),
        ([masked("carl"), masked("ann")], 0),
        ([masked("bobby")], 0),
        ([{"name": "carl", "password": "new"}, masked("anna"), masked("bobby")], 1),
        ([masked("ann"), masked("bob"), masked("carl")], 2),
    ],
)
def test_nobody_gets_the_secret_of_another(left: list[Any], at: int) -> None:
    """An entry that was not shown like this has the secret of its place only where none has moved."""
    with pytest.raises(InvalidInput, match="added, removed or moved; write it out") as refused:
        unmasked({"users": left}, {"users": [ANN, BOB]})
    assert refused.value.field == f"payload.users[{at}]"


def test_entries_are_edited_where_they_stand_and_moved_as_they_are() -> None:
    def users(*left: Any) -> Any:
        return unmasked({"users": list(left)}, {"users": [ANN, BOB]})["users"]

    fresh = {"name": "carl", "password": "new"}
    assert users(masked("anna"), masked("bob")) == [{**ANN, "name": "anna"}, BOB]
    assert users(masked("bob"), masked("ann")) == [BOB, ANN]
    assert users(fresh, masked("bob")) == [fresh, BOB]
    assert users(masked("bob"), fresh, 1) == [BOB, fresh, 1]


@pytest.mark.parametrize(
    ("edited", "field"),
    [
        ({"new": MASK}, "payload.new"),
        ({"text": f"call me with {MASK}"}, "payload.text"),
        ({"n": MASK}, "payload.n"),
        ({"hooks": [1, 2, MASK]}, "payload.hooks[2]"),
        ({"other": {"deep": [MASK]}}, "payload.other.deep[0]"),
    ],
)
def test_a_mask_that_nothing_stands_behind_is_refused_by_its_place(edited: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        unmasked(edited, GIVEN)
    assert refused.value.field == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab ", max_size=6) | st.just("password=hunter22"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "token", "password"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["a", "token", "x"]), JSON, max_size=3))
def test_what_nobody_edits_stays_as_it_was(given_payload: dict[str, Any]) -> None:
    assert unmasked(redact(given_payload), given_payload) == given_payload
