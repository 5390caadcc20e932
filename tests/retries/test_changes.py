"""What a retry does differently: applied where it belongs, refused with a reason, comparable afterwards."""

from __future__ import annotations

import copy
import difflib
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.change import (
    AddConstraint,
    AddInstruction,
    Change,
    CompressContext,
    Edit,
    SetAgent,
    SetModel,
    SimplifyTask,
    decode,
    encode,
    merge,
)
from redrive.retries.changes import Adapt, apply, can_take, diff, difference, safe_quote, tokens
from tests.retries.conversations import conversations, deep, odd_payloads, openai_call, problems

ANTHROPIC = {
    "system": "You are kind.",
    "messages": [{"role": "user", "content": "hi"}],
    "model": "a",
    "max_tokens": 900,
}
OPENAI = {
    "messages": [{"role": "system", "content": "You are kind."}, {"role": "user", "content": "hi"}],
    "model": "a",
    "max_completion_tokens": 900,
}
PLAIN = {"prompt": "hi", "model": "a", "max_output_tokens": 900}
NOTHING_KNOWN = {"order": 17, "lines": ["a", "b"]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
changes = st.one_of(
    st.builds(CompressContext, st.integers(-1, 5_000), st.none() | st.text()),
    st.builds(AddInstruction, st.text(), st.booleans()),
    st.builds(AddConstraint, st.text(), st.booleans()),
    st.builds(SimplifyTask, st.integers(-1, 5_000)),
    st.builds(SetModel, st.text()),
    st.builds(SetAgent, st.text()),
    st.builds(
        Edit, st.dictionaries(st.text(), json_values), st.none() | st.text(), st.none() | st.text(), st.booleans()
    ),
)
lists_of_changes = st.lists(changes, max_size=6)


def changed(payload: dict[str, Any], *those: Change, adapt: Adapt | None = None) -> dict[str, Any]:
    """The payload with the changes; all of them must have been taken."""
    before = copy.deepcopy(payload)
    applied = apply(payload, those, adapt)
    assert not applied.refused
    assert payload == before
    return applied.payload


def why_not(payload: dict[str, Any], change: Change, adapt: Adapt | None = None) -> str:
    applied = apply(payload, [change], adapt)
    assert applied.payload == payload
    assert applied.taken == ()
    assert not can_take(change, payload, adapt)
    ((refused, reason),) = applied.refused
    assert refused == change
    return reason


# ---- storing


@given(lists_of_changes)
@pytest.mark.behaviour("004-27")
def test_changes_come_back_from_json_as_they_were(those: list[Change]) -> None:
    assert decode(encode(those)) == tuple(those)
    assert decode(msgspec.json.decode(encode(those))) == tuple(those)


def test_how_changes_are_written() -> None:
    assert encode([CompressContext(80_000), AddInstruction("be brief")]) == (
        '[{"change":"compress_context","max_tokens":80000},{"change":"add_instruction","text":"be brief"}]'
    )
    assert decode(None) == decode("[]") == ()


@pytest.mark.parametrize("text", ['[{"change":"explode"}]', '[{"change":"set_model"}]', "{}", "nonsense"])
def test_what_is_no_change_is_said_to_be_none(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(text)


# ---- changes in force


def test_a_later_change_of_a_kind_replaces_the_earlier() -> None:
    before = merge((), [AddInstruction("one"), CompressContext(80_000), SetModel("large")])
    after = merge(before, [AddInstruction("two"), CompressContext(40_000), AddConstraint("c"), Edit({"a": 1})])
    assert after == (
        Edit({"a": 1}), SetModel("large"), CompressContext(40_000), AddInstruction("two"), AddConstraint("c"),
    )  # fmt: skip
    assert merge(after, after) == after
    assert merge(after, ()) == after


@given(lists_of_changes, lists_of_changes)
def test_at_most_one_of_each_kind_is_in_force_and_the_newest_wins(before: list[Change], new: list[Change]) -> None:
    after = merge(before, new)
    kinds = [type(change) for change in after]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {type(change) for change in (*before, *new)}
    assert merge((), after) == after
    if Edit in kinds:
        assert kinds[0] is Edit


def test_taint_is_kept_while_the_text_is() -> None:
    dirty = merge((), [AddInstruction("x", tainted=True), Edit({"a": 1}, tainted=True)])
    again = merge(decode(encode(dirty)), [AddInstruction("x"), Edit({"a": 2}, who="ann")])
    assert again == (Edit({"a": 2}, who="ann", tainted=True), AddInstruction("x", tainted=True))
    assert merge(again, [AddInstruction("our own words")])[1] == AddInstruction("our own words")


# ---- properties of applying


@given(conversations() | odd_payloads, lists_of_changes)
@pytest.mark.behaviour("004-27")
def test_applying_never_touches_the_payload_and_always_gives_the_same(payload: dict[str, Any], those: Any) -> None:
    before = repr(payload)
    applied = apply(payload, those)
    assert repr(payload) == before
    assert repr(apply(payload, those)) == repr(applied)
    assert sorted(map(repr, (*applied.taken, *(one for one, _ in applied.refused)))) == sorted(map(repr, those))
    assert all(reason for _, reason in applied.refused)
    if not applied.taken:
        assert repr(applied.payload) == before


@given(conversations(), st.integers(100, 4_000), st.text(min_size=1, max_size=300), st.booleans())
@pytest.mark.behaviour("004-22")
def test_what_is_said_on_top_counts_towards_the_limit(
    payload: dict[str, Any], limit: int, text: str, tainted: bool
) -> None:
    those = [CompressContext(limit), AddInstruction(text, tainted), AddConstraint("valid JSON only")]
    applied = apply(payload, those)
    assert problems(applied.payload["messages"]) == []
    if those[0] in applied.taken:
        assert (tokens(applied.payload) or 0) < limit
        again = apply(applied.payload, those)
        assert again.payload == applied.payload
    assert any("valid JSON only" in str(applied.payload[name]) for name in ("system", "messages") if name in payload)


@pytest.mark.parametrize("payload", [{"prompt": "p" * 9_000}, {"messages": [{"role": "user", "content": "m" * 9_000}]}])
def test_there_is_room_for_what_is_said(payload: dict[str, Any]) -> None:
    after = changed(payload, CompressContext(500), AddInstruction("i" * 700), AddConstraint("JSON"))
    assert 450 < (tokens(after) or 0) < 500
    assert "i" * 700 + "\n\nConstraint: JSON" in str(after).replace("\\n", "\n")


def test_a_counter_that_never_says_the_same_twice_is_not_believed() -> None:
    numbers = iter(range(10, 10_000_000, 3))
    applied = apply({"prompt": "p" * 5_000}, [CompressContext(1_000_000)], count=lambda text: next(numbers) * len(text))
    assert applied.payload == {"prompt": "p" * 5_000}
    assert len(applied.refused) == 1


@given(st.dictionaries(st.text(), json_values), lists_of_changes)
def test_unknown_shapes_take_only_an_edit(payload: dict[str, Any], those: list[Change]) -> None:
    for name in ("messages", "prompt", "context", "model", "max_tokens", "max_output_tokens", "max_completion_tokens"):
        payload.pop(name, None)
    no_edits = [change for change in those if not isinstance(change, Edit)]
    applied = apply(payload, no_edits)
    assert applied.payload == payload
    assert applied.taken == ()
    assert tokens(payload) is None


@pytest.mark.parametrize("levels", [65, 20_000])
def test_depth_does_not_matter(levels: int) -> None:
    payload = {"prompt": "x" * 500, "model": "a", "max_tokens": 9, "rest": deep(levels), "messages": deep(levels)}
    those = [CompressContext(100), AddInstruction("i"), SetModel("b"), SimplifyTask(5)]
    applied = apply(payload, [*those, Edit({"rest": deep(levels)})])
    assert applied.taken == (Edit(applied.payload),)
    applied = apply(payload, those)
    assert len(applied.taken) == 4
    assert len(diff(payload, applied.payload)) == 4
    assert diff({"a": deep(levels)}, {"a": deep(levels)}) == []
    assert diff({"a": deep(levels)}, {"a": deep(levels + 2)})[0].endswith(": changed")


@pytest.mark.behaviour("004-18")
@pytest.mark.parametrize("payload", [ANTHROPIC, OPENAI, PLAIN])
@pytest.mark.parametrize(
    "change", [AddInstruction("i"), AddConstraint("c"), SetModel("b"), SimplifyTask(600), Edit({"prompt": "other"})]
)
def test_every_change_makes_another_input(payload: dict[str, Any], change: Change) -> None:
    assert can_take(change, payload, None)
    assert changed(payload, change) != payload
    assert diff(payload, changed(payload, change))


# ---- each kind


@pytest.mark.parametrize("payload", [ANTHROPIC, OPENAI, PLAIN])
def test_the_model_where_it_stands(payload: dict[str, Any]) -> None:
    assert changed(payload, SetModel("b")) == payload | {"model": "b"}
    assert why_not(payload, SetModel("a")) == "the model is a already"
    assert "no model" in why_not(payload, SetModel(""))


def test_the_model_where_the_task_says() -> None:
    nested = {"request": {"messages": [{"role": "user", "content": "x"}]}, "model": {"not": "a name"}}
    assert "no place for a model" in why_not(nested, SetModel("b"))
    assert changed(nested, SetModel("b"), adapt=Adapt(model="request.llm"))["request"]["llm"] == "b"
    assert "no place" in why_not(nested, SetModel("b"), Adapt(model="nowhere.model"))
    assert "no place" in why_not(nested, SetModel("b"), Adapt(model="model"))
    beside = {"request": {"messages": [{"role": "user", "content": "x"}], "model": "a"}}
    assert changed(beside, SetModel("b"), adapt=Adapt(messages="request.messages"))["request"]["model"] == "b"


def test_names_that_the_job_itself_carries() -> None:
    both = frozenset({"model", "agent"})
    applied = apply(NOTHING_KNOWN, [SetModel("b"), SetAgent("cto")], names=both)
    assert applied.taken == (SetAgent("cto"), SetModel("b"))
    assert applied.payload == NOTHING_KNOWN
    assert can_take(SetAgent("cto"), NOTHING_KNOWN, None, names=both)
    assert "does not read which agent" in why_not(NOTHING_KNOWN, SetAgent("cto"))
    assert apply(PLAIN, [SetModel("b")], names=both).payload["model"] == "b"
    assert apply(PLAIN, [SetAgent("")], names=both).taken == ()


@pytest.mark.behaviour("004-24")
@pytest.mark.parametrize(
    ("payload", "name"),
    [(ANTHROPIC, "max_tokens"), (OPENAI, "max_completion_tokens"), (PLAIN, "max_output_tokens")],
)
def test_the_output_limit_is_only_ever_lowered(payload: dict[str, Any], name: str) -> None:
    assert changed(payload, SimplifyTask(math.floor(1001 * 0.6))) == payload | {name: 600}
    assert "not above 900" in why_not(payload, SimplifyTask(900))
    assert why_not(payload, SimplifyTask(901))
    assert "leaves nothing" in why_not(payload, SimplifyTask(0))


def test_the_output_limit_where_the_task_says() -> None:
    assert "no output limit" in why_not({"prompt": "x"}, SimplifyTask(600))
    assert "no output limit" in why_not({"prompt": "x", "max_tokens": True}, SimplifyTask(600))
    adapt = Adapt(max_output_tokens="limits.out")
    assert changed({"limits": {}}, SimplifyTask(600), adapt=adapt) == {"limits": {"out": 600}}
    assert changed({"limits": {"out": None}}, SimplifyTask(600), adapt=adapt) == {"limits": {"out": 600}}
    assert why_not({"limits": {"out": 500}}, SimplifyTask(600), adapt)
    assert why_not({"limits": {"out": "much"}}, SimplifyTask(600), adapt)


def test_a_limit_below_the_thinking_budget_would_be_refused_by_the_provider() -> None:
    payload = ANTHROPIC | {"max_tokens": 4_000, "thinking": {"type": "enabled", "budget_tokens": 2_000}}
    assert "thinking budget of 2000" in why_not(payload, SimplifyTask(2_000))
    assert changed(payload, SimplifyTask(2_001))["max_tokens"] == 2_001


def test_an_edit_is_the_whole_new_payload_and_goes_first() -> None:
    edit = Edit({"prompt": "new", "model": "a"}, who="ann", why="typo")
    assert changed(PLAIN, SetModel("b"), edit) == {"prompt": "new", "model": "b"}
    assert "same as before" in why_not(PLAIN, Edit(copy.deepcopy(PLAIN)))
    assert can_take(Edit({"flag": 1}), {"flag": True}, None)


# ---- where instructions go


def test_instructions_extend_the_system_prompt_where_there_is_one() -> None:
    assert changed(ANTHROPIC, AddInstruction("Be brief."))["system"] == "You are kind.\n\nBe brief."
    blocks = ANTHROPIC | {"system": [{"type": "text", "text": "You are kind.", "cache_control": {"type": "ephemeral"}}]}
    assert changed(blocks, AddConstraint("JSON"))["system"] == [
        *blocks["system"], {"type": "text", "text": "Constraint: JSON"},
    ]  # fmt: skip
    assert changed(OPENAI, AddInstruction("Be brief."))["messages"] == [
        {"role": "system", "content": "You are kind.\n\nBe brief."}, OPENAI["messages"][1],
    ]  # fmt: skip
    developer = {"messages": [{"role": "developer", "content": "D"}, {"role": "user", "content": "u"}]}
    assert changed(developer, AddInstruction("i"))["messages"][0]["content"] == "D\n\ni"


def test_without_a_system_prompt_the_newest_word_of_the_user_is_extended() -> None:
    bare = {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "x"},
                         {"role": "user", "content": [{"type": "text", "text": "two"}]},
                         *openai_call(1, 1, "", ["r"])]}  # fmt: skip
    after = changed(bare, AddInstruction("Be brief."), AddConstraint("JSON"))["messages"]
    assert [m["role"] for m in after] == [m["role"] for m in bare["messages"]]
    assert after[2]["content"] == [{"type": "text", "text": text} for text in ("two", "Be brief.", "Constraint: JSON")]
    assert changed({"prompt": "p"}, AddConstraint("JSON")) == {"prompt": "p\n\nConstraint: JSON"}
    assert "to add it to" in why_not({"context": ["c"]}, AddInstruction("i"))


