"""The payload of `redrive enqueue`: JSON on the command line, in a file (@file), or from a pipe (-)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

from redrive.core.json_keys import RepeatedKey, unique
from redrive.doors.cli.problems import PAYLOAD_HINT as HINT
from redrive.doors.cli.problems import Problem

SPACE: Final = 4
"""Text may be so many times larger than the payload limit: it holds spaces that are not kept."""


def read(said: str, limit: int) -> dict[str, Any]:
    """A JSON object, or a Problem that says what it is instead."""
    value = _decoded(_text(said, SPACE * limit))
    if not isinstance(value, dict):
        raise Problem(f"payload: must be a JSON object, not {_kind(value)}", HINT)
    return value


def _text(said: str, limit: int) -> bytes:
    if said == "-":
        return _within(sys.stdin.buffer.read(limit + 1), limit)
    if not said.startswith("@"):
        return said.encode(errors="surrogateescape")
    try:
        with Path(said[1:]).open("rb") as file:
            return _within(file.read(limit + 1), limit)
    except OSError as error:
        raise Problem(f"payload: cannot read {said[1:]}: {error.strerror}", HINT) from None


def _within(text: bytes, limit: int) -> bytes:
    if len(text) > limit:
        raise Problem(f"payload: is larger than {limit:,} bytes", "keep large parts elsewhere and send where they are")
    return text


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=unique)
    except RepeatedKey as error:
        raise Problem(f"payload: {error}", "of the two values one would be lost") from None
    except RecursionError:
        raise Problem("payload: is nested too deeply", "64 levels are allowed") from None
    except ValueError as error:
        raise Problem(f"payload: is not JSON: {error}", HINT) from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")
