"""Reading a request: its query and its body become what the route says, or are refused by name."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import inspect
from starlette.requests import ClientDisconnect

from redrive.core.json_keys import RepeatedKey, refuse_repeated_keys
from redrive.core.words import clipped
from redrive.doors.web.problems import Refused, problem

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger("redrive.rest")
DEPTH: Final = 64
ENVELOPE: Final = 64 * 1024
"""What a body may hold besides the payload itself."""
BODY_SECONDS: Final = 30.0
DISCARDED: Final = 16 * 1024 * 1024
"""So much of a body that is too large is read and dropped, so that its sender hears why; then the line is cut."""
LONGEST: Final = 300
"""Characters of a refusal, which repeats what was sent."""
OWN: Final = frozenset({"payload", "params"})
"""What is the caller's own, and passed on as it is."""
_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]{0,15})")
_BRACKETS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
"""A text that never ends goes to the end of the body: no byte is read twice."""


# -- the query


def read_query(pairs: list[tuple[str, str]], kind: type[msgspec.Struct]) -> Any:
    """The parameters as the route's struct. What it does not have, or has once and was given twice, is refused."""
    shapes = _shapes(kind)
    said: dict[str, Any] = {}
    for name, text in pairs:
        shape = shapes.get(name)
        if shape is None:
            known = ", ".join(shapes) or "none"
            raise Refused(problem("invalid", f"{name}: is not a parameter here; there are {known}", field=name))
        if shape == "many":
            said.setdefault(name, []).append(text)
        elif name in said:
            raise Refused(problem("invalid", f"{name}: is given twice", field=name))
        else:
            said[name] = _value(name, text, shape)
    return convert(said, kind)


@cache
def _shapes(kind: type[msgspec.Struct]) -> dict[str, str]:
    """How each parameter is written: as text, a whole number, a switch, or several times."""
    found = inspect.type_info(kind)
    fields = found.fields if isinstance(found, inspect.StructType) else ()
    return {field.encode_name: _shape(field.type) for field in fields}


def _shape(of: inspect.Type) -> str:
    if isinstance(of, inspect.UnionType):
        return next(_shape(one) for one in of.types if not isinstance(one, inspect.NoneType))
    if isinstance(of, inspect.Metadata):
        return _shape(of.type)
    kinds = {inspect.IntType: "whole", inspect.BoolType: "switch", inspect.VarTupleType: "many"}
    return kinds.get(type(of), "text")


def _value(name: str, text: str, shape: str) -> Any:
    if shape == "whole":
        if not _WHOLE.fullmatch(text):
            raise Refused(problem("invalid", f"{name}: {text[:50]!r} is not a whole number", field=name))
        return int(text)
    if shape == "switch":
        if text not in ("true", "false"):
            raise Refused(problem("invalid", f"{name}: {text[:50]!r} is neither true nor false", field=name))
        return text == "true"
    return text


def convert(said: Mapping[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(dict(said), kind)
    except msgspec.ValidationError as error:
        raise Refused(_named(error)) from None


_PLACE: Final = re.compile(r" - at `\$\.?(?:key in )?([^`]*)`$")
_FIELD: Final = re.compile(r"(?:unknown|required) field `([^`]*)`")


def _named(error: msgspec.ValidationError) -> Any:
    """The field in front, as every refusal of redrive has it."""
    text = str(error)
    place = _PLACE.search(text)
    what = clipped(_PLACE.sub("", text), LONGEST)
    found = _FIELD.search(what)
    parts = [part for part in (place[1] if place else "", found[1] if found else "") if part]
    field = ".".join(parts) or None
    return problem("invalid", f"{field}: {what}" if field else what, field=field)


# -- the body


async def read_body(request: Request, kind: type[msgspec.Struct], limit: int) -> Any:
    """The body as the route's struct. Its size is counted while it arrives; no body is an empty object."""
    data = await _received(request, limit)
    if not data:
        return convert({}, kind)
    _check_media(request)
    _check_depth(data)
    try:
        found = _decoded(data, kind)
        refuse_repeated_keys(data)
        return found
    except RepeatedKey as error:
        raise Refused(problem("invalid", f"body: {error}", field="body")) from None
    except msgspec.ValidationError as error:
        raise Refused(_named(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(problem("bad-request", f"the body is not JSON: {error}")) from None


def _decoded(data: bytes, kind: Any) -> Any:
    """In one step; where that does not fit, once more with 5.0 for 5, as some languages write whole numbers."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        return msgspec.convert(_whole_numbers(msgspec.json.decode(data)), kind)


def _whole_numbers(value: Any) -> Any:
    """What is a caller's own stays as it is."""
    if isinstance(value, dict):
        return {name: item if name in OWN else _whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _received(request: Request, limit: int) -> bytes:
    """What is too large is not kept, but read on for a while: many clients hear nothing before they have said all."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > DISCARDED:
        raise Refused(_too_large(limit), {"connection": "close"})
    found, number = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                number += len(chunk)
                if number <= limit:
                    found += chunk
                elif number > DISCARDED:
                    break
    except TimeoutError:
        raise Refused(problem("too-slow", f"the body did not arrive in {BODY_SECONDS:g} s")) from None
    except ClientDisconnect:
        log.info("%s: the caller left in the middle of the body; nothing was done", request.url.path)
        raise Refused(problem("bad-request", "the body broke off")) from None
    if number > limit:
        raise Refused(_too_large(limit), {"connection": "close"})
    return bytes(found)


def _too_large(limit: int) -> Any:
    return problem("too-large", f"the body has more than {limit} bytes", field="body")


def _check_media(request: Request) -> None:
    """Only JSON: what a plain form of another site can send is never taken."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Refused(problem("unsupported-media-type", f"the body is {media[:100] or 'of no type'}", field="body"))


def _check_depth(data: bytes) -> None:
    if data.count(b"[") + data.count(b"{") <= DEPTH:
        return
    depth = 0
    for found in _BRACKETS.finditer(data):
        sign = found[0]
        depth += 1 if sign in b"[{" else -1 if sign in b"]}" else 0
        if depth > DEPTH:
            raise Refused(problem("invalid", f"body: is nested deeper than {DEPTH}", field="body"))
