"""Turns records of failures into dead letters: finds the cause of each, its lane, and its job.

The order is fixed: at the cap a person looks; below it, what heals by waiting comes back by itself; the rest is for a
person. One job_id is one job, however many records tell of it.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from redrive.core import advice
from redrive.core.change import edited_payload
from redrive.core.job import CYCLE, Attempt, Cause, Failure, Job, Lane, State, hash_payload, keyed_id
from redrive.core.lifecycle import MOVED_LATER
from redrive.core.store import Put
from redrive.errors import InvalidOption
from redrive.failures.classify import Rule, classify
from redrive.failures.classify.classes import CLASSES
from redrive.failures.fingerprint import fingerprint
from redrive.jobs.records import LANES, FailureRecord
from redrive.retries.changes import same

CAP: Final = 5
"""After so many tries a person must look, whatever the error is."""
TAKEN_KEY: Final = (
    "It waited beside the store, and its idempotency key was used for something else meanwhile."
    " Compare the two: redrive this one if it is other work, else discard it."
)
UNNAMED: Final = "unnamed"
"""The task and queue of dead letters without a name."""


# -- the cause of a failure, and the lane: it heals by waiting, or a person must look

TRANSIENT: Final = {"TimeoutError": "timeout", "ConnectionError": "network", "RateLimitError": "rate_limited"}
"""Classes that heal by waiting, by bare names: a record rarely says which library a class came from."""


def make_failure(name: str, message: str = "", *, status: int | None = None, kind: str | None = None) -> Failure:
    """Make the failure of an exception of which only the name is known."""
    return Failure("exception", _list_types(name), message, status=status, error_kind=kind)


@lru_cache(maxsize=1024)
def _list_types(name: str) -> tuple[str, ...]:
    """List what a bare name may stand for: the builtin, and every known class of that name."""
    bare = name.rpartition(".")[2]
    known = (full for full in CLASSES if full.rpartition(".")[2] == bare)
    return tuple(dict.fromkeys((name, *_list_builtin_types(bare), *known)))


def _list_builtin_types(bare: str) -> tuple[str, ...]:
    """List the builtin exception of this name and its bases."""
    kind = getattr(builtins, bare, None)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return ()
    return tuple(f"builtins.{base.__name__}" for base in kind.__mro__[:-1])


def read_failure(record: FailureRecord) -> Failure:
    """Read the failure that a record describes."""
    bare = record.error_class.rpartition(".")[2]
    message = "" if record.error == bare else record.error.removeprefix(f"{bare}:").strip()
    return make_failure(record.error_class, message, status=record.status, kind=record.detail)


def find_cause(failure: Failure, first: Sequence[tuple[str, Rule]] = ()) -> Cause:
    """Find the cause by the rules; where no rule knows it, by the bare name of the class."""
    cause = classify(failure, first)
    if cause.detail == "unknown" and failure.error_class in TRANSIENT:
        return classify(failure, (("bare_class", lambda failure: TRANSIENT[failure.error_class]),))
    return cause


def choose_lane(cause: Cause, attempt: int, *, cap: int = CAP, said: Lane | None = None) -> Lane:
    """Choose the lane: `manual` at the cap; below it, `delayed` for what heals by waiting."""
    if attempt >= cap:
        return "manual"
    if said is not None:
        return said
    return "delayed" if cause.category == "transient" or cause.heals == "later" else "manual"


def find_return_time(job: Job, lane: Lane, now: float) -> float | None:
    """Find when a recorded dead letter comes back by itself; a script's next cycle brings back those of a cycle."""
    return now + MOVED_LATER if lane == "delayed" and not job.queue.startswith(CYCLE) else None


def write_advice(cause: Cause, lane: Lane) -> str:
    if lane == "delayed":
        return "It heals by waiting: a worker or the next cycle tries it again. You can also redrive it."
    return advice.advice_for(cause, "Find out what the error means, fix it, then redrive or discard it.")


def rewrite_advice(lane: Lane, dead: Job, cause: Cause) -> str:
    """Replace the advice that was written for another lane; advice of the failure or of a person stays."""
    ours = [write_advice(cause, "delayed"), write_advice(cause, "manual")]
    given = dead.recommendation
    return write_advice(cause, lane) if given is None or given in ours else given


# -- a record as a job


class BirthRules(msgspec.Struct, frozen=True):
    """How records become jobs. A queue or task here goes before that of the record."""

    now: float
    queue: str | None = None
    task: str | None = None
    cap: int = CAP
    state: Literal[State.dead, State.waiting] = State.dead
    because: str = "imported"


def find_place(record: FailureRecord, born: BirthRules) -> tuple[str, str]:
    """Find (queue, task): the queue of a task has its name unless another one is given."""
    task = born.task or record.task or UNNAMED
    return born.queue or record.queue or task, task


def find_id(record: FailureRecord, born: BirthRules) -> str:
    """Find the id of a record's job: the same in every store, however often the record is imported."""
    return record.id or keyed_id(find_place(record, born)[0], record.job_id)


def make_job(record: FailureRecord, born: BirthRules) -> Job:
    """Make the job of a record: dead with everything a person needs, or waiting where it shall simply run."""
    queue, task = find_place(record, born)
    failed = born.now if record.failed_at is None else record.failed_at
    created = min(failed if record.created_at is None else record.created_at, born.now)
    id = find_id(record, born)
    job = Job(
        id=id,
        queue=queue,
        task=task,
        agent=record.agent,
        state=State.waiting,
        priority=2,
        run_at=born.now,
        version=1,
        created_at=created,
        updated_at=created,
        payload=record.payload,
        attempts=record.attempt or 0,
        key=None if id == record.job_id else record.job_id,
        payload_hash=hash_payload(record.payload, task),
        session_id=record.session_id,
        model=record.model,
    )
    if born.state is not State.dead:
        return job
    failure = read_failure(record)
    return make_dead_job(
        job,
        failure,
        find_cause(failure),
        failed_at=failed,
        born=born,
        attempt=1 if record.attempt is None else record.attempt,
        said=record.lane,
        recommendation=record.recommendation,
        group=record.fingerprint,
    )


