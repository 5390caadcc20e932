"""Rules of a run's progress: the rate, the result of a step, the next state, and pause, resume and cancel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from redrive.deadletters import bulk_run
from redrive.deadletters.bulk_run import Canary, GroupScore, ItemStatus, Pace, RedriveRun, RunItem, RunLine, Verdict

REASONS_KEPT: Final = 20
STORY_KEPT: Final = 50
SETTLES_SECONDS: Final = 86400.0
"""Time after the last move that a redrive waits for moved jobs to end; then it finishes and reports the open ones."""
BURST_SECONDS: Final = 2.0
"""Seconds of unused rate that may add up: a late step catches up on a moment, not on a night."""
UNJUDGED: Final = "cannot be judged"
MANY_UNJUDGED: Final = 10
"""With this many items that could not be judged, if also half of all: the fault is in the code, not in the items."""
OTHER_REASONS: Final = "other reasons"
REDRIVE: Final = "redrive"
"""Author of story entries that the scheduler writes."""


def turns(run: RedriveRun, last: int) -> list[int]:
    """Lists the chunks with open items, starting after the chunk that was checked last."""
    open_ones = [number for number, count in enumerate(run.open_in) if count]
    return [*(number for number in open_ones if number > last), *(number for number in open_ones if number <= last)]


# ---- rate


def room(run: RedriveRun, now: float, most: int = bulk_run.CHUNK) -> int:
    """Computes how many items may move now, limited by the rate, the canary's size and `most`."""
    if run.state not in bulk_run.GOING:
        return 0
    if run.rate is not None:
        most = min(most, int(_refill(run, now).saved))
    if run.state == "canary" and run.canary is not None:
        most = min(most, run.canary.size - run.canary.moved)
    return max(0, min(most, run.left))


def waits_for_time(run: RedriveRun) -> bool:
    """Whether the next move waits for nothing but the rate."""
    waits_for_canary = run.state == "canary" and run.canary is not None and run.canary.moved >= run.canary.size
    return run.state in bulk_run.GOING and run.rate is not None and bool(run.left) and not waits_for_canary


def _refill(run: RedriveRun, now: float) -> Pace:
    """Adds the moves that the rate allows since the last count. A clock that was set back adds none."""
    pace, rate = run.pace or Pace(now), run.rate or 0.0
    saved = pace.saved + max(0.0, now - pace.at) * rate
    return Pace(now, min(saved, max(1.0, rate * BURST_SECONDS)))


# ---- result of a step


def record_items(
    run: RedriveRun, number: int, before: Sequence[RunItem], after: Sequence[RunItem], now: float, *, took: int = 0
) -> RedriveRun:
    """Updates the run for changed items of chunk `number`; `took` of the items were taken for the first time."""
    changed = [
        (number * bulk_run.CHUNK + place, new)
        for place, (old, new) in enumerate(zip(before, after, strict=True))
        if old.status != new.status
    ]
    totals = Counter(item.status for _, item in changed)
    moved, ended = totals["moved"], sum(totals[status] for status in bulk_run.SETTLED)
    open_in = list(run.open_in)
    open_in[number] += moved - ended
    return msgspec.structs.replace(
        run,
        **_add_counts(run, totals),
        by_group=_update_scores(run.by_group, [item for _, item in changed]),
        skipped_because=_reasons(
            run.skipped_because, [item.why or "" for _, item in changed if item.status == "skipped"]
        ),
        canary=_update_canary(run.canary, changed),
        unjudged=run.unjudged + sum((item.why or "").startswith(UNJUDGED) for _, item in changed),
        position=run.position + took,
        open_in=tuple(open_in),
        pace=_spend(run, moved, now) if took else run.pace,
        moved_at=now if moved else run.moved_at,
    )


_COUNTS: Final[tuple[ItemStatus, ...]] = ("moved", "skipped", "succeeded", "failed_again", "discarded")


def _add_counts(counts: RedriveRun | GroupScore, totals: Counter[ItemStatus]) -> dict[str, Any]:
    return {name: getattr(counts, name) + totals[name] for name in _COUNTS if totals[name]}


def _update_scores(scores: Sequence[GroupScore], changed: Sequence[RunItem]) -> tuple[GroupScore, ...]:
    by_group: dict[int, Counter[ItemStatus]] = {}
    for item in changed:
        by_group.setdefault(item.group, Counter())[item.status] += 1
    return tuple(
        msgspec.structs.replace(score, **_add_counts(score, by_group[place])) if place in by_group else score
        for place, score in enumerate(scores)
    )


def _reasons(known: dict[str, int], found: Sequence[str]) -> dict[str, int]:
    """Counts reasons; when there are too many different ones, the others are counted together."""
    counted = dict(known)
    for why in found:
        name = why if why in counted or len(counted) < REASONS_KEPT else OTHER_REASONS
        counted[name] = counted.get(name, 0) + 1
    return counted


def reasons(found: Iterable[str]) -> dict[str, int]:
    """Counts each reason, the most frequent first."""
    return dict(sorted(_reasons({}, list(found)).items(), key=lambda pair: -pair[1]))


def _update_canary(canary: Canary | None, changed: Sequence[tuple[int, RunItem]]) -> Canary | None:
    if canary is None or canary.verdict is not None:
        return canary
    totals = Counter(item.status for place, item in changed if place >= canary.start)
    return msgspec.structs.replace(
        canary,
        moved=canary.moved + totals["moved"] - totals["discarded"],
        succeeded=canary.succeeded + totals["succeeded"],
        failed_again=canary.failed_again + totals["failed_again"],
    )


