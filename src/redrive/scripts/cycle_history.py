"""Finds what is wrong with a script's cycles in the records of their runs.

Pure: records and a time go in, findings come out. A cycle that is missing is noticed by the rhythm of its earlier
starts, or by the `every=` that its script gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import ClassVar, Final, Literal

import msgspec

from redrive.core.checks import is_number
from redrive.core.job import At
from redrive.core.times import read, zone_of
from redrive.errors import InvalidOption
from redrive.scripts.cycle_rules import DAY, HOUR

RunOutcome = Literal["under_way", "ended", "died", "interrupted"]
FindingKind = Literal["cycle_missing", "cycle_died", "cycle_short"]
LEARNED: Final = "learned"
"""The default of `every=`."""
SHORTEST: Final = 60.0
LONGEST: Final = 366 * DAY
FAILED: Final = ("died", "interrupted")

LEARNED_FROM: Final = 4
"""Starts after which the rhythm of a cycle counts as known."""
SLACK: Final = 2 * HOUR
"""A cycle is never called missing earlier than this after it was due."""
STEADY: Final = 4.0
"""A start may differ from the usual by this many times the usual difference, at most by half a gap."""
DAILY: Final = (0.75 * DAY, 1.25 * DAY)
WEEKDAYS_AFTER: Final = 14 * DAY
"""History that is needed before a weekday without a start counts as a free day."""
WEEKDAYS_FROM: Final = 28 * DAY
USUAL_OF: Final = 7
"""Ended runs whose median number of jobs is the usual one."""
SHORT_AFTER: Final = 3
"""Ended runs before a run can be called short."""
UNSEEN: Final = DAY
"""A run of another host counts as dead when its record did not change for so long."""


class CycleRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one run of a cycle. It names no job and quotes no error."""

    name: str
    cycle_id: str
    begun: At
    process: str
    """The store's name for the process, by which others see whether it lives."""
    zone: str = "UTC"
    every: float | None = None
    """Seconds between two starts as the script says; None where they are learned."""
    watched: bool = True
    """Whether people are told of a missing start."""
    jobs: int = 0
    """Jobs that have had their turn."""
    seen: float = 0.0
    """When the record was last written."""
    outcome: RunOutcome = "under_way"
    error_class: str | None = None
    """The class of the exception that ended the script."""

    @property
    def last_sign(self) -> At:
        return max(self.begun, self.seen)


class Finding(msgspec.Struct, frozen=True):
    """One problem of a cycle that needs a person."""

    kind: FindingKind
    id: str
    name: str
    since: At
    count: int
    sentence: str
    command: str = "redrive cycles"


_OF_THE_LAST: Final = ("cycle_id", "begun", "last_sign", "outcome", "error_class", "jobs", "every", "watched")


class CycleStanding(msgspec.Struct, frozen=True):
    """How one cycle stands: its last run, its rhythm, and its problems."""

    HIDDEN: ClassVar = ("last",)
    SHOWN: ClassVar = tuple(f"last.{name}" for name in _OF_THE_LAST)
    RENAMED: ClassVar = {"last.last_sign": "seen", "due_at": "next_due"}
    name: str
    runs: int
    last: CycleRun
    usual_jobs: int | None
    due_at: At | None
    """When the next start is expected; None where that is not known, or not watched."""
    findings: tuple[Finding, ...]


def checked_every(value: object) -> float:
    """Checks the time between two starts: `1d`, a timedelta or seconds."""
    span = read("every", value) if isinstance(value, str) else value
    number = span.total_seconds() if isinstance(span, timedelta) else span
    if not is_number(number) or not SHORTEST <= number <= LONGEST:
        raise InvalidOption(field="every", problem=f"{value!r} must be a span from 1 min to 366 d, e.g. '1d', or None")
    return float(number)


# ---- runs as they are seen now


def as_seen(runs: Iterable[CycleRun], ended: Mapping[str, bool], now: float) -> list[CycleRun]:
    """Calls a run dead whose process has ended; `ended` leaves out the processes of other hosts."""

    def is_dead(run: CycleRun) -> bool:
        return run.outcome == "under_way" and ended.get(run.process, now - run.last_sign > UNSEEN)

    return [msgspec.structs.replace(run, outcome="died") if is_dead(run) else run for run in runs]


