"""Another input for a job: whether it fits, what differs, and what the job's record then says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from redrive.core import change
from redrive.core.change import edited_payload
from redrive.core.documents import STEP
from redrive.core.job import Job, Json
from redrive.core.payload import check_kept, encode
from redrive.core.redact import redact
from redrive.core.store import Put, Store
from redrive.core.workflow import OUTPUT
from redrive.deadletters.triage import outside_texts, quoted
from redrive.engine.effects import effects_of
from redrive.engine.effects import forgotten as forgotten_effect
from redrive.engine.inputs import effective
from redrive.engine.verify import nothing_landed
from redrive.engine.workflow_steps import is_step
from redrive.errors import InvalidInput
from redrive.retries.changes import decode, diff, merge

if TYPE_CHECKING:
    from redrive.jobs.core import Core


def text_of(core: Core, payload: Mapping[str, Json]) -> str:
    """Encodes an input as it is kept; refuses what cannot be one."""
    encoded = encode(payload, limit=core.settings.payload_limit)
    if encoded.blobs:
        raise InvalidInput(field="payload", problem="a Blob cannot be edited in; enqueue a new job for it")
    check_kept(payload, encoded)
    return encoded.text


def check_fits(core: Core, job: Job, text: str) -> None:
    """Refuses now what the worker could not use; what a step takes from another one is known when it runs."""
    handler = core.registry.handlers.get(job.task)
    if handler is not None and not (is_step(job) and OUTPUT in text):
        handler.signature.arguments(text)


def input_now(job: Job) -> dict[str, Json]:
    """Gives the input as it was enqueued, or as it was edited last; other changes apply on top of either."""
    edited = edited_payload(job)
    return edited if edited is not None else job.arguments


def difference(core: Core, job: Job, payload: Mapping[str, Json]) -> list[str]:
    """Tells what differs from what the next run would be given, with what looks like a secret masked."""
    handler = core.registry.handlers.get(job.task)
    adapt, count = handler.adapt if handler else None, core.registry.count
    now = effective(job, handler, core.registry).payload
    lines = diff(redact(now), redact(dict(payload)), adapt=adapt, count=count)
    return lines or (["a value that is not shown was changed"] if diff(now, dict(payload)) else [])


def changed_input(core: Core, job: Job, payload: Mapping[str, Json], who: str, why: str | None) -> Mapping[str, str]:
    """Gives the fields that the input writes. What is quoted from a failure stays marked as coming from outside."""
    text = text_of(core, payload)
    check_fits(core, job, text)
    given = msgspec.json.decode(text)
    if not difference(core, job, given):
        raise InvalidInput(field="payload", problem="is the same as before: redrive it as it is")
    edit = change.edited(given, who, why)
    if quoted(given, outside_texts(job)):
        edit = msgspec.structs.replace(edit, tainted=True)
    return change.anew(merge(decode(job.changes_json), [edit]), None, None)


KEPT: Final = 200
"""So many documents are forgotten in the commit of an edit, and come back if it is taken back."""


class Forgotten(NamedTuple):
    """What an edit forgets: in its own commit, so that taking it back brings it back, and what is too much for that."""

    puts: list[Put]
    gone: list[Put]


async def forgotten(store: Store, job: Job, repeat: Sequence[str] = ()) -> Forgotten:
    """Steps, what to look for outside, and the effects to be done again."""
    if repeat:
        effects = [effect.name for effect in await effects_of(store, job.id)]
        if unknown := set(repeat) - set(effects):
            known = ", ".join(effects) or "none"
            raise InvalidInput(field="repeat", problem=f"{min(unknown)!r} is no effect of this job; there are {known}")
    steps = [STEP.drop(kept.key) for kept in await STEP.all(store, f"{job.id}/")]
    puts = [*nothing_landed(job), *(forgotten_effect(job.id, name) for name in repeat)]
    room = max(0, KEPT - len(puts))
    return Forgotten([*puts, *steps[:room]], steps[room:])
