"""Values of a bulk run: the choice, the frozen items, the result of each item, and the scorecard.

    chosen → frozen → canary → moving → settling → finished
                         ↘ paused ↙   ↘ cancelled

Items are frozen when the run starts and taken in order, so `position` says which were taken. Chunks of items are
documents beside the run. Pure: time is an argument, and redrives/ writes a chunk and the run together with the moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, Literal

import msgspec

from redrive.core.documents import Kind
from redrive.core.job import At, Job, Json, State, Usage
from redrive.core.lifecycle import DEFERRED
from redrive.core.view import Shown
from redrive.deadletters.verbs import ACTS, undoable

CHUNK: Final = 200
"""Items in one document; the most that one commit moves."""
PASS_RATE: Final = 0.8
"""Share of a canary that must succeed unless the caller gives another."""
LONGEST_REASON: Final = 300
NOTHING: Final[Mapping[str, Json]] = {}
UNDO: Final = "undo"
"""The verb of a run that takes an act back."""

RunState = Literal["canary", "moving", "paused", "settling", "finished", "cancelled"]
ItemStatus = Literal["pending", "skipped", "moved", "succeeded", "failed_again", "discarded"]
Verdict = Literal["passed", "failed"]
GOING: Final[frozenset[RunState]] = frozenset({"canary", "moving"})
"""States in which items are moved."""
HOLDS_GROUPS: Final[frozenset[RunState]] = GOING | {"paused"}
"""States in which no other redrive may take the same groups, because items are left to move."""
SETTLED: Final[frozenset[ItemStatus]] = frozenset({"succeeded", "failed_again", "discarded"})


# ---- before a run

GROUPS_KEPT: Final = 100
"""Number of groups with a row in the scorecard: the largest. The rest share one row."""
OTHER_GROUPS: Final = "other groups"


class Chosen(msgspec.Struct):
    """One group of the chosen dead letters: its first dead letter and the number of dead letters."""

    fingerprint: str | None
    task: str
    error_class: str | None
    error: str | None
    number: int = 0


class Estimate(msgspec.Struct, frozen=True):
    """Estimated cost of one more attempt of each job, from the usage that earlier attempts of a sample reported."""

    tokens: int
    cost: float | None
    """None if no sampled job reported usage."""
    sampled: int
    reported: int
    """Number of sampled jobs that reported their usage."""


class Plan(Shown, msgspec.Struct, frozen=True):
    """A dry run: what a redrive would do. `token` stands for exactly these dead letters."""

    SHOWN: ClassVar = ("moving",)
    number: int
    chosen: str
    groups: tuple[Chosen, ...]
    """Groups, the largest first."""
    queues: dict[str, int]
    skipped: dict[str, int]
    """Number of dead letters that would not move, by reason."""
    estimate: Estimate | None
    """None if no earlier attempt reported usage."""
    token: str
    running: tuple[str, ...] = ()
    """Redrives that still move one of these groups: this redrive can start only when they are over."""
    warnings: tuple[str, ...] = ()

    @property
    def moving(self) -> int:
        """Number of dead letters that would go back to their queue."""
        return self.number - sum(self.skipped.values())


def token_for(ids: Iterable[str]) -> str:
    """Makes a token of the ids that does not depend on their order."""
    digest = hashlib.sha256()
    for id in sorted(ids):
        digest.update(id.encode() + b"\n")
    return digest.hexdigest()[:32]


def largest(groups: Iterable[Chosen], kept: int = GROUPS_KEPT) -> tuple[Chosen, ...]:
    """Selects the largest groups, and sums the others in one row."""
    ranked = sorted(groups, key=lambda group: (-group.number, group.fingerprint or ""))
    if len(ranked) <= kept:
        return tuple(ranked)
    rest = Chosen(None, OTHER_GROUPS, None, None, sum(group.number for group in ranked[kept:]))
    return (*ranked[:kept], rest)


def spread(items: Sequence[tuple[str, int]], canary: int) -> list[tuple[str, int]]:
    """Orders the items with the canary first, taken from every group in turn, so that the canary tests each group."""
    if not canary:
        return list(items)
    turns: dict[int, int] = {}
    ranked = []
    for place, (_, group) in enumerate(items):
        turn = turns[group] = turns.get(group, 0) + 1
        if turn <= canary:
            ranked.append((turn, place))
    first = [place for _, place in sorted(ranked)[:canary]]
    taken = set(first)
    return [items[place] for place in first] + [item for place, item in enumerate(items) if place not in taken]


def estimate_usage(usages: Sequence[Usage | None], number: int) -> Estimate | None:
    """Scales the mean of a sample to all jobs; jobs that reported nothing (None) do not count."""
    told = [usage for usage in usages if usage is not None]
    if not told:
        return None
    tokens = sum(usage.input_tokens + usage.output_tokens for usage in told)
    cost = sum(usage.cost for usage in told)
    share = number / len(usages)
    return Estimate(round(tokens * share), cost * share if cost else None, len(usages), len(told))


def last_usage(job: Job) -> Usage | None:
    """Returns the usage of the latest attempt that reported any."""
    return next((attempt.usage for attempt in reversed(job.history) if attempt.usage is not None), None)


# ---- items


class RunItem(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One frozen dead letter and its result."""

    id: str
    group: int
    """Index of the item's group in the run's `by_group`."""
    status: ItemStatus = "pending"
    why: str | None = None
    run: int | None = None
    """Number of the job's last run before the move: later runs belong to this redrive."""
    at: float | None = None
    """Time of the move: undo takes back only jobs that have not changed since."""
    before: dict[str, Json] = {}
    """Values that the move overwrote, without the job's contents."""
    apart: bool = False
    """Whether the overwritten values are kept with the job, because they hold the job's contents."""


