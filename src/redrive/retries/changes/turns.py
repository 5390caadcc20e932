"""Groups the messages of a conversation into turns, which are kept or dropped as a whole.

A turn starts with an assistant message and ends before the next one, so any turn can be dropped without breaking
the alternation of roles. A call and its results are always in one turn, however many run side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from redrive.core.job import Json
from redrive.retries.changes.reading import blocks
from redrive.retries.changes.shapes import SYSTEM_ROLES

Message = Mapping[str, Json]


class MessageTurn(msgspec.Struct, frozen=True):
    """The indices of the messages of one turn. A pinned turn states the task or is the newest, and is never dropped."""

    members: tuple[int, ...]
    pinned: bool = False


def turns(messages: Sequence[Message]) -> list[MessageTurn]:
    """Return the turns of a conversation, oldest first. System messages belong to no turn: they are always kept."""
    order = [index for index, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES]
    spans = _join(_spans(messages, order), messages)
    asked = [index for index in order if _asks(messages[index])]
    kept = {asked[0], asked[-1]} if asked else set()
    kept |= set(order[-1:])
    return [MessageTurn(tuple(span), pinned=not kept.isdisjoint(span)) for span in spans]


def task_of(messages: Sequence[Message]) -> int | None:
    """Return the index of the first message written by the user, which states the purpose of the conversation."""
    return next((index for index, message in enumerate(messages) if _asks(message)), None)


def _asks(message: Message) -> bool:
    """Return whether the user wrote the message. In Anthropic's form tool results have the role "user", too."""
    if message["role"] != "user":
        return False
    content = message.get("content")
    if isinstance(content, list):
        return any(not _is_result(block) for block in content)
    return bool(content)


def _spans(messages: Sequence[Message], order: Sequence[int]) -> list[list[int]]:
    task = task_of(messages)
    spans: list[list[int]] = []
    for index in order:
        if not spans or _begins(messages, spans[-1], index, task):
            spans.append([])
        spans[-1].append(index)
    return spans


def _begins(messages: Sequence[Message], span: Sequence[int], index: int, task: int | None) -> bool:
    """Return whether a message begins a turn. The task is a turn alone, as is each message before the assistant's."""
    if task in (index, span[-1]):
        return True
    before, role = messages[span[-1]]["role"], messages[index]["role"]
    if role == "assistant":
        return bool(before != "assistant")
    return role == "user" and not any(messages[one]["role"] == "assistant" for one in span)


def _join(spans: list[list[int]], messages: Sequence[Message]) -> list[list[int]]:
    """Join spans of which one answers a tool call of another. Ids may be reused: the newest call counts."""
    called: dict[str, int] = {}
    joined: list[tuple[int, list[int]]] = []
    for at, span in enumerate(spans):
        first, merged = at, span
        for index in span:
            first = min([first, *(called[name] for name in answers(messages[index]) if name in called)])
            called |= dict.fromkeys(calls(messages[index]), at)
        while joined and joined[-1][0] >= first:
            merged = joined.pop()[1] + merged
        joined.append((at, merged))
    return [merged for _, merged in joined]


def calls(message: Message) -> list[str]:
    """Return the ids of the tool calls that a message makes, in OpenAI's or Anthropic's form."""
    made = message.get("tool_calls")
    ids = [call.get("id") for call in made if isinstance(call, Mapping)] if isinstance(made, list) else []
    ids += [block.get("id") for block in blocks(message) if _is_kind(block, "tool_use")]
    return [one for one in ids if isinstance(one, str)]


def answers(message: Message) -> list[str]:
    """Return the ids of the calls whose results a message carries."""
    ids = [message.get("tool_call_id")] if message["role"] == "tool" else []
    ids += [block.get("tool_use_id") for block in blocks(message) if _is_result(block)]
    return [one for one in ids if isinstance(one, str)]


def _is_result(block: Json) -> bool:
    return _is_kind(block, "tool_result")


def _is_kind(block: Json, suffix: str) -> bool:
    """Return whether a block's type ends so: tools run by the provider add prefixes, as in web_search_tool_result."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    return isinstance(kind, str) and kind.endswith(suffix)
