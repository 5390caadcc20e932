"""The commands that change a store, as values.

Executing a command is deterministic: it reads no clock, draws no random number and knows no host. So a log of commands
that is executed in order gives the same jobs in every file. What the issuer can choose (ids, tokens, times), it does.
"""

from __future__ import annotations

import msgspec

from redrive.core.job import Job
from redrive.core.lifecycle import Transition
from redrive.core.store import Commit, Lease, Put, Wanted


class Ticket(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names one command of a client, so that it is executed once however often it is sent."""

    client: str
    number: int
    never_below: int = 0
    """The client sends no command below this number again."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Begin the session of a client. Commands of a client without a session, or with an expired one, are refused."""

    client: str
    now: float
    level: int | None = None
    """The level of the Machine that the client replays; None for one that replays nothing."""


class Insert(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Add jobs, and the documents that go beside them. A job whose id is known is left as it is."""

    jobs: tuple[Job, ...]
    puts: tuple[Put, ...] = ()
    stamp: float | None = None
    """The latest time of these jobs where it must be kept, so that a clock that goes back is noticed."""


class Apply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Write each commit whole or not at all, if its fences hold."""

    commits: tuple[Commit, ...]


class Take(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Claim due jobs for a worker under a new token."""

    wanted: Wanted
    worker: str
    process: str
    token: str
    now: float
    again: bool = False
    """Whether it may have been executed before: then the jobs that run under its token are the answer, if any do."""


class GiveBack(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Undo a Take that has no caller any more: the jobs under this token wait again, at no cost."""

    token: str


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Extend leases."""

    leases: tuple[Lease, ...]
    now: float | None = None


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Drop the contents of these ended jobs, forget the keys of those, and the minutes before this one."""

    ids: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    minutes_before: int = 0


class Erase(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget the contents of ended jobs for privacy, with every document that keeps their words."""

    ids: tuple[str, ...]


class Unstick(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Give jobs that a clock ahead of ours stamped their delay again, counted from now."""

    now: float


class AddUp(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Make the sums of the days from this one on anew from their hours."""

    since: int = 0


Command = Hello | Insert | Apply | Take | GiveBack | Beat | Forget | Erase | Unstick | AddUp


def slim(commit: Commit) -> Commit:
    """Return the commit without what executing it does not read: payloads, results, histories of its jobs."""
    if not commit.transitions:
        return commit
    return msgspec.structs.replace(commit, transitions=tuple(_slim(move) for move in commit.transitions))


def _slim(move: Transition) -> Transition:
    job = move.job
    kept = Job(
        job.id, job.queue, job.task, job.agent, job.state, 0, 0.0, job.version, 0.0, job.updated_at, None,
        token=job.token, fingerprint=job.fingerprint, error=job.error, died_at=job.died_at,
        revived_by=job.revived_by, deferrals=job.deferrals,
    )  # fmt: skip
    return msgspec.structs.replace(move, job=kept, answered=False)
