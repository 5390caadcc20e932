"""Gives the types of answers that `core.view` makes of domain structs, for the OpenAPI document."""

from __future__ import annotations

from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from redrive.core.job import At
from redrive.core.view import Field, fields_of
from redrive.doors.rest.schemas import Given, Instant, Listed


@lru_cache(maxsize=256)
def shape(kind: Any) -> Any:
    """The type of the JSON that `view` makes of values of this type."""
    if kind is At:
        return Instant
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields")):
        return _shape_of_struct(kind)
    arguments = get_args(kind)
    if not arguments:
        return kind
    origin = get_origin(kind)
    if origin is Annotated:
        return arguments[0]
    if origin in (Union, UnionType):
        return Union[tuple(shape(one) for one in arguments)]  # noqa: UP007
    if origin in (list, tuple, frozenset, set):
        return list[shape(arguments[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[str, shape(arguments[1])]  # type: ignore[misc]
    return kind


def _shape_of_struct(kind: type) -> type[msgspec.Struct]:
    fields = [_field(name, field) for name, field in fields_of(kind).items()]
    title = getattr(kind, "TITLE", None) or kind.__name__
    return msgspec.defstruct(title, fields, bases=(Given,), namespace={"__doc__": kind.__doc__}, kw_only=True)


def _field(name: str, field: Field) -> tuple[str, Any] | tuple[str, Any, Any]:
    """A field that may be left out has the default that it has then."""
    hint = shape(field.type)
    return (name, hint) if field.default is msgspec.NODEFAULT else (name, hint, field.default)


def many(kind: type[msgspec.Struct]) -> Any:
    """The type of an answer that has some of them, and says whether there are more."""
    return msgspec.defstruct(f"Some{kind.__name__}s", [("items", list[shape(kind)])], bases=(Listed,), kw_only=True)  # type: ignore[misc]


def listed(kind: type[msgspec.Struct]) -> Any:
    """The type of an answer that has nothing but all of them."""
    return msgspec.defstruct(f"{kind.__name__}s", [("items", list[shape(kind)])], bases=(Given,), kw_only=True)  # type: ignore[misc]
