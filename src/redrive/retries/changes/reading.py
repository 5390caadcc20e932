"""What of a payload a model reads: its prose, which may be cut, and the rest, which only counts.

Token numbers are estimates unless the task brings a counter of its own; they add up piece by piece, so that leaving a
piece out saves exactly what it was counted as.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from redrive.core.job import Json
from redrive.retries.changes.shapes import MISSING, Adapt, Path, Shape, get, is_count, is_text, locate, outside

Counter = Callable[[str], int]
"""How many tokens a text is."""

TEXT_KEYS: Final = ("text", "content", "page_content", "body", "snippet", "document")
"""Where a context entry keeps its prose. Other strings (ids, links, encoded data) are never cut."""
MESSAGE_TOKENS: Final = 4
"""What a message costs beside its words: role and separators."""
IMAGE_TOKENS: Final = 1600
"""Providers count an image by its pixels and scale it down: this is about the most it costs."""


def estimate(text: str) -> int:
    """About how many tokens a text is: one for every three and a half bytes, rounded up."""
    return -(-2 * len(text.encode("utf-8", "surrogatepass")) // 7)


def blocks(message: Mapping[str, Json]) -> list[Json]:
    """A message's content blocks; none where its content is plain text."""
    content = message.get("content")
    return content if isinstance(content, list) else []


def texts(part: Json) -> list[tuple[Path, str]]:
    """The prose of a message or of a context entry and where it stands: what may be cut. Never a call's arguments."""
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
    found: list[tuple[Path, str]] = []
    for index, block in enumerate(content if isinstance(content, list) else []):
        found += _block_texts(block, (*at, index))
    return found


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
    """What a message or context entry costs apart from its `texts`: calls, images, documents, ids."""
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
    """What a content block costs beside the prose in it."""
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
    """A block without prose: an image by a rough constant, a file kept beside the job by its size, else its JSON."""
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
    """What is read in any case: the system prompt and the tools' descriptions."""
    total = 0
    for path in (shape.instructions, shape.tools):
        if path is None or (shape.messages and outside(path, shape.messages) is None):
            continue
        value = get(payload, path)
        if value and value is not MISSING:
            total += count(value if isinstance(value, str) else json_text(value))
    return total


def tokens(payload: Mapping[str, Json], adapt: Adapt | None = None, count: Counter = estimate) -> int | None:
    """About how many tokens the model will read; None where nothing in the payload is known to be read by one."""
    shape = locate(payload, adapt)
    if not shape.readable:
        return None
    return standing_tokens(payload, shape, count) + sum(
        part_tokens(part, count) for path in parts_of(shape) for part in entries(get(payload, path))
    )


def parts_of(shape: Shape) -> Sequence[Path]:
    """The places of what can be shortened, the least important first."""
    return list(dict.fromkeys(path for path in (shape.context, shape.messages, shape.prompt) if path))


def entries(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def json_text(value: Json) -> str:
    """A value as JSON. What JSON cannot say, or is too deep for it, gives the strings found in it."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return "\n".join(_strings(value))


def _strings(value: Any) -> list[str]:
    found: list[str] = []
    open_ones = [value]
    while open_ones:
        one = open_ones.pop()
        if isinstance(one, Mapping):
            open_ones += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            open_ones += one
        else:
            found.append(one if isinstance(one, str) else type(one).__name__)
    return found
