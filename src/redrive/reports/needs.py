"""Makes the one list of what needs a person. Pure: store data and the time are arguments.

Health is whether the list is empty, the overview and `redrive top` show its head, the morning shows the whole list
and what changed. What heals by itself (a retry, a parked job, a dead letter that comes back) is a fact, not a need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
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
    queues: Sequence[QueueNumbers] = ()
    manual: Sequence[Pile] = ()
    held: Sequence[Pile] = ()
    overdue: Sequence[Pile] = ()
    """Deferred jobs whose time has come."""
    stuck: Sequence[Pile] = ()
    """Dead letters of the delayed lane that no process has fetched for STUCK_AFTER."""
    stale: Sequence[Pile] = ()
    """Other dead letters of the delayed lane, which have failed on STALE_DAYS or more."""
    unattended: Sequence[Pile] = ()
    """Due jobs that no living worker takes; each pile with the job that came first."""
    unprobed: Sequence[Pile] = ()
    """Parked jobs whose probe no living worker could run."""
    unfired: Sequence[Unfired] = ()
    """Schedules with a slot that is due, whose task no living worker knows."""
    known: frozenset[str] = frozenset()
    """The tasks that living workers know."""
    oldest: Job | None = None
    groups: Mapping[str, GroupView] = {}
    """Views of the piles' groups, by fingerprint."""
    left_behind: Sequence[LeftBehind] = ()
    list_stalled: Sequence[Stalled] = ()
    blocked: Sequence[Blocked] = ()
    spooled: int = 0
    disk_free: int | None = None
    channels: Sequence[str] = ()
    """Notification channels that do not take anything, in words."""
    cycles: Sequence[Finding] = ()
    """Nights of cycles that did not happen, ended early or were short."""
    effects: Sequence[EffectRecord] = ()
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
    found = [
        *(_process_gone(seen, left) for left in seen.left_behind),
        *(_held(seen, pile) for pile in seen.held),
        *_effects(seen.effects),
        *_dead(seen),
        *(_stalled(seen, job) for job in seen.list_stalled),
        *(_blocked(one) for one in seen.blocked),
        *_unattended(seen),
        *_unprobed(seen),
        *(_unfired(schedule) for schedule in seen.unfired),
        *_backed_up(seen),
        *(_overdue(seen, pile) for pile in seen.overdue),
        *_returning(seen),
        *spool_needs(seen.spooled),
        *_disk(seen.disk_free),
        *(_channel(said) for said in seen.channels),
        *(_cycle(finding) for finding in seen.cycles),
        *([_jumped(seen.jump)] if seen.jump is not None else ()),
    ]
    return sorted(found, key=lambda need: ORDER[need.kind])


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


