"""Writes jobs and commits inside the writer's transaction: inserts, moves under a fence, documents, heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

import apsw
import msgspec

from redrive.core.documents import OfJob, of_job
from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition, wrong_beginning
from redrive.core.store import MAX_PARTS, Applied, Commit, Guard, Inserted, Lease, Outcome, Put, Stale
from redrive.errors import StoreError
from redrive.stores.sqlite import schema
from redrive.stores.sqlite.batches import RENAMED, Batch, list_fence, list_move_values
from redrive.stores.sqlite.records import PUT_DOCUMENT, Route, RouteCache, Row, get, select
from redrive.stores.sqlite.rollups import MINUTE, Rollup, add_moves, enqueue_in_open_minute

_json = msgspec.json.Encoder().encode
Accepted = tuple[Sequence[Job], Sequence[Put]]
"""What one caller hands in: jobs, and the documents that go beside them."""

# -- inserts

STAMP: Final = (
    "INSERT INTO docs (kind, key, value) VALUES ('clock', 'last', ?1) ON CONFLICT (kind, key)"
    " DO UPDATE SET value = ?1, version = version + 1 WHERE CAST(value AS REAL) < CAST(?1 AS REAL)"
)
_INSERTED: Final = (
    *("id", "route", "state", "priority", "run_at", "created_at", "updated_at", "payload", "allowed", "lease"),
    *("key", "payload_hash", "session_id", "model", "reason", "options_json", "because", "lane", "category", "detail"),
    *("subclass", "fingerprint", "error_class", "error", "recommendation", "attempts", "held_at", "first_failed_at"),
    *("held_for", "died_at", "owner", "comes_back_at"),
)
_INSERT: Final = (
    f"INSERT INTO jobs ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))}) ON CONFLICT (id) DO NOTHING"
)
_PLAIN: Final = ("id", "route", "priority", "run_at", "created_at", "updated_at", "payload", "allowed")
_INSERT_PLAIN: Final = (
    f"INSERT INTO jobs ({', '.join(_PLAIN)}) VALUES ({', '.join('?' * len(_PLAIN))}) ON CONFLICT (id) DO NOTHING"
)
"""For the common job, which sets nothing special: eight values instead of thirty-two."""
_INSERT_MANY: Final = (
    f"INSERT INTO jobs ({', '.join(_PLAIN)}) SELECT {', '.join(f'value ->> {n}' for n in range(len(_PLAIN)))}"
    " FROM jsonb_each(?) WHERE true ON CONFLICT (id) DO NOTHING"
)
"""For many common jobs in one sqlite3_step, so that the GIL is free meanwhile."""


def insert(
    connection: apsw.Connection, routes: RouteCache, callers: Sequence[Accepted], *, opens_minutes: bool
) -> list[list[Inserted]]:
    """Insert the jobs of all callers in one go, and answer with the job that owns an id already where one does.

    Counters are written once per route, not once per job.
    """
    jobs = [job for listed, _ in callers for job in listed]
    documents = [put for _, listed in callers for put in listed]
    if _insert_plain(connection, routes, jobs):
        made = jobs
        answers = [Inserted(job) for job in jobs]
    else:
        fresh = [_insert_one(connection, routes, job) for job in jobs]
        made = [job for job, new in zip(jobs, fresh, strict=True) if new]
        answers = _make_answers(connection, routes, jobs, fresh)
        _note_imports(connection, routes, made)
    _count_new(connection, routes, made, opens_minutes=opens_minutes)
    if documents:
        _put_first(connection, documents, {job.id for job in made})
    inserted = iter(answers)
    return [list(islice(inserted, len(listed))) for listed, _ in callers]


def _make_answers(
    connection: apsw.Connection, routes: RouteCache, jobs: Sequence[Job], fresh: Sequence[bool]
) -> list[Inserted]:
    known = [job.id for job, new in zip(jobs, fresh, strict=True) if not new]
    existing = {job.id: job for job in get(connection, routes, known)}
    return [
        Inserted(job) if new else Inserted(existing[job.id], duplicate=True)
        for job, new in zip(jobs, fresh, strict=True)
    ]


def _put_first(connection: apsw.Connection, documents: Sequence[Put], made: set[str]) -> None:
    """Write the documents of new jobs; where a key came twice in one call, those of its first job."""
    first = {(put.kind, put.key): put for put in reversed(documents) if put.key.partition("/")[0] in made}
    for put in first.values():
        _put(connection, put)


def _insert_plain(connection: apsw.Connection, routes: RouteCache, jobs: Sequence[Job]) -> bool:
    """Insert jobs that are all new and set nothing special, as most are; else write nothing and return False."""
    if len(jobs) == 1:
        return is_plain(jobs[0]) and _insert_one(connection, routes, jobs[0])
    if not all(is_plain(job) for job in jobs):
        return False
    rows = [_plain_values(job, routes.number((job.queue, job.task, job.agent))) for job in jobs]

    def all_new() -> bool:
        connection.execute(_INSERT_MANY, (_json(rows).decode(),))
        return connection.changes() == len(jobs)

    return _write_together(connection, all_new)


def _write_together(connection: apsw.Connection, write: Callable[[], bool]) -> bool:
    """Write all, or nothing where `write` says no or a value is larger than SQLite allows."""
    connection.execute("SAVEPOINT together")
    try:
        written = write()
    except apsw.TooBigError:
        written = False
    if not written:
        connection.execute("ROLLBACK TO together")
    connection.execute("RELEASE together")
    return written


def is_plain(job: Job) -> bool:
    """Whether a new job sets nothing special."""
    return (
        job.key is None
        and job.options_json is None
        and job.session_id is None
        and job.model is None
        and job.lease is None
        and job.state is State.waiting
        and job.reason == "direct"
    )


def _plain_values(job: Job, route: int) -> tuple[Any, ...]:
    at = job.created_at
    return (job.id, route, job.priority, job.run_at, at, at, job.payload, job.allowed)


def _insert_values(job: Job, route: int) -> tuple[Any, ...]:
    return tuple(
        route if name == "route" else str(job.state) if name == "state" else getattr(job, name) for name in _INSERTED
    )


def _insert_one(connection: apsw.Connection, routes: RouteCache, job: Job) -> bool:
    route = routes.number((job.queue, job.task, job.agent))
    if is_plain(job):
        connection.execute(_INSERT_PLAIN, _plain_values(job, route))
        return connection.changes() == 1
    if problem := wrong_beginning(job):
        raise StoreError(problem)
    connection.execute(_INSERT, _insert_values(job, route))
    made = connection.changes() == 1
    if made and job.state is State.dead:
        attempt = job.history[-1] if job.history else None
        _insert_move(connection, Transition("imported", job, State.dead, job.updated_at, {}, attempt, why=job.because))
    return made


class CounterChanges:
    """Collects changes of the counters: one update per route at the end of a transaction, not one per job."""

    def __init__(self) -> None:
        self._changes: dict[int, dict[str, int]] = {}

    def add(self, route: int, state: str, number: int) -> None:
        changes = self._changes.setdefault(route, {})
        changes[state] = changes.get(state, 0) + number

    def move(self, source: int, from_: str, target: int, to: str, number: int = 1) -> None:
        self.add(source, from_, -number)
        self.add(target, to, number)

    def write(self, connection: apsw.Connection) -> None:
        for route, changes in self._changes.items():
            connection.execute(_count(tuple(changes)), (*changes.values(), route))


@lru_cache(maxsize=256)
def _count(states: tuple[str, ...]) -> str:
    return f"UPDATE routes SET {', '.join(f'{state} = {state} + ?' for state in states)} WHERE id = ?"


def _count_new(connection: apsw.Connection, routes: RouteCache, jobs: Sequence[Job], *, opens_minutes: bool) -> None:
    kinds: dict[tuple[int, Route, State], int] = {}
    for job in jobs:
        kind = (int(job.created_at) // MINUTE, (job.queue, job.task, job.agent), job.state)
        kinds[kind] = kinds.get(kind, 0) + 1
    for (minute, names, state), number in kinds.items():
        route = routes.number(names)
        enqueued = state is not State.dead
        if enqueued and opens_minutes and enqueue_in_open_minute(connection, minute, route, state, number):
            continue
        connection.execute(_count((state,)), (number, route))
        if enqueued:
            add_moves(connection, minute, route, "enqueued", number)


def _note_imports(connection: apsw.Connection, routes: RouteCache, jobs: Sequence[Job]) -> None:
    if dead := [job for job in jobs if job.state is State.dead]:
        rollup = Rollup()
        for job in dead:
            rollup.add_import(job)
        rollup.write(connection, routes)


# -- commits


def list_routes(moves: Sequence[Transition]) -> set[Route]:
    """Return the routes where these jobs are and where they go."""
    here = {(move.job.queue, move.job.task, move.job.agent) for move in moves}
    return here | {route_after(move) for move in moves if not RENAMED.isdisjoint(move.set)}


def route_after(transition: Transition) -> Route:
    job, fields = transition.job, transition.set
    return (
        str(fields.get("queue", job.queue)),
        job.task,
        fields.get("agent", job.agent),  # type: ignore[return-value]
    )


def apply(
    connection: apsw.Connection, routes: RouteCache, group: Sequence[Commit], batches: Sequence[Batch]
) -> list[Outcome]:
    """Write the batches, then every other commit on its own."""
    counters, rollup = CounterChanges(), Rollup()
    outcomes: dict[int, Outcome] = {}
    for batch in batches:
        if not _write_together(connection, partial(batch.write, connection)):
            continue  # each is tried on its own
        outcomes.update(zip(batch.indexes, batch.outcomes, strict=True))
        rollup.merge(batch.rollup)
        for (queue, task, agent, state), number in batch.sources.items():
            route = routes.number((queue, task, agent))
            counters.move(route, state, route, batch.to, number)
    for index, commit in enumerate(group):
        if index not in outcomes:
            outcomes[index] = _apply_one(connection, routes, commit, counters, rollup)
    counters.write(connection)
    rollup.write(connection, routes)
    return [outcomes[index] for index in range(len(group))]


def refuse_large(group: Sequence[Commit]) -> None:
    for commit in group:
        parts = len(commit.transitions) + len(commit.puts) + len(commit.guards)
        if parts > MAX_PARTS:
            raise StoreError(f"a commit has {parts} parts, the limit is {MAX_PARTS}: split it")


def _apply_one(
    connection: apsw.Connection, routes: RouteCache, commit: Commit, counters: CounterChanges, rollup: Rollup
) -> Outcome:
    if len(commit.transitions) == 1 and not commit.puts and not commit.guards:
        outcome = _write_parts(connection, routes, commit)
    else:
        connection.execute("SAVEPOINT one")
        try:
            outcome = _write_parts(connection, routes, commit)
        except BaseException:
            connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
            raise
        if isinstance(outcome, Stale):
            connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")
    if isinstance(outcome, Applied):
        for transition in commit.transitions:
            job = transition.job
            source = routes.number((job.queue, job.task, job.agent))
            counters.move(source, job.state, routes.number(route_after(transition)), transition.to)
            rollup.add_move(transition)
    return outcome


def _write_parts(connection: apsw.Connection, routes: RouteCache, commit: Commit) -> Outcome:
    for guard in commit.guards:
        if not _holds(connection, guard):
            return Stale(guard.lease.job_id)
    fences = []
    for transition in commit.transitions:
        version = _write_move(connection, routes, transition)
        if version is None:
            return Stale(transition.job.id)
        fences.append(version)
    if not all(_put(connection, put) for put in commit.puts):
        return Stale()
    return Applied(tuple(fences))


_ACTIVE: Final = "UPDATE jobs SET active_at = ifnull(?, active_at) WHERE id = ? AND token = ?"


def _holds(connection: apsw.Connection, guard: Guard) -> bool:
    """Whether the job keeps its lease. Notes when its task wrote this, as a sign of progress."""
    connection.execute(_ACTIVE, (guard.at, guard.lease.job_id, guard.lease.token))
    return connection.changes() > 0


@lru_cache(maxsize=256)
def _make_update(columns: tuple[str, ...], to: State) -> str:
    assignments = ", ".join(f"{name} = ?" for name in (*columns, "state", "updated_at"))
    return (
        f"UPDATE jobs SET {assignments}, version = version + 1"
        f" WHERE id = ? AND version = ? AND token IS ? AND {schema.legal_before(to)}"
    )


def _refuse_illegal(connection: apsw.Connection, move: Transition) -> None:
    """Raise where the fence holds: then the move was not written because the lifecycle table does not have it."""
    holds = "SELECT state FROM jobs WHERE id = ? AND version = ? AND token IS ?"
    for (state,) in select(connection, holds, list_fence(move)):
        raise StoreError(f"illegal move of job {move.job.short_id}: {state} to {move.to}")


def _write_move(connection: apsw.Connection, routes: RouteCache, move: Transition) -> int | None:
    """Write one transition if its fence holds; returns the new fence, or None."""
    columns = {name: value for name, value in move.set.items() if name not in RENAMED}
    if len(columns) != len(move.set):
        columns["route"] = routes.number(route_after(move))
    connection.execute(_make_update(tuple(columns), move.to), (*columns.values(), move.to, move.at, *list_fence(move)))
    if connection.changes() == 0:
        _refuse_illegal(connection, move)
        return None
    if move.to is State.purged:
        forget_contents(connection, select(connection, "SELECT seq, id FROM jobs WHERE id = ?", (move.job.id,)))
    _insert_move(connection, move)
    return move.job.version + 1


_INSERT_MOVE: Final = (
    "INSERT INTO moves (job, run, attempts, move, state, at, who, why, attempt, error_kind)"
    " SELECT seq, run, attempts, ?, ?, ?, ?, ?, ?, ? FROM jobs WHERE id = ?"
)


def _insert_move(connection: apsw.Connection, move: Transition) -> None:
    at, who, why, attempt, kind, id = list_move_values(move)
    text = _json(attempt).decode() if attempt else None
    connection.execute(_INSERT_MOVE, (move.move, move.to, at, who, why, text, kind, id))


def _put(connection: apsw.Connection, put: Put) -> bool:
    """Write or remove a document; returns False where its expected version did not hold."""
    if put.expect is not None:
        row = connection.execute("SELECT version FROM docs WHERE kind = ? AND key = ?", (put.kind, put.key)).fetchone()
        if (row[0] if row else 0) != put.expect:
            return False
    if put.value is None:
        connection.execute("DELETE FROM docs WHERE kind = ? AND key = ?", (put.kind, put.key))
    else:
        connection.execute(PUT_DOCUMENT, (put.kind, put.key, put.value))
    return True


_BEAT: Final = "UPDATE jobs SET beat = beat + 1, beat_at = ifnull(?, beat_at) WHERE id = ? AND token = ?"


def heartbeat(connection: apsw.Connection, leases: Sequence[Lease], now: float | None) -> list[Lease]:
    """Extend leases; returns those that were lost."""
    lost = []
    for lease in leases:
        connection.execute(_BEAT, (now, lease.job_id, lease.token))
        if connection.changes() == 0:
            lost.append(lease)
    return lost


_CONTENTS: Final = sorted(of_job(OfJob.contents))
"""Kinds of documents that are removed with a job's contents."""


def forget_contents(connection: apsw.Connection, jobs: Sequence[Row], kinds: Sequence[str] = _CONTENTS) -> None:
    """Empty the records of these (seq, id): what stays is that there was a job, its route, and who moved it and why."""
    for seq, id in jobs:
        connection.execute("UPDATE jobs SET payload = NULL, result = NULL WHERE seq = ?", (seq,))
        connection.execute(
            "UPDATE moves SET attempt = NULL, why = CASE WHEN who IS NULL THEN NULL ELSE why END WHERE job = ?", (seq,)
        )
        for kind in kinds:
            connection.execute("DELETE FROM docs WHERE kind = ? AND key >= ? AND key < ?", (kind, id, id + "0"))
