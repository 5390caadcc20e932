"""Triage as values: what an act is, what it overwrote, and what a comeback changes. The verbs stand in verbs.py.

Whoever acts on dead letters leaves an Act. What a move wrote over is kept beside it, so that taking an act back puts
each job where it was; a job that anybody has touched since is left alone, and that is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import msgspec

from redrive.core.change import Edit
from redrive.core.documents import Kind, OfJob
from redrive.core.effects import EffectRecord
from redrive.core.job import ATTRIBUTES, At, Failure, Job, Json
from redrive.core.lifecycle import Transition
from redrive.core.policy import Policy
from redrive.core.store import Lesson
from redrive.core.view import Shown
from redrive.deadletters.verbs import ACTS, PAST, undoable
from redrive.retries.changes import Change, decode
from redrive.retries.decision import Abilities, Case
from redrive.retries.remedies import OTHERWISE, WAYS, another_rung, change_name

ITEMS_KEPT: Final = 30 * 86400.0
"""So long an act can be taken back."""
ACTS_KEPT: Final = 366 * 86400.0
REFUSED_KEPT: Final = 100
GONE: Final = "steps_gone"
"""Said of an edit: so many steps were forgotten that they cannot be put back."""


class Refused(NamedTuple):
    """A job that did not move, and why."""

    job_id: str
    why: str


class Act(Shown, msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision about one or many jobs: who, why, what, and how far it got."""

    SHOWN: ClassVar = ("undoable",)
    id: str
    verb: str
    at: At
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
    """False while it goes on: what is counted has moved, the rest has not yet. A worker carries it on."""
    undone: int = 0
    undone_at: At | None = None
    undone_by: str | None = None
    """Who took it back, or has begun to: an act that goes on then stops."""

    @property
    def undoable(self) -> bool:
        """Not a purge, nor an edit that has forgotten more steps than are kept."""
        known = undoable(self.verb) or self.verb in ("resolve_group", "ignore_group")
        return known and not self.said.get(GONE) and not self.undone_at


ACT: Final = Kind[Act]("act", Act, of_job=OfJob.key)
"""Under the job's id where it is about one job."""


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


ACT_ITEMS: Final = Kind[Chunk]("act_items", Chunk, of_job=OfJob.contents)
ACT_BEFORE: Final = Kind[dict[str, Json]]("act_items", dict[str, Json], of_job=OfJob.contents)
"""Beside the chunks, under the job's id: what the latest act on many has overwritten of this job's contents."""


class Acted(Shown, msgspec.Struct, frozen=True):
    """What became of the jobs that an act meant: `number` is `moved` and those that were refused."""

    SHOWN: ClassVar = ("left", "text")
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


# ---- what a move overwrites, and the way back

_COUNTED: Final = frozenset({"deferrals", "held_at", "token"})
"""Counts that stay counted, and what the lifecycle keeps by itself."""
_CONTENTS: Final = frozenset({"changes_json", "error", "recommendation", "payload", "result"})
"""What belongs to the job and must be forgotten with it: never kept apart from it."""


def overwritten(move: Transition, *, whole: bool = False) -> dict[str, Json]:
    """What the job said before, of everything that the move writes. `whole`: it is kept with the job itself."""
    left_out = _COUNTED if whole else _COUNTED | _CONTENTS
    return {name: getattr(move.job, ATTRIBUTES.get(name, name)) for name in move.set if name not in left_out}


def needs_its_own(move: Transition) -> bool:
    """Whether what it overwrites cannot be told from the job's story: the changes that were in force."""
    return "changes_json" in move.set


def untouched(job: Job, verb: str, at: float | None) -> bool:
    """Whether the job is still as the act left it at that time."""
    return job.state is ACTS[verb].leaves and job.updated_at == at


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
        return "it is not known whether it landed"
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


class EditPreview(Shown, msgspec.Struct, frozen=True):
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


class PatchSample(msgspec.Struct, frozen=True):
    """What a patch would change in one job's input, in words; secrets masked."""

    job_id: str
    task: str
    difference: list[str]
    voided: list[str] = []
    """Consents and approvals that were given for the old input and say nothing about the new one."""


class PatchError(msgspec.Struct, frozen=True):
    """What is wrong with one field of patched inputs, and in how many of them."""

    field: str
    problem: str
    number: int


class PatchPreview(Shown, msgspec.Struct, frozen=True):
    """What the same patch would mean for many: `number` is `changing` and those that are refused."""

    SHOWN: ClassVar = ("text",)
    number: int
    chosen: str
    """Which jobs, in words."""
    fields: list[str]
    """The fields that the patch changes or removes."""
    changing: int
    samples: list[PatchSample]
    errors: list[PatchError]
    """Patched inputs that do not fit their task, by field."""
    refused: dict[str, int]
    """What would not be edited for another reason, by that reason."""
    token: str
    running: list[str] = []
    """Runs that still move one of these groups: only when they are over can this one start."""
    looked_at: int | None = None
    """How many of them were judged, the oldest ones, where there are too many to judge each; None: all of them."""

    @property
    def text(self) -> str:
        """In one line."""
        judged = self.number if self.looked_at is None else self.looked_at
        said = f"{self.changing:,} of {'' if self.looked_at is None else 'the first '}{judged:,} would change"
        rest = judged - self.changing
        said = f"{said}; {rest:,} would not" if rest else said
        return said if self.looked_at is None else f"{said} (first {judged:,} of {self.number:,} shown)"


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
