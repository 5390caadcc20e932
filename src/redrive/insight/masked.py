"""An input that is shown without its secrets and comes back edited: what was masked gets its value again.

Secrets never reach a page, not even the one where an input is edited. Whoever leaves a mask where it stands means the
value behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redrive.core.job import Json
from redrive.core.redact import MASK, redact
from redrive.errors import InvalidInput


def unmasked(edited: Json, original: Json, field: str = "payload") -> Json:
    """The edited input with the original's secrets back in place. Refuses a mask that nothing stands behind."""
    return _restored(edited, original, redact(original), field)


def _restored(edited: Json, original: Json, shown: Json, at: str) -> Json:
    if isinstance(edited, str) and edited == shown:
        return original
    if isinstance(edited, Mapping):
        return {name: _restored(item, *_under(original, shown, name), f"{at}.{name}") for name, item in edited.items()}
    if isinstance(edited, list):
        return _entries(edited, original, shown, at)
    if isinstance(edited, str) and MASK in edited:
        raise InvalidInput(field=at, problem=f"holds {MASK}, which stands for a secret; write the whole value")
    return edited


def _under(original: Json, shown: Json, name: str) -> tuple[Json, Json]:
    if isinstance(original, Mapping) and isinstance(shown, Mapping) and name in original:
        return original[name], shown[name]
    return None, _NOTHING


def _entries(edited: Sequence[Json], original: Json, shown: Json, at: str) -> list[Json]:
    """Entries may have moved: one is known again by how it was shown, else by its place."""
    if not isinstance(original, list) or not isinstance(shown, list):
        return [_restored(item, None, _NOTHING, f"{at}[{index}]") for index, item in enumerate(edited)]
    found, moved = [], len(edited) != len(shown) and shown != original
    for index, item in enumerate(edited):
        if moved and _behind(item, original, shown) > 1:
            problem = f"{MASK} could stand for several secrets here, as entries were added or removed; write it out"
            raise InvalidInput(field=f"{at}[{index}]", problem=problem)
        place = index if index < len(shown) and shown[index] == item else _place(item, shown, index)
        value, known = (original[place], shown[place]) if place is not None else (None, _NOTHING)
        found.append(_restored(item, value, known, f"{at}[{index}]"))
    return found


def _behind(item: Json, original: Sequence[Json], shown: Sequence[Json]) -> int:
    """How many different entries were shown like this one."""
    alike: list[Json] = []
    for was, known in zip(original, shown, strict=True):
        if known == item and was not in alike:
            alike.append(was)
    return len(alike)


def _place(item: Json, shown: Sequence[Json], index: int) -> int | None:
    if item in shown:
        return shown.index(item)
    return index if index < len(shown) else None


_NOTHING = object()
"""Stands for what was never shown: nothing is equal to it."""
