"""Which jobs: what people say by name, as a Filter of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from redrive.core.job import State
from redrive.core.store import Filter
from redrive.core.triage import PAST
from redrive.errors import InvalidInput

TIMES: Final = ("since", "until", "due_at")
_MEANT: Final = {"recall": "deferred jobs", "restore": "discarded jobs"}


def said_of_many(verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> dict[str, Any]:
    """The filters of a verb that is about many: ids, or what the filters match, or everything, which must be said."""
    said = {name: value for name, value in filters.items() if value is not None}
    if verb not in PAST:
        raise InvalidInput(field="verb", problem=f"{verb!r:.80} is not one of {', '.join(PAST)}")
    if isinstance(ids, str):
        raise InvalidInput(field="ids", problem="is a list of ids, not a text")
    if "state" in said or "states" in said:
        meant = _MEANT.get(verb, "dead letters")
        raise InvalidInput(field="state", problem=f"is not a filter here: only {meant} are {PAST[verb]}")
    if ids and (said or all):
        raise InvalidInput(field="ids", problem="give ids or a filter, not both")
    if not ids and not said and not all:
        raise InvalidInput(field="filter", problem="an empty filter means everything, which needs all=True")
    return said


def make_filter(said: dict[str, Any]) -> Filter:
    """Keyword filters as a Filter; an unknown one is refused by name."""
    said = {name: value for name, value in said.items() if value is not None}
    if "state" in said:
        states = said.pop("state")
        listed = [states] if isinstance(states, str) else list(states)
        try:
            said["states"] = tuple(State(state) for state in listed)
        except ValueError as error:
            raise InvalidInput(field="state", problem=f"{error}; there are {', '.join(State)}") from None
    if unknown := said.keys() - set(Filter.__struct_fields__):
        raise InvalidInput(field=min(unknown), problem="is not a filter")
    for name, value in said.items():
        try:
            msgspec.convert(value, _KINDS[name], strict=True)
        except msgspec.ValidationError:
            raise InvalidInput(field=name, problem=f"{value!r} is not {_kind(name)}") from None
    return Filter(**said)


_KINDS: Final = {field.name: field.type for field in msgspec.structs.fields(Filter)}


def _kind(name: str) -> str:
    return "a time in seconds since 1970" if name in TIMES else "a text"
