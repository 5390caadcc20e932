"""Reads objects of other libraries safely: the result is a plain value or None, of bounded size, even if they raise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import FunctionType
from typing import Any, Final

import msgspec

DOCUMENT_LIMIT: Final = 32_768
"""Longest answer that is read as JSON."""
_MANY: Final = 10
"""Number of entries of a list that are looked at."""


SCALARS: Final = (str, bytes, int, float)
"""Types without attributes worth reading."""


def attribute(owner: object, name: str) -> Any:
    """Returns an attribute of any object; None if there is no such attribute, or if reading the attribute raises."""
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a property of a foreign object
        return None


TELLING: Final = frozenset(
    {
        "api_error_status", "body", "cause", "code", "completion", "connection_invalidated", "data", "detail",
        "details", "doc", "err_code", "error", "error_code", "error_details", "error_kind", "error_type", "errors",
        "exc",
        "grpc_status_code", "headers", "host", "http_response", "http_status", "last_exception", "line", "llm_output",
        "operation_name", "orig", "original_error", "original_exception", "os_error", "output", "pgcode",
        "provider_error_code", "provider_error_type", "rate_limit_type", "raw_output", "reason", "recipients",
        "request", "request_info", "resp", "response", "retry_after", "retryable", "smtp_code", "sqlite_errorname",
        "sqlstate", "status", "status_code", "subtype", "terminal_reason", "transient", "type", "url", "wait",
    }
)  # fmt: skip
"""Attributes in which exceptions carry facts about a failure."""
_MAY_WARN: Final = "code"
"""Attribute that is read last: where `status` has the number, `code` is its old name and warns."""


@lru_cache(maxsize=1024)
def _list_telling(kind: Any) -> frozenset[str]:
    """Lists the names of TELLING that a class declares; all names if the class computes its attributes."""
    spaces = [vars(entry) for entry in kind.__mro__ if entry not in (object, BaseException, Exception)]
    if any("__getattr__" in space or isinstance(space.get("__getattribute__"), FunctionType) for space in spaces):
        return TELLING
    return TELLING.intersection(name for space in spaces for name in space)


def traits(error: BaseException) -> dict[str, Any]:
    """Reads the telling attributes of an exception, by name: only those that exist, each read once."""
    kind: Any = type(error)
    names = _list_telling(kind)
    own = attribute(error, "__dict__")
    if isinstance(own, dict) and own:
        names = names.union(TELLING.intersection(own) if len(own) < 1_000 else TELLING)
    found = {name: value for name in names if name != _MAY_WARN and (value := _decent(error, name)) is not None}
    if _MAY_WARN in names and not isinstance(found.get("status"), int):
        found[_MAY_WARN] = _decent(error, _MAY_WARN)
    return found


def _decent(owner: object, name: str) -> Any:
    """Returns an attribute whose type can be checked without an error, else None."""
    try:
        value = getattr(owner, name, None)
        isinstance(value, int)
    except Exception:  # noqa: BLE001 - a property of a foreign object
        return None
    return value


def clean(value: str, limit: int) -> str:
    """Returns a text as plain, bounded text that JSON can carry; also for a subclass of str."""
    text = value if type(value) is str and len(value) <= limit else str.__getitem__(value, slice(limit))
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def whole(value: str) -> str:
    """Returns a text of any length as plain text that JSON can carry."""
    return clean(value, len(value))


def text_of(value: object, limit: int) -> str | None:
    """Returns a text, or the value of an enum if the value is a text."""
    if value is None:
        return None
    if isinstance(value, str):
        return clean(value, limit) or None
    inner = attribute(value, "value") if attribute(type(value), "__members__") is not None else None
    return clean(inner, limit) or None if isinstance(inner, str) else None


def http_status(value: object) -> int | None:
    """Returns a number or a text of three digits as HTTP status; None if it cannot be one."""
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        number = int.__int__(value)
        return number if 100 <= number <= 599 else None
    return None


def item(owner: object, name: str) -> Any:
    """Returns a key of a mapping or an attribute of an object: answers come as both."""
    if isinstance(owner, dict):
        return dict.get(owner, name)
    return None if owner is None or isinstance(owner, SCALARS) else attribute(owner, name)


def some(value: object) -> Iterator[Any]:
    """Yields the first entries of a list."""
    return islice(value, _MANY) if isinstance(value, list | tuple) else iter(())


def document(value: object) -> dict[str, Any] | None:
    """Returns a JSON object, from a dict, from JSON text, or from the first entry of a list."""
    if isinstance(value, str | bytes):
        value = _decode(value)
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) and value else None


def _decode(text: str | bytes) -> object:
    if not 2 <= len(text) <= DOCUMENT_LIMIT or text[:1] not in ("{", "[", b"{", b"["):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return None
