"""Makes answers to the outside of domain structs by their declaration, so that no door repeats them field by field.

A field of type `At` is an instant and becomes an ISO text; texts are masked; properties that a struct lists in `SHOWN`
are added.
"""

from __future__ import annotations

from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from redrive.core.job import At, iso
from redrive.core.redact import redact_text


@lru_cache(maxsize=256)
def fields_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of a struct with their types, and the properties that it shows."""
    hints = get_type_hints(kind, include_extras=True)
    shown = {name: _returned(kind, name) for name in getattr(kind, "SHOWN", ())}
    return {name: hints[name] for name in kind.__struct_fields__} | shown


def _returned(kind: type[msgspec.Struct], name: str) -> Any:
    return get_type_hints(getattr(kind, name).fget, include_extras=True)["return"]


def view(value: Any, kind: Any = None) -> Any:
    """A domain value as an answer says it."""
    if isinstance(value, msgspec.Struct):
        return {name: view(getattr(value, name), hint) for name, hint in fields_of(type(value)).items()}
    if kind is not None and isinstance(value, float) and _is_instant(kind):
        return iso(value)
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {name: view(one, _inner(kind, 1)) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [view(one, _inner(kind, 0)) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(view(one, _inner(kind, 0)) for one in value)
    return value


def _is_instant(kind: Any) -> bool:
    return kind is At or (get_origin(kind) in (Union, UnionType) and At in get_args(kind))


def _inner(kind: Any, place: int) -> Any:
    """The type of what a collection holds, also where there may be none."""
    if get_origin(kind) in (Union, UnionType):
        kind = next((one for one in get_args(kind) if one is not NoneType), None)
    arguments = get_args(kind)
    return arguments[place] if len(arguments) > place else None
