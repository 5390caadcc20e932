"""Makes answers from domain structs by their declarations, so that no door repeats the structs field by field.

A field of type `At` is an instant and becomes an ISO text, a `Share` is rounded, texts are masked unless secrets are
asked for. Other differences between answer and struct are declared in class variables: see `Shown`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from redrive.core.job import At, iso
from redrive.core.redact import redact, redact_text

Way = Callable[[Any], Any]
_AS_IT_IS: Final = (bool, int, float, NoneType)
_LISTS: Final = (list, tuple, frozenset, set)


class Rounded(NamedTuple):
    """Marks a type whose values are rounded in answers."""

    digits: int


Share = Annotated[float, Rounded(6)]
"""A fraction of a whole."""


class Keys(NamedTuple):
    """Marks a dict that always has these keys, so that a struct can show them as its own fields."""

    names: tuple[str, ...]


NAMES: Final = "names something"
Name = Annotated[str, NAMES]
"""A text that identifies something and is never masked."""
OUTSIDE: Final = "from outside"
Outside = Annotated[Any, OUTSIDE]
"""Any JSON from outside: fields with a name like a secret's are masked as well."""


class Shown:
    """Base class that gives a struct `public()`, and the declarations of what answers show of the struct."""

    __slots__ = ()
    HIDDEN: ClassVar[tuple[str, ...]] = ()
    """Fields that answers do not have."""
    SHOWN: ClassVar[tuple[str, ...]] = ()
    """Properties that answers have besides the fields, also properties of a field's value: `job.recommendation`."""
    FLAT: ClassVar[tuple[str, ...]] = ()
    """Fields that the answer replaces by the fields of their values."""
    RENAMED: ClassVar[Mapping[str, str]] = {}
    """The names in answers of fields and properties that are renamed there."""
    SPARSE: ClassVar[bool] = False
    """Whether answers leave out fields that have their default."""

    TITLE: ClassVar[str] = ""
    """The name of the struct in API descriptions, if another struct has the same class name."""

    def public(self) -> dict[str, Any]:
        """Return the struct as answers show it (JSON)."""
        body: dict[str, Any] = view(self, secrets=True)
        return body


class Field(NamedTuple):
    """One field of an answer: the path to its value, and the value's type."""

    path: str
    type: Any
    default: Any = msgspec.NODEFAULT
    """The value for which answers leave the field out; NODEFAULT if they never do."""


@lru_cache(maxsize=256)
def fields_of(kind: Any) -> dict[str, Field]:
    """Return the fields of an answer made from a struct or a named tuple, by name."""
    hints = get_type_hints(kind, include_extras=True)
    hidden, flat = getattr(kind, "HIDDEN", ()), getattr(kind, "FLAT", ())
    renamed: Mapping[str, str] = getattr(kind, "RENAMED", {})
    fields: dict[str, Field] = {}
    for name in kind._fields if issubclass(kind, tuple) else kind.__struct_fields__:
        if name in flat:
            inner = _inner(hints[name]).items()
            fields |= {one: Field(f"{name}.{field.path}", field.type, field.default) for one, field in inner}
        elif name not in hidden:
            fields[renamed.get(name, name)] = Field(name, hints[name], _default(kind, name))
    for path in getattr(kind, "SHOWN", ()):
        fields[renamed.get(path, path.rpartition(".")[2])] = Field(path, _type_at(kind, path))
    return fields


def _inner(hint: Any) -> dict[str, Field]:
    """Return the fields of the value of a field that is shown flat."""
    keys = _keys(hint)
    return {name: Field(name, get_args(get_args(hint)[0])[1]) for name in keys} if keys else fields_of(hint)


def _keys(hint: Any) -> tuple[str, ...]:
    return next((mark.names for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Keys)), ())


def _default(kind: Any, name: str) -> Any:
    if not getattr(kind, "SPARSE", False):
        return msgspec.NODEFAULT
    return next(field.default for field in msgspec.structs.fields(kind) if field.name == name)


