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


def patch_between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any] | None:
    """The patch that makes `after` of `before`; None where none does, because a value became null."""
    patch = _between(before, after)
    return patch if patched(before, patch) == after else None


def _between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            if inner := _between(old, value):
                patch[name] = inner
        elif name not in before or old != value or type(old) is not type(value):
            patch[name] = value
    return patch