# ---- findings


def standings(runs: Iterable[CycleRun], now: float) -> list[CycleStanding]:
    """Lists how every cycle stands, by name."""
    by_name: dict[str, list[CycleRun]] = {}
    for run in sorted(runs, key=lambda run: run.begun):
        by_name.setdefault(run.name, []).append(run)
    return [_standing(by_name[name], now) for name in sorted(by_name)]


def findings(runs: Iterable[CycleRun], now: float) -> list[Finding]:
    """Lists the problems of cycles, the missing cycles first."""
    all = [finding for standing in standings(runs, now) for finding in standing.findings]
    order = ("cycle_missing", "cycle_died", "cycle_short")
    return sorted(all, key=lambda finding: (order.index(finding.kind), finding.since))


def _standing(runs: Sequence[CycleRun], now: float) -> CycleStanding:
    rhythm = rhythm_of(runs)
    problems = (_find_missing(runs, rhythm, now), _find_died(runs), _find_short(runs))
    findings = tuple(finding for finding in problems if finding is not None)
    last, due = runs[-1], rhythm.due if rhythm else None
    return CycleStanding(last.name, len(runs), last, usual_jobs(runs), due, findings)


def _median(values: Iterable[float]) -> float:
    from statistics import median  # brings decimals, fractions and random numbers

    return median(values)


def usual_jobs(runs: Iterable[CycleRun]) -> int | None:
    """Returns the median number of jobs of the last runs that ended."""
    ended = [run.jobs for run in runs if run.outcome == "ended"][-USUAL_OF:]
    return round(_median(ended)) if ended else None


def _find_died(runs: Sequence[CycleRun]) -> Finding | None:
    """Reports the last run that died, unless the cycle was started again since."""

    def was_started_after(at: float) -> bool:
        return any(run.begun > at and run.outcome not in FAILED for run in runs)

    dead = [run for run in runs if run.outcome in FAILED and not was_started_after(run.last_sign)]
    if not dead:
        return None
    run = dead[-1]
    before = [earlier for earlier in runs if earlier.begun < run.begun]
    return _finding("cycle_died", run, run.last_sign, f"{_how(run, usual_jobs(before))}; start it again", len(dead))


def _how(run: CycleRun, usual: int | None) -> str:
    what = "died" if run.outcome == "died" else "was interrupted"
    after = f"{run.jobs} of its usual {usual} jobs" if usual else f"{run.jobs} job{'' if run.jobs == 1 else 's'}"
    because = f" ({run.error_class})" if run.error_class else ""
    return f"{run.name} {run.cycle_id} {what} after {after}{because}"


def _find_short(runs: Sequence[CycleRun]) -> Finding | None:
    """Reports the last run that ended if it had less than half of the usual number of jobs."""
    ended = [run for run in runs if run.outcome == "ended"]
    if len(ended) <= SHORT_AFTER:
        return None
    last, usual = ended[-1], _median([run.jobs for run in ended[:-1][-USUAL_OF:]])
    if last.jobs >= usual / 2:
        return None
    sentence = f"{last.name} {last.cycle_id} had {last.jobs} job{'' if last.jobs == 1 else 's'}, usually {usual:g}"
    return _finding("cycle_short", last, last.last_sign, sentence)


def _find_missing(runs: Sequence[CycleRun], rhythm: Rhythm | None, now: float) -> Finding | None:
    if rhythm is None or now <= rhythm.due + rhythm.slack:
        return None
    return _finding("cycle_missing", runs[-1], rhythm.due, f"{runs[-1].name} {_absence(runs, rhythm, now)}")


def _finding(kind: FindingKind, run: CycleRun, since: float, sentence: str, count: int = 1) -> Finding:
    return Finding(kind, f"{kind}:{run.name}:{run.cycle_id}", run.name, since, count, sentence)


# ---- the rhythm


class Rhythm(msgspec.Struct, frozen=True):
    """When a cycle is due next, and how much later it may come."""

    gap: float
    due: float
    slack: float
    usual_time: float | None = None
    """Seconds after midnight, of a cycle that runs every day."""


