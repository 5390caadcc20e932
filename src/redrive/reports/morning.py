"""Makes the morning page: what a person must look at, and nothing else. Pure: store data and the time are arguments.

Only the manual lane needs a person; the delayed lane comes back by itself and is a number here. What changed since the
day before says more than what is there: a class of error that is new, or that happens much more often than yesterday,
is a change in the world (a model, a contract, a token) and not bad luck of one job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from redrive.core.job import At, Job, iso
from redrive.core.store import Group, Tally
from redrive.core.view import Shown
from redrive.reports.needs import Need, course, label
from redrive.reports.queue_numbers import returning

HOUR: Final = 3600.0
DAY: Final = 86400.0
SHOWN: Final = 20
"""Number of lines that are listed one by one."""
MESSAGE_TEXT: Final = 100
"""Characters of an error that go into a message."""
FAILED: Final = ("buried", "imported")
DONE: Final = ("succeeded", "resolved")


class Spike(msgspec.Struct, frozen=True):
    """Threshold above which more failures of one error class than the day before are a structural change."""

    more: int = 3
    times: float = 2.0

    def holds(self, now: int, before: int) -> bool:
        return now - before >= self.more and now >= self.times * before


class Cured(msgspec.Struct, frozen=True):
    """An error group that had deaths in the period before, none since, and has no dead letter left."""

    fingerprint: str
    queue: str
    task: str
    error_class: str | None
    what: str
    last_at: At


class Delta(msgspec.Struct, frozen=True):
    """Failures of one error class, now and in the same time before."""

    SHOWN: ClassVar = ("more", "structural")
    error_class: str
    now: int
    before: int
    kind: Literal["new", "spike", "steady"] = "steady"
    cured: bool = False
    """Whether no job of the class is dead or being retried any more; shown without a warning."""

    @property
    def more(self) -> int:
        return self.now - self.before

    @property
    def structural(self) -> bool:
        return self.kind != "steady" and not self.cured


class Morning(Shown, msgspec.Struct, frozen=True):
    """The morning page. `ok` on a quiet day."""

    HIDDEN: ClassVar = ("oldest_waiting", "next_back")
    SHOWN: ClassVar = ("ok", "_oldest_due")
    RENAMED: ClassVar = {"_oldest_due": "oldest_waiting"}
    since: At
    until: At
    done: int
    failed: int
    delayed: int
    retrying: int
    parked: int
    ignored: int
    needs: list[Need]
    deltas: list[Delta]
    oldest_waiting: Job | None = None
    queue: str | None = None
    deferred: int = 0
    """Dead letters that are deferred to a later day, and not due yet."""
    cured: list[Cured] = []
    next_back: float | None = None
    """Seconds until the next dead letter of the delayed lane comes back, where that is known."""

    @property
    def changes(self) -> list[Delta]:
        """Error classes that differ structurally from the day before."""
        return [delta for delta in self.deltas if delta.structural]

    @property
    def steady(self) -> list[Delta]:
        """Error classes that happened about as often as in the time before."""
        return [delta for delta in self.deltas if delta.kind == "steady"]

    @property
    def cured_classes(self) -> list[Delta]:
        """Error classes that were new or more frequent, and of which no job is left."""
        return [delta for delta in self.deltas if delta.cured]

    @property
    def ok(self) -> bool:
        return not self.needs and not self.changes

    @property
    def _oldest_due(self) -> dict[str, Any] | None:
        """The job that waits longest, in short."""
        job = self.oldest_waiting
        return (
            None if job is None else {"id": job.id, "queue": job.queue, "task": job.task, "due_since": iso(job.run_at)}
        )

    @property
    def waiting_for_you(self) -> int:
        return sum(need.count for need in self.needs)


# -- numbers


def window_start(now: float, since: float) -> float:
    """Returns the start of the first hour of the window. Whole hours give two windows the same length."""
    hours = max(1, -int(-(now - since) // HOUR))
    return (now // HOUR) * HOUR - (hours - 1) * HOUR


def windows(now: float, since: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns from when to when the window is, and the window before: as many hours, the current one included."""
    start = window_start(now, since)
    length = now // HOUR * HOUR + HOUR - start
    return (start, now + 1.0), (start - length, start)


class WindowSums(NamedTuple):
    """What happened in a window: jobs done, and failures by error class."""

    done: int
    failed: dict[str, int]


