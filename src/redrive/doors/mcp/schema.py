"""Describes the parameters of a task as JSON Schema, from its signature."""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec

from redrive.core.payload import Blob, Signature

ANYTHING: Final[dict[str, Any]] = {}
_REFERENCES: Final = "#/$defs/{name}"


def schema_of(signature: Signature) -> dict[str, Any]:
    """Describe an object with a property for each parameter, closed unless the task takes any keyword."""
    parameters = signature.public(None).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    definitions: dict[str, Any] = {}
    properties = {parameter.name: _property(parameter, definitions) for parameter in named}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [parameter.name for parameter in named if parameter.default is inspect.Parameter.empty]
    schema |= {"required": required} if required else {}
    schema |= {"$defs": definitions} if definitions else {}
    return schema | {"additionalProperties": len(named) != len(parameters)}


def _property(parameter: inspect.Parameter, definitions: dict[str, Any]) -> dict[str, Any]:
    kind = parameter.annotation
    schema = ANYTHING if kind is inspect.Parameter.empty else _describe_type(kind, definitions)
    default = _default_json(parameter.default)
    return {**schema, **({"default": default} if default is not msgspec.UNSET else {})}


def _describe_type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Describe an annotation; an unknown one allows anything, because the task checks its input itself."""
    nested: dict[str, Any] = {}

    def hook(model: type) -> dict[str, Any]:
        describe = getattr(model, "model_json_schema", None)
        if model is Blob or not callable(describe):
            raise NotImplementedError
        schema: dict[str, Any] = describe(ref_template="#/$defs/{model}")
        nested.update(schema.pop("$defs", {}))
        return schema

    try:
        (schema,), components = msgspec.json.schema_components([kind], schema_hook=hook, ref_template=_REFERENCES)
    except (TypeError, NotImplementedError):
        return ANYTHING
    definitions.update(components | nested)
    return schema


def _default_json(default: Any) -> Any:
    """Return a default as JSON, or UNSET if JSON cannot express it."""
    if default is inspect.Parameter.empty:
        return msgspec.UNSET
    try:
        return msgspec.to_builtins(default)
    except TypeError:
        return msgspec.UNSET