def _type_at(kind: Any, path: str) -> Any:
    """Return the type of a field or property, also of one inside another field's value."""
    name, _, rest = path.partition(".")
    member = getattr(kind, name)
    getter = member.fget if isinstance(member, property) else None
    hints = get_type_hints(getter or kind, include_extras=True)
    hint = hints["return" if getter else name]
    return _type_at(hint, rest) if rest else hint


def view(value: Any, *, secrets: bool = False) -> Any:
    """Convert a domain value to an answer. `secrets`: texts are not masked."""
    return _anything(secrets)(value)


@lru_cache(maxsize=2)
def _anything(secrets: bool) -> Way:
    """Return a writer that chooses by each value's own type, for fields without a precise type."""
    mask = None if secrets else redact_text

    def written(value: Any) -> Any:
        if isinstance(value, str):
            return mask(value) if mask else value
        if isinstance(value, msgspec.Struct) or hasattr(value, "_fields"):
            kind: Any = type(value)
            return _struct(kind, secrets)(value)
        if isinstance(value, dict):
            return {name: written(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [written(one) for one in value]
        if isinstance(value, set | frozenset):
            return sorted(written(one) for one in value)
        return value

    return written


@lru_cache(maxsize=512)
def _struct(kind: Any, secrets: bool) -> Way:
    """Return the writer for structs of a type. The type's declaration is evaluated once."""
    plan = [
        (name, _getter(kind, field.path), _way(field.type, secrets), field.default)
        for name, field in fields_of(kind).items()
    ]

    def written(value: Any) -> dict[str, Any]:
        body = {}
        for name, get, way, default in plan:
            one = get(value)
            if default is msgspec.NODEFAULT or one != default:
                body[name] = one if way is None or one is None else way(one)
        return body

    return written


def _getter(kind: Any, path: str) -> Way:
    first, _, rest = path.partition(".")
    if rest and _keys(get_type_hints(kind, include_extras=True).get(first)):
        return lambda value: getattr(value, first)[rest]
    return attrgetter(path)


@lru_cache(maxsize=1024)
def _way(hint: Any, secrets: bool) -> Way | None:
    """Return the writer for values, never None, of a type; returns None if the values are not converted."""
    if hint is At:
        return iso
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _marked(arguments[0], arguments[1:], secrets)
    if origin in (Union, UnionType):
        ways = {_way(one, secrets) for one in arguments}
        return ways.pop() if len(ways) == 1 else _of_one(arguments, secrets)
    if origin in _LISTS and (origin is not tuple or arguments[1:] == (...,)):
        return _list(_way(arguments[0], secrets), ordered=origin in (list, tuple))
    if origin is dict:
        way = _way(arguments[1], secrets)
        return way and (lambda value: {name: None if one is None else way(one) for name, one in value.items()})
    if hint is str:
        return None if secrets else redact_text
    plain = hint in _AS_IT_IS or origin is Literal or (isinstance(hint, type) and issubclass(hint, Enum))
    return None if plain else _anything(secrets)


def _marked(hint: Any, marks: tuple[Any, ...], secrets: bool) -> Way | None:
    for mark in marks:
        if isinstance(mark, Rounded):
            return lambda value: round(value, mark.digits)
    if NAMES in marks:
        return None
    return redact if OUTSIDE in marks and not secrets else _way(hint, secrets)


def _of_one(arguments: tuple[Any, ...], secrets: bool) -> Way | None:
    """Return the writer for a union: an optional type's own writer, else one that chooses by value."""
    others = [one for one in arguments if one is not NoneType]
    return _way(others[0], secrets) if len(others) == 1 else _anything(secrets)


def _list(way: Way | None, *, ordered: bool) -> Way:
    if ordered:
        return list if way is None else lambda value: [None if one is None else way(one) for one in value]
    return sorted if way is None else lambda value: sorted(way(one) for one in value)
