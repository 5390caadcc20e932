"""Names the jobs of a script's cycle, decides what is remembered between cycles, and sums a cycle up.

A job of a cycle is (task, job_id), done once in each cycle: its key has the cycle's id in it. A job that failed in one
cycle comes back in the next under its old key, so a note per (task, job_id) says that this was the next cycle's turn.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, cast, get_args

import msgspec

from redrive.core.checks import check_choice, check_name
from redrive.core.documents import Kind
from redrive.core.job import CYCLE, Failure, Job, State, hash_payload, keyed_id
from redrive.core.payload import Signature
from redrive.core.times import zone_of
from redrive.errors import InvalidOption
from redrive.jobs.dead_letter import BirthRules, find_cause, make_dead_job, same_work

LONGEST: Final = 150
"""Characters of a job_id or a cycle id."""
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
ALERT_AFTER: Final = 3
SEVERITY: Final = 0.7
CONFLICTING: Final = "conflicting_input"
"""The reason of a dead letter that holds an input which its cycle refused."""

Repeat = Literal["cycle", "never"]
Status = Literal["done", "skipped", "diverted", "needs_you", "running_elsewhere", "discarded"]


# ---- names


def queue_of(name: object) -> str:
    """Returns the queue of a cycle: its jobs run where the script runs, and no worker takes them."""
    return CYCLE + check_name("name", name, LONGEST)


def cycle_at(now: float, tz: str) -> str:
    """Returns the id of a cycle that starts now: the date, also where it runs past midnight."""
    return datetime.fromtimestamp(now, zone_of("tz", tz)).date().isoformat()


def checked_id(field: str, value: object) -> str:
    """Checks a job_id or a cycle id; a number is as good as a name."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return check_name(field, text, LONGEST)


def id_from(payload: str) -> str:
    """Returns the job_id of a call that gives none: the same arguments are the same job."""
    canonical = msgspec.json.encode(msgspec.json.decode(payload), order="sorted")
    return hashlib.sha256(canonical).hexdigest()[:16]


def key_of(queue: str, task: str, job_id: str, cycle_id: str | None) -> str:
    """Returns a job's key: `nightly/publish:site-1@2031-05-17`, or without a date where it is done once for ever.

    Receivers see it as the idempotency key, so it names the cycle: two scripts may use the same names.
    """
    name = f"{key_prefix(queue)}{_escape(task)}:{_escape(job_id)}"
    return name if cycle_id is None else f"{name}@{_escape(cycle_id)}"


def key_prefix(queue: str) -> str:
    """Returns how the keys of a cycle's jobs and notes begin."""
    return f"{_escape(queue.removeprefix(CYCLE))}/"


def note_key(queue: str, task: str, job_id: str) -> str:
    """Returns the key of the note that all cycles share."""
    return key_of(queue, task, job_id, None)


def names_of(job: Job) -> tuple[str, str | None]:
    """Returns (job_id, cycle id) of a job in a cycle's queue; a job that came from elsewhere has no cycle."""
    ours = key_of(job.queue, job.task, "", None)
    if job.key is None or not job.key.startswith(ours):
        return job.key or job.id, None
    job_id, cycle_id, *_ = [*job.key.removeprefix(ours).split("@"), ""]
    return _unescape(job_id), _unescape(cycle_id) or None


_ESCAPES: Final = (("%", "%25"), ("/", "%2F"), (":", "%3A"), ("@", "%40"))


def _escape(text: str) -> str:
    for sign, code in _ESCAPES:
        text = text.replace(sign, code)
    return text


def _unescape(text: str) -> str:
    for sign, code in reversed(_ESCAPES):
        text = text.replace(code, sign)
    return text


# ---- inputs: a job_id stands for one input in a cycle


def checked_repeat(value: object, otherwise: Repeat) -> Repeat:
    return otherwise if value is None else cast("Repeat", check_choice("repeat", value, get_args(Repeat)))


