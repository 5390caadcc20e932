"""Encodes, checks and decodes the payloads and results of jobs as JSON text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import msgspec

from redrive.core.job import Json
from redrive.core.redact import redact_about, redact_text
from redrive.errors import InvalidPayload

LIMIT: Final = 1024 * 1024
DEPTH: Final = 64
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


class Blob:
    """A large part of a payload (an image, a document): stored beside the job, not inside it."""

    __slots__ = ("data", "media_type")

    def __init__(self, data: bytes, media_type: str = "application/octet-stream") -> None:
        self.data = data
        self.media_type = media_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and (self.data, self.media_type) == (other.data, other.media_type)

    def __hash__(self) -> int:
        return hash((self.data, self.media_type))

    def __repr__(self) -> str:
        return f"Blob({len(self.data)} bytes, {self.media_type!r})"


class _HasBlob(Exception):
    """Raised if the payload contains a Blob, which must be taken out first."""


class Encoded(NamedTuple):
    """A payload ready to be stored, and the blobs that are stored beside the payload."""

    text: str
    blobs: tuple[Blob, ...] = ()
    plain: bool = False
    """Whether all keys are texts and all values texts, numbers, booleans or None: JSON preserves all of these."""


def _plain(value: object) -> Json:
    """Convert objects that msgspec does not know: pydantic models and other objects with `model_dump`."""
    if isinstance(value, Blob):
        raise _HasBlob
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def encode(payload: Mapping[str, object], *, limit: int = LIMIT) -> Encoded:
    """Encode the payload as JSON text. Refuses values that JSON cannot express, too deep nesting and too large text."""
    if type(payload) is not dict and not isinstance(payload, Mapping):
        raise InvalidPayload(field="payload", problem=f"must be a JSON object, not {type(payload).__name__}")
    blobs: list[Blob] = []
    try:
        try:
            raw = _encode(payload)
        except _HasBlob:
            payload = _take_blobs(payload, blobs)
            raw = _encode_without_blobs(payload)
        # NaN becomes `null` when encoded, and brackets bound the depth: check closely only if the text has either sign.
        if b"null" in raw or raw.count(b"{") + raw.count(b"[") > DEPTH:
            _walk(msgspec.to_builtins(payload, enc_hook=_plain), "payload")
    except InvalidPayload:
        raise
    except RecursionError:
        raise InvalidPayload(field="payload", problem=f"is nested deeper than {DEPTH} levels") from None
    except (TypeError, ValueError, UnicodeError, msgspec.MsgspecError) as error:
        _check_same(payload, "payload", sets=False)
        raise InvalidPayload(field=_where(payload), problem=f"cannot be written as JSON: {error}") from error
    if len(raw) > limit:
        raise InvalidPayload(
            field="payload", problem=f"is {len(raw)} bytes, the limit is {limit}; put large parts into redrive.Blob"
        )
    for name, value in payload.items():
        if type(value) not in _PLAIN or type(name) is not str:
            return Encoded(raw.decode(), tuple(blobs))
    return Encoded(raw.decode(), plain=True)


def canonical(arguments: Mapping[str, object]) -> str:
    """Encode arguments as JSON text that is the same in every process: sets and names are sorted. Refuses Blobs."""
    if encode(arguments).blobs:
        raise InvalidPayload(field=_where(arguments), problem="has a Blob in it")
    plain = msgspec.to_builtins(arguments, enc_hook=_plain, str_keys=True, order="deterministic")
    return msgspec.json.encode(plain, order="deterministic").decode()


def _encode_without_blobs(payload: Mapping[str, object]) -> bytes:
    try:
        return _encode(payload)
    except _HasBlob:
        raise InvalidPayload(
            field="payload", problem="has a Blob inside an object; put it into a parameter, a list or a dict"
        ) from None


def _walk(value: Json, path: str, depth: int = 1, deepest: float = DEPTH) -> None:
    if depth > deepest and isinstance(value, dict | list | tuple):
        raise InvalidPayload(field="payload", problem=f"is nested deeper than {DEPTH} levels")
    if isinstance(value, dict):
        for name, item in value.items():
            _walk(item, f"{path}.{name}", depth + 1, deepest)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]", depth + 1, deepest)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidPayload(field=path, problem=f"{value} is not JSON")


def check_kept(payload: Mapping[str, Any], encoded: Encoded, signature: Signature | None = None) -> None:
    """Refuse values that JSON would change: keys that are not texts, and sets.

    Such values are accepted for a parameter whose annotation restores them, such as `set[str]` or `dict[int, str]`.
    """
    if encoded.plain:
        return
    if not encoded.blobs and msgspec.json.decode(encoded.text) == payload:
        return
    for name, value in payload.items():
        _check_key(name, "payload")
        try:
            _check_same(value, f"payload.{name}")
        except InvalidPayload:
            if signature is None or not signature.restores(name, value):
                raise


def _check_same(value: object, path: str, *, sets: bool = True) -> None:
    """Refuse sets and keys that are not texts. Other objects define their JSON form; tuples may become lists."""
    if sets and isinstance(value, set | frozenset):
        what = f"is a {type(value).__name__}, which JSON turns into a list"
        raise InvalidPayload(field=path, problem=f"{what}; give a list, or annotate the parameter as a set")
    if isinstance(value, Mapping):
        for name, item in value.items():
            _check_key(name, path)
            _check_same(item, f"{path}.{name}", sets=sets)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_same(item, f"{path}[{index}]", sets=sets)


def _check_key(name: object, path: str) -> None:
    if not isinstance(name, str):
        what = f"has the key {name!r:.40}, which JSON turns into a text"
        mend = f"give a text, or annotate the parameter as a dict with {type(name).__name__} keys"
        raise InvalidPayload(field=path, problem=f"{what}; {mend}")


def _where(payload: Mapping[str, object]) -> str:
    """Return the first top-level field that cannot be encoded."""
    for name, value in payload.items():
        try:
            _encode(value)
        except Exception:  # noqa: BLE001 - looking for the culprit
            return f"payload.{name}"
    return "payload"


def _take_blobs(value: Any, blobs: list[Blob]) -> Any:
    """Replace the blobs of a payload by references."""
    if isinstance(value, Blob):
        blobs.append(value)
        digest = hashlib.sha256(value.data).hexdigest()
        return {"$blob": len(blobs) - 1, "media_type": value.media_type, "size": len(value.data), "sha256": digest}
    if isinstance(value, Mapping):
        return {name: _take_blobs(item, blobs) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_blobs(item, blobs) for item in value]
    return value


def blob_document(blob: Blob) -> bytes:
    return msgspec.json.encode({"media_type": blob.media_type, "data": base64.b64encode(blob.data).decode()})


def blob_from(document: bytes) -> Blob:
    parts = msgspec.json.decode(document)
    return Blob(base64.b64decode(parts["data"]), parts["media_type"])


_REFERENCE: Final = {"$blob", "media_type", "size", "sha256"}


def put_back_blobs(value: Json, blobs: Mapping[int, Blob]) -> Json:
    """Replace the references in a payload by their blobs."""
    if isinstance(value, dict):
        if value.keys() == _REFERENCE and value["$blob"] in blobs:
            return blobs[value["$blob"]]
        return {name: put_back_blobs(item, blobs) for name, item in value.items()}
    if isinstance(value, list):
        return [put_back_blobs(item, blobs) for item in value]
    return value


def encode_result(value: object) -> tuple[str | None, str | None]:
    """Encode a result as JSON text, with a warning if only its repr can be stored. Never fails a finished job."""
    if value is None:
        return None, None
    try:
        return _encode(value).decode(), None
    except Exception as error:  # noqa: BLE001 - the effect has landed, so the job must not fail for this
        return msgspec.json.encode({"$repr": repr_of(value)}).decode(), f"the result is not JSON ({error}); repr stored"


def lost_numbers(text: str | None, value: object) -> str | None:
    """Return a warning if JSON has `null` in the place of a number that JSON cannot express, else None."""
    if text is None or "null" not in text:
        return None
    try:
        plain = msgspec.to_builtins(value, enc_hook=_plain)
        if not _all_finite(plain):
            _walk(plain, "result", deepest=math.inf)
    except InvalidPayload as error:
        return f"{error}; it is stored as null"
    except Exception:  # noqa: BLE001 - the result is written already; a value that cannot be checked is left
        return None
    return None


def _all_finite(value: Json) -> bool:
    """Return whether all numbers are finite. This is fast for large values; the caller then finds the place."""
    import json  # few programs need it beside msgspec

    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def repr_of(value: object) -> str:
    """Return the repr of any value as a text that can be stored."""
    try:
        return repr(value)[:10_000].encode("utf-8", "replace").decode()
    except Exception as error:  # noqa: BLE001 - a foreign __repr__
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _decode_hook(kind: type, value: Json) -> Any:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    if isinstance(value, kind):
        return value
    raise NotImplementedError(f"{kind.__name__} cannot be read from JSON")


class Signature:
    """Mapping between a task's parameters and its payload, in both directions, by the task's annotations."""

    def __init__(self, function: Callable[..., Any], *, skip_first: bool) -> None:
        parameters = list(inspect.signature(function).parameters.values())[1 if skip_first else 0 :]
        _check_named(parameters)
        self._parameters = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        self._open = len(self._parameters) != len(parameters)
        self._signature = inspect.Signature(parameters)
        self._names = tuple(parameter.name for parameter in self._parameters)
        self._shape = self._make_shape(function)
        self._decoder = msgspec.json.Decoder(self._shape, dec_hook=_decode_hook) if self._shape else None
        self._hinted = _hints(function)
        self._returns = self._hinted.get("return", Any)

    def public(self, returns: Any) -> inspect.Signature:
        """Return the signature that a caller uses, with its annotations resolved."""
        hints = self._hinted
        resolved = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in self._signature.parameters.values()]
        return inspect.Signature(resolved, return_annotation=returns)

    def default(self, name: str | None) -> object:
        """Return the default of a parameter; None if the parameter has none."""
        defaults = (parameter.default for parameter in self._parameters if parameter.name == name)
        default = next(defaults, None)
        return None if default is inspect.Parameter.empty else default

    @property
    def defaults(self) -> dict[str, object]:
        """The defaults of the parameters that a payload may leave out."""
        empty = inspect.Parameter.empty
        return {parameter.name: parameter.default for parameter in self._parameters if parameter.default is not empty}

    def same(self, one: str | None, other: str | None) -> bool:
        """Return whether two stored payloads are the same call: a default may be spelled out or left out."""
        if one is None or other is None:
            return False
        try:
            filled = [{**self._written_defaults, **msgspec.json.decode(text)} for text in (one, other)]
        except msgspec.MsgspecError:  # a damaged payload cannot be compared
            return False
        left, right = (msgspec.json.encode(payload, order="sorted") for payload in filled)
        return left == right

    @cached_property
    def _written_defaults(self) -> dict[str, Json]:
        """The defaults that can be written in a payload."""
        written: dict[str, Json] = {}
        for name, default in self.defaults.items():
            text, problem = encode_result(default)
            if not problem and not lost_numbers(text, default):
                written[name] = msgspec.json.decode(text or "null")
        return written

    def takes(self, name: str) -> bool:
        """Return whether a payload may have a parameter of this name."""
        return self._open or name in self._names

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that a payload fills."""
        return self._names

    def _make_shape(self, function: Callable[..., Any]) -> type[msgspec.Struct] | None:
        """Make a struct with the parameters as fields, so that one decode checks and converts all of them."""
        hints = _hints(function)
        fields: list[Any] = []
        for parameter in self._parameters:
            kind = _supported(hints.get(parameter.name, Any))
            if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, kind))
            else:
                default = parameter.default
                fields.append((parameter.name, kind, msgspec.field(default_factory=partial(_same, default))))
        if self._open:
            return None
        return msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True, gc=False)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Convert a call's arguments to a payload."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidPayload(field="arguments", problem=str(error)) from None
        payload = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                payload |= payload.pop(parameter.name, {})
        return payload

    def arguments(self, text: str, blobs: Mapping[int, Blob] | None = None) -> dict[str, Any]:
        """Decode a stored payload to keyword arguments of the right types. Raises InvalidPayload on a mismatch."""
        try:
            if self._decoder is None or self._shape is None:
                decoded: dict[str, Any] = put_back_blobs(msgspec.json.decode(text), blobs or {})
                return decoded
            if blobs:
                whole = put_back_blobs(msgspec.json.decode(text), blobs)
                values = msgspec.convert(whole, self._shape, dec_hook=_decode_hook)
            else:
                values = self._decoder.decode(text)
        except (msgspec.MsgspecError, ValueError, TypeError, NotImplementedError) as error:
            raise InvalidPayload(field="payload", problem=_without_secrets(str(error), text)) from error
        return msgspec.structs.asdict(values)

    def restores(self, name: str, value: object) -> bool:
        """Return whether decoding by a parameter's annotation restores the given value."""
        kind = _supported(self._hinted.get(name, Any))
        try:
            decoded = msgspec.json.decode(_encode(value), type=kind, dec_hook=_decode_hook)
        except (msgspec.MsgspecError, ValueError, TypeError, NotImplementedError, _HasBlob):
            return False
        return bool(decoded == value) or not isinstance(decoded, dict | list)

    def result(self, text: str | None) -> Any:
        """Decode a stored result to the task's annotated return type."""
        return _read_result(text, self._returns)


