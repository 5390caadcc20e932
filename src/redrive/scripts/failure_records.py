"""Diverting failures: one call records what failed, where nothing else of redrive runs. No failure is dropped."""

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
from redrive.engine.paging import pages
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
from redrive.jobs.dead_letter import (
    CAP,
    UNNAMED,
    BirthRules,
    check_lane,
    choose_lane,
    explain_lane,
    find_cause,
    find_return_time,
    has_failures,
    make_dead_job,
    make_failure,
    move_documents,
    nth_id,
    rewrite_advice,
    same_work,
    settles,
)
from redrive.jobs.records import wrap
from redrive.jobs.spool import Spool, SpoolEntry

if TYPE_CHECKING:
    from redrive.engine.registry import Registry
    from redrive.jobs.core import Core
    from redrive.jobs.enqueuer import Enqueuer

T = TypeVar("T")
log = logging.getLogger("redrive.letters")
LETTER_LIMIT: Final = 64 * 1024 * 1024
"""A letter keeps its whole input as far as it can: it is all there is to run the job again."""
PAGE: Final = 100
TOGETHER: Final = 32
"""So many numbers are looked up at once."""
MOST: Final = 32
"""The letters of one job_id are fewer than two to the power of this."""
REPR_LIMIT: Final = 100_000
OPEN: Final = (State.dead, State.waiting, State.held)
"""Where a job can be when a further failure of it belongs to the same letter."""


class FailureDetails(NamedTuple):
    """What a caller says about a failure besides job, input and error."""

    attempt: int | None = None
    task: str | None = None
    queue: str | None = None
    lane: str | None = None
    agent: str | None = None
    session_id: str | None = None
    model: str | None = None
    recommendation: str | None = None


def check_details(options: Mapping[str, Any]) -> FailureDetails:
    """Options as a caller gives them; an unknown one is refused by name, long before anything fails."""
    if unknown := options.keys() - set(FailureDetails._fields):
        listed = ", ".join(FailureDetails._fields)
        raise InvalidOption(field=min(unknown), problem=f"is not an option of a dead letter; there are {listed}")
    return FailureDetails(**options)


class NewDeadLetter(NamedTuple):
    """A dead letter that may be inserted, and the blobs that go beside it."""

    job: Job
    documents: tuple[Put, ...] = ()

    def numbered(self, number: int) -> NewDeadLetter:
        """The same failure as the n-th letter of its job_id."""
        id = nth_id(self.job.queue, self.job.key or self.job.id, number)
        return NewDeadLetter(msgspec.structs.replace(self.job, id=id), move_documents(id, self.documents))


# -- making a letter: nothing here may fail for the sake of what is said


def make_dead_letter(
    job_id: object, payload: object, error: object, said: FailureDetails, now: float, registry: Registry | None
) -> NewDeadLetter:
    task = _named(said.task, "task") or UNNAMED
    queue = _named(said.queue, "queue") or _queue_of(task, registry)
    failure = failure_of(error)
    text, blobs, _ = _input(payload)
    key = _key(job_id, text)
    id = nth_id(queue, key, 0)
    job = Job(
        id=id,
        queue=queue,
        task=task,
        agent=_named(said.agent, "agent"),
        state=State.dead,
        priority=2,
        run_at=now,
        version=1,
        created_at=now,
        updated_at=now,
        payload=text,
        key=key,
        payload_hash=hash_payload(text, task),
        session_id=_named(said.session_id, "session_id"),
        model=_named(said.model, "model"),
    )
    handler = registry.handlers.get(task) if registry else None
    cause = find_cause(failure, handler.rules if handler else ())
    born = BirthRules(now, queue, task, _cap(registry, job), because="diverted")
    letter = make_dead_job(
        job,
        failure,
        cause,
        failed_at=now,
        born=born,
        attempt=_tries(said.attempt),
        said=_lane(said.lane),
        recommendation=redact_text(words_of(said.recommendation)) if said.recommendation else failure.recommendation,
    )
    return NewDeadLetter(letter, tuple(BLOB.put(f"{id}/{n}", blob_document(blob)) for n, blob in enumerate(blobs)))


def _queue_of(task: str, registry: Registry | None) -> str:
    handler = registry.handlers.get(task) if registry else None
    return handler.queue if handler else task


def _cap(registry: Registry | None, job: Job) -> int:
    return (registry.policy_for(job).max_attempts if registry else None) or CAP


def failure_of(error: object) -> Failure:
    """An exception, its class, or its name with or without what it said. None: the exception that is being handled."""
    if error is None:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        return capture(error)
    if isinstance(error, type):
        return Failure("exception", tuple(qualified(kind) for kind in error.__mro__[:-1]) or (error.__name__,))
    said = words_of(error or "unknown")
    name, _, message = said.partition(":")
    if re.fullmatch(r"[A-Za-z_][\w.]{0,199}", name):
        return make_failure(name, redact_text(message.strip()))
    return make_failure("unknown", redact_text(said))


