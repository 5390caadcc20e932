"""Another input for a dead letter: written as JSON, judged while it is written, and redriven with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from redrive.core.change import Edit, decode
from redrive.core.job import Job, Json
from redrive.core.json_keys import RepeatedKey, unique
from redrive.core.redact import redact
from redrive.deadletters.masked_input import unmasked
from redrive.deadletters.triage import EditPreview
from redrive.doors.dashboard.rendering import Site, address, form_of, page, rd_of, to, who
from redrive.errors import InvalidInput
from redrive.retries.changes.difference import same

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive

MOST_ROWS: Final = 32


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/jobs/{id}/edit", editor, "job_edit"),
        site.route("/jobs/{id}/edit", edit, "job_edit", post=True),
        site.route("/jobs/{id}/preview", preview, "job_preview", post=True),
    ]


async def editor(request: Request) -> Response:
    rd = rd_of(request)
    job = await rd.jobs.get(request.path_params["id"])
    text = json.dumps(redact(as_edited(job)), indent=2, ensure_ascii=False)
    known = await _previewed(rd, job, text)
    return await page(
        request, "edit.html", section="letters", job=job, text=text, why="", repeat=(),
        rows=min(MOST_ROWS, text.count("\n") + 4), **known,
    )  # fmt: skip


def as_edited(job: Job) -> dict[str, Json]:
    """The input as it was enqueued, or as somebody edited it last; other changes apply on top of either."""
    edits = [change for change in decode(job.changes_json) if isinstance(change, Edit)]
    return edits[-1].payload if edits else job.arguments


async def preview(request: Request) -> Response:
    """What the text means now, while it is being written."""
    rd, form = rd_of(request), await form_of(request)
    job = await rd.jobs.get(request.path_params["id"])
    known = await _previewed(rd, job, form.get("payload", ""))
    return await page(
        request, "edit.html", section="letters", job=job, text=form.get("payload", ""), why=form.text("why") or "",
        repeat=form.all("repeat"), rows=MOST_ROWS, **known,
    )  # fmt: skip


async def _previewed(rd: Redrive, job: Job, text: str) -> dict[str, Any]:
    """What `rd.dead.preview_edit` says, or why it cannot be asked."""
    alike = (await rd.dead.matching("edit", fingerprint=job.fingerprint)) if job.fingerprint else 0
    try:
        payload = read_payload(text, job)
        found: EditPreview = await rd.dead.preview_edit(job.id, payload)
    except InvalidInput as error:
        return {"preview": None, "problem": _sentence(str(error)), "unchanged": False, "alike": alike}
    return {"preview": found, "problem": None, "unchanged": same(payload, as_edited(job)), "alike": alike}


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith(".") else f"{said}."


def read_payload(text: str, job: Job) -> dict[str, Json]:
    """A JSON object, with the secrets behind its masks."""
    try:
        found = json.loads(text, object_pairs_hook=unique)
    except RepeatedKey as error:
        raise InvalidInput(field="payload", problem=str(error)) from None
    except ValueError as error:
        raise InvalidInput(field="payload", problem=f"is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput(field="payload", problem="is nested too deeply") from None
    if not isinstance(found, dict):
        raise InvalidInput(field="payload", problem="must be a JSON object: {…}")
    restored: dict[str, Json] = unmasked(found, as_edited(job))
    return restored


async def edit(request: Request) -> Response:
    """Refused where it stands, with what was written kept."""
    rd, form = rd_of(request), await form_of(request)
    text, why = form.get("payload", ""), form.text("why")
    job = await rd.jobs.get(request.path_params["id"])
    known = await _previewed(rd, job, text)
    if known["preview"] is None or not known["preview"].ok:
        return await page(
            request, "edit.html", status=422, section="letters", job=job, text=text, why=why or "",
            repeat=form.all("repeat"), rows=min(MOST_ROWS, text.count("\n") + 4), **known,
        )  # fmt: skip
    await rd.dead.edit(job.id, read_payload(text, job), repeat=form.all("repeat"), who=who(request), why=why)
    undo = address(request, "undo", id=job.id) if not form.all("repeat") else None
    return to(request, address(request, "job", id=job.id), "Edited and redriven: it waits for a worker.", undo=undo)
