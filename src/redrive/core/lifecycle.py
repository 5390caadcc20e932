"""Defines the state machine: the table of moves, and one function per arrow.

Every function returns a Transition, a value that says what a store must write; nothing here writes. The SQL trigger
that refuses other moves and the diagram in the docs are generated from MOVES.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final, Literal

import msgspec

from redrive.core.advice import for_a_person
from redrive.core.job import ATTRIBUTES, CYCLE, UNKNOWN, Attempt, Cause, Failure, Job, Json, Lane, State
from redrive.errors import IllegalMove

MAX_GRANTS: Final = 3
"""How often a person may give a job fresh attempts before it must be enqueued anew."""

Revival = Literal["auto", "person"]
NO_CHANGE: Final[Mapping[str, str]] = {}
NEW: Final = None
"""The state before the first: the job does not exist yet."""


class Move(msgspec.Struct, frozen=True):
    """One arrow of the lifecycle."""

    name: str
    sources: tuple[State | None, ...]
    to: tuple[State, ...]
    note: str


_W, _R, _H = State.waiting, State.running, State.held

MOVES: Final[dict[str, Move]] = {
    move.name: move
    for move in (
        Move("enqueued", (NEW,), (_W, _H), "accepted: run now, later, or held until its workflow needs it"),
        Move("imported", (NEW,), (State.dead,), "a failure that happened elsewhere"),
        Move("claimed", (_W,), (_R,), "a worker holds the lease"),
        Move("succeeded", (_R,), (State.done,), "result stored"),
        Move("retried", (_R,), (_W,), "failed, runs again at run_at, perhaps changed"),
        Move("snoozed", (_R,), (_W,), "the task asked to run later; costs no attempt"),
        Move("released", (_R,), (_W,), "its worker stopped, or could not begin it; costs no attempt"),
        Move("held_back", (_W, _R), (_H,), "waits for a person, a dependency or a circuit"),
        Move("unblocked", (_H,), (_W,), "what it waited for happened"),
        Move("buried", (_W, _R, _H), (State.dead,), "a dead letter: reason, lane, recommendation"),
        Move("redriven", (State.dead,), (_W,), "brought back; same id, key and history"),
        Move("rerouted", (State.dead,), (State.dead,), "a person chose the other lane, or no tries are left"),
        Move("deferred", (State.dead,), (_H,), "a person sees to it later; owner and time are named"),
        Move("recalled", (_W, _H), (State.dead,), "its time came, or a person wants it back: a dead letter again"),
        Move("resolved", (_H, State.dead), (State.done,), "a person confirmed that the effect landed"),
        Move("cancelled", (_W, _R, _H), (State.discarded,), "no longer wanted"),
        Move("discarded", (State.dead,), (State.discarded,), "a person let it go"),
        Move("restored", (State.discarded,), (State.dead,), "a person wants it back"),
        Move("purged", (State.dead, State.discarded), (State.purged,), "removed; the key stays remembered"),
    )
}


def legal_pairs() -> list[tuple[State, State]]:
    """Every (from, to) of the table, for the schema's trigger."""
    pairs = {(source, to) for move in MOVES.values() for source in move.sources for to in move.to if source}
    return sorted(pairs)


def sources(to: State) -> list[State]:
    """Every state from which the table has a move to this one."""
    return [source for source, target in legal_pairs() if target == to]


def wrong_beginning(job: Job) -> str | None:
    """What is wrong with a new job, if anything: it begins waiting, held or dead, and a hold or a death says why."""
    told = job.state is State.waiting or (job.because is not None and (job.state is State.held or bool(job.lane)))
    if job.state not in MOVES["enqueued"].to + MOVES["imported"].to or not told:
        return f"job {job.short_id} cannot begin {job.state} (because {job.because})"
    if job.state is State.dead and job.recommendation is None:
        return f"job {job.short_id} cannot begin dead without a recommendation"
    return None


