"""What a person must look at in the morning, and nothing else. Pure: what the store said and the time are arguments.

Only the manual lane needs eyes; the delayed lane comes back by itself and is a number here. What changed since the day
before says more than what is there: a class of error that is new, or that happens much more often than yesterday, is a
change in the world (a model, a contract, a token) and not bad luck of one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from shlex import quote
from typing import Any, Final, Literal

import msgspec

from redrive.core.job import CYCLE, Job, iso
from redrive.core.store import Group, Tally
from redrive.insight.groups import GroupView, suggest

HOUR: Final = 3600.0
DAY: Final = 86400.0
STUCK_AFTER: Final = 26 * HOUR
"""What comes back by itself does so within a nightly cycle; after that, nobody fetches it."""
STALE_DAYS: Final = 3
"""A job that comes back by itself and has failed on so many days does not heal by waiting."""
SHOWN: Final = 20
"""So many lines are told one by one."""
MESSAGE_TEXT: Final = 100
"""So much of an error goes into a message."""
FAILED: Final = ("buried", "imported")
DONE: Final = ("succeeded", "resolved")
FOR_A_PERSON: Final = ("approval", "consent", "outcome_unknown")
"""Holds that nobody but a person ends."""

Kind = Literal["dead", "held", "deferred", "stuck", "stale", "waiting", "spool"]
Course = Literal["new", "regressed", "growing", "steady", "shrinking", "quiet"]
"""How a trouble went since the time before. A cured one needs nobody, and is told apart."""


class Spike(msgspec.Struct, frozen=True):
    """How much more of one error class than the day before is a structural change."""

    more: int = 3
    times: float = 2.0

    def holds(self, now: int, before: int) -> bool:
        return now - before >= self.more and now >= self.times * before


class Pile(msgspec.Struct, frozen=True):
    """Jobs that are in trouble for one reason, and the latest of them with its story."""

    number: int
    sample: Job
    oldest_at: float | None = None
    """Since when the one that lies there for longest does."""
    fresh: int = 0
    """How many of them came since then, and in the time before."""
    before: int = 0
    troubles: int = 1
    """More where it stands for all the small ones of a class."""


class Need(msgspec.Struct, frozen=True):
    """One line for a person: what, how many, since when, and what to do."""

    kind: Kind
    number: int
    queue: str
    task: str
    error_class: str | None
    what: str
    action: str
    command: str
    job_id: str | None = None
    fingerprint: str | None = None
    days: int = 0
    """On so many days it has failed."""
    since: float | None = None
    """When it failed first."""
    course: Course | None = None
    fresh: int = 0
    """How many of them came since then, and in the time before."""
    before: int = 0
    oldest_at: float | None = None
    """Since when the one that lies there for longest does."""
    owner: str | None = None
    """Who is to see to it, where somebody is named."""


class Cured(msgspec.Struct, frozen=True):
    """A trouble that buried jobs in the time before, and since then none; nothing of it is left."""

    fingerprint: str
    queue: str
    task: str
    error_class: str | None
    what: str
    last_at: float


class Delta(msgspec.Struct, frozen=True):
    """Failures of one class, now and in the same time before."""

    error_class: str
    now: int
    before: int
    kind: Literal["new", "spike", "steady"] = "steady"

    @property
    def more(self) -> int:
        return self.now - self.before

    @property
    def structural(self) -> bool:
        return self.kind != "steady"


class Seen(msgspec.Struct, frozen=True):
    """Everything that the store said."""

    now: float
    since: float
    tallies: Sequence[Tally] = ()
    """Of the time since `since` and of as much time before."""
    known_classes: frozenset[str] = frozenset()
    """Error classes that had buried jobs before `since`."""
    manual: Sequence[Pile] = ()
    held: Sequence[Pile] = ()
    stuck: Sequence[Pile] = ()
    """Letters of the delayed lane that nobody has fetched for STUCK_AFTER."""
    stale: Sequence[Pile] = ()
    """Others of that lane, which have failed on STALE_DAYS."""
    delayed: int = 0
    retrying: int | None = None
    oldest: Job | None = None
    unattended: Sequence[Pile] = ()
    """Due for an hour or more, and no living worker takes them; each with the one that came first."""
    spooled: int = 0
    groups: Mapping[str, GroupView] = {}
    """What is known of the piles' troubles, by fingerprint."""
    queue: str | None = None
    deferred: int = 0
    overdue: Sequence[Pile] = ()
    """Deferred jobs whose time has come."""
    cured: Sequence[Group] = ()
    ignored: int = 0
    """Letters of the manual lane that are not among its piles, because somebody ignores their troubles."""