def checked_ignore(value: object) -> tuple[str, ...]:
    """Checks the names of arguments that do not count; one name may stand alone."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise InvalidOption(field="ignore", problem=f"{value!r} must be names of arguments, e.g. ('path',)")
    return tuple(names)


def strip_ignored(payload: str, ignore: Collection[str]) -> str:
    """Returns the part of a payload that counts."""
    if not ignore:
        return payload
    arguments = msgspec.json.decode(payload)
    return msgspec.json.encode({name: value for name, value in arguments.items() if name not in ignore}).decode()


def known_by(job: Job, ignore: Collection[str]) -> Job:
    """Gives a job the hash of the arguments that count: two jobs with the same hash have the same input."""
    if not ignore or job.payload is None:
        return job
    return msgspec.structs.replace(job, payload_hash=hash_payload(strip_ignored(job.payload, ignore), job.task))


def same_input(known: Job, given: Job, signature: Signature, ignore: Collection[str]) -> bool:
    """Compares what counts of two inputs. A default is the same, spelled out or left out."""
    if known.payload_hash == given.payload_hash:
        return True
    if known.payload is None or given.payload is None:
        return False
    try:
        texts = [strip_ignored(job.payload or "", ignore) for job in (known, given)]
    except msgspec.MsgspecError:  # a disk has damaged the stored payload
        return False
    return signature.same(*texts) or (bool(known.changes_json) and same_work(known, given))


CONFLICT: Final = (
    "Compare the two inputs. Redrive this dead letter if it is work of its own, else discard it. Give each input its"
    " own job_id; name arguments that change with every start in ignore=(...)."
)


def conflicting(job: Job, failure: Failure, now: float) -> Job:
    """Makes the dead letter that keeps an input which its cycle refused: one for each input.

    Its key has the input's hash behind the cycle's id, so that it is never taken for the job that was accepted.
    """
    key = f"{job.key}{'' if '@' in (job.key or '') else '@'}@{(job.payload_hash or '')[:16]}"
    refused = msgspec.structs.replace(job, id=keyed_id(job.queue, key), key=key)
    born = BirthRules(now, because=CONFLICTING)
    return make_dead_job(
        refused,
        failure,
        find_cause(failure),
        failed_at=now,
        born=born,
        attempt=0,
        said="manual",
        recommendation=CONFLICT,
    )


# ---- what is remembered between cycles


class CycleNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What cycles remember of one (task, job_id) beyond its jobs."""

    task: str
    job_id: str
    job: str
    """The job that had its turn last."""
    cycle: str | None = None
    """The cycle that `turns` and `asked` are about."""
    turns: tuple[str, ...] = ()
    """Jobs of earlier cycles that have had their turn in this cycle."""
    asked: bool = False
    """Whether the script asked for the input of one of those jobs: then this cycle refuses any other input."""
    failed: str | None = None
    """The last cycle in which the job failed: it is not tried again before the next."""
    failing: int = 0
    """In how many cycles in a row the job failed."""
    told: str | None = None
    """The last cycle in which people were told that the job keeps failing."""


CYCLE_NOTE: Final = Kind[CycleNote]("cycle", CycleNote, unwritten=("error",))


def turns_in(note: CycleNote | None, cycle_id: str) -> tuple[str, ...]:
    """Returns the ids of the jobs of earlier cycles that have had their turn in this one."""
    return note.turns if note is not None and note.cycle == cycle_id else ()


def was_asked(note: CycleNote | None, cycle_id: str) -> bool:
    """Says whether this cycle's script has asked for the input of a job of an earlier cycle."""
    return note is not None and note.cycle == cycle_id and note.asked


def after_asking(note: CycleNote | None, job: Job, cycle_id: str) -> CycleNote:
    """Notes that the script asked for the input of this job, which is an earlier cycle's."""
    before = note or CycleNote(job.task, names_of(job)[0], job.id)
    return msgspec.structs.replace(before, cycle=cycle_id, turns=_with_turn(note, job, cycle_id), asked=True)


def after_success(note: CycleNote | None, job: Job, cycle_id: str) -> CycleNote | None:
    """Notes a success; None where the states of the jobs say it all, and nothing need be remembered."""
    job_id, _ = names_of(job)
    once_for_ever = job.key == key_of(job.queue, job.task, job_id, None)
    turns = turns_in(note, cycle_id) if once_for_ever else _with_turn(note, job, cycle_id)
    asked = was_asked(note, cycle_id)
    return CycleNote(job.task, job_id, job.id, cycle=cycle_id, turns=turns, asked=asked) if turns else None


def after_failure(note: CycleNote | None, job: Job, cycle_id: str) -> CycleNote:
    job_id, _ = names_of(job)
    before = note or CycleNote(job.task, job_id, job.id)
    more = 0 if before.failed == cycle_id else 1
    return msgspec.structs.replace(
        before,
        job=job.id,
        failed=cycle_id,
        failing=before.failing + more,
        cycle=cycle_id,
        turns=_with_turn(note, job, cycle_id),
        asked=was_asked(note, cycle_id),
    )


