"""Validates enqueue calls and inserts the jobs: in the store, in the spool, or in a transaction of the caller."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from redrive.core.documents import BLOB
from redrive.core.job import Job, Reason, State, new_id
from redrive.core.payload import blob_document, check_kept, encode
from redrive.core.store import Inserted, Put
from redrive.engine import tracing
from redrive.engine.bus import BusEvent
from redrive.engine.context import session_of
from redrive.engine.inputs import preflight
from redrive.engine.registry import Handler
from redrive.errors import (
    CommitUnknown,
    IllegalMove,
    InvalidInput,
    InvalidOption,
    JobError,
    KeyReused,
    RedriveError,
    StoreError,
    StoreFailed,
)
from redrive.failures.capture import capture
from redrive.http.policy import HTTP_TASK
from redrive.jobs.core import Core, find_job
from redrive.jobs.dead_letter import dead_letter_of_taken_key, move_documents
from redrive.jobs.job_options import EnqueuePlan, Fallback, Prepared, make_job, make_plan, merge_fallbacks
from redrive.jobs.spool import Spool, SpoolEntry
from redrive.jobs.tasks import Item, JobAccess, JobHandle, Many
from redrive.retries.preflight import FEW_IMAGES, NotReady, surely_fits

log = logging.getLogger("redrive")

Payload = Mapping[str, Any]
PENDING: Final = (
    "The job exists once your transaction is committed and its row was moved."
    " Whether its key was known before cannot be said until then."
)
SESSION_VARIABLE: Final = "REDRIVE_SESSION_ID"
"""Names the session of jobs that are enqueued neither with one nor inside a task that has one."""
CHUNK: Final = 1_000
ENQUEUED_AGAIN: Final = "enqueued again with the same key"


class _EnqueueTally:
    """What an enqueue_many has done with its items so far."""

    def __init__(self, items: int) -> None:
        self.ids: list[str | None] = [None] * items
        self.refused: dict[int, str] = {}
        self.dead: dict[str, list[int]] = {}
        """Dead jobs that items want to run again, and the indexes of those items."""
        self.duplicates = 0
        self.spooled = 0
        self.late: Exception | None = None
        """Why the store was too slow for a part of the items."""


class DeadLetterAccess(Protocol):
    """What enqueueing needs of `rd.dead`."""

    async def take_in(self, job: Job) -> Job: ...
    async def revive(self, id: str, *, who: str, why: str) -> Job: ...


class CallerTransactions(Protocol):
    """Writes jobs into a transaction of the caller: what `within=` needs."""

    async def enqueue(self, task: str, payload: Payload, options: Payload, within: Any) -> Prepared: ...
    def enqueue_now(self, task: str, payload: Payload, options: Payload, within: Any) -> Prepared: ...
    async def enqueue_many(self, task: str, items: Sequence[Any], options: Payload, within: Any) -> Many: ...


class Enqueuer:
    """Validates enqueue calls and inserts the jobs."""

    def __init__(self, core: Core, spool: Spool, dead: DeadLetterAccess | None = None) -> None:
        self._core = core
        self._holder = core.holder
        self._registry = core.registry
        self.jobs: JobAccess
        """`rd.jobs`, by which handles follow their jobs; set after this object is made."""
        self.transactions: CallerTransactions
        """Writes jobs with `within=`; set after this object is made."""
        self.spool = spool
        self._dead = dead
        self._warned: set[str] = set()
        self._late: set[asyncio.Task[list[Inserted]]] = set()
        """Writes that took too long; kept here, because an event loop refers to its tasks only weakly."""
        self._plans: dict[str, EnqueuePlan] = {}
        """Plans of known tasks without options, as most jobs are."""

    # -- preparing: pure but for the clock

    def plan(self, task: str, options: Mapping[str, Any], reason: Reason = "direct") -> EnqueuePlan:
        """Check everything that does not depend on the payload, once for all jobs that are alike."""
        session = session_of.get()
        if session is None:
            session = os.environ.get(SESSION_VARIABLE)
        if session and options.get("session_id") is None:
            options = {**options, "session_id": session}
        handler = self._registry.handlers.get(task) if isinstance(task, str) else None  # type: ignore[redundant-expr]
        if options or reason != "direct" or handler is None:
            return self._make_plan(task, options, reason)
        plan = self._plans.get(task)
        if plan is None or plan.handler is not handler:
            plan = self._plans[task] = self._make_plan(task, options, reason)
        return plan

    def _make_plan(self, task: str, options: Mapping[str, Any], reason: Reason) -> EnqueuePlan:
        plan = make_plan(self._registry, task, options, reason)
        if plan.handler is None and task not in self._warned:
            self._warned.add(task)
            log.warning("task %r is not known in this process; its jobs wait for a worker that knows it", task)
        return plan

    def add_key(self, task: str, payload: object, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the key that the task makes of its payload, where the caller gives none: the same work is one job."""
        handler = self._registry.handlers.get(task) if isinstance(task, str) else None  # type: ignore[redundant-expr]
        if handler is None or handler.key_template is None or options.get("idempotency_key") is not None:
            return options
        key = self.make_key(handler, payload) if isinstance(payload, Mapping) else None
        return options if key is None else {**options, "idempotency_key": key}

    def make_key(self, handler: Handler, payload: Mapping[str, Any]) -> str | None:
        """Make a key of the values that the task will see: of an order's id, however the caller wrote the order."""
        if handler.key_template is None:
            return None
        encoded = encode(payload, limit=self._core.settings.payload_limit)
        seen = payload if encoded.blobs else handler.signature.arguments(encoded.text)
        try:
            return handler.key_for(seen)
        except InvalidOption:
            return handler.key_for(payload)  # a value without annotation is still as the caller gave it only here

    def prepare(self, plan: EnqueuePlan, payload: Payload) -> Prepared:
        """Check the payload and make the job. Writes nothing."""
        encoded = encode(payload, limit=self._holder.settings.payload_limit)
        text, blobs, plain = encoded
        if plan.task == HTTP_TASK:
            from redrive.http.delivery import check_request

            check_request(payload, self._core.settings.delivery)
        if plan.handler is not None and not blobs:
            plan.handler.signature.arguments(text)  # refuse now what the worker could not use
        if not plain:
            check_kept(payload, encoded, plan.handler.signature if plan.handler is not None else None)
        now = self._holder.clock.now()
        id = new_id(now, random.getrandbits(74))
        if plan.fields:
            job = make_job(plan, id, now, text)
        else:  # most jobs have no options, and no other fields than these
            job = Job(id, plan.queue, plan.task, None, State.waiting, 2, now, 1, now, now, text, 0, 0, plan.allowed)
        documents = [BLOB.put(f"{job.id}/{n}", blob_document(blob)) for n, blob in enumerate(blobs)] if blobs else []
        small = len(text) <= FEW_IMAGES and len(text) <= self._registry.short and '"$blob"' not in text
        return Prepared(job, documents, plan.on_duplicate, plan.fallback, () if small else self._warn_unfit(job, plan))

    def _warn_unfit(self, job: Job, plan: EnqueuePlan) -> tuple[str, ...]:
        """List why the worker would refuse the job, and log it while the caller is still there."""
        if surely_fits(job.payload or "", self._registry.short):
            return ()
        verdict = preflight(job, plan.handler, self._registry, self._core.clock.now())
        warnings = (verdict.why, verdict.recommendation) if isinstance(verdict, NotReady) else verdict
        for warning in warnings:
            log.warning("job %s (%s): %s", job.short_id, job.task, warning)
        return warnings

    # -- handing in

    async def accept(self, task: str, payload: Payload, options: Payload) -> JobHandle[Any]:
        """Accept one job: in the store, by its fallback, or in the transaction that `within` names."""
        if "within" in options:
            options, within = split_within(options)
            if within is not None:
                return self._pending(await self.transactions.enqueue(task, payload, options, within))
        plan = self.plan(task, options)
        if plan.handler is not None and plan.handler.key_template is not None:
            plan = self.plan(task, self.add_key(task, payload, options))
        prepared = self.prepare(plan, payload)
        try:
            job, duplicate, spooled = await self.insert_one(prepared)
        except SpoolUnusable as unusable:
            await self.call_directly(prepared, payload, unusable)
            return JobHandle(self.jobs, prepared.job, direct=True)
        if duplicate and wants_back(prepared, job):
            job = await self.bring_back(job.id)
        return JobHandle(self.jobs, job, duplicate=duplicate, spooled=spooled, warnings=prepared.warnings)

    def accept_now(self, task: str, payload: Payload, options: Payload) -> JobHandle[Any] | None:
        """Enqueue with `within=` in the thread of the caller, which owns the connection. None without `within=`."""
        options, within = split_within(options)
        if within is None:
            return None
        return self._pending(self.transactions.enqueue_now(task, payload, options, within))

    def _pending(self, prepared: Prepared) -> JobHandle[Any]:
        return JobHandle(self.jobs, prepared.job, pending=True, warnings=(*prepared.warnings, PENDING))

    async def bring_back(self, job_id: str, who: str = "enqueue", why: str = ENQUEUED_AGAIN) -> Job:
        """Send a dead job back to its queue, unless its effect may have landed: no person has checked that."""
        if self._dead is None:
            raise IllegalMove(f"job {job_id} cannot be brought back from here", job_id=job_id)
        try:
            return await self._dead.revive(job_id, who=who, why=why)
        except IllegalMove:
            job = await find_job(self._core.store, job_id)
            if job.state is State.dead:
                raise
            return job  # another caller was faster

    async def insert_one(self, prepared: Prepared) -> tuple[Job, bool, bool]:
        """Make one job durable: (job, duplicate, spooled). Spools only where the job has a fallback."""
        fallback = prepared.fallback
        insert = self._insert_soon if fallback.way else self.insert
        try:
            (inserted,) = await insert([prepared.job], prepared.documents, fallback)
        except (StoreError, OSError) as error:
            if not fallback.way:
                raise
            log.warning("the store cannot take job %s, trying the spool: %s", prepared.job.short_id, error)
            self._publish("fallback", prepared.job, {"to": "spool", "error": str(error)})
            try:
                self.spool.append(_make_entry(prepared))
            except OSError as spool_error:
                if isinstance(error, CommitUnknown | StoreFailed):
                    raise error from spool_error  # it may be in the store: a direct call could do it twice
                raise SpoolUnusable(error, spool_error) from spool_error
            return prepared.job, False, True
        if inserted.duplicate:
            self._note_duplicate(inserted.job, prepared)
        return inserted.job, inserted.duplicate, False

    async def _insert_soon(self, jobs: Sequence[Job], documents: Sequence[Put], fallback: Fallback) -> list[Inserted]:
        """Insert jobs within the time of their fallback, also where another process locks the file.

        A write that takes longer cannot be taken back and goes on. It writes the same jobs, whose ids exist already.
        """
        inserting = asyncio.create_task(self.insert(jobs, documents))
        try:
            done, _ = await asyncio.wait({inserting}, timeout=fallback.after)
        finally:  # also where the caller is cancelled
            if not inserting.done():
                self._late.add(inserting)
                inserting.add_done_callback(self._log_late)
        if done:
            return inserting.result()
        raise CommitUnknown(f"the store has not taken it within {fallback.after:g} s: is the file locked?")

    def cancel_late(self) -> None:
        """Cancel the writes whose callers went on without them, so that closing the store does not wait for a lock."""
        for inserting in list(self._late):
            loop = inserting.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(inserting.cancel)

    def _log_late(self, inserting: asyncio.Task[list[Inserted]]) -> None:
        """Log the outcome of a write whose caller went on without it."""
        self._late.discard(inserting)
        if inserting.cancelled():
            log.warning("a late write was given up when the store was closed; its jobs are in the spool")
        elif error := inserting.exception():
            log.warning("a late write failed; its jobs are in the spool: %s", error)
        else:
            log.warning("the store took %d jobs late; in the spool they are the same jobs", len(inserting.result()))

    async def insert(
        self, jobs: Sequence[Job], documents: Sequence[Put], fallback: Fallback | None = None
    ) -> list[Inserted]:
        """Insert jobs; where the program traces, as one span whose context the jobs keep."""
        tracer = tracing.get_tracer() if tracing.API in sys.modules else None
        if tracer is None:
            store = self._holder.store
            return await (self._holder.make() if store is None else store).insert(jobs, documents)
        with tracer.sending(jobs) as sent:
            inserted = await self._core.store.insert(sent.jobs, documents)
            sent.accepted(inserted)
            return inserted

    async def call_directly(self, prepared: Prepared, payload: Mapping[str, Any], unusable: SpoolUnusable) -> None:
        """Run the work here and now, as the last step of its fallback."""
        job, handler = prepared.job, self._registry.handlers.get(prepared.job.task)
        if not callable(prepared.fallback.way) and (handler is None or handler.direct is None):
            log.warning("job %s was not accepted and cannot be called directly: %s", job.short_id, unusable)
            raise unusable.store
        log.warning("job %s: neither store nor spool (%s): calling directly", job.short_id, unusable)
        self._publish("fallback", job, {"to": "direct", "error": str(unusable)})
        result: Any = None
        if callable(prepared.fallback.way):
            result = prepared.fallback.way(**payload)
        elif handler is not None and handler.direct is not None:
            result = handler.direct(job, payload)
        if inspect.isawaitable(result):
            async with asyncio.timeout(handler.timeout if handler else None):
                await result

    def _note_duplicate(self, job: Job, prepared: Prepared) -> None:
        """Refuse a key that stands for other work; publish a repeat, and warn where it meets a dead job."""
        if self._is_other_work(job, prepared.job):
            raise _explain_reused_key(job, prepared.job)
        self._publish("duplicate", job)
        if prepared.on_duplicate == "raise":
            raise KeyReused(field="idempotency_key", problem=f"{job.key!r} is taken by job {job.id} ({job.state})")
        self._warn_of_ended(job)

    def _is_other_work(self, known: Job, given: Job) -> bool:
        if given.payload_hash is None or given.payload_hash == known.payload_hash:
            return False
        handler = self._registry.handlers.get(given.task) if known.task == given.task else None
        return handler is None or not handler.signature.same(known.payload, given.payload)

    def _warn_of_ended(self, job: Job) -> None:
        """Warn of a repeated enqueue that runs nothing: its caller may think that the job is on its way."""
        if job.state in (State.dead, State.held, State.discarded):
            log.warning(
                "job %s with key %r is %s (%s): the repeated enqueue does not run it again; see `redrive status %s`",
                job.short_id,
                job.key,
                job.state,
                job.because,
                job.short_id,
            )

    def _publish(self, type: str, job: Job, data: dict[str, Any] | None = None) -> None:
        self._core.bus.publish(BusEvent(type, job.queue, job.created_at, job.id, job.task, 0, data))

    async def enqueue_many(self, task: str, items: Iterable[Any], options: Payload) -> Many:
        """Accept or refuse each item, a thousand per write, and bring back dead jobs whose items ask for that."""
        if not isinstance(items, Iterable):
            raise InvalidInput(field="items", problem=f"{items!r:.80} is not a list of payloads")
        shared, within = split_within(options)
        items = list(items)
        if within is not None:
            return await self.transactions.enqueue_many(task, items, shared, within)
        outcome = _EnqueueTally(len(items))
        under_way: tuple[dict[int, Prepared], asyncio.Task[Sequence[Inserted | None]]] | None = None
        for start in range(0, len(items), CHUNK):
            indexes = range(start, min(start + CHUNK, len(items)))
            ready = self._prepare_some(task, indexes, items, shared, outcome.refused)
            if under_way is not None:
                self._count(outcome, under_way[0], await under_way[1])
            under_way = ready, asyncio.create_task(self._insert_some(ready, outcome))
            under_way[1].add_done_callback(_log_failed)
            await asyncio.sleep(0)  # the store works on these while the next are prepared
        if under_way is not None:
            self._count(outcome, under_way[0], await under_way[1])
        await self._bring_back(outcome)
        return Many(outcome.ids, outcome.duplicates, outcome.refused, outcome.spooled)

    async def _bring_back(self, outcome: _EnqueueTally) -> None:
        """Bring back the dead jobs that items ask for; refuses the items of those that must stay dead."""
        for job_id, indexes in outcome.dead.items():
            try:
                await self.bring_back(job_id)
            except JobError as error:
                outcome.duplicates -= len(indexes)
                for index in indexes:
                    outcome.ids[index], outcome.refused[index] = None, str(error)

    def _count(self, outcome: _EnqueueTally, ready: dict[int, Prepared], answers: Sequence[Inserted | None]) -> None:
        """Note the outcome of each item of one write."""
        for (index, prepared), inserted in zip(ready.items(), answers, strict=True):
            if inserted is None:
                outcome.spooled += 1
                outcome.ids[index] = prepared.job.id
                continue
            try:
                if inserted.duplicate:
                    self._note_duplicate(inserted.job, prepared)
            except InvalidInput as error:
                outcome.refused[index] = str(error)
                continue
            outcome.ids[index] = inserted.job.id
            outcome.duplicates += inserted.duplicate
            if inserted.duplicate and wants_back(prepared, inserted.job):
                outcome.dead.setdefault(inserted.job.id, []).append(index)

    def _prepare_some(
        self, task: str, indexes: range, items: Sequence[Any], shared: Mapping[str, Any], refused: dict[int, str]
    ) -> dict[int, Prepared]:
        ready: dict[int, Prepared] = {}
        alike = self.plan(task, shared)
        for index in indexes:
            item = items[index]
            try:
                payload, own = (item.payload, item.options) if isinstance(item, Item) else (item, {})
                options = self.add_key(task, payload, {**shared, **own} if own else shared)
                ready[index] = self.prepare(alike if options is shared else self.plan(task, options), payload)
            except InvalidInput as error:
                refused[index] = str(error)
        return ready

    def prepare_all(
        self, task: str, items: Sequence[Any], shared: Mapping[str, Any]
    ) -> tuple[dict[int, Prepared], dict[int, str]]:
        """Prepare the items that may be inserted, and say why the others may not."""
        refused: dict[int, str] = {}
        return self._prepare_some(task, range(len(items)), items, shared, refused), refused

    def new_id(self) -> str:
        return new_id(self._core.clock.now(), random.getrandbits(74))

    async def _insert_some(self, ready: Mapping[int, Prepared], outcome: _EnqueueTally) -> Sequence[Inserted | None]:
        """Insert all items in one write; where that fails and every item has a fallback, spool them (None).

        Once the store was too slow, later writes of the call go to the spool at once: its caller waits for one limit.
        """
        if not ready:  # every item was refused
            return []
        fallback = merge_fallbacks(ready.values())
        documents = [put for prepared in ready.values() for put in prepared.documents]
        try:
            if outcome.late is not None and fallback.way:
                raise outcome.late
            insert = self._insert_soon if fallback.way else self.insert
            return await insert([prepared.job for prepared in ready.values()], documents, fallback)
        except (StoreError, OSError) as error:
            if not fallback.way:
                raise
            outcome.late = error if isinstance(error, CommitUnknown) else None
            log.warning("the store cannot take %d jobs, trying the spool: %s", len(ready), error)
            try:
                self.spool.append(*map(_make_entry, ready.values()))
            except OSError as spool_error:
                log.warning("the spool cannot take them either: %s", spool_error)
                raise error from spool_error
            return [None] * len(ready)

    async def drain_spool(self) -> None:
        """Move what was spooled into the store."""
        moved = await self.spool.drain(self.take_entry)
        if moved:
            log.warning("%d jobs that waited in the spool are in the store", moved)

    async def take_entry(self, entry: SpoolEntry) -> None:
        """Insert a job that was accepted in the spool or in a transaction. Problems are logged: no caller waits."""
        job = entry.job
        (inserted,) = await self._core.store.insert([job], entry.documents)
        dead = job.state is State.dead
        if not inserted.duplicate:
            return
        if dead and self._dead is not None:
            await self._dead.take_in(job)
        elif self._is_other_work(inserted.job, job):
            await self._insert_dead_letter(entry, inserted.job)
        elif wants_back(entry, inserted.job):
            await self._redrive_spooled(inserted.job)
        else:
            self._publish("duplicate", inserted.job)
            self._warn_of_ended(inserted.job)

    async def _redrive_spooled(self, known: Job) -> None:
        """Bring back the dead job of a spooled entry. Where it must stay dead, the rest of the spool does not wait."""
        try:
            await self.bring_back(known.id)
        except JobError as error:
            log.warning("job %s (%s) was asked for again and stays dead: %s", known.short_id, known.task, error)

    async def _insert_dead_letter(self, entry: SpoolEntry, known: Job) -> None:
        """Insert a spooled job whose key stands for other work by now, as a dead letter without that key."""
        dead = dead_letter_of_taken_key(
            entry.job, capture(_explain_reused_key(known, entry.job)), self._core.clock.now()
        )
        (inserted,) = await self._core.store.insert([dead], move_documents(dead.id, entry.documents))
        if not inserted.duplicate:
            log.warning("spooled job %s (%s) is a dead letter: %s", dead.short_id, dead.task, dead.error)


