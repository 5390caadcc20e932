"""Makes the OpenAPI 3.1 document from the table of routes and its types. Nothing in it is written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from redrive.doors.rest.answers import AnswerFields
from redrive.doors.rest.inputs import PLAIN
from redrive.doors.rest.route import JSON, ApiRequest, Route
from redrive.doors.web.problems import MEDIA_TYPE, Problem
from redrive.version import VERSION

REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_ABOUT: Final = {
    "id": "A job's id, or a part of it that only one job has.",
    "fingerprint": "A group's fingerprint, or a beginning of it that no other has.",
}


def document(table: Sequence[Route]) -> dict[str, Any]:
    """Describes everything that can be asked, what it takes and answers, and how it can fail."""
    kinds = [*dict.fromkeys(kind for route in table for kind in _kinds(route)), Problem]
    described, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for kind in kinds:
        components.get(getattr(kind, "__name__", ""), {}).update(getattr(kind, "RULES", {}))  # between its fields
    schemas = dict(zip(kinds, described, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(path_of(route), {})[route.method.lower()] = _operation(route, schemas, components)
    bodies = {kind.__name__ for route in table for kind in (route.body, route.answer) if isinstance(kind, type)}
    queries = {route.query.__name__ for route in table} - bodies
    kept = {name: schema for name, schema in components.items() if name not in queries}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "redrive",
            "version": VERSION,
            "description": "A durable execution queue: jobs, dead letters, redrives, reports. Every refusal is a "
            "problem (RFC 9457); lists go on with their cursor, or say whether there is more.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": _plain(kept), "securitySchemes": SECURITY},
        "security": [{"bearer": []}],
    }


ABOUT_TOKENS: Final = (
    "The owner's token, as `redrive token` shows it, or a named one: `redrive token add NAME --role ROLE`. "
    "`x-redrive-role` of an operation is the role that it needs."
)
SECURITY: Final = {"bearer": {"type": "http", "scheme": "bearer", "description": ABOUT_TOKENS}}


def path_of(route: Route) -> str:
    return _PARAMETER.sub(r"{\1}", route.path)


def _kinds(route: Route) -> list[Any]:
    return [kind for kind in (route.answer, *route.also.values(), route.query, route.body) if kind is not None]


def _operation(route: Route, schemas: Mapping[Any, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.says,
        "tags": [route.tag],
        "parameters": [*_parameters(route, components)],
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


def _parameters(route: Route, components: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Describes what stands in the path, in the query and in headers."""
    text = {"type": "string", "minLength": 1, "pattern": PLAIN}
    for name in _PARAMETER.findall(route.path):
        yield _parameter("path", name, text, _ABOUT.get(name, f"The {name}."), required=True)
    query = components[route.query.__name__]
    for name, shape in query.get("properties", {}).items():
        kept = _without_null(shape)
        yield _parameter("query", name, kept, kept.get("description"), required=name in query.get("required", ()))
    line = {"type": "string", "minLength": 1, "maxLength": 500, "pattern": "^[!-~]([ -~]*[!-~])?$"}
    for name, about in route.headers.items():
        yield _parameter("header", name, line, about)


def _parameter(place: str, name: str, shape: Any, says: str | None, *, required: bool = False) -> dict[str, Any]:
    about = {"description": says} if says is not None else {}
    return {"name": name, "in": place, "required": required, "schema": shape, **about}


def _without_null(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves null out of a parameter's schema: a parameter that is not given is not there."""
    options = [one for one in shape.get("anyOf", ()) if one != {"type": "null"}]
    given = options[0] if len(options) == 1 and "type" not in shape else shape
    kept = {name: value for name, value in given.items() if not (name == "default" and value is None)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def _responses(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    media = route.media.partition(";")[0]
    answers = sorted({route.status: route.answer, **route.also}.items())
    good = {str(status): _response(status, media, _body_schema(route, schemas[kind])) for status, kind in answers}
    bad = {str(status): _response(status, MEDIA_TYPE, schemas[Problem]) for status in route.statuses}
    return {**good, **bad}


def _response(status: int, media: str, schema: Any) -> dict[str, Any]:
    return {"description": HTTPStatus(status).phrase, "content": {media: {"schema": schema}}}


def _body_schema(route: Route, schema: Any) -> Any:
    """Makes the schema of an answer; of a stream, that of one block: OpenAPI before 3.2 has no other place for it."""
    if route.media == JSON:
        return schema
    return {"type": "string"} if route.block is None else route.block(schema)


def _plain(value: Any) -> Any:
    """Makes plain JSON: msgspec keeps tuples where a default is one."""
    return msgspec.json.decode(msgspec.json.encode(value))


class OpenApiDocument(AnswerFields, forbid_unknown_fields=False):
    """An OpenAPI 3.1 document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


OpenApiDocument.__name__ = "Document"


def make_route(table: list[Route]) -> Route:
    """Makes the route of the document of a table, which the route itself belongs to."""

    @cache
    def describe() -> dict[str, Any]:
        return document(table)

    async def openapi(request: ApiRequest) -> Any:
        """Gives this document."""
        return {**describe(), "servers": [{"url": request.root or "/"}]}

    return Route("GET", "/openapi.json", openapi, OpenApiDocument)