class Morning(msgspec.Struct, frozen=True):
    """The page. `ok` on a quiet day."""

    since: float
    until: float
    done: int
    failed: int
    delayed: int
    retrying: int | None
    ignored: int
    needs: list[Need]
    deltas: list[Delta]
    oldest_waiting: Job | None = None
    queue: str | None = None
    deferred: int = 0
    """Put off to a later day, and not to be seen to yet."""
    cured: list[Cured] = []

    @property
    def changes(self) -> list[Delta]:
        """What is structurally different from the day before."""
        return [delta for delta in self.deltas if delta.structural]

    @property
    def ok(self) -> bool:
        return not self.needs and not self.changes

    @property
    def waiting_for_you(self) -> int:
        return sum(need.number for need in self.needs)

    def public(self) -> dict[str, Any]:
        """As the outside sees it (JSON in CLI, REST, MCP)."""
        oldest = self.oldest_waiting
        return {
            "ok": self.ok,
            "since": iso(self.since),
            "until": iso(self.until),
            "queue": self.queue,
            "done": self.done,
            "failed": self.failed,
            "delayed": self.delayed,
            "retrying": self.retrying,
            "ignored": self.ignored,
            "deferred": self.deferred,
            "needs": [
                msgspec.structs.asdict(need) | {"since": iso(need.since), "oldest_at": iso(need.oldest_at)}
                for need in self.needs
            ],
            "cured": [msgspec.structs.asdict(cured) | {"last_at": iso(cured.last_at)} for cured in self.cured],
            "deltas": [
                msgspec.structs.asdict(delta) | {"more": delta.more, "structural": delta.structural}
                for delta in self.deltas
            ],
            "oldest_waiting": oldest
            and {"id": oldest.id, "queue": oldest.queue, "task": oldest.task, "due_since": iso(oldest.run_at)},
        }


def morning(seen: Seen, spike: Spike | None = None) -> Morning:
    """What the numbers mean to a person."""
    here, before = _windows(seen)
    needs = [*_dead(seen), *_held(seen), *_overdue(seen), *_returning(seen), *_waiting(seen), *_spool(seen)]
    return Morning(
        since=seen.since,
        until=seen.now,
        done=_count(here, DONE),
        failed=_count(here, FAILED),
        delayed=seen.delayed,
        retrying=seen.retrying,
        ignored=seen.ignored,
        needs=needs,
        deltas=deltas(here, before, seen.known_classes, spike or Spike()),
        oldest_waiting=seen.oldest,
        queue=seen.queue,
        deferred=max(0, seen.deferred - sum(pile.number for pile in seen.overdue)),
        cured=[_cured(group) for group in seen.cured],
    )


def _cured(group: Group) -> Cured:
    what = group.error or group.error_class or "no error was recorded"
    return Cured(group.fingerprint, group.queue, group.task, group.error_class, what, group.last_at)


# -- numbers


