"""Which workers live. Each announces what it can do, again and again; one that stopped doing so is gone."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.commit import try_commit
from redrive.core.documents import Kind
from redrive.core.job import CYCLE, State
from redrive.core.store import Filter, Put, Store, Wanted
from redrive.engine.queue_pauses import read_paused_queues

ANNOUNCE_SECONDS: Final = 20.0
"""How often a worker says that it lives."""
GONE_AFTER: Final = 6 * ANNOUNCE_SECONDS
"""A worker that was not heard of for so long does not live, for all who ask."""

PARKED: Final = Filter(states=(State.held,), because="circuit_open")
"""Jobs that a breaker holds."""


class BlockedLoop(msgspec.Struct, frozen=True):
    """What keeps a worker's event loop from everything else, and since when."""

    task: str
    """The task whose job holds the loop, or the name of another asyncio task."""
    job_id: str | None
    since: float

    def __str__(self) -> str:
        return f"task {self.task}" + (f" (job {self.job_id[-8:]})" if self.job_id is not None else "")


class Announcement(msgspec.Struct, frozen=True):
    """What a worker says of itself; the document's key is its id."""

    tasks: frozenset[str]
    at: float
    concurrency: int = 0
    running: int = 0
    channels: frozenset[str] = frozenset()
    """Ways to people that its process has, and that others may not have."""
    queues: frozenset[str] | None = None
    agents: frozenset[str] | None = None
    """What it takes of all that it could run; None for everything."""
    stalled_after: dict[str, float | None] = {}
    """After how many seconds without progress a job counts as stalled, for the tasks that say so; None: never."""
    blocked: BlockedLoop | None = None
    """Why it begins nothing now. Its thread says so: the event loop cannot."""
    since: float | None = None
    """When it started."""
    version: str | None = None
    """Of the application, where it says so."""
    stopping: bool = False
    """It was told to stop: if its process ends before it has given its jobs back, they are not the cause."""

    def lives(self, now: float) -> bool:
        return now - self.at <= GONE_AFTER

    @property
    def one_at_a_time(self) -> bool:
        """Whether one job keeps all others waiting: the worker has a single slot."""
        return self.concurrency == 1

    def takes(self, queue: str, task: str, agent: str | None) -> bool:
        """As its claims do."""
        return Wanted(0, self.tasks, self.queues, self.agents).takes(queue, task, agent)


WORKER: Final = Kind[Announcement]("worker", Announcement, order="deterministic")
ROSTER: Final = Kind[float]("roster", float)
"""When a worker last came, or came back. Whoever acts on what no worker has announced does it under its version."""
EVERYBODY: Final = "everybody"


def put_announcement(worker: str, said: Announcement) -> Put:
    return WORKER.put(worker, said)


def put_arrival(now: float) -> Put:
    """A worker comes, or comes back: what was decided without it does not count."""
    return ROSTER.put(EVERYBODY, now)


async def make_roster_fence(store: Store) -> Put:
    """The fence of a decision by announcements that are read after this."""
    kept = await ROSTER.get(store, EVERYBODY)
    return ROSTER.put(EVERYBODY, kept.value, kept.version) if kept is not None else ROSTER.put(EVERYBODY, 0.0, 0)


def drop_announcement(worker: str, version: int | None = None) -> Put:
    """It is gone; with a version, only if it has said nothing since."""
    return WORKER.drop(worker, version)


async def list_living(store: Store, now: float) -> list[Announcement]:
    """Whoever lives, wherever it runs."""
    return [said for _, said, _ in await WORKER.all(store) if said.lives(now)]


async def list_blocked_loops(store: Store, now: float) -> list[tuple[str, BlockedLoop]]:
    """Every living worker whose event loop is blocked, by its id, wherever it runs."""
    living = [kept for kept in await WORKER.all(store) if kept.value.lives(now)]
    return [(kept.key, kept.value.blocked) for kept in living if kept.value.blocked is not None]


async def count_unattended(store: Store, now: float, due_for: float = 0.0) -> dict[tuple[str, str], int]:
    """Jobs due for so long, by queue and task, that nobody runs: no living worker takes them.

    That a worker lives says nothing: one beside a dashboard knows only the built-in delivery, others are for some
    queues or agents. A cycle's jobs wait for its script, those of a paused queue for whoever paused it.
    """
    return await _without_worker(store, now, Filter(states=(State.waiting,), due_at=now - due_for))


async def count_unprobed(store: Store, now: float, parked_for: float) -> dict[tuple[str, str], int]:
    """Jobs parked for so long, by queue and task, whose probe no living worker could run: they do not come back by
    themselves, even if what they call answers again."""
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
    """Whether a worker that is gone had been told to stop."""
    kept = await WORKER.get(store, worker) if worker is not None else None
    return kept is not None and kept.value.stopping


async def forget_gone(store: Store, now: float) -> list[Announcement]:
    """Forget whoever left without a word. Whoever lives is left."""
    left = []
    for worker, said, version in await WORKER.all(store):
        if said.lives(now):
            left.append(said)
        else:
            await try_commit(store, puts=[drop_announcement(worker, version)], what=f"worker {worker} was forgotten")
    return left
