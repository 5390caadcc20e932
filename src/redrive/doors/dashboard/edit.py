"""Other inputs for dead letters: a new input for one, or one JSON merge patch for many, previewed while written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from redrive.core.change import Edit, decode
from redrive.core.json_keys import RepeatedKey, unique
from redrive.core.redact import redact
from redrive.deadletters.input_edits import patch_between, restore_masked
from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import go_to, render_page
from redrive.doors.dashboard.requests import ChosenDeadLetters, Form, make_filters, make_scope, read_choice, split_scope
from redrive.errors import InvalidInput
from redrive.retries.changes.difference import same

if TYPE_CHECKING:
    from starlette.responses import Response

    from redrive.api.redrive import Redrive
    from redrive.core.job import Job, Json
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import PageRequest

CANARY: Final = 5
"""Dead letters that go first where many are redriven; the rest follows if they succeed."""
MOST_ROWS: Final = 32
MOST_PATCH_ROWS: Final = 12
NOTHING_SELECTED: Final = "Nothing is selected. Pick some dead letters, or tick all of them."


# -- one dead letter


async def show_editor(request: PageRequest) -> Values:
    job = await request.rd.jobs.get(request.path_params["id"])
    text = _write_json(redact(read_input(job)))
    return await _load_editor(request.rd, job, text, Form())


async def preview_edit(request: PageRequest, form: Form) -> Response:
    """Show what the text means now, while it is being written."""
    job, text = await request.rd.jobs.get(request.path_params["id"]), form.get("payload", "")
    values = await _load_editor(request.rd, job, text, form)
    return await render_page(request, "edit.html", section="dead_letters", **values)


async def edit_job(request: PageRequest, form: Form) -> Response:
    """Redrive a dead letter with its new input. A refused input is shown again, with what was written kept."""
    rd, text, repeat = request.rd, form.get("payload", ""), form.all("repeat")
    job = await rd.jobs.get(request.path_params["id"])
    values = await _load_editor(rd, job, text, form)
    if values["preview"] is None or not values["preview"].ok:
        return await render_page(request, "edit.html", status=422, section="dead_letters", **values)
    await rd.dead.edit(job.id, _read_payload(text, job), repeat=repeat, **request.sign(form))
    undo = request.address("undo", id=job.id) if not repeat else None
    return go_to(request, request.address("job", id=job.id), "Edited and redriven: it waits for a worker.", undo=undo)


async def _load_editor(rd: Redrive, job: Job, text: str, form: Form) -> Values:
    """Load what the editor shows: the text, and what `rd.dead.preview_edit` says of it or why it cannot be asked."""
    values: Values = {
        "job": job,
        "text": text,
        "why": form.text("why") or "",
        "repeat": form.all("repeat"),
        "rows": min(MOST_ROWS, text.count("\n") + 4),
        "alike": (await rd.dead.matching("edit", fingerprint=job.fingerprint)) if job.fingerprint else 0,
    }
    try:
        payload = _read_payload(text, job)
        preview = await rd.dead.preview_edit(job.id, payload)
    except InvalidInput as error:
        return {**values, "preview": None, "problem": words.sentence(str(error)), "unchanged": False}
    return {**values, "preview": preview, "problem": None, "unchanged": same(payload, read_input(job))}


def read_input(job: Job) -> dict[str, Json]:
    """Read the input as it was enqueued, or as it was edited last; other changes apply on top of either."""
    edits = [change for change in decode(job.changes_json) if isinstance(change, Edit)]
    return edits[-1].payload if edits else job.arguments


def _read_payload(text: str, job: Job) -> dict[str, Json]:
    """Read a new input, with the secrets of the old one behind its masks."""
    payload: dict[str, Json] = restore_masked(_read_object("payload", text, "{…}"), read_input(job))
    return payload


def _read_object(field: str, text: str, example: str) -> dict[str, Json]:
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except RepeatedKey as error:
        raise InvalidInput(field=field, problem=str(error)) from None
    except ValueError as error:
        raise InvalidInput(field=field, problem=f"is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput(field=field, problem="is nested too deeply") from None
    if not isinstance(value, dict):
        raise InvalidInput(field=field, problem=f"must be a JSON object: {example}")
    return value


def _write_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


# -- many dead letters


async def show_patch_editor(request: PageRequest) -> Response:
    """Show an empty patch, beside the input of one of the dead letters."""
    return await _show_patch(request, read_choice(request.query_params), "", Form())


async def preview_patch(request: PageRequest, form: Form) -> Response:
    """Show what the patch means now, while it is being written."""
    return await _show_patch(request, read_choice(form), form.get("patch", ""), form)


async def make_patch(request: PageRequest, form: Form) -> Response:
    """Turn what was changed in the editor of one job into a patch for all of its group."""
    job = await request.rd.jobs.get(request.path_params["id"])
    if job.fingerprint is None:
        raise InvalidInput(field="group", problem="this job belongs to no group: edit it alone")
    patch = patch_between(read_input(job), _read_payload(form.get("payload", ""), job))
    if patch is None:
        raise InvalidInput(field="payload", problem="a patch for many cannot set a field to null; it removes it")
    if redact(patch) != patch:
        raise InvalidInput(field="payload", problem="what changed looks like a secret: edit this job alone")
    choice = ChosenDeadLetters({"group": job.fingerprint}, all=True)
    return await _show_patch(request, choice, _write_json(patch) if patch else "", form)


async def patch_many(request: PageRequest, form: Form) -> Response:
    """Start a run that edits and redrives each dead letter. A refused patch is shown again, as it was written."""
    rd, choice, text = request.rd, read_choice(form), form.get("patch", "")
    scope = await make_scope(rd, choice)
    preview = await _preview_patch(rd, choice, text)
    if preview["problem"] is not None or not preview["preview"].changing:
        return await _show_patch(request, choice, text, form, status=422)
    which = split_scope(scope)
    run = await rd.dead.edit_many(_read_patch(text), **which, **form.run_options(), **request.sign(form))
    text = f"Started with {words.counted(run.total, 'dead letter')}: what has not run yet can be taken back."
    return go_to(request, request.address("redrive", id=run.id), text)


async def _show_patch(
    request: PageRequest, choice: ChosenDeadLetters, text: str, form: Form, status: int = 200
) -> Response:
    rd = request.rd
    if choice.nothing:
        return go_to(request, request.address("dead_letters", query=choice.filters), NOTHING_SELECTED, kind="bad")
    preview, sample = await _preview_patch(rd, choice, text), await _find_sample(rd, choice)
    scope = await make_scope(rd, choice)
    number = await rd.dead.matching("edit", scope.pop("ids", ()), **scope)
    return await render_page(
        request,
        "edit_many.html",
        status=status,
        section="dead_letters",
        choice=choice,
        text=text,
        sample=sample,
        title=f"Edit {words.counted(number, 'dead letter')} in the same way",
        input=_write_json(redact(read_input(sample))) if sample is not None else "",
        why=form.text("why") or "",
        rows=max(4, min(MOST_PATCH_ROWS, text.count("\n") + 2)),
        canary=CANARY if number > 2 * CANARY else 0,
        **preview,
    )


async def _find_sample(rd: Redrive, choice: ChosenDeadLetters) -> Job | None:
    """Find one of the dead letters, to show what an input looks like."""
    if choice.picked:
        return await rd.jobs.get(choice.ids[0])
    page = await rd.dead.list(limit=1, **await make_filters(rd, choice))
    return await rd.jobs.get(page.jobs[0].id) if page.jobs else None


async def _preview_patch(rd: Redrive, choice: ChosenDeadLetters, text: str) -> Values:
    """Preview what the patch would do to each dead letter, or say why that is not possible."""
    if not text.strip():
        return {"preview": None, "problem": None}
    try:
        scope = await make_scope(rd, choice)
        preview = await rd.dead.preview_edit_many(_read_patch(text), **split_scope(scope))
    except InvalidInput as error:
        return {"preview": None, "problem": words.capitalise(str(error))}
    return {"preview": preview, "problem": None}


def _read_patch(text: str) -> dict[str, Json]:
    return _read_object("patch", text, '{"field": value}')
