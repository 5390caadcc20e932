"""A bulk redrive as values: what was chosen, what became of each item, how fast it may go, and when it is over.

    chosen → frozen → canary → moving → settling → finished
                         ↘ paused ↙   ↘ cancelled

Which dead letters belong to it is frozen when it starts. Items are taken in order, so one number, `position`, says
which have been; what each was and became stands in chunks beside the run. Pure: time is an argument, and the app
writes what is decided here, a chunk and the run together with the moves themselves.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from redrive.core.job import Job, Json, State, Usage, iso
from redrive.core.lifecycle import DEFERRED

CHUNK: Final = 200
"""Items in one document, which are moved in one commit."""
GROUPS_KEPT: Final = 100
"""Groups that a scorecard tells apart: the largest. The rest are one row."""
REASONS_KEPT: Final = 20
STORY_KEPT: Final = 50
PASS_RATE: Final = 0.8
"""How much of a canary must succeed, unless somebody says otherwise."""
SETTLES_SECONDS: Final = 86400.0
"""So long after the last move a redrive waits for its jobs to end; then it finishes, and says what is still open."""
BURST_SECONDS: Final = 2.0
"""How much of the rate may gather unused: a late step catches up with a moment, not with a night."""
UNJUDGED: Final = "cannot be judged"
MANY_UNJUDGED: Final = 10
"""So many items that could not be judged, and half of all: something is wrong here, not with the items."""
LONGEST_REASON: Final = 300
OTHER_REASONS: Final = "other reasons"
OTHER_GROUPS: Final = "other groups"
REDRIVE: Final = "redrive"
"""Who speaks in the story where nobody in person did."""

RunState = Literal["canary", "moving", "paused", "settling", "finished", "cancelled"]
ItemStatus = Literal["pending", "skipped", "moved", "succeeded", "failed_again", "discarded"]
Verdict = Literal["passed", "failed"]
GOING: Final[frozenset[RunState]] = frozenset({"canary", "moving"})
"""States in which items are moved."""
HOLDS_GROUPS: Final[frozenset[RunState]] = GOING | {"paused"}
"""States in which no other redrive may take the same groups: there is still something to move."""
SETTLED: Final[frozenset[ItemStatus]] = frozenset({"succeeded", "failed_again", "discarded"})


# ---- what is chosen


class Chosen(msgspec.Struct):
    """A group among what was chosen, as its first dead letter tells it, and how many there are."""

    fingerprint: str | None
    task: str
    error_class: str | None
    error: str | None
    number: int = 0


class Estimate(msgspec.Struct, frozen=True):
    """What one more attempt of each might cost, by what earlier attempts of a sample reported."""

    tokens: int
    cost: float | None
    """None where nobody reported any."""
    sampled: int
    reported: int
    """Of the sampled jobs, those that told what they had used."""


class Plan(msgspec.Struct, frozen=True):
    """A dry run: what a redrive would do. `token` stands for exactly these dead letters."""

    number: int
    chosen: str
    groups: tuple[Chosen, ...]
    """The largest first."""
    queues: dict[str, int]
    skipped: dict[str, int]
    """What would not move, by why."""
    estimate: Estimate | None
    """None where no earlier attempt reported what it had used."""
    token: str
    running: tuple[str, ...] = ()
    """Redrives that still move one of these groups: only when they are over can this one start."""
    warnings: tuple[str, ...] = ()

    @property
    def moving(self) -> int:
        """How many would go back to their queue."""
        return self.number - sum(self.skipped.values())

    def public(self) -> dict[str, Json]:
        """As the outside sees it."""
        return {**msgspec.to_builtins(self), "moving": self.moving}


def token_for(ids: Iterable[str]) -> str:
    """The same for the same ids, in whatever order."""
    digest = hashlib.sha256()
    for id in sorted(ids):
        digest.update(id.encode() + b"\n")
    return digest.hexdigest()[:32]


def largest(groups: Iterable[Chosen], kept: int = GROUPS_KEPT) -> tuple[Chosen, ...]:
    """The largest groups, and the others as one row."""
    ranked = sorted(groups, key=lambda group: (-group.number, group.fingerprint or ""))
    if len(ranked) <= kept:
        return tuple(ranked)
    rest = Chosen(None, OTHER_GROUPS, None, None, sum(group.number for group in ranked[kept:]))
    return (*ranked[:kept], rest)


def spread(items: Sequence[tuple[str, int]], canary: int) -> list[tuple[str, int]]:
    """The same items, those of the canary first: from every group in turn, so that it says something of each."""
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


def estimated(usages: Sequence[Usage | None], number: int) -> Estimate | None:
    """The mean of a sample, `None` for a job that told nothing, taken for all of them."""
    told = [usage for usage in usages if usage is not None]
    if not told:
        return None
    tokens = sum(usage.input_tokens + usage.output_tokens for usage in told)
    cost = sum(usage.cost for usage in told)
    share = number / len(usages)
    return Estimate(round(tokens * share), cost * share if cost else None, len(usages), len(told))


def last_usage(job: Job) -> Usage | None:
    """What the latest attempt that told it has used."""
    return next((attempt.usage for attempt in reversed(job.history) if attempt.usage is not None), None)


# ---- items


class Item(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One frozen dead letter and what became of it."""

    id: str
    group: int
    """Its place in the run's `by_group`."""
    status: ItemStatus = "pending"
    why: str | None = None
    run: int | None = None
    """The job's last run before it was moved: what it ran later, it ran for this redrive."""


