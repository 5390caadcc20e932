"""From a record to a dead letter: what its failure means, in which lane it waits, which job it is.

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
"""So many tries, and a person must look, whatever the error is."""
TAKEN_KEY: Final = (
    "It waited beside the store, and its idempotency key was used for something else meanwhile."
    " Compare the two: redrive this one if it is work of its own, else discard it."
)
UNNAMED: Final = "unnamed"
"""The task and queue of letters that nobody named."""


# -- sorting: heals by waiting, or a person must look


TRANSIENT: Final = {"TimeoutError": "timeout", "ConnectionError": "network", "RateLimitError": "rate_limited"}
"""Known to heal, by their bare names: a record rarely says which library a class came from."""


def make_failure(name: str, message: str = "", *, status: int | None = None, kind: str | None = None) -> Failure:
    """What a mere name tells."""
    return Failure("exception", _list_types(name), message, status=status, error_kind=kind)


@lru_cache(maxsize=1024)
def _list_types(name: str) -> tuple[str, ...]:
    """A bare name stands for the builtin and for every class of that name that we know."""
    bare = name.rpartition(".")[2]
    known = (full for full in CLASSES if full.rpartition(".")[2] == bare)
    return tuple(dict.fromkeys((name, *_list_builtin_types(bare), *known)))


def _list_builtin_types(bare: str) -> tuple[str, ...]:
    """The builtin exception of this name and what it derives from."""
    kind = getattr(builtins, bare, None)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return ()
    return tuple(f"builtins.{base.__name__}" for base in kind.__mro__[:-1])


def read_failure(record: FailureRecord) -> Failure:
    """What the record says was seen."""
    bare = record.error_class.rpartition(".")[2]
    message = "" if record.error == bare else record.error.removeprefix(f"{bare}:").strip()
    return make_failure(record.error_class, message, status=record.status, kind=record.detail)


def find_cause(failure: Failure, first: Sequence[tuple[str, Rule]] = ()) -> Cause:
    """What it means; where no rule knows, the bare name may."""
    cause = classify(failure, first)
    if cause.detail == "unknown" and failure.error_class in TRANSIENT:
        return classify(failure, (("bare_class", lambda failure: TRANSIENT[failure.error_class]),))
    return cause


def read_cause(record: FailureRecord) -> Cause:
    """A pure function of the record."""
    return find_cause(read_failure(record))


def choose_lane(cause: Cause, attempt: int, *, cap: int = CAP, said: Lane | None = None) -> Lane:
    """At the cap a person looks. Below it, what heals by waiting comes back by itself, and the rest is for a person."""
    if attempt >= cap:
        return "manual"
    if said is not None:
        return said
    return "delayed" if cause.category == "transient" or cause.heals == "later" else "manual"


def find_return_time(job: Job, lane: Lane, now: float) -> float | None:
    """When a recorded dead letter comes back by itself; a script's next cycle brings back its own."""
    return now + MOVED_LATER if lane == "delayed" and not job.queue.startswith(CYCLE) else None


def write_advice(cause: Cause, lane: Lane) -> str:
    if lane == "delayed":
        return "It heals by waiting: a worker or the next cycle tries it again. You can also redrive it."
    return advice.advice_for(cause, "Find out what the error means, fix it, then redrive or discard it.")


def rewrite_advice(lane: Lane, letter: Job, cause: Cause) -> str:
    """Return the advice for a dead letter that goes to this lane: what its failure or a person said stays.

    What we advised for the lane that it was in would be wrong in another one.
    """
    ours = [write_advice(cause, "delayed"), write_advice(cause, "manual")]
    said = letter.recommendation
    return write_advice(cause, lane) if said is None or said in ours else said


# -- a record as a job


class BirthRules(msgspec.Struct, frozen=True):
    """How records become jobs. What is said here goes before what the record says; None leaves it the word."""

    now: float
    queue: str | None = None
    task: str | None = None
    cap: int = CAP
    state: Literal[State.dead, State.waiting] = State.dead
    because: str = "imported"


def find_place(record: FailureRecord, born: BirthRules) -> tuple[str, str]:
    """(queue, task): a task's queue is its name unless said otherwise."""
    task = born.task or record.task or UNNAMED
    return born.queue or record.queue or task, task


def find_id(record: FailureRecord, born: BirthRules) -> str:
    """The same record is the same job in every store, however often it is imported."""
    return record.id or keyed_id(find_place(record, born)[0], record.job_id)


