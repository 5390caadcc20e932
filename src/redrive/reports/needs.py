"""Makes the one list of what needs a person. Pure: store data and the time are arguments.

Health is whether the list is empty, the overview and `redrive top` show its head, the morning shows the whole list
and what changed. What heals by itself (a retry, a parked job, a dead letter that comes back) is a fact, not a need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from operator import attrgetter
from shlex import quote
from typing import Final, Literal, get_args

import msgspec

from redrive.core.effects import EffectRecord
from redrive.core.job import CYCLE, At, Job, iso
from redrive.core.store import LeftBehind, Quiet
from redrive.core.trusted_time import ClockHold, describe
from redrive.core.view import Shown
from redrive.core.words import counted, plain, span
from redrive.deadletters.group import GroupView, suggest
from redrive.reports.queue_numbers import QueueNumbers
from redrive.retries.breaker import name_of_key
from redrive.scripts.cycle_history import Finding, FindingKind

NeedKind = Literal[
    "store_failed", "process_gone", "outcome_unknown", "approval", "consent", "dead_manual", "conflicting_input",
    "cycle_missing", "cycle_died", "cycle_short", "stalled", "loop_blocked", "unattended", "backed_up",
    "deferred_overdue", "spooled", "disk_low", "clock_jumped", "replica_lag", "channel_failed",
]  # fmt: skip
"""Every kind of need, the gravest first. The list is closed."""
ORDER: Final[Mapping[str, int]] = {kind: place for place, kind in enumerate(get_args(NeedKind))}
ASKING: Final = frozenset({"outcome_unknown", "approval", "consent", "dead_manual", "conflicting_input"})
"""Kinds of needs that only a person ends."""
FOR_A_PERSON: Final[tuple[NeedKind, ...]] = ("approval", "consent", "outcome_unknown")
"""Reasons to hold a job that only a person ends."""
Course = Literal["new", "regressed", "growing", "steady", "shrinking", "quiet"]
"""Courses of a group since the period before. A cured group is reported, but needs no person."""

HOUR: Final = 3600.0
STUCK_AFTER: Final = 26.5 * HOUR
"""Seconds after which a dead letter that should come back by itself counts as stuck: most return within a day."""
LATE_AFTER: Final = 600.0
"""Seconds past its time after which a dead letter whose task no living worker knows counts as not coming back."""
STALE_DAYS: Final = 3
"""Number of days with failures after which a job that comes back by itself does not heal by waiting."""
STALLED_AFTER: Final = 900.0
STALLED_TIMES: Final = 10.0
ENOUGH: Final = 20
"""Number of successes of a task that say how long the task usually takes."""
DISK_LOW: Final = 256 * 1024 * 1024
"""Fewer free bytes than this beside the database are too few for a busy hour."""


class Pile(msgspec.Struct, frozen=True):
    """Jobs that need a person for one reason, and the latest of these jobs with its history."""

    number: int
    sample: Job
    oldest_at: float | None = None
    """Since when the oldest job has been there."""
    fresh: int = 0
    """Number of jobs that came since `Snapshot.since`; `before` counts those of as much time before."""
    before: int = 0
    groups: int = 1
    """Number of groups or tasks in the pile: more than one where small ones are merged."""

    @property
    def error(self) -> str:
        return self.sample.error or self.sample.because or "no error was recorded"


class Need(Shown, msgspec.Struct, frozen=True):
    """One thing that needs a person: what, how many, since when, and what to do."""

    kind: NeedKind
    id: str
    """Stable id: the same need has the same id in every list."""
    count: int
    sentence: str
    action: str
    command: str
    since: At | None = None
    what: str = ""
    """The error, the question or the detail behind the need."""
    queue: str = ""
    task: str = ""
    error_class: str | None = None
    job_id: str | None = None
    fingerprint: str | None = None
    days: int = 0
    """Number of days on which the job has failed."""
    course: Course | None = None
    fresh: int = 0
    before: int = 0
    oldest_at: At | None = None
    owner: str | None = None
    """Owner who should deal with it, if one is named."""

    @property
    def asks(self) -> bool:
        return self.kind in ASKING


class Stalled(msgspec.Struct, frozen=True):
    """A running job that has shown no progress for longer than its task may take."""

    job: Job
    since: float
    limit: float


class Blocked(msgspec.Struct, frozen=True):
    """A task that keeps the event loop of a worker from running anything else."""

    worker: str
    task: str
    since: float | None = None
    job_id: str | None = None


class Unfired(msgspec.Struct, frozen=True):
    """A schedule with a due slot for which no process has enqueued a job."""

    name: str
    task: str
    line: str
    since: float


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that was read from the store at one moment."""

    now: float
    since: float
    """Since when a dead letter counts as fresh."""
    queues: Sequence[QueueNumbers] = []
    manual: Sequence[Pile] = []
    held: Sequence[Pile] = []
    overdue: Sequence[Pile] = []
    """Deferred jobs whose time has come."""
    stuck: Sequence[Pile] = []
    """Dead letters of the delayed lane that no process has fetched for STUCK_AFTER."""
    stale: Sequence[Pile] = []
    """Other dead letters of the delayed lane, which have failed on STALE_DAYS or more."""
    unattended: Sequence[Pile] = []
    """Due jobs that no living worker takes; each pile with the job that came first."""
    unprobed: Sequence[Pile] = []
    """Parked jobs whose probe no living worker could run."""
    unfired: Sequence[Unfired] = []
    """Schedules with a slot that is due, whose task no living worker knows."""
    known: frozenset[str] = frozenset()
    """The tasks that living workers know."""
    oldest: Job | None = None
    """The waiting job that has been due for longest."""
    groups: Mapping[str, GroupView] = {}
    """Views of the piles' groups, by fingerprint."""
    left_behind: Sequence[LeftBehind] = []
    list_stalled: Sequence[Stalled] = []
    blocked: Sequence[Blocked] = []
    spooled: int = 0
    disk_free: int | None = None
    channels: Sequence[str] = []
    """Notification channels that do not take anything, in words."""
    cycles: Sequence[Finding] = []
    """Nights of cycles that did not happen, ended early or were short."""
    effects: Sequence[EffectRecord] = []
    """Effects without a job that were begun, and whose end is not known."""
    jump: ClockHold | None = None
    """A jump of the clock that has not held yet."""
    delayed: int = 0
    """Dead letters that come back by themselves."""
    deferred: int = 0
    ignored: int = 0
    """Dead letters of the manual lane whose groups a person chose to ignore."""