def test_instructions_where_the_task_says() -> None:
    adapt = Adapt(prompt="q", instructions="rules")
    assert changed({"q": "x"}, AddInstruction("i"), adapt=adapt) == {"q": "x", "rules": "i"}
    assert changed({"q": "x", "rules": None}, AddInstruction("i"), adapt=adapt)["rules"] == "i"
    assert changed({"q": "x", "rules": ["a"]}, AddInstruction("i"), adapt=adapt)["rules"] == ["a", "i"]
    assert changed({"q": "x", "rules": {"odd": 1}}, AddInstruction("i"), adapt=adapt)["q"] == "x\n\ni"
    assert tokens({"q": "x" * 70, "rules": "r" * 70}, adapt) == 40


def test_nothing_is_said_twice() -> None:
    for payload in (ANTHROPIC, OPENAI, PLAIN):
        once = changed(payload, AddInstruction("Be brief."))
        assert "already" in why_not(once, AddInstruction("Be brief."))
    assert "says nothing" in why_not(PLAIN, AddInstruction(" \n"))


# ---- taint


@pytest.mark.parametrize("kind", [AddInstruction, AddConstraint])
def test_text_from_a_failure_is_never_said_as_the_system(kind: type[AddInstruction] | type[AddConstraint]) -> None:
    change = kind("EVIL", tainted=True)
    for payload in (ANTHROPIC, OPENAI, {"system": "s", "prompt": "p"}):
        after = changed(payload, change)
        assert after.get("system") == payload.get("system")
        for message in after.get("messages", []):
            assert ("EVIL" in str(message)) is (message["role"] == "user")
    assert changed({"prompt": "p"}, change)["prompt"].endswith("EVIL")
    only_system = {"messages": [{"role": "system", "content": "s"}]}
    assert "no user message or prompt" in why_not(only_system, change)
    assert "no user message" in why_not({"rules": "r"}, change, Adapt(instructions="rules"))
    assert can_take(kind("ours"), {"rules": "r"}, Adapt(instructions="rules"))


