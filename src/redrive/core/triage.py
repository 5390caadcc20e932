"""Triage as values: what an act is, what it overwrote, how it is undone, and what a comeback changes.

Whoever acts on dead letters leaves an Act. What a move wrote over is kept beside it, so that taking an act back puts
each job where it was; a job that anybody has touched since is left alone, and that is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from redrive.core import lifecycle
from redrive.core.advice import advice_for
from redrive.core.changes import Change, SetAgent, decode, merge
from redrive.core.changes.change import Edit, anew
from redrive.core.decision import Abilities, Case
from redrive.core.effects import EffectRecord
from redrive.core.job import Failure, Job, Json, Lane, State, iso
from redrive.core.lifecycle import Transition
from redrive.core.policy import Policy
from redrive.core.remedies import OTHERWISE, WAYS, another_rung, change_name
from redrive.core.store import Lesson
from redrive.errors import IllegalMove

LEAVES: Final[dict[str, State]] = {
    "redrive": State.waiting,
    "edit": State.waiting,
    "reassign": State.waiting,
    "defer": State.held,
    "recall": State.dead,
    "discard": State.discarded,
    "restore": State.dead,
    "move_lane": State.dead,
}
"""Where each verb leaves a job; what cannot be taken back is not here."""
PAST: Final[dict[str, str]] = {
    "redrive": "redriven",
    "edit": "edited and redriven",
    "reassign": "reassigned",
    "defer": "deferred",
    "recall": "recalled",
    "discard": "discarded",
    "restore": "restored",
    "move_lane": "moved to the other lane",
    "note": "noted",
    "purge": "purged",
    "undo": "taken back",
}
ITEMS_KEPT: Final = 30 * 86400.0
"""So long an act can be taken back."""
ACTS_KEPT: Final = 366 * 86400.0
REFUSED_KEPT: Final = 100
NOTE_LIMIT: Final = 10_000
GONE: Final = "steps_gone"
"""Said of an edit: so many steps were forgotten that they cannot be put back."""


class Note(msgspec.Struct, frozen=True):
    """What somebody wrote beside a job."""

    at: float
    who: str
    text: str

    def public(self) -> dict[str, Json]:
        return {"at": iso(self.at), "who": self.who, "text": self.text}


class Refused(NamedTuple):
    """A job that did not move, and why."""

    job_id: str
    why: str


class Act(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision about one or many jobs: who, why, what, and how far it got."""

    id: str
    verb: str
    at: float
    who: str
    why: str | None = None
    said: dict[str, Json] = {}
    """The verb's own words: agent, owner, until, lane, text."""
    filter: dict[str, Json] = {}
    """Which jobs were meant, where a filter said so."""
    job_id: str | None = None
    """The one job, where it is one."""
    number: int = 0
    """How many were meant."""
    moved: int = 0
    refused: int = 0
    chunks: int = 0
    finished: bool = True
    """False while it goes on, or where it was killed on the way: what is counted has moved, the rest has not."""
    undone: int = 0
    undone_at: float | None = None
    undone_by: str | None = None
    """Who took it back, or has begun to: an act that goes on then stops."""

    @property
    def undoable(self) -> bool:
        """Not a purge, nor an edit that has forgotten more steps than are kept."""
        known = self.verb in LEAVES or self.verb in ("note", "resolve_group", "ignore_group")
        return known and not self.said.get(GONE) and not self.undone_at

    def public(self) -> dict[str, Json]:
        body: dict[str, Json] = msgspec.structs.asdict(self)
        return body | {"at": iso(self.at), "undone_at": iso(self.undone_at), "undoable": self.undoable}


class Item(msgspec.Struct, frozen=True, array_like=True):
    """A job that an act moved, and what was there before."""

    job_id: str
    before: dict[str, Json] = {}
    documents: tuple[tuple[str, str, str | None], ...] = ()
    """Documents of the job that the act wrote or forgot: kind, key, and what stood there."""
    apart: bool = False
    """What was there before stands with the job itself, because it tells of its contents."""


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one commit of an act moved."""

    at: float
    items: tuple[Item, ...] = ()
    undone_at: float | None = None


class Acted(msgspec.Struct, frozen=True):
    """What became of the jobs that an act meant: `number` is `moved` and those that were refused."""

    verb: str
    act_id: str
    number: int
    moved: int
    refused: list[Refused] = []
    """The first hundred that did not move, each with the reason."""

    @property
    def left(self) -> int:
        return self.number - self.moved

    @property
    def text(self) -> str:
        """In one line."""
        said = f"{PAST.get(self.verb, self.verb)} {self.moved} of {self.number}" if self.left else (
            f"{PAST.get(self.verb, self.verb)} {self.moved}"
        )  # fmt: skip
        return f"{said}; {self.left} did not move" if self.left else said

    def public(self) -> dict[str, Json]:
        listed = [{"job_id": one.job_id, "why": one.why} for one in self.refused]
        return {"verb": self.verb, "act_id": self.act_id, "number": self.number, "moved": self.moved,
                "left": self.left, "refused": listed, "text": self.text}  # fmt: skip


# ---- what a move overwrites, and the way back

_COUNTED: Final = frozenset({"deferrals", "held_at", "token"})
"""Counts that stay counted, and what the lifecycle keeps by itself."""
_CONTENTS: Final = frozenset({"changes_json", "error", "recommendation", "payload", "result"})
"""What belongs to the job and must be forgotten with it: never kept apart from it."""


def overwritten(move: Transition, *, whole: bool = False) -> dict[str, Json]:
    """What the job said before, of everything that the move writes. `whole`: it is kept with the job itself."""
    left_out = _COUNTED if whole else _COUNTED | _CONTENTS
    return {name: getattr(move.job, name) for name in move.set if name not in left_out}


def needs_its_own(move: Transition) -> bool:
    """Whether what it overwrites cannot be told from the job's story: the changes that were in force."""
    return "changes_json" in move.set