def needs(seen: Snapshot) -> list[Need]:
    """Lists everything that needs a person, the gravest kind first."""
    told = [need for field, word in WORDED if getattr(seen, field) != getattr(_NOTHING, field) for need in word(seen)]
    return sorted(told, key=lambda need: ORDER[need.kind])


def store_failed(problem: str, *, fleet: bool = False) -> Need:
    """Makes the need for a store that cannot be used."""
    action = "Look at the disk, then restart the process. Jobs that were accepted are on disk."
    command = "redrive doctor"
    if fleet:
        action = "Look whether the fleet's server and a hub run. Jobs that were accepted are in the fleet's log."
        command = "redrive fleet doctor"
    sentence = f"the store cannot be used: {problem}"
    return Need("store_failed", "store_failed", 1, sentence, action, command, what=problem)


# -- processes


def _word_gone(seen: Snapshot) -> Iterator[Need]:
    """Words the processes that left running jobs; on another host, a silent process is not called gone."""
    for left in seen.left_behind:
        number, tasks = len(left.jobs), ", ".join(left.tasks[:3]) + (", …" if len(left.tasks) > 3 else "")
        silent = span(seen.now - left.since)
        lost = f"is gone (last seen {silent} ago)" if left.gone else f"was not seen for {silent}"
        what = f"process {left.process} {lost}"
        yield Need(
            "process_gone",
            f"process_gone:{left.process}",
            number,
            f"{what} and left {counted(number, 'running job')} behind ({tasks})",
            "Start a worker, or run the script again: it takes over what is left.",
            f"redrive status {left.jobs[0][-8:]}" if number == 1 else "redrive jobs --state running",
            left.since,
            what=what,
            task=left.tasks[0] if len(left.tasks) == 1 else "",
            job_id=left.jobs[0],
        )


def stalled_limit(durations: Sequence[float]) -> float:
    """Returns how long a task may run without progress: ten times its usual duration, at least 15 minutes."""
    if len(durations) < ENOUGH:
        return STALLED_AFTER
    usual = sorted(durations)[int(0.95 * (len(durations) - 1))]
    return max(STALLED_AFTER, STALLED_TIMES * usual)