def make_dead_job(
    job: Job,
    failure: Failure,
    cause: Cause,
    *,
    failed_at: float,
    born: BirthRules,
    attempt: int,
    said: Lane | None = None,
    recommendation: str | None = None,
    group: str | None = None,
) -> Job:
    """Make a dead job of a failure that happened elsewhere. A time in the future is kept in its history only."""
    lane = choose_lane(cause, attempt, cap=born.cap, said=said)
    group = group or fingerprint(failure, job.task, job.model)
    at = min(failed_at, born.now)
    decision = explain_lane(cause, attempt, lane, born.cap)
    return msgspec.structs.replace(
        job,
        state=State.dead,
        run_at=at,
        updated_at=at,
        created_at=min(job.created_at, at),
        attempts=attempt,
        first_failed_at=at,
        died_at=at,
        because=born.because,
        lane=lane,
        category=cause.category,
        detail=cause.detail,
        subclass=cause.subclass,
        fingerprint=group,
        error_class=failure.error_class,
        error=failure.summary,
        recommendation=recommendation or write_advice(cause, lane),
        comes_back_at=find_return_time(job, lane, born.now),
        history=(_make_attempt(job, failure, cause, group, failed_at, lane, decision),),
    )


def move_documents(id: str, documents: Iterable[Put]) -> tuple[Put, ...]:
    """Move the documents beside a job to another id of the job."""
    return tuple(msgspec.structs.replace(put, key=f"{id}/{put.key.partition('/')[2]}") for put in documents)


def dead_letter_of_taken_key(job: Job, failure: Failure, now: float) -> Job:
    """Make the dead letter of a job that was accepted beside the store under a key that means other work there."""
    id = keyed_id(job.queue, f"{job.key}\n{job.payload_hash}")
    return make_dead_job(
        msgspec.structs.replace(job, id=id, key=None),
        failure,
        find_cause(failure),
        failed_at=now,
        born=BirthRules(now, because="diverted"),
        attempt=0,
        said="manual",
        recommendation=TAKEN_KEY,
    )


def _make_attempt(
    job: Job, failure: Failure, cause: Cause, group: str, at: float, lane: Lane, decision: str
) -> Attempt:
    return Attempt(
        run=job.run,
        outcome="failed",
        ended_at=at,
        agent=job.agent,
        model=job.model,
        failure=failure,
        cause=cause,
        fingerprint=group,
        decision=decision,
        tier=lane,
    )


def explain_lane(cause: Cause, attempt: int, lane: Lane, cap: int = CAP) -> str:
    """Say in one line why a dead letter is in this lane."""
    if attempt >= cap:
        return f"For a person: tried {attempt} times, the cap is {cap}."
    if lane == "delayed":
        return f"Comes back by itself: {cause.detail} heals by waiting (try {attempt} of {cap})."
    return f"For a person: {cause.detail} does not heal by waiting."


# -- one job_id, many failures


def same_work(job: Job, other: Job) -> bool:
    """Whether two jobs of one id carry the same input: the first as it was given, or as a person has edited it."""
    edited = edited_payload(job)
    return _same_input(job, other) or (edited is not None and same(edited, other.arguments))


def _same_input(job: Job, other: Job) -> bool:
    if job.payload_hash is not None and other.payload_hash is not None:
        return job.payload_hash == other.payload_hash
    if job.payload is None or other.payload is None:
        return True  # its contents were dropped long ago: nothing left to compare
    return bool(msgspec.json.decode(job.payload) == msgspec.json.decode(other.payload))


def settles(done: Job, dead: Job) -> bool:
    """Whether a success settles a dead letter: it had the same input, and no effect that may have landed."""
    return dead.state is State.dead and not dead.may_have_landed and _same_given(done, dead)


def _same_given(job: Job, other: Job) -> bool:
    """Whether two jobs ran with the same input: as it was given, or as a person has edited it since."""
    edits = edited_payload(job), edited_payload(other)
    if edits == (None, None):
        return job.payload_hash == other.payload_hash
    given = [made.arguments if edit is None else edit for made, edit in zip((job, other), edits, strict=True)]
    return same(*given)


def has_failures(job: Job, attempts: Sequence[Attempt]) -> bool:
    """Whether the history of a job has these failures already, so that adding them changes nothing."""
    known = {(attempt.ended_at, attempt.fingerprint) for attempt in job.history}
    return all((attempt.ended_at, attempt.fingerprint) in known for attempt in attempts)


def number_id(job_id: str, number: int) -> str:
    """Make the id of the n-th of several equal lines without an id, so that none of them is lost."""
    return job_id if number <= 1 else f"{job_id}-{number}"


def nth_id(queue: str, job_id: str, number: int) -> str:
    """Make the id of the n-th dead letter of one job_id, for a failure after the last one was settled."""
    return keyed_id(queue, job_id if number == 0 else f"{job_id}\0{number}")


def check_lane(lane: object) -> Lane | None:
    """Return the lane that a caller names; refuses what is none."""
    if lane is None or lane in LANES:
        return lane
    raise InvalidOption(field="lane", problem=f"{lane!r} is not a lane; there are {', '.join(LANES)}")
