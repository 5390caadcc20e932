"""An input without its secrets comes back edited, and has them again where nobody touched them."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.redact import MASK, redact
from redrive.deadletters.input_edits import restore_masked
from redrive.errors import InvalidInput

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
    assert restore_masked(edited, GIVEN) == {**GIVEN, "n": 2, "login": {**GIVEN["login"], "name": "bob"}}


@pytest.mark.parametrize(("was", "now"), [(1, True), (0, False), (True, 1), (1, 1.0)])
def test_a_number_becomes_a_switch_where_somebody_writes_one(was: Any, now: Any) -> None:
    """To Python they are equal; a task that asks for the one is not served with the other."""
    edited: Any = restore_masked({"a": now, "list": [now]}, {"a": was, "list": [was]})
    assert [type(value) for value in (edited["a"], *edited["list"])] == [type(now)] * 2


def test_a_secret_can_be_replaced_or_removed() -> None:
    shown = redact(GIVEN)
    del shown["login"]
    assert restore_masked({**shown, "password": "new one"}, GIVEN)["password"] == "new one"
    assert "login" not in restore_masked(shown, GIVEN)


def test_entries_of_a_list_are_known_again_where_they_moved() -> None:
    shown = redact(GIVEN)
    shown["hooks"] = [{"token": MASK, "n": 2}]
    assert restore_masked(shown, GIVEN)["hooks"] == [{"token": "second", "n": 2}]


@pytest.mark.parametrize("left", [[{"token": MASK}], [{"token": MASK}] * 3])
def test_which_of_several_secrets_is_meant_is_not_guessed(left: list[Any]) -> None:
    """One was taken out, or put in: nobody knows which secrets the others are."""
    given_payload: dict[str, Any] = {"hooks": [{"token": "first"}, {"token": "second"}]}
    with pytest.raises(InvalidInput) as refused:
        restore_masked({"hooks": left}, given_payload)
    assert refused.value.field == "payload.hooks[0]"
    alike: dict[str, Any] = {"hooks": [{"token": "same"}, {"token": "same"}]}
    assert restore_masked({"hooks": left}, alike)["hooks"] == [{"token": "same"}] * len(left)


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
        restore_masked({"users": left}, {"users": [ANN, BOB]})
    assert refused.value.field == f"payload.users[{at}]"


def test_entries_are_edited_where_they_stand_and_moved_as_they_are() -> None:
    def users(*left: Any) -> Any:
        return restore_masked({"users": list(left)}, {"users": [ANN, BOB]})["users"]

    fresh = {"name": "carl", "password": "new"}
    assert users(masked("anna"), masked("bob")) == [{**ANN, "name": "anna"}, BOB]
    assert users(masked("bob"), masked("ann")) == [BOB, ANN]
    assert users(fresh, masked("bob")) == [fresh, BOB]
    assert users(masked("bob"), fresh, 1) == [BOB, fresh, 1]
    assert users({"name": "ann", "password": "new"}, masked("bobby")) == [
        {**ANN, "password": "new"},
        BOB | {"name": "bobby"},
    ]


HOSTS = [{"host": "a", "token": "of a", "retries": 1}, {"host": "b", "token": "of b", "retries": 2}]


def host(name: str, retries: int, **more: Any) -> dict[str, Any]:
    return {"host": name, "token": MASK, "retries": retries, **more}


def test_what_moved_and_changed_is_known_by_what_else_it_says() -> None:
    def hosts(*left: Any) -> list[Any]:
        found: Any = restore_masked({"hosts": list(left)}, {"hosts": HOSTS})
        return [(one["host"], one["token"], one["retries"]) for one in found["hosts"]]

    assert hosts(host("b", 3), host("a", 3)) == [("b", "of b", 3), ("a", "of a", 3)]
    assert hosts(host("b", 3), host("a", 1)) == [("b", "of b", 3), ("a", "of a", 1)]
    assert hosts(host("b", 1), host("a", 2)) == [("b", "of b", 1), ("a", "of a", 2)], "a number is no name"
    assert hosts(host("b", 3)) == [("b", "of b", 3)]
    assert hosts(host("a", 3), host("b", 3)) == [("a", "of a", 3), ("b", "of b", 3)]
    assert hosts(host("a", 3), host("c", 2)) == [("a", "of a", 3), ("c", "of b", 2)], "the one that is left"


@pytest.mark.parametrize(
    ("left", "at", "why"),
    [
        ([host("c", 2), host("d", 1)], 0, "several entries were changed"),
        ([host("c", 3), host("d", 3)], 0, "several entries were changed"),
        ([{"host": "c", "token": "new"}, host("d", 3)], 1, "several entries were changed"),
        ([host("b", 3), host("c", 3)], 1, "entries were added, removed or moved"),
        ([host("a", 3), host("a", 4)], 0, "entries were added, removed or moved"),
        ([host("b", 3), host("b", 2)], 0, "entries were added, removed or moved"),
        ([host("a", 1), host("a", 3)], 1, "entries were added, removed or moved"),
        ([host("a", 3, also="b"), host("c", 1), host("b", 1)], 1, "entries were added, removed or moved"),
    ],
)
def test_which_of_several_changed_ones_is_meant_is_not_guessed(left: list[Any], at: int, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"{why}; write it out") as refused:
        restore_masked({"hosts": left}, {"hosts": HOSTS})
    assert refused.value.field == f"payload.hosts[{at}]"


def test_where_all_hide_the_same_any_place_is_right() -> None:
    alike = [{**one, "token": "same"} for one in HOSTS]
    found: Any = restore_masked({"hosts": [host("c", 3), host("d", 3)]}, {"hosts": alike})
    assert [one["token"] for one in found["hosts"]] == ["same", "same"]


FIELDS = st.fixed_dictionaries(
    {"n": st.integers(0, 1)},
    optional={
        "host": st.sampled_from("abcd"),
        "region": st.sampled_from(["eu", "us"]),
        "id": st.integers(1, 3),
        "auth": st.fixed_dictionaries({"token": st.sampled_from(["s1", "s2", "s3"]), "user": st.sampled_from("uv")}),
        "token": st.sampled_from(["t1", "t2", "t3", "t4"]),
    },
)


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[Any], list[Any], list[Any]]:
    """Entries, and what became of them: moved, taken out, copied, given new words; and of which each was made."""
    entries = draw(
        st.lists(FIELDS, min_size=1, max_size=4, unique_by=lambda one: json.dumps(redact(one), sort_keys=True))
    )
    kept = draw(st.lists(st.sampled_from(range(len(entries))), unique=True, max_size=4))
    left, origins = [], []
    for number, origin in enumerate(kept):
        entry: dict[str, Any] = dict(redact(entries[origin]))
        for name in draw(st.sets(st.sampled_from(["n", "host", "region", "id", "auth", "token"]), max_size=3)):
            fresh = {"n": 10 + number, "id": 10 + number, "auth": {**entry.get("auth", {}), "user": f"new {number}"}}
            entry[name] = fresh.get(name, f"new {number}")
        left.append(entry)
        origins.append(entries[origin])
    if draw(st.booleans()):
        place = draw(st.integers(0, len(left)))
        left.insert(place, {"host": "fresh", "token": "fresh"})
        origins.insert(place, {})
    if left and "host" in origins[-1] and left[-1].get("host") == origins[-1]["host"] and draw(st.booleans()):
        left.append({**left[-1], "n": 99})
        origins.append(origins[-1])
    return entries, left, origins


@settings(max_examples=500)
@given(edits())
def test_no_entry_gets_a_secret_that_it_did_not_have(edit: tuple[list[Any], list[Any], list[Any]]) -> None:
    entries, left, origins = edit
    try:
        found: Any = restore_masked({"list": left}, {"list": entries})
    except InvalidInput:
        return
    for entry, one, origin in zip(left, found["list"], origins, strict=True):
        pairs = [(entry, one, origin), *([(entry["auth"], one["auth"], origin.get("auth"))] if "auth" in entry else [])]
        for edited, now, was in pairs:
            assert edited.get("token") != MASK or now["token"] == was["token"]


@pytest.mark.parametrize(
    ("given_payload", "edited", "field"),
    [
        ([{"name": "X-Api-Key", "value": "abc"}], [{"name": "X", "value": MASK}], "payload.h[0].value"),
        ([["X-Api-Key", "abc"]], [["X", MASK]], "payload.h[0][1]"),
    ],
)
def test_no_edit_of_a_name_shows_the_secret(given_payload: Any, edited: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match="shown under this name") as refused:
        restore_masked({"h": edited}, {"h": given_payload})
    assert refused.value.field == field
    assert restore_masked({"h": redact(given_payload)}, {"h": given_payload}) == {"h": given_payload}


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
        restore_masked(edited, GIVEN)
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
    assert restore_masked(redact(given_payload), given_payload) == given_payload