def untouched(job: Job, verb: str, chunk: Chunk) -> bool:
    """Whether nobody has moved the job since the act did."""
    return job.state is LEAVES[verb] and job.updated_at == chunk.at


def taken_back(job: Job, verb: str, before: Mapping[str, Json], at: float, who: str, why: str) -> Transition:
    """The move that puts a job where it was before the act.

    One whose time to come back has passed is left to the person who acts, or it would be off again at once.
    """
    move = _as_before(job, verb, before, at, who, why)
    returns = move.set.get("comes_back_at")
    passed = isinstance(returns, float) and returns <= at
    return _with(move, {**move.set, "lane": "manual", "comes_back_at": None}) if passed else move


def _as_before(job: Job, verb: str, before: Mapping[str, Json], at: float, who: str, why: str) -> Transition:
    match verb:
        case "discard":
            return _with(lifecycle.restored(job, at, who=who, why=why), before)
        case "restore":
            return _with(lifecycle.discarded(job, at, who=who, why=why), {"because": before.get("because")})
        case "move_lane":
            lane: Lane = "delayed" if before.get("lane") == "delayed" else "manual"
            move = lifecycle.rerouted(job, at, lane=lane, who=who, why=why)
            return _with(move, {**move.set, **before, "lane": lane})
        case "defer":
            move = lifecycle.recalled(job, at, who=who, why=why)
            return _with(move, {**move.set, **before})
        case "recall":
            return lifecycle.deferred(job, at, owner=job.owner or who, until=job.run_at, who=who, why=why)
        case "redrive" | "reassign" | "edit":
            return _dead_again(job, before, at, who, why)
        case _:
            raise IllegalMove(f"{verb} cannot be taken back", job_id=job.id)


def _with(move: Transition, before: Mapping[str, object]) -> Transition:
    """As it was, instead of what a first look would say of it."""
    return msgspec.structs.replace(move, set=dict(before))


def _dead_again(job: Job, before: Mapping[str, Json], at: float, who: str, why: str) -> Transition:
    """It has not run since it was brought back: a dead letter as before, and no further burial."""
    return lifecycle.recalled(job, at, who=who, why=why, trouble={**_words(job), **before})


def _words(job: Job) -> dict[str, Json]:
    """What its last failure says of itself, for letters whose words were not kept apart from them."""
    last = next((one for one in reversed(job.history) if one.failure is not None), None)
    failure, cause = last.failure if last else None, last.cause if last else None
    general = "Find out what the error means, fix it, then redrive or discard it."
    advice = advice_for(cause, general) if cause else general
    own = failure.recommendation if failure else None
    return {"error": failure.summary if failure else None, "recommendation": own or advice}


def reassigned(job: Job, agent: str) -> dict[str, str]:
    """What a redrive by another agent writes anew. It is another subject: no consent carries over."""
    return anew(merge(decode(job.changes_json), [SetAgent(agent)]), agent, None)


# ---- what a comeback changes

_CHANGES: Final = frozenset(
    {"compress_context", "add_instruction", "add_constraint", "simplify_task", "set_model", "set_agent", "edit"}
)
WORKED_HALF: Final = 2


def best_known(lessons: Iterable[Lesson]) -> list[Lesson]:
    """What worked at least half of the time, the most promising first: one lucky try does not beat eight of nine."""
    good = [one for one in lessons if one.worked and WORKED_HALF * one.worked >= one.worked + one.failed]
    return sorted(good, key=lambda one: -(one.worked + 1) / (one.worked + one.failed + 2))


def next_changes(
    job: Job, lessons: Sequence[Lesson], abilities: Abilities, policy: Policy, now: float
) -> tuple[Change, ...] | None:
    """What to change before a job runs again that failed for want of a change; None where nothing is left.

    First what has worked against the same group, then the next rung that was not tried.
    """
    last = next((attempt for attempt in reversed(job.history) if attempt.failure and attempt.cause), None)
    if last is None or last.failure is None or last.cause is None:
        return None
    case = Case(job, last.failure, last.cause, policy, now, abilities=abilities)
    for lesson in best_known(lessons):
        if (found := _as_learned(case, lesson)) is not None:
            return found
    rung = another_rung(case, max(1, case.seen(last.cause.detail)))
    return tuple(rung) if rung is not None else None