REDRIVE_ITEMS: Final = Kind[tuple[RunItem, ...]]("redrive_items", tuple[RunItem, ...])


class ItemView(msgspec.Struct, frozen=True):
    """An item as users see it."""

    id: str
    fingerprint: str | None
    task: str
    status: ItemStatus
    why: str | None = None


class ItemPage(msgspec.Struct, frozen=True):
    """Items in the order in which the run takes them. `cursor` continues the listing; None at the end."""

    items: list[ItemView]
    cursor: str | None
    kept: bool = True
    """False for an old redrive of which only the scorecard is kept."""


def view_item(run: RedriveRun, item: RunItem) -> ItemView:
    group = run.by_group[item.group]
    return ItemView(item.id, group.fingerprint, group.task, item.status, item.why)


def split_into_chunks(items: Sequence[tuple[str, int]]) -> list[tuple[RunItem, ...]]:
    return [
        tuple(RunItem(id, group) for id, group in items[start : start + CHUNK]) for start in range(0, len(items), CHUNK)
    ]


def taken(item: RunItem, run: int, at: float | None = None, before: Mapping[str, Json] = NOTHING) -> RunItem:
    """Marks the item as moved and keeps the overwritten values; none if those are kept with the job."""
    return msgspec.structs.replace(item, status="moved", run=run, at=at, before=dict(before))


def skipped(item: RunItem, why: str) -> RunItem:
    return msgspec.structs.replace(item, status="skipped", why=why[:LONGEST_REASON])


def settled(item: RunItem, job: Job | None) -> RunItem:
    """Determines the result of a moved item from its job; returns the item unchanged while the job is open."""
    if item.status != "moved":
        return item
    if job is None or job.state in (State.discarded, State.purged):
        why = "its record is gone" if job is None else job.because or str(job.state)
        return msgspec.structs.replace(item, status="discarded", why=why)
    if job.state is State.done:
        return msgspec.structs.replace(item, status="succeeded")
    if _died_again(item, job):
        return msgspec.structs.replace(item, status="failed_again", why=f"{job.because}: {job.error_class}")
    return item


def _died_again(item: RunItem, job: Job) -> bool:
    """Whether the job died again, was deferred after it died, or was redriven once more by another run."""
    put_off = job.state is State.held and job.because == DEFERRED
    return job.state is State.dead or put_off or job.fresh_from > (item.run or 0)


# ---- the run


