"""A task's parameters as JSON Schema, from its signature: what a model must give."""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec

from redrive.core.payload import Blob, Signature

ANYTHING: Final[dict[str, Any]] = {}
_REFERENCES: Final = "#/$defs/{name}"


def schema_of(signature: Signature) -> dict[str, Any]:
    """An object with one property per parameter, closed unless the task takes any keyword."""
    parameters = signature.public(None).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    definitions: dict[str, Any] = {}
    properties = {one.name: _property(one, definitions) for one in named}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [one.name for one in named if one.default is inspect.Parameter.empty]
    schema |= {"required": required} if required else {}
    schema |= {"$defs": definitions} if definitions else {}
    return schema | {"additionalProperties": len(named) != len(parameters)}


def _property(parameter: inspect.Parameter, definitions: dict[str, Any]) -> dict[str, Any]:
    kind = parameter.annotation
    found = ANYTHING if kind is inspect.Parameter.empty else _described(kind, definitions)
    default = _plain(parameter.default)
    return {**found, **({"default": default} if default is not msgspec.UNSET else {})}


def _described(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """What can be said of an annotation; anything goes where that is nothing, and the task judges."""
    nested: dict[str, Any] = {}

    def model(found: type) -> dict[str, Any]:
        describe = getattr(found, "model_json_schema", None)
        if found is Blob or not callable(describe):
            raise NotImplementedError
        schema: dict[str, Any] = describe(ref_template="#/$defs/{model}")
        nested.update(schema.pop("$defs", {}))
        return schema

    try:
        (schema,), components = msgspec.json.schema_components([kind], schema_hook=model, ref_template=_REFERENCES)
    except (TypeError, NotImplementedError):
        return ANYTHING
    definitions.update(components | nested)
    return schema


def _plain(default: Any) -> Any:
    """A default as JSON, or nothing where JSON cannot say it."""
    if default is inspect.Parameter.empty:
        return msgspec.UNSET
    try:
        return msgspec.to_builtins(default)
    except TypeError:
        return msgspec.UNSET
