"""What a caller is told: done, queued for a retry (which is not success), late, failed, or waiting for a person."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from redrive.core.effects import witness_path
from redrive.core.job import Job, Json, State, iso

INLINE: Final = 100_000
"""Characters of a result that an answer carries; the whole is kept with the operation."""

Status = Literal["ok", "queued_for_retry", "queued", "timeout", "failed", "needs_consent", "held"]


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a call. True only when it is done."""

    status: Status
    operation_id: str | None = None
    result: Any = None
    message: str = ""
    """What happened and what to do next, for an agent."""
    error: str | None = None
    error_kind: str | None = None
    retry_at: float | None = None
    queue_reason: str | None = None
    recovered: int = 0
    """Effects that were seen outside although the attempt did not say so."""
    path: str | None = None
    """Where these effects are, where the witness of the attempt said so."""
    registry_auto_recovered: bool = False
    truncated: bool = False
    repeats: int = 0
    """How often the session did the same in its last actions without success, where that is a loop."""

    def __bool__(self) -> bool:
        return self.status == "ok"

    def public(self) -> dict[str, Json]:
        """As tools and doors show it. What is queued has no field that looks like success."""
        body: dict[str, Json] = {"operation_id": self.operation_id} if self.operation_id else {}
        body |= _show_status(self)
        if self.error_kind:
            body["error_kind"] = self.error_kind
        if self.error and self.status != "ok":
            body["error"] = self.error
        if self.registry_auto_recovered:
            body["registry_auto_recovered"] = True
        if self.repeats:
            body["repeats"] = self.repeats
        return body


def _show_status(outcome: Outcome) -> dict[str, Json]:
    """Returns the fields that tell the status. What failed may come back by itself, and says when."""
    match outcome.status:
        case "ok":
            body: dict[str, Json] = {"status": "ok", "result": outcome.result}
            if outcome.truncated:
                body["truncated"] = True
            if outcome.recovered:
                body |= {"post_write_recovery": True, "effects_verified": outcome.recovered, "warning": outcome.message}
                body |= {"path": outcome.path} if outcome.path else {}
            return body
        case "queued_for_retry":
            return {"queued_for_retry": True, "retry_hint": outcome.message, "retry_at": iso(outcome.retry_at)}
        case "queued":
            return {"status": "queued", "hint": outcome.message, "queue_reason": outcome.queue_reason}
        case "failed" if outcome.retry_at is not None:
            return {"status": "failed", "message": outcome.message, "retry_at": iso(outcome.retry_at)}
        case status:
            return {"status": status, "message": outcome.message}


def outcome_of(job: Job, result: Json = None, *, recovered: bool = False) -> Outcome:
    """Describes how an operation stands."""
    kind = next((a.failure.error_kind for a in reversed(job.history) if a.failure and a.failure.error_kind), None)
    last = job.history[-1] if job.history and job.history[-1].outcome == "recovered" else None
    outcome = Outcome(
        _status(job),
        job.id,
        message=_message(job),
        error=job.error,
        error_kind=kind or job.detail,
        retry_at=job.run_at if job.state is State.waiting else job.comes_back_at,
        queue_reason=job.reason,
        recovered=len(last.effects or ()) if last else 0,
        path=witness_path(last.witness) if last else None,
        registry_auto_recovered=recovered or any(attempt.registry_auto_recovered for attempt in job.history),
    )
    if job.state is not State.done:
        return outcome
    shown, cut = shorten_result(result, job.id)
    return msgspec.structs.replace(outcome, result=shown, truncated=cut, error=None, error_kind=None)


def unknown_outcome(operation_id: str, problem: Exception) -> Outcome:
    """An operation that was accepted, when the store cannot be asked what became of it."""
    said = (
        f"Its state is unknown: the store does not answer ({problem}). It was accepted and may be done, now or "
        f"later: ask for the status of operation {operation_id[-8:]}, do not call it again."
    )
    return Outcome("timeout", operation_id, message=said)


def shorten_result(result: Json, operation_id: str | None) -> tuple[Json, bool]:
    """A result that fits an answer; what is longer is cut, and says where the whole is."""
    text = msgspec.json.encode(result).decode()
    if len(text) <= INLINE:
        return result, False
    whole = result if isinstance(result, str) else text
    where = f"ask for operation {operation_id}" if operation_id else "they were not kept"
    return f"{whole[:INLINE]}\n[… {len(whole) - INLINE:,} characters more: {where}]", True


def _status(job: Job) -> Status:
    match job.state:
        case State.done:
            return "ok"
        case State.held:
            return "needs_consent" if job.because == "consent" else "held"
        case State.dead | State.discarded | State.purged:
            return "failed"
        case State.running:
            return "timeout"
        case _:
            return "queued_for_retry" if _failed(job) else "queued"


def _failed(job: Job) -> bool:
    """Whether it waits after a failure, rather than for its first run or because it asked to."""
    return job.error is not None


def _message(job: Job) -> str:
    id = job.short_id
    match job.state:
        case State.done:
            seen = job.history[-1].decision if job.history and job.history[-1].outcome == "recovered" else None
            return seen or "Done."
        case State.dead if job.comes_back_at is not None:
            return (
                f"It failed ({job.because}, see error) and comes back by itself at {iso(job.comes_back_at)}: not done, "
                f"and not over. Ask for the status of operation {id} then, do not call it again."
            )
        case State.dead:
            return f"It failed and is not retried by itself ({job.because}): see error. {_advice(job)}"
        case State.held:
            return f"It waits ({job.because}): {_advice(job)}"
        case State.running:
            return f"It still runs. Nothing is known yet: ask for the status of operation {id}, do not call it again."
        case State.waiting if _failed(job):
            return (
                f"Not done: the attempt failed ({job.detail}, see error) and will be tried again. Retries can fail, "
                f"too: do not report success before the status of operation {id} says done."
            )
        case State.waiting:
            told = "; the session is told when it ends" if job.session_id else ""
            return f"Queued, not done. Ask for the status of operation {id}{told}."
        case _:
            return f"It was {job.state}."


def describe_death(job: Job) -> str:
    """That a job is dead and of what, where there was an error: a person may have brought back what never failed."""
    said = f"job {job.short_id} is dead ({job.because})"
    return f"{said}: {job.error}" if job.error else said


def _advice(job: Job) -> str:
    """What to do next, in our own words: a recommendation may hold text from outside where the task wrote it."""
    ours = job.because not in ("terminated", "imported")
    return (job.recommendation or "") if ours else f"redrive dead show {job.short_id} says more."
