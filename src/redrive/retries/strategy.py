"""Decides (job, cause, history, policy, now) → Decision by small strategies; the first that decides wins.

`decide` is the only retry-or-bury rule in redrive. A lapsed lease is decided here like any exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from redrive.core.advice import ADVICE, RULE_ADVICE, advice_for, advise_landed, advise_unknown
from redrive.core.budget import find_overspent
from redrive.core.job import CYCLE as CYCLE_QUEUE
from redrive.core.job import Attempt, Cause, Ending, Failure, Lane
from redrive.core.policy import HOUR, SAFE_DELAY, delay_after
from redrive.retries.comebacks import RETURNING, plan_comeback
from redrive.retries.decision import LONGEST_WAIT, Bury, Case, Decision, HoldBack, RetryLater
from redrive.retries.preflight import still_wanted
from redrive.retries.remedies import try_changed

UNKNOWN_TRIES: Final = 3
"""Most tries with an unknown error, so two retries: the error may heal or not."""
CRASHES_BEFORE_ALONE: Final = 2
CRASH_WAITS: Final = (60.0, 600.0, 3600.0)
"""Seconds before a job runs again that was alone in a process that died: after the first death, the second, …"""
DIED_ALONE: Final = "died_alone"
INTERRUPTED: Final = "interrupted"
"""Strategy of an attempt that was given back in mid-run because its process, which ran no other job, had to end."""
INTERRUPTIONS: Final = 2
"""Interruptions in a row after which a job rests: the job itself may be what ends its process."""
FIRST_REST: Final = 10.0
LONGEST_REST: Final = 60.0
FINISHED: Final = frozenset({"done", "failed", "recovered"})
ENDINGS: Final[dict[Ending, tuple[str, bool]]] = {
    "died": ("Its worker's process ended", True),
    "lapsed": ("Its worker's lease lapsed", True),
    "frozen": ("Its worker stood still for longer than its lease", False),
    "stopped": ("Its worker was told to stop", False),
}
"""What happened to the worker, and whether the job may be the cause."""
RETRY_AFTER_JITTER: Final = 0.10
SAFE_WAIT: Final = 1.0
"""The least wait that a server's Retry-After can ask for, unless the queue's own backoff is shorter still."""
FIRST_ROOM: Final = 5.0
LONGEST_ROOM: Final = 60.0
ROOM_WAITS: Final = 50
"""How often a job may hit a limit of its machine without using an attempt: about three quarters of an hour."""
MEMORY_WAITS: Final = 3
"""The same for memory, which is more often filled by the task itself than by other processes."""
SPOT_TRIES: Final = 3
"""Most tries on the spot while a caller or a script waits."""
SPOT_WAIT: Final = 0.5
LOOP: Final = 3
"""How often the same wrong output must appear to be a loop."""

Strategy = Callable[[Case], Decision | None]


def decide(case: Case) -> Decision:
    """Decide whether a failed job is retried, held or becomes a dead letter. This is the only such rule."""
    if case.probes:
        return _park_probe(case)
    for strategy in _strategies(case):
        decision = strategy(case)
        if decision is not None:
            return _add_comeback(case, _spare(case, decision))
    return _backoff(case)


def _add_comeback(case: Case, decision: Decision) -> Decision:
    """Plan the comeback of a dead letter whose cause may heal by itself, if the job's age and budget allow it."""
    if not isinstance(decision, Bury):
        return decision
    if decision.because in RETURNING and (over := _if_too_old(case) or _if_over_budget(case)) is not None:
        return over
    return plan_comeback(case, decision)


def _strategies(case: Case) -> tuple[Strategy, ...]:
    if case.sitting == "cycle":
        return CYCLE
    if case.sitting == "call":
        return CALL_PLAIN if case.policy.strategy == "plain" else CALL
    return PLAIN if case.policy.strategy == "plain" else CATEGORIZED


def _spare(case: Case, decision: Decision) -> Decision:
    """Hold a job at its last try while its downstream is down, so that an outage makes no dead letters."""
    if case.breaker is None or not isinstance(decision, Bury) or decision.because != "attempts_exhausted":
        return decision
    if case.cause.category != "transient":
        return decision
    return HoldBack(
        "circuit_open",
        f"Its last try failed while {case.breaker} was down; it keeps one and comes back with it.",
        f"Nothing to do: it runs when {case.breaker} answers again.",
        case.breaker,
        "breaker",
    )