class ItemView(msgspec.Struct, frozen=True):
    """An item as the outside sees it."""

    id: str
    fingerprint: str | None
    task: str
    status: ItemStatus
    why: str | None = None


class ItemPage(msgspec.Struct, frozen=True):
    """Items in the order in which they are taken. `cursor` continues; None at the end."""

    items: list[ItemView]
    cursor: str | None
    kept: bool = True
    """False for a redrive of long ago: only its scorecard is still there."""


def viewed(run: RedriveRun, item: Item) -> ItemView:
    group = run.by_group[item.group]
    return ItemView(item.id, group.fingerprint, group.task, item.status, item.why)


def chunked(items: Sequence[tuple[str, int]]) -> list[tuple[Item, ...]]:
    return [
        tuple(Item(id, group) for id, group in items[start : start + CHUNK]) for start in range(0, len(items), CHUNK)
    ]


def taken(item: Item, run: int) -> Item:
    """The item went back to its queue."""
    return msgspec.structs.replace(item, status="moved", run=run)


def skipped(item: Item, why: str) -> Item:
    return msgspec.structs.replace(item, status="skipped", why=why[:LONGEST_REASON])


def settled(item: Item, job: Job | None) -> Item:
    """What became of a moved item, by its job as it is now; the item as it was where that is still open."""
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


def _died_again(item: Item, job: Job) -> bool:
    """Dead, put off by somebody after it had died, or already brought back once more by somebody else."""
    put_off = job.state is State.held and job.because == DEFERRED
    return job.state is State.dead or put_off or job.fresh_from > (item.run or 0)


# ---- the run


class GroupScore(msgspec.Struct, frozen=True):
    """What became of one group."""

    fingerprint: str | None
    task: str
    error_class: str | None
    number: int
    error: str | None = None
    """What its latest dead letter says. Never kept here, only shown: an error is erased in one place."""
    moved: int = 0
    skipped: int = 0
    succeeded: int = 0
    failed_again: int = 0
    discarded: int = 0

    @property
    def open(self) -> int:
        return self.moved - self.succeeded - self.failed_again - self.discarded


class Canary(msgspec.Struct, frozen=True):
    """A few that go first and are judged before the rest may follow. What was let go meanwhile is no evidence."""

    size: int
    pass_rate: float
    start: int = 0
    """The first item of it."""
    moved: int = 0
    succeeded: int = 0
    failed_again: int = 0
    verdict: Verdict | None = None
    judged_at: float | None = None

    @property
    def open(self) -> int:
        return self.moved - self.succeeded - self.failed_again

    @property
    def text(self) -> str:
        """How it stands, in words."""
        if self.verdict is None:
            return f"the canary of {self.size} is not judged yet: {self.score}, {self.open} open"
        return f"the canary {self.verdict}: {self.score}, {self.pass_rate:.0%} had to"

    @property
    def score(self) -> str:
        ended = self.succeeded + self.failed_again
        return f"{self.succeeded} of {ended} succeeded" if ended else "nothing has ended yet"


class Pace(msgspec.Struct, frozen=True):
    """When moves were last allowed, and how many of the allowed ones have not been made."""

    at: float
    saved: float = 1.0


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a redrive's story."""

    at: float
    what: str
    who: str
    why: str | None = None