def list_stalled(quiet: Sequence[Quiet], limits: Mapping[str, float], now: float) -> list[Stalled]:
    """Lists the running jobs without progress for longer than their limit."""
    running = [Stalled(one.job, one.since, limits.get(one.job.id, STALLED_AFTER)) for one in quiet]
    return [one for one in running if now - one.since > one.limit]


def _word_stalled(seen: Snapshot) -> Iterator[Need]:
    for one in seen.list_stalled:
        job, time = one.job, span(seen.now - one.since)
        sentence = f"job {job.short_id} ({job.task}) has been running for {time} without progress (stalled)"
        what = f"no progress for {time}, expected {span(one.limit)} at most"
        action, command = "See what it waits for, or cancel it.", f"redrive status {job.short_id}"
        yield _need_of_job("stalled", job, sentence, action, command, one.since, what, id=job.id)


def _need_of_job(
    kind: NeedKind,
    job: Job,
    sentence: str,
    action: str,
    command: str,
    since: float,
    what: str,
    *,
    id: str,
    count: int = 1,
) -> Need:
    """Makes a need about jobs of one queue and task, of which the given job is shown."""
    return Need(
        kind, f"{kind}:{id}", count, f"{job.queue}: {sentence}", action, command, since, what, job.queue, job.task,
        job_id=job.id,
    )  # fmt: skip


def _word_blocked(seen: Snapshot) -> Iterator[Need]:
    action = "Use await in it, or make it a plain `def` task, which runs in a thread."
    for one in seen.blocked:
        sentence = f"event loop blocked by {one.task} (worker {one.worker})"
        command = f"redrive status {one.job_id[-8:]}" if one.job_id else "redrive top"
        id, task = f"loop_blocked:{one.worker}", one.task
        yield Need("loop_blocked", id, 1, sentence, action, command, one.since, task=task, job_id=one.job_id)


# -- cycles


_CYCLES: Final[Mapping[FindingKind, str]] = {
    "cycle_missing": "Look whether cron still starts its script; `redrive cycles forget NAME` ends the watch.",
    "cycle_died": "Look at the script's own output, mend it, and run it again: what was done is not repeated.",
    "cycle_short": "Look whether its input was complete, and run it again if it was not.",
}


def _word_cycles(seen: Snapshot) -> Iterator[Need]:
    for cycle in seen.cycles:
        action, what = _CYCLES[cycle.kind].replace("NAME", cycle.name), cycle.sentence
        queue = f"{CYCLE}{cycle.name}"
        yield Need(cycle.kind, cycle.id, cycle.count, what, action, cycle.command, cycle.since, what, queue)


# -- dead letters and held jobs


_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "dead_manual": ("dead letter needs a person", "dead letters need a person"),
    "conflicting_input": ("input conflicts with a job that was done", "inputs conflict with jobs that were done"),
    "approval": ("job waits for an approval", "jobs wait for an approval"),
    "consent": ("job waits for consent", "jobs wait for consent"),
    "outcome_unknown": ("job may or may not have happened", "jobs may or may not have happened"),
    "deferred_overdue": ("job should be back by now", "jobs should be back by now"),
}


def _word_pile(
    seen: Snapshot, kind: NeedKind, pile: Pile, what: str, command: str, action: str = "", course: Course | None = None
) -> Need:
    """Makes the need for a pile. Without an action of its own, its group or its latest job says what to do."""
    job = pile.sample
    if kind == "dead_manual" and job.because == "conflicting_input":
        kind, course = "conflicting_input", None
    one, many = _WORDS[kind]
    if not action and (view := seen.groups.get(job.fingerprint or "")) is not None:
        action = suggest(view.group, view.lessons, letter=job).text
    ends = [attempt.ended_at for attempt in job.history if attempt.failure is not None and attempt.ended_at is not None]
    return Need(
        kind,
        f"{kind}:{job.fingerprint or job.id}",
        pile.number,
        f"{job.queue}: {pile.number:,} {one if pile.number == 1 else many} ({job.task})",
        action or job.recommendation or "Look at it.",
        command,
        min(ends, default=job.first_failed_at),
        what,
        job_id=job.id,
        days=len(failing_days(job)),
        course=course,
        **{field: getattr(job, field) for field in ("queue", "task", "error_class", "fingerprint", "owner")},
        **{field: getattr(pile, field) for field in ("fresh", "before", "oldest_at")},
    )