def rhythm_of(runs: Sequence[CycleRun]) -> Rhythm | None:
    """Learns when a cycle is due from its starts, or from what its script says; None where neither is known."""
    last, starts = runs[-1], starts_of(runs)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    known = len(starts) >= LEARNED_FROM
    if not last.watched or (last.every is None and not known):
        return None
    gap = last.every if last.every is not None else _median(gaps)
    if known and DAILY[0] <= gap <= DAILY[1]:
        return _daily(starts, gap, _zone(last))
    anchor = last.begun if gap < DAILY[0] else starts[-1]
    return Rhythm(gap, anchor + gap, _slack([other - gap for other in gaps] if known else [], gap))


def starts_of(runs: Iterable[CycleRun]) -> list[float]:
    """Returns the first start of each cycle id: a script that is started again continues the same cycle."""
    first: dict[str, float] = {}
    for run in runs:
        first.setdefault(run.cycle_id, run.begun)
    return sorted(first.values())


def _slack(differences: Sequence[float], gap: float) -> float:
    """Returns how late a start may come: half a gap, or less where the starts were regular; never less than SLACK."""
    most = gap / 2
    usual = STEADY * _median(map(abs, differences)) if differences else most
    return max(SLACK, min(most, usual))


def _daily(starts: Sequence[float], gap: float, zone: tzinfo) -> Rhythm:
    """Expects the next start on the next day that is not a free one, at the usual time."""
    local = [_local(start, zone) for start in starts]
    usual, differences = _time_of_day(local)
    days = [round((at - usual) / DAY) for at in local]
    due = _next_day(days, local) * DAY + usual
    return Rhythm(gap, due - _offset(due, zone), _slack(differences, gap), usual % DAY)


def _time_of_day(local: Sequence[float]) -> tuple[float, list[float]]:
    """Returns the usual time of day and how each start differs from it, around midnight as well."""
    first = local[0] % DAY
    offsets = [(at - first + DAY / 2) % DAY - DAY / 2 for at in local]
    middle = _median(offsets)
    return first + middle, [offset - middle for offset in offsets]


def _next_day(days: Sequence[int], local: Sequence[float]) -> int:
    """Returns the first day after the last start whose weekday is not always free, once two weeks are known."""
    recent = {day % 7 for day, at in zip(days, local, strict=True) if at >= local[-1] - WEEKDAYS_FROM}
    day = days[-1] + 1
    if local[-1] - local[0] >= WEEKDAYS_AFTER - DAY:
        while day % 7 not in recent:
            day += 1
    return day


def _zone(run: CycleRun) -> tzinfo:
    """Returns the zone of a run; a host that does not know it reads the times in UTC."""
    try:
        return zone_of("tz", run.zone)
    except InvalidOption:
        return UTC


def _local(at: float, zone: tzinfo) -> float:
    """Returns the seconds since 1970 that a clock on the wall of this zone shows."""
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    return at + (offset.total_seconds() if offset is not None else 0.0)


def _offset(local: float, zone: tzinfo) -> float:
    offset = datetime.fromtimestamp(local, UTC).replace(tzinfo=zone).utcoffset()
    return offset.total_seconds() if offset is not None else 0.0


# ---- words


def _absence(runs: Sequence[CycleRun], rhythm: Rhythm, now: float) -> str:
    zone, starts = _zone(runs[-1]), starts_of(runs)
    last = datetime.fromtimestamp(max(starts[-1], runs[-1].begun), zone)
    if rhythm.usual_time is None:
        return f"is due every {_span(rhythm.gap)} and has not begun since {last:%Y-%m-%d %H:%M}"
    at = datetime.fromtimestamp(rhythm.usual_time, UTC)
    today = datetime.fromtimestamp(rhythm.due, zone).date() == datetime.fromtimestamp(now, zone).date()
    since = "not today" if today else f"not since {last:%Y-%m-%d}"
    return f"ran about {at:%H:%M} on {len(starts)} days, {since}"


def _span(seconds: float) -> str:
    for size, name in ((DAY, "d"), (HOUR, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{round(seconds / size, 1):g} {name}"
    return f"{seconds:g} s"
