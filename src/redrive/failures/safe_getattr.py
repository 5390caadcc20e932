"""Reading other people's objects: whatever they do, the answer is a plain value or None, of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import FunctionType
from typing import Any, Final

import msgspec

DOCUMENT_LIMIT: Final = 32_768
"""A longer answer is not read as JSON."""
_MANY: Final = 10
"""So many entries of a list are looked at."""


SCALARS: Final = (str, bytes, int, float)
"""What has no attributes worth reading."""


def attribute(owner: object, name: str) -> Any:
    """An attribute of anything; None where there is none, or where reading it raises."""
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a property of somebody else's object
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
"""Attributes in which exceptions carry what happened."""
_MAY_WARN: Final = "code"
"""Read last: where `status` has the number already, this is an old name for it that warns."""


@lru_cache(maxsize=1024)
def _list_telling(kind: Any) -> frozenset[str]:
    """The telling names that a class declares; all of them where it makes attributes up."""
    spaces = [vars(entry) for entry in kind.__mro__ if entry not in (object, BaseException, Exception)]
    if any("__getattr__" in space or isinstance(space.get("__getattribute__"), FunctionType) for space in spaces):
        return TELLING
    return TELLING.intersection(name for space in spaces for name in space)


def traits(error: BaseException) -> dict[str, Any]:
    """What an exception carries, by name: only what is there, each read once."""
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
    """An attribute that can at least be asked what it is."""
    try:
        value = getattr(owner, name, None)
        isinstance(value, int)
    except Exception:  # noqa: BLE001 - a property of somebody else's object
        return None
    return value


def clean(value: str, limit: int) -> str:
    """A plain, bounded text that JSON can carry; also of a subclass of str."""
    text = value if type(value) is str and len(value) <= limit else str.__getitem__(value, slice(limit))
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def whole(value: str) -> str:
    """The same, however long it is."""
    return clean(value, len(value))


def text_of(value: object, limit: int) -> str | None:
    """A text, or the value of an enum that is one."""
    if value is None:
        return None
    if isinstance(value, str):
        return clean(value, limit) or None
    inner = attribute(value, "value") if attribute(type(value), "__members__") is not None else None
    return clean(inner, limit) or None if isinstance(inner, str) else None


def http_status(value: object) -> int | None:
    """A number, or three digits, that can be an HTTP status."""
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        number = int.__int__(value)
        return number if 100 <= number <= 599 else None
    return None


def item(owner: object, name: str) -> Any:
    """A key of a mapping or an attribute of an object: answers come as both."""
    if isinstance(owner, dict):
        return dict.get(owner, name)
    return None if owner is None or isinstance(owner, SCALARS) else attribute(owner, name)


def some(value: object) -> Iterator[Any]:
    """The first entries of a list."""
    return islice(value, _MANY) if isinstance(value, list | tuple) else iter(())


def document(value: object) -> dict[str, Any] | None:
    """A JSON object, from a dict, from its text, or from a list of one."""
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
