"""Keys that tasks make of their payloads: `idempotency_key="feedback_{feedback_id}"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any, Final, Protocol

from redrive.core.checks import KEY_LIMIT, check_name
from redrive.errors import InvalidOption


class Parameters(Protocol):
    """What a template must know of a function."""

    def takes(self, name: str) -> bool:
        """Whether the function has this parameter."""

    @property
    def defaults(self) -> Mapping[str, object]:
        """What the parameters are that a call may leave out."""


class _Anything:
    """Has whatever a template wants of it."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, name: object) -> _Anything:
        return self

    def __format__(self, how: str) -> str:
        return ""


class _Values(Formatter):
    """A method is no value: it would be told by its address, and no two keys were the same."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found, first = super().get_field(field_name, args, kwargs)
        if callable(found):
            raise ValueError(f"{field_name} is a method")
        return found, first


_values: Final = _Values()


class _Asked(dict[str, _Anything]):
    """Knows afterwards which names a template asked for."""

    def __missing__(self, name: str) -> _Anything:
        return self.setdefault(name, _Anything())


def check_template(
    template: object, signature: Parameters, field: str = "idempotency_key", what: str = "the task"
) -> str:
    """Refuse at registration what no payload could fill in."""
    text, asked = check_name(field, template, KEY_LIMIT), _Asked()
    try:
        text.format_map(asked)
    except ValueError as error:
        raise _refuse(field, text, str(error)) from None
    if unknown := [name for name in asked if not signature.takes(name)]:
        raise _refuse(field, text, f"{what} has no parameter {unknown[0]!r}")
    return text


def key_for(template: str, signature: Parameters, payload: Mapping[str, Any], field: str = "idempotency_key") -> str:
    """A template, filled in. A parameter that the payload leaves out has its default."""
    try:
        return _values.vformat(template, (), {**signature.defaults, **payload})
    except (LookupError, AttributeError) as error:
        raise _refuse(field, template, f"no {error}") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise _refuse(field, template, str(error)) from None


def _refuse(field: str, template: str, problem: str) -> InvalidOption:
    return InvalidOption(field=field, problem=f"template {template!r}: {problem}")
