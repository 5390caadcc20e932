"""Makes answers to the outside of domain structs by their declaration, so that no door repeats them field by field.

A field of type `At` is an instant and becomes an ISO text, a `Share` is rounded, texts are masked unless secrets are
asked for. What else differs from the struct stands in its class variables: see `Shown`.
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
"""A part of a whole."""


class Keys(NamedTuple):
    """Marks a dict that always has these keys, so that a struct can show them as its own fields."""

    names: tuple[str, ...]


NAMES: Final = "names something"
Name = Annotated[str, NAMES]
"""A text by which something can be asked for: it is never masked."""
OUTSIDE: Final = "from outside"
Outside = Annotated[Any, OUTSIDE]
"""Any JSON from outside: fields that are called like a secret are masked as well."""


class Shown:
    """Gives a struct `public()`, and the declarations of what the outside sees of it."""

    __slots__ = ()
    HIDDEN: ClassVar[tuple[str, ...]] = ()
    """Fields that answers do not have."""
    SHOWN: ClassVar[tuple[str, ...]] = ()
    """Properties that answers have besides the fields; also of what a field holds: `job.recommendation`."""
    FLAT: ClassVar[tuple[str, ...]] = ()
    """Fields whose own fields stand in the answer instead of them."""
    RENAMED: ClassVar[Mapping[str, str]] = {}
    """What is called otherwise in answers."""
    SPARSE: ClassVar[bool] = False
    """Whether answers leave out fields that have their default."""

    TITLE: ClassVar[str] = ""
    """What descriptions call it, where another has the name of its class."""

    def public(self) -> dict[str, Any]:
        """As the outside sees it (JSON)."""
        found: dict[str, Any] = view(self, secrets=True)
        return found


class Field(NamedTuple):
    """One field of an answer: where its value is found, and the type of that."""

    path: str
    type: Any
    default: Any = msgspec.NODEFAULT
    """What is left out; NODEFAULT where nothing is."""


@lru_cache(maxsize=256)
def fields_of(kind: Any) -> dict[str, Field]:
    """The fields of an answer that is made of a struct or a named tuple, by name."""
    hints = get_type_hints(kind, include_extras=True)
    hidden, flat = getattr(kind, "HIDDEN", ()), getattr(kind, "FLAT", ())
    renamed: Mapping[str, str] = getattr(kind, "RENAMED", {})
    found: dict[str, Field] = {}
    for name in kind._fields if issubclass(kind, tuple) else kind.__struct_fields__:
        if name in flat:
            inner = _inner(hints[name]).items()
            found |= {one: Field(f"{name}.{field.path}", field.type, field.default) for one, field in inner}
        elif name not in hidden:
            found[renamed.get(name, name)] = Field(name, hints[name], _default(kind, name))
    for path in getattr(kind, "SHOWN", ()):
        found[renamed.get(path, path.rpartition(".")[2])] = Field(path, _type_at(kind, path))
    return found


def _inner(hint: Any) -> dict[str, Field]:
    """The fields of what stands in a field that is shown flat."""
    keys = _keys(hint)
    return {name: Field(name, get_args(get_args(hint)[0])[1]) for name in keys} if keys else fields_of(hint)


def _keys(hint: Any) -> tuple[str, ...]:
    return next((mark.names for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Keys)), ())


def _default(kind: Any, name: str) -> Any:
    if not getattr(kind, "SPARSE", False):
        return msgspec.NODEFAULT
    return next(field.default for field in msgspec.structs.fields(kind) if field.name == name)


def _type_at(kind: Any, path: str) -> Any:
    """The type of a field or property, also of what another one holds."""
    name, _, rest = path.partition(".")
    found = getattr(kind, name)
    getter = found.fget if isinstance(found, property) else None
    hints = get_type_hints(getter or kind, include_extras=True)
    hint = hints["return" if getter else name]
    return _type_at(hint, rest) if rest else hint


def view(value: Any, *, secrets: bool = False) -> Any:
    """A domain value as an answer says it. `secrets`: texts are not masked."""
    return _anything(secrets)(value)


@lru_cache(maxsize=2)
def _anything(secrets: bool) -> Way:
    """Writes a value by what it is, where no type says so."""
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
    """Writes structs of a type. What its declaration means is worked out once."""
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
    """How values of a type are written, which are never None; None where they stay as they are."""
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
    """Of something that may be missing."""
    others = [one for one in arguments if one is not NoneType]
    return _way(others[0], secrets) if len(others) == 1 else _anything(secrets)


def _list(way: Way | None, *, ordered: bool) -> Way:
    if ordered:
        return list if way is None else lambda value: [None if one is None else way(one) for one in value]
    return sorted if way is None else lambda value: sorted(way(one) for one in value)
