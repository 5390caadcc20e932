"""Conversations in the forms of both providers, made up, what makes one valid, and payloads that are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]

words = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=12).map(
    "a{}z".format
)
prose = st.builds(lambda text, times: text * times, words, st.sampled_from([1, 3, 40, 400, 3000]))


def openai_call(index: int, width: int, text: str, results: Sequence[str]) -> list[Message]:
    """The assistant calls several tools at once, and each answers in a message of its own."""
    made = [{"id": f"call_{index}_{n}", "type": "function", "function": {"name": "look", "arguments": '{"page": 1}'}}
            for n in range(width)]  # fmt: skip
    said: Message = {"role": "assistant", "content": text or None, "tool_calls": made}
    return [said, *({"role": "tool", "tool_call_id": call["id"], "content": results[n % len(results)]}
                    for n, call in enumerate(made))]  # fmt: skip


def anthropic_call(index: int, width: int, text: str, results: Sequence[str]) -> list[Message]:
    """The assistant uses several tools at once, and all results come in one message of the user."""
    made = [
        {"type": "tool_use", "id": f"toolu_{index}_{n}", "name": "look", "input": {"page": n}} for n in range(width)
    ]
    said = [{"type": "text", "text": text}] if text else []
    answers = [
        {"type": "tool_result", "tool_use_id": call["id"],
         "content": results[n % len(results)] if n % 2 else [{"type": "text", "text": results[n % len(results)]}]}
        for n, call in enumerate(made)
    ]  # fmt: skip
    return [{"role": "assistant", "content": [*said, *made]}, {"role": "user", "content": answers}]


@st.composite
def conversations(draw: st.DrawFn, form: str = "any") -> dict[str, Any]:
    """A valid request: a task, turns with and without tools, and the newest word of the user or of a tool."""
    form = draw(st.sampled_from(["openai", "anthropic"])) if form == "any" else form
    call = openai_call if form == "openai" else anthropic_call
    messages: list[Message] = [{"role": "user", "content": "TASK " + draw(prose)}]
    for index in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            results = draw(st.lists(prose, min_size=1, max_size=3))
            messages += call(index, draw(st.integers(1, 3)), draw(st.just("") | prose), results)
        else:
            messages += [{"role": "assistant", "content": draw(prose)}, {"role": "user", "content": draw(prose)}]
    return _request(form, messages, draw(prose))


def _request(form: str, messages: list[Message], system: str) -> dict[str, Any]:
    if form == "openai":
        return {"messages": [{"role": "system", "content": system}, *messages], "model": "small", "max_tokens": 4000}
    return {"system": system, "messages": messages, "model": "small", "max_tokens": 4000}


def problems(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a provider would refuse in these messages."""
    found: list[str] = []
    spoken = [message for message in messages if message["role"] not in ("system", "developer")]
    if sum(message["role"] == "system" for message in messages) > 1:
        found.append("two system messages")
    if not spoken or spoken[0]["role"] != "user":
        found.append("does not begin with the user")
    found += [f"{one['role']} after {before['role']}" for before, one in pairwise(spoken)
              if one["role"] == before["role"] != "tool"]  # fmt: skip
    found += [f"empty content in {message['role']}" for message in spoken if _empty(message)]
    return found + _loose_calls(spoken)


def _empty(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if isinstance(content, list):
        return not content or any(block.get("type") == "text" and not block["text"] for block in content)
    return not content and not message.get("tool_calls")


def _loose_calls(spoken: Sequence[Mapping[str, Any]]) -> list[str]:
    """Calls must be answered right after they were made, all of them, and nothing else is answered."""
    found: list[str] = []
    open_calls: set[str] = set()
    for message in spoken:
        answered = set(answers_in(message))
        if answered - open_calls:
            found.append(f"answers to nothing: {sorted(answered - open_calls)}")
        open_calls -= answered
        if open_calls and message["role"] != "tool":
            found.append(f"calls without an answer: {sorted(open_calls)}")
        open_calls |= set(calls_in(message))
    return found + ([f"calls left open: {sorted(open_calls)}"] if open_calls else [])


def calls_in(message: Mapping[str, Any]) -> list[str]:
    content = message["content"] if isinstance(message.get("content"), list) else []
    return [call["id"] for call in message.get("tool_calls", [])] + [
        block["id"] for block in content if block["type"] == "tool_use"
    ]


def answers_in(message: Mapping[str, Any]) -> list[str]:
    content = message["content"] if isinstance(message.get("content"), list) else []
    return ([message["tool_call_id"]] if message["role"] == "tool" else []) + [
        block["tool_use_id"] for block in content if block["type"] == "tool_result"
    ]


# ---- payloads that nobody would send


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for n in range(levels):
        value = [value] if n % 2 else {"a": value}
    return value


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(
        ["role", "content", "text", "type", "messages", "tool_calls", "id", "tool_use_id", "system", "tool_call_id"]
    ) | st.text(max_size=3), inner),
    max_leaves=12,
)  # fmt: skip
odd_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "developer", "function"])},
    optional={
        "content": odd | st.lists(st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "tool_use", "tool_result", "image", "x"])},
            optional={"text": odd, "content": odd, "id": odd, "tool_use_id": odd, "input": odd},
        )),
        "tool_calls": odd, "tool_call_id": odd, "name": odd,
    },
)  # fmt: skip
odd_payloads = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(odd_message) | odd, "prompt": odd, "context": odd | st.lists(st.text() | odd),
        "system": odd, "tools": odd, "model": odd, "max_tokens": odd,
    },
)  # fmt: skip
