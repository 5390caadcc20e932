"""Another input for a dead letter: what it would mean, field by field, and the order that brings it back with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from redrive.app.acts import Acts, Order
from redrive.app.namespace import SOMEBODY
from redrive.app.triage import redriven
from redrive.core.changes import change, decode, diff, merge
from redrive.core.checks import check_names
from redrive.core.consent import ANY_AGENT, subject_of
from redrive.core.documents import GRANT, STEP
from redrive.core.job import Job, Json
from redrive.core.lifecycle import Transition
from redrive.core.payload import check_kept, encode
from redrive.core.redact import redact
from redrive.core.store import Put
from redrive.core.triage import GONE, EditPreview, EffectChoice, FieldError, field_error, outside_texts, taint_of
from redrive.core.triage import quoted as quotes
from redrive.core.workflow import OUTPUT
from redrive.errors import InvalidInput, JobError
from redrive.runtime.consents import quoted
from redrive.runtime.effects import effects_of
from redrive.runtime.effects import forgotten as forgotten_effect
from redrive.runtime.inputs import effective
from redrive.runtime.questions import questions_of
from redrive.runtime.verify import nothing_landed
from redrive.runtime.workflow import is_step
from redrive.runtime.written import written

if TYPE_CHECKING:
    from redrive.app import Redrive

KEPT: Final = 200
"""So many documents are forgotten in the commit of an edit, and come back if it is taken back."""


async def preview(app: Redrive, id: str, payload: Mapping[str, Json]) -> EditPreview:
    """What an edit would mean, field by field. Changes nothing."""
    job = await app.jobs.get(id)
    errors = _errors(app, job, payload) or await _refusal(app, job, payload)
    unusable = any(error.field == "payload" for error in errors)
    lines = [] if unusable else _difference(app, job, payload)
    voided = await _voided(app, job)
    effects = await _effects(app, job)
    ok = not errors
    text = _summary(errors, lines, voided, effects)
    given = {} if unusable else dict(payload)
    return EditPreview(job.id, job.task, ok, text, lines, errors, voided, effects, taint_of(job, given))


def order(app: Redrive, payload: Mapping[str, Json], repeat: Sequence[str], who: str, why: str | None) -> Order:
    """Back to the queue with another input. What is quoted from a failure stays marked as coming from outside."""
    text, repeat = _text(app, payload), check_names("repeat", repeat)

    def arrow(job: Job, now: float) -> Transition:
        _check_fits(app, job, text)
        given = msgspec.json.decode(text)
        if not _difference(app, job, given):
            raise InvalidInput(field="payload", problem="is the same as before: redrive it as it is")
        edit = change.edited(given, who, why)
        if quotes(given, outside_texts(job)):
            edit = msgspec.structs.replace(edit, tainted=True)
        in_force = merge(decode(job.changes_json), [edit])
        return redriven(app, job, now, who, why, change.anew(in_force, None, None))

    return Order("edit", who, why, arrow, {"repeat": list(repeat)})


class Forgotten(NamedTuple):
    """What an edit forgets: in its own commit, so that taking it back brings it back, and what is too much for that."""

    puts: list[Put]
    gone: list[Put]


async def forgotten(app: Redrive, job: Job, repeat: Sequence[str]) -> Forgotten:
    """What was remembered for the old input: steps, what to look for outside, and the effects to be done again."""
    store, effects = app.store, [effect.name for effect in await effects_of(app.store, job.id)]
    if unknown := set(repeat) - set(effects):
        known = ", ".join(effects) or "none"
        raise InvalidInput(field="repeat", problem=f"{min(unknown)!r} is no effect of this job; there are {known}")
    steps = [STEP.drop(kept.key) for kept in await STEP.all(store, f"{job.id}/")]
    puts = [*nothing_landed(job), *(forgotten_effect(job.id, name) for name in repeat)]
    room = max(0, KEPT - len(puts))
    return Forgotten([*puts, *steps[:room]], steps[room:])


async def edit(app: Redrive, acts: Acts, id: str, order: Order, repeat: Sequence[str]) -> Job:
    """What is refused must not have forgotten anything."""
    job = await acts.checked(order, id)
    found = await forgotten(app, job, repeat)
    if found.gone:
        order = order._replace(said={**order.said, GONE: len(found.gone)})
    for start in range(0, len(found.gone), KEPT):  # harmless to repeat
        await written(app.store, f"the steps of job {job.short_id} were forgotten", *found.gone[start : start + KEPT])
    return await acts.one(order, job.id, found.puts)


# -- what cannot be an input


def _text(app: Redrive, payload: Mapping[str, Json]) -> str:
    encoded = encode(payload, limit=app.settings.payload_limit)
    if encoded.blobs:
        raise InvalidInput(field="payload", problem="a Blob cannot be edited in; enqueue a new job for it")
    check_kept(payload, encoded)
    return encoded.text


def _check_fits(app: Redrive, job: Job, text: str) -> None:
    """Refuse now what the worker could not use; what a step takes from another one is known when it runs."""
    handler = app.registry.handlers.get(job.task)
    if handler is not None and not (is_step(job) and OUTPUT in text):
        handler.signature.arguments(text)


def _errors(app: Redrive, job: Job, payload: Mapping[str, Json]) -> list[FieldError]:
    """The same refusals, as many as can be told at once."""
    try:
        text = _text(app, payload)
    except InvalidInput as error:
        return [FieldError(error.field, error.problem)]
    try:
        _check_fits(app, job, text)
    except InvalidInput as error:
        first, known = field_error(error.problem), app.registry.handlers[job.task].signature.names
        strange = [name for name in payload if name not in known and name != first.field]
        return [first, *(FieldError(name, "is not a parameter of the task") for name in strange)]
    return []


async def _refusal(app: Redrive, job: Job, payload: Mapping[str, Json]) -> list[FieldError]:
    """Why it would not be done although the input fits."""
    try:
        await Acts(app).checked(order(app, payload, (), SOMEBODY, None), job.id)
    except InvalidInput as error:
        return [FieldError(error.field, error.problem)]
    except JobError as error:
        return [FieldError("job", str(error).removeprefix("job "))]
    return []


# -- what it would mean


def _difference(app: Redrive, job: Job, payload: Mapping[str, Json]) -> list[str]:
    """Against what the next run would be given as it stands, with what looks like a secret masked."""
    handler = app.registry.handlers.get(job.task)
    adapt, count = handler.adapt if handler else None, app.registry.count
    now = effective(job, handler, app.registry).payload
    lines = diff(redact(now), redact(dict(payload)), adapt=adapt, count=count)
    return lines or (["a value that is not shown was changed"] if diff(now, dict(payload)) else [])


async def _voided(app: Redrive, job: Job) -> list[str]:
    """Consents and approvals that are bound to the input as it is."""
    approvals = [one for one in await questions_of(app.store, job.id) if one.answer == "approved"]
    found = [f"the approval by {approval.by}: {approval.question}" for approval in approvals]
    now, subject = app.clock.now(), subject_of(job)
    if job.session_id is not None:
        for _, grant, _ in await GRANT.all(app.store, f"{quoted(job.session_id)}/"):
            bound = grant.subject == subject or (grant.agent is not ANY_AGENT and grant.job_id == job.id)
            if bound and grant.revoked_at is None and (grant.expires_at is None or now < grant.expires_at):
                found.append(f"the consent of {grant.by} to {grant.scope}")
    return found


_THEN: Final = {
    "landed": "kept: it is not done again, unless you name it to be repeated",
    "absent": "done: nothing of it is there",
    "intended": "looked for first: it may have landed",
    "unknown": "looked for first: it may have landed",
}


async def _effects(app: Redrive, job: Job) -> list[EffectChoice]:
    effects = await effects_of(app.store, job.id)
    return [EffectChoice(effect.name, effect.status, _THEN[effect.status]) for effect in effects]


def _summary(
    errors: Sequence[FieldError], lines: Sequence[str], voided: Sequence[str], effects: Sequence[EffectChoice]
) -> str:
    if errors:
        return "It cannot be edited so: " + "; ".join(f"{error.field} {error.problem}" for error in errors[:3]) + "."
    said = [f"{len(lines)} {'difference' if len(lines) == 1 else 'differences'}"]
    if voided:
        said.append(f"{len(voided)} given for the old input will not count")
    if landed := [effect.name for effect in effects if effect.status == "landed"]:
        said.append(f"what landed is kept: {', '.join(landed)}")
    return "; ".join(said) + "."