class RedriveRun(msgspec.Struct, frozen=True):
    """A bulk redrive: who wanted what and why, how far it is, and its scorecard.

    total = moved + skipped + left, and moved = succeeded + failed_again + discarded + open, at every moment.
    """

    id: str
    state: RunState
    who: str
    why: str | None
    at: float
    chosen: str
    """The filter, in words."""
    total: int
    by_group: tuple[GroupScore, ...] = ()
    rate: float | None = None
    """Moves a second, at most."""
    moved: int = 0
    """How many went back to their queue."""
    skipped: int = 0
    """How many were no longer dead, or would have died again at once."""
    skipped_because: dict[str, int] = {}
    succeeded: int = 0
    failed_again: int = 0
    discarded: int = 0
    """Let go by somebody after they were moved."""
    canary: Canary | None = None
    reason: str | None = None
    """Why it is paused or cancelled."""
    moved_at: float | None = None
    """The last move."""
    ended_at: float | None = None
    story: tuple[Said, ...] = ()
    position: int = 0
    """Items before this one were taken."""
    open_in: tuple[int, ...] = ()
    """Open items by chunk, so that only those chunks are looked at."""
    pace: Pace | None = None
    paused_in: RunState | None = None
    items_kept: bool = True
    unjudged: int = 0
    """Of the skipped ones, those of which nobody could say whether they may go back."""

    @property
    def short_id(self) -> str:
        return self.id[-8:]

    @property
    def left(self) -> int:
        """Not taken yet."""
        return self.total - self.moved - self.skipped

    @property
    def open(self) -> int:
        """Moved, and not ended yet."""
        return self.moved - self.succeeded - self.failed_again - self.discarded

    @property
    def over(self) -> bool:
        """Nothing changes any more."""
        return self.ended_at is not None

    @property
    def text(self) -> str:
        """How it stands, in one sentence."""
        ended = f"{self.succeeded} succeeded, {self.failed_again} failed again"
        let_go = f", {self.discarded} were discarded" if self.discarded else ""
        rest = f"{self.skipped} skipped, {self.open} open, {self.left} left"
        because = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{because}: {self.moved} of {self.total} moved, {ended}{let_go}, {rest}"

    def public(self) -> dict[str, Json]:
        """As the outside sees it: ISO times, no bookkeeping."""
        body = {name: value for name, value in msgspec.to_builtins(self).items() if name not in _BOOKS}
        for name in ("at", "moved_at", "ended_at"):
            body[name] = iso(body[name])
        body |= {"left": self.left, "open": self.open, "over": self.over, "text": self.text}
        body["by_group"] = [{**msgspec.to_builtins(group), "open": group.open} for group in self.by_group]
        body["story"] = [{**msgspec.to_builtins(said), "at": iso(said.at)} for said in self.story]
        if self.canary is not None:
            body["canary"] |= {"open": self.canary.open, "text": self.canary.text,
                               "judged_at": iso(self.canary.judged_at)}  # fmt: skip
            del body["canary"]["start"]
        return body


_BOOKS: Final = frozenset({"position", "open_in", "pace", "paused_in", "unjudged", "items_kept"})


