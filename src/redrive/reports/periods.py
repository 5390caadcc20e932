"""Weeks and months in numbers: what was processed, what died of it, and what became of that. Pure.

What the columns mean, here and nowhere else:

- processed: jobs that came to an end for the first time: done, or dead. A dead letter that is brought back and done
  later is still one job, counted where it died.
- dead letters: jobs that died in the time, each once, however often it was brought back and died again.
- auto-resolved: of those, what is done without a person: it came back by itself.
- open: of those, what comes back by itself and has not come to an end yet.
- human-required: all the others. A person resolved it, let it go, or still has to. Of which deferred: somebody put it
  off to a later day at least once.

So auto-resolved + human-required + open = dead letters, always. Time to resolution is counted from the first death.
"""

from __future__ import annotations

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
"""Moves that an attempt's failure ends in; those that failed carry the class of the error."""
COMES_BACK: Final = ("delayed", "moving")
"""States of open dead letters that need no person: in the delayed lane, or redriven and on their way."""
TRIED_ENOUGH: Final = 5
"""So many tries say something about a strategy."""

Kind = Literal["weekly", "monthly"]


# ---- calendar


class Period(msgspec.Struct, frozen=True):
    """A week or a month; `until` is its end, or now where it still lasts."""

    name: str
    """`2026-11` or `2026-W47`."""
    label: str
    since: float
    until: float
    complete: bool = True


def months(now: float, number: int, zone: tzinfo) -> list[Period]:
    """The last ones up to and with the one that `now` is in."""
    today = datetime.fromtimestamp(now, zone)
    last = today.year * 12 + today.month - 1
    return [_month(divmod(index, 12), today, zone) for index in range(last - number + 1, last + 1)]


def _month(year_month: tuple[int, int], today: datetime, zone: tzinfo) -> Period:
    year, month = year_month
    start = datetime(year, month + 1, 1, tzinfo=zone)
    following = datetime(year + (month == 11), (month + 1) % 12 + 1, 1, tzinfo=zone)
    label = f"{start:%b} {year}"
    if following > today:
        days = f" (1-{today.day})" if today.day > 1 else " (1)"
        return Period(f"{start:%Y-%m}", label + days, start.timestamp(), today.timestamp(), complete=False)
    return Period(f"{start:%Y-%m}", label, start.timestamp(), following.timestamp())


def weeks(now: float, number: int, zone: tzinfo) -> list[Period]:
    """The last ones up to and with the one that `now` is in. A week begins on Monday."""
    today = datetime.fromtimestamp(now, zone)
    monday = today.date() - timedelta(days=today.weekday())
    found = []
    for back in range(number - 1, -1, -1):
        first, following = monday - timedelta(weeks=back), monday - timedelta(weeks=back - 1)
        start, end = (datetime(day.year, day.month, day.day, tzinfo=zone) for day in (first, following))
        over, name = end <= today, "{}-W{:02}".format(*first.isocalendar()[:2])
        label = f"{name} (from {first:%d %b})"
        found.append(Period(name, label, start.timestamp(), (end if over else today).timestamp(), complete=over))
    return found


def days(since: float, until: float, zone: tzinfo) -> list[tuple[float, float]]:
    """The days of a time, each from its first hour up to the next day's; an hour belongs to the day it begins in."""
    found, begin, until = [], _first_hour(since), min(until, CALENDAR_END)
    while begin < until:
        following = datetime.fromtimestamp(begin, zone).date() + timedelta(days=1)
        midnight = _first_hour(datetime.combine(following, time(), zone).timestamp())
        end = min(max(midnight, begin + HOUR), until)
        found.append((begin, end))
        begin = end
    return found