def _word_manual(seen: Snapshot) -> Iterator[Need]:
    """Words the manual lane, the largest pile first."""
    for pile in sorted(seen.manual, key=lambda pile: (pile.groups > 1, -pile.number)):
        job, what = pile.sample, pile.error
        if pile.groups > 1:
            what = f"{pile.groups} smaller groups, such as {what}"
            command = f"redrive dead list --lane manual --error-class {quote(job.error_class or '')}"
        elif pile.number > 1 and job.fingerprint:
            command = f"redrive dead list --fingerprint {job.fingerprint}"
        else:
            command = f"redrive dead show {job.short_id}"
        yield _word_pile(seen, "dead_manual", pile, what, command, course=_find_course(seen, pile))


def _find_course(seen: Snapshot, pile: Pile) -> Course | None:
    """Compares the fresh dead letters of a group with the time before; `regressed` goes first."""
    view = seen.groups.get(pile.sample.fingerprint or "")
    if view is None or pile.groups > 1:
        return None
    if _has_regressed(view, seen.since):
        return "regressed"
    if view.group.first_at >= seen.since:
        return "new"
    if not pile.fresh and not pile.before:
        return "quiet"
    return "growing" if pile.fresh > pile.before else "shrinking" if pile.fresh < pile.before else "steady"


def _has_regressed(view: GroupView, since: float) -> bool:
    """Returns whether a group was resolved and is back, even if no watch has noticed yet."""
    state = view.state
    if state.status == "resolved":
        return state.resolved_at is not None and view.group.last_at > state.resolved_at and view.dead > 0
    return any(entry.what == "regressed" and entry.at >= since for entry in state.story)


def _word_held(seen: Snapshot) -> Iterator[Need]:
    for pile in seen.held:
        job, what, command = pile.sample, _question(pile.sample) or pile.error, f"redrive status {pile.sample.short_id}"
        kind = next(kind for kind in FOR_A_PERSON if kind == job.because)
        if pile.number > 1:
            what, command = f"such as: {what}", f"redrive jobs --state held --because {quote(kind)} {_route(job)}"
        yield _word_pile(seen, kind, pile, what, command)


def _question(job: Job) -> str | None:
    """Returns the question that a held job asks. Consent is asked for before an attempt, so its text is made here."""
    if job.because == "consent":
        return f"asks for consent to {job.task}" + (f", for session {job.session_id}" if job.session_id else "")
    return job.history[-1].decision if job.because == "approval" and job.history else None


def _route(job: Job) -> str:
    return f"--task {quote(job.task)} --queue {quote(job.queue)}"


def _word_overdue(seen: Snapshot) -> Iterator[Need]:
    """Words the deferred jobs whose time has come."""
    action = "The time it was deferred to has come. See to it now, or defer it again."
    for pile in seen.overdue:
        yield _word_pile(seen, "deferred_overdue", pile, pile.error, f"redrive status {pile.sample.short_id}", action)


def _word_stuck(seen: Snapshot) -> Iterator[Need]:
    action = "It should come back by itself, and no process fetches it: run its script or a worker, or redrive it."
    for pile in seen.stuck:
        yield _word_delayed(seen, "deferred_overdue", pile, action)


def _word_stale(seen: Snapshot) -> Iterator[Need]:
    for pile in seen.stale:
        action = f"Waiting does not heal it. {pile.sample.recommendation or ''}".strip()
        yield _word_delayed(seen, "dead_manual", pile, action)


def _word_delayed(seen: Snapshot, kind: NeedKind, pile: Pile, action: str) -> Need:
    """Words a pile of the delayed lane; of several jobs, shows the latest, and a command lists all."""
    what, command = pile.error, f"redrive dead show {pile.sample.short_id}"
    if pile.groups > 1:
        what, command = f"of {pile.groups} more tasks, such as: {what}", "redrive dead list --lane delayed"
    elif pile.number > 1:
        what, command = f"such as: {what}", f"redrive dead list --lane delayed {_route(pile.sample)}"
    return _word_pile(seen, kind, pile, what, command, action)