def _spend(run: RedriveRun, moved: int, now: float) -> Pace | None:
    if run.rate is None:
        return None
    pace = _refill(run, now)
    return Pace(pace.at, pace.saved - moved)


def defective(before: RedriveRun, after: RedriveRun) -> bool:
    """Whether a step should not be taken because it skips items that could not be judged.

    One bad item is skipped, so that it does not stop the others. When half of the items cannot be judged, the judging
    code is broken, and the run must stop before it has skipped them all.
    """
    more = after.unjudged > before.unjudged
    return more and after.unjudged >= MANY_UNJUDGED and 2 * after.unjudged >= after.position


# ---- next state


def judge_canary(canary: Canary, left: int) -> Verdict | None:
    """Returns the canary's verdict once it is final. If no items are left to move, the moved ones are the canary."""
    size = canary.size if left else canary.moved
    if not size:
        return None
    needed = max(1, math.ceil(canary.pass_rate * size - 1e-9))
    if size - canary.failed_again < needed:
        return "failed"
    return "passed" if canary.succeeded >= needed else None


def advance(run: RedriveRun, now: float) -> RedriveRun:
    """Returns the run in the state that its numbers require; the same object if the state does not change."""
    run = _apply_verdict(run, now)
    if run.words and not run.left:
        run = msgspec.structs.replace(run, words={})  # no longer needed, and the words may hold job contents
    if run.state in bulk_run.GOING and not run.left:
        run = msgspec.structs.replace(run, state="settling")
    if run.state == "settling" and (not run.open or _has_waited(run, now)):
        still = f"{run.open} still open" if run.open else None
        return _add_to_story(run, RunLine(now, "finished", REDRIVE, still), state="finished", ended_at=now)
    if run.state == "cancelled" and not run.over and (not run.open or _has_waited(run, now)):
        return msgspec.structs.replace(run, ended_at=now)
    return run


def _apply_verdict(run: RedriveRun, now: float) -> RedriveRun:
    """Applies the canary's verdict: a failed canary pauses the remaining items, a passed one releases them."""
    canary = run.canary
    if canary is None or canary.verdict is not None or (verdict := judge_canary(canary, run.left)) is None:
        return run
    canary = msgspec.structs.replace(canary, verdict=verdict, judged_at=now)
    line = RunLine(now, f"canary {verdict}", REDRIVE, f"{canary.score}, {canary.pass_rate:.0%} had to")
    if run.state != "canary" or not run.left:
        return _add_to_story(run, line, canary=canary)
    if verdict == "passed":
        return _add_to_story(run, line, canary=canary, state="moving")
    return _add_to_story(run, line, canary=canary, state="paused", paused_in="canary", reason=canary.text)


def _has_waited(run: RedriveRun, now: float) -> bool:
    last = run.moved_at if run.moved_at is not None else run.at
    return now - last >= SETTLES_SECONDS


def _add_to_story(run: RedriveRun, said: RunLine, **changes: Any) -> RedriveRun:
    return msgspec.structs.replace(run, story=(*run.story, said)[-STORY_KEPT:], **changes)


# ---- pause, resume, cancel


def paused(run: RedriveRun, now: float, who: str, why: str | None) -> RedriveRun | None:
    """Pauses the run: no more items move until it is resumed; moved jobs continue. None if the run is not moving."""
    if run.state not in bulk_run.GOING:
        return None
    reason = f"paused by {who}" + (f": {why}" if why else "")
    return _add_to_story(run, RunLine(now, "paused", who, why), state="paused", paused_in=run.state, reason=reason)


def resumed(run: RedriveRun, now: float, who: str, why: str | None, canary: int | None = None) -> RedriveRun | None:
    """Continues a paused run where it stopped; None if the run is not paused.

    `canary` is the size of a new canary, 0 for none. By default a failed canary is followed by another of the same
    size: a person says that the cause is gone, and the new canary tests that.
    """
    if run.state != "paused":
        return None
    last = run.canary
    if canary is None and last is not None and last.verdict == "failed":
        canary = last.size
    changes: dict[str, Any] = {"state": "moving", "reason": None, "paused_in": None}
    changes["pace"] = Pace(now) if run.rate is not None else None
    if canary:
        fresh = Canary(canary, last.pass_rate if last is not None else bulk_run.PASS_RATE, start=run.position)
        changes |= {"state": "canary", "canary": fresh}
    elif canary is None and last is not None and last.verdict is None:
        changes["state"] = run.paused_in or "moving"
    return _add_to_story(run, RunLine(now, "resumed", who, why), **changes)


def cancelled(run: RedriveRun, now: float, who: str, why: str | None) -> RedriveRun | None:
    """Cancels the run: no more items move; moved ones stay moved and are counted when they end. None if it is over."""
    if run.state not in bulk_run.HOLDS_GROUPS:
        return None
    reason = f"cancelled by {who}" + (f": {why}" if why else "")
    return advance(_add_to_story(run, RunLine(now, "cancelled", who, why), state="cancelled", reason=reason), now)


def stopped_for_undo(run: RedriveRun, now: float, who: str) -> RedriveRun:
    """Ends the run: no more items move or are counted, because the act is being taken back."""
    if run.over:
        return run
    reason = f"taken back by {who}"
    return _add_to_story(run, RunLine(now, "taken back", who), state="cancelled", reason=reason, ended_at=now, words={})