def begun(
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
) -> RedriveRun:
    """A redrive whose items are frozen and of which nothing has moved yet."""
    return RedriveRun(
        id, "canary" if canary else "moving", who, why, now, chosen, total,
        by_group=tuple(GroupScore(g.fingerprint, g.task, g.error_class, g.number) for g in groups),
        rate=rate,
        canary=Canary(canary, pass_rate) if canary else None,
        story=(Said(now, "started", who, why),),
        open_in=(0,) * -(-total // CHUNK),
        pace=Pace(now) if rate is not None else None,
    )  # fmt: skip


def with_errors(run: RedriveRun, errors: Mapping[str, str | None]) -> RedriveRun:
    """For eyes only."""
    groups = [msgspec.structs.replace(group, error=errors.get(group.fingerprint or "")) for group in run.by_group]
    return msgspec.structs.replace(run, by_group=tuple(groups))


def turns(run: RedriveRun, last: int) -> list[int]:
    """The chunks that have open items, those after the one that was looked at last first."""
    open_ones = [number for number, count in enumerate(run.open_in) if count]
    return [*(number for number in open_ones if number > last), *(number for number in open_ones if number <= last)]


# ---- how fast


def room(run: RedriveRun, now: float, most: int = CHUNK) -> int:
    """How many may be moved now: by the rate, by what the canary still needs, and at most so many."""
    if run.state not in GOING:
        return 0
    if run.rate is not None:
        most = min(most, int(_refilled(run, now).saved))
    if run.state == "canary" and run.canary is not None:
        most = min(most, run.canary.size - run.canary.moved)
    return max(0, min(most, run.left))


def paced(run: RedriveRun) -> bool:
    """Whether only time is wanting for the next move."""
    waits_for_canary = run.state == "canary" and run.canary is not None and run.canary.moved >= run.canary.size
    return run.state in GOING and run.rate is not None and bool(run.left) and not waits_for_canary


def _refilled(run: RedriveRun, now: float) -> Pace:
    """A clock that went back allows nothing, and counts from where it is."""
    pace, rate = run.pace or Pace(now), run.rate or 0.0
    saved = pace.saved + max(0.0, now - pace.at) * rate
    return Pace(now, min(saved, max(1.0, rate * BURST_SECONDS)))


# ---- what a step has done


def noted(
    run: RedriveRun, number: int, before: Sequence[Item], after: Sequence[Item], now: float, *, took: int = 0
) -> RedriveRun:
    """The run once these items of chunk `number` became so; `took` items were taken for the first time."""
    changed = [
        (number * CHUNK + place, new)
        for place, (old, new) in enumerate(zip(before, after, strict=True))
        if old.status != new.status
    ]
    totals = Counter(item.status for _, item in changed)
    moved, ended = totals["moved"], sum(totals[status] for status in SETTLED)
    open_in = list(run.open_in)
    open_in[number] += moved - ended
    return msgspec.structs.replace(
        run,
        **_added(run, totals),
        by_group=_scored(run.by_group, [item for _, item in changed]),
        skipped_because=_reasons(
            run.skipped_because, [item.why or "" for _, item in changed if item.status == "skipped"]
        ),
        canary=_watched(run.canary, changed),
        unjudged=run.unjudged + sum((item.why or "").startswith(UNJUDGED) for _, item in changed),
        position=run.position + took,
        open_in=tuple(open_in),
        pace=_spent(run, moved, now) if took else run.pace,
        moved_at=now if moved else run.moved_at,
    )


_COUNTS: Final[tuple[ItemStatus, ...]] = ("moved", "skipped", "succeeded", "failed_again", "discarded")


def _added(counts: RedriveRun | GroupScore, totals: Counter[ItemStatus]) -> dict[str, Any]:
    return {name: getattr(counts, name) + totals[name] for name in _COUNTS if totals[name]}


def _scored(scores: Sequence[GroupScore], changed: Sequence[Item]) -> tuple[GroupScore, ...]:
    by_group: dict[int, Counter[ItemStatus]] = {}
    for item in changed:
        by_group.setdefault(item.group, Counter())[item.status] += 1
    return tuple(
        msgspec.structs.replace(score, **_added(score, by_group[place])) if place in by_group else score
        for place, score in enumerate(scores)
    )


def _reasons(known: dict[str, int], found: Sequence[str]) -> dict[str, int]:
    """Counted; when there are too many different ones, the further ones are one."""
    counted = dict(known)
    for why in found:
        name = why if why in counted or len(counted) < REASONS_KEPT else OTHER_REASONS
        counted[name] = counted.get(name, 0) + 1
    return counted


def reasons(found: Iterable[str]) -> dict[str, int]:
    """How often each, the most frequent first."""
    return dict(sorted(_reasons({}, list(found)).items(), key=lambda pair: -pair[1]))


def _watched(canary: Canary | None, changed: Sequence[tuple[int, Item]]) -> Canary | None:
    if canary is None or canary.verdict is not None:
        return canary
    totals = Counter(item.status for place, item in changed if place >= canary.start)
    return msgspec.structs.replace(
        canary,
        moved=canary.moved + totals["moved"] - totals["discarded"],
        succeeded=canary.succeeded + totals["succeeded"],
        failed_again=canary.failed_again + totals["failed_again"],
    )


def _spent(run: RedriveRun, moved: int, now: float) -> Pace | None:
    if run.rate is None:
        return None
    pace = _refilled(run, now)
    return Pace(pace.at, pace.saved - moved)


def defective(before: RedriveRun, after: RedriveRun) -> bool:
    """Whether a step that skips items for want of a judgement should rather not be taken.

    One strange item is skipped, so that it does not stop the others. When most are strange, the code that judges is
    broken, and skipping them all would be how it is found out.
    """
    more = after.unjudged > before.unjudged
    return more and after.unjudged >= MANY_UNJUDGED and 2 * after.unjudged >= after.position


# ---- what follows from it


def judged(canary: Canary, left: int) -> Verdict | None:
    """As soon as nothing can change it. Where nothing is left to move, those that moved are the whole canary."""
    size = canary.size if left else canary.moved
    if not size:
        return None
    needed = max(1, math.ceil(canary.pass_rate * size - 1e-9))
    if size - canary.failed_again < needed:
        return "failed"
    return "passed" if canary.succeeded >= needed else None


def turned(run: RedriveRun, now: float) -> RedriveRun:
    """The run in the state that its numbers call for; itself where that is the one it is in."""
    run = _judged(run, now)
    if run.state in GOING and not run.left:
        run = msgspec.structs.replace(run, state="settling")
    if run.state == "settling" and (not run.open or _waited(run, now)):
        still = f"{run.open} still open" if run.open else None
        return _told(run, Said(now, "finished", REDRIVE, still), state="finished", ended_at=now)
    if run.state == "cancelled" and not run.over and (not run.open or _waited(run, now)):
        return msgspec.structs.replace(run, ended_at=now)
    return run


def _judged(run: RedriveRun, now: float) -> RedriveRun:
    """A canary that failed stops the rest, where there is a rest; one that passed lets it go."""
    canary = run.canary
    if canary is None or canary.verdict is not None or (verdict := judged(canary, run.left)) is None:
        return run
    canary = msgspec.structs.replace(canary, verdict=verdict, judged_at=now)
    said = Said(now, f"canary {verdict}", REDRIVE, f"{canary.score}, {canary.pass_rate:.0%} had to")
    if run.state != "canary" or not run.left:
        return _told(run, said, canary=canary)
    if verdict == "passed":
        return _told(run, said, canary=canary, state="moving")
    return _told(run, said, canary=canary, state="paused", paused_in="canary", reason=canary.text)


def _waited(run: RedriveRun, now: float) -> bool:
    last = run.moved_at if run.moved_at is not None else run.at
    return now - last >= SETTLES_SECONDS


def _told(run: RedriveRun, said: Said, **changes: Any) -> RedriveRun:
    return msgspec.structs.replace(run, story=(*run.story, said)[-STORY_KEPT:], **changes)


# ---- what people decide


def paused(run: RedriveRun, now: float, who: str, why: str | None) -> RedriveRun | None:
    """Nothing more moves until it is resumed; what was moved goes on. None where there is nothing to pause."""
    if run.state not in GOING:
        return None
    reason = f"paused by {who}" + (f": {why}" if why else "")
    return _told(run, Said(now, "paused", who, why), state="paused", paused_in=run.state, reason=reason)


def resumed(run: RedriveRun, now: float, who: str, why: str | None, canary: int | None = None) -> RedriveRun | None:
    """Goes on where it stopped; None where it is not paused.

    `canary` is the size of a fresh one, 0 for none. Unless it is said, a canary that failed is followed by another of
    the same size: somebody says that the cause is gone, and this shows it.
    """
    if run.state != "paused":
        return None
    last = run.canary
    if canary is None and last is not None and last.verdict == "failed":
        canary = last.size
    changes: dict[str, Any] = {"state": "moving", "reason": None, "paused_in": None}
    changes["pace"] = Pace(now) if run.rate is not None else None
    if canary:
        fresh = Canary(canary, last.pass_rate if last is not None else PASS_RATE, start=run.position)
        changes |= {"state": "canary", "canary": fresh}
    elif canary is None and last is not None and last.verdict is None:
        changes["state"] = run.paused_in or "moving"
    return _told(run, Said(now, "resumed", who, why), **changes)


def cancelled(run: RedriveRun, now: float, who: str, why: str | None) -> RedriveRun | None:
    """Nothing more moves; what was moved stays moved, and is still counted when it ends. None where it is over."""
    if run.state not in HOLDS_GROUPS:
        return None
    reason = f"cancelled by {who}" + (f": {why}" if why else "")
    return turned(_told(run, Said(now, "cancelled", who, why), state="cancelled", reason=reason), now)


# ---- who flies


class Flight(msgspec.Struct, frozen=True, omit_defaults=True):
    """A redrive that is not over, and the groups that nobody else may take meanwhile."""

    at: float
    groups: tuple[str, ...] = ()
    frozen: bool = False
    """Whether its items are all written; until then it is being started, or its starter has died."""


Flights = dict[str, Flight]


def in_the_way(flights: Flights, groups: Iterable[str]) -> dict[str, str]:
    """Which of these groups are being moved, and by which redrive."""
    wanted = set(groups)
    return {group: id for id, flight in flights.items() for group in flight.groups if group in wanted}


def flight_of(run: RedriveRun, flight: Flight | None) -> Flight | None:
    """What the run still needs of its flight: nothing when it is over, no groups when all of them have moved."""
    if run.over or flight is None:
        return None
    return flight if run.state in HOLDS_GROUPS else msgspec.structs.replace(flight, groups=())