def failing_days(job: Job) -> list[date]:
    """Lists the days (UTC) on which the job failed."""
    ends = {
        day_of(attempt.ended_at)
        for attempt in job.history
        if attempt.failure is not None and attempt.ended_at is not None and attempt.outcome != "released"
    }
    return sorted(ends)


def day_of(at: float) -> date:
    return datetime.fromtimestamp(at, UTC).date()


# -- effects without a job


EFFECTS_SHOWN: Final = 20
"""Number of effects that are listed one by one; the rest is merged into one need."""


def _word_effects(seen: Snapshot) -> Iterator[Need]:
    """Words the effects without a job whose outcome is unknown, the oldest first."""
    oldest = sorted(seen.effects, key=lambda effect: effect.at)
    for effect in oldest[:EFFECTS_SHOWN]:
        named = quote(f"effect:{effect.key}")
        yield Need(
            "outcome_unknown",
            f"outcome_unknown:effect:{effect.key}",
            1,
            f"{effect.name}: 1 effect may or may not have happened (effect:{effect.key})",
            f"Look at the receiver. Then `redrive resolve {named} --landed` or `--not-landed`.",
            f"redrive status {named}",
            effect.at,
            what=effect.note or "the process that performed it ended before it said more",
            task=effect.name,
        )
    if beyond := oldest[EFFECTS_SHOWN:]:
        id, command = "outcome_unknown:effects", "redrive effects --open"
        sentence = f"{len(beyond):,} more effects may or may not have happened"
        action = f"`{command}` lists them; look at their receivers, then resolve each."
        since, what = beyond[0].at, beyond[0].note or ""
        yield Need("outcome_unknown", id, len(beyond), sentence, action, command, since, what)


# -- work that does not move


def _word_unattended(seen: Snapshot) -> Iterator[Need]:
    """Words the due jobs that no living worker takes."""
    known = " (live workers know it, but none of them takes it: see their queues and agents)"
    for pile in seen.unattended:
        job, one = pile.sample, pile.number == 1
        since, command = f"due since {iso(job.run_at)}", f"redrive jobs --state waiting {_route(job)}"
        what = f"due, such as one {since}, and no live worker runs them"
        runs_it = "Run its script" if job.queue.startswith(CYCLE) else "Start a worker that knows its task"
        if one:
            what, command = f"{since}, and no live worker runs it", f"redrive status {job.short_id}"
        elif pile.groups > 1:
            what, command = f"of {pile.groups} more tasks are {what}", "redrive jobs --state waiting"
            runs_it = "Start a worker that knows their tasks"
        sentence = f"{pile.number:,} {'job is' if one else 'jobs are'} due, and no live worker runs {job.task}"
        sentence += known if job.task in seen.known else ""
        id, action = f"{job.queue}/{job.task}", f"{runs_it}, or cancel it."
        yield _need_of_job("unattended", job, sentence, action, command, job.run_at, what, id=id, count=pile.number)


def _word_unprobed(seen: Snapshot) -> Iterator[Need]:
    """Words the parked jobs that no living worker can send as a probe: they would not come back by themselves."""
    action = "Start a worker that knows the task: it probes, and they come back when that works."
    for pile in seen.unprobed:
        job, jobs = pile.sample, counted(pile.number, "parked job")
        whose = f"of {pile.groups} more tasks" if pile.groups > 1 else f"({job.task})"
        waits = f"{'waits' if pile.number == 1 else 'wait'} for {name_of_key(job.held_for or '')}"
        what = f"{jobs} {whose} {waits}, and no live worker asks whether it is back"
        id, command = (
            f"parked:{job.queue}/{job.task}",
            f"redrive jobs --state held --because circuit_open {_route(job)}",
        )
        yield _need_of_job("unattended", job, what, action, command, job.updated_at, what, id=id, count=pile.number)


def _word_unfired(seen: Snapshot) -> Iterator[Need]:
    """Words the schedules without a worker. Their slots become no jobs, so no other need reports them."""
    for schedule in seen.unfired:
        name, id, command = schedule.name, f"unattended:schedule:{schedule.name}", "redrive schedules"
        what = f"a slot is due since {iso(schedule.since)}, and no live worker knows {schedule.task}"
        sentence = f"schedule {name} ({schedule.line}): {what}"
        action = f"Start a worker that has it; if no code has it any more, `{command} --forget {quote(name)}`."
        yield Need("unattended", id, 1, sentence, action, command, schedule.since, what, task=schedule.task)


