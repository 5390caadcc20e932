"""Makes reports of weeks and months: jobs processed, dead letters, and what became of the dead letters. Pure.

The columns are defined here and nowhere else:

- processed: jobs that came to an end for the first time: done, or dead. A dead letter that is brought back and done
  later is still one job, counted where it died.
- dead letters: jobs that died in the time, each counted once, however often the job was brought back and died again.
- auto-resolved: dead letters that came back by themselves and are done without a person.
- open: dead letters that come back by themselves and have not come to an end yet.
- human-required: all other dead letters. A person resolved or discarded them, or still has to. Of which deferred: dead
  letters that a person deferred to a later day at least once.

So auto-resolved + human-required + open = dead letters, always. Time to resolution is counted from the first death.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from redrive.core.job import At, Job, iso
from redrive.core.store import OutcomeTally, Tally, Total
from redrive.core.view import Rounded, Share, Shown
from redrive.failures.classify import DETAILS

HOUR: Final = 3600.0
ENDED: Final = ("succeeded", "resolved")
"""Moves that end a job well, for the first time or after it died."""
BURIED: Final = ("buried", "imported")
FAILED: Final = ("retried", "held_back", *BURIED)
"""Moves that can end a failed attempt; a move that a failure caused carries the class of the error."""
COMES_BACK: Final = ("delayed", "moving")
"""States of open dead letters that need no person: in the delayed lane, or redriven and on their way."""
TRIED_ENOUGH: Final = 5
"""Number of tries that say something about a strategy."""

Kind = Literal["weekly", "monthly"]


# ---- calendar


class Period(msgspec.Struct, frozen=True):
    """A week or a month; `until` is the end of the period, or now if the period still lasts."""

    name: str
    """`2026-11` or `2026-W47`."""
    label: str
    since: float
    until: float
    complete: bool = True


def months(now: float, number: int, zone: tzinfo) -> list[Period]:
    """Lists the last months, with the month of `now`."""
    today, periods = datetime.fromtimestamp(now, zone), []
    last = today.year * 12 + today.month - 1
    for index in range(last - number + 1, last + 1):
        start, following = (datetime(one // 12, one % 12 + 1, 1, tzinfo=zone) for one in (index, index + 1))
        days = "" if following <= today else f" (1-{today.day})" if today.day > 1 else " (1)"
        periods.append(_make_period(f"{start:%Y-%m}", f"{start:%b %Y}{days}", start, following, today))
    return periods


def weeks(now: float, number: int, zone: tzinfo) -> list[Period]:
    """Lists the last weeks, with the week of `now`. A week begins on Monday."""
    today, periods = datetime.fromtimestamp(now, zone), []
    monday = today.date() - timedelta(days=today.weekday())
    for back in range(number - 1, -1, -1):
        first, following = monday - timedelta(weeks=back), monday - timedelta(weeks=back - 1)
        start, end = (datetime(day.year, day.month, day.day, tzinfo=zone) for day in (first, following))
        name = "{}-W{:02}".format(*first.isocalendar()[:2])
        periods.append(_make_period(name, f"{name} (from {first:%d %b})", start, end, today))
    return periods


def _make_period(name: str, label: str, start: datetime, end: datetime, today: datetime) -> Period:
    over = end <= today
    return Period(name, label, start.timestamp(), (end if over else today).timestamp(), complete=over)


def days(since: float, until: float, zone: tzinfo) -> list[tuple[float, float]]:
    """Lists the days of a time, each from its first hour to the next day's. An hour belongs to the day it begins in."""
    spans, begin, until = [], _first_hour(since), min(until, CALENDAR_END)
    while begin < until:
        following = datetime.fromtimestamp(begin, zone).date() + timedelta(days=1)
        midnight = _first_hour(datetime.combine(following, time(), zone).timestamp())
        end = min(max(midnight, begin + HOUR), until)
        spans.append((begin, end))
        begin = end
    return spans


