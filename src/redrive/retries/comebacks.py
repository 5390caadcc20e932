"""Decides which dead letters come back by themselves, when, and how often. Values only; deadletters/comebacks.py acts.

A dead letter whose cause heals by waiting is not for a person yet. It waits in the delayed lane until `comes_back_at`
and then gets a few more tries. After the last time of its table it moves to the manual lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from redrive.core.advice import COMES_BACK, for_a_person
from redrive.core.documents import Kind
from redrive.core.job import CYCLE, Job
from redrive.core.policy import HOUR, Policy
from redrive.retries.breaker import PROBE_LASTS, compute_pace
from redrive.retries.decision import Bury, Case
from redrive.retries.remedies import another_rung

TRIES: Final = 2
"""Tries of one comeback, whatever `max_attempts` is."""
TRIES_OF_UNKNOWN: Final = 1
CHANGED: Final = 2
"""Comebacks of a failure that heals only if something changes."""
SPREAD: Final = 0.10
"""Comebacks are spread by so much around their time, so that a group does not return in one moment."""
RETURNING: Final = frozenset(
    {"attempts_exhausted", "not_known_to_heal", "changes_used_up", "context_overflow", "asked_to_wait"}
)
"""Reasons of dead letters that may come back by themselves."""
PROMISE: Final = "It comes back by itself in about"
BY_ITSELF: Final = "redrive"
"""Who acts where redrive itself brings a dead letter back."""


def times_for(policy: Policy, category: str | None) -> Sequence[float]:
    """Seconds after a death at which a dead letter of this category comes back; empty where it does not."""
    times = policy.comebacks or ()
    match category:
        case "transient":
            return times
        case "conditional":
            return times[:CHANGED]
        case "unknown":
            return (HOUR,) if times else ()
        case "permanent":  # a credential that has expired
            return tuple(seconds for seconds in times if seconds >= HOUR)
        case _:
            return ()


def tries_for(category: str | None) -> int:
    return TRIES_OF_UNKNOWN if category == "unknown" else TRIES


def plan_comeback(case: Case, decision: Bury) -> Bury:
    """Adds the time at which the job comes back, or moves the dead letter to the manual lane."""
    if case.sitting == "cycle" or case.job.queue.startswith(CYCLE) or decision.because == "crash_loop":
        return decision  # a script's next cycle brings back its own; a crash loop has said when
    if not _may_return(case, decision):
        return _leave_to_person(decision, 0)
    times, used = times_for(case.policy, case.cause.category), case.job.comebacks
    if used >= len(times):
        return _leave_to_person(decision, used)
    planned = case.now + _spread(times[used], case.chance)
    at = _not_before(case, decision, planned)
    about = times[used] if at == planned else at - case.now
    words = f"{PROMISE} {in_words(about)} (comeback {used + 1} of {len(times)})."
    return msgspec.structs.replace(
        decision,
        lane="delayed",
        comes_back_at=at,
        why=f"{sentence(decision.why)} {words}",
        recommendation=_advice(case, decision),
        owner=None,
    )


def without_promise(why: str) -> str:
    """Why a job died, without the sentence that `planned` has added."""
    before, promise, _ = why.rpartition(f" {PROMISE}")
    return before if promise else why


def _not_before(case: Case, decision: Bury, at: float) -> float:
    """A wait that was asked for is kept, also by the last of the attempts."""
    return decision.comes_back_at or max(at, case.now + (case.cause.retry_after or 0.0))


def _advice(case: Case, decision: Bury) -> str:
    """Nothing to do, unless a person must do something before the comeback: renew a credential."""
    if decision.comes_back_at is not None or case.cause.category == "permanent":
        return decision.recommendation
    return f"{COMES_BACK}{decision.recommendation}"


def _leave_to_person(decision: Bury, used: int) -> Bury:
    why = f"{sentence(decision.why)} It came back by itself {_times(used)} and failed again." if used else decision.why
    advice = for_a_person(decision.recommendation, decision.because)
    return msgspec.structs.replace(decision, lane="manual", comes_back_at=None, why=why, recommendation=advice or "")


def _may_return(case: Case, decision: Bury) -> bool:
    job, policy = case.job, case.policy
    if policy.on_lost == "dead_letter" or case.manual or job.reason == "deferred_submit":
        return False
    if policy.strategy == "plain":
        return decision.because == "asked_to_wait"
    if case.cause.category == "permanent":
        return case.cause.heals == "later" and decision.because in (*RETURNING, "permanent")
    if decision.because not in RETURNING or (case.cause.category == "unknown" and case.effects and not case.idempotent):
        return False
    return case.cause.category != "conditional" or another_rung(case, case.seen(case.cause.detail) + 1) is not None


def _spread(seconds: float, chance: float) -> float:
    return seconds * (1.0 + SPREAD * (2.0 * chance - 1.0))


def next_time(job: Job, policy: Policy, now: float, chance: float) -> tuple[int, float] | None:
    """The next place in its table whose time is still to come, and that time; None where there is none.

    Times that passed while nothing ran are not made up for.
    """
    died = _died(job)
    for place, seconds in enumerate(times_for(policy, job.category)):
        if place > job.comebacks and (at := died + _spread(seconds, chance)) > now:
            return place, max(at, asked_until(job))
    return None


def _died(job: Job) -> float:
    """When the job last died: its last attempt tells, because other moves write `updated_at`, too."""
    ended = job.history[-1].ended_at if job.history else None
    return ended if ended is not None else job.updated_at


def in_words(seconds: float) -> str:
    """`10 min`, `6 h`, `2 days`: as exactly as a person plans."""
    for unit, size, most in (("s", 1.0, 120.0), ("min", 60.0, 3600.0), ("h", 3600.0, 172_800.0)):
        if seconds < most:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86400.0)} days"


def sentence(text: str) -> str:
    """With the full stop that the message of an error mostly lacks."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