def _park_probe(case: Case) -> Decision:
    """Park a probe again whose downstream does not answer yet, which is not the job's fault."""
    after = case.cause.retry_after if case.cause.detail == "rate_limited" else None
    what = f"asked to wait {after:g} s more" if after else "is still down"
    return HoldBack(
        "circuit_open",
        f"{case.breaker} {what}: {case.failure.summary}. Parked again, without using an attempt.",
        f"Nothing to do: it runs when {case.breaker} answers again.",
        case.breaker,
        "breaker",
    )


def decide_by_count(case: Case, problem: str) -> Decision:
    """Decide by the number of failures after `decide` itself failed: a slow retry, and at the cap a dead letter."""
    if case.failures < case.allowed:
        return RetryLater(SAFE_DELAY, f"Deciding failed ({problem}): again in {SAFE_DELAY:g} s.", "undecided")
    return Bury(
        "attempts_exhausted",
        f"Failed {case.failures} of {case.allowed} allowed times, and deciding failed, too: {problem}",
        "Look at the log: this is a defect of redrive, of a rule or of a hook. Then redrive.",
    )


def recognise_loop(cause: Cause, failure: Failure, history: Sequence[Attempt]) -> Cause:
    """Recognise a loop: the same wrong output, or the same validator's complaint, for the third time.

    `history` are the attempts since a person last brought the job back: that person may have fixed the cause.
    """
    if cause.detail not in ("invalid_output", "model_confusion"):
        return cause
    same = 1 + sum(_same_output(failure, attempt.failure) for attempt in history if attempt.failure is not None)
    if same < LOOP:
        return cause
    return msgspec.structs.replace(cause, detail="hallucination_loop", rule="same_output", heals="changed")


def _same_output(one: Failure, other: Failure) -> bool:
    if one.output_hash is not None and other.output_hash is not None:
        return one.output_hash == other.output_hash
    return one.types[:1] == other.types[:1] and one.message == other.message


# ---- strategies: each decides, or returns None for the next one to decide


def _if_lost(case: Case) -> Decision | None:
    """Decide about a job that lost its worker. An event outside the worker is not the job's fault.

    The death of a worker that ran several jobs is a crash of each of these jobs; a job with two crashes runs alone.
    """
    if case.failure.kind != "lease_expired":
        return None
    what, counts = ENDINGS[case.ending]
    if case.policy.on_lost == "dead_letter" or case.manual:
        option = "on_lost='dead_letter'" if case.policy.on_lost == "dead_letter" else "retry_policy='manual'"
        return Bury(
            "outcome_unknown",
            f"{what} while it ran, and {option} forbids a second start.",
            "Check whether its effect landed: resolve it if so, redrive it if not.",
            crashed=counts,
        )
    if not counts:
        return RetryLater(0.0, f"{what} while it ran: no fault of the job.", "run_again", costs_attempt=False)
    if case.alone:
        return _decide_death_alone(case, what)
    next_one = case.job.crashes + 1
    alone = " The next run is alone in its process." if next_one >= CRASHES_BEFORE_ALONE else ""
    return RetryLater(0.0, f"{what} (crash {next_one}).{alone}", "run_again", costs_attempt=False, crashed=True)


def _decide_death_alone(case: Case, what: str) -> Decision:
    """Wait longer after each death, once in the delayed lane, then leave the job to a person.

    A kill from outside looks like a job that uses up all memory; after a wait the next kill hardly hits the same job.
    """
    deaths, most = deaths_alone(case) + 1, case.policy.max_crashes or 1
    happened = f"{what} while it ran alone, for the {_ordinal(deaths)} time"
    if deaths < most:
        wait = 0.0 if case.job.queue.startswith(CYCLE_QUEUE) else CRASH_WAITS[min(deaths, len(CRASH_WAITS)) - 1]
        why = f"{happened}; {most} are allowed. Again {f'in {wait / 60:g} min' if wait else 'when its script runs'}."
        return RetryLater(wait, why, DIED_ALONE, costs_attempt=False, crashed=True)
    advice = "Look for what kills the process (memory, a native crash, os._exit). Fix the task, then redrive."
    if deaths == most:
        of_cycle = case.job.queue.startswith(CYCLE_QUEUE)
        why = f"{happened}. It comes back {'in the next cycle' if of_cycle else 'in an hour'}, once more."
        return Bury(
            "crash_loop",
            why,
            advice,
            "delayed",
            costs_attempt=False,
            crashed=True,
            comes_back_at=None if of_cycle else case.now + HOUR,
        )
    return Bury("crash_loop", f"{happened}.", advice, crashed=True)


