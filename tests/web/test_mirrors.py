"""No answer of REST repeats a domain struct field by field: it is made of the struct by `view`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec

import redrive
from redrive.core.view import fields_of
from redrive.doors import rest
from redrive.doors.rest.answers import AnswerFields

DOMAIN = tuple(room.name for room in pkgutil.iter_modules(redrive.__path__) if room.ispkg and room.name != "doors")
"""Every room but the doors."""
LOOSER = {"EntryOut", "PreviewOut"}
"""Whose schemas promise less than the structs behind them: a plain text where the struct has a closed list of words."""


def test_no_answer_repeats_a_domain_struct() -> None:
    known = {frozenset(names): kind.__name__ for kind in domain_structs() for names in spellings(kind)}
    found = {answer.__name__: known.get(frozenset(answer.__struct_fields__)) for answer in answers()}
    mirrors = {name: kind for name, kind in found.items() if kind is not None}
    assert mirrors.keys() == LOOSER, "use shape(Domain) and view(domain)"


def test_a_mirror_would_be_seen() -> None:
    class Mirror(AnswerFields):
        at: str
        who: str
        text: str

    spelled = {frozenset(names) for kind in domain_structs() for names in spellings(kind)}
    assert frozenset(Mirror.__struct_fields__) in spelled


def spellings(kind: type[msgspec.Struct]) -> Iterator[tuple[str, ...]]:
    """The fields of a struct, and those that its answer has. One field alone is no likeness."""
    declared = any(getattr(kind, name, None) for name in ("HIDDEN", "SHOWN", "FLAT", "RENAMED"))
    for names in (kind.__struct_fields__, tuple(fields_of(kind)) if declared else ()):
        if len(names) > 1:
            yield names


def answers() -> list[type[AnswerFields]]:
    modules = {f"{rest.__name__}.{one.name}" for one in pkgutil.iter_modules(rest.__path__)}
    found = [kind for kind in descendants(AnswerFields) if kind.__module__ in modules]
    assert found
    return found


def domain_structs() -> list[type[msgspec.Struct]]:
    for name in DOMAIN:
        package = importlib.import_module(f"{redrive.__name__}.{name}")
        for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(one.name)
    names = tuple(f"{redrive.__name__}.{name}." for name in DOMAIN)
    return [kind for kind in descendants(msgspec.Struct) if kind.__module__.startswith(names)]


def descendants(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from descendants(child)
