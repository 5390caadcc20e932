"""Keeps which workers live. Each worker announces its tasks again and again; one that stopped doing so is gone."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.commit import try_commit
from redrive.core.documents import Kind
from redrive.core.job import CYCLE, State
from redrive.core.store import Filter, Put, Store, Wanted
from redrive.engine.queue_pauses import read_paused_queues

ANNOUNCE_SECONDS: Final = 20.0
"""Seconds between two announcements of a worker."""
GONE_AFTER: Final = 6 * ANNOUNCE_SECONDS
"""Seconds since its last announcement after which a worker counts as gone."""

PARKED: Final = Filter(states=(State.held,), because="circuit_open")
"""Jobs that a breaker holds."""


class BlockedLoop(msgspec.Struct, frozen=True):
    """The task that blocks a worker's event loop, and since when."""

    task: str
    """The task whose job holds the loop, or the name of another asyncio task."""
    job_id: str | None
    since: float

    def __str__(self) -> str:
        return f"task {self.task}" + (f" (job {self.job_id[-8:]})" if self.job_id is not None else "")


class Announcement(msgspec.Struct, frozen=True):
    """A worker's announcement; the document's key is the worker's id."""

    tasks: frozenset[str]
    at: float
    concurrency: int = 0
    running: int = 0
    channels: frozenset[str] = frozenset()
    """Channels to people that the worker's process has, and that others may not have."""
    queues: frozenset[str] | None = None
    agents: frozenset[str] | None = None
    """Agents whose jobs the worker takes, as `queues` for queues; None for all."""
    stalled_after: dict[str, float | None] = {}
    """Seconds without progress after which a job counts as stalled, for the tasks that say so; None for never."""
    blocked: BlockedLoop | None = None
    """Reason why the worker begins nothing now, announced by its heartbeat thread, as the event loop cannot."""
    since: float | None = None
    """Time when the worker started."""
    version: str | None = None
    """Version of the application, where it has one."""
    stopping: bool = False
    """Whether the worker was told to stop: if its process ends before it gave its jobs back, they are not the cause."""

    def lives(self, now: float) -> bool:
        return now - self.at <= GONE_AFTER

    @property
    def one_at_a_time(self) -> bool:
        """Whether the worker has a single slot, so that one job keeps all others waiting."""
        return self.concurrency == 1

    def takes(self, queue: str, task: str, agent: str | None) -> bool:
        """Tells whether the worker takes such a job, by the rule that its claims use."""
        return Wanted(0, self.tasks, self.queues, self.agents).takes(queue, task, agent)


WORKER: Final = Kind[Announcement]("worker", Announcement, order="deterministic")
ROSTER: Final = Kind[float]("roster", float)
"""Time when a worker last came, or came back. A decision by what no worker announced is fenced by this version."""
EVERYBODY: Final = "everybody"


def put_announcement(worker: str, said: Announcement) -> Put:
    return WORKER.put(worker, said)


def put_arrival(now: float) -> Put:
    """Makes the put by which a worker comes, or comes back: a decision made without the worker does not count."""
    return ROSTER.put(EVERYBODY, now)


async def make_roster_fence(store: Store) -> Put:
    """Makes the fence of a decision by announcements that are read after this call."""
    kept = await ROSTER.get(store, EVERYBODY)
    return ROSTER.put(EVERYBODY, kept.value, kept.version) if kept is not None else ROSTER.put(EVERYBODY, 0.0, 0)


def drop_announcement(worker: str, version: int | None = None) -> Put:
    """Makes the put that removes a worker's announcement; with a version, only if there is no newer one."""
    return WORKER.drop(worker, version)


async def list_living(store: Store, now: float) -> list[Announcement]:
    """Lists the announcements of all living workers, of every process."""
    return [said for _, said, _ in await WORKER.all(store) if said.lives(now)]


async def list_blocked_loops(store: Store, now: float) -> list[tuple[str, BlockedLoop]]:
    """Lists the blocked event loops of living workers, of every process, with the worker's id."""
    living = [kept for kept in await WORKER.all(store) if kept.value.lives(now)]
    return [(kept.key, kept.value.blocked) for kept in living if kept.value.blocked is not None]


async def count_unattended(store: Store, now: float, due_for: float = 0.0) -> dict[tuple[str, str], int]:
    """Counts jobs due for `due_for` seconds that no living worker takes, by queue and task.

    A living worker may not take a job: one beside a dashboard knows only the built-in delivery, others are for some
    queues or agents. A cycle's jobs wait for its script, those of a paused queue for its resumption: both are left out.
    """
    return await _without_worker(store, now, Filter(states=(State.waiting,), due_at=now - due_for))


async def count_unprobed(store: Store, now: float, parked_for: float) -> dict[tuple[str, str], int]:
    """Counts jobs parked for `parked_for` seconds whose probe no living worker can run, by queue and task. Such jobs do
    not come back by themselves, even if the service they call answers again."""
    return await _without_worker(store, now, msgspec.structs.replace(PARKED, until=now - parked_for))


async def _without_worker(store: Store, now: float, chosen: Filter) -> dict[tuple[str, str], int]:
    workers, paused = await list_living(store, now), await read_paused_queues(store)
    counted = await store.count(chosen, by=("queue", "task", "agent"))
    left: dict[tuple[str, str], int] = {}
    for (queue, task, agent), number in counted.items():
        route = (str(queue), str(task))
        if route[0] in paused or route[0].startswith(CYCLE) or any(each.takes(*route, agent) for each in workers):
            continue
        left[route] = left.get(route, 0) + number
    return left


async def was_stopping(store: Store, worker: str | None) -> bool:
    """Tells whether a worker that is gone had been told to stop."""
    kept = await WORKER.get(store, worker) if worker is not None else None
    return kept is not None and kept.value.stopping


async def forget_gone(store: Store, now: float) -> list[Announcement]:
    """Removes the announcements of workers that are gone; returns those of living workers."""
    left = []
    for worker, said, version in await WORKER.all(store):
        if said.lives(now):
            left.append(said)
        else:
            await try_commit(store, puts=[drop_announcement(worker, version)], what=f"worker {worker} was forgotten")
    return left
