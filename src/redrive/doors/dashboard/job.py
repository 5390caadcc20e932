"""One job: where it stands, the one thing to do next, its story, what it was given and what it did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from redrive.core.consent import Approval
from redrive.core.effects import EffectRecord
from redrive.core.job import Job, State, legible
from redrive.core.redact import redact
from redrive.deadletters.verbs import VERBS
from redrive.doors.dashboard import editing, verbs, words
from redrive.doors.dashboard.rendering import Site, page, rd_of
from redrive.doors.dashboard.tree import tree
from redrive.errors import InvalidInput
from redrive.jobs.wait_for_job import result_text
from redrive.reports import timeline
from redrive.reports.needs import FOR_A_PERSON
from redrive.reports.run_diff import Comparison, compare
from redrive.reports.traceback_view import trace_link

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive
    from redrive.core.job import Attempt

EFFECTS: Final = {
    "landed": "kept: a replay uses its result",
    "absent": "done by the next run",
    "intended": "looked for before anything is done again",
    "unknown": "looked for before anything is done again",
}
DIFFERENCES: Final = 30
DIFFERENCES_SHOWN: Final = 4
"""So many are shown at once; the others open on request."""
SHOWN_VERBS: Final = 3
STORY_BEGIN: Final = 10
STORY_END: Final = 60
"""What a story began with and how it goes on now; where it is longer, its middle is shown on request."""


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/jobs/{id}", shown, "job"),
        site.route("/jobs/{id}/download/{part}", download, "job_download"),
        *editing.routes(site),
        *verbs.routes(site),
    ]


async def shown(request: Request) -> Response:
    rd = rd_of(request)
    job = await rd.jobs.get(request.path_params["id"])
    asked = await rd.sessions.questions(job)
    told = timeline.tell(job, await rd.jobs.story(job.id), rd.clock.now(), await rd.dead.notes(job.id))
    effects = await rd.jobs.effects(job.id)
    left_out = 0 if request.query_params.get("story") == "all" else len(told.entries) - STORY_BEGIN - STORY_END
    begin = told.entries[:STORY_BEGIN] if left_out > 0 else ()
    return await page(
        request, "job.html", section=section(job), job=job, told=told, questions=verbs.QUESTIONS, facts=facts(job),
        table=VERBS, shown=shown_verbs(len(told.choices)),
        begin=begin, end=told.entries[-STORY_END:] if begin else told.entries, left_out=left_out,
        group=await _group(rd, job), agents=sorted(rd.registry.fleet.agents),
        other_lane="manual" if job.lane == "delayed" else "delayed", asked=_open(job, asked),
        answered=[one for one in asked if one.answer != "open"],
        effects=[(effect, then(effect)) for effect in effects], trace_link=trace_link(rd.settings.trace_url, job),
        payload=tree(redact(legible(job.payload))) if job.payload else None, result=await _result(rd, job),
        **await _compared(rd, job, request),
    )  # fmt: skip


def shown_verbs(number: int) -> int:
    """How many stand as buttons; the others in a menu. A menu for one alone is none."""
    return min(number, SHOWN_VERBS)


def section(job: Job) -> str:
    """Where one would look for it: among what needs somebody, or in its queue."""
    asks = job.state is State.held and (job.because in FOR_A_PERSON or job.because == "deferred")
    return "letters" if asks or job.state in (State.dead, State.discarded, State.purged) else "queues"


def then(effect: EffectRecord) -> str:
    return EFFECTS[effect.status]


async def _group(rd: Redrive, job: Job) -> Any:
    """The group of its failure, or of its last one."""
    fingerprint = job.fingerprint or next((one.fingerprint for one in reversed(job.history) if one.fingerprint), None)
    found = await rd.store.groups(fingerprints=[fingerprint]) if fingerprint else []
    return found[0] if found else None


def _open(job: Job, asked: Sequence[Approval]) -> Approval | None:
    """The question that it waits for."""
    if job.state is not State.held or job.because != "approval":
        return None
    return next((one for one in reversed(asked) if one.answer == "open"), None)


async def _result(rd: Redrive, job: Job) -> Any:
    text = await result_text(rd.store, job) if job.result_json is not None else None
    return tree(redact(legible(text))) if text else None


def facts(job: Job) -> list[tuple[str, str | None]]:
    allowed = f" of {job.allowed}" if job.allowed is not None else ""
    options = job.readable_options
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
    text = job.payload if part == "payload" else await result_text(rd.store, job)
    body = json.dumps(redact(legible(text)), indent=2, ensure_ascii=False)
    headers = {
        "content-disposition": f'attachment; filename="{job.id[-8:]}-{part}.json"',
        "x-content-type-options": "nosniff", "cache-control": "no-store",
    }  # fmt: skip
    return Response(body.encode("utf-8", "surrogatepass"), media_type="application/json", headers=headers)
