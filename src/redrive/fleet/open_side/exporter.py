"""Tells of dead letters and changed retries in streams: follows the store's events from where it last stood.

An event only says which job to look at: what is written is what the store holds now. Once in a while, and whenever a
process begins, both sides are compared, so that nothing that happened while nobody followed is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from redrive.core.commit import try_commit
from redrive.core.documents import Kind
from redrive.core.job import Job, State
from redrive.core.store import Event, Filter
from redrive.engine.loop import Loop
from redrive.engine.paging import pages
from redrive.errors import StoreError, StoreFailed
from redrive.fleet.open_side import telling
from redrive.fleet.open_side.turns import LOOK_SECONDS, DutyTurn
from redrive.stores.open_side.exports import Exports
from redrive.stores.open_side.names import OpenNames
from redrive.stores.replica.log import LogFull, LogUnavailable
from redrive.stores.replica.nats_connection import Connection

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.open_side")
EXPORTED: Final = Kind[str]("exported", str)
"""Under `events`: the cursor up to which events are told."""
CURSOR: Final = "events"
PAUSE: Final = 0.25
AFTER_ERROR: Final = 2.0
KEEP_SECONDS: Final = 10.0
"""So often the cursor is written where nothing had to be told."""
SWEEP_SECONDS: Final = 600.0
FULL_SECONDS: Final = 15.0
"""So often both sides are compared while a stream is full."""
PAGE: Final = 500
MOVES: Final = frozenset(
    {
        "buried",
        "imported",
        "recalled",
        "restored",
        "rerouted",
        "redriven",
        "deferred",
        "resolved",
        "discarded",
        "purged",
    }
)
LIVE: Final = (State.waiting, State.running, State.held)
RETRIES: Final = frozenset({"retried", "redriven"})


class Stopped(Exception):
    """The process ends: what is left to tell is told by the next one."""


class Exporter(Loop):
    """Follows events while it is this process's turn."""

    def __init__(self, core: Core, connection: Connection, names: OpenNames) -> None:
        super().__init__("exporter")
        self._core = core
        self._names = names
        self._turn = DutyTurn(core, connection, names, "exporter")
        self._exports = Exports(connection, names)
        self._cursor: str | None = None
        self._version = 0
        """Of the document that holds the cursor."""
        self._kept_at = 0.0
        self._subjects: dict[str, set[str]] = {}
        """Where dead letters stand in the streams, by their jobs' ids."""
        self._full: dict[str, set[str]] = {}
        """Ids of dead letters that their stream had no room for, by the stream."""
        self._said: set[str] = set()
        """Full streams that were told of. One that has room again is forgotten."""
        self._swept_at = 0.0
        self._retried: set[str] = set()
        """Jobs whose changed retry stood in the stream when both sides were last compared."""

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
        """Begin anew from what is kept."""
        log.warning("dead letters are not told in streams for now: %s; trying again", why)
        self._cursor = None
        self._turn.lost()

    # -- following

    async def _begin(self) -> None:
        kept = await EXPORTED.get(self._core.store, CURSOR)
        self._version = kept.version if kept is not None else 0
        cursor = kept.value if kept is not None else (await self._core.store.events(None))[-1].cursor
        await self._sweep()
        self._cursor = cursor
        await self._keep(force=kept is None)

    async def _follow(self) -> bool:
        """Tell what happened since; whether there was anything."""
        events = await self._core.store.events(self._cursor)
        told = [event for event in events if event.move in MOVES or event.move in RETRIES]
        if told:
            await self._tell(told)
        if events:
            self._cursor = events[-1].cursor
            await self._keep(force=bool(told))
        pause = FULL_SECONDS if self._full else SWEEP_SECONDS
        if self._core.clock.monotonic() - self._swept_at >= pause:
            await self._sweep()
        return bool(events)

    async def _keep(self, *, force: bool) -> None:
        now = self._core.clock.monotonic()
        if self._cursor is None or (not force and now - self._kept_at < KEEP_SECONDS):
            return
        put = EXPORTED.put(CURSOR, self._cursor, self._version)
        if await try_commit(self._core.store, puts=[put], what="what the open side was told was kept") is None:
            self._give_up("another process tells them, too")
            return
        kept = await EXPORTED.get(self._core.store, CURSOR)
        self._version, self._kept_at = (kept.version if kept is not None else 0), now

    async def _tell(self, events: Sequence[Event]) -> None:
        jobs = await self._jobs(dict.fromkeys(event.job_id for event in events))
        for event in events:
            job = jobs.get(event.job_id)
            if event.move in RETRIES and job is not None and telling.changed(job, event):
                await self._tell_retry(job, event)
        await self._settle({event.job_id for event in events if event.move in MOVES}, jobs)

    async def _tell_retry(self, job: Job, event: Event) -> None:
        body = telling.retry_body(job, event, self._exports.room)
        try:
            await self._exports.tell_retry(job, f"{job.id}-{event.cursor}", body, telling.headers_of(job))
        except LogFull as error:
            log.warning("a changed retry of job %s is not told in %s: %s", job.short_id, self._names.retries, error)

    # -- dead letters

    async def _settle(self, ids: Iterable[str], jobs: dict[str, Job]) -> None:
        """Let the streams say of these jobs what the store says."""
        for id in ids:
            if self._stopping.is_set():
                raise Stopped  # what is not told stays behind the cursor
            job = jobs.get(id)
            if job is not None and job.state is State.dead:
                await self._put(job)
            else:
                await self._drop(id, job)

    async def _put(self, job: Job) -> None:
        subject, stream = self._names.dead_letter_subject(job), self._names.dead_letter_stream(job.agent)
        try:
            await self._exports.put(job, telling.dead_letter_body(job, self._exports.room), telling.headers_of(job))
        except LogFull as error:
            self._say_full(stream, job, error)
            return
        for other in self._subjects.get(job.id, set()) - {subject}:
            await self._exports.drop(other, job.version)
        self._subjects[job.id] = {subject}
        self._full.get(stream, set()).discard(job.id)
        if not self._full.get(stream, True):
            del self._full[stream]

    def _say_full(self, stream: str, job: Job, error: LogFull) -> None:
        if stream not in self._said:
            self._said.add(stream)
            log.warning(
                "%s is full (%s): dead letter %s and those after it are only in the store. See to the old ones, or"
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

    # -- comparing both sides

    async def _sweep(self) -> None:
        """Write the dead letters that are not there, and remove those that are not dead letters any more."""
        self._swept_at = self._core.clock.monotonic()
        self._subjects = await self._exports.subjects()
        self._full.clear()
        dead: set[str] = set()
        async for page in pages(self._core.store, Filter(states=(State.dead,)), PAGE):
            dead.update(job.id for job in page)
        for some in _some(dead ^ self._subjects.keys()):
            await self._settle(some, await self._jobs(some))
        self._said &= self._full.keys()
        await self._forget_erased()

    async def _forget_erased(self) -> None:
        """Whoever erases the contents of a job that is done moves nothing: it is noticed here."""
        retried = await self._exports.retried()
        jobs = await self._jobs({*retried, *self._retried})
        self._tell_old(self._retried.difference(retried), jobs)
        self._retried = set(retried)
        for id in retried:
            if id not in jobs or jobs[id].payload is None:
                await self._exports.forget_retries(id)

    def _tell_old(self, left: Collection[str], jobs: Mapping[str, Job]) -> None:
        """Tell of retries that left the stream by age, or for newer ones, before their jobs ended."""
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
        return {job.id: job for some in _some(ids) for job in await self._core.store.get(some)}


def _some(ids: Collection[str]) -> list[list[str]]:
    listed = list(ids)
    return [listed[start : start + PAGE] for start in range(0, len(listed), PAGE)]