CALENDAR_END: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""Time before which everything was recorded; Python has no dates much later."""


def _first_hour(at: float) -> float:
    """Returns the first full hour that begins at `at` or later."""
    return -(-at // HOUR) * HOUR


# ---- values


class Mttr(msgspec.Struct, frozen=True):
    """Mean seconds from death to resolution."""

    auto: Annotated[float, Rounded(1)] | None
    person: Annotated[float, Rounded(1)] | None


class Row(Shown, msgspec.Struct, frozen=True):
    """Numbers of one period, of one agent, or of the whole time."""

    HIDDEN: ClassVar = ("label", "auto_seconds", "person_seconds")
    SHOWN: ClassVar = ("rate", "auto_share", "human", "human_share", "_mttr")
    RENAMED: ClassVar = {
        "died": "dead_letters",
        "auto": "auto_resolved",
        "human": "human_required",
        "person": "resolved_by_person",
        "_mttr": "mttr_seconds",
    }
    name: str
    label: str
    since: At
    until: At
    complete: bool = True
    processed: int = 0
    died: int = 0
    auto: int = 0
    person: int = 0
    """Dead letters resolved or discarded by a person; the rest of `human` is still open."""
    open: int = 0
    deferred: int = 0
    auto_seconds: float = 0.0
    """Sum of seconds from death to resolution."""
    person_seconds: float = 0.0

    @property
    def human(self) -> int:
        """Dead letters that a person resolved or still must look at."""
        return max(0, self.died - self.auto - self.open)

    @property
    def rate(self) -> Share | None:
        """Dead letters as a share of the jobs processed."""
        return self.died / self.processed if self.processed else None

    @property
    def auto_share(self) -> Share | None:
        return self.auto / self.died if self.died else None

    @property
    def human_share(self) -> Share | None:
        return self.human / self.died if self.died else None

    @property
    def auto_mttr(self) -> float | None:
        """Mean seconds from death to resolution of dead letters resolved without a person."""
        return self.auto_seconds / self.auto if self.auto > 0 else None

    @property
    def person_mttr(self) -> float | None:
        return self.person_seconds / self.person if self.person > 0 else None

    @property
    def _mttr(self) -> Mttr:
        return Mttr(self.auto_mttr, self.person_mttr)

    @property
    def empty(self) -> bool:
        return not self.processed and not self.died


class StrategyRate(Shown, msgspec.Struct, frozen=True):
    """Number of times a strategy worked, and failed."""

    SHOWN: ClassVar = ("rate", "pays")
    RENAMED: ClassVar = {"rate": "success_rate"}
    strategy: str
    worked: int
    failed: int

    @property
    def tried(self) -> int:
        return self.worked + self.failed

    @property
    def rate(self) -> Share:
        return self.worked / self.tried if self.tried else 0.0

    @property
    def pays(self) -> bool:
        """False if the strategy was tried often enough to know that it rarely helps."""
        return self.tried < TRIED_ENOUGH or 2 * self.worked >= self.tried


class CauseRow(Shown, msgspec.Struct, frozen=True):
    """Failures of one cause in the latest period, beside the period before."""

    SHOWN: ClassVar = ("more",)
    category: str
    detail: str
    failed: int
    """Failed attempts, those that made a dead letter included."""
    buried: int
    buried_before: int

    @property
    def more(self) -> int:
        return self.buried - self.buried_before


class Report(Shown, msgspec.Struct, frozen=True):
    """Periods in order, their sum, and the causes of the dead letters."""

    kind: Kind
    tz: str
    rows: list[Row]
    total: Row
    agents: list[Row]
    """Rows of the whole time, by agent."""
    strategies: list[StrategyRate]
    causes: list[CauseRow]
    """Causes of the latest period."""

    @property
    def latest(self) -> Row | None:
        return self.rows[-1] if self.rows else None


# ---- adding up


class _Account:
    """Sums that become a row."""

    def __init__(self) -> None:
        self.ended = 0
        self.outcomes = Counter[str]()
        self.seconds: dict[str, float] = defaultdict(float)

    def add_total(self, total: Total) -> None:
        if total.move in ENDED:
            self.ended += total.number

    def add_outcome(self, outcome: OutcomeTally) -> None:
        if outcome.what == "open" and outcome.name not in COMES_BACK:
            return  # the dead letter waits for a person, like all without another outcome
        self.outcomes[outcome.what] += outcome.number
        self.seconds[outcome.what] += outcome.seconds

    def row(self, period: Period) -> Row:
        died, auto, person, open_, deferred, back = (
            self.outcomes[what] for what in ("died", "auto", "person", "open", "deferred", "back")
        )
        processed = max(died, self.ended - back + died)
        spent = (self.seconds["auto"], self.seconds["person"])
        return Row(
            period.name, period.label, period.since, period.until, period.complete,
            processed, died, auto, person, open_, deferred, *spent,
        )  # fmt: skip


class Book(msgspec.Struct, frozen=True):
    """Store data of one period; tallies are needed of the latest two periods only."""

    period: Period
    totals: Sequence[Total] = ()
    outcomes: Sequence[OutcomeTally] = ()
    tallies: Sequence[Tally] = ()


def report(kind: Kind, tz: str, books: Sequence[Book]) -> Report:
    """Makes the report: periods in order, their sum, and the causes. Leaves out empty periods at the beginning."""
    agents, total = defaultdict[str | None, _Account](_Account), _Account()
    rows = []
    for book in books:
        account = _Account()
        for move in book.totals:
            for one in (account, total, agents[move.agent]):
                one.add_total(move)
        for outcome in book.outcomes:
            for one in (account, total, agents[outcome.agent]):
                one.add_outcome(outcome)
        rows.append(account.row(book.period))
    first = next((index for index, row in enumerate(rows) if not row.empty), len(rows) - 1)
    begin, end = books[0].period, books[-1].period
    whole = Period("total", "Total", begin.since, end.until, complete=end.complete)
    causes = _causes(books[-1].tallies, books[-2].tallies if len(books) > 1 else ())
    return Report(kind, tz, rows[first:], total.row(whole), _agents(whole, agents), _strategies(books), causes)


def hours_of(period: Period) -> tuple[float, float]:
    """Returns the first hour of a period and the end. An hour belongs to the period in which the hour begins.

    A period that still lasts has the current hour, too.
    """
    until = period.until if period.complete else period.until + 1.0
    return _first_hour(period.since), _first_hour(until)


def _agents(whole: Period, agents: Mapping[str | None, _Account]) -> list[Row]:
    """Lists the agents that worked in the time, the most dead letters first; empty if no agent is named."""
    if agents.keys() <= {None}:
        return []
    rows = [
        msgspec.structs.replace(account.row(whole), name=name or "", label=name or "(no agent)")
        for name, account in agents.items()
    ]
    return sorted((row for row in rows if not row.empty), key=lambda row: (-row.died, -row.processed, row.name))


def _strategies(books: Sequence[Book]) -> list[StrategyRate]:
    """Lists how often each strategy worked and failed, the most tried strategy first."""
    times = Counter[tuple[str, str]]()
    for outcome in (outcome for book in books for outcome in book.outcomes):
        times[outcome.name, outcome.what] += outcome.number
    names = {name for name, what in times if what in ("worked", "failed")}
    rates = [StrategyRate(name, times[name, "worked"], times[name, "failed"]) for name in names]
    return sorted(rates, key=lambda rate: (-rate.tried, rate.strategy))


def _causes(latest: Iterable[Tally], earlier: Iterable[Tally]) -> list[CauseRow]:
    """Lists the causes of failures in the latest period, the most dead letters first."""
    (failed, buried), (_, before) = _by_detail(latest), _by_detail(earlier)
    rows = [
        CauseRow(category_of(detail), detail, failed[detail], buried[detail], before[detail])
        for detail in failed.keys() | before.keys()
        if failed[detail] or before[detail]
    ]
    return sorted(rows, key=lambda row: (-row.buried, -row.failed, row.detail))


def _by_detail(tallies: Iterable[Tally]) -> tuple[Counter[str], Counter[str]]:
    """Sums up failed attempts, and dead letters, by detail."""
    failed, buried = Counter[str](), Counter[str]()
    for tally in filter(_is_failure, tallies):
        failed[tally.detail or "unknown"] += tally.number
        buried[tally.detail or "unknown"] += tally.number * (tally.move in BURIED)
    return failed, buried


def _is_failure(tally: Tally) -> bool:
    return tally.move in BURIED or (tally.move in FAILED and bool(tally.error_class))


def category_of(detail: str) -> str:
    return DETAILS[detail][0] if detail in DETAILS else "unknown"


# ---- the failure log

Column = Literal["day", "agent", "category", "detail", "error_class", "queue", "task"]
COLUMNS: Final[tuple[Column, ...]] = ("day", "agent", "category", "detail", "error_class", "queue", "task")
LINES: Final = 500
"""Most lines of a failure log; the sums count the lines beyond."""


class FailureLine(msgspec.Struct, frozen=True):
    """Failures of one day that share agent, cause, error class, queue and task."""

    day: str
    agent: str | None
    category: str
    detail: str
    error_class: str
    queue: str
    task: str
    failed: int
    """Failed attempts, those that made a dead letter included."""
    buried: int


class FailureLog(Shown, msgspec.Struct, frozen=True):
    """Failures of a time that match the filters, summed up by day; the numbers never expire."""

    HIDDEN: ClassVar = ("sums", "letters")
    SHOWN: ClassVar = ("_main_sums", "_brief_letters")
    RENAMED: ClassVar = {"_main_sums": "by", "_brief_letters": "letters"}
    since: At
    until: At
    tz: str
    failed: int
    buried: int
    sums: dict[str, dict[str, int]]
    """Failed attempts by each of COLUMNS, of all lines, also of lines left out."""
    lines: list[FailureLine]
    """Lines, the latest day first, then the most dead letters; LINES at most."""
    more_lines: int = 0
    """Number of lines left out."""
    letters: list[Job] = []
    """The latest dead letters that match the filters and are still dead."""
    more_letters: bool = False

    def by(self, name: Column) -> dict[str, int]:
        """Returns the failed attempts summed up by one column, the most first; days in order."""
        return self.sums[name]

    @property
    def _main_sums(self) -> dict[str, dict[str, int]]:
        """Sums by day, agent and category."""
        return {name: self.sums[name] for name in ("day", "agent", "category")}

    @property
    def _brief_letters(self) -> list[dict[str, Any]]:
        """The dead letters without their contents."""
        names = ("id", "queue", "task", "agent", "category", "detail", "error_class", "error", "fingerprint", "lane")
        return [
            {"died_at": iso(job.updated_at), **{name: getattr(job, name) for name in names}} for job in self.letters
        ]


def failure_log(
    since: float, until: float, tz: str, lines: Sequence[FailureLine], letters: list[Job], *, more_letters: bool
) -> FailureLog:
    failed, buried = sum(line.failed for line in lines), sum(line.buried for line in lines)
    sums: dict[str, dict[str, int]] = {name: _sums(lines, name) for name in COLUMNS}
    shown, left = list(lines[:LINES]), max(0, len(lines) - LINES)
    return FailureLog(since, until, tz, failed, buried, sums, shown, left, letters, more_letters)


def _sums(lines: Iterable[FailureLine], name: Column) -> dict[str, int]:
    sums = Counter[str]()
    for line in lines:
        sums[getattr(line, name) or ""] += line.failed
    return dict(sorted(sums.items(), key=lambda entry: entry[0] if name == "day" else (-entry[1], entry[0])))


def failure_lines(
    tallies: Iterable[Tally], since: float, until: float, zone: tzinfo, fits: Callable[[Tally, str], bool]
) -> list[FailureLine]:
    """Lists the failures of the hours that begin in the time. `fits` gets each tally and its category."""
    sums: dict[tuple[str, str | None, str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    dates: dict[float, str] = {}
    for tally in tallies:
        detail = tally.detail or "unknown"
        if not (since <= tally.hour < until and _is_failure(tally) and fits(tally, category_of(detail))):
            continue
        if tally.hour not in dates:
            dates[tally.hour] = datetime.fromtimestamp(tally.hour, zone).date().isoformat()
        counts = sums[dates[tally.hour], tally.agent, detail, tally.error_class, tally.queue, tally.task]
        counts[0] += tally.number
        counts[1] += tally.number * (tally.move in BURIED)
    lines = [
        FailureLine(day, agent, category_of(detail), detail, error_class or "unknown", queue, task, failed, buried)
        for (day, agent, detail, error_class, queue, task), (failed, buried) in sums.items()
    ]
    lines.sort(key=_weight)
    return sorted(lines, key=lambda line: line.day, reverse=True)


def _weight(line: FailureLine) -> tuple[int, int, str, str, str, str, str]:
    """Returns the sort key of a line: the most dead letters first, and always one order."""
    return -line.buried, -line.failed, line.agent or "", line.detail, line.task, line.queue, line.error_class


# ---- in words


def percent(share: float | None, digits: int = 0) -> str:
    """Writes a share as `81 %`; `-` if there is no share."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def headline(made: Report) -> str:
    """Writes the latest period in one line."""
    row = made.latest
    if row is None or row.empty:
        return f"{row.label if row else made.kind}: nothing was processed"
    letters = "no dead letters" if not row.died else f"{row.died:,} dead letters ({percent(row.rate, 2)})"
    parts = [f"{row.processed:,} processed", letters if row.died != 1 else letters.replace("letters", "letter")]
    if row.died:
        parts.append(f"{row.auto:,} resolved by themselves")
        parts.append(f"{row.human:,} for a person" + (f" ({row.deferred:,} deferred)" if row.deferred else ""))
    if row.open:
        parts.append(f"{row.open:,} still coming back")
    return f"{row.label}: {', '.join(parts)}"


AS_IT_WAS: Final = "bury"
"""Strategy name of a redrive without changes."""


def name_strategy(strategy: str) -> str:
    """Returns the name of a strategy in words."""
    if strategy == AS_IT_WAS:
        return "redriven as it was"
    return strategy.replace("_", " ").replace("+", " + ")


def advice(made: Report) -> list[str]:
    """Writes advice on strategies and causes from the numbers."""
    lines = [
        f"{name_strategy(rate.strategy)}: worked {rate.worked} of {rate.tried} times."
        " Fix the cause, or try something else."
        for rate in made.strategies
        if not rate.pays
    ]
    lines += [
        f"{cause.detail} buried {cause.buried}, {cause.more} more than the time before."
        for cause in made.causes
        if cause.more >= 3 and cause.buried >= 2 * cause.buried_before
    ]
    return lines
