"""Finds the parts of a payload that a model reads, and counts their tokens. Only prose may be cut.

Token numbers are estimates unless the task has its own counter. They add up piece by piece, so leaving a piece out
saves exactly the tokens that were counted for that piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from redrive.core.job import Json
from redrive.retries.changes.shapes import MISSING, Adapt, Path, Shape, get, is_count, is_text, locate, outside

Counter = Callable[[str], int]
"""A function that counts the tokens of a text."""

TEXT_KEYS: Final = ("text", "content", "page_content", "body", "snippet", "document")
"""The keys under which a context entry holds prose. Other strings (ids, links, encoded data) are never cut."""
MESSAGE_TOKENS: Final = 4
"""Tokens of a message beside its words: role and separators."""
IMAGE_TOKENS: Final = 1600
"""About the most tokens that an image costs: providers count its pixels and scale large images down."""


def estimate(text: str) -> int:
    """Estimate the tokens of a text: one for every three and a half bytes, rounded up."""
    return -(-2 * len(text.encode("utf-8", "surrogatepass")) // 7)


def blocks(message: Mapping[str, Json]) -> list[Json]:
    """Return a message's content blocks; none if the content is plain text."""
    content = message.get("content")
    return content if isinstance(content, list) else []


def texts(part: Json) -> list[tuple[Path, str]]:
    """Return the prose of a message or context entry, which may be cut, with its paths. Never a call's arguments."""
    if isinstance(part, str):
        return [((), part)] if part else []
    if not isinstance(part, Mapping):
        return []
    if "role" in part:
        return _content_texts(part.get("content"), ("content",))
    return [((key,), part[key]) for key in TEXT_KEYS if is_text(part.get(key))]


def _content_texts(content: Json, at: Path) -> list[tuple[Path, str]]:
    if isinstance(content, str):
        return [(at, content)] if content else []
    prose: list[tuple[Path, str]] = []
    for index, block in enumerate(content if isinstance(content, list) else []):
        prose += _block_texts(block, (*at, index))
    return prose


def _block_texts(block: Json, at: Path) -> list[tuple[Path, str]]:
    if isinstance(block, str):
        return [(at, block)] if block else []
    if not isinstance(block, Mapping):
        return []
    if block.get("type") == "tool_result":
        return _result_texts(block.get("content"), (*at, "content"))
    return [((*at, "text"), block["text"])] if _is_prose(block) else []


def _result_texts(content: Json, at: Path) -> list[tuple[Path, str]]:
    if isinstance(content, list):
        return [((*at, index, "text"), block["text"]) for index, block in enumerate(content) if _is_prose(block)]
    return [(at, content)] if is_text(content) else []


def _is_prose(block: Json) -> bool:
    kinds = ("text", "input_text", "output_text")
    return isinstance(block, Mapping) and block.get("type") in kinds and is_text(block.get("text"))


def fixed_tokens(part: Json, count: Counter) -> int:
    """Count the tokens of a message or context entry apart from its `texts`: calls, images, documents, ids."""
    if isinstance(part, str):
        return 0
    if not isinstance(part, Mapping):
        return count(json_text(part))
    if "role" not in part:
        rest = {name: value for name, value in part.items() if name not in TEXT_KEYS or not is_text(value)}
        return _count_json(rest, count)
    rest = {name: value for name, value in part.items() if name not in ("role", "content")}
    content = part.get("content")
    inside = sum(_block_tokens(block, count) for block in content) if isinstance(content, list) else 0
    odd = _count_json(content, count) if content and not isinstance(content, str | list) else 0
    return MESSAGE_TOKENS + _count_json(rest, count) + inside + odd


def _count_json(value: Json, count: Counter) -> int:
    return count(json_text(value)) if value else 0


def _block_tokens(block: Json, count: Counter) -> int:
    """Count the tokens of a content block beside its prose."""
    if isinstance(block, str) or _is_prose(block):
        return 0
    if not isinstance(block, Mapping):
        return count(json_text(block))
    if block.get("type") == "tool_result":
        content = block.get("content")
        inside = [one for one in content if not _is_prose(one)] if isinstance(content, list) else []
        return MESSAGE_TOKENS + sum(_other_tokens(one, count) for one in inside)
    return _other_tokens(block, count)


def _other_tokens(block: Json, count: Counter) -> int:
    """Count a block without prose: an image by a rough constant, a file kept beside the job by size, else its JSON."""
    if isinstance(block, Mapping):
        if block.get("type") in ("image", "image_url", "input_image") or _is_image(block.get("media_type")):
            return IMAGE_TOKENS
        if "$blob" in block and is_count(block.get("size")):
            return max(0, int(block["size"])) * 2 // 7
    return count(json_text(block))


def _is_image(media_type: Json) -> bool:
    return isinstance(media_type, str) and media_type.startswith("image/")


def part_tokens(part: Json, count: Counter) -> int:
    return fixed_tokens(part, count) + sum(count(text) for _, text in texts(part))


def standing_tokens(payload: Json, shape: Shape, count: Counter) -> int:
    """Count the tokens that are read in any case: the system prompt and the tools' descriptions."""
    total = 0
    for path in (shape.instructions, shape.tools):
        if path is None or (shape.messages and outside(path, shape.messages) is None):
            continue
        value = get(payload, path)
        if value and value is not MISSING:
            total += count(value if isinstance(value, str) else json_text(value))
    return total


def tokens(payload: Mapping[str, Json], adapt: Adapt | None = None, count: Counter = estimate) -> int | None:
    """Estimate the tokens that the model will read; None if no part of the payload is known to be read by a model."""
    shape = locate(payload, adapt)
    if not shape.readable:
        return None
    return standing_tokens(payload, shape, count) + sum(
        part_tokens(part, count) for path in parts_of(shape) for part in entries(get(payload, path))
    )


def parts_of(shape: Shape) -> Sequence[Path]:
    """Return the paths of the parts that can be shortened, the least important first."""
    return list(dict.fromkeys(path for path in (shape.context, shape.messages, shape.prompt) if path))


def entries(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def json_text(value: Json) -> str:
    """Encode a value as JSON. A value that JSON cannot express, or that is nested too deeply, gives its strings."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return "\n".join(_strings(value))


def _strings(value: Any) -> list[str]:
    strings: list[str] = []
    open_ones = [value]
    while open_ones:
        one = open_ones.pop()
        if isinstance(one, Mapping):
            open_ones += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            open_ones += one
        else:
            strings.append(one if isinstance(one, str) else type(one).__name__)
    return strings