CALENDAR_END: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""Nothing was ever recorded later, and there are no days much later."""


def _first_hour(at: float) -> float:
    """The first one that begins then or later."""
    return -(-at // HOUR) * HOUR


# ---- values


class Mttr(msgspec.Struct, frozen=True):
    """Mean seconds from death to resolution."""

    auto: Annotated[float, Rounded(1)] | None
    person: Annotated[float, Rounded(1)] | None


class Row(Shown, msgspec.Struct, frozen=True):
    """The numbers of one period, of one agent, or of everything."""

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
    """Resolved or discarded by a person; the rest of `human` is still open."""
    open: int = 0
    deferred: int = 0
    auto_seconds: float = 0.0
    """From death to resolution, in sum."""
    person_seconds: float = 0.0

    @property
    def human(self) -> int:
        """Dead letters that a person resolved or still must look at."""
        return max(0, self.died - self.auto - self.open)

    @property
    def rate(self) -> Share | None:
        """Dead letters as a share of what was processed."""
        return self.died / self.processed if self.processed else None

    @property
    def auto_share(self) -> Share | None:
        return self.auto / self.died if self.died else None

    @property
    def human_share(self) -> Share | None:
        return self.human / self.died if self.died else None

    @property
    def auto_mttr(self) -> float | None:
        """Mean seconds from death to resolution of what was resolved without a person."""
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
    """How often a strategy was tried, and how often that worked."""

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
        """False where it was tried often enough to know that it rarely helps."""
        return self.tried < TRIED_ENOUGH or 2 * self.worked >= self.tried


class CauseRow(Shown, msgspec.Struct, frozen=True):
    """Failures of one cause in the latest period, beside the period before."""

    SHOWN: ClassVar = ("more",)
    category: str
    detail: str
    failed: int
    """Attempts that failed so, the burying ones included."""
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
    """The whole time, by who did the work."""
    strategies: list[StrategyRate]
    causes: list[CauseRow]
    """Of the latest period."""

    @property
    def latest(self) -> Row | None:
        return self.rows[-1] if self.rows else None


# ---- adding up


class _Account:
    """Adds up what becomes a row."""

    def __init__(self) -> None:
        self.ended = 0
        self.outcomes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def counted(self, total: Total) -> None:
        if total.move in ENDED:
            self.ended += total.number

    def became(self, outcome: OutcomeTally) -> None:
        what: str = outcome.what
        if what == "open" and outcome.name not in COMES_BACK:
            return  # it waits for a person, like all that nothing else is said of
        self.outcomes[what] = self.outcomes.get(what, 0) + outcome.number
        self.seconds[what] = self.seconds.get(what, 0.0) + outcome.seconds

    def row(self, period: Period) -> Row:
        died, auto, person, open_, deferred, back = (
            self.outcomes.get(what, 0) for what in ("died", "auto", "person", "open", "deferred", "back")
        )
        processed = max(died, self.ended - back + died)
        spent = (self.seconds.get("auto", 0.0), self.seconds.get("person", 0.0))
        return Row(
            period.name, period.label, period.since, period.until, period.complete,
            processed, died, auto, person, open_, deferred, *spent,
        )  # fmt: skip


class Book(msgspec.Struct, frozen=True):
    """What the store says of one period; the tallies are wanted of the latest two only."""

    period: Period
    totals: Sequence[Total] = ()
    outcomes: Sequence[OutcomeTally] = ()
    tallies: Sequence[Tally] = ()


def report(kind: Kind, tz: str, books: Sequence[Book]) -> Report:
    """Periods in order, their sum, and what is behind them. Empty periods at the beginning are left out."""
    agents, total = dict[str | None, _Account](), _Account()
    rows = []
    for book in books:
        account = _Account()
        for move in book.totals:
            for one in (account, total, agents.setdefault(move.agent, _Account())):
                one.counted(move)
        for outcome in book.outcomes:
            for one in (account, total, agents.setdefault(outcome.agent, _Account())):
                one.became(outcome)
        rows.append(account.row(book.period))
    first = next((index for index, row in enumerate(rows) if not row.empty), len(rows) - 1)
    begin, end = books[0].period, books[-1].period
    whole = Period("total", "Total", begin.since, end.until, complete=end.complete)
    causes = _causes(books[-1].tallies, books[-2].tallies if len(books) > 1 else ())
    return Report(kind, tz, rows[first:], total.row(whole), _agents(whole, agents), _strategies(books), causes)


def hours_of(period: Period) -> tuple[float, float]:
    """Hours belong to the period in which they begin; a period that still lasts has this very hour, too."""
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
    """What was tried, the most tried first."""
    counted: dict[str, list[int]] = {}
    for outcome in (outcome for book in books for outcome in book.outcomes):
        if outcome.what in ("worked", "failed"):
            counts = counted.setdefault(outcome.name, [0, 0])
            counts[outcome.what == "failed"] += outcome.number
    rates = [StrategyRate(name, worked, failed) for name, (worked, failed) in counted.items()]
    return sorted(rates, key=lambda rate: (-rate.tried, rate.strategy))


def _causes(latest: Iterable[Tally], earlier: Iterable[Tally]) -> list[CauseRow]:
    """Of the latest period, the most burials first."""
    now, before = _by_detail(latest), _by_detail(earlier)
    rows = []
    for detail in now.keys() | before.keys():
        (failed, buried), (_, buried_before) = now.get(detail, (0, 0)), before.get(detail, (0, 0))
        rows.append(CauseRow(category_of(detail), detail, failed, buried, buried_before))
    shown = [row for row in rows if row.failed or row.buried_before]
    return sorted(shown, key=lambda row: (-row.buried, -row.failed, row.detail))


def _by_detail(tallies: Iterable[Tally]) -> dict[str, tuple[int, int]]:
    """Failed attempts and burials."""
    found: dict[str, tuple[int, int]] = {}
    for tally in filter(_is_failure, tallies):
        failed, buried = found.get(tally.detail or "unknown", (0, 0))
        burials = tally.number if tally.move in BURIED else 0
        found[tally.detail or "unknown"] = (failed + tally.number, buried + burials)
    return found


def _is_failure(tally: Tally) -> bool:
    return tally.move in BURIED or (tally.move in FAILED and bool(tally.error_class))


def category_of(detail: str) -> str:
    return DETAILS[detail][0] if detail in DETAILS else "unknown"


# ---- the failure log

Column = Literal["day", "agent", "category", "detail", "error_class", "queue", "task"]
COLUMNS: Final[tuple[Column, ...]] = ("day", "agent", "category", "detail", "error_class", "queue", "task")
LINES: Final = 500
"""Longest list of a report; the sums count the rest."""


class FailureLine(msgspec.Struct, frozen=True):
    """What failed on one day in one way."""

    day: str
    agent: str | None
    category: str
    detail: str
    error_class: str
    queue: str
    task: str
    failed: int
    """Attempts, the burying ones included."""
    buried: int


class FailureLog(Shown, msgspec.Struct, frozen=True):
    """Every failure of the time that fits, added up by day; nothing of it ever expires."""

    HIDDEN: ClassVar = ("sums", "letters")
    SHOWN: ClassVar = ("_main_sums", "_brief_letters")
    RENAMED: ClassVar = {"_main_sums": "by", "_brief_letters": "letters"}
    since: At
    until: At
    tz: str
    failed: int
    buried: int
    sums: dict[str, dict[str, int]]
    """Failed attempts by each of COLUMNS; of all lines, also those left out."""
    lines: list[FailureLine]
    """The latest day first, then the most; LINES at most."""
    more_lines: int = 0
    """How many were left out."""
    letters: list[Job] = []
    """The latest dead letters that fit and are dead still."""
    more_letters: bool = False

    def by(self, name: Column) -> dict[str, int]:
        """Failed attempts, added up by one of the columns, the most first; days in order."""
        return self.sums[name]

    @property
    def _main_sums(self) -> dict[str, dict[str, int]]:
        """Those by day, agent and category."""
        return {name: self.sums[name] for name in ("day", "agent", "category")}

    @property
    def _brief_letters(self) -> list[dict[str, Any]]:
        """The dead letters without their contents."""
        return [_letter(job) for job in self.letters]


def _letter(job: Job) -> dict[str, Any]:
    names = ("id", "queue", "task", "agent", "category", "detail", "error_class", "error", "fingerprint", "lane")
    return {"died_at": iso(job.updated_at), **{name: getattr(job, name) for name in names}}


def failure_log(
    since: float, until: float, tz: str, lines: Sequence[FailureLine], letters: list[Job], *, more_letters: bool
) -> FailureLog:
    failed, buried = sum(line.failed for line in lines), sum(line.buried for line in lines)
    sums: dict[str, dict[str, int]] = {name: _sums(lines, name) for name in COLUMNS}
    shown, left = list(lines[:LINES]), max(0, len(lines) - LINES)
    return FailureLog(since, until, tz, failed, buried, sums, shown, left, letters, more_letters)


def _sums(lines: Iterable[FailureLine], name: Column) -> dict[str, int]:
    sums: dict[str, int] = {}
    for line in lines:
        key = getattr(line, name) or ""
        sums[key] = sums.get(key, 0) + line.failed
    return dict(sorted(sums.items(), key=lambda entry: entry[0] if name == "day" else (-entry[1], entry[0])))


def failure_lines(
    tallies: Iterable[Tally], since: float, until: float, zone: tzinfo, fits: Callable[[Tally, str], bool]
) -> list[FailureLine]:
    """Failures of the hours that begin in the time. `fits` is asked with the category of each."""
    sums: dict[tuple[str, str | None, str, str, str, str], list[int]] = {}
    dates: dict[float, str] = {}
    for tally in tallies:
        detail = tally.detail or "unknown"
        if not (since <= tally.hour < until and _is_failure(tally) and fits(tally, category_of(detail))):
            continue
        day = dates.get(tally.hour) or dates.setdefault(tally.hour, _date(tally.hour, zone))
        counts = sums.setdefault((day, tally.agent, detail, tally.error_class, tally.queue, tally.task), [0, 0])
        counts[0] += tally.number
        counts[1] += tally.number if tally.move in BURIED else 0
    lines = [
        FailureLine(day, agent, category_of(detail), detail, error_class or "unknown", queue, task, failed, buried)
        for (day, agent, detail, error_class, queue, task), (failed, buried) in sums.items()
    ]
    lines.sort(key=_weight)
    return sorted(lines, key=lambda line: line.day, reverse=True)


def _date(at: float, zone: tzinfo) -> str:
    return datetime.fromtimestamp(at, zone).date().isoformat()


def _weight(line: FailureLine) -> tuple[int, int, str, str, str, str, str]:
    """The most first, and always in one order."""
    return -line.buried, -line.failed, line.agent or "", line.detail, line.task, line.queue, line.error_class


# ---- in words


def percent(share: float | None, digits: int = 0) -> str:
    """`81 %`; `-` where there is nothing to have a share of."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def headline(found: Report) -> str:
    """The latest period in one line."""
    row = found.latest
    if row is None or row.empty:
        return f"{row.label if row else found.kind}: nothing was processed"
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
    """A strategy as people say it."""
    if strategy == AS_IT_WAS:
        return "redriven as it was"
    return strategy.replace("_", " ").replace("+", " + ")


def advice(found: Report) -> list[str]:
    """Writes advice on strategies and causes from the numbers."""
    said = [
        f"{name_strategy(rate.strategy)}: worked {rate.worked} of {rate.tried} times."
        " Fix the cause, or try something else."
        for rate in found.strategies
        if not rate.pays
    ]
    said += [
        f"{cause.detail} buried {cause.buried}, {cause.more} more than the time before."
        for cause in found.causes
        if cause.more >= 3 and cause.buried >= 2 * cause.buried_before
    ]
    return said
