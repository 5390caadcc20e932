"""Writes the store's verbs as messages: msgpack, typed by the annotations of the Store protocol."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from redrive import errors
from redrive.core.commands import Command, Take, Ticket
from redrive.core.job import Job
from redrive.core.store import Claim, Info, Inserted, Store
from redrive.errors import InvalidInput, RedriveError, StoreError
from redrive.stores.remote.backups import Copied

VERSION: Final = 1
"""The version of this protocol. A hub refuses requests of a newer one with a message that says so."""
READS: Final = (
    "get",
    "doc",
    "docs",
    "find",
    "first",
    "seal",
    "overdue",
    "count",
    "left_behind",
    "returning",
    "quiet",
    "durations",
    "timings",
    "events",
    "latest",
    "moves",
    "story",
    "tallies",
    "totals",
    "outcomes",
    "minutes",
    "groups",
    "lessons",
    "lingering",
)
REPEATABLE: Final = ("heartbeat", "prune", "erase", "repair", "check", "ended")
"""Verbs that change something and may be sent again without a ticket."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One verb and its encoded arguments."""

    verb: str
    arguments: msgspec.Raw
    version: int = VERSION


class HubProblem(msgspec.Struct, frozen=True, array_like=True):
    """An error of redrive that the caller of the verb must get."""

    name: str
    message: str
    field: str | None = None


class HubAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A value or a problem."""

    value: msgspec.Raw
    problem: HubProblem | None = None


class RemoteVerb(NamedTuple):
    """The types of a verb's arguments and of its answer."""

    arguments: Any
    answer: Any
    read_arguments: msgspec.msgpack.Decoder[Any]
    read_answer: msgspec.msgpack.Decoder[Any]


_NOTHING: Final[Mapping[str, Any]] = {}


class CountLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of `count`."""

    by: tuple[str | None, ...]
    number: int


class Executed(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a command that a hub executed."""

    inserted: list[Inserted] | None = None
    outcomes: list[list[int] | str] | None = None
    """For each commit that was applied its fences; for one that was not, the job whose fence did not hold."""
    number: int | None = None


def _verb(name: str, fields: Mapping[str, Any], answer: Any, defaults: Mapping[str, Any] = _NOTHING) -> RemoteVerb:
    """Make a verb of these arguments. Those with a default may be left out, as an older client does."""
    given = [(key, kind, defaults[key]) if key in defaults else (key, kind) for key, kind in fields.items()]
    struct = msgspec.defstruct(f"{name}_arguments", given, array_like=True)
    return RemoteVerb(struct, answer, msgspec.msgpack.Decoder(struct), msgspec.msgpack.Decoder(answer))


def _from_protocol(name: str) -> RemoteVerb:
    method = getattr(Store, name)
    hints = typing.get_type_hints(method)
    fields, defaults = {}, {}
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.default is not inspect.Parameter.empty:
            defaults[parameter.name] = parameter.default
        hint: Any = hints[parameter.name]
        many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        fields[parameter.name] = tuple.__class_getitem__((hint, ...)) if many else hint
    answer = hints["return"]
    return _verb(name, fields, list[CountLine] if name == "count" else answer, defaults)


@functools.cache
def verbs() -> dict[str, RemoteVerb]:
    """Make the table of all verbs."""
    verbs = {name: _from_protocol(name) for name in (*READS, *REPEATABLE)}
    verbs["hello"] = _verb("hello", {}, Info)
    verbs["scan"] = _verb("scan", {"after": int}, tuple[list[Job], int])
    verbs["execute"] = _verb("execute", {"command": Command, "ticket": Ticket}, Executed)
    verbs["take"] = _verb("take", {"take": Take}, Claim)
    verbs["take_next"] = _verb("take_next", {"take": Take, "seconds": float}, Claim)
    verbs["give_back"] = _verb("give_back", {"token": str}, int)
    verbs["withdraw"] = _verb("withdraw", {"token": str}, None)
    verbs["backup_begin"] = _verb("backup_begin", {}, Copied)
    verbs["backup_piece"] = _verb("backup_piece", {"id": str, "offset": int}, bytes | None)
    verbs["backup_end"] = _verb("backup_end", {"id": str}, None)
    verbs["wait"] = _verb("wait", {"mark": int, "seconds": float}, bool)
    return verbs


encode: Final = msgspec.msgpack.Encoder().encode
read_request: Final = msgspec.msgpack.Decoder(Request).decode
_read_answer: Final = msgspec.msgpack.Decoder(HubAnswer).decode
_NONE: Final = msgspec.Raw(encode(None))


def write_request(name: str, arguments: tuple[Any, ...]) -> bytes:
    return encode(Request(name, msgspec.Raw(encode(arguments))))


def write_answer(value: Any) -> bytes:
    return encode(HubAnswer(msgspec.Raw(encode(value))))


def write_refusal(error: RedriveError) -> bytes:
    field = error.field if isinstance(error, InvalidInput) else None
    message = error.problem if isinstance(error, InvalidInput) else str(error)
    return encode(HubAnswer(_NONE, HubProblem(type(error).__name__, message, field)))


def read_answer(name: str, data: bytes) -> Any:
    """Read the value of an answer; raise the error that the hub raised."""
    answer = _read_answer(data)
    if answer.problem is not None:
        raise _read_problem(answer.problem)
    return verbs()[name].read_answer.decode(answer.value)


def _read_problem(problem: HubProblem) -> RedriveError:
    kind = getattr(errors, problem.name, None)
    if isinstance(kind, type) and issubclass(kind, InvalidInput):
        return kind(field=problem.field or "", problem=problem.message)
    if isinstance(kind, type) and issubclass(kind, StoreError):
        return kind(problem.message)
    return StoreError(f"{problem.name}: {problem.message}")