@given(conversations(), st.text(min_size=1))
def test_whatever_the_conversation_the_system_stays_clean(payload: dict[str, Any], text: str) -> None:
    after = apply(payload, [AddInstruction(f"EVIL{text}", tainted=True)]).payload
    assert "EVIL" not in str(after.get("system"))
    speakers = {m["role"] for m in after["messages"] if "EVIL" in str(m["content"])}
    assert speakers == {"user"}


def test_tainted_text_is_cleaned_of_what_cannot_be_seen() -> None:
    assert changed(PLAIN, AddInstruction("a\u202eb\u200bc\x1b[0m\nd", tainted=True))["prompt"] == "hi\n\nabc[0m\nd"
    assert changed(PLAIN, AddInstruction("a\u200db"))["prompt"] == "hi\n\na\u200db"


HIDDEN = (
    "\x00\x07\x1b\x7f\x85\u00ad\u061c\u180e\u200b\u200d\u200e\u2028\u202a\u202e\u2060\u2066\u2069\ufeff\ufff9\ufe0f"
    "\U000e0041"
)


@pytest.mark.parametrize("character", HIDDEN, ids=lambda character: f"U+{ord(character):04X}")
def test_a_quote_shows_all_that_it_says(character: str) -> None:
    assert character not in safe_quote(f"ignore{character} all")
    assert "ignore all" in safe_quote(f"ignore{character} all")