class Transition(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A decided move: what to write, if the job still is as `job` says."""

    move: str
    job: Job
    to: State
    at: float
    set: dict[str, object]
    attempt: Attempt | None = None
    who: str | None = None
    why: str | None = None
    lesson: tuple[str, str, bool] | None = None
    """The error group of the last attempt, the strategy that this one tried, and whether it worked."""
    answered: bool = False
    """The caller gets this end as the answer to its call, so no notice tells it. The job itself does not change."""

    def after(self, version: int) -> Job:
        """The job as it is once the store has written this."""
        history = (*self.job.history, self.attempt) if self.attempt else self.job.history
        fields = {ATTRIBUTES.get(name, name): value for name, value in self.set.items()}
        return msgspec.structs.replace(
            self.job, state=self.to, updated_at=self.at, version=version, history=history, **fields
        )

    def before(self, leave_out: Container[str]) -> dict[str, Json]:
        """The values that this overwrites, by the names under which they are stored."""
        return {name: getattr(self.job, ATTRIBUTES.get(name, name)) for name in self.set if name not in leave_out}


def _move(
    name: str,
    job: Job,
    at: float,
    fields: dict[str, object],
    *,
    attempt: Attempt | None = None,
    who: str | None = None,
    why: str | None = None,
) -> Transition:
    move = MOVES[name]
    if job.state not in move.sources:
        check_legal(name, job)
    if job.state is State.running:
        fields["token"] = None
    if job.state is State.held and job.held_at is not None:
        fields["held_seconds"] = job.held_seconds + max(0.0, at - job.held_at)
        fields["held_at"] = None
    if job.comes_back_at is not None:
        fields.setdefault("comes_back_at", None)
    return Transition(name, job, move.to[0], at, fields, attempt, who, why)


def check_legal(name: str, job: Job) -> None:
    """Whether the table has this move for a job as it is now."""
    if job.state not in MOVES[name].sources:
        legal = " or ".join(str(source) for source in MOVES[name].sources)
        raise IllegalMove(f"job {job.short_id} is {job.state}; only a {legal} job can be {name}", job_id=job.id)


def _with_contents(move: Transition) -> Transition:
    """Refuses a job without its payload: it would run with the defaults of its task, which no caller asked for."""
    job = move.job
    if job.payload is None:
        problem = f"job {job.short_id} cannot be {move.move}: its contents were erased, or forgotten after their time"
        key = ", with another key" if job.key is not None else ""
        raise IllegalMove(f"{problem}; enqueue it anew{key}", job_id=job.id)
    return move


_CLEAR_FAILURE: Final[dict[str, object]] = dict.fromkeys(
    (
        "because", "lane", "category", "detail", "subclass", "fingerprint", "error_class", "error", "recommendation",
        "owner", "held_for",
    )
)  # fmt: skip


def _clear_failure(job: Job, fields: dict[str, object]) -> dict[str, object]:
    """Clears the fields of an earlier failure; the history keeps them."""
    if job.error_class is not None or job.because is not None:
        fields.update(_CLEAR_FAILURE)
    return fields


def _failure_fields(job: Job, failure: Failure, cause: Cause, fingerprint: str | None, at: float) -> dict[str, object]:
    return {
        "first_failed_at": at if job.first_failed_at is None else job.first_failed_at,
        "category": cause.category,
        "detail": cause.detail,
        "subclass": cause.subclass,
        "fingerprint": fingerprint,
        "error_class": failure.error_class,
        "error": failure.summary,
    }


def _crashes(job: Job, *, crashed: bool, finished: bool) -> dict[str, object]:
    """Count a worker that ended with the job, in a row: an attempt that came to its end begins the count anew."""
    if crashed:
        return {"crashes": job.crashes + 1}
    return {"crashes": 0} if finished and job.crashes else {}


def succeeded(job: Job, at: float, result: str | None, attempt: Attempt | None = None) -> Transition:
    """An attempt is given where there is more to say of it than when and where it ran, which the job says itself."""
    fields: dict[str, object] = {"result": result, "attempts": job.attempts + 1}
    if job.died_at is not None:
        fields["revived_by"] = job.revived_by  # said again, because this success has more to tell than most
    if job.error_class is not None or job.because is not None:
        _clear_failure(job, fields)
    return _move("succeeded", job, at, fields, attempt=attempt)


def retried(
    job: Job,
    at: float,
    *,
    run_at: float,
    allowed: int,
    failure: Failure,
    cause: Cause,
    fingerprint: str | None,
    attempt: Attempt,
    costs_attempt: bool = True,
    crashed: bool = False,
    asked: float = 0.0,
    changed: Mapping[str, str] = NO_CHANGE,
) -> Transition:
    """`changed` are the job's own fields that the next run has anew: changes_json, agent, model.

    `asked` are the seconds until then that a server asked for: they count as time in which the job is held.
    """
    fields = _failure_fields(job, failure, cause, fingerprint, at)
    fields |= {"run_at": run_at, "allowed": allowed, "attempts": job.attempts + costs_attempt, **changed}
    fields |= _crashes(job, crashed=crashed, finished=costs_attempt)
    if asked:
        fields["held_seconds"] = job.held_seconds + asked
    return _move("retried", job, at, fields, attempt=attempt, why=attempt.decision)


def snoozed(job: Job, at: float, *, run_at: float, attempt: Attempt) -> Transition:
    return _move("snoozed", job, at, {"run_at": run_at}, attempt=attempt, why=attempt.decision)


def released(job: Job, at: float, attempt: Attempt, *, rest: float = 0.0) -> Transition:
    """Gives a job back to its queue, in its place, or after `rest` seconds."""
    run_at = at + rest if rest else min(job.run_at, at)
    return _move("released", job, at, {"run_at": run_at}, attempt=attempt, why=attempt.decision)


def held_back(
    job: Job,
    at: float,
    *,
    because: str,
    why: str,
    recommendation: str | None = None,
    failure: Failure | None = None,
    cause: Cause | None = None,
    fingerprint: str | None = None,
    attempt: Attempt | None = None,
    held_for: str | None = None,
    who: str | None = None,
) -> Transition:
    """Holds a job for a reason that a person can read. A run that ends so costs no attempt."""
    fields: dict[str, object] = {"because": because, "recommendation": recommendation, "held_at": at}
    if held_for is not None:
        fields["held_for"] = held_for
    if failure and cause:
        fields |= _failure_fields(job, failure, cause, fingerprint, at)
    return _move("held_back", job, at, fields, attempt=attempt, who=who, why=why)


def unblocked(job: Job, at: float, *, who: str | None = None, why: str | None = None) -> Transition:
    return _move("unblocked", job, at, _clear_failure(job, {"run_at": at}), who=who, why=why)


def buried(
    job: Job,
    at: float,
    *,
    because: str,
    why: str,
    recommendation: str,
    failure: Failure,
    cause: Cause,
    fingerprint: str | None,
    lane: Lane = "manual",
    attempt: Attempt | None = None,
    allowed: int | None = None,
    costs_attempt: bool = True,
    crashed: bool = False,
    owner: str | None = None,
    changed: Mapping[str, str] = NO_CHANGE,
    who: str | None = None,
    comes_back_at: float | None = None,
    waits_for: str | None = None,
) -> Transition:
    """Make it a dead letter. One with `comes_back_at` comes back by itself; `waits_for` names what it calls."""
    fields = _failure_fields(job, failure, cause, fingerprint, at)
    fields |= {"because": because, "lane": lane, "recommendation": recommendation, **changed}
    fields["died_at"] = at if job.died_at is None else job.died_at
    if owner is not None:
        fields["owner"] = owner
    if attempt and costs_attempt:
        fields["attempts"] = job.attempts + 1
    if allowed is not None:
        fields["allowed"] = allowed
    if comes_back_at is not None:
        fields |= {"comes_back_at": comes_back_at, "held_for": waits_for}
    fields |= _crashes(job, crashed=crashed, finished=attempt is not None and costs_attempt)
    return _move("buried", job, at, fields, attempt=attempt, who=who, why=why)


def redriven(
    job: Job,
    at: float,
    *,
    max_attempts: int,
    who: str,
    why: str | None,
    run_at: float,
    changed: Mapping[str, str] = NO_CHANGE,
    fresh: bool = True,
    by: Revival | None = None,
) -> Transition:
    """Back to waiting. Where the attempts are used up this is a grant of `max_attempts` more, at most three times.

    A person's redrive is a fresh start for budgets, ages, changed tries and comebacks; a cycle's is not. `by` says
    whose success it will be, for reports.
    """
    fields: dict[str, object] = {"run_at": run_at, "revived_by": by or ("person" if fresh else "auto"), **changed}
    if fresh:
        fields |= {"first_failed_at": None, "held_seconds": 0.0, "fresh_from": job.run, "comebacks": 0}
    allowed = job.allowed if job.allowed is not None else max_attempts
    if job.attempts >= allowed:
        if job.grants >= MAX_GRANTS:
            raise IllegalMove(
                f"job {job.short_id} was redriven with fresh attempts {MAX_GRANTS} times already; "
                "fix the cause and enqueue it anew, or discard it",
                job_id=job.id,
            )
        fields |= {"allowed": job.attempts + max_attempts, "grants": job.grants + 1}
    return _with_contents(_move("redriven", job, at, _clear_failure(job, fields), who=who, why=why))


def came_back(
    job: Job, at: float, *, tries: int, who: str, why: str, changed: Mapping[str, str] = NO_CHANGE
) -> Transition:
    """Back from the delayed lane by itself, with a few tries on top of those it had.

    Its attempts go on counting, and what a person granted stays. The time in the lane is held time: a job does not
    grow too old there.
    """
    died = job.history[-1].ended_at if job.history else None
    fields: dict[str, object] = {
        "run_at": at,
        "revived_by": "auto",
        "allowed": job.attempts + tries,
        "comebacks": job.comebacks + 1,
        "held_seconds": job.held_seconds + max(0.0, at - (died or job.updated_at)),
        **changed,
    }
    return _with_contents(_move("redriven", job, at, _clear_failure(job, fields), who=who, why=why))


MOVED_LATER: Final = 3600.0
"""Seconds until a dead letter comes back that a person moved into the delayed lane."""


def rerouted(job: Job, at: float, *, lane: Lane, who: str, why: str | None) -> Transition:
    """Moves a dead letter into the delayed lane, from where it comes back by itself, or into the manual one."""
    fields: dict[str, object] = {"lane": lane}
    if lane == "manual" and job.comes_back_at is not None:
        fields["recommendation"] = for_a_person(job.recommendation, job.because)
    if lane == "delayed" and not job.queue.startswith(CYCLE):  # whose next cycle brings it back
        fields["comes_back_at"] = at + MOVED_LATER
    return _move("rerouted", job, at, fields, who=who, why=why)


def passed_over(job: Job, at: float, *, comebacks: int, comes_back_at: float, who: str, why: str) -> Transition:
    """Moves a comeback to a later time, because another job of the group failed again."""
    fields: dict[str, object] = {"comebacks": comebacks, "comes_back_at": comes_back_at}
    return _move("rerouted", job, at, fields, who=who, why=why)


def pulled(job: Job, at: float, *, max_attempts: int, who: str, why: str) -> Transition:
    """Brings a job back from a cycle's delayed lane. Its tries go on counting; at the cap it goes to a person."""
    if job.attempts >= (job.allowed or max_attempts):
        return rerouted(job, at, lane="manual", who=who, why="it has no tries left: redrive grants more")
    return redriven(job, at, max_attempts=max_attempts, who=who, why=why, run_at=at, fresh=False)


_STAYS_UNKNOWN: Final[Mapping[str, object]] = {"detail": UNKNOWN}
"""What an end keeps of a job with an unknown outcome, because the job may be brought back."""
DEFERRED: Final = "deferred"
ERASED: Final = "erased"
"""Why a job was ended whose contents were erased. Every other reason of its moves leaves with the contents."""


def is_deferred(job: Job) -> bool:
    return job.state is State.held and job.because == DEFERRED


def deferred(job: Job, at: float, *, owner: str, until: float, who: str, why: str | None) -> Transition:
    """Holds a dead letter until a time. The job keeps its error group and its reason."""
    fields: dict[str, object] = {
        "because": DEFERRED,
        "held_for": job.because,
        "held_at": at,
        "owner": owner,
        "run_at": until,
        "deferrals": job.deferrals + 1,
    }
    return _move(DEFERRED, job, at, fields, who=who, why=why)


def recalled(
    job: Job, at: float, *, who: str, why: str | None, failure_fields: Mapping[str, object] = NO_CHANGE
) -> Transition:
    """Makes a deferred job, or one that was brought back and has not run since, a dead letter again.

    A job that was brought back has lost the fields of its failure: `failure_fields` gives them again.
    """
    fields = {"because": job.held_for or "restored", "held_for": None, **failure_fields}
    move = _move("recalled", job, at, fields, who=who, why=why)
    if job.state is State.held and job.because != DEFERRED:
        raise IllegalMove(f"job {job.short_id} is held ({job.because}), not deferred; it has no recall", job_id=job.id)
    return move


def resolved(job: Job, at: float, *, who: str, why: str) -> Transition:
    return _move("resolved", job, at, _clear_failure(job, {}), who=who, why=why)


def cancelled(job: Job, at: float, *, who: str | None, why: str | None, attempt: Attempt | None = None) -> Transition:
    fields = {"because": "cancelled", **(_STAYS_UNKNOWN if job.may_have_landed else {})}
    return _move("cancelled", job, at, fields, attempt=attempt, who=who, why=why)


def discarded(job: Job, at: float, *, who: str, why: str | None) -> Transition:
    fields = {"because": "discarded", **(_STAYS_UNKNOWN if job.may_have_landed else {})}
    return _move("discarded", job, at, fields, who=who, why=why)


def restored(job: Job, at: float, *, who: str, why: str | None) -> Transition:
    fields: dict[str, object] = {
        "because": "restored",
        "lane": "manual",
        "category": job.category or "unknown",
        "detail": job.detail or "unknown",
        "subclass": job.subclass or "Logic",
        "error_class": job.error_class or "restored",
        "recommendation": job.recommendation or "Brought back by a person: redrive it or discard it.",
        "died_at": at if job.died_at is None else job.died_at,
    }
    return _with_contents(_move("restored", job, at, fields, who=who, why=why))


def purged(job: Job, at: float, *, who: str, why: str | None) -> Transition:
    fields: dict[str, object] = {"payload": None, "result": None, "error": None}
    return _move("purged", job, at, fields, who=who, why=why)


def diagram() -> str:
    """The lifecycle as a mermaid state diagram, for the docs."""
    arrows = {
        f"    {source or '[*]'} --> {to}: {move.name}"
        for move in MOVES.values()
        for source in move.sources
        for to in move.to
    }
    return "\n".join(["stateDiagram-v2", *sorted(arrows)])
