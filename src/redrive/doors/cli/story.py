"""One job's whole story for a person at a terminal. What there is to tell is decided in `insight.story`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redrive.doors.cli.output import say
from redrive.doors.cli.text import ago, clean, due, one_line, span

if TYPE_CHECKING:
    from redrive.core.job import Job
    from redrive.core.store import Event
    from redrive.core.triage import Note
    from redrive.insight.story import Entry, Story


def tell(job: Job, moves: Sequence[Event], notes: Sequence[Note] = (), *, secrets: bool = False) -> None:
    import time

    from redrive.insight import story

    told = story.tell(job, moves, time.time(), notes)
    for line in _head(told):
        say(line)
    for text in _contents(job, secrets=secrets):
        say(text, verbatim=True)
    for line in (*_entries(told), *_next(told)):
        say(line)


def move_json(move: Event) -> dict[str, Any]:
    from redrive.core.job import iso

    return {"move": move.move, "at": iso(move.at), "state": str(move.state), "who": move.who, "why": move.why}


def _head(told: Story) -> Iterator[str]:
    from redrive.core.job import iso
    from redrive.insight.story import used

    job = told.job
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
        "spent": used(told.spent) if told.spent is not None and len(job.history) > 1 else None,
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

    from redrive.core.job import legible
    from redrive.core.redact import redact

    value = legible(text)
    lines = json.dumps(value if secrets else redact(value), indent=2, ensure_ascii=False).splitlines()
    return "\n".join(f"  {clean(line)}" for line in lines)


def _entries(told: Story) -> Iterator[str]:
    """Attempts and what people did, in order. That it was enqueued stands in the head."""
    shown = [entry for entry in told.entries if entry.kind != "born" or entry.who or entry.why]
    if shown:
        yield "story"
    for entry in shown:
        yield from _attempt(entry) if entry.kind == "attempt" else _moved(entry)


def _attempt(entry: Entry) -> Iterator[str]:
    from redrive.core.job import iso

    took = f" after {span(entry.seconds)}" if entry.seconds is not None else ""
    where = f", {clean(entry.worker)}" if entry.worker else ""
    yield f"  run {entry.run}: {entry.title}{took}, {iso(entry.at)}{where}"
    for fact in entry.facts:
        yield f"    {fact.name:<9} {one_line(fact.text)}"


def _moved(entry: Entry) -> Iterator[str]:
    from redrive.core.job import iso

    whom = f" by {clean(entry.who)}" if entry.who else ""
    why = f": {one_line(entry.why)}" if entry.why else ""
    yield f"  {iso(entry.at)} {entry.title}{whom}{why}"


def _next(told: Story) -> Iterator[str]:
    yield "what next"
    job = told.job
    if job.recommendation:
        yield f"  {clean(job.recommendation)}"
    for line in _plainly(job):
        yield f"  {clean(line)}"
    for choice in told.choices:
        yield f"  {clean(f'{choice.when}: {choice.command}')}"


def _due(job: Job) -> str:
    said = due(job.run_at)
    return f"Was {said}; runs" if said.startswith("due") else said.capitalize()


def _plainly(job: Job) -> list[str]:
    """What happens, or can be looked at, without anybody's doing."""
    if job.state == "held" and job.because == "blocked":
        return ["It goes on when the steps before it are done: redrive workflows"]
    said = {
        "waiting": f"{_due(job)} as soon as a worker that knows {job.task!r} is free: redrive worker APP",
        "running": f"Started {ago(job.started_at)} on {job.worker}.",
        "done": "Nothing: it is done.",
        "purged": "Nothing: its contents are gone for good; its key stays remembered.",
    }
    return [said[job.state]] if job.state in said else []
