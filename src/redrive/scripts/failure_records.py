"""Records failures as dead letters with one call, where nothing else of redrive runs. No failure is dropped."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from redrive.core import lifecycle
from redrive.core.checks import KEY_LIMIT, NAME_LIMIT
from redrive.core.commit import Proposal, commit_each, decide_and_commit
from redrive.core.documents import BLOB
from redrive.core.job import Failure, Job, Lane, State, hash_payload
from redrive.core.lifecycle import Transition
from redrive.core.payload import Encoded, blob_document, check_kept, encode
from redrive.core.redact import redact_text
from redrive.core.store import Filter, Put
from redrive.engine.paging import read_jobs
from redrive.errors import (
    ConfigError,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    JobError,
    RedriveError,
    StoreError,
    StoreUnavailable,
)
from redrive.failures.capture import capture, qualified, words_of
from redrive.failures.classify import classify
from redrive.jobs import dead_letter
from redrive.jobs.records import wrap
from redrive.jobs.spool import Spool, SpoolEntry

if TYPE_CHECKING:
    from redrive.engine.registry import Registry
    from redrive.jobs.core import Core
    from redrive.jobs.enqueuer import Enqueuer

T = TypeVar("T")
log = logging.getLogger("redrive.letters")
INPUT_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of the input that a dead letter keeps. The limit is high, because the input is needed to run the job again."""
PAGE: Final = 100
TOGETHER: Final = 32
"""How many numbers are looked up at once."""
MOST: Final = 32
"""The dead letters of one job_id are fewer than two to the power of this."""
REPR_LIMIT: Final = 100_000
OPEN: Final = (State.dead, State.waiting, State.held)
"""The states of a job in which a further failure of it belongs to the same dead letter."""


class FailureDetails(NamedTuple):
    """Tells about a failure what its job, input and error do not say."""

    attempt: int | None = None
    task: str | None = None
    queue: str | None = None
    lane: str | None = None
    agent: str | None = None
    session_id: str | None = None
    model: str | None = None
    recommendation: str | None = None


def check_details(options: Mapping[str, Any]) -> FailureDetails:
    """Refuses an unknown option by name, long before anything fails."""
    if unknown := options.keys() - set(FailureDetails._fields):
        known = ", ".join(FailureDetails._fields)
        raise InvalidOption(field=min(unknown), problem=f"is not an option of a dead letter; there are {known}")
    return FailureDetails(**options)


class NewDeadLetter(NamedTuple):
    """A dead letter that may be inserted, and the blobs that go beside it."""

    job: Job
    documents: tuple[Put, ...] = ()

    def numbered(self, number: int) -> NewDeadLetter:
        """Make this the n-th dead letter of its job_id."""
        id = dead_letter.nth_id(self.job.queue, self.job.key or self.job.id, number)
        return NewDeadLetter(msgspec.structs.replace(self.job, id=id), dead_letter.move_documents(id, self.documents))


# -- making a dead letter: what a caller says is corrected, never refused


def make_dead_letter(
    job_id: object, payload: object, error: object, details: FailureDetails, now: float, registry: Registry | None
) -> NewDeadLetter:
    """Makes the dead letter of a failure, and the blobs of its input."""
    task = _shorten_name(details.task, "task") or dead_letter.UNNAMED
    queue = _shorten_name(details.queue, "queue") or (registry.queue_of_task(task) if registry else task)
    failure, advice = read_failure(error), details.recommendation
    text, blobs, _ = _encode_input(payload)
    key = _make_key(job_id, text)
    id = dead_letter.nth_id(queue, key, 0)
    names = {name: _shorten_name(getattr(details, name), name) for name in ("agent", "session_id", "model")}
    at = dict.fromkeys(("run_at", "created_at", "updated_at"), now)
    facts: dict[str, Any] = {"state": State.dead, "priority": 2, "version": 1, "key": key, **names, **at}
    job = Job(id=id, queue=queue, task=task, payload=text, payload_hash=hash_payload(text, task), **facts)
    handler = registry.handlers.get(task) if registry else None
    cause = dead_letter.find_cause(failure, handler.rules if handler else ())
    born = dead_letter.BirthRules(now, queue, task, _cap(registry, job), because="diverted")
    advice = redact_text(words_of(advice)) if advice else failure.recommendation
    attempt, lane = _read_attempt(details.attempt), _read_lane(details.lane)
    dead = dead_letter.make_dead_job(
        job, failure, cause, failed_at=now, born=born, attempt=attempt, said=lane, recommendation=advice
    )
    return NewDeadLetter(dead, tuple(BLOB.put(f"{id}/{n}", blob_document(blob)) for n, blob in enumerate(blobs)))


