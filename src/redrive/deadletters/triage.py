"""Values of triage: acts, their items, and the values that acts overwrite. The verbs are in verbs.py.

Each act on dead letters is recorded as an Act. The values that a move overwrote are kept beside the act, so that undo
puts each job back where it was; undo leaves a job that was changed since alone, and reports it.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import msgspec

from redrive.core.documents import Kind, OfJob
from redrive.core.job import At, Job, Json
from redrive.core.lifecycle import Transition
from redrive.core.view import Shown
from redrive.deadletters.verbs import ACTS, PAST, undoable

ITEMS_KEPT: Final = 30 * 86400.0
"""Time during which an act can be taken back."""
ACTS_KEPT: Final = 366 * 86400.0
REFUSED_KEPT: Final = 100
GONE: Final = "steps_gone"
"""Key in an edit's record: the number of forgotten steps, where too many were forgotten to restore."""


class Refused(NamedTuple):
    """A job that did not move, and why."""

    job_id: str
    why: str


class Act(Shown, msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision about one or many jobs: who, why, what, and the progress."""

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
    """Id of the job, if the act is about one job."""
    number: int = 0
    """Number of jobs that the act is about."""
    moved: int = 0
    refused: int = 0
    chunks: int = 0
    finished: bool = True
    """False while the act is in progress: `moved` counts the jobs moved so far; a worker continues the act."""
    undone: int = 0
    undone_at: At | None = None
    undone_by: str | None = None
    """Name of the person who took the act back, or has begun to; an act in progress then stops."""

    @property
    def undoable(self) -> bool:
        """Whether the act can be taken back: no purge, and no edit that dropped more steps than are kept."""
        known = undoable(self.verb) or self.verb in ("resolve_group", "ignore_group")
        return known and not self.said.get(GONE) and not self.undone_at


ACT: Final = Kind[Act]("act", Act, of_job=OfJob.key)
"""Documents of acts; the key is the job's id if the act is about one job."""


class ActItem(msgspec.Struct, frozen=True, array_like=True):
    """A job that an act moved, and the values before the move."""

    job_id: str
    before: dict[str, Json] = {}
    documents: tuple[tuple[str, str, str | None], ...] = ()
    """Documents of the job that the act wrote or dropped: kind, key, and the old text."""
    apart: bool = False
    """Whether the overwritten values are kept with the job, because they are part of its contents."""


class ActChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """Jobs that one commit of an act moved."""

    at: float
    items: tuple[ActItem, ...] = ()
    undone_at: float | None = None


ACT_ITEMS: Final = Kind[ActChunk]("act_items", ActChunk, of_job=OfJob.contents)
CHUNK_KEY: Final = "{}/{:06d}"
"""Key of a chunk: the act's id and the number of the chunk, which is 0 unless an older version wrote it."""
ACT_BEFORE: Final = Kind[dict[str, Json]]("act_items", dict[str, Json], of_job=OfJob.contents)
"""Documents beside the chunks, under the job's id: job contents that the latest act on many has overwritten."""


class Acted(Shown, msgspec.Struct, frozen=True):
    """Result of an act on its jobs: `number` is `moved` plus the jobs that did not move."""

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
        """Summary in one line."""
        done = f"{PAST.get(self.verb, self.verb)} {self.moved}"
        return f"{done} of {self.number}; {self.left} did not move" if self.left else done


# ---- overwritten values

NOT_RESTORED: Final = frozenset({"deferrals", "held_at", "token"})
"""Fields that undo does not restore: counts, and fields that the lifecycle keeps itself."""
NOT_APART: Final = NOT_RESTORED | {"changes_json", "error", "recommendation", "payload", "result"}
"""And fields with the job's contents, which must be erased with the job: never kept apart from the job."""


def before_key(job_id: str) -> str:
    """Key of the contents that the latest act on many has overwritten in this job."""
    return f"{job_id}/before"


def needs_its_own(move: Transition) -> bool:
    """Whether the overwritten changes cannot be rebuilt from the job's history."""
    return "changes_json" in move.set


def is_untouched(job: Job, verb: str, at: float | None) -> bool:
    """Whether the job is unchanged since the act at that time."""
    return job.state is ACTS[verb].leaves and job.updated_at == at