def window_start(now: float, since: float) -> float:
    """Hours are counted whole: the first one of the window, so that two windows are of one length."""
    hours = max(1, -int(-(now - since) // HOUR))
    return (now // HOUR) * HOUR - (hours - 1) * HOUR


def _windows(seen: Seen) -> tuple[list[Tally], list[Tally]]:
    """What happened since then, and in as much time before."""
    start = window_start(seen.now, seen.since)
    length = (seen.now // HOUR) * HOUR + HOUR - start
    ours = [tally for tally in seen.tallies if seen.queue in (None, tally.queue)]
    here = [tally for tally in ours if tally.hour >= start]
    return here, [tally for tally in ours if start - length <= tally.hour < start]


def _count(tallies: Iterable[Tally], moves: Sequence[str]) -> int:
    return sum(tally.number for tally in tallies if tally.move in moves)


def _by_class(tallies: Iterable[Tally]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tally in tallies:
        if tally.move in FAILED:
            name = tally.error_class or "unknown"
            found[name] = found.get(name, 0) + tally.number
    return found


def deltas(here: Iterable[Tally], before: Iterable[Tally], known: frozenset[str], spike: Spike) -> list[Delta]:
    """Every class that happened in either time, the largest rise first."""
    now, then = _by_class(here), _by_class(before)
    found = [_delta(name, now.get(name, 0), then.get(name, 0), known, spike) for name in now.keys() | then.keys()]
    return sorted(found, key=lambda delta: (not delta.structural, -delta.more, delta.error_class))


def _delta(name: str, now: int, before: int, known: frozenset[str], spike: Spike) -> Delta:
    if now and not before and name not in known:
        return Delta(name, now, before, "new")
    return Delta(name, now, before, "spike" if spike.holds(now, before) else "steady")


def unheard_of(seen: Seen) -> set[str]:
    """Classes of now that the time before did not have: whether they are new, only older records can tell."""
    here, before = _windows(seen)
    return _by_class(here).keys() - _by_class(before).keys()


# -- what needs eyes


def _dead(seen: Seen) -> list[Need]:
    """The manual lane, the largest pile first."""
    piles = sorted(seen.manual, key=lambda pile: (pile.troubles > 1, -pile.number))
    return [_pile(seen, "dead", pile) for pile in piles]


def _held(seen: Seen) -> list[Need]:
    return [msgspec.structs.replace(_pile(seen, "held", pile), **_asked(pile)) for pile in seen.held]


def _asked(pile: Pile) -> dict[str, str]:
    """What it asks, or its error; of several, the latest speaks for the others, which a command lists."""
    job, what = pile.sample, _question(pile.sample) or _what(pile)
    if pile.number == 1:
        return {"what": what}
    listed = f"redrive jobs --state held --because {quote(job.because or '')} {_route(job)}"
    return {"what": f"such as: {what}", "command": listed}


def _question(job: Job) -> str | None:
    """An attempt that asks for approval says what; consent is asked for before there is one."""
    if job.because == "consent":
        return f"asks for consent to {job.task}" + (f", for session {job.session_id}" if job.session_id else "")
    return job.history[-1].decision if job.because == "approval" and job.history else None


def _pile(seen: Seen, kind: Kind, pile: Pile) -> Need:
    job = pile.sample
    failed_on = failing_days(job)
    return Need(
        kind,
        pile.number,
        job.queue,
        job.task,
        job.error_class,
        _what(pile),
        _action(seen, job),
        _command(kind, pile),
        job.id,
        job.fingerprint,
        len(failed_on),
        _first_failure(job),
        _course(seen, pile) if kind == "dead" else None,
        pile.fresh,
        pile.before,
        pile.oldest_at,
        job.owner,
    )


def _said(pile: Pile) -> str:
    return pile.sample.error or pile.sample.because or "no error was recorded"


def _what(pile: Pile) -> str:
    said = _said(pile)
    return said if pile.troubles == 1 else f"{pile.troubles} smaller troubles, such as {said}"


def _course(seen: Seen, pile: Pile) -> Course | None:
    """By what came since then against the time before; that it came back after somebody called it cured goes first."""
    view = seen.groups.get(pile.sample.fingerprint or "")
    if view is None or pile.troubles > 1:
        return None
    if _regressed(view, seen.since):
        return "regressed"
    if view.group.first_at >= seen.since:
        return "new"
    if not pile.fresh and not pile.before:
        return "quiet"
    return "growing" if pile.fresh > pile.before else "shrinking" if pile.fresh < pile.before else "steady"


def _regressed(view: GroupView, since: float) -> bool:
    """It was resolved and is back; whoever watches said so, or nobody has looked yet."""
    state = view.state
    if state.status == "resolved":
        return state.resolved_at is not None and view.group.last_at > state.resolved_at and view.dead > 0
    return any(said.what == "regressed" and said.at >= since for said in state.story)


def _overdue(seen: Seen) -> list[Need]:
    """Put off until a time that has come: whoever put it off meant to see to it now."""
    action = "The time it was put off to has come. See to it now, or put it off again."
    return [msgspec.structs.replace(_pile(seen, "deferred", pile), action=action) for pile in seen.overdue]


def _action(seen: Seen, job: Job) -> str:
    """As its group suggests it, of this letter."""
    view = seen.groups.get(job.fingerprint or "")
    if view is not None:
        return suggest(view.group, view.lessons, letter=job).text
    return job.recommendation or "Look at it."


def _command(kind: Kind, pile: Pile) -> str:
    if kind == "waiting" and pile.troubles > 1:
        return "redrive jobs --state waiting"
    if kind == "waiting" and pile.number > 1:
        return f"redrive jobs --state waiting {_route(pile.sample)}"
    if kind in ("held", "deferred", "waiting"):
        return f"redrive status {pile.sample.short_id}"
    if pile.troubles > 1:
        return f"redrive dead list --lane manual --error-class {quote(pile.sample.error_class or '')}"
    if pile.number > 1 and pile.sample.fingerprint:
        return f"redrive dead list --fingerprint {pile.sample.fingerprint}"
    return f"redrive dead show {pile.sample.short_id}"


def _route(job: Job) -> str:
    return f"--task {quote(job.task)} --queue {quote(job.queue)}"


def failing_days(job: Job) -> list[date]:
    """The days (UTC) on which it failed."""
    ends = {
        _day(attempt.ended_at)
        for attempt in job.history
        if attempt.failure is not None and attempt.ended_at is not None and attempt.outcome != "released"
    }
    return sorted(ends)


def _first_failure(job: Job) -> float | None:
    ends = [attempt.ended_at for attempt in job.history if attempt.failure is not None]
    return min((end for end in ends if end is not None), default=job.first_failed_at)


def _day(at: float) -> date:
    return datetime.fromtimestamp(at, UTC).date()


def _returning(seen: Seen) -> list[Need]:
    """The delayed lane is silent as long as it works: what failed day after day, or is fetched by nobody, is told."""
    unfetched = "It should come back by itself, and nobody fetches it: run its script or a worker, or redrive it."
    stuck = [_come_back(seen, "stuck", pile, unfetched) for pile in seen.stuck]
    return stuck + [
        _come_back(seen, "stale", pile, f"Waiting does not heal it. {pile.sample.recommendation or ''}".strip())
        for pile in seen.stale
    ]


def _come_back(seen: Seen, kind: Kind, pile: Pile, action: str) -> Need:
    """Of several of a task, the latest speaks for the others, which a command lists."""
    need = msgspec.structs.replace(_pile(seen, kind, pile), action=action)
    if pile.number == 1:
        return need
    several = pile.troubles > 1
    what = f"of {pile.troubles} more tasks, such as: {_said(pile)}" if several else f"such as: {_said(pile)}"
    listed = "redrive dead list --lane delayed" + ("" if several else f" {_route(pile.sample)}")
    return msgspec.structs.replace(need, what=what, command=listed)


def _waiting(seen: Seen) -> list[Need]:
    """Nobody runs it: no living worker takes it, or it has been due for more than a day."""
    piles, job = list(seen.unattended), seen.oldest
    told = {(pile.sample.queue, pile.sample.task) for pile in piles}
    if job is not None and seen.now - job.run_at >= STUCK_AFTER and (job.queue, job.task) not in told:
        piles.append(Pile(1, job))
    return [_left(seen, pile) for pile in piles]


def _left(seen: Seen, pile: Pile) -> Need:
    job, one = pile.sample, pile.number == 1
    since = f"due since {iso(job.run_at)}"
    what = f"{since}, and nobody runs it" if one else f"due, such as one {since}, and nobody runs them"
    runs_it = "Run its script" if job.queue.startswith(CYCLE) else "Start a worker that knows its task"
    if pile.troubles > 1:
        what = f"of {pile.troubles} more tasks are {what}"
        runs_it = "Start a worker that knows their tasks"
    return msgspec.structs.replace(_pile(seen, "waiting", pile), what=what, action=f"{runs_it}, or cancel it.")


def _spool(seen: Seen) -> list[Need]:
    if not seen.spooled:
        return []
    what = "wait beside the store because it could not take them"
    return [Need("spool", seen.spooled, "", "", None, what, "A running worker moves them over.", "redrive doctor")]


# -- in words


def headline(page: Morning) -> str:
    """The whole page in one line."""
    returning = f", {page.delayed} will come back" if page.delayed else ""
    if page.ok:
        cured = f", {len(page.cured)} cured" if page.cured else ""
        return f"quiet: {page.done} done{returning}{cured}, nothing needs you"
    retrying = f" · {page.retrying} retrying" if page.retrying else ""
    delayed = f" · {page.delayed} delayed" if page.delayed else ""
    number = page.waiting_for_you
    needs = f" · {number} {'needs' if number == 1 else 'need'} you" if number else ""
    deferred = f" · {page.deferred} deferred" if page.deferred else ""
    changes = f" · {len(page.changes)} structural change{'s' if len(page.changes) != 1 else ''}" if page.changes else ""
    return f"{page.done} done{retrying}{delayed}{needs}{deferred}{changes}"


def in_words(delta: Delta) -> str:
    if delta.kind == "new":
        return f"{delta.error_class}: {delta.now}, never seen before. A model, a contract or a token may have changed."
    sign = f"+{delta.more}" if delta.more >= 0 else str(delta.more)
    said = f"{delta.error_class}: {delta.now} ({sign} against {delta.before} the time before)"
    return f"{said}. A model, a contract or a token may have changed." if delta.structural else said


def lasting(need: Need) -> str:
    """`failing on 3 days since 2031-05-17`, where it is more than one."""
    if need.days < 2 or need.since is None:
        return ""
    return f"failing on {need.days} days since {_day(need.since).isoformat()}"


def course(need: Need) -> str:
    """`growing: 4, 1 the time before`, where that is known."""
    if need.course in (None, "quiet"):
        return need.course or ""
    if need.course == "new":
        return "new"
    return f"{need.course}: {need.fresh}, {need.before} the time before"


def in_lines(page: Morning) -> list[str]:
    """What needs eyes and what changed, for a message; the headline is its title."""
    lines = [_in_line(need) for need in page.needs[:SHOWN]]
    if len(page.needs) > SHOWN:
        lines.append(f"and {sum(need.number for need in page.needs[SHOWN:])} more: redrive dead list --lane manual")
    lines += [in_words(delta) for delta in page.changes]
    lines += [f"cured: {cured.task}: {cured.what[:MESSAGE_TEXT]}" for cured in page.cured[:SHOWN]]
    return lines


def _in_line(need: Need) -> str:
    said = f" [{course(need)}]" if course(need) else ""
    place = need.task or "spool"
    return f"{need.number} {need.kind} {place}: {need.what[:MESSAGE_TEXT]}{said} → {need.action} {need.command}"
