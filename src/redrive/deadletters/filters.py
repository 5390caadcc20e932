"""Converts filters given by name to a Filter of the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any, Final, get_args

import msgspec

from redrive.core.checks import check_id, is_text
from redrive.core.job import DEAD_REASONS, DISCARD_REASONS, HOLD_REASONS, UNKNOWN, Category, Lane, Reason, State
from redrive.core.store import Filter
from redrive.deadletters.verbs import ACTS, PAST, meant_filter
from redrive.errors import InvalidInput

TIMES: Final = ("since", "until", "due_at")
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "lane": get_args(Lane),
    "category": get_args(Category),
    "because": tuple(dict.fromkeys((*DEAD_REASONS, *HOLD_REASONS, *DISCARD_REASONS))),
    "reason": get_args(Reason),
}
"""Filters whose values are a fixed list of words; the other filters take any text."""


def filters_of_many(verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> dict[str, Any]:
    """Checks what a verb on many is given: ids, filters, or everything, which must be asked for explicitly."""
    said = {name: value for name, value in filters.items() if value is not None}
    if verb not in ACTS:
        raise InvalidInput(field="verb", problem=f"{verb!r:.80} is not one of {', '.join(ACTS)}")
    _check_ids(ids)
    if "state" in said or "states" in said:
        raise InvalidInput(field="state", problem=f"is not a filter here: only {ACTS[verb].noun}s are {PAST[verb]}")
    if ids and (said or all):
        raise InvalidInput(field="ids", problem="give ids or a filter, not both")
    if not ids and not said and not all:
        raise InvalidInput(field="filter", problem="an empty filter means everything, which needs all=True")
    return said


def filter_of_many(verb: str, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> Filter | None:
    """Makes the store's Filter for a verb on many; None if ids are given."""
    said = filters_of_many(verb, ids, filters, all=all)
    return None if ids else make_filter(meant_filter(ACTS[verb], said))


def means_unknown(ids: Sequence[str], filters: Mapping[str, Any]) -> bool:
    """Whether the caller included unknown outcomes: by naming each id, or by filtering for that category."""
    return bool(ids) or UNKNOWN in (filters.get("because"), filters.get("detail"))


def _check_ids(ids: object) -> None:
    if isinstance(ids, str):
        raise InvalidInput(field="ids", problem="is a list of ids, not a text")
    if not isinstance(ids, Sequence):
        raise InvalidInput(field="ids", problem=f"{ids!r:.80} is not a list of ids")
    for id in ids:
        check_id("ids", id)


def make_filter(said: dict[str, Any]) -> Filter:
    """Converts keyword filters to a Filter; refuses an unknown filter by name."""
    said = {name: value for name, value in said.items() if value is not None}
    if "state" in said:
        said["states"] = said.pop("state")
    if unknown := said.keys() - set(Filter.__struct_fields__):
        raise InvalidInput(field=min(unknown), problem="is not a filter")
    return Filter(**{name: _convert(name, value) for name, value in said.items()})


_KINDS: Final = {field.name: field.type for field in msgspec.structs.fields(Filter)}
_EXPECTED: Final = {**dict.fromkeys(TIMES, "a time in seconds since 1970"), "ids": "a list of ids"}


def _convert(name: str, value: object) -> Any:
    if name == "states":
        return _states(value)
    try:
        found = msgspec.convert(value, _KINDS[name], strict=True)
    except (msgspec.ValidationError, UnicodeEncodeError):
        found = None
    whole = all(map(is_text, found)) if isinstance(found, tuple) else not isinstance(found, str) or is_text(found)
    if found is None or not whole or (isinstance(found, float) and not isfinite(found)):
        raise InvalidInput(field=name, problem=f"{value!r:.80} is not {_EXPECTED.get(name, 'a text')}")
    return _check_word(name, found)


def _check_word(name: str, value: Any) -> Any:
    """Refuses an unknown word: it would match nothing, which looks as if there were no dead letters."""
    if name in WORDS and value is not None and value not in WORDS[name]:
        raise InvalidInput(field=name, problem=f"{value!r:.80} is not one of {', '.join(WORDS[name])}")
    return value


def _states(said: object) -> tuple[State, ...]:
    """Converts one state, or several, to a tuple of states."""
    several: Collection[Any] = said if isinstance(said, Collection) and not isinstance(said, str) else [said]
    try:
        return tuple(State(one) for one in several)
    except ValueError as error:
        raise InvalidInput(field="state", problem=f"{error}; there are {', '.join(State)}") from None