def sum_moves(tallies: Iterable[Tally], queue: str | None = None) -> WindowSums:
    """Sums up the moves of all queues, or of one."""
    done, failed = 0, dict[str, int]()
    for tally in tallies:
        if queue not in (None, tally.queue):
            continue
        if tally.move in DONE:
            done += tally.number
        elif tally.move in FAILED:
            name = tally.error_class or "unknown"
            failed[name] = failed.get(name, 0) + tally.number
    return WindowSums(done, failed)


def compare(here: WindowSums, before: WindowSums, known: frozenset[str], spike: Spike) -> list[Delta]:
    """Compares how often every error class happened in either window; a class in `known` happened earlier."""
    deltas = []
    for name in here.failed.keys() | before.failed.keys():
        now, then = here.failed.get(name, 0), before.failed.get(name, 0)
        is_new = now and not then and name not in known
        deltas.append(Delta(name, now, then, "new" if is_new else "spike" if spike.holds(now, then) else "steady"))
    return deltas


def describe_cured(group: Group) -> Cured:
    what = group.error or group.error_class or "no error was recorded"
    return Cured(group.fingerprint, group.queue, group.task, group.error_class, what, group.last_at)


def rank(deltas: Iterable[Delta], left: frozenset[str]) -> list[Delta]:
    """Lists structural changes first, then those of whose error class no job is left, and the largest rise first."""
    marked = [
        msgspec.structs.replace(delta, cured=delta.structural and delta.error_class not in left) for delta in deltas
    ]
    return sorted(marked, key=lambda delta: (not delta.structural, not delta.cured, -delta.more, delta.error_class))


# -- in words


def headline(page: Morning) -> str:
    """Writes the whole page in one line."""
    back = returning(page.delayed, page.next_back) if page.delayed else ""
    retrying = f" · {page.retrying} retrying" * bool(page.retrying) + f" · {page.parked} parked" * bool(page.parked)
    if page.ok:
        comma = f", {back}" if back else ""
        number = len(page.cured) + len(page.cured_classes)
        cured = f", {number} cured" if number else ""
        start = f"{page.done} done{retrying}" if retrying else f"quiet: {page.done} done"
        return f"{start}{comma}{cured}, nothing needs you"
    delayed = f" · {back}" if back else ""
    number = page.waiting_for_you
    needs = f" · {number} {'needs' if number == 1 else 'need'} you" if number else ""
    deferred = f" · {page.deferred} deferred" if page.deferred else ""
    changes = f" · {len(page.changes)} structural change{'s' if len(page.changes) != 1 else ''}" if page.changes else ""
    return f"{page.done} done{retrying}{delayed}{needs}{deferred}{changes}"


def in_words(delta: Delta) -> str:
    if delta.cured:
        return f"{delta.error_class}: {delta.now}, {'new' if delta.kind == 'new' else f'+{delta.more}'}, none is left"
    if delta.kind == "new":
        return f"{delta.error_class}: {delta.now}, never seen before. A model, a contract or a token may have changed."
    sign = f"+{delta.more}" if delta.more >= 0 else str(delta.more)
    text = f"{delta.error_class}: {delta.now} ({sign} against {delta.before} the time before)"
    return f"{text}. A model, a contract or a token may have changed." if delta.structural else text


def in_lines(page: Morning) -> list[str]:
    """Writes the lines of a message: what needs a person and what changed. The headline is the title of the message."""
    lines = [_in_line(need) for need in page.needs[:SHOWN]]
    if len(page.needs) > SHOWN:
        lines.append(f"and {sum(need.count for need in page.needs[SHOWN:])} more: redrive dead list --lane manual")
    lines += [in_words(delta) for delta in page.changes]
    lines += [f"cured: {in_words(delta)}" for delta in page.cured_classes]
    lines += [f"cured: {cured.task}: {cured.what[:MESSAGE_TEXT]}" for cured in page.cured[:SHOWN]]
    return lines


def _in_line(need: Need) -> str:
    trend = f" [{course(need)}]" if course(need) else ""
    if not need.asks:
        return f"{need.sentence} → {need.action} {need.command}"
    return f"{need.count} {label(need)} {need.task}: {need.what[:MESSAGE_TEXT]}{trend} → {need.action} {need.command}"
