"""The protocol between redrive and the stores that keep its jobs: verbs, each with a one-sentence contract.

A store applies what the core decided if the fence holds; it never decides. The verbs may be awaited from any event
loop. One contract suite (tests/stores) runs against every store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import msgspec

from redrive.core.bulkheads import Bulkheads
from redrive.core.job import CYCLE, At, Ending, Job, State
from redrive.core.lifecycle import Transition
from redrive.core.policy import Rate
from redrive.core.timings import TimedBy, Timing

if TYPE_CHECKING:
    import asyncio


class Info(msgspec.Struct, frozen=True):
    """What an opened store promises."""

    url: str
    durability: Literal["synced", "replicated", "unsynced"]
    max_record: int
    schema: int


class Lease(msgspec.Struct, frozen=True):
    """A worker's right to a job."""

    job_id: str
    token: str


class Put(msgspec.Struct, frozen=True, omit_defaults=True):
    """Write a document; `value=None` removes it. With `expect`, only if its version is still that one (0: absent)."""

    kind: str
    key: str
    value: bytes | None
    expect: int | None = None


class Guard(msgspec.Struct, frozen=True, omit_defaults=True):
    """The commit counts only while this running job keeps its lease. Does not move the job."""

    lease: Lease
    at: float | None = None
    """When the task wrote this: a sign that it makes progress."""