def make_job(record: FailureRecord, born: BirthRules) -> Job:
    """The job of a record: dead with everything a person needs, or waiting where it shall simply run."""
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
    return _make_dead(job, record, born, failed) if born.state is State.dead else job


def _make_dead(job: Job, record: FailureRecord, born: BirthRules, failed: float) -> Job:
    return make_dead_job(
        job,
        read_failure(record),
        read_cause(record),
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
    """A job whose failure happened elsewhere. A time from the future is kept in its story and nowhere else."""
    lane = choose_lane(cause, attempt, cap=born.cap, said=said)
    group = group or fingerprint(failure, job.task, job.model)
    at = min(failed_at, born.now)
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
        history=(
            _make_attempt(job, failure, cause, failed_at, group, lane, explain_lane(cause, attempt, lane, born.cap)),
        ),
    )


def move_documents(id: str, documents: Iterable[Put]) -> tuple[Put, ...]:
    """What stands beside a job, for the same job under another id."""
    return tuple(msgspec.structs.replace(put, key=f"{id}/{put.key.partition('/')[2]}") for put in documents)


def dead_letter_of_taken_key(job: Job, failure: Failure, now: float) -> Job:
    """What was accepted beside the store under a key that means something else there, as a letter for a person."""
    id = keyed_id(job.queue, f"{job.key}\n{job.payload_hash}")
    born = BirthRules(now, because="diverted")
    return make_dead_job(
        msgspec.structs.replace(job, id=id, key=None),
        failure,
        find_cause(failure),
        failed_at=now,
        born=born,
        attempt=0,
        said="manual",
        recommendation=TAKEN_KEY,
    )


def _make_attempt(
    job: Job, failure: Failure, cause: Cause, at: float, group: str, lane: Lane, decision: str
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
    """Why it stands in this lane, in one line."""
    if attempt >= cap:
        return f"For a person: tried {attempt} times, the cap is {cap}."
    if lane == "delayed":
        return f"Comes back by itself: {cause.detail} heals by waiting (try {attempt} of {cap})."
    return f"For a person: {cause.detail} does not heal by waiting."


# -- one job_id, many failures


def same_work(job: Job, other: Job) -> bool:
    """Whether two jobs of one id carry the same input: as the first was given it, or as somebody has edited it."""
    return _same_input(job, other) or _same_edit(job, other)


def _same_edit(job: Job, other: Job) -> bool:
    edited = edited_payload(job)
    return edited is not None and same(edited, other.arguments)


def _same_input(job: Job, other: Job) -> bool:
    if job.payload_hash is not None and other.payload_hash is not None:
        return job.payload_hash == other.payload_hash
    if job.payload is None or other.payload is None:
        return True  # its contents were dropped long ago: nothing left to compare
    return bool(msgspec.json.decode(job.payload) == msgspec.json.decode(other.payload))


def settles(done: Job, letter: Job) -> bool:
    """Whether a success settles a dead letter: another input is other work, and what may have landed needs a look."""
    return letter.state is State.dead and not letter.may_have_landed and _same_given(done, letter)


def _same_given(one: Job, other: Job) -> bool:
    """Whether two jobs ran with the same input: as it was given, or as somebody has edited it since."""
    edits = edited_payload(one), edited_payload(other)
    if edits == (None, None):
        return one.payload_hash == other.payload_hash
    given = [job.arguments if edit is None else edit for job, edit in zip((one, other), edits, strict=True)]
    return same(*given)


def has_failures(job: Job, attempts: Sequence[Attempt]) -> bool:
    """Whether the job's story has these failures already: telling them twice changes nothing."""
    told = {(attempt.ended_at, attempt.fingerprint) for attempt in job.history}
    return all((attempt.ended_at, attempt.fingerprint) in told for attempt in attempts)


def number_id(job_id: str, number: int) -> str:
    """The id of the n-th line that says the same and has no id of its own: none of them is lost."""
    return job_id if number <= 1 else f"{job_id}-{number}"


def nth_id(queue: str, job_id: str, number: int) -> str:
    """The id of the n-th letter of one job_id, for a failure that comes after the last one was settled."""
    return keyed_id(queue, job_id if number == 0 else f"{job_id}\0{number}")


def check_lane(lane: object) -> Lane | None:
    """A lane as a caller names it, or a refusal."""
    if lane is None or lane in LANES:
        return lane
    raise InvalidOption(field="lane", problem=f"{lane!r} is not a lane; there are {', '.join(LANES)}")