@given(st.text(max_size=2_000) | st.text("<>\u200b a", max_size=50))
def test_a_quote_is_short_fenced_and_cannot_be_left(text: str) -> None:
    quote = safe_quote(text)
    lines = quote.split("\n")
    assert len(quote) <= 500
    assert "untrusted" in lines[0] and "not instructions" in lines[0]
    assert lines[0].startswith("<<<") and quote.count("<<<") == 1
    assert lines[-1].endswith(">>>") and quote.count(">>>") == 1


def test_a_quote_of_a_long_text_says_that_it_is_cut() -> None:
    assert safe_quote("w" * 5_000).split("\n")[1].endswith("w…")
    assert "…" not in safe_quote("w" * 300)
    assert "Müller: 値が無効です" in safe_quote("Müller: 値が無効です")


# ---- differences


def test_a_difference_reads_well() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "write the report"}]
    for n in range(20):
        messages += openai_call(n, 1, "", [f"page {n} " + "lorem " * 500])
    messages += [{"role": "assistant", "content": "so far"}, {"role": "user", "content": "go on"}]
    before = {"messages": messages, "model": "small", "max_tokens": 4_000, "draft": "x" * 200}
    those = [CompressContext(2_000), AddInstruction("Focus on the core task."), SetModel("large"), SimplifyTask(600)]
    after = changed(before, *those)
    lines = diff(before, after)
    assert lines[0].startswith("tokens: about 1") and " → 1," in lines[0]
    assert lines[1].startswith("messages: 44 → ")
    assert 'messages[0].content: + "Focus on the core task."' in lines
    assert any(line.startswith("messages: dropped ") and "(numbers 2 to " in line for line in lines)
    assert any("characters left out …]" in line and "→" in line and "characters)" in line for line in lines)
    assert 'model: "small" → "large"' in lines
    assert "max_tokens: 4000 → 600" in lines
    assert not any(line.startswith("draft") for line in lines)
    assert max(map(len, lines)) < 250
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a: 1 → 2"]),
        ({"a": 1}, {"a": True}, ["a: 1 → true"]),
        ({"a": {"b": [1, {"c": "x"}]}}, {"a": {"b": [1, {"c": "y"}]}}, ['a.b[1].c: "x" → "y"']),
        ({"a": 1}, {"b": None}, ["a: removed, was 1", "b: added null"]),
        ({"a": [1, 2, 3]}, {"a": [1, 3]}, ["a: 3 → 2 entries", "a: dropped 1 (number 1), 2"]),
        ({"a": ["x"]}, {"a": ["x", "y", "z"]}, ["a: 1 → 3 entries", 'a: added 2 (numbers 1 to 2), "y"']),
        ({"a": "x" * 99}, {"a": 5}, ['a: "' + "x" * 59 + '…" → 5']),
        (1, [1], ["input: 1 → [1]"]),
        ({"a": "one\ntwo"}, {"a": ""}, ['a: "one two" → ""']),
    ],
)
def test_lines_of_a_difference(before: Any, after: Any, expected: list[str]) -> None:
    assert diff(before, after) == expected


