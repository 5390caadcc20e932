"""The reference of REST, from the table of routes and the document that the server itself gives."""

import inspect
import re
from typing import get_args

import msgspec

from redrive.doors.rest import TABLE
from redrive.doors.rest.dead_letters import Triage
from redrive.doors.rest.inputs import Filters
from redrive.doors.rest.openapi import document, path_of
from redrive.doors.rest.probes import METRICS
from redrive.doors.rest.route import Route
from redrive.doors.web.problems import known_problems
from tools.tables import code, table

FILTERS = "*filters*"
HEADINGS = {
    "health": "Health",
    "stats": "Health",
    "queues": "Queues",
    "jobs": "Jobs",
    "effects": "Effects without a job",
    "dead-letters": "Dead letters",
    "acts": "Dead letters",
    "groups": "Groups",
    "redrives": "Redrives",
    "reports": "Reports",
    "workers": "Around the jobs",
    "tasks": "Around the jobs",
    "breakers": "Around the jobs",
    "schedules": "Around the jobs",
    "workflows": "Around the jobs",
    "agents": "Around the jobs",
    "fleet": "Around the jobs",
    "operations": "Operations",
    "sessions": "Sessions",
    "events": "Events",
    "server": "The server itself",
}


def routes() -> str:
    """Every route under the heading of what it is about, with what it takes."""
    found = document(TABLE)
    sections: dict[str, list[Route]] = {}
    for route in TABLE:
        if route.tag not in HEADINGS:
            raise SystemExit(f"no words for the routes of {route.tag}; see HEADINGS in tools/rest.py")
        sections.setdefault(HEADINGS[route.tag], []).append(route)
    lines = []
    for heading, listed in sections.items():
        rows = [_row(route, found) for route in listed]
        lines += [f"### {heading}", "", table(("route", "role", "what it does", "takes"), rows), ""]
    return "\n".join(lines)


def _row(route: Route, found: dict[str, object]) -> tuple[str, ...]:
    role = "none" if route.is_open else route.needs
    return code(f"{route.method} {path_of(route)}"), role, route.says, _takes(route, found)


def _takes(route: Route, found: dict[str, object]) -> str:
    operation = found["paths"][path_of(route)][route.method.lower()]  # type: ignore[index]
    query = [f"?{one['name']}" for one in operation["parameters"] if one["in"] == "query"]
    headers = [one["name"] for one in operation["parameters"] if one["in"] == "header"]
    names = [*_fields(operation, found), *_without_filters(query), *headers]
    return " ".join(name if name == FILTERS else code(name) for name in names)


def _without_filters(query: list[str]) -> list[str]:
    """The filters are told once."""
    filters = {f"?{field.name}" for field in msgspec.structs.fields(Filters)}
    return [FILTERS, *(name for name in query if name not in filters)] if filters <= set(query) else query


def filters() -> str:
    return ", ".join(code(field.name) for field in msgspec.structs.fields(Filters))


def _fields(operation: dict[str, object], found: dict[str, object]) -> list[str]:
    """The fields of the body, those that must be there first and marked."""
    if "requestBody" not in operation:
        return []
    schema = operation["requestBody"]["content"]["application/json"]["schema"]  # type: ignore[index]
    if "$ref" not in schema:
        return ["action*", "…"]
    body = found["components"]["schemas"][re.sub(r".*/", "", schema["$ref"])]  # type: ignore[index]
    required = body.get("required", ())
    names = sorted(body.get("properties", ()), key=lambda name: name not in required)
    return [f"{name}*" if name in required else name for name in names]


def triage() -> str:
    """What can be done with a dead letter, and what each verb takes."""
    rows = []
    for verb in get_args(Triage):
        fields = [field.name + ("*" if field.required else "") for field in msgspec.structs.fields(verb)]
        rows.append((code(verb.__struct_config__.tag), " ".join(map(code, fields)), inspect.getdoc(verb) or ""))
    return table(("action", "takes", "meaning"), rows)


def problems() -> str:
    return table(
        ("status", "type", "title"), [(str(one.status), code(one.type), one.title) for one in known_problems()]
    )


def metrics() -> str:
    return table(("name", "type", "meaning"), [(code(name), kind, help) for name, (kind, help) in METRICS.items()])
