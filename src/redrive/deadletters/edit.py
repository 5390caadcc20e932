"""Edits the input of dead letters: previews an edit field by field, and redrives the job with the new input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core import lifecycle
from redrive.core.commit import commit_in_parts
from redrive.core.consent import ANY_AGENT, subject_of
from redrive.core.documents import GRANT
from redrive.core.job import Job, Json
from redrive.core.store import Filter
from redrive.deadletters.bulk_progress import reasons
from redrive.deadletters.filters import filter_of_many, means_unknown
from redrive.deadletters.input_edits import (
    EditPreview,
    EffectChoice,
    FieldError,
    PatchError,
    PatchPreview,
    PatchSample,
    apply_patch,
    field_error,
    fields_of,
    taint_of,
)
from redrive.deadletters.orders import (
    Order,
    carry_out,
    check_fits,
    check_order,
    difference,
    list_forgotten,
    make_order,
    text_of,
)
from redrive.deadletters.redrives.selection import filter_in_words, judge_job, select, token_of_seal, without_id
from redrive.deadletters.triage import GONE
from redrive.deadletters.verbs import VERBS, input_now
from redrive.engine.approvals import read_approvals_of
from redrive.engine.consents import quote_session
from redrive.engine.effects import read_effects
from redrive.errors import InvalidInput, JobError
from redrive.jobs.core import DEFAULT_WHO, find_job

if TYPE_CHECKING:
    from redrive.deadletters.redrives import Redrives
    from redrive.jobs.core import Core

SAMPLES: Final = 5
DIFFERENCES: Final = 12
"""Number of lines that a sample shows."""
ERRORS: Final = 20
MOST_JUDGED: Final = 1_000
"""If a filter matches more dead letters than this, a preview judges only the first ones."""
FIRST: Final = 50
"""Number of dead letters that a preview of such a filter judges."""


async def preview(core: Core, id: str, payload: Mapping[str, Json]) -> EditPreview:
    """Previews an edit, field by field. Changes nothing."""
    job = await find_job(core.store, id)
    errors = _errors(core, job, payload) or await _refusal(core, job, payload)
    unusable = any(error.field == "payload" for error in errors)
    lines = [] if unusable else difference(core, job, payload)
    voided = await _list_voided(core, job)
    effects = await _effects(core, job)
    ok = not errors
    text = _summary(errors, lines, voided, effects)
    given = {} if unusable else dict(payload)
    return EditPreview(job.id, job.task, ok, text, lines, errors, voided, effects, taint_of(job, given))


async def edit(core: Core, id: str, order: Order, repeat: Sequence[str]) -> Job:
    """Edits one dead letter and redrives it. Checks first, so that a refused edit drops no remembered steps."""
    job = await check_order(core, order, id)
    puts, gone = await list_forgotten(core.store, job, repeat)
    if gone:
        order = order._replace(words={**order.words, GONE: len(gone)})
    await commit_in_parts(core.store, gone, what=f"the steps of job {job.short_id} were forgotten")
    return await carry_out(core, order, job.id, puts)


# -- edits of many


class _Tally:
    """Counts what a patch would do, job by job; keeps only a few samples of the jobs."""

    def __init__(self, core: Core, patch: dict[str, Json], *, unknown_too: bool) -> None:
        self._core, self.patch, self._unknown_too = core, patch, unknown_too
        self._order = make_order(core, VERBS["edit"], {"patch": patch}, DEFAULT_WHO, None)
        self._now = core.clock.now()
        self.samples: list[PatchSample] = []
        self.changed: list[Job] = []
        self.changing = 0
        self.errors: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()

    def judge(self, job: Job) -> None:
        payload = apply_patch(input_now(job), self.patch)
        if isinstance(payload, dict) and (wrong := _errors(self._core, job, payload)):
            self.errors.update({(error.field, error.problem) for error in wrong})
            return
        dead = (
            lifecycle.recalled(job, self._now, who=DEFAULT_WHO, why=None).after(job.version)
            if lifecycle.is_deferred(job)
            else job
        )
        decided = judge_job(self._order, dead, self._now, unknown_too=self._unknown_too)
        if isinstance(decided, str):
            self.refused[without_id(decided, job).removeprefix("payload: ")] += 1
            return
        self.changing += 1
        if len(self.samples) < SAMPLES:
            self.changed.append(job)
            self.samples.append(PatchSample(job.id, job.task, difference(self._core, job, payload)[:DIFFERENCES]))


async def preview_many(
    core: Core, redrives: Redrives, patch: dict[str, Json], ids: Sequence[str], filters: Mapping[str, Any], *, all: bool
) -> PatchPreview:
    """Previews the patch for each of these dead letters. Changes nothing."""
    tally = _Tally(core, patch, unknown_too=means_unknown(ids, filters))
    chosen = filter_of_many("edit", ids, filters, all=all)
    if chosen is not None and sum((await core.store.count(chosen)).values()) > MOST_JUDGED:
        return await _preview_some(core, redrives, tally, chosen, filters)
    selection = await select(core, ids, filters, all=all, verb="edit", judge=tally.judge)
    running = await redrives.in_the_way(selection.fingerprints)
    return await _make_preview(core, tally, len(selection), selection.chosen, selection.token, running)


async def _preview_some(
    core: Core, redrives: Redrives, tally: _Tally, chosen: Filter, filters: Mapping[str, Any]
) -> PatchPreview:
    """Previews the patch for the oldest of many; an index counts the others, and their inputs are not read."""
    seal = await core.store.seal(chosen)
    groups = await core.store.count(chosen, by=("fingerprint",))
    running = await redrives.in_the_way([name for (name,) in groups if name is not None])
    page = await core.store.find(chosen, limit=FIRST, oldest=True)
    for job in page.jobs:
        tally.judge(job)
    preview = await _make_preview(core, tally, seal.number, filter_in_words(filters), token_of_seal(seal), running)
    return msgspec.structs.replace(preview, looked_at=len(page.jobs))


async def _make_preview(
    core: Core, tally: _Tally, number: int, chosen: str, token: str, running: list[str]
) -> PatchPreview:
    errors = [PatchError(field, problem, times) for (field, problem), times in tally.errors.most_common(ERRORS)]
    samples = [
        msgspec.structs.replace(sample, voided=await _list_voided(core, job))
        for sample, job in zip(tally.samples, tally.changed, strict=True)
    ]
    return PatchPreview(
        number,
        chosen,
        fields_of(tally.patch),
        tally.changing,
        samples,
        errors,
        reasons(tally.refused.elements()),
        token,
        running,
    )


# -- refusals


def _errors(core: Core, job: Job, payload: Mapping[str, Json]) -> list[FieldError]:
    """Lists why the input does not fit the task: all unknown fields at once, not only the first error."""
    try:
        text = text_of(core, payload)
    except InvalidInput as error:
        return [FieldError(error.field, error.problem)]
    try:
        check_fits(core, job, text)
    except InvalidInput as error:
        first, known = field_error(error.problem), core.registry.handlers[job.task].signature.names
        strange = [name for name in payload if name not in known and name != first.field]
        return [first, *(FieldError(name, "is not a parameter of the task") for name in strange)]
    return []


async def _refusal(core: Core, job: Job, payload: Mapping[str, Json]) -> list[FieldError]:
    """Explains why an edit would be refused although the input fits."""
    try:
        words = {"payload": dict(payload), "repeat": []}
        await check_order(core, make_order(core, VERBS["edit"], words, DEFAULT_WHO, None), job.id)
    except InvalidInput as error:
        return [FieldError(error.field, error.problem)]
    except JobError as error:
        return [FieldError("job", str(error).removeprefix("job "))]
    return []


# -- consequences


async def _list_voided(core: Core, job: Job) -> list[str]:
    """Lists the consents and approvals that are bound to the present input."""
    approvals = [one for one in await read_approvals_of(core.store, job.id) if one.answer == "approved"]
    voided = [f"the approval by {approval.by}: {approval.question}" for approval in approvals]
    now, subject = core.clock.now(), subject_of(job)
    if job.session_id is not None:
        for _, grant, _ in await GRANT.all(core.store, f"{quote_session(job.session_id)}/"):
            bound = grant.subject == subject or (grant.agent is not ANY_AGENT and grant.job_id == job.id)
            if bound and grant.revoked_at is None and (grant.expires_at is None or now < grant.expires_at):
                voided.append(f"the consent of {grant.by} to {grant.scope}")
    return voided


_THEN: Final = {
    "landed": "kept: it is not done again, unless you name it to be repeated",
    "absent": "done: nothing of it is there",
    "intended": "looked for first: it may have landed",
    "unknown": "looked for first: it may have landed",
}


async def _effects(core: Core, job: Job) -> list[EffectChoice]:
    effects = await read_effects(core.store, job.id)
    return [EffectChoice(effect.name, effect.status, _THEN[effect.status]) for effect in effects]


def _summary(
    errors: Sequence[FieldError], lines: Sequence[str], voided: Sequence[str], effects: Sequence[EffectChoice]
) -> str:
    if errors:
        return "It cannot be edited so: " + "; ".join(f"{error.field} {error.problem}" for error in errors[:3]) + "."
    parts = [f"{len(lines)} {'difference' if len(lines) == 1 else 'differences'}"]
    if voided:
        parts.append(f"{len(voided)} given for the old input will not count")
    if landed := [effect.name for effect in effects if effect.status == "landed"]:
        parts.append(f"what landed is kept: {', '.join(landed)}")
    return "; ".join(parts) + "."
