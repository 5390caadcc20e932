"""Holds what every service stands on (the store, the registry of tasks, the clock, the settings and the bus), and finds
and moves one job for the verbs of `rd.jobs` and `rd.dead`. Load → lifecycle → commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from redrive.config import Settings
from redrive.core.checks import LEAST_PART, check_id, is_part_of_id
from redrive.core.commit import Proposal, decide_and_commit
from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import MAX_PARTS, Filter, Put, Store
from redrive.engine.bus import Bus
from redrive.engine.clock import Clock
from redrive.engine.registry import Registry
from redrive.engine.workflow_steps import companions_of
from redrive.errors import JobNotFound
from redrive.jobs.store_refcount import StoreHolder

DEFAULT_WHO: Final = "api"
"""Names the caller who gives no name."""
ROOM: Final = MAX_PARTS - 1
"""How many parts fit into a commit beside the job itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """Gives a service the five things that nearly every service needs.

    The value never changes. The store is opened at first use and can be closed and opened again, so `store` asks the
    holder each time: a service keeps the core, never the store.
    """

    registry: Registry
    bus: Bus
    holder: StoreHolder

    @property
    def store(self) -> Store:
        """The open store, made on first use."""
        store = self.holder.store
        return store if store is not None else self.holder.make()

    @property
    def clock(self) -> Clock:
        return self.holder.clock

    @property
    def settings(self) -> Settings:
        return self.holder.settings


async def find_job(store: Store, id: str, states: tuple[State, ...] = ()) -> Job:
    """Find a job by its id, or by a part of the id that only one job has."""
    if jobs := await store.get([check_id("id", id)]):
        return jobs[0]
    part = Filter(states=states, id_part=id.lower())
    alike = (await store.find(part, limit=2)).jobs if is_part_of_id(id) else []
    if len(alike) != 1:
        raise JobNotFound(_explain_not_found(id, several=bool(alike)), job_id=id)
    return (await store.get([alike[0].id]))[0]


async def move_job(core: Core, id: str, arrow: Callable[[Job, float], Transition], puts: Sequence[Put] = ()) -> Job:
    """Load a job, decide its move and commit; decide anew where another process was faster."""

    async def decide() -> Proposal[Transition]:
        job = await find_job(core.store, id)
        move = arrow(job, core.clock.now())
        others = (await companions_of(core.store, core.clock, move))[: ROOM - len(puts)]
        return Proposal(job, move, (move, *others), puts, done=move.move)

    move, fences = await decide_and_commit(core.store, decide)
    return move.after(fences[0])


def _explain_not_found(id: str, *, several: bool) -> str:
    if several:
        return f"{id!r} is part of several ids; give more of it"
    short = f": a part of an id needs at least {LEAST_PART} characters" if len(id) < LEAST_PART else ""
    return f"no job {id!r}{short}"