def _process_gone(seen: Snapshot, left: LeftBehind) -> Need:
    """Makes the need for a process that left running jobs; on another host, a silent process is not called gone."""
    number, tasks = len(left.jobs), ", ".join(left.tasks[:3]) + (", …" if len(left.tasks) > 3 else "")
    seen_last = f"{span(seen.now - left.since)} ago"
    lost = f"is gone (last seen {seen_last})" if left.gone else f"was not seen for {span(seen.now - left.since)}"
    what = f"process {left.process} {lost}"
    return Need(
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
    judged = [Stalled(one.job, one.since, limits.get(one.job.id, STALLED_AFTER)) for one in quiet]
    return [one for one in judged if now - one.since > one.limit]


def _stalled(seen: Snapshot, one: Stalled) -> Need:
    job, time = one.job, span(seen.now - one.since)
    sentence = f"{job.queue}: job {job.short_id} ({job.task}) has been running for {time} without progress (stalled)"
    return Need(
        "stalled",
        f"stalled:{job.id}",
        1,
        sentence,
        "See what it waits for, or cancel it.",
        f"redrive status {job.short_id}",
        one.since,
        what=f"no progress for {time}, expected {span(one.limit)} at most",
        queue=job.queue,
        task=job.task,
        job_id=job.id,
    )


def _blocked(one: Blocked) -> Need:
    command = f"redrive status {one.job_id[-8:]}" if one.job_id else "redrive top"
    return Need(
        "loop_blocked",
        f"loop_blocked:{one.worker}",
        1,
        f"event loop blocked by {one.task} (worker {one.worker})",
        "Use await in it, or make it a plain `def` task, which runs in a thread.",
        command,
        one.since,
        task=one.task,
        job_id=one.job_id,
    )


# -- cycles


_CYCLES: Final[Mapping[FindingKind, str]] = {
    "cycle_missing": "Look whether cron still starts its script; `redrive cycles forget NAME` ends the watch.",
    "cycle_died": "Look at the script's own output, mend it, and run it again: what was done is not repeated.",
    "cycle_short": "Look whether its input was complete, and run it again if it was not.",
}


def _cycle(finding: Finding) -> Need:
    return Need(
        finding.kind,
        finding.id,
        finding.count,
        finding.sentence,
        _CYCLES[finding.kind].replace("NAME", finding.name),
        finding.command,
        finding.since,
        what=finding.sentence,
        queue=f"{CYCLE}{finding.name}",
    )


# -- dead letters and held jobs


def _dead(seen: Snapshot) -> list[Need]:
    """Lists the needs of the manual lane, the largest pile first."""
    piles = sorted(seen.manual, key=lambda pile: (pile.groups > 1, -pile.number))
    return [_pile(seen, "dead_manual", pile) for pile in piles]


def _held(seen: Snapshot, pile: Pile) -> Need:
    because = next(kind for kind in FOR_A_PERSON if kind == pile.sample.because)
    need = _pile(seen, because, pile)
    what = _question(pile.sample) or _what(pile)
    return _several(need, pile, what, f"redrive jobs --state held --because {quote(because)} {_route(pile.sample)}")


EFFECTS_SHOWN: Final = 20
"""Number of effects that are listed one by one; the rest is merged into one need."""


def _effects(effects: Sequence[EffectRecord]) -> list[Need]:
    """Lists the effects without a job whose outcome is unknown, the oldest first."""
    oldest = sorted(effects, key=lambda effect: effect.at)
    found = [_effect(effect) for effect in oldest[:EFFECTS_SHOWN]]
    if beyond := oldest[EFFECTS_SHOWN:]:
        sentence = f"{len(beyond):,} more effects may or may not have happened"
        action = "`redrive effects --open` lists them; look at their receivers, then resolve each."
        found.append(
            Need(
                "outcome_unknown",
                "outcome_unknown:effects",
                len(beyond),
                sentence,
                action,
                "redrive effects --open",
                beyond[0].at,
                what=beyond[0].note or "",
            )
        )
    return found


def _effect(effect: EffectRecord) -> Need:
    named = quote(f"effect:{effect.key}")
    return Need(
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


def _several(need: Need, pile: Pile, what: str, command: str) -> Need:
    """Sets the text of a need; if the pile has several jobs, shows the latest and gives the command that lists all."""
    if pile.number == 1:
        return msgspec.structs.replace(need, what=what)
    return msgspec.structs.replace(need, what=f"such as: {what}", command=command)


def _question(job: Job) -> str | None:
    """Returns the question that a held job asks. Consent is asked for before an attempt, so its text is made here."""
    if job.because == "consent":
        return f"asks for consent to {job.task}" + (f", for session {job.session_id}" if job.session_id else "")
    return job.history[-1].decision if job.because == "approval" and job.history else None


_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "dead_manual": ("dead letter needs a person", "dead letters need a person"),
    "conflicting_input": ("input conflicts with a job that was done", "inputs conflict with jobs that were done"),
    "approval": ("job waits for an approval", "jobs wait for an approval"),
    "consent": ("job waits for consent", "jobs wait for consent"),
    "outcome_unknown": ("job may or may not have happened", "jobs may or may not have happened"),
    "deferred_overdue": ("job should be back by now", "jobs should be back by now"),
}


def _pile(seen: Snapshot, kind: NeedKind, pile: Pile) -> Need:
    job = pile.sample
    if kind == "dead_manual" and job.because == "conflicting_input":
        kind = "conflicting_input"
    one, many = _WORDS[kind]
    return Need(
        kind,
        f"{kind}:{job.fingerprint or job.id}",
        pile.number,
        f"{job.queue}: {pile.number:,} {one if pile.number == 1 else many} ({job.task})",
        _action(seen, job),
        _command(kind, pile),
        _first_failure(job),
        _what(pile),
        job.queue,
        job.task,
        job.error_class,
        job.id,
        job.fingerprint,
        len(failing_days(job)),
        _course(seen, pile) if kind == "dead_manual" else None,
        pile.fresh,
        pile.before,
        pile.oldest_at,
        job.owner,
    )


def _error(pile: Pile) -> str:
    return pile.sample.error or pile.sample.because or "no error was recorded"


def _what(pile: Pile) -> str:
    error = _error(pile)
    return error if pile.groups == 1 else f"{pile.groups} smaller groups, such as {error}"


def _course(seen: Snapshot, pile: Pile) -> Course | None:
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
    return any(said.what == "regressed" and said.at >= since for said in state.story)


def _overdue(seen: Snapshot, pile: Pile) -> Need:
    """Makes the need for a deferred job whose time has come."""
    action = "The time it was deferred to has come. See to it now, or defer it again."
    return msgspec.structs.replace(_pile(seen, "deferred_overdue", pile), action=action)


def _action(seen: Snapshot, job: Job) -> str:
    """Returns the suggestion of the dead letter's group, else the job's own recommendation."""
    view = seen.groups.get(job.fingerprint or "")
    if view is not None:
        return suggest(view.group, view.lessons, letter=job).text
    return job.recommendation or "Look at it."


def _command(kind: NeedKind, pile: Pile) -> str:
    if kind == "unattended" and pile.groups > 1:
        return "redrive jobs --state waiting"
    if kind == "unattended" and pile.number > 1:
        return f"redrive jobs --state waiting {_route(pile.sample)}"
    if kind in FOR_A_PERSON or kind in ("deferred_overdue", "unattended"):
        return f"redrive status {pile.sample.short_id}"
    if pile.groups > 1:
        return f"redrive dead list --lane manual --error-class {quote(pile.sample.error_class or '')}"
    if pile.number > 1 and pile.sample.fingerprint:
        return f"redrive dead list --fingerprint {pile.sample.fingerprint}"
    return f"redrive dead show {pile.sample.short_id}"


def _route(job: Job) -> str:
    return f"--task {quote(job.task)} --queue {quote(job.queue)}"


def failing_days(job: Job) -> list[date]:
    """Lists the days (UTC) on which the job failed."""
    ends = {
        day_of(attempt.ended_at)
        for attempt in job.history
        if attempt.failure is not None and attempt.ended_at is not None and attempt.outcome != "released"
    }
    return sorted(ends)


def _first_failure(job: Job) -> float | None:
    ends = [attempt.ended_at for attempt in job.history if attempt.failure is not None]
    return min((end for end in ends if end is not None), default=job.first_failed_at)


def day_of(at: float) -> date:
    return datetime.fromtimestamp(at, UTC).date()


def _returning(seen: Snapshot) -> list[Need]:
    """Lists dead letters of the delayed lane that failed day after day, or that no process fetches."""
    unfetched = "It should come back by itself, and no process fetches it: run its script or a worker, or redrive it."
    stuck = [_come_back(seen, "deferred_overdue", pile, unfetched) for pile in seen.stuck]
    return stuck + [
        _come_back(seen, "dead_manual", pile, f"Waiting does not heal it. {pile.sample.recommendation or ''}".strip())
        for pile in seen.stale
    ]


def _come_back(seen: Snapshot, kind: NeedKind, pile: Pile, action: str) -> Need:
    """Makes the need for a pile of the delayed lane; of several jobs, shows the latest, and a command lists all."""
    need = msgspec.structs.replace(_pile(seen, kind, pile), action=action, course=None)
    if pile.number == 1:
        return msgspec.structs.replace(need, command=f"redrive dead show {pile.sample.short_id}")
    several = pile.groups > 1
    what = f"of {pile.groups} more tasks, such as: {_error(pile)}" if several else f"such as: {_error(pile)}"
    listed = "redrive dead list --lane delayed" + ("" if several else f" {_route(pile.sample)}")
    return msgspec.structs.replace(need, what=what, command=listed)


# -- work that does not move


def _unattended(seen: Snapshot) -> list[Need]:
    """Lists due jobs that no living worker takes, and the oldest job if it has been due for more than a day."""
    piles, job = list(seen.unattended), seen.oldest
    told = {(pile.sample.queue, pile.sample.task) for pile in piles}
    if job is not None and seen.now - job.run_at >= STUCK_AFTER and (job.queue, job.task) not in told:
        piles.append(Pile(1, job))
    return [_left(seen, pile) for pile in piles]


def _left(seen: Snapshot, pile: Pile) -> Need:
    job, one = pile.sample, pile.number == 1
    since = f"due since {iso(job.run_at)}"
    what = f"{since}, and no live worker runs it" if one else f"due, such as one {since}, and no live worker runs them"
    runs_it = "Run its script" if job.queue.startswith(CYCLE) else "Start a worker that knows its task"
    if pile.groups > 1:
        what = f"of {pile.groups} more tasks are {what}"
        runs_it = "Start a worker that knows their tasks"
    jobs = "job is due" if one else "jobs are due"
    known = " (live workers know it, but none of them takes it: see their queues and agents)"
    return Need(
        "unattended",
        f"unattended:{job.queue}/{job.task}",
        pile.number,
        f"{job.queue}: {pile.number:,} {jobs}, and no live worker runs {job.task}"
        f"{known if job.task in seen.known else ''}",
        f"{runs_it}, or cancel it.",
        _command("unattended", pile),
        job.run_at,
        what,
        job.queue,
        job.task,
        job_id=job.id,
    )


def _unprobed(seen: Snapshot) -> list[Need]:
    """Lists parked jobs that no living worker can send as a probe, so that they would not come back by themselves.

    Where jobs of the same task are due, the need of those jobs says already that no worker runs the task.
    """
    told = {(pile.sample.queue, pile.sample.task) for pile in seen.unattended}
    return [_parked(pile) for pile in seen.unprobed if (pile.sample.queue, pile.sample.task) not in told]


def _parked(pile: Pile) -> Need:
    job, jobs = pile.sample, counted(pile.number, "parked job")
    whose = f"of {pile.groups} more tasks" if pile.groups > 1 else f"({job.task})"
    verb = "waits" if pile.number == 1 else "wait"
    what = f"{jobs} {whose} {verb} for {name_of_key(job.held_for or '')}, and no live worker asks whether it is back"
    return Need(
        "unattended",
        f"unattended:parked:{job.queue}/{job.task}",
        pile.number,
        f"{job.queue}: {what}",
        "Start a worker that knows the task: it probes, and they come back when that works.",
        f"redrive jobs --state held --because circuit_open {_route(job)}",
        job.updated_at,
        what,
        job.queue,
        job.task,
        job_id=job.id,
    )


def _unfired(schedule: Unfired) -> Need:
    """Makes the need for a schedule without a worker. Its slot becomes no job, so no other need reports it."""
    what = f"a slot is due since {iso(schedule.since)}, and no live worker knows {schedule.task}"
    return Need(
        "unattended",
        f"unattended:schedule:{schedule.name}",
        1,
        f"schedule {schedule.name} ({schedule.line}): {what}",
        f"Start a worker that has it; if no code has it any more, `redrive schedules --forget {quote(schedule.name)}`.",
        "redrive schedules",
        schedule.since,
        what,
        task=schedule.task,
    )


def _backed_up(seen: Snapshot) -> list[Need]:
    """Lists queues with more due jobs than their policy allows, the fullest queue first."""
    full = sorted((queue for queue in seen.queues if queue.too_many_due), key=lambda queue: -queue.due)
    return [
        Need(
            "backed_up",
            f"backed_up:{queue.name}",
            queue.due,
            f"{queue.name} is backed up: {queue.due:,} jobs are due",
            "It is paused: resume it." if queue.paused else "Is what they call slow, or are there too few workers?",
            f"redrive {'queues resume' if queue.paused else 'jobs --queue'} {quote(queue.name)}",
            what=f"{queue.due:,} jobs are due",
            queue=queue.name,
        )
        for queue in full
    ]


# -- disk, clock and channels


def spool_needs(number: int) -> list[Need]:
    """Makes the need for jobs in the spool, which is known without the store."""
    if not number:
        return []
    what = f"{counted(number, 'job')} {'waits' if number == 1 else 'wait'} beside the store, which could not take them"
    action = "A running worker moves them over."
    return [Need("spooled", "spooled", number, f"spool: {what}", action, "redrive doctor", what=what)]


def _disk(free: int | None) -> list[Need]:
    if free is None or free >= DISK_LOW:
        return []
    sentence = f"the disk of the database has {free // 2**20:,} MB left"
    action = "Free some space: without it no job is accepted."
    return [Need("disk_low", "disk_low", 1, sentence, action, "redrive doctor", what=sentence)]


def _jumped(hold: ClockHold) -> Need:
    sentence, _, action = describe(hold).partition(". ")
    return Need("clock_jumped", "clock_jumped", 1, sentence, action, "redrive doctor", hold.since, what=sentence)


def _channel(problem: str) -> Need:
    action = "Mend the channel, or take it out of [notify]: what it is to be told waits."
    return Need(
        "channel_failed", f"channel_failed:{problem.partition(' has ')[0]}", 1, problem, action, "redrive health"
    )


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
