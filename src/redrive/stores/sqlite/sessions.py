"""Sessions of clients: a command is executed once, however often and by whatever way its client sends it.

The outcome of a command is kept until its client will not send the command again. A client without a session is
refused, because a late repeat must not be executed a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from redrive.core.commands import Apply, Beat, Command, Forget, Hello, Insert, Take, Ticket
from redrive.core.job import Job
from redrive.core.store import Applied, Inserted, Outcome, Pruned, Stale
from redrive.errors import StoreError
from redrive.stores.sqlite.records import RouteCache, get

EXPIRES: Final = 86_400.0
"""Seconds after which the session of a silent client may be forgotten."""
encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class SessionExpired(Exception):
    """The store does not know this client: nothing was executed."""


class TooLate(Exception):
    """The client had said that it would not send this command again: nothing was executed."""


def begin(connection: apsw.Connection, hello: Hello) -> int:
    """Begin or renew a session, and forget expired ones; returns how many were forgotten."""
    connection.execute("DELETE FROM clients WHERE seen_at < ?", (hello.now - EXPIRES,))
    forgotten = connection.changes()
    if forgotten:
        connection.execute("DELETE FROM answers WHERE client NOT IN (SELECT id FROM clients)")
    connection.execute(
        "INSERT INTO clients (id, seen_at, level) VALUES (?1, ?2, ?3)"
        " ON CONFLICT (id) DO UPDATE SET seen_at = max(seen_at, ?2), level = ?3",
        (hello.client, hello.now, hello.level),
    )
    return forgotten


def execute_once(
    connection: apsw.Connection,
    routes: RouteCache,
    command: Command,
    ticket: Ticket,
    now: float,
    execute: Callable[[], Any],
) -> Any:
    """Execute a command, or give its outcome again where its ticket says that it was executed before."""
    kept = find_outcome(connection, ticket)
    if kept is not None:
        return _restore(connection, routes, command, kept)
    outcome = execute()
    remember(connection, ticket, encode(simplify_outcome(command, outcome)), now)
    return outcome


def find_outcome(connection: apsw.Connection, ticket: Ticket) -> bytes | None:
    """Find the outcome of a command that was executed before, else None; refuses what must not be executed."""
    row = connection.execute("SELECT never_below FROM clients WHERE id = ?", (ticket.client,)).fetchone()
    if row is None:
        raise SessionExpired
    if ticket.number < row[0]:
        raise TooLate
    kept = connection.execute(
        "SELECT outcome FROM answers WHERE client = ? AND number = ?", (ticket.client, ticket.number)
    ).fetchone()
    return kept[0] if kept else None


def remember(connection: apsw.Connection, ticket: Ticket, outcome: bytes, now: float) -> None:
    """Keep the outcome of a command, and drop those that its client will not ask for again."""
    connection.execute(
        "INSERT INTO answers (client, number, outcome) VALUES (?, ?, ?)", (ticket.client, ticket.number, outcome)
    )
    connection.execute(
        "UPDATE clients SET never_below = max(never_below, ?), seen_at = max(seen_at, ?) WHERE id = ?",
        (ticket.never_below, now, ticket.client),
    )
    connection.execute("DELETE FROM answers WHERE client = ? AND number < ?", (ticket.client, ticket.never_below))


# -- outcomes as small values, also for the chain over all outcomes of a log


class RefusedCommand(NamedTuple):
    """The store refused the command, in the same words everywhere; nothing of the command was written."""

    problem: str

    def error(self) -> StoreError:
        return StoreError(self.problem)


class Retaken(NamedTuple):
    """The jobs of an earlier Take that still run under its token."""

    taken: list[Job]

    @property
    def number(self) -> int:
        return len(self.taken)

    def jobs(self) -> list[Job]:
        return self.taken

    def next_due(self, connection: apsw.Connection) -> float | None:
        return None

    def fences(self) -> list[tuple[str, int]]:
        return [(job.id, job.version) for job in self.taken]


def simplify_outcome(command: object, outcome: Any) -> Any:
    """Turn an outcome into plain values that are equal wherever the command had the same effect."""
    if isinstance(outcome, RefusedCommand):
        return ["refused", outcome.problem]
    match command:
        case Insert():
            return [inserted.duplicate for inserted in outcome]
        case Apply():
            return [_simplify_commit(commit) for commit in outcome]
        case Take():
            return outcome.fences()
        case Beat():
            return [lease.job_id for lease in outcome]
        case Forget():
            return [outcome.payloads, outcome.events, outcome.keys]
        case _:
            return outcome


def _simplify_commit(outcome: Outcome) -> Any:
    return list(outcome.fences) if isinstance(outcome, Applied) else getattr(outcome, "job_id", None) or ""


def _restore(connection: apsw.Connection, routes: RouteCache, command: Command, kept: bytes) -> Any:
    """Make the outcome of a command that was executed before from its record and from the rows of today."""
    recorded = _decode(kept)
    if isinstance(recorded, list) and recorded[:1] == ["refused"]:
        return RefusedCommand(recorded[1])
    match command:
        case Insert():
            jobs = _get_by_id(connection, routes, [job.id for job in command.jobs])
            return [Inserted(jobs.get(job.id, job), twice) for job, twice in zip(command.jobs, recorded, strict=True)]
        case Apply():
            return [
                Applied(tuple(commit)) if isinstance(commit, list) else Stale(commit or None) for commit in recorded
            ]
        case Take():
            jobs = _get_by_id(connection, routes, [id for id, _ in recorded])
            return Retaken([job for job in jobs.values() if job.token == command.token])
        case Beat():
            return [lease for lease in command.leases if lease.job_id in recorded]
        case Forget():
            return Pruned(*recorded)
        case _:
            return recorded


def _get_by_id(connection: apsw.Connection, routes: RouteCache, ids: Sequence[str]) -> dict[str, Job]:
    return {job.id: job for job in get(connection, routes, ids)}
