"""Writes a job for the streams: the record of exports, with the version of the job."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.job import Job, Json
from redrive.core.redact import redact
from redrive.core.store import Event
from redrive.jobs.records import make_record

_encode: Final = msgspec.json.Encoder().encode


def write_dead_letter(job: Job, room: int) -> bytes:
    """Write a dead letter. A job too large for a message leaves its payload in the store, and says so."""
    return _fit(make_record(job) | {"version": job.version}, room)


def write_retry(job: Job, event: Event, room: int) -> bytes:
    """Write a retry that changed something: what the next attempt runs with."""
    record = make_record(job) | {"version": job.version, "move": event.move, "run": event.run}
    record["changes"] = redact(changes_after(job, event))
    if event.who is not None:
        record["who"] = event.who
    return _fit(record, room)


def _fit(record: dict[str, Json], room: int) -> bytes:
    body = _encode(record)
    if len(body) <= room:
        return body
    return _encode(record | {"payload": None, "changes": None, "left_out": "payload: larger than a message may be"})


def make_headers(job: Job) -> dict[str, str]:
    """Make the headers by which readers choose, and add those that the task came with."""
    headers = {name: value for name, value in job.readable_options.headers.items() if value.isascii()}
    own = {"Redrive-Id": job.id, "Redrive-Task": job.task, "Redrive-Queue": job.queue, "Redrive-Agent": job.agent}
    return headers | {name: value for name, value in own.items() if value is not None and value.isascii()}


def has_changed(job: Job, event: Event) -> bool:
    """Whether the move changed what the next attempt runs with."""
    after = changes_after(job, event)
    return bool(after) and after != changes_of_run(job, event.run)


def changes_after(job: Job, event: Event) -> Json:
    """Return what the attempt after the move ran with; what the job has now, where there was no later attempt."""
    later = [attempt.run for attempt in job.history if attempt.run > event.run]
    return changes_of_run(job, min(later)) if later else job.changes


def changes_of_run(job: Job, run: int) -> Json:
    return next((attempt.changes for attempt in job.history if attempt.run == run and attempt.changes), None)
