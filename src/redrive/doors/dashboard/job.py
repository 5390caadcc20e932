"""One job: where it stands, the one thing to do next, its story, what it was given and what it did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from redrive.app.following import result_text
from redrive.core.changes.change import Edit, decode
from redrive.core.changes.difference import same
from redrive.core.consent import Approval
from redrive.core.effects import EffectRecord
from redrive.core.job import Job, Json, State
from redrive.core.redact import redact
from redrive.core.triage import EditPreview
from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import Site, address, back, form_of, page, rd_of, to, who
from redrive.doors.dashboard.tree import tree
from redrive.errors import InvalidInput
from redrive.insight import story
from redrive.insight.comparison import Comparison, compare
from redrive.insight.masked import unmasked

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from redrive.app import Redrive
    from redrive.core.job import Attempt
    from redrive.doors.dashboard.rendering import Form

QUESTIONS: Final = {
    "redrive": "Back to its queue: same id, key and history; fresh attempts where they were used up.",
    "reassign": "Back to its queue, to be done by another agent.",
    "defer": "Out of the way until then; whoever is named sees to it.",
    "recall": "A dead letter again, to be seen to now.",
    "move_lane": "Where it waits, and whether it comes back by itself.",
    "landed": "You looked outside, and its effect is there. The job is done; nothing runs again.",
    "not_landed": "You looked outside, and nothing is there. Its open effects count as absent, and it runs again.",
    "approve": "Yes to exactly this. It goes on.",
    "reject": "No. It does not do what it asked for.",
    "discard": "It is let go. You can bring it back.",
    "restore": "A dead letter again, waiting for a person.",
    "cancel": "It is no longer wanted. A running task is told; what it still says does not count.",
}
EFFECTS: Final = {
    "landed": "kept: a replay uses its result",
    "absent": "done by the next run",
    "intended": "looked for before anything is done again",
    "unknown": "looked for before anything is done again",
}
MOST_ROWS: Final = 32
DIFFERENCES: Final = 60
DIFFERENCES_SHOWN: Final = 4
"""So many are shown at once; the others open on request."""


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/jobs/{id}", shown, "job"),
        site.route("/jobs/{id}/edit", editor, "job_edit"),
        site.route("/jobs/{id}/preview", preview, "job_preview", post=True),
        site.route("/jobs/{id}/download/{part}", download, "job_download"),
        site.route("/jobs/{id}/act/{verb}", act, "job_act", post=True),
    ]


# -- looking


async def shown(request: Request) -> Response:
    rd = rd_of(request)
    job = await rd.jobs.get(request.path_params["id"])
    asked = await rd.sessions.questions(job)
    told = story.tell(job, await rd.jobs.story(job.id), rd.clock.now(), await rd.dead.notes(job.id))
    effects = await rd.jobs.effects(job.id)
    return await page(
        request, "job.html", section="letters", job=job, told=told, questions=QUESTIONS, facts=facts(job),
        group=await _group(rd, job), agents=sorted(rd.registry.fleet.agents),
        other_lane="manual" if job.lane == "delayed" else "delayed", asked=_open(job, asked),
        answered=[one for one in asked if one.answer != "open"],
        effects=[(effect, then(effect)) for effect in effects],
        payload=tree(redact(job.arguments)) if job.payload else None, result=await _result(rd, job),
        **await _compared(rd, job, request),
    )  # fmt: skip


def then(effect: EffectRecord) -> str:
    return EFFECTS[effect.status]


async def _group(rd: Redrive, job: Job) -> Any:
    """The trouble it has, or had last."""
    fingerprint = job.fingerprint or next((one.fingerprint for one in reversed(job.history) if one.fingerprint), None)
    found = await rd.store.groups(fingerprints=[fingerprint]) if fingerprint else []
    return found[0] if found else None


def _open(job: Job, asked: Sequence[Approval]) -> Approval | None:
    """The question that it waits for."""
    if job.state is not State.held or job.because != "approval":
        return None
    return next((one for one in reversed(asked) if one.answer == "open"), None)


async def _result(rd: Redrive, job: Job) -> Any:
    text = await result_text(rd, job) if job.result is not None else None
    return tree(redact(json.loads(text))) if text else None


def facts(job: Job) -> list[tuple[str, str | None]]:
    allowed = f" of {job.allowed}" if job.allowed is not None else ""
    options = job.options
    flow = f"{options.step} in {options.workflow[-8:]}" if options.workflow else None
    return [
        ("Id", job.id),
        ("Queue", f"{job.queue}, {job.priority_name}"),
        ("Attempts", f"{job.attempts}{allowed}"),
        ("Agent", job.agent),
        ("Model", job.model),
        ("Owner", job.owner),
        ("Session", job.session_id),
        ("Key", job.key),
        ("Kind of failure", ", ".join(dict.fromkeys(filter(None, (job.category, job.detail)))).replace("_", " ")),
        ("Lane", job.lane if job.state is State.dead else None),
        ("Waits for", job.held_for if job.because in ("consent", "circuit_open", "blocked") else None),
        ("Step", flow),
        ("Came by", job.reason if job.reason != "direct" else None),
        ("Created", words.exact(job.created_at)),
        ("Died", words.exact(job.died_at) if job.state is State.dead else None),
        ("Changed", words.exact(job.updated_at)),
        ("Crashes", str(job.crashes) if job.crashes else None),
    ]


async def _compared(rd: Redrive, job: Job, request: Request) -> dict[str, Any]:
    """Two runs' inputs: those that were asked for, else the first and the last."""
    attempts = {attempt.run: attempt for attempt in job.history}
    runs = sorted(attempts)
    if len(runs) < 2 or not job.payload:
        return {"compared": None, "runs": runs}
    one, other = _run(request, "one", runs, runs[0]), _run(request, "other", runs, runs[-1])
    inputs = await rd.dead.inputs(job.id)
    found: Comparison = compare(inputs[one], inputs[other], DIFFERENCES)
    return {"compared": found, "runs": runs, "one": one, "other": other,
            "differences_shown": DIFFERENCES_SHOWN,
            "by_whom": by_whom(attempts[one], attempts[other])}  # fmt: skip