def _with_turn(note: CycleNote | None, job: Job, cycle_id: str) -> tuple[str, ...]:
    """Adds a job of an earlier cycle to those that had their turn; this cycle's own job is known by its key."""
    turns = turns_in(note, cycle_id)
    return turns if names_of(job)[1] == cycle_id or job.id in turns else (*turns, job.id)


def keeps_failing(note: CycleNote, alert_after: int) -> bool:
    """Whether a job failed in so many cycles in a row, and people were not told in the last of them."""
    return note.failing >= alert_after and note.told != note.failed


def in_words(note: CycleNote, job: Job | None) -> str:
    """Says what keeps failing. The error is read from the job: a note outlives what is erased."""
    error = (job.error or job.because or "")[:300] if job is not None else ""
    problem = f"{note.task} {note.job_id} has failed in {note.failing} cycles in a row: {error}"
    return f"{problem} → redrive dead show {note.job[-8:]}"


def severity(note: CycleNote, alert_after: int) -> float:
    return min(1.0, SEVERITY + 0.1 * (note.failing - alert_after))


# ---- moves


def status_of(job: Job) -> Status:
    """Says how a job stands when its turn in a cycle is over."""
    if job.state is State.dead:
        return "diverted" if job.lane == "delayed" else "needs_you"
    if job.state is State.held:
        return "diverted" if job.because == "circuit_open" else "needs_you"
    return _STATUSES.get(job.state, "discarded")


_STATUSES: Final[Mapping[State, Status]] = {
    State.done: "done",
    State.running: "running_elsewhere",
    State.waiting: "diverted",
}


# ---- the sum

WORDS: Final[Mapping[Status, tuple[str, str]]] = {
    "done": ("done", "done"),
    "skipped": ("already done", "already done"),
    "diverted": ("comes back next cycle", "come back next cycle"),
    "running_elsewhere": ("running elsewhere", "running elsewhere"),
    "discarded": ("discarded", "discarded"),
    "needs_you": ("needs you", "need you"),
}
GOOD: Final = ("done", "skipped")


class Left(msgspec.Struct, frozen=True):
    """A number of jobs of one task and status that an earlier cycle left and this one did not touch."""

    task: str
    status: Status
    number: int


class Summary(msgspec.Struct, frozen=True):
    """Sums a cycle up. Every job counts once; a second call for a job that is done counts as already done."""

    name: str
    cycle_id: str
    done: int = 0
    skipped: int = 0
    diverted: int = 0
    needs_you: int = 0
    running_elsewhere: int = 0
    discarded: int = 0
    brought_back: int = 0
    """How many jobs came from the delayed lane, or were left by a process that died."""
    left: tuple[Left, ...] = ()
    alerts: tuple[str, ...] = ()

    @property
    def accepted(self) -> int:
        return sum(getattr(self, status) for status in WORDS)

    @property
    def exit_code(self) -> int:
        """0 only where everything was done, now or before."""
        return 0 if all(status in GOOD or not getattr(self, status) for status in WORDS) else 1

    @property
    def line(self) -> str:
        parts = [f"{getattr(self, status)} {_words(status, getattr(self, status))}" for status in WORDS]
        shown = [part for part in parts if not part.startswith("0 ")] or ["nothing to do"]
        back = f" ({self.brought_back} from earlier)" if self.brought_back else ""
        look = " → redrive morning" if self.needs_you else ""
        jobs = f"{self.accepted} job{'' if self.accepted == 1 else 's'}"
        return f"{self.name} {self.cycle_id}: {jobs}{back}: {', '.join(shown)}{look}"

    def __str__(self) -> str:
        lines = [self.line, *(f"  keeps failing: {alert}" for alert in self.alerts)]
        if self.left:
            lines.append("  left from before: " + ", ".join(_left_words(left) for left in self.left))
        return "\n".join(lines)


def _words(status: Status, number: int) -> str:
    return WORDS[status][0 if number == 1 else 1]


def _left_words(left: Left) -> str:
    if left.status == "diverted":
        verb = "comes back" if left.number == 1 else "come back"
        return f"{left.number} {left.task} ({verb} when a cycle runs {left.task})"
    return f"{left.number} {left.task} ({_words(left.status, left.number)})"


def left_over(counts: Mapping[tuple[str, Status], int], touched: Iterable[tuple[str, Status]]) -> list[Left]:
    """Counts the jobs in the queue without those that this cycle has counted itself."""
    rest = Counter(counts) - Counter(touched)
    return [Left(task, status, number) for (task, status), number in sorted(rest.items())]