def _input(payload: object) -> Encoded:
    """The input as JSON, whole; where JSON cannot say it, as its repr, and that is told."""
    try:
        if not isinstance(payload, Mapping):
            plain = encode({"it": payload}, limit=LETTER_LIMIT)
            if plain.blobs:
                return encode(wrap(payload), limit=LETTER_LIMIT)
            _say_changes({"it": payload}, plain)
            payload = wrap(msgspec.json.decode(plain.text)["it"])
        encoded = encode(payload, limit=LETTER_LIMIT)
        _say_changes(payload, encoded)
        return encoded
    except InvalidInput as error:
        log.warning("a letter's payload cannot be kept as it is, its repr is: %s", error)
        return encode({"$repr": _repr(payload), "$problem": str(error)[:500]})


def _say_changes(payload: Mapping[str, Any], encoded: Encoded) -> None:
    """A letter is never refused, so what JSON turns into something else is told."""
    try:
        check_kept(payload, encoded)
    except InvalidPayload as changed:
        log.warning("a letter's payload is not kept as it was given: %s", changed)


def _repr(value: object) -> str:
    try:
        return repr(value)[:REPR_LIMIT].encode("utf-8", "replace").decode()
    except Exception as error:  # noqa: BLE001 - somebody else's __repr__; the letter is written without it
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _key(job_id: object, text: str) -> str:
    """The job_id as it is; one that cannot be a key is made into one, always in the same way."""
    said = "" if job_id is None else str(job_id)
    if said and len(said) <= KEY_LIMIT and said.isprintable():
        return said
    digest = hashlib.sha256((said or text).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    shown = "".join(sign for sign in said if sign.isprintable())[: KEY_LIMIT - 20]
    log.warning("job_id %.60r cannot be kept as it is: it must be 1 to %d printable characters", said, KEY_LIMIT)
    return f"{shown}~{digest}"


def _named(said: object, field: str) -> str | None:
    if said is None or said == "":
        return None
    name = str(said)
    if len(name) <= NAME_LIMIT and name.isprintable():
        return name
    log.warning("%s: %.60r is cut to at most %d printable characters", field, name, NAME_LIMIT)
    return "".join(sign for sign in name if sign.isprintable())[:NAME_LIMIT] or None


def _tries(said: object) -> int:
    return said if isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= 1_000_000 else 1


def _lane(said: object) -> Lane | None:
    try:
        return check_lane(said)
    except InvalidInput as error:
        log.warning("the letter goes where its error belongs: %s", error)
        return None


# -- writing it


class FailureRecorder:
    """Into the store with it, else into the spool. Several failures of one job_id are one letter."""

    def __init__(self, core: Core, enqueuer: Enqueuer) -> None:
        self._core = core
        self.enqueuer = enqueuer

    async def add(self, job_id: object, payload: object, error: object, said: FailureDetails) -> Job:
        letter = make_dead_letter(job_id, payload, error, said, self._core.clock.now(), self._core.registry)
        try:
            job = await self._settled(letter)
        except (StoreError, JobError, ConfigError, OSError) as problem:
            spool_dead_letter(self.enqueuer.spool, letter, problem)
            return letter.job
        log.warning("job %s (%s): %s | %s lane: %s", job.key, job.task, job.error, job.lane, job.recommendation)
        await self._empty_spool()
        return job

    async def take_in(self, letter: NewDeadLetter) -> Job:
        """One that waited beside the store, perhaps not for the first time: the same failure again changes nothing."""
        known = await self._known(letter.job, settled=True)
        told = (job for job in known if same_work(job, letter.job) and has_failures(job, letter.job.history))
        return next(told, None) or await self._settled(letter)

    async def _settled(self, letter: NewDeadLetter) -> Job:
        """Durable on return. A further failure of a job that has a letter already is counted there."""
        about = f"job {letter.job.key!r}"

        async def decide() -> Proposal[Job | Transition] | None:
            known = await self._known(letter.job)
            standing = next((job for job in known if _belongs(job, letter.job)), None)
            if standing is not None:
                moves = failed_again(standing, letter.job, _cap(self._core.registry, standing))
                return Proposal(about, moves[-1], moves, done="given one more failure")
            if any(job.state in OPEN for job in known):
                log.warning("job_id %r stands for another input: this failure gets its own letter", letter.job.key)
            first = await self._first(letter)
            return Proposal(about, first) if first is not None else None

        found, fences = await decide_and_commit(self._core.store, decide)
        return found if isinstance(found, Job) else found.after(fences[-1])

    async def _known(self, job: Job, *, settled: bool = False) -> list[Job]:
        """The letters of this job_id with their stories, newest first; those that are settled only if asked for."""
        chosen = Filter(() if settled else OPEN, job.queue, key=job.key)
        ids = [found.id async for page in pages(self._core.store, chosen, PAGE) for found in page]
        return await self._core.store.get(ids) if ids else []

    async def _free(self, job: Job) -> int:
        """A number that no letter of it has: the next, unless old ones were forgotten. A few reads, of however many."""
        taken, free = await self._end_of(job, [2**power - 1 for power in range(MOST)])
        while free - taken > 1:
            step = -(-(free - taken) // TOGETHER)
            taken, free = await self._end_of(job, [taken, *range(taken + step, free, step), free])
        return free

    async def _end_of(self, job: Job, numbers: Sequence[int]) -> tuple[int, int]:
        """The last of these numbers, in order, that a letter has, and the one after it: -1 where there is none."""
        ids = [nth_id(job.queue, job.key or job.id, number) for number in numbers]
        there = {found.id for found in await self._core.store.get(ids)}
        end = next((place for place, id in enumerate(ids) if id not in there), len(ids))
        return (numbers[end - 1] if end else -1), numbers[min(end, len(ids) - 1)]

    async def _first(self, letter: NewDeadLetter) -> Job | None:
        """A new letter; None where somebody else made it this moment."""
        number = await self._free(letter.job)
        if number and any(_belongs(job, letter.job) for job in await self._known(letter.job)):
            return None  # made between the look for one and the look for a free number
        fresh = letter.numbered(number)
        (inserted,) = await self._core.store.insert([fresh.job], fresh.documents)
        if inserted.duplicate:
            return None
        return inserted.job

    async def landed(self, job_id: object, payload: object, said: FailureDetails, *, who: str, why: str) -> int:
        """The job succeeded after all: its letters need nobody any more."""
        unnamed = job_id is None or str(job_id) == ""  # then its input is all that it is known by
        probe = make_dead_letter(
            job_id, payload if unnamed else {}, "unknown", said, self._core.clock.now(), self._core.registry
        ).job
        known = await self._known(probe)
        if not any(job.state is State.dead for job in known):
            return 0  # as nearly always: its input need not be read
        text = _input(payload)[0]
        done = msgspec.structs.replace(probe, payload=text, payload_hash=hash_payload(text, probe.task))
        return await self.close([job for job in known if settles(done, job)], who=who, why=why)

    async def close(self, jobs: list[Job], *, who: str, why: str) -> int:
        """Dead letters whose work is known to be done. One that somebody else moved meanwhile is left alone."""
        now = self._core.clock.now()
        moves = [lifecycle.resolved(job, now, who=who, why=why) for job in jobs]
        return len(await commit_each(self._core.store, moves))

    async def _empty_spool(self) -> None:
        """The store works: what had to wait beside it moves over, without waiting for a worker."""
        if not self.enqueuer.spool.folder.is_dir():
            return
        try:
            await self.enqueuer.drain_spool()
        except (RedriveError, OSError) as error:
            log.warning("what waits in %s stays there for now: %s", self.enqueuer.spool.folder, error)


def _belongs(job: Job, letter: Job) -> bool:
    """Whether a failure is one more of this letter: not settled yet, and about the same input."""
    return job.state in OPEN and same_work(job, letter)


def failed_again(standing: Job, letter: Job, cap: int, attempts: int | None = None) -> tuple[Transition, ...]:
    """The moves of one more failure, written together: a dead letter comes back and is buried anew."""
    at = max(letter.updated_at, standing.updated_at)  # one that waited in the spool comes late
    tries = max(standing.attempts + 1, letter.attempts) if attempts is None else attempts
    moves: tuple[Transition, ...] = ()
    job = standing
    if standing.state is State.dead:
        unlimited = msgspec.structs.replace(standing, allowed=None)  # it runs elsewhere: no grant is used up
        said = "it failed again"
        back = lifecycle.redriven(unlimited, at, max_attempts=tries + 1, who="letters", why=said, run_at=at)
        moves, job = (back,), back.after(standing.version + 1)
    last = letter.history[-1]
    failure, cause = last.failure or Failure(), last.cause or classify(Failure())
    lane = choose_lane(cause, tries, cap=cap, said=letter.lane if tries < cap else None)  # type: ignore[arg-type]
    decision = explain_lane(cause, tries, lane, cap)
    buried = lifecycle.buried(
        job,
        at,
        because="attempts_exhausted" if tries >= cap else letter.because or "imported",
        why=decision,
        recommendation=rewrite_advice(lane, letter, cause),
        failure=failure,
        cause=cause,
        fingerprint=letter.fingerprint,
        lane=lane,
        comes_back_at=find_return_time(job, lane, at),
        attempt=msgspec.structs.replace(last, run=standing.run, decision=decision, tier=lane),
    )
    first = {"first_failed_at": standing.first_failed_at} if standing.first_failed_at is not None else {}
    return (*moves, msgspec.structs.replace(buried, set={**buried.set, "attempts": tries, **first}))


def spool_dead_letter(spool: Spool, letter: NewDeadLetter, problem: Exception) -> None:
    """Beside the store, synced. Only where that fails as well does the caller hear of it."""
    try:
        spool.append(SpoolEntry(letter.job, list(letter.documents)))
    except OSError as also:
        log.error("job %s failed and could be recorded nowhere: store: %s; spool: %s", letter.job.key, problem, also)
        raise StoreUnavailable(f"job {letter.job.key!r}: store: {problem}; spool: {also}") from problem
    log.warning(
        "job %s (%s): %s | the store cannot take it (%s): it waits in %s",
        letter.job.key,
        letter.job.task,
        letter.job.error,
        problem,
        spool.folder,
    )