def deaths_alone(case: Case) -> int:
    """Count the processes that died with the job alone in them since an attempt of the job last finished."""
    deaths = 0
    for attempt in reversed(case.recent):
        if attempt.outcome in FINISHED:
            break
        deaths += attempt.outcome == "lost" and attempt.strategy in (DIED_ALONE, "bury")
    return deaths


def rest_after_interruption(history: Sequence[Attempt]) -> float:
    """Return the seconds for which a job rests that a worker gave back in mid-run, so that other jobs run first.

    A signal has no sender: a command that the job runs may end a worker with one slot at every start, so that no other
    job ever runs. A preempted worker does the same to an innocent job, so the rest costs only time.
    """
    seen = 0
    for attempt in reversed(history):
        if attempt.strategy != INTERRUPTED:
            break
        seen += 1
    return min(LONGEST_REST, FIRST_REST * 2.0 ** min(seen - INTERRUPTIONS, 10)) if seen >= INTERRUPTIONS else 0.0


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _if_released(case: Case) -> Decision | None:
    """Retry a job given back by a drain or its framework's shutdown, after the usual wait; this uses no attempt."""
    if case.cause.detail != "released":
        return None
    wait = max(SAFE_WAIT, delay_after(case.policy, case.failures, case.chance))
    return _if_too_old(case) or RetryLater(
        wait, f"Given back: {case.failure.summary}. Again in {wait:.1f} s.", "released", costs_attempt=False
    )


def _if_own_limits(case: Case) -> Decision | None:
    """Retry a job whose process ran out of descriptors or space; for a limited time this uses no attempt.

    The time is limited because the task itself may use up the resource; such a job must end as a dead letter.
    """
    if case.cause.detail != "own_limits":
        return None
    seen, most = case.seen("own_limits"), MEMORY_WAITS if case.failure.error_class == "MemoryError" else ROOM_WAITS
    if seen >= most:
        return None
    wait = min(LONGEST_ROOM, FIRST_ROOM * 2.0 ** min(seen, 10)) * (0.75 + case.chance / 2)
    why = f"A limit of this machine, not of the job: {case.failure.summary}. No attempt is used. Again in {wait:.1f} s."
    return _if_too_old(case) or _if_over_budget(case) or RetryLater(wait, why, "waited_for_room", costs_attempt=False)


def _if_gave_up(case: Case) -> Decision | None:
    if case.cause.detail != "gave_up":
        return None
    return Bury(
        "terminated",
        f"The task gave up: {case.failure.message}",
        case.failure.recommendation or "Fix what the message names, then redrive.",
        owner=case.abilities.fleet.escalation,
    )


def _if_suspended(case: Case) -> Decision | None:
    """Hold a job whose task waits for an approval or an answer: nothing failed."""
    if case.cause.detail != "suspended":
        return None
    return HoldBack(
        "approval",
        f"It waits for a person: {case.failure.summary}",
        "Answer what it asks where it asks it; then `redrive resolve ID --not-landed` runs it again.",
    )


def _if_uncertain(case: Case) -> Decision | None:
    """Hold a job whose call may have landed: only an idempotent task may repeat the call."""
    if case.cause.detail != "outcome_unknown" or case.idempotent:
        return None
    return HoldBack(
        "outcome_unknown",
        f"It is not known whether the effect landed: {case.failure.message}",
        advise_unknown(case.effects_seen),
    )


def _if_manual(case: Case) -> Decision | None:
    if not case.manual:
        return None
    return Bury(
        "permanent",
        f"Not retried: {case.failure.summary}, and the task's retry_policy is manual.",
        "See what it did, then redrive it or discard it. retry_policy='replay' or 'verify_first' would retry it.",
        owner=case.abilities.fleet.escalation,
    )


def _if_too_old(case: Case) -> Decision | None:
    verdict = still_wanted(case.job, case.policy, case.now if case.trusted_now is None else case.trusted_now)
    return Bury("too_old", verdict.why, verdict.recommendation) if verdict is not None else None


