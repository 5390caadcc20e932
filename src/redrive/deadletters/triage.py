"""Triage as values: what an act is, what it overwrote, and what a comeback changes. The verbs stand in verbs.py.

Whoever acts on dead letters leaves an Act. What a move wrote over is kept beside it, so that taking an act back puts
each job where it was; a job that anybody has touched since is left alone, and that is told.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import msgspec

from redrive.core.documents import Kind, OfJob
from redrive.core.job import ATTRIBUTES, At, Job, Json
from redrive.core.lifecycle import Transition
from redrive.core.view import Shown
from redrive.deadletters.verbs import ACTS, PAST, undoable

ITEMS_KEPT: Final = 30 * 86400.0
"""So long an act can be taken back."""
ACTS_KEPT: Final = 366 * 86400.0
REFUSED_KEPT: Final = 100
GONE: Final = "steps_gone"
"""Key in an edit's record: the number of forgotten steps, where too many were forgotten to restore."""


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
    """The filter that chose the jobs, if there was one."""
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


class ActItem(msgspec.Struct, frozen=True, array_like=True):
    """A job that an act moved, and what was there before."""

    job_id: str
    before: dict[str, Json] = {}
    documents: tuple[tuple[str, str, str | None], ...] = ()
    """Documents of the job that the act wrote or forgot: kind, key, and what stood there."""
    apart: bool = False
    """Whether the overwritten values are kept with the job, because they are part of its contents."""


class ActChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one commit of an act moved."""

    at: float
    items: tuple[ActItem, ...] = ()
    undone_at: float | None = None


ACT_ITEMS: Final = Kind[ActChunk]("act_items", ActChunk, of_job=OfJob.contents)
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
        said = (
            f"{PAST.get(self.verb, self.verb)} {self.moved} of {self.number}"
            if self.left
            else (f"{PAST.get(self.verb, self.verb)} {self.moved}")
        )
        return f"{said}; {self.left} did not move" if self.left else said


# ---- what a move overwrites, and the way back

_COUNTED: Final = frozenset({"deferrals", "held_at", "token"})
"""Counts that stay counted, and what the lifecycle keeps by itself."""
_CONTENTS: Final = frozenset({"changes_json", "error", "recommendation", "payload", "result"})
"""What belongs to the job and must be forgotten with it: never kept apart from it."""


def overwritten(move: Transition, *, whole: bool = False) -> dict[str, Json]:
    """Collects the job's values that the move overwrites. `whole`: they are kept with the job itself."""
    left_out = _COUNTED if whole else _COUNTED | _CONTENTS
    return {name: getattr(move.job, ATTRIBUTES.get(name, name)) for name in move.set if name not in left_out}


def needs_its_own(move: Transition) -> bool:
    """Whether the overwritten changes cannot be rebuilt from the job's history."""
    return "changes_json" in move.set


def untouched(job: Job, verb: str, at: float | None) -> bool:
    """Whether the job is still as the act left it at that time."""
    return job.state is ACTS[verb].leaves and job.updated_at == at
