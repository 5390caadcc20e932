"""One job: its state, the one thing to do next, its story, its input and its effects; and every verb on one job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from starlette.responses import Response

from redrive.core.consent import Approval
from redrive.core.job import Job, State, legible
from redrive.core.redact import redact
from redrive.deadletters.verbs import JOB_VERBS, VERBS, Verb, undoable
from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import go_back
from redrive.errors import InvalidInput
from redrive.reports import timeline
from redrive.reports.input_diff import compare_whose
from redrive.reports.needs import FOR_A_PERSON
from redrive.reports.run_diff import compare
from redrive.reports.traceback_view import trace_link

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.core.store import Group
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import Form, PageRequest

EFFECTS: Final = {
    "landed": "kept: a replay uses its result",
    "absent": "done by the next run",
    "intended": "looked for before anything is done again",
    "unknown": "looked for before anything is done again",
}
"""What the next run does about an effect, by its status."""
DIFFERENCES: Final = 30
DIFFERENCES_SHOWN: Final = 4
"""Differences that are shown at once; the others open on request."""
SHOWN_VERBS: Final = 3
"""Verbs that are buttons; the others stand in a menu."""
STORY_BEGIN: Final = 10
STORY_END: Final = 60
"""The first and the last entries of a long story; its middle is shown on request."""


async def show_job(request: PageRequest) -> Values:
    rd = request.rd
    job = await rd.jobs.get(request.path_params["id"])
    questions = await rd.sessions.questions(job)
    story = timeline.tell(job, await rd.jobs.story(job.id), rd.clock.now(), await rd.dead.notes(job.id))
    left_out = 0 if request.text("story") == "all" else len(story.entries) - STORY_BEGIN - STORY_END
    begin = story.entries[:STORY_BEGIN] if left_out > 0 else ()
    result = await rd.jobs.result_json(job) if job.result_json is not None else None
    return {
        "section": find_section(job),
        "job": job,
        "story": story,
        "questions": QUESTIONS,
        "facts": list_facts(job),
        "table": VERBS,
        "shown": min(len(story.choices), SHOWN_VERBS),
        "begin": begin,
        "end": story.entries[-STORY_END:] if begin else story.entries,
        "left_out": left_out,
        "group": await _read_group(rd, job),
        "agents": sorted(rd.registry.fleet.agents),
        "other_lane": "manual" if job.lane == "delayed" else "delayed",
        "asked": _find_open_question(job, questions),
        "answered": [question for question in questions if question.answer != "open"],
        "effects": [(effect, EFFECTS[effect.status]) for effect in await rd.jobs.effects(job.id)],
        "trace_link": trace_link(rd.settings.trace_url, job),
        "payload": make_tree(redact(legible(job.payload))) if job.payload else None,
        "result": make_tree(redact(legible(result))) if result else None,
        **await _compare_runs(request, job),
    }


def find_section(job: Job) -> str:
    """Find the section where a person would look for a job: among what needs a person, or in its queue."""
    asks = job.state is State.held and (job.because in FOR_A_PERSON or job.because == "deferred")
    return "dead_letters" if asks or job.state in (State.dead, State.discarded, State.purged) else "queues"


async def _read_group(rd: Redrive, job: Job) -> Group | None:
    """Read the group of a job's failure, or of its last failure."""
    fingerprint = job.fingerprint or next((run.fingerprint for run in reversed(job.history) if run.fingerprint), None)
    groups = await rd.groups.records([fingerprint]) if fingerprint else ()
    return groups[0] if groups else None


def _find_open_question(job: Job, questions: Sequence[Approval]) -> Approval | None:
    """Find the question that a job waits for."""
    if job.state is not State.held or job.because != "approval":
        return None
    return next((question for question in reversed(questions) if question.answer == "open"), None)


def list_facts(job: Job) -> list[tuple[str, str | None]]:
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


async def _compare_runs(request: PageRequest, job: Job) -> Values:
    """Compare the inputs of two runs: those that the address asks for, else the first and the last."""
    attempts = {attempt.run: attempt for attempt in job.history}
    runs = sorted(attempts)
    if len(runs) < 2 or not job.payload:
        return {"compared": None, "runs": runs}
    one, other = request.number("one"), request.number("other")
    one, other = one if one in attempts else runs[0], other if other in attempts else runs[-1]
    inputs = await request.rd.dead.inputs(job.id)
    return {
        "compared": compare(inputs[one], inputs[other], DIFFERENCES),
        "runs": runs,
        "one": one,
        "other": other,
        "differences_shown": DIFFERENCES_SHOWN,
        "by_whom": compare_whose(attempts[one], attempts[other]),
    }


