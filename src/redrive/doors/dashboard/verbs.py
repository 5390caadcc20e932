"""What can be done with one job: each verb of the table as the pages offer it, and the line that says what happened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from redrive.deadletters.verbs import JOB_VERBS, VERBS, Reading, Verb, undoable
from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import Site, address, back, form_of, rd_of, who
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive
    from redrive.doors.dashboard.rendering import Form

QUESTIONS: Final = {
    **{name: verb.question for name, verb in VERBS.items()},
    **{name: verb.question for name, verb in JOB_VERBS.items()},
}


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/jobs/{id}/act/{verb}", act, "job_act", post=True)]


async def act(request: Request) -> Response:
    """One verb on this job; the story says who and why, and the line on top how to take it back."""
    rd, form, verb = rd_of(request), await form_of(request), request.path_params["verb"]
    id, said = request.path_params["id"], {"who": who(request), "why": form.text("why")}
    if verb not in QUESTIONS or verb == "edit":
        raise InvalidInput(field="verb", problem=f"{verb!r} is not an action on a job")
    job = await rd.jobs.get(id)
    text = await (_triaged(rd, VERBS[verb], job.id, form, said) if verb in VERBS else _done(rd, verb, job.id, said))
    return back(request, text, undo=address(request, "undo", id=job.id) if undoable(verb) else None)


async def _triaged(rd: Redrive, verb: Verb, id: str, form: Form, said: dict[str, Any]) -> str:
    read = read_words(verb, form)
    await rd.dead.do(verb.name, id, **(said if verb.why else {"who": said["who"]}), **read)
    return verb.told.format(**in_words(read))


async def _done(rd: Redrive, name: str, id: str, said: dict[str, Any]) -> str:
    verb = JOB_VERBS[name]
    if verb.known and not said["why"]:
        raise InvalidInput(field="why", problem="say how you know; it stays with the job")
    await getattr(rd.jobs, verb.method)(id, **verb.fixed, **said)
    return verb.told


# -- reading a verb's words from a form


def read_words(verb: Verb, form: Form, *, many: bool = False) -> dict[str, Any]:
    """The verb's own words; for many their fields begin with `new_`, beside the filters of the same names."""
    prefix = "new_" if many else ""
    return {word.name: READ[word.reading](form, f"{prefix}{word.name}") for word in verb.takes(many=many)}


def _text(form: Form, name: str) -> str:
    return form.text(name) or ""


def _span(form: Form, name: str) -> timedelta:
    return timedelta(days=days_of(form))


READ: Final[dict[Reading, Callable[[Form, str], Any]]] = {
    "name": _text, "lane": _text, "text": _text, "moment": _span,
}  # fmt: skip
"""How a form says each kind of word. Inputs and patches have pages of their own."""


def in_words(read: dict[str, Any]) -> dict[str, str]:
    """What was said, for the line that tells it."""
    return {name: _told(value) for name, value in read.items()}


def _told(value: Any) -> str:
    return f"in {words.counted(value.days, 'day')}" if isinstance(value, timedelta) else str(value)


def days_of(form: Form) -> int:
    days = form.text("days") or "1"
    if not (days.isascii() and days.isdigit() and len(days) < 4) or not 0 < int(days) <= 366:
        raise InvalidInput(field="days", problem=f"{days[:50]!r} is not from 1 to 366")
    return int(days)
