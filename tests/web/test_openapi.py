"""The document: whole, valid, and the same as what is served."""

import json
from typing import Any

import jsonschema

from redrive.core.job import Job, public
from redrive.doors.rest import TABLE
from redrive.doors.rest.answers import JobOut, Summary
from redrive.doors.rest.inputs import Filters
from redrive.doors.rest.jobs import NewJob
from redrive.doors.rest.openapi import document, path_of
from redrive.errors import JobError, RedriveError, StoreError
from tests.web.serving import Served


def everywhere(value: Any) -> list[dict[str, Any]]:
    """Every object in the document."""
    found = [value] if isinstance(value, dict) else []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found += everywhere(item)
    return found


async def test_the_document_is_served_and_every_route_is_in_it(still: Served) -> None:
    served = await still.get("/openapi.json")
    assert served == json.loads(json.dumps(document(TABLE))) | {"servers": [{"url": "/"}]}
    assert served["openapi"] == "3.1.0"
    assert {(route.method.lower(), path_of(route)) for route in TABLE} == {
        (method, path) for path, methods in served["paths"].items() for method in methods
    }


def test_its_references_lead_somewhere_and_its_schemas_are_schemas() -> None:
    found = document(TABLE)
    names = set(found["components"]["schemas"])
    used = {one["$ref"].rpartition("/")[2] for one in everywhere(found) if "$ref" in one}
    assert used == names, "no reference is broken and no schema is idle"
    for schema in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for operation in (one for methods in found["paths"].values() for one in methods.values()):
        for parameter in operation["parameters"]:
            jsonschema.Draft202012Validator.check_schema(parameter["schema"])


def test_every_operation_has_its_own_name_and_tells_how_it_fails() -> None:
    found = [one for methods in document(TABLE)["paths"].values() for one in methods.values()]
    names = [one["operationId"] for one in found]
    assert len(names) == len(set(names))
    for one in found:
        assert one["summary"] and one["responses"]
        problems = [said for status, said in one["responses"].items() if int(status) >= 400]
        assert all(list(said["content"]) == ["application/problem+json"] for said in problems)
        assert {"403", "421", "422"} <= one["responses"].keys(), one["operationId"]


def test_nothing_of_the_app_is_forgotten() -> None:
    """Whoever adds a field to a job, an option or a filter adds it here, or says why not."""
    from redrive.core.store import Filter
    from redrive.jobs.job_options import OPTIONS

    shown = set(public(Job("i", "q", "t", None, Job.__annotations__ and _waiting(), 2, 0.0, 1, 0.0, 0.0, "{}")))  # type: ignore[arg-type]
    assert set(JobOut.__struct_fields__) == shown
    assert set(Summary.__struct_fields__) < shown
    callers = {"fallback", "fallback_after"}
    assert set(NewJob.__struct_fields__) - {"task", "payload"} == OPTIONS - callers, "fallback is for who calls"
    internal = {
        "states", "id_part", "due_at", "held_for", "ids", "fingerprint", "session_id", "failed", "returns_by",
        "no_agent",
    }  # fmt: skip
    assert set(Filter.__struct_fields__) - internal == set(Filters.__struct_fields__) - {"group", "session"}


def _waiting() -> Any:
    from redrive.core.job import State

    return State.waiting


def test_every_error_of_redrive_is_some_problem() -> None:
    from redrive.doors.web.problems import _BY_ERROR

    def below(kind: type) -> list[type]:
        return [one for child in kind.__subclasses__() for one in (child, *below(child))]

    kinds = [kind for kind in below(RedriveError) if kind.__module__ == "redrive.errors"]
    internal = {"OutcomeUnknown"}  # raised inside tasks alone
    unknown = [
        kind.__name__
        for kind in kinds
        if kind not in (JobError, StoreError) and kind.__name__ not in internal
        and not any(parent in _BY_ERROR for parent in kind.__mro__)
    ]  # fmt: skip
    assert unknown == []
