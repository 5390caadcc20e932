"""The changes a retry may run with, as values: stored as JSON with a job and with each of its attempts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from redrive.core.job import Job, Json


class CompressContext(msgspec.Struct, frozen=True, tag="compress_context", tag_field="change", omit_defaults=True):
    """Read less than `max_tokens`. A summary, if there is one, stands for what is left out."""

    max_tokens: int
    summary: str | None = None


class AddInstruction(msgspec.Struct, frozen=True, tag="add_instruction", tag_field="change", omit_defaults=True):
    """Tell the model something more. `tainted`: some of it comes from a failure, so it is never said as the system."""

    text: str
    tainted: bool = False


class AddConstraint(msgspec.Struct, frozen=True, tag="add_constraint", tag_field="change", omit_defaults=True):
    """An instruction that the output is held to, labelled as a constraint."""

    text: str
    tainted: bool = False


class SimplifyTask(msgspec.Struct, frozen=True, tag="simplify_task", tag_field="change", omit_defaults=True):
    """Ask for at most so much output. Only ever lowers the limit."""

    max_output_tokens: int


class SetModel(msgspec.Struct, frozen=True, tag="set_model", tag_field="change", omit_defaults=True):
    model: str


class SetAgent(msgspec.Struct, frozen=True, tag="set_agent", tag_field="change", omit_defaults=True):
    agent: str


class Edit(msgspec.Struct, frozen=True, tag="edit", tag_field="change", omit_defaults=True):
    """The whole new payload, and who wanted it so. Everything else applies on top of it."""

    payload: dict[str, Json]
    who: str | None = None
    why: str | None = None
    tainted: bool = False
    outside: str | None = None
    """What sets its key apart for receivers: a person's edit is other work."""


Change = CompressContext | AddInstruction | AddConstraint | SimplifyTask | SetModel | SetAgent | Edit
Said = AddInstruction | AddConstraint

ORDER: Final[tuple[type[Change], ...]] = (
    Edit,
    SetAgent,
    SetModel,
    SimplifyTask,
    CompressContext,
    AddInstruction,
    AddConstraint,
)
"""The order in which changes apply, whatever the order they were chosen in."""
_decoder: Final = msgspec.json.Decoder(tuple[Change, ...])


class EffectiveInput(msgspec.Struct, frozen=True):
    """The effective input, the changes that made it, and those that could not be applied, each with the reason."""

    payload: dict[str, Json]
    taken: tuple[Change, ...] = ()
    refused: tuple[tuple[Change, str], ...] = ()


def encode(changes: Iterable[Change]) -> str:
    """Changes as the JSON text that a job and its attempts store."""
    return msgspec.json.encode(tuple(changes)).decode()


def decode(stored: str | bytes | Sequence[Mapping[str, Json]] | None) -> tuple[Change, ...]:
    """Stored changes, as text or already read from JSON. Raises msgspec.ValidationError for what is none."""
    if not stored:
        return ()
    if isinstance(stored, str | bytes):
        return _decoder.decode(stored)
    return msgspec.convert(list(stored), tuple[Change, ...])


def own_names(one: object) -> frozenset[str]:
    """Which of model and agent a job or an attempt names itself, so that a change must not look for them."""
    return frozenset(name for name in ("model", "agent") if getattr(one, name) is not None)


def read_names(changes: Iterable[Change]) -> tuple[str | None, str | None]:
    """The agent and the model that changes name, where they do."""
    agent = model = None
    for change in changes:
        if isinstance(change, SetAgent):
            agent = change.agent
        elif isinstance(change, SetModel):
            model = change.model
    return agent, model


def fields_of_next_run(in_force: Sequence[Change] | None, agent: str | None, model: str | None) -> dict[str, str]:
    """The job's own fields that the next run has anew: the changes that then hold (None: as before), and its names."""
    fields = {"changes_json": encode(in_force)} if in_force is not None else {}
    fields |= {"agent": agent} if agent else {}
    return fields | ({"model": model} if model else {})


def merge(before: Sequence[Change], new: Sequence[Change]) -> tuple[Change, ...]:
    """The changes in force after new ones came: one of each kind, the later one, in the order they apply."""
    in_force: dict[type[Change], Change] = {}
    for change in (*before, *new):
        earlier = in_force.get(type(change))
        in_force[type(change)] = _carry_on(_with_taint(change, earlier), earlier)
    return tuple(in_force[kind] for kind in ORDER if kind in in_force)


def _carry_on(change: Change, earlier: Change | None) -> Change:
    """What a task makes of a person's edit still is that person's work, under the same key outside."""
    if isinstance(change, Edit) and isinstance(earlier, Edit) and change.outside is None:
        return msgspec.structs.replace(change, who=change.who or earlier.who, outside=earlier.outside)
    return change


def _with_taint(change: Change, earlier: Change | None) -> Change:
    """Repeating a tainted text, or editing a tainted payload, does not make it clean."""
    match change, earlier:
        case (AddInstruction() | AddConstraint(), AddInstruction(tainted=True) | AddConstraint(tainted=True)):
            kept = change.text == earlier.text
        case (Edit(), Edit(tainted=True)):
            kept = True
        case _:
            return change
    return msgspec.structs.replace(change, tainted=True) if kept else change


def outside_key(job: Job) -> str:
    """The key under which receivers know this work. A person's edit makes it other work, with a key of its own."""
    key = job.key or job.id
    edits = [change.outside for change in decode(job.changes_json) if isinstance(change, Edit) and change.outside]
    return f"{key}:edit-{edits[-1]}" if edits else key


def edited_payload(job: Job) -> dict[str, Json] | None:
    """The payload as a person has edited it; None without an edit. Other changes, known or not, do not matter."""
    edits = [change["payload"] for change in job.changes if change.get("change") == "edit"]
    return edits[-1] if edits else None


def make_edit(payload: dict[str, Json], who: str, why: str | None) -> Edit:
    """A person's edit."""
    digest = hashlib.sha256(msgspec.json.encode(payload, order="sorted")).hexdigest()[:8]
    return Edit(payload, who, why, outside=digest)