def split_within(options: Payload) -> tuple[dict[str, Any], Any]:
    """Split the options of a job from the transaction that the job is written into."""
    return {name: value for name, value in options.items() if name != "within"}, options.get("within")


def _log_failed(inserting: asyncio.Task[Any]) -> None:
    """Log that a write failed: a caller that was cancelled does not hear of it."""
    if not inserting.cancelled() and (error := inserting.exception()) is not None:
        log.warning("jobs of a call with many items were not accepted: %s", error)


def wants_back(given: Prepared | SpoolEntry, known: Job) -> bool:
    """Whether the caller wants the known job, which is dead, to run again."""
    return given.on_duplicate == "redrive" and known.state is State.dead


def _make_entry(prepared: Prepared) -> SpoolEntry:
    return SpoolEntry(prepared.job, prepared.documents, prepared.on_duplicate)


def _explain_reused_key(known: Job, given: Job) -> KeyReused:
    """Make the error that says what differs. The same payload for another task is other work."""
    if known.task != given.task:
        what, mend = f"another task, {known.task!r},", "use a new key"
    else:
        what, mend = "another payload", "use a new key, or send the same payload"
    problem = f"{known.key!r} already stands for {what} in queue {known.queue!r} (job {known.id}); {mend}"
    return KeyReused(field="idempotency_key", problem=problem)


class SpoolUnusable(RedriveError):
    """Neither the store nor the spool took a job: only the direct call is left."""

    def __init__(self, store: Exception, spool: Exception) -> None:
        super().__init__(f"store: {store}; spool: {spool}")
        self.store = store