class GroupScore(msgspec.Struct, frozen=True):
    """Result of one group in a run."""

    SHOWN: ClassVar = ("open",)
    fingerprint: str | None
    task: str
    error_class: str | None
    number: int
    error: str | None = None
    """Error of the latest dead letter of the group. Shown only, never stored, so that erasing has one place."""
    moved: int = 0
    skipped: int = 0
    succeeded: int = 0
    failed_again: int = 0
    discarded: int = 0

    @property
    def open(self) -> int:
        return self.moved - self.succeeded - self.failed_again - self.discarded


class Canary(msgspec.Struct, frozen=True):
    """The first items of a run, judged before the rest may move. Discarded jobs do not count."""

    HIDDEN: ClassVar = ("start",)
    SHOWN: ClassVar = ("open", "text")
    size: int
    pass_rate: float
    start: int = 0
    """Position of the canary's first item."""
    moved: int = 0
    succeeded: int = 0
    failed_again: int = 0
    verdict: Verdict | None = None
    judged_at: At | None = None

    @property
    def open(self) -> int:
        return self.moved - self.succeeded - self.failed_again

    @property
    def text(self) -> str:
        """State of the canary, in words."""
        if self.verdict is None:
            return f"the canary of {self.size} is not judged yet: {self.score}, {self.open} open"
        return f"the canary {self.verdict}: {self.score}, {self.pass_rate:.0%} had to"

    @property
    def score(self) -> str:
        ended = self.succeeded + self.failed_again
        return f"{self.succeeded} of {ended} succeeded" if ended else "nothing has ended yet"


class Pace(msgspec.Struct, frozen=True):
    """Time when the allowed moves were last counted, and how many of those have not been made."""

    at: float
    saved: float = 1.0


class RunLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a redrive's history."""

    SPARSE: ClassVar = True
    at: At
    what: str
    who: str
    why: str | None = None


_OF_STEPS: Final = ("position", "open_in", "pace", "paused_in", "unjudged", "items_kept")
_OF_THE_ORDER: Final = ("unknown_too", "words", "filter", "undo_id")


class RedriveRun(Shown, msgspec.Struct, frozen=True):
    """A bulk run: who started it and why, its progress, and its scorecard.

    total = moved + skipped + left, and moved = succeeded + failed_again + discarded + open, at every moment.
    """

    HIDDEN: ClassVar = (*_OF_STEPS, *_OF_THE_ORDER)
    SHOWN: ClassVar = ("left", "open", "over", "text")
    id: str
    state: RunState
    who: str
    why: str | None
    at: At
    chosen: str
    """The filter, in words."""
    total: int
    by_group: tuple[GroupScore, ...] = ()
    rate: float | None = None
    """Moves a second, at most."""
    moved: int = 0
    """Number of moved jobs: for a redrive, those sent back to their queue."""
    skipped: int = 0
    """Number of jobs that were no longer dead, would have died again at once, or may have landed."""
    skipped_because: dict[str, int] = {}
    succeeded: int = 0
    failed_again: int = 0
    discarded: int = 0
    """Number of jobs that were discarded after the move."""
    canary: Canary | None = None
    reason: str | None = None
    """Why the run is paused or cancelled."""
    moved_at: At | None = None
    """Time of the last move."""
    ended_at: At | None = None
    story: tuple[RunLine, ...] = ()
    position: int = 0
    """Position of the next item; all items before it were taken."""
    open_in: tuple[int, ...] = ()
    """Number of open items in each chunk, so that only chunks with open items are checked."""
    pace: Pace | None = None
    paused_in: RunState | None = None
    items_kept: bool = True
    unjudged: int = 0
    """Number of items skipped because judging them raised an unexpected error."""
    unknown_too: bool = False
    """Whether dead letters with an unknown outcome are included."""
    verb: str = "redrive"
    """Verb done to each job: any verb that works on many, or `undo`."""
    said: dict[str, Json] = {}
    """Words of the verb that the record keeps."""
    words: dict[str, Json] = {}
    """All words of the verb, until the last item was taken."""
    filter: dict[str, Json] = {}
    """The filter that chose the jobs, if there was one."""
    undone: int = 0
    undone_at: At | None = None
    undone_by: str | None = None
    """Name of the person who took the run back, or has begun to."""
    undo_id: str | None = None
    """Id of the run that takes this one back."""

    @property
    def short_id(self) -> str:
        return self.id[-8:]

    @property
    def left(self) -> int:
        """Number of items that were not taken yet."""
        return self.total - self.moved - self.skipped

    @property
    def open(self) -> int:
        """Number of moved jobs that have not ended yet; 0 for a verb that neither redrives nor purges."""
        return self.moved - self.succeeded - self.failed_again - self.discarded if self.settles else 0

    @property
    def settles(self) -> bool:
        """Whether moved jobs are checked later: how the jobs end, or that the purged contents are gone."""
        return self.verb in ACTS and (ACTS[self.verb].brings_back or ACTS[self.verb].final)

    @property
    def brings_back(self) -> bool:
        """Whether the run sends jobs to their queue; `rd.redrives` lists only such runs."""
        return self.verb in ACTS and ACTS[self.verb].brings_back

    @property
    def undoable(self) -> bool:
        return undoable(self.verb) and self.undone_by is None and self.items_kept and bool(self.moved)

    @property
    def over(self) -> bool:
        """Whether the run has ended: its numbers no longer change."""
        return self.ended_at is not None

    @property
    def text(self) -> str:
        """State of the run, in one sentence."""
        ended = f"{self.succeeded} succeeded, {self.failed_again} failed again"
        let_go = f", {self.discarded} were discarded" if self.discarded else ""
        rest = f"{self.skipped} skipped, {self.open} open, {self.left} left"
        because = f" ({self.reason})" if self.reason else ""
        back = f", {self.undone} taken back by {self.undone_by}" if self.undone_at is not None else ""
        return f"{self.state}{because}: {self.moved} of {self.total} moved, {ended}{let_go}, {rest}{back}"


