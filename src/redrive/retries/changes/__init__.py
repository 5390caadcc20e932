"""Applies changes to the input of a retry: effective input = payload + changes. The stored payload is never modified.

A change is a value. Only `apply` combines changes with a payload; `apply` returns which changes fit the payload and why
the others do not. So any two attempts can be compared, and only changes that were applied are recorded as applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from redrive.core.change import (
    ORDER,
    AddConstraint,
    AddInstruction,
    Change,
    CompressContext,
    Edit,
    EffectiveInput,
    Said,
    SetAgent,
    SetModel,
    SimplifyTask,
)
from redrive.core.job import Json
from redrive.retries.changes.compress import TooLong, compress, find_dropped
from redrive.retries.changes.difference import diff, same
from redrive.retries.changes.quoting import safe_quote, without_hidden
from redrive.retries.changes.reading import Counter, estimate, tokens
from redrive.retries.changes.shapes import MISSING, SYSTEM_ROLES, Adapt, Path, Shape, get, is_count, locate, put, spell

__all__ = ["Adapt", "Counter", "apply", "can_take", "diff", "estimate", "find_dropped", "safe_quote", "same", "tokens"]

ROUNDS: Final = 3
"""How often compressing is repeated when the token counts of the parts do not add up to the count of the whole."""


class _Scene(msgspec.Struct, frozen=True):
    """The arguments that every step needs beside the payload."""

    adapt: Adapt | None
    count: Counter
    names: frozenset[str]
    room: int = 0
    """Tokens to keep free while compressing, for the texts that are added afterwards."""


class _Refused(Exception):
    """Raised for a change that does not fit the payload; the message is the reason."""


def apply(
    payload: Mapping[str, Json],
    changes: Sequence[Change],
    adapt: Adapt | None = None,
    count: Counter = estimate,
    *,
    names: frozenset[str] = frozenset(),
) -> EffectiveInput:
    """Apply the changes to a copy of the payload. `names` are the job's fields (model, agent) that the task reads."""
    ordered = sorted(changes, key=lambda change: ORDER.index(type(change)))
    scene = _Scene(adapt, count, names)
    whole = _apply_each(payload, [one for one in ordered if not isinstance(one, CompressContext)], scene)
    shorten = [one for one in ordered if isinstance(one, CompressContext)]
    return _apply_with_room(payload, ordered, scene, whole) if shorten else whole


def _apply_with_room(
    payload: Mapping[str, Json], ordered: Sequence[Change], scene: _Scene, whole: EffectiveInput
) -> EffectiveInput:
    """Apply all changes; compressing leaves room for the texts that are added after it."""
    room = sum(scene.count(_addition(change)) + 1 for change in whole.taken if isinstance(change, Said))
    for _ in range(ROUNDS):
        applied = _apply_each(payload, ordered, msgspec.structs.replace(scene, room=room))
        over = _over(applied, scene)
        if over <= 0:
            return applied
        room += over
    left = [(one, "the token counter does not add up") for one in ordered if isinstance(one, CompressContext)]
    return msgspec.structs.replace(whole, refused=(*whole.refused, *left))


def _over(applied: EffectiveInput, scene: _Scene) -> int:
    """Return by how many tokens a compressed input exceeds its limit: not every counter adds up exactly."""
    limits = [change.max_tokens for change in applied.taken if isinstance(change, CompressContext)]
    if not limits:
        return 0
    return (tokens(applied.payload, scene.adapt, scene.count) or 0) - min(limits) + 1


def _apply_each(payload: Mapping[str, Json], ordered: Sequence[Change], scene: _Scene) -> EffectiveInput:
    current = dict(payload)
    taken: list[Change] = []
    refused: list[tuple[Change, str]] = []
    for change in ordered:
        try:
            current = _STEPS[type(change)](current, change, scene)
        except _Refused as reason:
            refused.append((change, str(reason)))
        else:
            taken.append(change)
    return EffectiveInput(current, tuple(taken), tuple(refused))


def can_take(
    change: Change,
    payload: Mapping[str, Json],
    adapt: Adapt | None = None,
    count: Counter = estimate,
    *,
    names: frozenset[str] = frozenset(),
) -> bool:
    """Return whether `apply` takes this change, which includes that the task sees a difference."""
    return bool(apply(payload, (change,), adapt, count, names=names).taken)


def _apply_edit(payload: dict[str, Json], change: Edit, scene: _Scene) -> dict[str, Json]:
    if same(payload, change.payload):
        raise _Refused("the edited payload is the same as before")
    return dict(change.payload)


def _set_agent(payload: dict[str, Json], change: SetAgent, scene: _Scene) -> dict[str, Json]:
    if not change.agent:
        raise _Refused("it names no agent")
    if "agent" not in scene.names:
        raise _Refused("the task does not read which agent it is run by")
    return payload


def _set_model(payload: dict[str, Json], change: SetModel, scene: _Scene) -> dict[str, Json]:
    if not change.model:
        raise _Refused("it names no model")
    path = locate(payload, scene.adapt).model
    present = get(payload, path) if path else MISSING
    if path is None or not isinstance(present, str | None | msgspec.UnsetType):
        if "model" in scene.names:
            return payload
        raise _Refused("the payload has no place for a model; say where with Adapt(model=...)")
    if present == change.model and "model" not in scene.names:
        raise _Refused(f"the model is {change.model} already")
    return _put(payload, path, change.model)