def _run(request: Request, name: str, runs: Sequence[int], otherwise: int) -> int:
    said = request.query_params.get(name, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 9 and int(said) in runs else otherwise


def by_whom(one: Attempt, other: Attempt) -> list[str]:
    names = (("agent", one.agent, other.agent), ("model", one.model, other.model))
    return [f"{name}: {before or 'none'} → {after or 'none'}" for name, before, after in names if before != after]


async def download(request: Request) -> Response:
    """A file, never a page: what a browser would make of it does not matter."""
    rd, part = rd_of(request), request.path_params["part"]
    job = await rd.jobs.get(request.path_params["id"])
    if part not in ("payload", "result"):
        raise InvalidInput(field="part", problem="there are payload and result")
    text = job.payload if part == "payload" else await result_text(rd, job)
    body = json.dumps(redact(json.loads(text)) if text else None, indent=2, ensure_ascii=False)
    headers = {
        "content-disposition": f'attachment; filename="{job.id[-8:]}-{part}.json"',
        "x-content-type-options": "nosniff", "cache-control": "no-store",
    }  # fmt: skip
    return Response(body.encode("utf-8", "surrogatepass"), media_type="application/json", headers=headers)


# -- editing


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
    try:
        payload = read_payload(text, job)
        found: EditPreview = await rd.dead.preview_edit(job.id, payload)
    except InvalidInput as error:
        return {"preview": None, "problem": _sentence(str(error)), "unchanged": False}
    return {"preview": found, "problem": None, "unchanged": same(payload, as_edited(job))}


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith(".") else f"{said}."


def read_payload(text: str, job: Job) -> dict[str, Json]:
    """A JSON object, with the secrets behind its masks."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(field="payload", problem=f"is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput(field="payload", problem="is nested too deeply") from None
    if not isinstance(found, dict):
        raise InvalidInput(field="payload", problem="must be a JSON object: {…}")
    restored: dict[str, Json] = unmasked(found, as_edited(job))
    return restored


# -- acting


async def act(request: Request) -> Response:
    """One verb on this job; the story says who and why, and the line on top how to take it back."""
    rd, form, verb = rd_of(request), await form_of(request), request.path_params["verb"]
    id, said = request.path_params["id"], {"who": who(request), "why": form.text("why")}
    if verb == "edit":
        return await _edit(request, form, said)
    if verb not in VERBS:
        raise InvalidInput(field="verb", problem=f"{verb!r} is nothing that can be done with a job")
    job = await rd.jobs.get(id)
    text = await VERBS[verb](rd, job.id, form, said)
    return back(request, text, undo=address(request, "undo", id=job.id) if verb in UNDOABLE else None)


async def _edit(request: Request, form: Form, said: dict[str, Any]) -> Response:
    """Refused where it stands, with what was written kept."""
    rd, text = rd_of(request), form.get("payload", "")
    job = await rd.jobs.get(request.path_params["id"])
    known = await _previewed(rd, job, text)
    if known["preview"] is None or not known["preview"].ok:
        return await page(
            request, "edit.html", status=422, section="letters", job=job, text=text, why=said["why"] or "",
            repeat=form.all("repeat"), rows=min(MOST_ROWS, text.count("\n") + 4), **known,
        )  # fmt: skip
    await rd.dead.edit(job.id, read_payload(text, job), repeat=form.all("repeat"), **said)
    undo = address(request, "undo", id=job.id) if not form.all("repeat") else None
    return to(request, address(request, "job", id=job.id), "Edited and redriven: it waits for a worker.", undo=undo)


Said = dict[str, Any]


async def _redrive(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.dead.redrive(id, **said)
    return "Redriven: it waits for a worker."


async def _reassign(rd: Redrive, id: str, form: Form, said: Said) -> str:
    agent = form.text("agent") or ""
    await rd.dead.reassign(id, agent=agent, **said)
    return f"Reassigned: it waits for {agent}."


async def _defer(rd: Redrive, id: str, form: Form, said: Said) -> str:
    owner, days = form.text("owner") or "", days_of(form)
    await rd.dead.defer(id, owner=owner, until=timedelta(days=days), **said)
    return f"Deferred to {owner}: it is back in {words.counted(days, 'day')}."


async def _recall(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.dead.recall(id, **said)
    return "A dead letter again."


async def _move_lane(rd: Redrive, id: str, form: Form, said: Said) -> str:
    lane = form.text("lane") or ""
    await rd.dead.move_lane(id, lane, **said)
    return f"In the {lane} lane."


async def _discard(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.dead.discard(id, **said)
    return "Discarded."


async def _restore(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.dead.restore(id, **said)
    return "A dead letter again."


async def _approve(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.jobs.approve(id, **said)
    return "Approved: it goes on."


async def _reject(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.jobs.reject(id, **said)
    return "Rejected."


async def _cancel(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.jobs.cancel(id, **said)
    return "Cancelled."


async def _landed(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.jobs.resolve(id, landed=True, **_known(said))
    return "Done: its effect landed."


async def _not_landed(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.jobs.resolve(id, landed=False, **_known(said))
    return "It runs again; its open effects count as absent."


def _known(said: Said) -> Said:
    if not said["why"]:
        raise InvalidInput(field="why", problem="say how you know; it stays with the job")
    return said


async def _note(rd: Redrive, id: str, form: Form, said: Said) -> str:
    await rd.dead.note(id, form.text("text") or "", who=said["who"])
    return "Noted."


def days_of(form: Form) -> int:
    days = form.text("days") or "1"
    if not (days.isascii() and days.isdigit()) or not 0 < int(days) <= 366:
        raise InvalidInput(field="days", problem=f"{days!r} is not from 1 to 366")
    return int(days)


UNDOABLE: Final = ("redrive", "reassign", "defer", "recall", "move_lane", "discard", "restore", "note")
VERBS: Final = {
    "redrive": _redrive,
    "reassign": _reassign,
    "defer": _defer,
    "recall": _recall,
    "move_lane": _move_lane,
    "discard": _discard,
    "restore": _restore,
    "approve": _approve,
    "reject": _reject,
    "cancel": _cancel,
    "landed": _landed,
    "not_landed": _not_landed,
    "note": _note,
}