# ---- a group's first one


class First(msgspec.Struct, frozen=True):
    """The dead letter that went first of its group. While it is under way the others of the group wait."""

    job_id: str
    at: float
    fingerprint: str
    waits_for: str | None = None
    category: str | None = None
    """What it had died of. One that heals by waiting asks for every group that waits for the same downstream."""


FIRST: Final = Kind[First]("first_back", First)
"""Under the group's key (`group_key`): the dead letter that went first of its group."""


class Answers(msgspec.Struct, frozen=True, omit_defaults=True):
    """What dead letters call answers again: those that died before `at` come back, at a bounded rate."""

    at: float
    since: float
    """Up to when the rate has been used."""
    release: float
    """Dead letters per second; doubles from round to round."""
    sure: bool = True
    """False where only some job's success showed it: what was called may have answered all the time, and the dead
    letters may fail for other reasons. Then only those come back that have waited for a while."""


ANSWERS: Final = Kind[Answers]("answers", Answers)
"""Under a breaker's key: what dead letters wait for answers again."""


def release_followers(answers: Answers, now: float) -> tuple[int, Answers]:
    """How many of the others may follow by now, and what is kept after that."""
    number, faster = compute_pace(answers.release, answers.since, now)
    return number, msgspec.structs.replace(answers, since=now, release=faster)


def may_follow(job: Job, policy: Policy, now: float, *, sure: bool) -> bool:
    """Whether a dead letter comes back before its time because what it calls answers others again."""
    return asked_until(job) <= now and (sure or has_waited(job, policy, now))


def asked_until(job: Job) -> float:
    """Until when a dead letter was asked to wait as it died; 0 where nothing was asked.

    That others are answered does not shorten it: a limit may be of one account, one resource or one kind of request.
    """
    cause = job.history[-1].cause if job.history else None
    return _died(job) + cause.retry_after if cause is not None and cause.retry_after else 0.0


def has_waited(job: Job, policy: Policy, now: float) -> bool:
    """Whether a success elsewhere is news for a dead letter: a tenth of its time has passed since it died.

    A job that fails by itself while others succeed would else use up its comebacks in a minute.
    """
    times = times_for(policy, job.category)
    place = min(job.comebacks, len(times) - 1)
    return place >= 0 and now - _died(job) >= SPREAD * times[place]


def window_of_alike(policy: Policy, failed: Job) -> float:
    """Seconds within which the times of two dead letters of a group count as one time, for the place just tried."""
    times = times_for(policy, failed.category)
    place = max(0, min(failed.comebacks, len(times)) - 1)
    return 2 * SPREAD * times[place] if times else 0.0


def group_key(fingerprint: str, waits_for: str | None) -> str:
    """Names a group together with what its jobs call: another host that fails alike is another matter."""
    return f"{fingerprint}/{waits_for or ''}"


def asks_for(first: First, now: float) -> str | None:
    """The downstream that a first one under way asks for all groups; None where it asks for its own group only.

    It asks for the others so long as a probe of a breaker may: one whose worker is gone must not keep them back.
    """
    return first.waits_for if first.category == "transient" and now - first.at < PROBE_LASTS else None


def fails_alike(job: Job, failed: Job, first: First) -> bool:
    """Whether a dead letter would fail as the first one did: it is of its group, or the same ails what both call."""
    if job.fingerprint == first.fingerprint:
        return True
    return job.category == "transient" and job.detail == failed.detail and failed.held_for == first.waits_for


def still_down(job: Job, first: First) -> bool:
    """Whether a first one that died again shows that the others of its group would die, too.

    A model's wrong answer says nothing about another job's input: there the next one goes.
    """
    if job.category == "conditional":
        return False
    same_downstream = job.category == "transient" and job.held_for == first.waits_for
    return job.fingerprint == first.fingerprint or same_downstream
