"""Shorter without being wrong: what goes, what stays, and that a provider would still take it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.change import CompressContext, EffectiveInput
from redrive.retries.changes import Adapt, apply, can_take, estimate, find_dropped, tokens
from redrive.retries.changes.compress import Compressed, compress
from redrive.retries.changes.reading import texts
from tests.retries.conversations import (
    answers_in,
    anthropic_call,
    calls_in,
    conversations,
    deep,
    odd_payloads,
    openai_call,
    problems,
    words,
)

LIMITS = st.sampled_from([1, 50, 150, 400, 1000, 3000, 10_000, 100_000])


def shortened(payload: dict[str, Any], max_tokens: int, adapt: Adapt | None = None, **more: Any) -> EffectiveInput:
    return apply(payload, [CompressContext(max_tokens, **more)], adapt)


def short(payload: dict[str, Any], max_tokens: int, adapt: Adapt | None = None, **more: Any) -> dict[str, Any]:
    """The compressed payload; it must have been possible."""
    applied = shortened(payload, max_tokens, adapt, **more)
    assert applied.taken, applied.refused
    size = tokens(applied.payload, adapt)
    assert size is not None and size < max_tokens
    return applied.payload


def why_not(payload: dict[str, Any], max_tokens: int, adapt: Adapt | None = None, **more: Any) -> str:
    applied = shortened(payload, max_tokens, adapt, **more)
    assert not applied.taken
    assert applied.payload == payload
    return applied.refused[0][1]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def roles(payload: dict[str, Any]) -> str:
    return "".join(message["role"][0] for message in payload["messages"])


# ---- properties, for both providers' forms


@given(conversations(), LIMITS)
@pytest.mark.behaviour("004-27")
def test_it_is_shorter_than_asked_or_refused_and_unchanged(payload: dict[str, Any], limit: int) -> None:
    applied = shortened(payload, limit)
    size = tokens(applied.payload)
    assert size is not None
    if applied.taken:
        assert size < limit
        assert not applied.refused
    else:
        assert applied.payload == payload
        assert applied.refused[0][1]


@given(conversations(), LIMITS)
def test_a_provider_would_still_take_it(payload: dict[str, Any], limit: int) -> None:
    assert problems(payload["messages"]) == []
    assert problems(shortened(payload, limit).payload["messages"]) == []


@given(conversations(), LIMITS)
def test_calls_and_results_stay_together_and_as_they_were(payload: dict[str, Any], limit: int) -> None:
    after = shortened(payload, limit).payload["messages"]
    made = {call for message in after for call in calls_in(message)}
    assert made == {answer for message in after for answer in answers_in(message)}
    before = {json.dumps(call) for message in payload["messages"] for call in _calls(message)}
    assert {json.dumps(call) for message in after for call in _calls(message)} <= before


def _calls(message: dict[str, Any]) -> list[Any]:
    content = message["content"] if isinstance(message.get("content"), list) else []
    return [*message.get("tool_calls", []), *(block for block in content if block["type"] == "tool_use")]


@given(conversations(), LIMITS)
def test_system_prompt_task_and_newest_turn_stay(payload: dict[str, Any], limit: int) -> None:
    after = shortened(payload, limit).payload
    assert after.get("system") == payload.get("system")
    assert [m for m in after["messages"] if m["role"] == "system"] == [
        m for m in payload["messages"] if m["role"] == "system"
    ]
    first = next(m for m in after["messages"] if m["role"] == "user")
    assert first["content"].startswith("TASK ")
    newest, kept = payload["messages"][-1], after["messages"][-1]
    assert newest["role"] == kept["role"]
    assert answers_in(newest) == answers_in(kept)
    asked = [m["content"] for m in payload["messages"] if m["role"] == "user" and isinstance(m["content"], str)][-1]
    assert any(m["role"] == "user" and str(m["content"])[:20] == asked[:20] for m in after["messages"])


@given(conversations(), LIMITS)
@pytest.mark.behaviour("004-27")
def test_once_is_enough_and_it_always_comes_out_the_same(payload: dict[str, Any], limit: int) -> None:
    untouched = copy.deepcopy(payload)
    once = shortened(payload, limit)
    assert payload == untouched
    assert shortened(untouched, limit) == once
    again = shortened(once.payload, limit)
    assert again.payload == once.payload
    assert not again.taken


@given(conversations(), LIMITS, words)
def test_a_summary_counts_and_is_there(payload: dict[str, Any], limit: int, summary: str) -> None:
    applied = shortened(payload, limit, summary=f"SUM {summary}")
    size = tokens(applied.payload)
    assert size is not None
    assert problems(applied.payload["messages"]) == []
    said = [text for message in applied.payload["messages"] for _, text in texts(message)]
    assert any(f"SUM {summary}" in text for text in said) is bool(applied.taken)
    if applied.taken:
        assert size < limit
        assert shortened(applied.payload, limit, summary=f"SUM {summary}").payload == applied.payload


@given(conversations(), LIMITS)
def test_any_counter_that_adds_up_is_kept_to(payload: dict[str, Any], limit: int) -> None:
    def by_words(text: str) -> int:
        return len(text.split()) + len(text) // 5

    applied = apply(payload, [CompressContext(limit)], count=by_words)
    if applied.taken:
        assert (tokens(applied.payload, count=by_words) or 0) < limit


# ---- what goes first


def test_old_results_are_cut_before_any_turn_is_dropped() -> None:
    messages = [user("do it"), *openai_call(1, 1, "", ["o" * 30_000]), *openai_call(2, 1, "", ["new result"])]
    after = short({"messages": messages}, 5_000)["messages"]
    assert [m["role"] for m in after] == [m["role"] for m in messages]
    assert len(after[2]["content"]) < 20_000
    assert "characters left out …]" in after[2]["content"]
    assert after[3:] == messages[3:]


def test_the_oldest_turns_go_first() -> None:
    messages = [user("task")]
    for n in range(30):
        messages += [assistant(f"answer {n} " + "w" * 900), user(f"question {n} " + "w" * 900)]
    after = short({"messages": messages}, 3_000)["messages"]
    assert after[0] == messages[0]
    assert after[1:] == messages[-len(after) + 1 :]
    assert 3 <= len(after) < 15


def test_one_giant_result_does_not_cost_the_whole_history() -> None:
    messages = [user("task"), assistant("plan"), user("yes"), *anthropic_call(1, 1, "", ["x" * 400_000])]
    after = short({"system": "be brief", "messages": messages}, 20_000)["messages"]
    assert after[:4] == messages[:4]
    text = after[4]["content"][0]["content"][0]["text"]
    assert text.startswith("x") and text.endswith("x") and 10_000 < len(text) < 70_000


def test_a_pasted_document_does_not_cost_the_whole_history_either() -> None:
    messages = [user("summarise: " + "d" * 400_000 + " in one line"), assistant("short"), user("shorter")]
    after = short({"messages": messages}, 20_000)["messages"]
    assert after[1:] == messages[1:]
    assert after[0]["content"].startswith("summarise: ddd")
    assert after[0]["content"].endswith(" in one line")


def test_the_marker_says_how_much_is_missing() -> None:
    prompt = "a" * 10_000 + "b" * 10_000
    after = short({"prompt": prompt}, 1_000)["prompt"]
    head, _, rest = after.partition("\n[… ")
    number, _, tail = rest.partition(" characters left out …]\n")
    assert int(number.replace(",", "")) == len(prompt) - len(head) - len(tail)
    assert "," in number
    assert set(head) == {"a"} and set(tail) == {"b"}
    assert (tokens({"prompt": after}) or 0) > 900


@pytest.mark.behaviour("004-22")
def test_eighty_thousand_tokens() -> None:
    messages = [user("write the report")]
    for n in range(120):
        messages += openai_call(n, 2, "", [f"page {n} " + "lorem ipsum " * 250])
    payload = {"messages": messages, "model": "small"}
    assert (tokens(payload) or 0) > 180_000
    after = short(payload, 80_000)
    assert (tokens(after) or 0) > 60_000, "no more is left out than needed, roughly"
    assert problems(after["messages"]) == []


def test_short_words_of_the_user_are_never_touched_while_results_can_be_cut() -> None:
    messages = [user("the task in some words"), *openai_call(1, 3, "", ["r" * 9_000]), assistant("hm"), user("go on")]
    messages += openai_call(2, 3, "", ["s" * 9_000])
    after = short({"messages": messages}, 1_000)["messages"]
    assert after[0] == messages[0]
    assert user("go on") in after


def test_many_results_are_cut_alike_before_the_task_is() -> None:
    messages = [user("task " * 300), *openai_call(1, 8, "", ["r" * 700])]
    after = short({"messages": messages}, 1_500)["messages"]
    assert after[0] == messages[0]
    sizes = {len(m["content"]) for m in after if m["role"] == "tool"}
    assert len(sizes) == 1 and sizes < {*range(200, 700)}


# ---- the joints of a conversation


def test_parallel_calls_stand_or_fall_together() -> None:
    messages = [user("t"), *openai_call(1, 3, "", ["x" * 900]), *openai_call(2, 3, "", ["y" * 900])]
    after = short({"messages": messages}, 1_000)["messages"]
    assert [m["role"] for m in after] == ["user", "assistant", "tool", "tool", "tool"]
    assert after[1] == messages[5]


def test_ids_that_are_used_again_do_not_tie_everything_together() -> None:
    messages = [user("t")]
    for n in range(10):
        messages += openai_call(0, 1, "", [f"{n}" * 1_500])
    after = short({"messages": messages}, 1_500)["messages"]
    assert 3 <= len(after) <= 9
    assert problems(after) == []


def test_a_result_far_from_its_call_goes_with_it() -> None:
    call, result = openai_call(1, 1, "", ["late"])
    messages = [user("t"), call, user("b" * 350), assistant("c"), result, assistant("d"), user("now")]
    after = short({"messages": messages}, 150)["messages"]
    assert after == [messages[0], *messages[5:]]


def test_a_greeting_goes_before_the_task_does() -> None:
    messages = [assistant("hello " * 100), user("the task"), assistant("x" * 4_000), user("and now")]
    after = short({"messages": messages}, 60)["messages"]
    assert after == [user("the task"), messages[2] | {"content": after[1]["content"]}, user("and now")]


def test_where_no_user_speaks_somebody_opens_the_conversation() -> None:
    messages = [*openai_call(1, 1, "", ["x" * 3_000]), *openai_call(2, 1, "", ["y" * 500])]
    after = short({"messages": messages}, 250)["messages"]
    assert [m["role"] for m in after] == ["user", "assistant", "tool"]
    assert "left out" in after[0]["content"]


def test_thinking_and_images_are_left_alone() -> None:
    thought = {"type": "thinking", "thinking": "hm " * 50, "signature": "c2ln"}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 50_000}}
    call, result = anthropic_call(1, 1, "", ["r" * 50_000])
    call["content"].insert(0, thought)
    payload = {
        "messages": [{"role": "user", "content": [picture, {"type": "text", "text": "what is it?"}]}, call, result]
    }
    assert 1_600 < (tokens({"messages": payload["messages"][:1]}) or 0) < 1_700
    after = short(payload, 3_000)["messages"]
    assert after[0] == payload["messages"][0]
    assert after[1] == call


def test_arguments_of_calls_are_never_cut() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "write", "arguments": json.dumps({"text": "z" * 9_000})}},
    ]}  # fmt: skip
    payload = {"messages": [user("t"), call, {"role": "tool", "tool_call_id": "c", "content": "ok"}]}
    assert "even what must be kept is about 2,6" in why_not(payload, 1_000)


def test_a_system_prompt_that_is_too_long_is_a_reason_to_refuse() -> None:
    assert "even what must be kept" in why_not({"system": "s" * 9_000, "messages": [user("x" * 9_000)]}, 1_000)
    openai = {"messages": [{"role": "system", "content": "s" * 9_000}, user("x" * 9_000)]}
    assert "not under 1,000" in why_not(openai, 1_000)


def test_tools_count() -> None:
    tools = [{"name": "look", "description": "d" * 7_000}]
    assert (tokens({"messages": [user("t")], "tools": tools}) or 0) > 2_000
    assert "even what must be kept" in why_not({"messages": [user("t" * 500)], "tools": tools}, 1_000)


# ---- prompt and context


def test_context_goes_before_the_prompt() -> None:
    payload = {"context": [f"doc {n} " + "c" * 3_000 for n in range(10)], "prompt": "what do they say? " + "p" * 500}
    after = short(payload, 3_000)
    assert after["prompt"] == payload["prompt"]
    assert 1 <= len(after["context"]) < 10
    assert after["context"][-1].startswith("doc 9 ")


def test_context_entries_that_are_objects_keep_their_other_fields() -> None:
    entry = {"id": "k" * 300, "text": "t" * 8_000, "score": 0.5}
    after = short({"prompt": "q", "context": [entry]}, 500)["context"]
    assert after[0] | {"text": ""} == entry | {"text": ""}
    assert "left out" in after[0]["text"]


def test_places_that_the_task_names() -> None:
    adapt = Adapt(messages="request.turns")
    payload = {"request": {"turns": [user("t"), assistant("x" * 9_000), user("n")], "model": "m"}, "other": "o" * 9_000}
    assert tokens(payload) is None
    assert "say where" in why_not(payload, 500)
    after = short(payload, 500, adapt)
    assert after["other"] == payload["other"]
    assert "left out" in after["request"]["turns"][1]["content"]
    text = short({"notes": "n" * 9_000}, 500, Adapt(context="notes"))
    assert "left out" in text["notes"]


def test_short_enough_already() -> None:
    assert "already" in why_not({"prompt": "hello"}, 80_000)
    assert not can_take(CompressContext(80_000), {"prompt": "hello"}, None)
    assert can_take(CompressContext(100), {"prompt": "hello " * 500}, None)
    assert not can_take(CompressContext(5), {"prompt": "hello " * 500}, None)


def test_strictly_under() -> None:
    payload = {"prompt": "p" * 700}
    assert tokens(payload) == 200
    assert "already" in why_not(payload, 201)
    result = compress(payload, 200)
    assert isinstance(result, Compressed)
    assert (tokens(result.payload) or 0) < 200


# ---- summaries


def test_what_would_be_left_out_is_told_to_a_summariser() -> None:
    messages = [user("task"), assistant("EARLY"), user("MIDDLE"), *openai_call(1, 1, "", ["RESULT"])]
    messages += [assistant("e" * 500), user("f" * 500), assistant("fine"), user("NEWEST")]
    text = find_dropped({"messages": messages}, 330)
    assert text is not None
    assert text.startswith("assistant: EARLY\n\nuser: MIDDLE\n\nassistant: ")
    assert "look" in text and "RESULT" in text
    assert "NEWEST" not in text and "task" not in text
    assert find_dropped({"messages": messages}, 80_000) is None
    assert find_dropped({"x": 1}, 10) is None
    assert find_dropped({"prompt": "p" * 9_000}, 3) is None


def test_a_short_summary_pushes_nothing_out_that_was_not_summarised() -> None:
    messages = [user("task")]
    for n in range(60):
        messages += [assistant(f"answer {n} " + "w" * 200), user(f"question {n} " + "w" * 200)]
    gone = find_dropped({"messages": messages}, 3_000)
    assert gone is not None
    after = short({"messages": messages}, 3_000, summary="s" * 800)["messages"]
    missing = [message for message in messages[1:] if message not in after]
    assert missing
    assert all(message["content"] in gone for message in missing)


def test_the_middle_of_a_cut_text_is_what_was_left_out() -> None:
    prompt = "".join(f"{n:05d}" for n in range(4_000))
    gone = find_dropped({"prompt": prompt}, 1_000)
    assert gone is not None and gone in prompt
    after = short({"prompt": prompt}, 1_000, summary="numbers")["prompt"]
    head, _, rest = after.partition("\n[… ")
    assert prompt.startswith(head)
    assert "[Summary of earlier content" in rest and "numbers" in rest
    assert prompt.endswith(after[-100:])


@pytest.mark.parametrize("context", [["c" * 9_000, "d" * 9_000], [{"text": "c" * 9_000}, {"text": "d" * 9_000}]])
def test_a_summary_among_context_entries_has_their_form(context: list[Any]) -> None:
    after = short({"context": context, "prompt": "q"}, 500, summary="all about c")["context"]
    assert type(after[0]) is type(context[0])
    assert "all about c" in str(after[0]) and "Summary" in str(after[0])


def test_a_summary_that_is_too_long_itself() -> None:
    assert "even what must be kept" in why_not({"prompt": "p" * 9_000}, 500, summary="s" * 9_000)


# ---- odd payloads


@given(odd_payloads, st.integers(-5, 300), st.none() | st.text())
def test_no_payload_makes_it_raise(payload: dict[str, Any], limit: int, summary: str | None) -> None:
    before = copy.deepcopy(payload)
    applied = shortened(payload, limit, summary=summary)
    find_dropped(payload, limit)
    assert repr(payload) == repr(before)
    if applied.taken:
        assert (tokens(applied.payload) or 0) < limit
    else:
        assert repr(applied.payload) == repr(before)


@pytest.mark.parametrize("levels", [65, 3_000, 100_000])
def test_depth_does_not_matter(levels: int) -> None:
    block = {"type": "tool_result", "tool_use_id": "x", "content": deep(levels)}
    for payload in (
        {"messages": [user("t"), {"role": "user", "content": [block]}], "x": deep(levels)},
        {"prompt": "p" * 900, "x": deep(levels)},
        {"context": [{"a": deep(levels)}, "c" * 900]},
        {"messages": deep(levels), "prompt": deep(levels)},
    ):
        size = tokens(payload)
        shortened(payload, 100)
        assert size is None or size >= 1


def test_an_estimate_is_bytes_by_three_and_a_half_rounded_up() -> None:
    assert [estimate(text) for text in ("", "a", "abc", "abcd", "a" * 7, "a" * 8, "é" * 7, "\ud800")] == [
        0, 1, 1, 2, 2, 3, 4, 1,
    ]  # fmt: skip


def test_a_file_kept_beside_the_job_counts_by_its_size() -> None:
    blob = {"$blob": 0, "media_type": "application/pdf", "size": 70_000, "sha256": "00"}
    assert 20_000 <= (tokens({"messages": [{"role": "user", "content": [blob]}]}) or 0) < 20_020
    picture = blob | {"media_type": "image/png"}
    assert 1_600 <= (tokens({"messages": [{"role": "user", "content": [picture]}]}) or 0) < 1_620