async def download_part(request: PageRequest) -> Response:
    """Send the payload or the result as a file, never as a page: a browser must not render it."""
    part = request.path_params["part"]
    job = await request.rd.jobs.get(request.path_params["id"])
    if part not in ("payload", "result"):
        raise InvalidInput(field="part", problem="there are payload and result")
    text = job.payload if part == "payload" else await request.rd.jobs.result_json(job)
    body = json.dumps(redact(legible(text)), indent=2, ensure_ascii=False)
    headers = {
        "content-disposition": f'attachment; filename="{job.id[-8:]}-{part}.json"',
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return Response(body.encode("utf-8", "surrogatepass"), media_type="application/json", headers=headers)


# -- verbs on one job

QUESTIONS: Final = {name: verb.question for table in (VERBS, JOB_VERBS) for name, verb in table.items()}


async def act_on_job(request: PageRequest, form: Form) -> Response:
    """Do one verb on this job. The story records who and why; the line on top offers to take the verb back."""
    name = request.path_params["verb"]
    if name not in QUESTIONS or name == "edit":
        raise InvalidInput(field="verb", problem=f"{name!r} is not an action on a job")
    job = await request.rd.jobs.get(request.path_params["id"])
    by = request.sign(form)
    if name in VERBS:
        text = await _triage_job(request.rd, VERBS[name], job.id, form, by)
    else:
        text = await _move_job(request.rd, name, job.id, by)
    return go_back(request, text, undo=request.address("undo", id=job.id) if undoable(name) else None)


async def _triage_job(rd: Redrive, verb: Verb, id: str, form: Form, by: dict[str, Any]) -> str:
    given = read_words(verb, form)
    await rd.dead.do(verb.name, id, **(by if verb.why else {"who": by["who"]}), **given)
    if isinstance(time := given.get("until"), timedelta):
        given["until"] = f"in {words.counted(time.days, 'day')}"
    return verb.told.format(**given)


async def _move_job(rd: Redrive, name: str, id: str, by: dict[str, Any]) -> str:
    verb = JOB_VERBS[name]
    if verb.known and not by["why"]:
        raise InvalidInput(field="why", problem="say how you know; it stays with the job")
    await getattr(rd.jobs, verb.method)(id, **verb.fixed, **by)
    return verb.told


def read_words(verb: Verb, form: Form, *, many: bool = False) -> dict[str, Any]:
    """Read a verb's own words; for many their fields begin with `new_`, beside the filters of the same names."""
    prefix = "new_" if many else ""
    return {
        word.name: form.days() if word.reading == "moment" else form.text(f"{prefix}{word.name}") or ""
        for word in verb.takes(many=many)
    }


# -- a JSON value as lines that open and close, within bounds: a payload may be a whole conversation

NodeKind = Literal["object", "list", "text", "number", "word"]
MOST_NODES: Final = 1500
"""Values that are shown in all."""
ENTRIES: Final = 100
"""Entries of one object or list that are shown."""
LONG: Final = 160
"""A longer text is folded."""
LONGEST: Final = 10_000
"""Characters of one text."""
CHARACTERS: Final = 60_000
"""Characters of all texts together; later texts are cut to LONG each."""
OPEN_DEPTH: Final = 2
"""Objects up to this depth are open at first."""
FEW: Final = 12
"""Below the top, an object with more entries is closed at first."""


class Node(msgspec.Struct, frozen=True):
    """One value, under its name where it has one."""

    name: str | None
    kind: NodeKind
    text: str
    """The whole of a plain value; the size in words of an object or a list."""
    inner: tuple[Node, ...] = ()
    more: int = 0
    """Entries, or characters of a text, that are not shown."""
    open: bool = False
    long: bool = False


class _Budget:
    """Counts what may still be shown."""

    def __init__(self) -> None:
        self.nodes = MOST_NODES
        self.characters = CHARACTERS

    def cut(self, text: str) -> str:
        """Cut a text to the room that is left."""
        shown = text[: LONGEST if self.characters > 0 else LONG]
        self.characters -= len(shown)
        return shown


def make_tree(value: Any) -> Node:
    return _make_node(None, value, 0, _Budget())


def _make_node(name: str | None, value: Any, depth: int, budget: _Budget) -> Node:
    budget.nodes -= 1
    if isinstance(value, Mapping):
        return _make_holder(name, "object", [(str(key), item) for key, item in value.items()], depth, budget)
    if isinstance(value, list):
        return _make_holder(name, "list", [(str(index), item) for index, item in enumerate(value)], depth, budget)
    if isinstance(value, str):
        shown = budget.cut(value)
        return Node(name, "text", shown, more=len(value) - len(shown), long=len(value) > LONG or "\n" in value)
    kind: NodeKind = "word" if value is None or isinstance(value, bool) else "number"
    return Node(name, kind, json.dumps(value))


def _make_holder(name: str | None, kind: NodeKind, entries: list[tuple[str, Any]], depth: int, budget: _Budget) -> Node:
    inner = tuple(_make_node(key, item, depth + 1, budget) for key, item in entries[:ENTRIES] if budget.nodes > 0)
    noun = ("field", "fields") if kind == "object" else ("entry", "entries")
    opened = depth < OPEN_DEPTH and (depth == 0 or len(entries) <= FEW)
    return Node(name, kind, words.counted(len(entries), *noun), inner, len(entries) - len(inner), opened)