def _word_backed_up(seen: Snapshot) -> Iterator[Need]:
    """Words the queues with more due jobs than their policy allows, the fullest queue first."""
    for queue in sorted(seen.queues, key=attrgetter("due"), reverse=True):
        if not queue.too_many_due:
            continue
        name, what = queue.name, f"{queue.due:,} jobs are due"
        action = "It is paused: resume it." if queue.paused else "Is what they call slow, or are there too few workers?"
        command = f"redrive {'queues resume' if queue.paused else 'jobs --queue'} {quote(name)}"
        sentence = f"{name} is backed up: {what}"
        yield Need("backed_up", f"backed_up:{name}", queue.due, sentence, action, command, what=what, queue=name)


# -- disk, clock and channels


def spool_needs(number: int) -> list[Need]:
    """Makes the need for jobs in the spool, which is known without the store."""
    if not number:
        return []
    what = f"{counted(number, 'job')} {'waits' if number == 1 else 'wait'} beside the store, which could not take them"
    action = "A running worker moves them over."
    return [Need("spooled", "spooled", number, f"spool: {what}", action, "redrive doctor", what=what)]


def _word_spooled(seen: Snapshot) -> list[Need]:
    return spool_needs(seen.spooled)


def _word_disk(seen: Snapshot) -> Iterator[Need]:
    if seen.disk_free is not None and seen.disk_free < DISK_LOW:
        sentence = f"the disk of the database has {seen.disk_free // 2**20:,} MB left"
        action = "Free some space: without it no job is accepted."
        yield Need("disk_low", "disk_low", 1, sentence, action, "redrive doctor", what=sentence)


def _word_jump(seen: Snapshot) -> Iterator[Need]:
    if seen.jump is not None:
        sentence, _, action = describe(seen.jump).partition(". ")
        since = seen.jump.since
        yield Need("clock_jumped", "clock_jumped", 1, sentence, action, "redrive doctor", since, what=sentence)


def _word_channels(seen: Snapshot) -> Iterator[Need]:
    action = "Mend the channel, or take it out of [notify]: what it is to be told waits."
    for problem in seen.channels:
        id = f"channel_failed:{problem.partition(' has ')[0]}"
        yield Need("channel_failed", id, 1, problem, action, "redrive health")


WORDED: Final[tuple[tuple[str, Callable[[Snapshot], Iterable[Need]]], ...]] = (
    ("left_behind", _word_gone),
    ("held", _word_held),
    ("effects", _word_effects),
    ("manual", _word_manual),
    ("list_stalled", _word_stalled),
    ("blocked", _word_blocked),
    ("unattended", _word_unattended),
    ("unprobed", _word_unprobed),
    ("unfired", _word_unfired),
    ("queues", _word_backed_up),
    ("overdue", _word_overdue),
    ("stuck", _word_stuck),
    ("stale", _word_stale),
    ("spooled", _word_spooled),
    ("disk_free", _word_disk),
    ("channels", _word_channels),
    ("cycles", _word_cycles),
    ("jump", _word_jump),
)
"""What of a snapshot may need a person, and how it is worded; `GATHERED` in gather_needs.py says how it is read."""
_NOTHING: Final = Snapshot(0.0, 0.0)
"""The snapshot of a store in which nothing is there to be worded."""


# -- in words


def label(need: Need) -> str:
    """Returns the kind of a need as lists show it: `dead`, `process gone`."""
    return "dead" if need.kind == "dead_manual" else plain(need.kind)


def lasting(need: Need) -> str:
    """Writes `failing on 3 days since 2031-05-17`; empty for fewer than two days."""
    if need.days < 2 or need.since is None:
        return ""
    return f"failing on {need.days} days since {day_of(need.since).isoformat()}"


def course(need: Need) -> str:
    """Writes `growing: 4, 1 the time before`; empty if the course is not known."""
    if need.course in (None, "quiet"):
        return need.course or ""
    if need.course == "new":
        return "new"
    return f"{need.course}: {need.fresh}, {need.before} the time before"
