"""Before an edit: what it would mean, field by field. Reads; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core.changes import apply, decode, diff
from redrive.core.consent import ANY_AGENT, Approval, Grant, subject_of
from redrive.core.effects import EffectRecord
from redrive.core.job import Job, Json
from redrive.core.payload import encode
from redrive.core.redact import redact
from redrive.core.triage import EditPreview, EffectChoice, FieldError, field_error, taint_of
from redrive.core.workflow import OUTPUT
from redrive.errors import InvalidInput
from redrive.runtime.consents import KIND as GRANT
from redrive.runtime.consents import quoted
from redrive.runtime.workflow import is_step

if TYPE_CHECKING:
    from redrive.app import Redrive


async def preview(app: Redrive, id: str, payload: Mapping[str, Json]) -> EditPreview:
    """What an edit would mean, field by field. Changes nothing."""
    job = await app.jobs.get(id)
    errors = _errors(app, job, payload)
    lines = [] if any(error.field == "payload" for error in errors) else _difference(app, job, payload)
    if not errors and not lines:
        errors = [FieldError("payload", "is the same as before")]
    voided = await _voided(app, job)
    effects = await _effects(app, job)
    ok = not errors
    text = _summary(errors, lines, voided, effects)
    return EditPreview(job.id, job.task, ok, text, lines, errors, voided, effects, taint_of(job, dict(payload)))


def _errors(app: Redrive, job: Job, payload: Mapping[str, Json]) -> list[FieldError]:
    try:
        encoded = encode(payload, limit=app.settings.payload_limit)
    except InvalidInput as error:
        return [FieldError(error.field, error.problem)]
    if encoded.blobs:
        return [FieldError("payload", "a Blob cannot be edited in; enqueue a new job for it")]
    handler = app.registry.handlers.get(job.task)
    if handler is None or (is_step(job) and OUTPUT in encoded.text):
        return []
    errors = [
        FieldError(name, "is not a parameter of the task") for name in payload if name not in handler.signature.names
    ]
    try:
        handler.signature.arguments(encoded.text)
    except InvalidInput as error:
        first = field_error(error.problem)
        return [first, *(one for one in errors if one.field != first.field)]
    return []


def _difference(app: Redrive, job: Job, payload: Mapping[str, Json]) -> list[str]:
    """Against what the next run would be given as it stands, with what looks like a secret masked."""
    handler = app.registry.handlers.get(job.task)
    adapt, count = handler.adapt if handler else None, app.registry.count
    names = frozenset(name for name in ("model", "agent") if getattr(job, name) is not None)
    now = apply(job.arguments, decode(job.changes_json), adapt, count, names=names).payload
    lines = diff(redact(now), redact(dict(payload)), adapt=adapt, count=count)
    return lines or (["a value that is not shown was changed"] if diff(now, dict(payload)) else [])


async def _voided(app: Redrive, job: Job) -> list[str]:
    """Consents and approvals that are bound to the input as it is."""
    found = []
    now, subject = app.clock.now(), subject_of(job)
    for document in await app.store.docs("approval", f"{job.id}/"):
        approval = msgspec.json.decode(document.value, type=Approval)
        if approval.answer == "approved":
            found.append(f"the approval by {approval.by}: {approval.question}")
    if job.session_id is not None:
        for document in await app.store.docs(GRANT, f"{quoted(job.session_id)}/"):
            grant = msgspec.json.decode(document.value, type=Grant)
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
    found = []
    for document in await app.store.docs("effect", f"{job.id}/"):
        effect = msgspec.json.decode(document.value, type=EffectRecord)
        found.append(EffectChoice(effect.name, effect.status, _THEN[effect.status]))
    return found


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
