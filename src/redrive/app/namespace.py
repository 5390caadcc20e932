"""What the verbs of `rd.jobs` and `rd.dead` stand on: one job, found and moved. Load → lifecycle → commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from redrive.core.checks import LEAST_PART, check_id, is_part_of_id
from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import MAX_PARTS, Applied, Commit, Filter, Put, Stale
from redrive.errors import CommitUnknown, JobNotFound, StaleJob

if TYPE_CHECKING:
    from redrive.app import Redrive

TRIES: Final = 5
"""How often a command is decided anew when somebody else was faster."""
SOMEBODY: Final = "api"
"""Who does it, where nobody says."""
ROOM: Final = MAX_PARTS - 1
"""What fits into a commit beside the job itself."""


class Namespace:
    """Verbs of one app."""

    def __init__(self, app: Redrive) -> None:
        self._app = app

    async def _find_one(self, id: str, states: tuple[State, ...] = ()) -> Job:
        """By its id, or by a part of it that only one job has."""
        store = self._app.store
        found = await store.get([check_id("id", id)])
        if found:
            return found[0]
        part = Filter(states=states, id_part=id.lower())
        alike = (await store.find(part, limit=2)).jobs if is_part_of_id(id) else []
        if len(alike) != 1:
            raise JobNotFound(_not_one(id, several=bool(alike)), job_id=id)
        return (await store.get([alike[0].id]))[0]

    async def _move(self, id: str, arrow: Callable[[Job, float], Transition], puts: Sequence[Put] = ()) -> Job:
        """Load, decide, commit; decided anew when somebody was faster."""
        job = await self._find_one(id)
        for _ in range(TRIES):
            transition = arrow(job, self._app.clock.now())
            others = (await self._app.workflows.companions(transition))[: ROOM - len(puts)]
            (outcome,) = await self._app.store.apply([Commit((transition, *others), tuple(puts))])
            if isinstance(outcome, Applied):
                return transition.after(outcome.fences[0])
            if not isinstance(outcome, Stale):
                raise CommitUnknown(f"nobody knows whether job {job.short_id} was {transition.move}: look again")
            job = await self._find_one(job.id)
        raise StaleJob(f"job {job.short_id} keeps changing; try again", job_id=job.id)


def _not_one(id: str, *, several: bool) -> str:
    if several:
        return f"{id!r} is part of several ids; give more of it"
    short = f": a part of an id needs at least {LEAST_PART} characters" if len(id) < LEAST_PART else ""
    return f"no job {id!r}{short}"
