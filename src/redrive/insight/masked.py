"""An input that is shown without its secrets and comes back edited: what was masked gets its value again.

Secrets never reach a page, not even the one where an input is edited. Whoever leaves a mask where it stands means the
value behind it.
"""

from __future__ import annotations

import json
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
    """Entries may have moved: one is known again by how it was shown. By its place alone only where none has moved."""
    if not isinstance(original, list) or not isinstance(shown, list):
        return [_restored(item, None, _NOTHING, f"{at}[{index}]") for index, item in enumerate(edited)]
    known = _Shown(original, shown)
    moved = known.moved(edited)
    found = []
    for index, item in enumerate(edited):
        if moved and not known.certain(item):
            problem = f"nobody knows for which secret {MASK} stands here, as entries were added, removed or moved"
            raise InvalidInput(field=f"{at}[{index}]", problem=f"{problem}; write it out")
        place = known.place(index, item)
        value, seen = (original[place], shown[place]) if place < len(shown) else (None, _NOTHING)
        found.append(_restored(item, value, seen, f"{at}[{index}]"))
    return found


class _Shown:
    """The entries of a list by how they were shown."""

    def __init__(self, original: Sequence[Json], shown: Sequence[Json]) -> None:
        self._texts = [_text(item) for item in shown]
        self._places: dict[str, int] = {}
        self._behind: dict[str, set[str]] = {}
        for index, (text, was) in enumerate(zip(self._texts, original, strict=True)):
            self._places.setdefault(text, index)
            self._behind.setdefault(text, set()).add(_text(was))
        self._masks = any(behind != {text} for text, behind in self._behind.items())

    def moved(self, edited: Sequence[Json]) -> bool:
        """Are there more or fewer, or does one stand where it was not shown? Without secrets it is all the same."""
        if not self._masks or len(edited) != len(self._texts):
            return self._masks
        return any(self.place(index, item) != index for index, item in enumerate(edited))

    def certain(self, item: Json) -> bool:
        """Is there one thing only that this entry can stand for?"""
        text = _text(item)
        return MASK not in text or len(self._behind.get(text, ())) == 1

    def place(self, index: int, item: Json) -> int:
        """Where it was: here, if it was shown here or nowhere."""
        text = _text(item)
        here = index < len(self._texts) and self._texts[index] == text
        return index if here else self._places.get(text, index)


def _text(item: Json) -> str:
    """By this an entry is known again, whatever the order of its fields."""
    return json.dumps(item, sort_keys=True)


_NOTHING = object()
"""Stands for what was never shown: nothing is equal to it."""
