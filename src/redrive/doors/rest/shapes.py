"""Gives the types of answers that `insight.view` makes of domain structs, for the OpenAPI document."""

from __future__ import annotations

from functools import lru_cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from redrive.core.job import At
from redrive.doors.rest.schemas import Given, Instant
from redrive.insight.view import fields_of


@lru_cache(maxsize=256)
def shape(kind: Any) -> Any:
    """The type of the JSON that `view` makes of values of this type."""
    if kind is At:
        return Instant
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _shape_of_struct(kind)
    arguments = get_args(kind)
    if not arguments:
        return kind
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return Union[tuple(shape(one) for one in arguments)]  # noqa: UP007
    if origin in (list, tuple, frozenset, set):
        return list[shape(arguments[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[str, shape(arguments[1])]  # type: ignore[misc]
    return kind


def _shape_of_struct(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    hints = fields_of(kind)
    fields = [(name, shape(hint)) for name, hint in hints.items()]
    return msgspec.defstruct(kind.__name__, fields, bases=(Given,), namespace={"__doc__": kind.__doc__}, kw_only=True)
