"""Locates what a model reads in a payload: messages, prompt, context, instructions, model and output limit.

A task declares the places with `Adapt`; other places are recognised in the forms of OpenAI's and Anthropic's
interfaces. No function changes a payload in place: `put` copies the path to the new value and shares the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from redrive.core.job import Json

Step = str | int
Path = tuple[Step, ...]

MISSING: Final = msgspec.UNSET
ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
SYSTEM_ROLES: Final = frozenset({"system", "developer"})
LIMITS: Final = ("max_tokens", "max_output_tokens", "max_completion_tokens")


class Adapt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The places in a task's payload that a retry may change: dotted paths, such as "request.messages"."""

    messages: str | None = None
    prompt: str | None = None
    context: str | None = None
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: str | None = None


class Shape(msgspec.Struct, frozen=True):
    """The places found in one payload. Those for `model`, `instructions` and `limits` may be declared yet empty."""

    messages: Path | None = None
    prompt: Path | None = None
    context: Path | None = None
    instructions: Path | None = None
    tools: Path | None = None
    model: Path | None = None
    limits: tuple[Path, ...] = ()

    @property
    def readable(self) -> bool:
        """Whether the payload has anything that a model reads."""
        return bool(self.messages or self.prompt or self.context)


_NOTHING_SAID: Final = Adapt()


# ---- paths


def dotted(path: str | None) -> Path | None:
    return tuple(path.split(".")) if path else None


def get(value: Json, path: Path) -> Json:
    """Return the value at a path, or MISSING."""
    for step in path:
        value = _child(value, step)
    return value


def _child(value: Json, step: Step) -> Json:
    if isinstance(value, dict | Mapping):  # mostly a dict, which is quick to tell
        return value.get(step, MISSING)
    if isinstance(value, list) and str(step).isdecimal() and int(step) < len(value):
        return value[int(step)]
    return MISSING


def put(value: Json, path: Path, new: Json) -> Json:
    """Return a copy of the value with a new value at a path, whose parent must exist. The old value is not changed."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    changed = put(_child(value, step), rest, new)
    if isinstance(value, list):
        at = int(step)
        return [*value[:at], changed, *value[at + 1 :]]
    return {**value, step: changed}


def spell(path: Path) -> str:
    return ".".join(str(step) for step in path)


# ---- recognising


def locate(payload: Mapping[str, Json], adapt: Adapt | None = None) -> Shape:
    """Find the places of a payload: those that the task declared, and the well-known ones beside them."""
    declared = adapt or _NOTHING_SAID
    beside = _beside(declared)
    messages = _find(payload, declared.messages, (*beside, "messages"), is_messages)
    prompt = _find(payload, declared.prompt, (*beside, "prompt"), is_text)
    context = _find(payload, declared.context, (*beside, "context"), _is_context)
    if messages:
        prompt, context = outside(prompt, messages), outside(context, messages)
    if context is None and declared.context and is_text(get(payload, dotted(declared.context) or ())):
        context = dotted(declared.context)
    spoken_to = messages or prompt
    return Shape(
        messages=messages,
        prompt=prompt,
        context=context,
        instructions=_find_declared(payload, declared.instructions)
        or (_find(payload, None, (*beside, "system"), _is_system) if spoken_to else None),
        tools=_find(payload, None, (*beside, "tools"), _is_list) if spoken_to else None,
        model=_find_declared(payload, declared.model) or _find(payload, None, (*beside, "model"), is_text),
        limits=_limits(payload, declared, beside),
    )


def find_model(payload: Mapping[str, Json], adapt: Adapt | None) -> str | None:
    """Return the model that a payload names, or None."""
    path = locate(payload, adapt).model
    model = get(payload, path) if path else None
    return model if isinstance(model, str) else None


def outside(path: Path | None, messages: Path) -> Path | None:
    """Return the path, or None if it is inside the messages: such a place must not be counted or cut twice."""
    return None if path and path[: len(messages)] == messages else path


def _beside(said: Adapt) -> Path:
    """Return the path of the object that holds the input, in which model, system prompt and limits are looked for."""
    return (dotted(said.messages or said.prompt or said.context) or ())[:-1]


def _find(payload: Json, said: str | None, known: Path, fits: Callable[[Json], bool]) -> Path | None:
    path = dotted(said) or known
    return path if fits(get(payload, path)) else None


def _find_declared(payload: Json, said: str | None) -> Path | None:
    """Return a declared path. The place may be empty (a parameter with a default), but its parent must exist."""
    path = dotted(said)
    if path is None or not isinstance(get(payload, path[:-1]), Mapping):
        return None
    return path


def _limits(payload: Json, said: Adapt, beside: Path) -> tuple[Path, ...]:
    declared = _find_declared(payload, said.max_output_tokens)
    if declared:
        return (declared,)
    return tuple((*beside, name) for name in LIMITS if is_count(get(payload, (*beside, name))))


def is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_messages(value: Json) -> bool:
    if not isinstance(value, list) or not value:
        return False
    known = all(isinstance(one, Mapping) and _role(one) in ROLES for one in value)
    return known and any("content" in one for one in value)


def _role(message: Mapping[str, Json]) -> str:
    role = message.get("role")
    return role if isinstance(role, str) else ""


def is_text(value: Json) -> bool:
    return isinstance(value, str) and bool(value)


def _is_list(value: Json) -> bool:
    return isinstance(value, list) and bool(value)


def _is_context(value: Json) -> bool:
    return _is_list(value) and all(isinstance(one, str | Mapping) for one in value)


def _is_system(value: Json) -> bool:
    return isinstance(value, str) or (_is_list(value) and all(isinstance(one, Mapping) for one in value))
