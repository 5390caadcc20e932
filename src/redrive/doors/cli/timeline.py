"""Prints a job's timeline: its facts, its contents, every attempt and move, and what to do next."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from redrive.api.redrive import Redrive
from redrive.core.job import Job, iso, legible
from redrive.core.redact import redact
from redrive.core.store import Event
from redrive.core.words import span
from redrive.deadletters.verbs import Note
from redrive.doors.cli import output
from redrive.doors.cli.text import ago, clean, due, one_line
from redrive.reports.timeline import Story, TimelineEntry, tell, usage_in_words
from redrive.reports.traceback_view import Raised, trace_link


class JobRecord(NamedTuple):
    """Everything that is shown of one job."""

    job: Job
    moves: Sequence[Event]
    notes: Sequence[Note]
    trace_url: str | None


async def read_timeline(rd: Redrive, id: str) -> JobRecord:
    job = await rd.status(id)
    link = trace_link(rd.settings.trace_url, job)
    return JobRecord(job, await rd.jobs.story(job.id), await rd.dead.notes(job.id), link)


def print_timeline(record: JobRecord, *, secrets: bool) -> None:
    """Print one job: its facts, contents, timeline and what can be done next."""
    output.print_answer(lambda: _record_json(record, secrets=secrets), _record_lines(record, secrets=secrets))


def _record_lines(record: JobRecord, *, secrets: bool) -> Iterator[str]:
    story = tell(record.job, record.moves, time.time(), record.notes)
    yield from _head(story, record.trace_url)
    for name, text in (("payload", record.job.payload), ("result", record.job.result_json)):
        if text is not None:
            yield output.Verbatim(f"{name}\n{_indent_json(text, secrets=secrets)}")
    yield from _entries(story)
    yield from _next_steps(story)


def _record_json(record: JobRecord, *, secrets: bool) -> dict[str, Any]:
    notes = [note.public() for note in record.notes]
    body = output.job_json(record.job, secrets=secrets) | {"moves": [_move_json(move) for move in record.moves]}
    return body | {"notes": notes if secrets else redact(notes), "trace_url": record.trace_url}


def _move_json(move: Event) -> dict[str, Any]:
    return {"move": move.move, "at": iso(move.at), "state": str(move.state), "who": move.who, "why": move.why}


def _head(story: Story, trace_url: str | None) -> Iterator[str]:
    job = story.job
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
        "waits for": job.held_for if job.state == "held" else None,  # a dead letter keeps what it calls there
        "agent": job.agent,
        "model": job.model,
        "trace": trace_url,
        "spent": usage_in_words(story.spent) if story.spent is not None and len(job.history) > 1 else None,
    }
    yield f"job {job.short_id}"
    yield from output.fact_lines(facts)


def _state(job: Job) -> str:
    lane = f", {job.lane} lane" if job.lane and job.state == "dead" else ""
    return f"{job.state}: {job.because}{lane}" if job.because else str(job.state)


def _indent_json(text: str, *, secrets: bool) -> str:
    value = legible(text)
    indented = json.dumps(value if secrets else redact(value), indent=2, ensure_ascii=False)
    return "\n".join(f"  {line}" for line in output.escape_controls(indented).splitlines())


def _entries(story: Story) -> Iterator[str]:
    """Format attempts and moves in order. That the job was enqueued is in its facts."""
    shown = [entry for entry in story.entries if entry.kind != "born" or entry.who or entry.why]
    if shown:
        yield "timeline"
    trace: tuple[Raised, ...] = ()
    for entry in shown:
        if entry.kind == "attempt":
            yield from _attempt_lines(entry, same=entry.trace == trace)
        else:
            yield output.timeline_line(entry.at, entry.title, entry.who, entry.why)
        trace = entry.trace or trace


def _attempt_lines(entry: TimelineEntry, *, same: bool) -> Iterator[str]:
    """Format one run. A traceback that is the same as the one before is not repeated."""
    took = f" after {span(entry.seconds)}" if entry.seconds is not None else ""
    worker = f", {clean(entry.worker)}" if entry.worker else ""
    yield f"  run {entry.run}: {entry.title}{took}, {iso(entry.at)}{worker}"
    for fact in entry.facts:
        yield f"    {fact.name:<9} {one_line(fact.text)}"
    if entry.trace and not same:
        yield "    traceback, innermost first; > marks your code"
        for raised in entry.trace:
            yield from _traceback_lines(raised)


def _traceback_lines(raised: Raised) -> Iterator[str]:
    if raised.is_cause:
        yield f"      caused by {one_line(raised.summary)}"
    for line in raised.lines:
        yield f"      {'>' if line.yours else ' '} {clean(line.place)}"
        if line.source:
            yield f"          {clean(line.source)}"


def _next_steps(story: Story) -> Iterator[str]:
    yield "what next"
    job = story.job
    if job.recommendation:
        yield f"  {clean(job.recommendation)}"
    if expected := _expectation(job):
        yield f"  {clean(expected)}"
    for choice in story.choices:
        yield f"  {clean(f'{choice.when}: {choice.command}')}"


def _expectation(job: Job) -> str | None:
    """Describe what happens to a job if a person does nothing."""
    if job.state == "held" and job.because == "blocked":
        return "It goes on when the steps before it are done: redrive workflows"
    starts = due(job.run_at)
    starts = f"Was {starts}; runs" if starts.startswith("due") else starts.capitalize()
    return {
        "waiting": f"{starts} as soon as a worker that knows {job.task!r} is free: redrive worker APP",
        "running": f"Started {ago(job.started_at)} on {job.worker}.",
        "done": "Nothing: it is done.",
        "purged": "Nothing: its contents are gone for good; its key stays remembered.",
    }.get(job.state)
