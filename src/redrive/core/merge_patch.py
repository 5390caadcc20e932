"""JSON merge patch (RFC 7396): the same change for many inputs.

A patch is an object with the fields to change: objects are merged into objects, anything else replaces what is there,
and null removes a field. A list is replaced as a whole, and a field cannot be set to null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def patched(target: Any, patch: Any) -> Any:
    """The target with the patch merged in; neither of them is changed."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = patched(merged.get(name), value)
    return merged


def fields_of(patch: dict[str, Any]) -> list[str]:
    """The fields that a patch changes, by their paths: `customer.email`."""
    return list(_fields(patch, ""))


def _fields(patch: dict[str, Any], above: str) -> Iterator[str]:
    for name, value in patch.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, dict) and value:
            yield from _fields(value, path)
        else:
            yield path
