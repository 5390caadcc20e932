"""Publishes dead letters and changed retries in streams, following the store's events from its last position.

An event only names the job: the published state is the store's current one. At start, and from time to time, the store
and the streams are compared, so that nothing is missing that happened while no process followed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core import lifecycle
from redrive.core.commit import try_commit
from redrive.core.documents import Kind
from redrive.core.job import Job, Json, State
from redrive.core.redact import redact
from redrive.core.store import Event, Filter
from redrive.engine.loop import Loop
from redrive.engine.paging import read_pages
from redrive.errors import StoreError, StoreFailed
from redrive.fleet.open_side.turns import LOOK_SECONDS, DutyTurn
from redrive.jobs.records import make_record
from redrive.stores.open_side.exports import Exports
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.log import LogFull, LogUnavailable
from redrive.stores.replica.nats_connection import Connection

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.open_side")
EXPORTED: Final = Kind[str]("exported", str)
"""Keyed by `events`: the cursor up to which events are published."""
CURSOR: Final = "events"
PAUSE: Final = 0.25
AFTER_ERROR: Final = 2.0
KEEP_SECONDS: Final = 10.0
"""Seconds between two writes of the cursor where nothing had to be published."""
SWEEP_SECONDS: Final = 600.0
FULL_SECONDS: Final = 15.0
"""Seconds between two comparisons while a stream is full."""
PAGE: Final = 500
MOVES: Final = frozenset(name for name, move in lifecycle.MOVES.items() if State.dead in (*move.sources, *move.to))
"""Moves that make dead letters, change them, or end them."""
LIVE: Final = (State.waiting, State.running, State.held)
RETRIES: Final = frozenset({"retried", "redriven"})


class Stopped(Exception):
    """The process ends, and the next one publishes the rest."""


class Exporter(Loop):
    """Follows events while this process has the duty."""

    def __init__(self, core: Core, connection: Connection, names: OpenNames) -> None:
        super().__init__("exporter")
        self._core = core
        self._names = names
        self._turn = DutyTurn(core, connection, names, "exporter")
        self._exports = Exports(connection, names)
        self._cursor: str | None = None
        self._version = 0
        """The version of the document that holds the cursor."""
        self._stored_at = 0.0
        self._subjects: dict[str, set[str]] = {}
        """The subjects of the dead letters in the streams, by their jobs' ids."""
        self._full: dict[str, set[str]] = {}
        """Ids of dead letters for which their stream had no room, by the stream."""
        self._logged: set[str] = set()
        """Full streams that were logged. A stream that has room again is forgotten."""
        self._swept_at = 0.0
        self._retried: set[str] = set()
        """Jobs whose changed retry was in the stream at the last comparison."""

    async def tick(self) -> float:
        try:
            if not await self._turn.is_mine():
                self._cursor = None
                return LOOK_SECONDS
            if self._cursor is None:
                await self._begin()
            return 0.0 if await self._follow() else PAUSE
        except Stopped:
            self._cursor = None
            return 0.0
        except (LogUnavailable, StoreError) as error:
            if isinstance(error, StoreFailed):
                raise
            self._give_up(f"{error}")
            return AFTER_ERROR

    def _give_up(self, why: str) -> None:
        """Begin again from the stored cursor."""
        log.warning("dead letters are not published in streams for now: %s; trying again", why)
        self._cursor = None
        self._turn.look_again()

    # -- following

    async def _begin(self) -> None:
        stored = await EXPORTED.get(self._core.store, CURSOR)
        self._version = stored.version if stored is not None else 0
        cursor = stored.value if stored is not None else (await self._core.store.events(None))[-1].cursor
        await self._sweep()
        self._cursor = cursor
        await self._store_cursor(force=stored is None)

    async def _follow(self) -> bool:
        """Publish what happened since the cursor; return whether there was anything."""
        events = await self._core.store.events(self._cursor)
        relevant = [event for event in events if event.move in MOVES or event.move in RETRIES]
        if relevant:
            await self._publish(relevant)
        if events:
            self._cursor = events[-1].cursor
            await self._store_cursor(force=bool(relevant))
        pause = FULL_SECONDS if self._full else SWEEP_SECONDS
        if self._core.clock.monotonic() - self._swept_at >= pause:
            await self._sweep()
        return bool(events)

    async def _store_cursor(self, *, force: bool) -> None:
        now = self._core.clock.monotonic()
        if self._cursor is None or (not force and now - self._stored_at < KEEP_SECONDS):
            return
        put = EXPORTED.put(CURSOR, self._cursor, self._version)
        if await try_commit(self._core.store, puts=[put], what="the cursor of the open side was stored") is None:
            self._give_up("another process publishes them, too")
            return
        stored = await EXPORTED.get(self._core.store, CURSOR)
        self._version, self._stored_at = (stored.version if stored is not None else 0), now

    async def _publish(self, events: Sequence[Event]) -> None:
        jobs = await self._jobs(dict.fromkeys(event.job_id for event in events))
        for event in events:
            job = jobs.get(event.job_id)
            if event.move in RETRIES and job is not None and has_changed(job, event):
                await self._publish_retry(job, event)
        await self._settle({event.job_id for event in events if event.move in MOVES}, jobs)

    async def _publish_retry(self, job: Job, event: Event) -> None:
        body = write_retry(job, event, self._exports.room)
        try:
            await self._exports.publish_retry(job, f"{job.id}-{event.cursor}", body, make_headers(job))
        except LogFull as error:
            log.warning("a changed retry of job %s is not in %s: %s", job.short_id, self._names.retries, error)

    # -- dead letters

    async def _settle(self, ids: Iterable[str], jobs: dict[str, Job]) -> None:
        """Bring the dead letters of these jobs in the streams up to date."""
        for id in ids:
            if self._stopping.is_set():
                raise Stopped  # what is not published stays behind the cursor
            job = jobs.get(id)
            if job is not None and job.state is State.dead:
                await self._put(job)
            else:
                await self._drop(id, job)

    async def _put(self, job: Job) -> None:
        subject, stream = self._names.dead_letter_subject(job), self._names.dead_letter_stream(job.agent)
        try:
            await self._exports.put(job, write_dead_letter(job, self._exports.room), make_headers(job))
        except LogFull as error:
            self._note_full(stream, job, error)
            return
        for other in self._subjects.get(job.id, set()) - {subject}:
            await self._exports.drop(other, job.version)
        self._subjects[job.id] = {subject}
        self._full.get(stream, set()).discard(job.id)
        if not self._full.get(stream, True):
            del self._full[stream]

    def _note_full(self, stream: str, job: Job, error: LogFull) -> None:
        if stream not in self._logged:
            self._logged.add(stream)
            log.warning(
                "%s is full (%s): dead letter %s and those after it are only in the store. Deal with the old ones, or"
                " raise its limit with `redrive fleet init --dlq-limit`",
                stream,
                error,
                job.short_id,
            )
        self._full.setdefault(stream, set()).add(job.id)

    async def _drop(self, id: str, job: Job | None) -> None:
        for subject in self._subjects.pop(id, set()):
            await self._exports.drop(subject, job.version if job is not None else None)
        for missing in self._full.values():
            missing.discard(id)
        if job is not None and job.payload is None:
            await self._exports.forget_retries(id)

    # -- comparing the store and the streams

    async def _sweep(self) -> None:
        """Write missing dead letters, and remove jobs that are not dead letters any more."""
        self._swept_at = self._core.clock.monotonic()
        self._subjects = await self._exports.list_subjects()
        self._full.clear()
        dead: set[str] = set()
        async for page in read_pages(self._core.store, Filter(states=(State.dead,)), PAGE):
            dead.update(job.id for job in page)
        for ids in _chunks(dead ^ self._subjects.keys()):
            await self._settle(ids, await self._jobs(ids))
        self._logged &= self._full.keys()
        await self._forget_erased()

    async def _forget_erased(self) -> None:
        """Remove the retries of jobs whose contents were erased, because an erase moves no job."""
        retried = await self._exports.list_retried()
        jobs = await self._jobs({*retried, *self._retried})
        self._warn_of_old(self._retried.difference(retried), jobs)
        self._retried = set(retried)
        for id in retried:
            if id not in jobs or jobs[id].payload is None:
                await self._exports.forget_retries(id)

    def _warn_of_old(self, left: Collection[str], jobs: Mapping[str, Job]) -> None:
        """Log the retries that left the stream by age, or for newer ones, before their jobs ended."""
        for id in left:
            if (job := jobs.get(id)) is not None and job.state in LIVE:
                log.warning(
                    "the retry of job %s (%s) left %s and has not ended: it is %s. `redrive status %s` tells why",
                    job.short_id,
                    job.task,
                    self._names.retries,
                    job.state.value,
                    job.short_id,
                )

    async def _jobs(self, ids: Collection[str]) -> dict[str, Job]:
        return {job.id: job for chunk in _chunks(ids) for job in await self._core.store.get(chunk)}


def _chunks(ids: Collection[str]) -> list[list[str]]:
    listed = list(ids)
    return [listed[start : start + PAGE] for start in range(0, len(listed), PAGE)]


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
