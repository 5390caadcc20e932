"""One job's whole story for a person at a terminal. What there is to tell is decided in `insight.story`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redrive.doors.cli.output import harmless, say
from redrive.doors.cli.text import ago, clean, due, one_line, span

if TYPE_CHECKING:
    from redrive.core.job import Job
    from redrive.core.store import Event
    from redrive.deadletters.verbs import Note
    from redrive.reports.timeline import Entry, Story
    from redrive.reports.traceback_view import Raised


def tell(
    job: Job,
    moves: Sequence[Event],
    notes: Sequence[Note] = (),
    *,
    trace_url: str | None = None,
    secrets: bool = False,
) -> None:
    """Print one job: its facts, contents, story and what can be done next."""
    import time

    from redrive.reports import timeline

    told = timeline.tell(job, moves, time.time(), notes)
    for line in _head(told, trace_url):
        say(line)
    for text in _contents(job, secrets=secrets):
        say(text, verbatim=True)
    for line in (*_entries(told), *_next(told)):
        say(line)


def move_json(move: Event) -> dict[str, Any]:
    from redrive.core.job import iso

    return {"move": move.move, "at": iso(move.at), "state": str(move.state), "who": move.who, "why": move.why}


def _head(told: Story, trace_url: str | None) -> Iterator[str]:
    from redrive.core.job import iso
    from redrive.reports.timeline import used

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
        "back": f"{iso(job.comes_back_at)} ({ago(job.comes_back_at)}), by itself" if job.comes_back_at else None,
        "waits for": job.held_for if job.state == "held" else None,  # a dead letter keeps there what it calls
        "agent": job.agent,
        "model": job.model,
        "trace": trace_url,
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
    for name, text in (("payload", job.payload), ("result", job.result_json)):
        if text is not None:
            yield f"{name}\n{_indented(text, secrets=secrets)}"


def _indented(text: str, *, secrets: bool) -> str:
    import json

    from redrive.core.job import legible
    from redrive.core.redact import redact

    value = legible(text)
    shown = json.dumps(value if secrets else redact(value), indent=2, ensure_ascii=False)
    return "\n".join(f"  {line}" for line in harmless(shown).splitlines())


def _entries(told: Story) -> Iterator[str]:
    """Attempts and what people did, in order. That it was enqueued stands in the head."""
    shown = [entry for entry in told.entries if entry.kind != "born" or entry.who or entry.why]
    if shown:
        yield "story"
    trace: tuple[Raised, ...] = ()
    for entry in shown:
        yield from _attempt(entry, same=entry.trace == trace) if entry.kind == "attempt" else _moved(entry)
        trace = entry.trace or trace


def _attempt(entry: Entry, *, same: bool) -> Iterator[str]:
    """One run. A traceback that is the one before it, word for word, is not repeated."""
    from redrive.core.job import iso

    took = f" after {span(entry.seconds)}" if entry.seconds is not None else ""
    where = f", {clean(entry.worker)}" if entry.worker else ""
    yield f"  run {entry.run}: {entry.title}{took}, {iso(entry.at)}{where}"
    for fact in entry.facts:
        yield f"    {fact.name:<9} {one_line(fact.text)}"
    if entry.trace and not same:
        yield "    traceback, innermost first; > marks your code"
        for raised in entry.trace:
            yield from _raised(raised)


def _raised(raised: Raised) -> Iterator[str]:
    if raised.is_cause:
        yield f"      caused by {one_line(raised.summary)}"
    for line in raised.lines:
        yield f"      {'>' if line.yours else ' '} {clean(line.place)}"
        if line.source:
            yield f"          {clean(line.source)}"


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
