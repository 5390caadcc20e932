"""Everything redrive raises, as one tree.

RedriveError
├── ConfigError               a setting, file or URL that cannot be used
├── InvalidInput              bad input from outside: names the field and the problem, nothing was changed
│   ├── InvalidPayload        not a JSON object, too large, too deep, NaN, forbidden URL, …
│   ├── InvalidOption         an unknown option or an impossible value
│   └── KeyReused             the idempotency key already stands for another payload or task
├── JobError
│   ├── JobNotFound           no such job
│   ├── IllegalMove           the lifecycle has no such move from the job's present state
│   ├── StaleJob              another process changed the job first
│   ├── JobNotReady           it would be refused before it starts: brought back as it is, it would die again
│   ├── JobDead               the job ended as a dead letter
│   └── JobDiscarded          the job was cancelled or discarded
├── StoreError
│   ├── StoreUnavailable      the store cannot be opened or reached: nothing was written
│   │   ├── StoreBusy         another process held the store for too long
│   │   ├── StoreFull         no space left: nothing was written
│   │   └── StoreRefused      network filesystem, newer schema, not a redrive database
│   ├── SessionUnknown        a hub does not know this client: nothing was executed
│   ├── StoreFailed           the disk reported a failed sync: the store stopped itself
│   └── CommitUnknown         the write may or may not have happened: repeat it with the same key
├── DatabaseInUse             a second SQLite or open() on the file of an open store, in the same process
├── EffectNotFound            no effect without a job has this key
├── OnceInProgress            another process performs this effect at the moment
└── OutcomeUnknown            for tasks: "the call was made; it is not known whether it landed"

Signals (BaseException, so that `except Exception` cannot swallow them)
├── Retry                     try again, after so many seconds
├── Snooze                    not now; costs no attempt
├── GiveUp                    no retry will help: a dead letter at once, with a recommendation
└── Cancel                    the work is no longer wanted: discard the job
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

LONGEST_SNOOZE: Final = 10 * 366 * 86400.0


class RedriveError(Exception):
    """The root of everything redrive raises on purpose."""


class ConfigError(RedriveError, ValueError):
    """A setting that cannot be used."""


class InvalidInput(RedriveError, ValueError):
    """Bad input: names the field and the problem. Nothing was changed."""

    def __init__(self, *, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.error_kind: str | None = None


class InvalidPayload(InvalidInput):
    """The payload cannot be accepted."""


class InvalidOption(InvalidInput):
    """An option that does not exist or cannot have this value."""


class KeyReused(InvalidInput):
    """The idempotency key already stands for another payload or task in this queue."""


class JobError(RedriveError):
    """About one job."""

    def __init__(self, message: str, *, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobNotFound(JobError, LookupError):
    """No job has this id."""


class IllegalMove(JobError):
    """The lifecycle has no such move from the job's present state."""


class StaleJob(JobError):
    """Another process changed the job between reading and writing it."""


class JobNotReady(JobError):
    """Brought back as it is, the job would be refused before it starts; the message says what to change."""


class JobDead(JobError):
    """The job ended as a dead letter; `reason` and `recommendation` say why and what to do."""

    def __init__(self, message: str, *, job_id: str, reason: str, recommendation: str | None = None) -> None:
        super().__init__(message, job_id=job_id)
        self.reason = reason
        self.recommendation = recommendation


class JobDiscarded(JobError):
    """The job was cancelled or discarded."""


class StoreError(RedriveError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store cannot be used now. Nothing was written."""


class StoreBusy(StoreUnavailable):
    """Another process held the store for too long."""


class StoreFull(StoreUnavailable):
    """No space left on the device. Nothing was written; it works again when there is room."""


class StoreRefused(StoreUnavailable):
    """This file must not be used: network filesystem, newer schema, or not a redrive database."""


class StoreFailed(StoreError):
    """The disk reported a failed sync, so nothing can be promised any more: the store stopped itself."""


class CommitUnknown(StoreError):
    """The write may or may not have happened. Repeating it with the same id or key is safe."""


class SessionUnknown(StoreError):
    """A hub does not know this client any more: nothing was executed; it begins a new session."""


class DatabaseInUse(RedriveError, RuntimeError):
    """Refuses a second opening of a store's file in the process that uses the store. Nothing was opened.

    Closing such a descriptor would drop the store's locks. Read through `rd`, or in another process with
    `redrive sql`; copy with `redrive backup`.
    """

    error_kind = "bug"


class EffectNotFound(RedriveError, LookupError):
    """No effect without a job has this key."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class OnceInProgress(RedriveError):
    """Refuses a call of `redrive.once` while another process performs the same effect. Nothing was done here."""

    error_kind = "contention"

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class OutcomeUnknown(RedriveError):
    """Raised by a task: the outside call was made, and it is not known whether it landed.

    `redrive.once` raises it, too, where an earlier call was begun, its end is not known, and no verifier can tell.
    `witness` is what to look for outside (JSON): kept with the job and given to the task's verifiers before a replay.
    """

    def __init__(self, *args: object, witness: object = None) -> None:
        super().__init__(*args)
        self.witness = witness


class Signal(BaseException):
    """What a task raises to say what should happen next."""


class Retry(Signal):
    """Try again, after `after` seconds or the queue's backoff. Counts as a failed attempt."""

    def __init__(self, message: str = "the task asked for a retry", *, after: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after.total_seconds() if isinstance(after, timedelta) else after


class Snooze(Signal):
    """Not now: run again in `seconds`. Costs no attempt."""

    def __init__(self, seconds: float | timedelta, message: str = "the task asked to be run later") -> None:
        super().__init__(message)
        span = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if not span <= LONGEST_SNOOZE:
            raise InvalidOption(field="seconds", problem=f"{seconds!r} is not a span of up to ten years")
        self.seconds = max(0.0, span)


class GiveUp(Signal):
    """No retry will help: a dead letter at once."""

    def __init__(self, reason: str, *, recommendation: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.recommendation = recommendation


class Cancel(Signal):
    """The work is no longer wanted: the job is discarded."""

    def __init__(self, reason: str = "the task cancelled the job") -> None:
        super().__init__(reason)
        self.reason = reason
