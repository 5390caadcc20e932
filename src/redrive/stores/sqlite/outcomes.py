"""Outcomes of commands as small values: for the chain over all outcomes, and for clients that ask a second time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from redrive.core.commands import Apply, Beat, Command, Forget, Insert, Take
from redrive.core.job import Job
from redrive.core.store import Applied, Inserted, Outcome, Pruned, Stale
from redrive.errors import StoreError
from redrive.stores.sqlite import reads
from redrive.stores.sqlite.routes import Routes

encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder().decode


class Refused(NamedTuple):
    """The store refused the command, in the same words everywhere; nothing of it was written."""

    problem: str

    def error(self) -> StoreError:
        return StoreError(self.problem)


class Retaken(NamedTuple):
    """The jobs of an earlier Take that still run under its token."""

    found: list[Job]

    @property
    def number(self) -> int:
        return len(self.found)

    def jobs(self) -> list[Job]:
        return self.found

    def next_due(self, connection: apsw.Connection) -> float | None:
        return None


def record(command: object, outcome: Any) -> Any:
    """An outcome as plain values that are equal wherever the command had the same effect."""
    if isinstance(outcome, Refused):
        return ["refused", outcome.problem]
    match command:
        case Insert():
            return [inserted.duplicate for inserted in outcome]
        case Apply():
            return [_of_commit(one) for one in outcome]
        case Take():
            return _of_take(outcome)
        case Beat():
            return [lease.job_id for lease in outcome]
        case Forget():
            return [outcome.payloads, outcome.events, outcome.keys]
        case _:
            return outcome


def _of_take(outcome: Any) -> Any:
    """The jobs and the fences that a Take gave: also where they are those that an earlier one under its token got."""
    if isinstance(outcome, Retaken):
        return [(job.id, job.version) for job in outcome.found]
    return [(job.id, job.version) for each in outcome.picked for job in each.candidates()]


def _of_commit(outcome: Outcome) -> Any:
    return list(outcome.fences) if isinstance(outcome, Applied) else getattr(outcome, "job_id", None) or ""


def again(connection: apsw.Connection, routes: Routes, command: Command, kept: bytes) -> Any:
    """The outcome of a command that was executed before, made from what was kept of it and from the rows of today."""
    said = decode(kept)
    if isinstance(said, list) and said[:1] == ["refused"]:
        return Refused(said[1])
    match command:
        case Insert():
            jobs = _by_id(connection, routes, [job.id for job in command.jobs])
            return [Inserted(jobs.get(job.id, job), twice) for job, twice in zip(command.jobs, said, strict=True)]
        case Apply():
            return [Applied(tuple(one)) if isinstance(one, list) else Stale(one or None) for one in said]
        case Take():
            jobs = _by_id(connection, routes, [id for id, _ in said])
            return Retaken([job for job in jobs.values() if job.token == command.token])
        case Beat():
            return [lease for lease in command.leases if lease.job_id in said]
        case Forget():
            return Pruned(*said)
        case _:
            return said


def _by_id(connection: apsw.Connection, routes: Routes, ids: list[str]) -> Mapping[str, Job]:
    return {job.id: job for job in reads.get(connection, routes, ids)}