def _if_exhausted(case: Case) -> Decision | None:
    """Bury a job that has used up its attempts. A failure that a change can heal has changed tries on top of these."""
    if case.failures < case.allowed or _may_change(case):
        return None
    advice = advice_for(case.cause, "Find out what the error means, fix it, then redrive.")
    more_help = case.cause.category != "permanent" or case.policy.strategy == "plain"
    return Bury(
        "attempts_exhausted",
        f"Failed {case.failures} of {case.allowed} allowed times; the last: {case.failure.summary}",
        f"{advice} max_attempts= allows more tries." if more_help else advice,
        owner=case.abilities.fleet.escalation if case.cause.category == "permanent" else None,
    )


def _may_change(case: Case) -> bool:
    by_category = case.policy.strategy != "plain" or case.sitting == "cycle"
    return case.cause.category == "conditional" and by_category and not case.runs_once


def _if_over_budget(case: Case) -> Decision | None:
    """Bury a job whose attempts together have used up its budget."""
    budget = case.job.options.budget
    over = find_overspent(budget, case.job, case.usage, case.now) if budget is not None else None
    if over is None:
        return None
    return Bury(
        "budget_exhausted",
        f"Its budget is used up: {over}. The last failure: {case.failure.summary}",
        "Redrive it if it is worth as much again; budget=redrive.Budget(...) sets how much.",
    )


def _if_permanent(case: Case) -> Decision | None:
    if case.cause.category != "permanent":
        return None
    lane: Lane = "delayed" if case.cause.heals == "later" else "manual"
    error = f"{case.failure.summary} is {case.cause.detail}"
    otherwise = _option_to_retry(case)
    if otherwise.startswith(("a ", "an ")):
        otherwise = f"A{otherwise[1:]}"  # begins a sentence; the name of an option keeps its spelling
    return Bury(
        "permanent",
        f"Not retried now: {error}." if lane == "delayed" else f"Not retried: {error}, which waiting does not heal.",
        f"{ADVICE.get(case.cause.detail, 'Fix the cause, then redrive.')} {otherwise} would retry it.",
        lane,
        owner=case.abilities.fleet.escalation if lane == "manual" else None,
    )


def _if_unknown(case: Case) -> Decision | None:
    if case.cause.category != "unknown" or case.idempotent:
        return None
    recent = sum(attempt.outcome == "failed" for attempt in case.recent)
    tries = case.failures if case.job.fresh_from == 0 else recent + 1
    tries -= case.changed_tries  # changed tries do not count
    name = case.failure.error_class
    if case.effects:
        return Bury(
            "permanent",
            f"Not retried: {name} is not known to heal, and the task has effects that a retry might repeat.",
            f"{advise_landed(case.effects_seen)} idempotent=True or {_option_to_retry(case)} on it would retry it.",
        )
    if tries < UNKNOWN_TRIES:
        return None
    return Bury(
        "not_known_to_heal",
        f"Not retried further: {name} is not known to heal.",
        RULE_ADVICE.get(case.cause.rule)
        or f"Add {_option_to_retry(case)}, {_option_to_give_up(case)} or idempotent=True to the task; then redrive.",
    )


def _option_to_retry(case: Case) -> str:
    """Name the option by which the task can declare that this failure heals."""
    if case.job.task.startswith("redrive."):
        return "a rule of your own ([[rules]] in redrive.toml)"
    if case.failure.kind != "exception":
        return "an error_kind in the result"
    return f"retry_on=({case.failure.error_class},)"


def _option_to_give_up(case: Case) -> str:
    return f"give_up_on=({case.failure.error_class},)" if case.failure.kind == "exception" else "redrive.GiveUp"


def _if_told_to_wait_long(case: Case) -> Decision | None:
    """Bury a job for which a server asked a wait longer than max_wait; the job comes back by itself after that wait."""
    after = case.cause.retry_after
    if after is None or after <= case.max_wait or case.failure.kind == "signal":
        return None
    wait = _spread(case, after)
    return Bury(
        "asked_to_wait",
        f"{case.cause.detail}: asked to wait {after:.0f} s, longer than max_wait {case.max_wait:.0f} s.",
        "Nothing to do: it comes back by itself at the time that was asked for. Redrive it if that is over sooner.",
        "delayed",
        comes_back_at=case.now + wait,
    )