class Commit(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """At most 250 parts, written whole or not at all, and only if every fence holds."""

    transitions: tuple[Transition, ...] = ()
    puts: tuple[Put, ...] = ()
    guards: tuple[Guard, ...] = ()


MAX_PARTS = 250


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The commit is durable; these are the new fences of its transitions, in order."""

    fences: tuple[int, ...] = ()


class Stale(msgspec.Struct, frozen=True):
    """A fence did not hold: nothing of the commit was written."""

    job_id: str | None = None


class Unknown(msgspec.Struct, frozen=True):
    """The store cannot say whether the commit was written."""

    problem: str = ""


Outcome = Applied | Stale | Unknown


class Inserted(msgspec.Struct, frozen=True):
    """What became of one job of an insert: new, or the one that owns the key already."""

    job: Job
    duplicate: bool = False


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker can take now. None in a filter means: any."""

    slots: int
    tasks: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    agents: frozenset[str] | None = None
    not_queues: frozenset[str] = frozenset()
    queue_slots: Mapping[str, int] = {}
    agent_slots: Mapping[str, int] = {}
    agent_limit: int | None = None
    """Slots of an agent that agent_slots does not name."""
    store_limits: Mapping[str, int] = {}
    """Running jobs allowed per queue in the whole store (scope="store")."""
    store_rates: Mapping[str, Rate] = {}
    """Starts allowed per queue in the whole store (scope="store")."""
    lease: float = 90.0
    leases: Mapping[str, float] = {}
    """Lease seconds per task where it is not the default; a job's own option goes before both."""
    synced: bool = False
    """Whether the claim itself must be on disk before it counts (on_lost="dead_letter")."""
    ids: tuple[str, ...] = ()
    """These jobs and no others, due or not, whatever their queue: for a caller that runs them by itself."""
    bulkheads: Bulkheads | None = None
    """What one queue or one downstream may not take; None where every slot is for all."""
    store_agent_limit: int | None = None
    """Running jobs allowed per agent in the whole store (agent_scope="store")."""

    def takes(self, queue: str, task: str, agent: str | None) -> bool:
        """Whether it may have jobs that go there. A cycle's are its script's alone."""
        return (
            not queue.startswith(CYCLE)
            and (self.tasks is None or task in self.tasks)
            and (self.queues is None or queue in self.queues)
            and (self.agents is None or agent in self.agents)
            and queue not in self.not_queues
        )


class Claim(msgspec.Struct, frozen=True):
    """Jobs now running under this worker's leases, and running jobs whose lease ended, unchanged.

    Where less was due than wanted, `next_due` says when more will be; `mark` lets `wait` notice what came since.
    """

    jobs: list[Job]
    lapsed: list[Job]
    mark: int = 0
    next_due: float | None = None
    endings: Mapping[str, Ending] = {}
    """What is known of the processes of the lapsed jobs, by the jobs' ids."""


class Document(msgspec.Struct, frozen=True):
    """A document and its version."""

    key: str
    value: bytes
    version: int


class Filter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which jobs. Every field that is set must match."""

    states: tuple[State, ...] = ()
    queue: str | None = None
    task: str | None = None
    agent: str | None = None
    session_id: str | None = None
    key: str | None = None
    lane: str | None = None
    because: str | None = None
    category: str | None = None
    detail: str | None = None
    error_class: str | None = None
    error_kind: str | None = None
    """Of any attempt in the job's history."""
    fingerprint: str | None = None
    held_for: str | None = None
    owner: str | None = None
    reason: str | None = None
    id_part: str | None = None
    since: float | None = None
    until: float | None = None
    due_at: float | None = None
    returns_by: float | None = None
    """Only dead letters that come back by themselves, by then."""
    failed: bool = False
    """Only jobs whose record names the error of their last failed attempt: what waits then waits for a retry."""
    ids: tuple[str, ...] = ()
    no_agent: bool = False
    """Only jobs that go to no agent."""


class Page(msgspec.Struct, frozen=True):
    """Newest first. `cursor` continues; None at the end. The view may lag: `as_of`."""

    jobs: list[Job]
    cursor: str | None
    as_of: float


class LeftBehind(msgspec.Struct, frozen=True):
    """Running jobs of one process that is gone, or that has not renewed their leases in time."""

    process: str
    host: str
    gone: bool
    """Its lock file on this host is free. Otherwise it was only not seen: frozen, cut off, or on another host."""
    since: float
    """When it last showed a sign of life."""
    jobs: tuple[str, ...]
    """The ids of the jobs, the oldest first."""
    tasks: tuple[str, ...]


class Quiet(msgspec.Struct, frozen=True):
    """A running job that has shown no progress since then."""

    job: Job
    since: float


class Returning(msgspec.Struct, frozen=True):
    """Dead letters of one group on one route that come back by themselves."""

    fingerprint: str | None
    held_for: str | None
    """What they call, as far as that is known."""
    queue: str
    task: str
    number: int
    due: int
    """How many of them have their time behind them."""
    next_at: float
    """The earliest time at which one of them comes back."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One committed move, in commit order, at least once. Feeds other processes' bus."""

    cursor: str
    move: str
    at: float
    job_id: str
    queue: str
    task: str
    state: State
    run: int
    attempts: int
    who: str | None = None
    why: str | None = None


class MoveFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which committed moves: of these kinds, from `since` on and before `until`, of jobs that go there now."""

    moves: tuple[str, ...]
    since: float
    until: float
    queue: str | None = None
    task: str | None = None
    agent: str | None = None
    no_agent: bool = False


class MovePage(msgspec.Struct, frozen=True):
    """Moves, newest first. `cursor` continues; None at the end."""

    events: list[Event]
    cursor: str | None
    total: int | None
    """How many there are in all; None where the time holds too many moves to count them."""


class Tally(msgspec.Struct, frozen=True):
    """How often a move happened in one hour on one route, by the failure's class and detail where there was one."""

    hour: float
    queue: str
    task: str
    agent: str | None
    move: str
    error_class: str
    detail: str
    number: int


class Group(msgspec.Struct, frozen=True):
    """An error group: first and last time, how often in all, and its latest job."""

    fingerprint: str
    first_at: At
    last_at: At
    buried: int
    queue: str
    task: str
    agent: str | None
    error_class: str | None
    detail: str | None
    error: str | None
    sample: str


class Lesson(msgspec.Struct, frozen=True):
    """How often a strategy worked against a group, and how often not."""

    HIDDEN: ClassVar = ("fingerprint",)
    fingerprint: str
    strategy: str
    worked: int
    failed: int


class Total(msgspec.Struct, frozen=True):
    """How often a move happened on one route in some time."""

    queue: str
    task: str
    agent: str | None
    move: str
    number: int


class OutcomeTally(msgspec.Struct, frozen=True):
    """What became of dead letters, or of what was tried, added up by the hour.

    `died`, `auto`, `person` and `deferred` stand in the hour in which the jobs died, so that what died in an hour is
    what was resolved of it, by itself or by a person, and what is still open. `seconds` is how long that took, in sum.
    `open` is counted when it is asked for: where what died has not come to its end, by `name`: manual, delayed, held,
    or moving (in its queue again). `back` stands in the hour in which a job that had died was done, by whom it was
    brought back. `worked` and `failed` stand in the hour in which the strategy `name` was tried.
    """

    hour: float
    queue: str
    task: str
    agent: str | None
    what: Literal["died", "auto", "person", "deferred", "open", "back", "worked", "failed"]
    name: str
    number: int
    seconds: float


class Minute(msgspec.Struct, frozen=True):
    """How often a move happened in a queue in one minute."""

    at: float
    queue: str
    move: str
    number: int


class Seal(msgspec.Struct, frozen=True):
    """How many jobs a filter matches, and a digest that stands for exactly these."""

    number: int
    digest: str


class Pruned(msgspec.Struct, frozen=True):
    """What a prune dropped."""

    payloads: int = 0
    events: int = 0
    keys: int = 0


class Store(Protocol):
    """Verbs that SQLite and JetStream can both keep."""

    async def open(self) -> Info:
        """Make the store usable and say its durability class and limits."""

    async def close(self) -> None:
        """Finish accepted writes; release no leases."""

    @property
    def answers(self) -> bool:
        """Whether the place of the store answered when it was last asked; a store in this process always does."""

    def hurry(self) -> None:
        """Repeat unanswered requests no more, because the process ends."""

    async def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> list[Inserted]:
        """Each job, its key and its wake-up are one atomic write, the list is not; repeating is safe."""

    async def get(self, ids: Sequence[str]) -> list[Job]:
        """The records themselves with their history, never the view; unknown ids are left out."""

    async def claim(self, wanted: Wanted, worker: str, now: float) -> Claim:
        """Waiting and due → running with a token and run + 1, atomically."""

    async def claim_next(
        self,
        wanted: Wanted,
        worker: str,
        clock: Callable[[], float],
        mark: int,
        seconds: float,
        woken: asyncio.Event,
        hears: Callable[[], bool] = lambda: True,
    ) -> Claim | None:
        """`wait` with a standing claim: a job that a commit of this process makes due may come with it.

        While `hears` says that the worker would not notice, it is given nothing.
        """

    async def heartbeat(self, leases: Sequence[Lease], now: float | None = None) -> list[Lease]:
        """Extend leases, from `now` on the wall clock; returns the lost ones, perhaps late, never wrongly."""

    async def apply(self, commits: Sequence[Commit]) -> list[Outcome]:
        """Each commit whole or not at all, only if its fences hold, durable on return; the list is not atomic."""

    async def doc(self, kind: str, key: str) -> Document | None:
        """One document."""

    async def docs(self, kind: str, prefix: str = "") -> list[Document]:
        """The documents of a kind whose key starts so."""

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100, *, oldest: bool = False) -> Page:
        """The view, newest first unless asked otherwise: may lag, acted on only through get + fence."""

    async def first(self, filters: Sequence[Filter], *, oldest: bool = False) -> list[Job | None]:
        """The view: what `find` lists first for each of these, None where there is nothing."""

    async def seal(self, filter: Filter) -> Seal:
        """The view: how many jobs these are, and a digest that no other choice of this store's jobs has."""

    async def overdue(
        self, now: float, queue: str | None = None, limit: int = 1, *, task: str | None = None
    ) -> list[Job]:
        """The view: waiting jobs that have been due for longest."""

    async def count(
        self, filter: Filter, by: Sequence[str] = (), *, current: bool = False
    ) -> dict[tuple[str | None, ...], int]:
        """The view, counted, by any of queue, task, agent, state and the filter's other fields.

        A view may be seconds old. With `current` it has everything that was committed before: for those who decide by
        the number.
        """

    async def left_behind(self, now: float) -> list[LeftBehind]:
        """The view: running jobs whose process is gone, or whose lease ended 10 s ago by the wall clock `now`."""

    async def returning(self, now: float) -> list[Returning]:
        """The view: the dead letters that come back by themselves, by group, by what they call and by route."""

    async def quiet(self, since: float, limit: int = 100) -> list[Quiet]:
        """The view: running jobs without a sign of progress since then, the quietest first."""

    async def durations(self, task: str, last: int = 100) -> list[float]:
        """The view: the seconds that the last successes of a task took, as far as they are among the newest jobs."""

    async def timings(self, by: TimedBy) -> list[Timing]:
        """The view: how long the last successes of every task or queue waited and took, in bounded time."""

    async def events(self, after: str | None, limit: int = 1000) -> list[Event]:
        """Committed moves in order after the cursor; None starts at the end, "" at the beginning."""

    async def latest(self, limit: int = 50) -> list[Event]:
        """The last committed moves, the newest first; `events` after the cursor of any of them is what came since."""

    async def moves(self, filter: MoveFilter, cursor: str | None = None, limit: int = 50) -> MovePage:
        """The view: the moves of some time that match, newest first, as far as they are kept; a page looks at some
        ten thousand moves at most and may be empty before the end."""

    async def story(self, job_id: str) -> list[Event]:
        """The committed moves of one job, in order, with who and why."""

    async def tallies(self, since: float, until: float, *, whole: bool = False) -> list[Tally]:
        """The view: what happened, by the hour or in the whole time, from the hour of `since` up to that of `until`."""

    async def totals(self, since: float, until: float) -> list[Total]:
        """The view: the tallies between two hours, summed up; months cost little."""

    async def outcomes(self, since: float, until: float, *, whole: bool = False) -> list[OutcomeTally]:
        """The view: what became of what died, by the hour or in the whole time, as for `tallies`."""

    async def minutes(self, since: float, until: float) -> list[Minute]:
        """The view: what happened, new jobs included, by the minute; remembered for a day."""

    async def groups(self, since: float = 0.0, fingerprints: Sequence[str] | None = None) -> list[Group]:
        """The view: every error group that buried a job since then, latest first, or just these."""

    async def lessons(self, *fingerprints: str) -> list[Lesson]:
        """The view: what was tried against these groups, and how often it worked."""

    def scan(self) -> AsyncIterator[Job]:
        """Every record, for export and rebuild."""

    async def prune(
        self, now: float, retention: Mapping[str, float], default: float, keys: float | None = None
    ) -> Pruned:
        """Drop contents of done and discarded jobs past their queue's retention; never dead letters, nor keys
        unless `keys` (seconds) says how long those are remembered. Repairs wrong sums of the last month, too."""

    @property
    def failed(self) -> str | None:
        """Why the store has stopped itself: it takes no write until it is opened anew. None while it works."""

    async def until_failed(self) -> str:
        """Returns why the store stopped itself, when it does; waits for ever otherwise."""

    async def check(self) -> None:
        """Raises the StoreError that keeps the store from being used now: stopped, unreadable, or writes that wait."""

    async def repair(self, now: float) -> list[str]:
        """Restore wake-ups and counters from the records; says what was wrong."""

    async def erase(self, ids: Sequence[str]) -> int:
        """Forget the contents of ended jobs (payload, result, errors, documents); the record and its key stay."""

    async def lingering(self) -> list[str]:
        """Where erased words can still be read, and what ends that, in words; empty once they are gone."""

    async def backup(self, target: str) -> int:
        """A consistent copy of everything while work goes on; returns its size in bytes."""

    async def process(self) -> str:
        """The name of this process among those that have the store open, until it closes the store."""

    async def ended(self, processes: Collection[str]) -> dict[str, bool]:
        """Whether each of these processes has closed the store or died; those that cannot be asked are left out."""

    async def wait(self, mark: int, seconds: float, woken: asyncio.Event | None = None) -> bool:
        """Sleep until something changed since the claim that gave this mark or `woken` is set (True), or so long."""

    def follow(self, ids: Collection[str], changed: asyncio.Event) -> AbstractAsyncContextManager[None]:
        """Inside `async with`, set the event soon after another process has moved one of these jobs.

        It may be set for nothing, or never: who waits looks from time to time as well.
        """
