"""What can be done with one job: each verb as the pages offer it, and the line that says what happened."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import Site, address, back, form_of, rd_of, who
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.app import Redrive
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


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/jobs/{id}/act/{verb}", act, "job_act", post=True)]


async def act(request: Request) -> Response:
    """One verb on this job; the story says who and why, and the line on top how to take it back."""
    rd, form, verb = rd_of(request), await form_of(request), request.path_params["verb"]
    id, said = request.path_params["id"], {"who": who(request), "why": form.text("why")}
    if verb not in VERBS:
        raise InvalidInput(field="verb", problem=f"{verb!r} is nothing that can be done with a job")
    job = await rd.jobs.get(id)
    text = await VERBS[verb](rd, job.id, form, said)
    return back(request, text, undo=address(request, "undo", id=job.id) if verb in UNDOABLE else None)


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
    if not (days.isascii() and days.isdigit() and len(days) < 4) or not 0 < int(days) <= 366:
        raise InvalidInput(field="days", problem=f"{days[:50]!r} is not from 1 to 366")
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
