"""The same change for many dead letters: written as a JSON merge patch, judged while it is written, then one run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from redrive.core.json_keys import RepeatedKey, unique
from redrive.core.redact import redact
from redrive.deadletters.merge_patch import patch_between
from redrive.doors.dashboard import choosing, words
from redrive.doors.dashboard.choosing import Choice
from redrive.doors.dashboard.editing import as_edited, read_payload
from redrive.doors.dashboard.numbers import number_of, pass_rate_of, whole_of
from redrive.doors.dashboard.rendering import Site, address, form_of, page, rd_of, to, who
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive
    from redrive.core.job import Job, Json
    from redrive.doors.dashboard.rendering import Form

CANARY: Final = 5
ROWS: Final = 12


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/dead/edit", editor, "edit_many"),
        site.route("/dead/edit", edit, "edit_many", post=True),
        site.route("/dead/edit/preview", preview, "edit_many_preview", post=True),
        site.route("/jobs/{id}/edit/all", from_one, "edit_all_like", post=True),
    ]


async def editor(request: Request) -> Response:
    """An empty patch, beside the input of one of them."""
    return await _shown(request, choosing.read(request.query_params), "")


async def preview(request: Request) -> Response:
    """What the patch means now, while it is being written. Changes nothing."""
    form = await form_of(request)
    return await _shown(request, choosing.read(form), form.get("patch", ""), form)


async def from_one(request: Request) -> Response:
    """What was changed in the editor of one job, as a patch for all of its group."""
    rd, form = rd_of(request), await form_of(request)
    job = await rd.jobs.get(request.path_params["id"])
    if job.fingerprint is None:
        raise InvalidInput(field="group", problem="this job belongs to no group: edit it alone")
    choice = Choice({"group": job.fingerprint}, all=True)
    before = as_edited(job)
    patch = patch_between(before, read_payload(form.get("payload", ""), job))
    if patch is None:
        raise InvalidInput(field="payload", problem="a patch for many cannot set a field to null; it removes it")
    if redact(patch) != patch:
        raise InvalidInput(field="payload", problem="what changed looks like a secret: edit this job alone")
    text = json.dumps(patch, indent=2, ensure_ascii=False) if patch else ""
    return await _shown(request, choice, text, form)


async def edit(request: Request) -> Response:
    """Refused where it stands, with what was written kept."""
    form = await form_of(request)
    choice = choosing.read(form)
    scope = await choosing.scope(rd_of(request), choice)
    return await start(request, form, choice, scope, {"who": who(request), "why": form.text("why")})


async def start(request: Request, form: Form, choice: Choice, scope: dict[str, Any], said: dict[str, Any]) -> Response:
    rd, text = rd_of(request), form.get("patch", "")
    known = await _previewed(rd, choice, text)
    if known["problem"] is not None or not known["preview"].changing:
        return await _shown(request, choice, text, form, status=422)
    which = {name: scope.pop(name) for name in ("ids", "all") if name in scope}
    run = await rd.dead.edit_many(
        read_patch(text), **which, where=scope, canary=whole_of(form, "canary") or 0, pass_rate=pass_rate_of(form),
        rate=number_of(form, "rate"), token=form.text("token"), **said,
    )  # fmt: skip
    told = f"Started with {words.counted(run.total, 'dead letter')}: what has not run yet can be taken back."
    return to(request, address(request, "redrive", id=run.id), told)


async def _shown(request: Request, choice: Choice, text: str, form: Form | None = None, status: int = 200) -> Response:
    rd = rd_of(request)
    if choice.nothing:
        letters = address(request, "letters", query=choice.said)
        return to(request, letters, "Nothing is selected. Pick some letters, or tick all of them.", kind="bad")
    known, sample = await _previewed(rd, choice, text), await _sample(rd, choice)
    scope = await choosing.scope(rd, choice)
    number = await rd.dead.matching("edit", scope.pop("ids", ()), **scope)
    return await page(
        request, "edit_many.html", status=status, section="letters", choice=choice, text=text, sample=sample,
        title=f"Edit {words.counted(number, 'dead letter')} in the same way",
        input=json.dumps(redact(as_edited(sample)), indent=2, ensure_ascii=False) if sample is not None else "",
        why=form.text("why") or "" if form is not None else "", rows=max(4, min(ROWS, text.count("\n") + 2)),
        canary=CANARY if number > 2 * CANARY else 0, **known,
    )  # fmt: skip


async def _sample(rd: Redrive, choice: Choice) -> Job | None:
    """One of them, to see what its input looks like."""
    if choice.ids and not choice.all:
        return await rd.jobs.get(choice.ids[0])
    found = await rd.dead.list(limit=1, **await choosing.filters(rd, choice))
    return await rd.jobs.get(found.jobs[0].id) if found.jobs else None


async def _previewed(rd: Redrive, choice: Choice, text: str) -> dict[str, Any]:
    """What the patch would do to each of them, or why that cannot be told."""
    if not text.strip():
        return {"preview": None, "problem": None}
    try:
        scope = await choosing.scope(rd, choice)
        which = {name: scope.pop(name) for name in ("ids", "all") if name in scope}
        return {"preview": await rd.dead.preview_edit_many(read_patch(text), **which, where=scope), "problem": None}
    except InvalidInput as error:
        said = str(error)
        return {"preview": None, "problem": said[:1].upper() + said[1:]}


def read_patch(text: str) -> dict[str, Json]:
    """A JSON object with the fields to change."""
    try:
        found = json.loads(text, object_pairs_hook=unique)
    except RepeatedKey as error:
        raise InvalidInput(field="patch", problem=str(error)) from None
    except ValueError as error:
        raise InvalidInput(field="patch", problem=f"is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput(field="patch", problem="is nested too deeply") from None
    if not isinstance(found, dict):
        raise InvalidInput(field="patch", problem='must be a JSON object: {"field": value}')
    return found