def _cap(registry: Registry | None, job: Job) -> int:
    return (registry.policy_for(job).max_attempts if registry else None) or dead_letter.CAP


def read_failure(error: object) -> Failure:
    """Reads an exception, its class, or its name with or without a message. None is the exception being handled."""
    if error is None:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        return capture(error)
    if isinstance(error, type):
        return Failure("exception", tuple(qualified(kind) for kind in error.__mro__[:-1]) or (error.__name__,))
    text = words_of(error or "unknown")
    name, _, message = text.partition(":")
    if re.fullmatch(r"[A-Za-z_][\w.]{0,199}", name):
        return dead_letter.make_failure(name, redact_text(message.strip()))
    return dead_letter.make_failure("unknown", redact_text(text))


def _encode_input(payload: object) -> Encoded:
    """Encodes the whole input as JSON; where JSON cannot hold it, as its repr, with a warning."""
    try:
        if not isinstance(payload, Mapping):
            plain = encode({"it": payload}, limit=INPUT_LIMIT)
            if plain.blobs:
                return encode(wrap(payload), limit=INPUT_LIMIT)
            _warn_of_changes({"it": payload}, plain)
            payload = wrap(msgspec.json.decode(plain.text)["it"])
        encoded = encode(payload, limit=INPUT_LIMIT)
        _warn_of_changes(payload, encoded)
        return encoded
    except InvalidInput as error:
        log.warning("a dead letter's payload cannot be kept as it is, its repr is: %s", error)
        return encode({"$repr": _repr(payload), "$problem": str(error)[:500]})


def _warn_of_changes(payload: Mapping[str, Any], encoded: Encoded) -> None:
    """Warns of values that JSON turns into others: a dead letter is never refused for them."""
    try:
        check_kept(payload, encoded)
    except InvalidPayload as changed:
        log.warning("a dead letter's payload is not kept as it was given: %s", changed)