def _as_learned(case: Case, lesson: Lesson) -> tuple[Change, ...] | None:
    """The changes of a strategy as they are made for this job; None where one of them cannot be made."""
    wanted = [name for name in lesson.strategy.split("+") if name in _CHANGES]
    plan = WAYS.get(case.cause.detail, OTHERWISE).plan(case, 1) if wanted else []
    found = {change_name(change): change for change in plan}
    return tuple(found[name] for name in wanted) if set(wanted) <= found.keys() else None


def hands_off(job: Job, effects: Iterable[EffectRecord]) -> str | None:
    """Why no machine may decide about this job; None where it may."""
    if "outcome_unknown" in (job.because, job.detail):
        return "nobody knows whether it landed"
    if any(effect.open for effect in effects):
        return "an effect of it may have landed"
    if job.because == "restored":
        return "a person brought it back"
    return None


# ---- editing


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong with one field of an edited payload."""

    field: str
    problem: str


class EffectChoice(msgspec.Struct, frozen=True):
    """An effect of `ctx.once`, and what an edited run does about it unless it is told to repeat it."""

    name: str
    status: str
    then: str


class EditPreview(msgspec.Struct, frozen=True):
    """What an edit would mean. `ok`: it can be done as it stands."""

    job_id: str
    task: str
    ok: bool
    text: str
    difference: list[str] = []
    """What differs from the input as it is now, in words; secrets masked."""
    errors: list[FieldError] = []
    voided: list[str] = []
    """Consents and approvals that were given for the old input and say nothing about the new one."""
    effects: list[EffectChoice] = []
    taint: list[str] = []
    """What came from outside and is not to be taken for instructions."""

    def public(self) -> dict[str, Json]:
        body: dict[str, Json] = msgspec.to_builtins(self)
        return body


_PLACE: Final = re.compile(r" - at `\$\.?([^`]*)`")
_MISSING: Final = re.compile(r"missing required field `([^`]+)`")
_UNKNOWN: Final = re.compile(r"contains unknown field `([^`]+)`")


def field_error(problem: str) -> FieldError:
    """A refusal of the payload, by the field that it is about."""
    place = _PLACE.search(problem)
    parent = place[1].rstrip(".") if place else ""
    plain = _PLACE.sub("", problem)
    for pattern, said in ((_MISSING, "is required"), (_UNKNOWN, "is not a parameter of the task")):
        if named := pattern.search(problem):
            return FieldError(f"{parent}.{named[1]}" if parent else named[1], said)
    return FieldError(parent or "payload", plain)


LEAST_QUOTE: Final = 24
"""So many characters in a row are a quotation and no accident."""


def outside_texts(job: Job) -> list[str]:
    """What others said when the job failed: answers of servers, words of models, messages of errors."""
    found: dict[str, None] = {}
    for attempt in job.history:
        for failure in _chain(attempt.failure):
            found.update(dict.fromkeys(text for text in (failure.message, failure.body) if text))
    return list(found)


def _chain(failure: Failure | None) -> Iterator[Failure]:
    for _ in range(16):
        if failure is None:
            return
        yield failure
        failure = failure.cause


def quoted(payload: Json, texts: Sequence[str]) -> list[str]:
    """The fields of an input that repeat what came from outside."""
    pieces = {piece for said in texts for piece in _pieces(" ".join(said.split()), LEAST_QUOTE // 2)}
    if not pieces:
        return []
    return [path for path, text in _strings(payload) if not pieces.isdisjoint(_pieces(" ".join(text.split()), 1))]


def _pieces(text: str, step: int) -> Iterator[str]:
    return (text[start : start + LEAST_QUOTE] for start in range(0, len(text) - LEAST_QUOTE + 1, step))


def _strings(value: Json) -> Iterator[tuple[str, str]]:
    pending: list[tuple[str, Json]] = [("", value)]
    while pending:
        at, one = pending.pop()
        if isinstance(one, str):
            yield at or "payload", one
        elif isinstance(one, Mapping):
            pending += [(f"{at}.{name}" if at else str(name), item) for name, item in one.items()]
        elif isinstance(one, list):
            pending += [(f"{at}[{index}]", item) for index, item in enumerate(one)]


def taint_of(job: Job, payload: Json) -> list[str]:
    """What an editor should not take for instructions, as far as can be told."""
    told = [
        f"{path} repeats text of a failure, which came from outside: it stays marked as untrusted"
        for path in sorted(quoted(payload, outside_texts(job)))
    ]
    for change in decode(job.changes_json):
        if getattr(change, "tainted", False):
            what = "an earlier edit" if isinstance(change, Edit) else change_name(change)
            told.append(f"{what} in force carries text from outside")
    if any(attempt.failure and attempt.failure.body for attempt in job.history):
        told.append("the answers shown with its attempts are the receiver's own words, not instructions")
    return told