REDRIVE: Final = Kind[RedriveRun]("redrive", RedriveRun)


def new_run(
    id: str,
    now: float,
    *,
    who: str,
    why: str | None,
    chosen: str,
    groups: Sequence[Chosen],
    total: int,
    canary: int,
    pass_rate: float,
    rate: float | None,
    unknown_too: bool = False,
    verb: str = "redrive",
    said: Mapping[str, Json] = NOTHING,
    words: Mapping[str, Json] = NOTHING,
    filter: Mapping[str, Json] = NOTHING,
) -> RedriveRun:
    """Makes a run of which no item has moved yet."""
    return RedriveRun(
        id,
        "canary" if canary else "moving",
        who,
        why,
        now,
        chosen,
        total,
        by_group=tuple(GroupScore(g.fingerprint, g.task, g.error_class, g.number) for g in groups),
        rate=rate,
        canary=Canary(canary, pass_rate) if canary else None,
        story=(RunLine(now, "started", who, why),),
        open_in=(0,) * -(-total // CHUNK),
        pace=Pace(now) if rate is not None else None,
        unknown_too=unknown_too,
        verb=verb,
        said=dict(said),
        words=dict(words),
        filter=dict(filter),
    )


def with_errors(run: RedriveRun, errors: Mapping[str, str | None]) -> RedriveRun:
    """Adds the error of each group to a run. Shown only, never stored."""
    groups = [msgspec.structs.replace(group, error=errors.get(group.fingerprint or "")) for group in run.by_group]
    return msgspec.structs.replace(run, by_group=tuple(groups))


class Flight(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run that is not over, with the groups that no other redrive may take meanwhile."""

    at: float
    groups: tuple[str, ...] = ()
    frozen: bool = False
    """Whether all items are written; until then the run is being started, or the starting process has died."""


Flights = dict[str, Flight]
REDRIVE_FLIGHTS: Final = Kind[Flights]("redrive_flights", Flights)


def in_the_way(flights: Flights, groups: Iterable[str]) -> dict[str, str]:
    """Finds which of these groups are being moved, and by which redrive."""
    wanted = set(groups)
    return {group: id for id, flight in flights.items() for group in flight.groups if group in wanted}


def flight_of(run: RedriveRun, flight: Flight | None) -> Flight | None:
    """Returns the run's updated flight: None when the run is over, without groups when all items have moved."""
    if run.over or flight is None:
        return None
    return flight if run.state in HOLDS_GROUPS else msgspec.structs.replace(flight, groups=())
