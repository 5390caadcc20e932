"""Reads the arguments of `rd.enqueue_http`: a payload for the built-in task, and the options of its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from redrive.errors import InvalidInput

_FIELDS: Final = ("method", "url", "json", "body", "headers", "timeout", "auth", "sign")


def http_request(line: Sequence[str], said: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the arguments into payload and options. What the payload may say is checked where it is accepted."""
    given = {"queue": "http", **_named(line, said), **said}
    options = {name: value for name, value in given.items() if name not in _FIELDS}
    payload = {name: _plain(given[name]) for name in _FIELDS if given.get(name) is not None}
    if payload.get("headers") == {}:
        del payload["headers"]
    if "json" not in payload and isinstance(payload.get("body"), dict | list):
        payload["json"] = payload.pop("body")
    return payload, options


def _named(line: Sequence[str], said: Mapping[str, Any]) -> dict[str, str]:
    """Name the arguments without a name: method and url, or queue, method and url."""
    names = ("queue", "method", "url") if len(line) > 2 else ("method", "url")
    if len(line) > len(names):
        raise InvalidInput(field="enqueue_http", problem="takes queue, method and url; name every other argument")
    named = dict(zip(names, line, strict=False))
    for name in named.keys() & said.keys():
        raise InvalidInput(field=name, problem="is given twice; keep one")
    for name in {"method", "url"} - named.keys() - said.keys():
        raise InvalidInput(field=name, problem="is missing; give method and url")
    return named


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
