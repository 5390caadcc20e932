"""One job's whole story for a person: where it stands, what was tried, what was decided and why, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redrive.doors.cli.output import say
from redrive.doors.cli.text import ago, clean, one_line, span

if TYPE_CHECKING:
    from redrive.core.job import Attempt, Job, Usage
    from redrive.core.store import Event


def tell(job: Job, moves: Sequence[Event], *, secrets: bool = False) -> None:
    for line in (*_head(job), *_contents(job, secrets=secrets), *_attempts(job), *_people(moves), *_next(job)):
        say(line)


def move_json(move: Event) -> dict[str, Any]:
    from redrive.core.job import iso

    return {"move": move.move, "at": iso(move.at), "state": str(move.state), "who": move.who, "why": move.why}


def _people(moves: Sequence[Event]) -> Iterator[str]:
    """What was done by somebody rather than by an attempt."""
    from redrive.core.job import iso

    said = [move for move in moves if move.who]
    if said:
        yield "moves"
    for move in said:
        why = f": {one_line(move.why)}" if move.why else ""
        yield f"  {iso(move.at)} {move.move} by {clean(move.who or '')}{why}"


def _head(job: Job) -> Iterator[str]:
    from redrive.core.job import iso

    allowed = f" of {job.allowed}" if job.allowed is not None else ""
    facts = {
        "id": job.id,
        "task": job.task,
        "queue": f"{job.queue} ({job.priority_name})",
        "state": _state(job),
        "attempts": f"{job.attempts}{allowed}",
        "created": f"{iso(job.created_at)} ({ago(job.created_at)})",
        "changed": f"{iso(job.updated_at)} ({ago(job.updated_at)})",
        "key": job.key,
        "session": job.session_id,
        "owner": job.owner,
        "waits for": job.held_for,
        "agent": job.agent,
        "model": job.model,
    }
    yield f"job {job.short_id}"
    for name, value in facts.items():
        if value:
            yield f"  {name:<9} {clean(value)}"


def _state(job: Job) -> str:
    lane = f", {job.lane} lane" if job.lane and job.state == "dead" else ""
    return f"{job.state}: {job.because}{lane}" if job.because else str(job.state)


def _contents(job: Job, *, secrets: bool) -> Iterator[str]:
    for name, text in (("payload", job.payload), ("result", job.result)):
        if text is not None:
            yield f"{name}\n{_indented(text, secrets=secrets)}"


def _indented(text: str, *, secrets: bool) -> str:
    import json

    from redrive.core.redact import redact

    value: Any = json.loads(text)
    shown = json.dumps(value if secrets else redact(value), indent=2, ensure_ascii=False)
    return "\n".join(f"  {clean(line)}" for line in shown.splitlines())


def _attempts(job: Job) -> Iterator[str]:
    if job.history:
        yield "attempts"
    for attempt in job.history:
        yield from _attempt(attempt)


def _attempt(attempt: Attempt) -> Iterator[str]:
    from redrive.core.job import iso

    took = ""
    if attempt.started_at is not None and attempt.ended_at is not None:
        took = f" after {span(attempt.ended_at - attempt.started_at)}"
    where = f", {clean(attempt.worker)}" if attempt.worker else ""
    yield f"  run {attempt.run}: {attempt.outcome}{took}, {iso(attempt.ended_at)}{where}"
    for name, said in _findings(attempt):
        yield f"    {name:<9} {one_line(said)}"


def _findings(attempt: Attempt) -> Iterator[tuple[str, str]]:
    if attempt.agent or attempt.model:
        yield "by", ", ".join(filter(None, (attempt.agent, attempt.model)))
    if attempt.changes:
        yield "changed", "; ".join(_change(change) for change in attempt.changes)
    if attempt.failure is not None:
        yield "failure", attempt.failure.summary
        if attempt.failure.body:
            yield "answer", attempt.failure.body
        if attempt.failure.error_kind:
            yield "kind", attempt.failure.error_kind
    if attempt.cause is not None:
        yield "cause", f"{attempt.cause.category}, {attempt.cause.detail}"
        yield "rule", _rule(attempt.cause.rule)
    if attempt.decision:
        yield "decision", attempt.decision
    if attempt.usage is not None:
        yield "usage", _usage(attempt.usage)


def _change(change: dict[str, Any]) -> str:
    """`compress_context max_tokens=80000`; a whole edited payload is left to the diff."""
    said = {name: value for name, value in change.items() if name not in ("change", "payload")}
    return " ".join([change["change"], *(f"{name}={value}" for name, value in said.items())])


def _rule(rule: str) -> str:
    """Which rule decided, and how it recognises a failure."""
    from redrive.core.classify import RULE_NOTES

    note = RULE_NOTES.get(rule)
    return f"{rule or 'none'}: {note}" if note else rule or "none"


def _usage(usage: Usage) -> str:
    cost = f", {usage.cost:g} spent" if usage.cost else ""
    return f"{usage.input_tokens:,} tokens read, {usage.output_tokens:,} written{cost}"


def _next(job: Job) -> Iterator[str]:
    yield "what next"
    if job.recommendation:
        yield f"  {clean(job.recommendation)}"
    for line in _steps(job):
        yield f"  {clean(line)}"


def _held_steps(job: Job) -> list[str]:
    unwanted = f"No longer wanted: redrive cancel {job.short_id}"
    if job.because in ("consent", "approval"):
        yes, no = f"Yes: redrive approve {job.short_id}", f"No: redrive reject {job.short_id} --why TEXT"
        return [yes, no, unwanted]
    if job.because == "blocked":
        return ["It goes on when the steps before it are done: redrive workflows", unwanted]
    if job.because == "circuit_open":
        return [f"You know that it answers again: redrive breakers --close {job.held_for}", unwanted]
    return [
        f"You looked, and it landed: redrive resolve {job.short_id} --landed --why TEXT",
        f"It did not land, run it again: redrive resolve {job.short_id} --not-landed --why TEXT",
        unwanted,
    ]


def _steps(job: Job) -> list[str]:
    id = job.short_id
    steps = {
        "waiting": [
            f"Runs {ago(job.run_at)} as soon as a worker that knows {job.task!r} is free: redrive worker APP",
            f"No longer wanted: redrive cancel {id}",
        ],
        "running": [f"Started {ago(job.started_at)} on {job.worker}.", f"No longer wanted: redrive cancel {id}"],
        "held": _held_steps(job),
        "done": ["Nothing: it is done."],
        "dead": [
            f"Try again once the cause is gone: redrive dead redrive {id} --why TEXT",
            f"Try again with another input: redrive dead edit {id} JSON --why TEXT",
            f"Let it go: redrive dead discard {id} --why TEXT",
        ],
        "discarded": [f"Bring it back among the dead letters: redrive dead restore {id}"],
        "purged": ["Nothing: its contents are gone for good; its key stays remembered."],
    }
    return steps[job.state]
