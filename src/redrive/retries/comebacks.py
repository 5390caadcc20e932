"""Decides which dead letters come back by themselves, when, and how often. Values only; deadletters/comebacks.py acts.

A dead letter whose cause heals by waiting needs no person yet: the job waits in the delayed lane until `comes_back_at`
and then gets a few more tries. After the last comeback of the table the dead letter moves to the manual lane.
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
"""Tries of one comeback, independent of `max_attempts`."""
TRIES_OF_UNKNOWN: Final = 1
CHANGED: Final = 2
"""Comebacks of a failure that only a change heals."""
SPREAD: Final = 0.10
"""The share of a comeback's delay by which comebacks are spread, so that a group does not return all at once."""
RETURNING: Final = frozenset(
    {"attempts_exhausted", "not_known_to_heal", "changes_used_up", "context_overflow", "asked_to_wait"}
)
"""Reasons of dead letters that may come back by themselves."""
PROMISE: Final = "It comes back by itself in about"
BY_ITSELF: Final = "redrive"
"""The actor that is recorded when redrive itself brings a dead letter back."""


def times_for(policy: Policy, category: str | None) -> Sequence[float]:
    """Return the seconds after its death at which a dead letter of this category comes back; empty if it does not."""
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
    """Add the time at which the job comes back, or move the dead letter to the manual lane."""
    if case.sitting == "cycle" or case.job.queue.startswith(CYCLE) or decision.because == "crash_loop":
        return decision  # a script's next cycle brings its jobs back; a crash loop has its time already
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
    """Return why a job died, without the sentence that `plan_comeback` has added."""
    before, promise, _ = why.rpartition(f" {PROMISE}")
    return before if promise else why


def _not_before(case: Case, decision: Bury, at: float) -> float:
    """Return the comeback time, but not before the wait that the failure asked for is over."""
    return decision.comes_back_at or max(at, case.now + (case.cause.retry_after or 0.0))


def _advice(case: Case, decision: Bury) -> str:
    """Return the advice "nothing to do", unless a person must act before the comeback, e.g. renew a credential."""
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
    """Return the next place in the job's table of comebacks whose time is in the future, and that time, or None.

    Comebacks whose time passed while no scheduler ran are skipped.
    """
    died = _died(job)
    for place, seconds in enumerate(times_for(policy, job.category)):
        if place > job.comebacks and (at := died + _spread(seconds, chance)) > now:
            return place, max(at, asked_until(job))
    return None


def _died(job: Job) -> float:
    """Return when the job last died: the end of its last attempt, because other moves write `updated_at`, too."""
    ended = job.history[-1].ended_at if job.history else None
    return ended if ended is not None else job.updated_at


def in_words(seconds: float) -> str:
    """Write a duration roughly: `10 min`, `6 h`, `2 days`."""
    for unit, size, most in (("s", 1.0, 120.0), ("min", 60.0, 3600.0), ("h", 3600.0, 172_800.0)):
        if seconds < most:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86400.0)} days"


def sentence(text: str) -> str:
    """Add a full stop to a text that lacks one, as most error messages do."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


# ---- the first dead letter of a group


class First(msgspec.Struct, frozen=True):
    """The dead letter that came back first of its group. While that job is under way the others of the group wait."""

    job_id: str
    at: float
    fingerprint: str
    waits_for: str | None = None
    category: str | None = None
    """The category of its cause. If transient, the job probes for all groups that wait for the same downstream."""


FIRST: Final = Kind[First]("first_back", First)
"""The dead letter that came back first of its group, under the group's key (`group_key`)."""


class Answers(msgspec.Struct, frozen=True, omit_defaults=True):
    """A downstream that answers again: its dead letters that died before `at` come back, at a bounded rate."""

    at: float
    since: float
    """The time up to which the rate has been used."""
    release: float
    """Dead letters per second; doubles from round to round."""
    sure: bool = True
    """False if only the success of some job showed it: the downstream may never have been down, and the dead letters
    may fail for other reasons. Then only dead letters that have waited for a while come back."""


ANSWERS: Final = Kind[Answers]("answers", Answers)
"""The record that the downstream of dead letters answers again, under the breaker's key."""


def release_followers(answers: Answers, now: float) -> tuple[int, Answers]:
    """Return how many of the other dead letters may come back by now, and the new record to store."""
    number, faster = compute_pace(answers.release, answers.since, now)
    return number, msgspec.structs.replace(answers, since=now, release=faster)


def may_follow(job: Job, policy: Policy, now: float, *, sure: bool) -> bool:
    """Return whether a dead letter comes back early because its downstream answers other jobs again."""
    return asked_until(job) <= now and (sure or has_waited(job, policy, now))


def asked_until(job: Job) -> float:
    """Return until when the last failure asked a dead letter to wait; 0 if the failure asked for no wait.

    Answers to other jobs do not shorten that wait: a limit may be per account, resource or kind of request.
    """
    cause = job.history[-1].cause if job.history else None
    return _died(job) + cause.retry_after if cause is not None and cause.retry_after else 0.0


def has_waited(job: Job, policy: Policy, now: float) -> bool:
    """Return whether a tenth of the comeback's delay has passed since the death, so that another job's success counts.

    Otherwise a job that fails for its own reasons while others succeed would use up its comebacks in a minute.
    """
    times = times_for(policy, job.category)
    place = min(job.comebacks, len(times) - 1)
    return place >= 0 and now - _died(job) >= SPREAD * times[place]


def window_of_alike(policy: Policy, failed: Job) -> float:
    """Return the seconds within which the comebacks of two dead letters of a group count as one, for the last place."""
    times = times_for(policy, failed.category)
    place = max(0, min(failed.comebacks, len(times)) - 1)
    return 2 * SPREAD * times[place] if times else 0.0


def group_key(fingerprint: str, waits_for: str | None) -> str:
    """Return the key of a group and its downstream: the same failure at another host is handled separately."""
    return f"{fingerprint}/{waits_for or ''}"


def asks_for(first: First, now: float) -> str | None:
    """Return the downstream that a first job under way probes for all groups; None if it probes for its own group only.

    The others wait no longer than for a breaker's probe: a first job whose worker is gone must not keep them back.
    """
    return first.waits_for if first.category == "transient" and now - first.at < PROBE_LASTS else None


def fails_alike(job: Job, failed: Job, first: First) -> bool:
    """Return whether a dead letter would fail as the first one did: same group, or same cause and downstream."""
    if job.fingerprint == first.fingerprint:
        return True
    return job.category == "transient" and job.detail == failed.detail and failed.held_for == first.waits_for


def still_down(job: Job, first: First) -> bool:
    """Return whether the first dead letter's second death shows that the others of its group would die, too.

    A model's wrong answer says nothing about another job's input: then the next dead letter of the group comes back.
    """
    if job.category == "conditional":
        return False
    same_downstream = job.category == "transient" and job.held_for == first.waits_for
    return job.fingerprint == first.fingerprint or same_downstream