def _if_told_when(case: Case) -> Decision | None:
    """Retry at the time that the failure names: a task's time is used exactly, a server's up to max_wait.

    Many jobs may get the same time from a server, so each comes a little later, never earlier. A server's wait does not
    count towards the job's age; a task's own wait does, because a task can end its waiting with `max_age`.
    """
    after = case.cause.retry_after
    if after is None:
        return None
    if case.failure.kind == "signal":
        return RetryLater(min(after, LONGEST_WAIT), f"{case.cause.detail}: asked to wait {after:g} s.", "retry_after")
    least = min(SAFE_WAIT, delay_after(case.policy, case.failures, case.chance))
    wait = _spread(case, max(after, least))
    why = f"{case.cause.detail}: asked to wait {after:g} s; again in {wait:.{0 if wait >= 10 else 1}f} s."
    return RetryLater(wait, why, "retry_after", asked=wait)


def _spread(case: Case, wait: float) -> float:
    return wait * (1.0 + (RETRY_AFTER_JITTER * case.chance if case.policy.jitter != 0 else 0.0))


def _backoff(case: Case) -> Decision:
    wait = delay_after(case.policy, case.failures, case.chance)
    when = f"in {wait:.1f} s" if wait >= 0.05 else "at once"
    back = f" ({_ordinal(case.job.comebacks)} comeback)" if case.job.comebacks else ""
    return RetryLater(wait, f"{case.cause.detail}: attempt {case.failures} of {case.allowed}{back}, again {when}.")


# ---- while a caller or a script waits


def _retry_on_the_spot(case: Case) -> Decision | None:
    """Retry on the spot a failure that heals at once, at most three tries in all."""
    if case.cause.category != "transient" or case.cause.heals != "at_once" or case.failure.kind == "lease_expired":
        return None
    if case.tries >= SPOT_TRIES or case.failures >= case.allowed or case.cause.retry_after is not None:
        return None
    wait = SPOT_WAIT * 2.0 ** (case.tries - 1)
    why = f"{case.cause.detail}: try {case.tries} of {SPOT_TRIES} on the spot, again in {wait:g} s."
    return RetryLater(wait, why, "on_the_spot", tier="immediate")


def _divert(case: Case) -> Decision:
    """Divert a script's failed job, as a script does not wait: to the next cycle if it may heal, else to a person."""
    cause = case.cause
    differently = try_changed(case) if cause.category == "conditional" else None
    if cause.category == "transient" or isinstance(differently, RetryLater):
        retry = differently if isinstance(differently, RetryLater) else None
        return Bury(
            "diverted",
            f"{case.failure.summary} is {cause.detail}: tried again in the next cycle.",
            f"{ADVICE.get(cause.detail, 'It may heal by itself.')} It comes back by itself in the next cycle.",
            "delayed",
            changes=retry.changes if retry else None,
            agent=retry.agent if retry else None,
            model=retry.model if retry else None,
            on_top=retry.on_top if retry else 0,
        )
    if isinstance(differently, Bury):
        return differently
    return Bury(
        "diverted",
        f"Not tried again: {case.failure.summary} is not known to heal by waiting.",
        f"Look at it, then redrive it. {_option_to_retry(case)} would bring it back in the next cycle.",
    )


_ENDS: Final[tuple[Strategy, ...]] = (
    _if_lost,
    _if_released,
    _if_own_limits,
    _if_gave_up,
    _if_suspended,
    _if_uncertain,
    _if_manual,
    _if_exhausted,
    _if_too_old,
    _if_over_budget,
)
_BY_CATEGORY: Final[tuple[Strategy, ...]] = (
    _if_permanent,
    _if_unknown,
    _if_told_to_wait_long,
    try_changed,
    _if_told_when,
)
CATEGORIZED: Final[tuple[Strategy, ...]] = (*_ENDS, *_BY_CATEGORY)
PLAIN: Final[tuple[Strategy, ...]] = (*_ENDS, _if_told_to_wait_long, _if_told_when)
"""`strategy = "plain"`: every failure is retried until the attempts are used up."""
CALL: Final[tuple[Strategy, ...]] = (*_ENDS, _retry_on_the_spot, *_BY_CATEGORY)
CALL_PLAIN: Final[tuple[Strategy, ...]] = (*_ENDS, _retry_on_the_spot, _if_told_to_wait_long, _if_told_when)
"""Strategies while a caller waits: a few tries on the spot first."""
CYCLE: Final[tuple[Strategy, ...]] = (*_ENDS, _retry_on_the_spot, _if_permanent, _divert)
"""Strategies in a script's cycle: a few tries on the spot, then the delayed lane or a person."""