def test_of_a_long_list_the_entries_are_compared_by_their_number() -> None:
    """What matching each with each costs grows with the square of their number."""
    before, after = [1, *[0] * 5_000, 1], [2, *[0] * 5_001, 3]
    assert diff({"a": before}, {"a": after}) == [
        "a: 5,002 → 5,003 entries",
        "a[0]: 1 → 2",
        "a[5001]: 1 → 0",
        "a: added 1 (number 5002), 3",
    ]


def test_of_many_lists_the_first_are_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them was bounded, and four hundred of them stopped the event loop for twenty seconds."""
    matched: list[int] = []

    class Counting(difflib.SequenceMatcher[str]):
        def __init__(self, junk: None, one: list[str], other: list[str], autojunk: bool) -> None:
            matched.append(len(one))
            super().__init__(junk, one, other, autojunk)

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    before = {str(n): [f"{n} {i}" for i in range(300)] for n in range(50)}
    after = {name: items[::-1] for name, items in before.items()}
    assert len(diff(before, after)) == 40
    assert sum(matched) <= difference.MATCHED


def test_a_difference_far_into_a_long_text_is_shown_where_it_is() -> None:
    (line,) = diff({"a": "x" * 5_000 + "OLD"}, {"a": "x" * 5_000 + "NEWER"})
    assert "OLD" in line and "NEWER" in line and "(5,003 → 5,005 characters)" in line


def test_many_differences_are_counted_not_listed() -> None:
    lines = diff({str(n): n for n in range(100)}, {str(n): n + 1 for n in range(100)}, limit=10)
    assert len(lines) == 10
    assert lines[-1] == "… and 91 more differences"
    assert len(diff({str(n): n for n in range(100)}, {}, limit=100)) == 100


@given(json_values | odd_payloads, json_values | odd_payloads)
def test_equal_inputs_have_no_difference_and_others_have(before: Any, after: Any) -> None:
    assert diff(before, copy.deepcopy(before)) == []
    lines = diff(before, after)
    assert len(lines) <= 40
    if msgspec.json.encode(before, order="deterministic") != msgspec.json.encode(after, order="deterministic"):
        assert lines or before == after
