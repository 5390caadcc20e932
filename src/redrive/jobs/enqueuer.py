"""Validates enqueue calls and inserts the jobs: in the store, in the spool, or in a transaction of the caller."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from redrive.core.checks import KEY_LIMIT, check_name, check_range, optional_name
from redrive.core.documents import BLOB
from redrive.core.job import (
    Job,
    Reason,
    State,
    hash_payload,
    keyed_id,
    new_id,
)
from redrive.core.option_hints import hint_for_job
from redrive.core.payload import blob_document, check_kept, encode
from redrive.core.policy import MOST_ATTEMPTS
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
from redrive.jobs.core import Core
from redrive.jobs.dead_letter import dead_letter_of_taken_key, move_documents
from redrive.jobs.job_options import OPTIONS, read_duration, read_priority, read_run_at, write_options
from redrive.jobs.lookup import find_job
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
"""Whose session it is where nobody says: that of the task that runs here, else of this process."""
CHUNK: Final = 1_000
ENQUEUED_AGAIN: Final = "enqueued again with the same key"


class Fallback(NamedTuple):
    """What is done where the store cannot take a job."""

    way: Any
    """Whether there is one at all; or the function that does the work where the spool cannot take the job either."""
    after: float
    """Seconds that the store has."""


class EnqueuePlan(NamedTuple):
    """What all jobs of one task and one set of options have in common."""

    task: str
    queue: str
    handler: Handler | None
    options: Mapping[str, Any]
    allowed: int | None
    said: dict[str, Any]
    on_duplicate: str
    fallback: Fallback


class Prepared(msgspec.Struct, frozen=True):
    """A job that may be inserted, with what goes beside it."""

    job: Job
    documents: list[Put]
    on_duplicate: str
    fallback: Fallback
    warnings: tuple[str, ...] = ()
    """What preflight thinks of it: advice, for the worker decides."""


class _EnqueueTally:
    """What has become of an enqueue_many so far."""

    def __init__(self, items: int) -> None:
        self.ids: list[str | None] = [None] * items
        self.refused: dict[int, str] = {}
        self.dead: dict[str, list[int]] = {}
        """Dead jobs that were asked for again, each with the items that did."""
        self.duplicates = 0
        self.spooled = 0
        self.late: Exception | None = None
        """Why the store was too slow for a part of them."""


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
        """What the handles follow their jobs with: `rd.jobs`, which is made after this."""
        self.transactions: CallerTransactions
        """What `within=` is written with; made after this, too."""
        self.spool = spool
        self._dead = dead
        self._warned: set[str] = set()
        self._late: set[asyncio.Task[list[Inserted]]] = set()
        """Writes that took too long. (An event loop keeps tasks only weakly.)"""
        self._plans: dict[str, EnqueuePlan] = {}
        """Of tasks that are known here, without options: most jobs are like that."""

    # -- preparing: pure but for the clock

    def plan(self, task: str, options: Mapping[str, Any], reason: Reason = "direct") -> EnqueuePlan:
        """Checks everything that does not depend on the payload, once for all jobs that are alike."""
        session = session_of.get()
        if session is None:
            session = os.environ.get(SESSION_VARIABLE)
        if session and options.get("session_id") is None:
            options = {**options, "session_id": session}
        handler = self._registry.handlers.get(task) if isinstance(task, str) else None  # type: ignore[redundant-expr]
        if options or reason != "direct" or handler is None:
            return self._planned(task, options, reason, handler)
        plan = self._plans.get(task)
        if plan is None or plan.handler is not handler:
            plan = self._plans[task] = self._planned(task, options, reason, handler)
        return plan

    def _planned(self, task: str, options: Mapping[str, Any], reason: Reason, handler: Handler | None) -> EnqueuePlan:
        check_name("task", task)
        if unknown := options.keys() - OPTIONS:
            hint = hint_for_job(min(unknown), OPTIONS | {"within"})
            raise InvalidOption(field=min(unknown), problem=f"is not an option of a job: {hint}")
        queue = options["queue"] if options.get("queue") is not None else handler.queue if handler else task
        check_name("queue", queue)
        if handler is None and task not in self._warned:
            self._warned.add(task)
            log.warning("task %r is not known in this process; its jobs wait for a worker that knows it", task)
        return EnqueuePlan(
            task,
            queue,
            handler,
            options,
            self._allowed(options, queue, task, reason),
            self._said(options, reason),
            options.get("on_duplicate") or "return",
            self._fallback(options, queue, task, reason),
        )

    def _fallback(self, options: Mapping[str, Any], queue: str, task: str, reason: Reason) -> Fallback:
        """The call's own word, else the task's, the queue's, the instance's."""
        agent = options.get("agent") is not None
        policy = self._registry.policy(queue, task, reason, agent=agent, options=None, job=None)
        way, after = options.get("fallback"), read_duration(options, "fallback_after")
        return Fallback(policy.fallback if way is None else way, after or policy.fallback_after or 0.0)

    def _said(self, options: Mapping[str, Any], reason: Reason) -> dict[str, Any]:
        """The job's fields that the options name, and why it is here."""
        if not options and reason == "direct":
            return {}
        return {
            "agent": optional_name("agent", options.get("agent")),
            "priority": read_priority(options.get("priority")),
            "key": optional_name("idempotency_key", options.get("idempotency_key"), KEY_LIMIT),
            "session_id": optional_name("session_id", options.get("session_id")),
            "model": optional_name("model", options.get("model")),
            "options_json": write_options(options),
            "reason": reason,
        }

    def keyed(self, task: str, payload: object, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds the key that the task makes of its payload, where the caller gives none: the same work is one job."""
        handler = self._registry.handlers.get(task) if isinstance(task, str) else None  # type: ignore[redundant-expr]
        if handler is None or handler.key_template is None or options.get("idempotency_key") is not None:
            return options
        key = self.key_of(handler, payload) if isinstance(payload, Mapping) else None
        return options if key is None else {**options, "idempotency_key": key}

    def key_of(self, handler: Handler, payload: Mapping[str, Any]) -> str | None:
        """Makes a key of the values that the task will see, however they were given: an order's id, not a dict's."""
        if handler.key_template is None:
            return None
        encoded = encode(payload, limit=self._core.settings.payload_limit)
        seen = payload if encoded.blobs else handler.signature.arguments(encoded.text)
        try:
            return handler.key_for(seen)
        except InvalidOption:
            return handler.key_for(payload)  # what has no annotation is seen as it was given only here

    def prepare(self, plan: EnqueuePlan, payload: Payload) -> Prepared:
        """Checks the payload and makes the job. Nothing has been written yet."""
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
        if plan.said:
            job = _make_job(plan, id, now, text)
        else:  # most jobs have no options, and no other fields than these
            job = Job(id, plan.queue, plan.task, None, State.waiting, 2, now, 1, now, now, text, 0, 0, plan.allowed)
        documents = [BLOB.put(f"{job.id}/{n}", blob_document(blob)) for n, blob in enumerate(blobs)] if blobs else []
        small = len(text) <= FEW_IMAGES and len(text) <= self._registry.short and '"$blob"' not in text
        return Prepared(job, documents, plan.on_duplicate, plan.fallback, () if small else self._warn_unfit(job, plan))

    def _warn_unfit(self, job: Job, plan: EnqueuePlan) -> tuple[str, ...]:
        """Lists why the worker would refuse the job, and logs it while the caller is still there."""
        if surely_fits(job.payload or "", self._registry.short):
            return ()
        verdict = preflight(job, plan.handler, self._registry, self._core.clock.now())
        warnings = (verdict.why, verdict.recommendation) if isinstance(verdict, NotReady) else verdict
        for warning in warnings:
            log.warning("job %s (%s): %s", job.short_id, job.task, warning)
        return warnings

    def _allowed(self, options: Mapping[str, Any], queue: str, task: str, reason: Reason) -> int | None:
        """Works out how many attempts a job has; None where neither the job says it nor the task is known here."""
        asked = options.get("max_attempts")
        if asked is not None:
            return check_range("max_attempts", asked, 1, MOST_ATTEMPTS)
        if task not in self._registry.handlers:
            return None
        agent = options.get("agent") is not None
        return self._registry.policy(queue, task, reason, agent=agent, options=None, job=None).max_attempts

    # -- handing in

    async def accept(self, task: str, payload: Payload, options: Payload) -> JobHandle[Any]:
        """Accepts one job, with every fallback that it has, or writes it into the transaction that `within` names.

        A dead job of the same key comes back where `on_duplicate` asks for that.
        """
        if "within" in options:
            options, within = split_within(options)
            if within is not None:
                return self._pending(await self.transactions.enqueue(task, payload, options, within))
        plan = self.plan(task, options)
        if plan.handler is not None and plan.handler.key_template is not None:
            plan = self.plan(task, self.keyed(task, payload, options))
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
        """Enqueues with `within=` in the caller's thread, to which its connection belongs. None without `within=`."""
        options, within = split_within(options)
        if within is None:
            return None
        return self._pending(self.transactions.enqueue_now(task, payload, options, within))

    def _pending(self, prepared: Prepared) -> JobHandle[Any]:
        return JobHandle(self.jobs, prepared.job, pending=True, warnings=(*prepared.warnings, PENDING))

    async def bring_back(self, job_id: str, who: str = "enqueue", why: str = ENQUEUED_AGAIN) -> Job:
        """Sends a dead job back to its queue, unless its effect may have landed: the caller has not looked."""
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
        """Makes one job durable: (job, duplicate, spooled). Spools only where the caller asked for a fallback."""
        fallback = prepared.fallback
        insert = self._insert_soon if fallback.way else self.insert
        try:
            (inserted,) = await insert([prepared.job], prepared.documents, fallback)
        except (StoreError, OSError) as error:
            if not fallback.way:
                raise
            log.warning("the store cannot take job %s, trying the spool: %s", prepared.job.short_id, error)
            self._tell("fallback", prepared.job, {"to": "spool", "error": str(error)})
            self._spool_or_raise(prepared, error)
            return prepared.job, False, True
        if inserted.duplicate:
            self._note_duplicate(inserted.job, prepared)
        return inserted.job, inserted.duplicate, False

    async def _insert_soon(self, jobs: Sequence[Job], documents: Sequence[Put], fallback: Fallback) -> list[Inserted]:
        """Inserts jobs within the time of their fallback, also where another process locks the file.

        A write that takes longer goes on, because it cannot be taken back: should it land, it is the same job, whose
        id was made before.
        """
        inserting = asyncio.create_task(self.insert(jobs, documents))
        try:
            done, _ = await asyncio.wait({inserting}, timeout=fallback.after)
        finally:  # also where the caller is cancelled
            if not inserting.done():
                self._late.add(inserting)
                inserting.add_done_callback(self._tell_late)
        if done:
            return inserting.result()
        raise CommitUnknown(f"the store has not taken it within {fallback.after:g} s: is the file locked?")

    def give_up_late(self) -> None:
        """Ends the writes whose callers went on without them: whoever closes the store does not wait for a lock."""
        for inserting in list(self._late):
            loop = inserting.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(inserting.cancel)

    def _tell_late(self, inserting: asyncio.Task[list[Inserted]]) -> None:
        """Says what became of a write whose caller went on without it."""
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
        """Inserts jobs; where the program traces, as one span whose context the jobs keep."""
        tracer = tracing.tracer() if tracing.API in sys.modules else None
        if tracer is None:
            store = self._holder.store
            return await (self._holder.make() if store is None else store).insert(jobs, documents)
        with tracer.sending(jobs) as sent:
            inserted = await self._core.store.insert(sent.jobs, documents)
            sent.accepted(inserted)
            return inserted

    def _spool_or_raise(self, prepared: Prepared, error: Exception) -> None:
        try:
            self.spool.append(_make_entry(prepared))
        except OSError as spool_error:
            if isinstance(error, CommitUnknown | StoreFailed):
                raise error from spool_error  # it may be in the store: a direct call could do it twice
            raise SpoolUnusable(error, spool_error) from spool_error

    async def call_directly(self, prepared: Prepared, payload: Mapping[str, Any], unusable: SpoolUnusable) -> None:
        """The last step of the fallback: do it here and now, as the code did before redrive."""
        job, handler = prepared.job, self._registry.handlers.get(prepared.job.task)
        if not callable(prepared.fallback.way) and (handler is None or handler.direct is None):
            log.warning("job %s was not accepted and cannot be called directly: %s", job.short_id, unusable)
            raise unusable.store
        log.warning("job %s: neither store nor spool (%s): calling directly", job.short_id, unusable)
        self._tell("fallback", job, {"to": "direct", "error": str(unusable)})
        found: Any = None
        if callable(prepared.fallback.way):
            found = prepared.fallback.way(**payload)
        elif handler is not None and handler.direct is not None:
            found = handler.direct(job, payload)
        if inspect.isawaitable(found):
            async with asyncio.timeout(handler.timeout if handler else None):
                await found

    def _note_duplicate(self, job: Job, prepared: Prepared) -> None:
        """Refuses a key that stands for something else; tells the bus of a repeat, warns where it meets a dead job."""
        if self._is_other_work(job, prepared.job):
            raise _explain_reused_key(job, prepared.job)
        self._tell("duplicate", job)
        if prepared.on_duplicate == "raise":
            raise KeyReused(field="idempotency_key", problem=f"{job.key!r} is taken by job {job.id} ({job.state})")
        self._warn_of_trouble(job)

    def _is_other_work(self, known: Job, given: Job) -> bool:
        """Whether the key that is given stands for something else already."""
        if given.payload_hash is None or given.payload_hash == known.payload_hash:
            return False
        handler = self._registry.handlers.get(given.task) if known.task == given.task else None
        return handler is None or not handler.signature.same(known.payload, given.payload)

    def _warn_of_trouble(self, job: Job) -> None:
        """Whoever hands in the same again may take it for on its way."""
        if job.state in (State.dead, State.held, State.discarded):
            log.warning(
                "job %s with key %r is %s (%s): the repeated enqueue does not run it again; see `redrive status %s`",
                job.short_id,
                job.key,
                job.state,
                job.because,
                job.short_id,
            )

    def _tell(self, type: str, job: Job, data: dict[str, Any] | None = None) -> None:
        self._core.bus.publish(BusEvent(type, job.queue, job.created_at, job.id, job.task, 0, data))

    async def enqueue_many(self, task: str, items: Iterable[Any], options: Payload) -> Many:
        """Accepts or refuses each item, a thousand per write. The dead that were asked for again come back."""
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
        """One that must stay dead is refused; the others do not wait for it."""
        for job_id, indexes in outcome.dead.items():
            try:
                await self.bring_back(job_id)
            except JobError as error:
                outcome.duplicates -= len(indexes)
                for index in indexes:
                    outcome.ids[index], outcome.refused[index] = None, str(error)

    def _count(self, outcome: _EnqueueTally, ready: dict[int, Prepared], answers: Sequence[Inserted | None]) -> None:
        """What became of each of them."""
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
                options = self.keyed(task, payload, {**shared, **own} if own else shared)
                ready[index] = self.prepare(alike if options is shared else self.plan(task, options), payload)
            except InvalidInput as error:
                refused[index] = str(error)
        return ready

    def prepare_all(
        self, task: str, items: Sequence[Any], shared: Mapping[str, Any]
    ) -> tuple[dict[int, Prepared], dict[int, str]]:
        """The items that may be inserted, and why the others may not."""
        refused: dict[int, str] = {}
        return self._prepare_some(task, range(len(items)), items, shared, refused), refused

    def new_id(self) -> str:
        return new_id(self._core.clock.now(), random.getrandbits(74))

    async def _insert_some(self, ready: Mapping[int, Prepared], outcome: _EnqueueTally) -> Sequence[Inserted | None]:
        """One write for all; where the store cannot and every item has a fallback, the spool (None).

        Once the store was too slow, the rest of the call goes to the spool at once: its caller waits for one limit.
        """
        if not ready:  # every item was refused
            return []
        fallback = _merge_fallbacks(ready.values())
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
        """Insert a job that was accepted elsewhere: in the spool, or in a transaction.

        Whoever handed it in was told that it is accepted, and is not here any more to be told of a problem.
        """
        job = entry.job
        (inserted,) = await self._core.store.insert([job], entry.documents)
        dead = job.state is State.dead
        if not inserted.duplicate:
            return
        if dead and self._dead is not None:
            await self._dead.take_in(job)
        elif self._is_other_work(inserted.job, job):
            await self._bury_spooled(entry, inserted.job)
        elif wants_back(entry, inserted.job):
            await self._redrive_spooled(inserted.job)
        else:
            self._tell("duplicate", inserted.job)
            self._warn_of_trouble(inserted.job)

    async def _redrive_spooled(self, known: Job) -> None:
        """As its caller asked. Where that cannot be, it is a dead letter still, and others in the spool do not wait."""
        try:
            await self.bring_back(known.id)
        except JobError as error:
            log.warning("job %s (%s) was asked for again and stays dead: %s", known.short_id, known.task, error)

    async def _bury_spooled(self, entry: SpoolEntry, known: Job) -> None:
        """Its key stands for something else by now. A dead letter without that key: somebody must look at both."""
        letter = dead_letter_of_taken_key(
            entry.job, capture(_explain_reused_key(known, entry.job)), self._core.clock.now()
        )
        (inserted,) = await self._core.store.insert([letter], move_documents(letter.id, entry.documents))
        if not inserted.duplicate:
            log.warning("spooled job %s (%s) is a dead letter: %s", letter.short_id, letter.task, letter.error)


def split_within(options: Payload) -> tuple[dict[str, Any], Any]:
    """Splits the options of a job from the transaction that the job is written into."""
    return {name: value for name, value in options.items() if name != "within"}, options.get("within")


def _make_job(plan: EnqueuePlan, id: str, now: float, payload: str) -> Job:
    """Makes the job of a plan with options."""
    key = plan.said["key"]
    return Job(
        id=id if key is None else keyed_id(plan.queue, key),
        queue=plan.queue,
        task=plan.task,
        state=State.waiting,
        run_at=read_run_at(plan.options, now),
        version=1,
        created_at=now,
        updated_at=now,
        payload=payload,
        allowed=plan.allowed,
        payload_hash=None if key is None else hash_payload(payload, plan.task),
        **plan.said,
    )


def _log_failed(inserting: asyncio.Task[Any]) -> None:
    """Say that a write failed, because a caller that was cancelled does not hear it."""
    if not inserting.cancelled() and (error := inserting.exception()) is not None:
        log.warning("jobs of a call with many items were not accepted: %s", error)


def wants_back(given: Prepared | SpoolEntry, known: Job) -> bool:
    """Whether whoever handed in what is known already wants it to run again: it is dead."""
    return given.on_duplicate == "redrive" and known.state is State.dead


def _merge_fallbacks(prepared: Collection[Prepared]) -> Fallback:
    """What counts for all of them: a fallback only where each has one, and the longest of their times."""
    way = all(each.fallback.way for each in prepared)
    return Fallback(way, max((each.fallback.after for each in prepared), default=0.0))


def _make_entry(prepared: Prepared) -> SpoolEntry:
    return SpoolEntry(prepared.job, prepared.documents, prepared.on_duplicate)


def _explain_reused_key(known: Job, given: Job) -> KeyReused:
    """Says what differs. A payload that is the same for another task is other work."""
    if known.task != given.task:
        what, mend = f"another task, {known.task!r},", "use a new key"
    else:
        what, mend = "another payload", "use a new key, or send the same payload"
    problem = f"{known.key!r} already stands for {what} in queue {known.queue!r} (job {known.id}); {mend}"
    return KeyReused(field="idempotency_key", problem=problem)


class SpoolUnusable(RedriveError):
    """Neither store nor spool: only the direct call is left."""

    def __init__(self, store: Exception, spool: Exception) -> None:
        super().__init__(f"store: {store}; spool: {spool}")
        self.store = store