def result_reader(function: Callable[..., Any]) -> Callable[[str | None], Any]:
    """Return a function that decodes a stored result to the annotated return type of `function`."""
    returns = _hints(function).get("return", Any)
    return lambda text: _read_result(text, returns)


def _read_result(text: str | None, returns: Any) -> Any:
    if text is None:
        return None
    if returns in (Any, None, type(None)):
        return msgspec.json.decode(text)
    try:
        return msgspec.json.decode(text, type=_supported(returns), dec_hook=_decode_hook)
    except (msgspec.MsgspecError, NotImplementedError):
        return msgspec.json.decode(text)


def _without_secrets(problem: str, text: str) -> str:
    """Redact the problem of a payload, because the text is stored and shown and may quote a value."""
    try:
        given = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return redact_text(problem)
    return redact_about(problem, given)


def _check_named(parameters: Sequence[inspect.Parameter]) -> None:
    """Refuse positional-only parameters and *args: a payload has only named values."""
    for parameter in reversed(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"a task takes named parameters; *{parameter.name} has no name in a payload")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            way = f"leave out the / that follows {parameter.name}, or call it from a function of your own"
            raise TypeError(f"a task takes named parameters; {way}")


def _same(value: Any) -> Any:
    return value


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - ignore annotations that do not resolve
        return {}


def _supported(kind: Any) -> Any:
    """Return the annotation if msgspec can decode it (models through our hook), else Any."""
    if kind is Blob or (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return kind
    try:
        msgspec.json.Decoder(kind, dec_hook=_decode_hook)
    except Exception:  # noqa: BLE001 - an annotation msgspec cannot use
        return Any
    return kind
