"""The OpenAPI 3.1 document, from the table of routes and the types it names. Nothing in it is written by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

import redrive
from redrive.doors.rest.schemas import PLAIN
from redrive.doors.rest.table import JSON, Route, reason
from redrive.doors.web.problems import MEDIA_TYPE, Problem

REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_ABOUT: Final = {
    "id": "A job's id, or a part of it that only one job has.",
    "fingerprint": "A group's fingerprint, or a beginning of it that no other has.",
}


def document(table: Sequence[Route]) -> dict[str, Any]:
    """Everything that can be asked, what it takes and answers, and how it can fail."""
    kinds = [*dict.fromkeys(kind for route in table for kind in _kinds(route)), Problem]
    found, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for kind in kinds:
        components.get(getattr(kind, "__name__", ""), {}).update(getattr(kind, "RULES", {}))  # between its fields
    schemas = dict(zip(kinds, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(path_of(route), {})[route.method.lower()] = _operation(route, schemas, components)
    queries = {route.query.__name__ for route in table} - {kind.__name__ for kind in _bodies(table)}
    kept = {name: schema for name, schema in components.items() if name not in queries}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "redrive",
            "version": redrive.__version__,
            "description": "A durable execution queue: jobs, dead letters, redrives, reports. "
            "Every refusal is a problem (RFC 9457); lists go on with their cursor, or say whether "
            "there is more.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": _plain(kept), "securitySchemes": SECURITY},
        "security": [{"bearer": []}],
    }


ABOUT_TOKENS: Final = (
    "The owner's, as `redrive token` shows it, or a named one: `redrive token add NAME --role ROLE`. `x-redrive-role` "
    "of an operation is the role that it needs."
)
SECURITY: Final = {"bearer": {"type": "http", "scheme": "bearer", "description": ABOUT_TOKENS}}


def path_of(route: Route) -> str:
    return _PARAMETER.sub(r"{\1}", route.path)


def _kinds(route: Route) -> list[Any]:
    return [kind for kind in (route.answer, *route.also.values(), route.query, route.body) if kind is not None]


def _bodies(table: Sequence[Route]) -> list[Any]:
    return [kind for route in table for kind in (route.body, route.answer) if isinstance(kind, type)]


def _operation(route: Route, schemas: Mapping[Any, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.says,
        "tags": [route.tag],
        "parameters": [*_in_path(route), *_in_query(route, components), *_in_headers(route)],
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        required = bool(components.get(getattr(route.body, "__name__", ""), {"required": True}).get("required"))
        body["requestBody"] = {"required": required, "content": {JSON: {"schema": schemas[route.body]}}}
    if route.is_open:
        body["security"] = []
    else:
        body["x-redrive-role"] = route.needs
    return body


def _in_path(route: Route) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1, "pattern": PLAIN}
    return [
        {"name": name, "in": "path", "required": True, "schema": text, "description": _ABOUT.get(name, f"The {name}.")}
        for name in _PARAMETER.findall(route.path)
    ]


def _in_query(route: Route, components: Mapping[str, Any]) -> list[dict[str, Any]]:
    schema = components[route.query.__name__]
    required = schema.get("required", ())
    return [
        _parameter(name, "query", _without_null(shape), required=name in required)
        for name, shape in schema.get("properties", {}).items()
    ]


def _in_headers(route: Route) -> list[dict[str, Any]]:
    shape = {"type": "string", "minLength": 1, "maxLength": 500, "pattern": "^[!-~]([ -~]*[!-~])?$"}
    return [
        {"name": name, "in": "header", "required": False, "schema": shape, "description": about}
        for name, about in route.headers.items()
    ]


def _parameter(name: str, place: str, shape: dict[str, Any], *, required: bool) -> dict[str, Any]:
    told = {"description": shape["description"]} if "description" in shape else {}
    return {"name": name, "in": place, "required": required, "schema": shape, **told}


def _without_null(shape: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter that is not given is not there; it is never null."""
    options = [one for one in shape.get("anyOf", ()) if one != {"type": "null"}]
    found = options[0] if len(options) == 1 and "type" not in shape else shape
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()
            if not (name == "default" and value is None)}  # fmt: skip


def _responses(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    media = route.media.partition(";")[0]
    answers = sorted({route.status: route.answer, **route.also}.items())
    good = {
        str(status): {"description": reason(status), "content": {media: {"schema": _shape(route, schemas[kind])}}}
        for status, kind in answers
    }
    bad = {
        str(status): {"description": reason(status), "content": {MEDIA_TYPE: {"schema": schemas[Problem]}}}
        for status in route.statuses
    }
    return {**good, **bad}


def _shape(route: Route, schema: Any) -> Any:
    """Of a stream of events, one of them after another: OpenAPI before 3.2 has no other place for it."""
    if route.media == JSON:
        return schema
    return {"type": "string"} if route.block is None else route.block(schema)


def _plain(value: Any) -> Any:
    """As JSON has it: msgspec keeps tuples where a default is one."""
    found: Any = msgspec.json.decode(msgspec.json.encode(value))
    return found