def _simplify(payload: dict[str, Json], change: SimplifyTask, scene: _Scene) -> dict[str, Json]:
    limit = change.max_output_tokens
    if limit < 1:
        raise _Refused(f"an output limit of {limit} leaves nothing")
    paths = locate(payload, scene.adapt).limits
    if not paths:
        raise _Refused("the payload has no output limit; say where with Adapt(max_output_tokens=...)")
    higher = [path for path in paths if _lowers(get(payload, path), limit)]
    if not higher:
        raise _Refused(f"{spell(paths[0])} is not above {limit} already")
    for path in higher:
        _check_thinking(payload, path, limit)
        payload = _put(payload, path, limit)
    return payload


def _lowers(found: Json, limit: int) -> bool:
    return found is None or found is MISSING or (is_count(found) and found > limit)


def _check_thinking(payload: dict[str, Json], path: Path, limit: int) -> None:
    """Refuse an output limit that is not above the thinking budget: the provider would refuse such a request."""
    thinking = get(payload, (*path[:-1], "thinking", "budget_tokens"))
    if is_count(thinking) and limit <= thinking:
        raise _Refused(f"the thinking budget of {thinking} tokens needs a higher limit than {limit}")


def _compress(payload: dict[str, Json], change: CompressContext, scene: _Scene) -> dict[str, Json]:
    target = change.max_tokens - scene.room
    now = tokens(payload, scene.adapt, scene.count)
    if now is None:
        raise _Refused("the payload has no messages, prompt or context; say where with Adapt(messages=...)")
    if now < target:
        raise _Refused(f"it is about {now:,} tokens already, under {change.max_tokens:,}")
    result = compress(payload, target, scene.adapt, scene.count, change.summary)
    if isinstance(result, TooLong):
        raise _Refused(
            f"even what must be kept is about {result.tokens + scene.room:,} tokens, not under {change.max_tokens:,}"
        )
    return result.payload


# ---- adding text


def _add_text(payload: dict[str, Json], change: Said, scene: _Scene) -> dict[str, Json]:
    addition = _addition(change)
    if not _clean(change).strip():
        raise _Refused("it says nothing")
    shape = locate(payload, scene.adapt)
    place = _place(payload, shape, change.tainted)
    if place is None:
        where = "user message or prompt" if change.tainted else "system prompt, user message or prompt"
        raise _Refused(f"there is no {where} to add it to")
    present = get(payload, place)
    if _says(present, addition):
        raise _Refused("it is said there already")
    return _put(payload, place, _append(present, addition))


def _addition(change: Said) -> str:
    """Return the exact text that a change adds."""
    return f"Constraint: {_clean(change)}" if isinstance(change, AddConstraint) else _clean(change)


def _clean(change: Said) -> str:
    """Return the text to add. A failure's text is cleaned here once more, wherever that text was composed."""
    return without_hidden(change.text) if change.tainted else change.text


def _place(payload: dict[str, Json], shape: Shape, tainted: bool) -> Path | None:
    """Return where to add a text: the system prompt if there is one and the text is our own, else the user's words."""
    candidates = [] if tainted else [shape.instructions, _spoken(payload, shape, SYSTEM_ROLES, last=False)]
    candidates += [_spoken(payload, shape, frozenset({"user"}), last=True), shape.prompt]
    for path in candidates:
        if path and _extendable(get(payload, path)) and not (tainted and path == shape.instructions != shape.prompt):
            return path
    return None


def _spoken(payload: dict[str, Json], shape: Shape, roles: frozenset[str], *, last: bool) -> Path | None:
    """Return the path to the content of the first or last message in one of these roles."""
    if shape.messages is None:
        return None
    at = [i for i, message in enumerate(get(payload, shape.messages)) if message["role"] in roles]
    return (*shape.messages, at[-1] if last else at[0], "content") if at else None


def _extendable(found: Json) -> bool:
    return found is None or found is MISSING or isinstance(found, str | list)


def _says(found: Json, addition: str) -> bool:
    if isinstance(found, list):
        return any(_says(one.get("text") if isinstance(one, Mapping) else one, addition) for one in found)
    return isinstance(found, str) and f"\n\n{addition}\n\n" in f"\n\n{found}\n\n"


def _append(found: Json, addition: str) -> Json:
    if isinstance(found, list):
        plain = bool(found) and all(isinstance(one, str) for one in found)
        return [*found, addition if plain else {"type": "text", "text": addition}]
    return f"{found}\n\n{addition}" if found and found is not MISSING else addition


def _put(payload: dict[str, Json], path: Path, value: Json) -> dict[str, Json]:
    changed: dict[str, Json] = put(payload, path, value)
    return changed


_STEPS: Final[Mapping[type[Change], Callable[[dict[str, Json], Any, _Scene], dict[str, Json]]]] = {
    Edit: _apply_edit,
    SetAgent: _set_agent,
    SetModel: _set_model,
    SimplifyTask: _simplify,
    CompressContext: _compress,
    AddInstruction: _add_text,
    AddConstraint: _add_text,
}