def _repr(value: object) -> str:
    try:
        return repr(value)[:REPR_LIMIT].encode("utf-8", "replace").decode()
    except Exception as error:  # noqa: BLE001 - a user's __repr__; the dead letter is written without it
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _make_key(job_id: object, text: str) -> str:
    """Makes the key of a job_id: the same text where it can be a key, else one that is always derived alike."""
    key = "" if job_id is None else str(job_id)
    if key and len(key) <= KEY_LIMIT and key.isprintable():
        return key
    digest = hashlib.sha256((key or text).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    shown = "".join(sign for sign in key if sign.isprintable())[: KEY_LIMIT - 20]
    log.warning("job_id %.60r cannot be kept as it is: it must be 1 to %d printable characters", key, KEY_LIMIT)
    return f"{shown}~{digest}"


def _shorten_name(value: object, field: str) -> str | None:
    if value is None or value == "":
        return None
    name = str(value)
    if len(name) <= NAME_LIMIT and name.isprintable():
        return name
    log.warning("%s: %.60r is cut to at most %d printable characters", field, name, NAME_LIMIT)
    return "".join(sign for sign in name if sign.isprintable())[:NAME_LIMIT] or None


def _read_attempt(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000_000 else 1


def _read_lane(value: object) -> Lane | None:
    try:
        return dead_letter.check_lane(value)
    except InvalidInput as error:
        log.warning("the dead letter goes into the lane of its error: %s", error)
        return None


# -- writing it


class FailureRecorder:
    """Writes failures into the store, else into the spool. Several failures of one job_id are one dead letter."""

    def __init__(self, core: Core, enqueuer: Enqueuer) -> None:
        self._core = core
        self.enqueuer = enqueuer

    async def add(self, job_id: object, payload: object, error: object, details: FailureDetails) -> Job:
        """Record a failure. Where the store cannot take it, it waits in the spool."""
        new = make_dead_letter(job_id, payload, error, details, self._core.clock.now(), self._core.registry)
        try:
            job = await self._write(new)
        except (StoreError, JobError, ConfigError, OSError) as problem:
            spool_dead_letter(self.enqueuer.spool, new, problem)
            return new.job
        log.warning("job %s (%s): %s | %s lane: %s", job.key, job.task, job.error, job.lane, job.recommendation)
        await self._empty_spool()
        return job

    async def take_in(self, new: NewDeadLetter) -> Job:
        """Record a failure that waited beside the store. The same failure again changes nothing."""
        known = await self._known(new.job, settled=True)
        same = (
            job
            for job in known
            if dead_letter.same_work(job, new.job) and dead_letter.has_failures(job, new.job.history)
        )
        return next(same, None) or await self._write(new)

    async def _write(self, new: NewDeadLetter) -> Job:
        """Write a failure durably: as one more of a dead letter that the job has already, else as a new one."""
        about = f"job {new.job.key!r}"

        async def decide() -> Proposal[Job | Transition] | None:
            known = await self._known(new.job)
            standing = next((job for job in known if _belongs(job, new.job)), None)
            if standing is not None:
                moves = failed_again(standing, new.job, _cap(self._core.registry, standing))
                return Proposal(about, moves[-1], moves, done="given one more failure")
            if any(job.state in OPEN for job in known):
                log.warning("job_id %r stands for another input: this failure is a dead letter of its own", new.job.key)
            inserted = await self._insert(new)
            return Proposal(about, inserted) if inserted is not None else None

        written, fences = await decide_and_commit(self._core.store, decide)
        return written if isinstance(written, Job) else written.after(fences[-1])

    async def _known(self, job: Job, *, settled: bool = False) -> list[Job]:
        """Read the dead letters of this job_id with their history, newest first; settled ones only if asked for."""
        chosen = Filter(() if settled else OPEN, job.queue, key=job.key)
        ids = [known.id async for known in read_jobs(self._core.store, chosen, PAGE)]
        return await self._core.store.get(ids) if ids else []

    async def _free(self, job: Job) -> int:
        """Find a number that no dead letter of this job_id has, with few reads: the next, unless old ones are gone."""
        taken, free = await self._end_of(job, [2**power - 1 for power in range(MOST)])
        while free - taken > 1:
            step = -(-(free - taken) // TOGETHER)
            taken, free = await self._end_of(job, [taken, *range(taken + step, free, step), free])
        return free

    async def _end_of(self, job: Job, numbers: Sequence[int]) -> tuple[int, int]:
        """Find the last of these numbers that a dead letter has (-1 where none has), and the number after it."""
        ids = [dead_letter.nth_id(job.queue, job.key or job.id, number) for number in numbers]
        there = {known.id for known in await self._core.store.get(ids)}
        end = next((place for place, id in enumerate(ids) if id not in there), len(ids))
        return (numbers[end - 1] if end else -1), numbers[min(end, len(ids) - 1)]

    async def _insert(self, new: NewDeadLetter) -> Job | None:
        """Insert a new dead letter; None where another process has just made it."""
        number = await self._free(new.job)
        if number and any(_belongs(job, new.job) for job in await self._known(new.job)):
            return None  # made between the look for one and the look for a free number
        job, documents = new.numbered(number)
        (inserted,) = await self._core.store.insert([job], documents)
        return None if inserted.duplicate else inserted.job

    async def resolve_landed(
        self, job_id: object, payload: object, details: FailureDetails, *, who: str, why: str
    ) -> int:
        """Resolve the dead letters of a job that has succeeded after all; return how many."""
        unnamed = job_id is None or str(job_id) == ""  # then the input identifies the job
        probe = make_dead_letter(
            job_id, payload if unnamed else {}, "unknown", details, self._core.clock.now(), self._core.registry
        ).job
        known = await self._known(probe)
        if not any(job.state is State.dead for job in known):
            return 0  # as nearly always: the input need not be read
        text = _encode_input(payload)[0]
        done = msgspec.structs.replace(probe, payload=text, payload_hash=hash_payload(text, probe.task))
        return await self.close([job for job in known if dead_letter.settles(done, job)], who=who, why=why)

    async def close(self, jobs: list[Job], *, who: str, why: str) -> int:
        """Resolve dead letters whose work is done. One that another process moved meanwhile is left alone."""
        now = self._core.clock.now()
        moves = [lifecycle.resolved(job, now, who=who, why=why) for job in jobs]
        return len(await commit_each(self._core.store, moves))

    async def _empty_spool(self) -> None:
        """Move what waits in the spool into the store, which works again, without waiting for a worker."""
        if not self.enqueuer.spool.folder.is_dir():
            return
        try:
            await self.enqueuer.drain_spool()
        except (RedriveError, OSError) as error:
            log.warning("what waits in %s stays there for now: %s", self.enqueuer.spool.folder, error)


def _belongs(job: Job, new: Job) -> bool:
    """Whether a failure is one more of this dead letter: not settled yet, and about the same input."""
    return job.state in OPEN and dead_letter.same_work(job, new)


def failed_again(standing: Job, new: Job, cap: int, attempts: int | None = None) -> tuple[Transition, ...]:
    """Makes the moves of one more failure, to be written together: a dead letter comes back and is buried anew."""
    at = max(new.updated_at, standing.updated_at)  # one that waited in the spool comes late
    tries = max(standing.attempts + 1, new.attempts) if attempts is None else attempts
    moves: tuple[Transition, ...] = ()
    job = standing
    if standing.state is State.dead:
        unlimited = msgspec.structs.replace(standing, allowed=None)  # it runs elsewhere: no grant is used up
        why = "it failed again"
        back = lifecycle.redriven(unlimited, at, max_attempts=tries + 1, who="letters", why=why, run_at=at)
        moves, job = (back,), back.after(standing.version + 1)
    last = new.history[-1]
    failure, cause = last.failure or Failure(), last.cause or classify(Failure())
    lane = dead_letter.choose_lane(cause, tries, cap=cap, said=new.lane if tries < cap else None)  # type: ignore[arg-type]
    decision = dead_letter.explain_lane(cause, tries, lane, cap)
    buried = lifecycle.buried(
        job,
        at,
        because="attempts_exhausted" if tries >= cap else new.because or "imported",
        why=decision,
        recommendation=dead_letter.rewrite_advice(lane, new, cause),
        failure=failure,
        cause=cause,
        fingerprint=new.fingerprint,
        lane=lane,
        comes_back_at=dead_letter.find_return_time(job, lane, at),
        attempt=msgspec.structs.replace(last, run=standing.run, decision=decision, tier=lane),
    )
    first = {"first_failed_at": standing.first_failed_at} if standing.first_failed_at is not None else {}
    return (*moves, msgspec.structs.replace(buried, set={**buried.set, "attempts": tries, **first}))


def spool_dead_letter(spool: Spool, new: NewDeadLetter, problem: Exception) -> None:
    """Writes a dead letter into the spool, synced. Raises only where that fails as well."""
    job = new.job
    try:
        spool.append(SpoolEntry(job, list(new.documents)))
    except OSError as also:
        log.error("job %s failed and could be recorded nowhere: store: %s; spool: %s", job.key, problem, also)
        raise StoreUnavailable(f"job {job.key!r}: store: {problem}; spool: {also}") from problem
    text = "job %s (%s): %s | the store cannot take it (%s): it waits in %s"
    log.warning(text, job.key, job.task, job.error, problem, spool.folder)
