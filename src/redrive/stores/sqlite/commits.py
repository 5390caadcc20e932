"""What the writer does inside its transaction: inserts, commits under a fence, heartbeats, pruning, repair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Final

import apsw
import msgspec

from redrive.core.commands import Forget
from redrive.core.documents import ERASURES, OfJob, of_job
from redrive.core.job import Job, State
from redrive.core.lifecycle import ERASED, Transition, wrong_beginning
from redrive.core.notice import LOOK_THERE
from redrive.core.store import MAX_PARTS, Applied, Commit, Guard, Inserted, Lease, Outcome, Pruned, Put, Stale
from redrive.errors import StoreError
from redrive.stores.sqlite import reads, schema, spans
from redrive.stores.sqlite.bulk import RENAMED, Bulk, fence, told
from redrive.stores.sqlite.connection import BUSY_MS, CHECKPOINT_BUSY_MS
from redrive.stores.sqlite.ledger import MINUTE, Ledger, forget_minutes, happened, oldest_minute
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import (
    IN_LIST,
    INSERT,
    INSERT_MANY,
    INSERT_PLAIN,
    Route,
    Row,
    insert_values,
    is_plain,
    listed,
    plain_values,
    select,
)

_json = msgspec.json.Encoder().encode


STAMP: Final = (
    "INSERT INTO docs (kind, key, value) VALUES ('clock', 'last', ?1) ON CONFLICT (kind, key)"
    " DO UPDATE SET value = ?1, version = version + 1 WHERE CAST(value AS REAL) < CAST(?1 AS REAL)"
)


Accepted = tuple[Sequence[Job], Sequence[Put]]
"""What one caller hands in: jobs, and the documents that go beside them."""


def insert(connection: apsw.Connection, routes: Routes, callers: Sequence[Accepted]) -> list[list[Inserted]]:
    """New jobs, or those that own their ids already; all callers in one go. Counters per route, not per row."""
    jobs = [job for listed, _ in callers for job in listed]
    documents = [put for _, listed in callers for put in listed]
    if _insert_plain(connection, routes, jobs):
        made = jobs
        answers = [Inserted(job) for job in jobs]
    else:
        fresh = [_insert_one(connection, routes, job) for job in jobs]
        made = [job for job, new in zip(jobs, fresh, strict=True) if new]
        answers = _answers(connection, routes, jobs, fresh)
        _note_imports(connection, routes, made)
    _enrol(connection, routes, made)
    if documents:
        _put_first(connection, documents, {job.id for job in made})
    inserted = iter(answers)
    return [list(islice(inserted, len(listed))) for listed, _ in callers]


def _answers(connection: apsw.Connection, routes: Routes, jobs: Sequence[Job], fresh: Sequence[bool]) -> list[Inserted]:
    known = [job.id for job, new in zip(jobs, fresh, strict=True) if not new]
    existing = {job.id: job for job in reads.get(connection, routes, known)}
    return [
        Inserted(job) if new else Inserted(existing[job.id], duplicate=True)
        for job, new in zip(jobs, fresh, strict=True)
    ]


def _put_first(connection: apsw.Connection, documents: Sequence[Put], made: set[str]) -> None:
    """The documents of new jobs; where a key came twice in one call, those of its first job."""
    first = {(put.kind, put.key): put for put in reversed(documents) if put.key.partition("/")[0] in made}
    for put in first.values():
        _put(connection, put)


def _insert_plain(connection: apsw.Connection, routes: Routes, jobs: Sequence[Job]) -> bool:
    """The common case: all new, nothing special. False, and nothing written, where it is not."""
    if not all(is_plain(job) for job in jobs):
        return False
    if len(jobs) == 1:
        return _insert_one(connection, routes, jobs[0])
    rows = [plain_values(job, routes.number((job.queue, job.task, job.agent))) for job in jobs]

    def all_new() -> bool:
        connection.execute(INSERT_MANY, (_json(rows).decode(),))
        return connection.changes() == len(jobs)

    return _together(connection, all_new)


def _together(connection: apsw.Connection, write: Callable[[], bool]) -> bool:
    """All of it, or nothing where it does not fit; nothing, too, where it is more than SQLite takes in one value."""
    connection.execute("SAVEPOINT together")
    try:
        written = write()
    except apsw.TooBigError:
        written = False
    if not written:
        connection.execute("ROLLBACK TO together")
    connection.execute("RELEASE together")
    return written


def _insert_one(connection: apsw.Connection, routes: Routes, job: Job) -> bool:
    route = routes.number((job.queue, job.task, job.agent))
    if is_plain(job):
        connection.execute(INSERT_PLAIN, plain_values(job, route))
        return connection.changes() == 1
    if problem := wrong_beginning(job):
        raise StoreError(problem)
    connection.execute(INSERT, insert_values(job, route))
    made = connection.changes() == 1
    if made and job.state is State.dead:
        _tell(connection, _imported(job))
    return made


def _imported(job: Job) -> Transition:
    """How a job born dead got there, with the attempt it came with."""
    attempt = job.history[-1] if job.history else None
    return Transition("imported", job, State.dead, job.updated_at, {}, attempt, why=job.because)


class Tally:
    """How a group of writes changes the counters: one update per route at its end, not one per job."""

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


def _enrol(connection: apsw.Connection, routes: Routes, jobs: Sequence[Job]) -> None:
    kinds: dict[tuple[Route, State, int], int] = {}
    for job in jobs:
        kind = ((job.queue, job.task, job.agent), job.state, int(job.created_at) // MINUTE)
        kinds[kind] = kinds.get(kind, 0) + 1
    for (names, state, minute), number in kinds.items():
        route = routes.number(names)
        connection.execute(_count((state,)), (number, route))
        if state is not State.dead:
            happened(connection, minute, route, "enqueued", number)


def _note_imports(connection: apsw.Connection, routes: Routes, jobs: Sequence[Job]) -> None:
    dead = [job for job in jobs if job.state is State.dead]
    if dead:
        ledger = Ledger()
        for job in dead:
            ledger.imported(job)
        ledger.write(connection, routes)


def routes_of(moves: Sequence[Transition]) -> set[Route]:
    """Where these jobs are and where they go."""
    here = {(move.job.queue, move.job.task, move.job.agent) for move in moves}
    return here | {route_after(move) for move in moves if not RENAMED.isdisjoint(move.set)}


def route_after(transition: Transition) -> Route:
    job, fields = transition.job, transition.set
    return (
        str(fields.get("queue", job.queue)),
        job.task,
        fields.get("agent", job.agent),  # type: ignore[return-value]
    )


def apply(connection: apsw.Connection, routes: Routes, group: Sequence[Commit], bulks: Sequence[Bulk]) -> list[Outcome]:
    """Every commit on its own; those that were made ready to be written together, together."""
    tally, ledger = Tally(), Ledger()
    outcomes: dict[int, Outcome] = {}
    for bulk in bulks:
        if not _together(connection, partial(bulk.write, connection)):
            continue  # each is tried on its own
        outcomes.update(zip(bulk.indexes, bulk.outcomes, strict=True))
        ledger.include(bulk.ledger)
        for (queue, task, agent, state), number in bulk.sources.items():
            route = routes.number((queue, task, agent))
            tally.move(route, state, route, bulk.to, number)
    for index, commit in enumerate(group):
        if index not in outcomes:
            outcomes[index] = _apply_one(connection, routes, commit, tally, ledger)
    tally.write(connection)
    ledger.write(connection, routes)
    return [outcomes[index] for index in range(len(group))]


def refuse_large(group: Sequence[Commit]) -> None:
    for commit in group:
        parts = len(commit.transitions) + len(commit.puts) + len(commit.guards)
        if parts > MAX_PARTS:
            raise StoreError(f"a commit has {parts} parts, the limit is {MAX_PARTS}: split it")


_MOVE_OF: Final = (
    "INSERT INTO moves (job, run, attempts, move, state, at, who, why, attempt, error_kind)"
    " SELECT seq, run, attempts, ?, ?, ?, ?, ?, ?, ? FROM jobs WHERE id = ?"
)


def _apply_one(connection: apsw.Connection, routes: Routes, commit: Commit, tally: Tally, ledger: Ledger) -> Outcome:
    if len(commit.transitions) == 1 and not commit.puts and not commit.guards:
        outcome = _parts(connection, routes, commit)
    else:
        connection.execute("SAVEPOINT one")
        try:
            outcome = _parts(connection, routes, commit)
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
            tally.move(source, job.state, routes.number(route_after(transition)), transition.to)
            ledger.moved(transition)
    return outcome


def _parts(connection: apsw.Connection, routes: Routes, commit: Commit) -> Outcome:
    for guard in commit.guards:
        if not _holds(connection, guard):
            return Stale(guard.lease.job_id)
    fences = []
    for transition in commit.transitions:
        fence = _transition(connection, routes, transition)
        if fence is None:
            return Stale(transition.job.id)
        fences.append(fence)
    if not all(_put(connection, put) for put in commit.puts):
        return Stale()
    return Applied(tuple(fences))


_ACTIVE: Final = "UPDATE jobs SET active_at = ifnull(?, active_at) WHERE id = ? AND token = ?"


def _holds(connection: apsw.Connection, guard: Guard) -> bool:
    """Whether the job keeps its lease; what its task writes is a sign of its progress."""
    connection.execute(_ACTIVE, (guard.at, guard.lease.job_id, guard.lease.token))
    return connection.changes() > 0


@lru_cache(maxsize=256)
def _update(columns: tuple[str, ...], to: State) -> str:
    assignments = ", ".join(f"{name} = ?" for name in (*columns, "state", "updated_at"))
    return (
        f"UPDATE jobs SET {assignments}, version = version + 1"
        f" WHERE id = ? AND version = ? AND token IS ? AND {schema.legal_before(to)}"
    )


def _refuse_illegal(connection: apsw.Connection, move: Transition) -> None:
    """A fence that holds and a move that was not written: the table does not have it."""
    holds = "SELECT state FROM jobs WHERE id = ? AND version = ? AND token IS ?"
    for (state,) in select(connection, holds, fence(move)):
        raise StoreError(f"illegal move of job {move.job.short_id}: {state} to {move.to}")


def _transition(connection: apsw.Connection, routes: Routes, move: Transition) -> int | None:
    """Write one transition if its fence holds; the new fence, or None."""
    columns = {name: value for name, value in move.set.items() if name not in RENAMED}
    if len(columns) != len(move.set):
        columns["route"] = routes.number(route_after(move))
    connection.execute(_update(tuple(columns), move.to), (*columns.values(), move.to, move.at, *fence(move)))
    if connection.changes() == 0:
        _refuse_illegal(connection, move)
        return None
    if move.to is State.purged:
        _forget(connection, select(connection, "SELECT seq, id FROM jobs WHERE id = ?", (move.job.id,)))
    _tell(connection, move)
    return move.job.version + 1


def _tell(connection: apsw.Connection, move: Transition) -> None:
    """A line of the job's story."""
    at, who, why, attempt, kind, id = told(move)
    text = _json(attempt).decode() if attempt else None
    connection.execute(_MOVE_OF, (move.move, move.to, at, who, why, text, kind, id))


def _put(connection: apsw.Connection, put: Put) -> bool:
    """Write or remove a document; False where its expected version did not hold."""
    if put.expect is not None:
        row = connection.execute("SELECT version FROM docs WHERE kind = ? AND key = ?", (put.kind, put.key)).fetchone()
        if (row[0] if row else 0) != put.expect:
            return False
    if put.value is None:
        connection.execute("DELETE FROM docs WHERE kind = ? AND key = ?", (put.kind, put.key))
    else:
        connection.execute(
            "INSERT INTO docs (kind, key, value) VALUES (?, ?, ?)"
            " ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, version = version + 1",
            (put.kind, put.key, put.value),
        )
    return True


_BEAT: Final = "UPDATE jobs SET beat = beat + 1, beat_at = ifnull(?, beat_at) WHERE id = ? AND token = ?"


def heartbeat(connection: apsw.Connection, leases: Sequence[Lease], now: float | None) -> list[Lease]:
    lost = []
    for lease in leases:
        connection.execute(_BEAT, (now, lease.job_id, lease.token))
        if connection.changes() == 0:
            lost.append(lease)
    return lost


_CONTENTS: Final = sorted(of_job(OfJob.contents))
"""Kinds of documents that leave with a job's contents."""
_UNDER_ITS_ID: Final = sorted(of_job(OfJob.contents, OfJob.key))
"""Kinds of documents that an erased job takes along, under its id."""
_NAMING_IT: Final = sorted(of_job(OfJob.field))
"""Kinds of documents that an erased job takes along since they name it."""
_UNWRITTEN: Final = sorted((name, field) for name, erasure in ERASURES.items() for field in erasure.unwritten)
"""Fields with a job's words that older versions have written."""
_SHORTEN_OLD_MESSAGES: Final = (
    "UPDATE docs SET value = CAST(json_set(CAST(value AS TEXT), '$.text', ?1) AS BLOB) WHERE kind = 'notice'"
    " AND json_valid(CAST(value AS TEXT)) AND json_extract(CAST(value AS TEXT), '$.kind') IN ('page', 'morning')"
    " AND json_extract(CAST(value AS TEXT), '$.quotes') IS NULL AND json_extract(CAST(value AS TEXT), '$.text') <> ?1"
)
"""Waiting messages about many jobs, as older versions wrote them: with the words of the jobs instead of quotes."""
_PRUNE_BATCH: Final = 2_000


_ENDED_BEFORE: Final = (
    "SELECT DISTINCT jobs.id, jobs.updated_at FROM moves"
    " JOIN jobs ON jobs.seq = moves.job JOIN routes ON routes.id = jobs.route"
    " WHERE moves.seq < coalesce((SELECT seq FROM moves WHERE at >= ?1 ORDER BY seq LIMIT 1), 9e18)"
    " AND jobs.state IN ('done', 'discarded') AND jobs.updated_at < ?1 AND jobs.payload IS NOT NULL"
)
_EMPTIED: Final = "payload IS NULL AND state IN ('done', 'discarded', 'purged')"


def choose_old(
    connection: apsw.Connection,
    now: float,
    retention: Mapping[str, float],
    default: float,
    keys: float | None,
) -> Forget:
    """Name what may go: the contents of jobs that ended long enough ago, and keys where they have a time, too."""
    special = _json(list(retention)).decode()
    sql = f"{_ENDED_BEFORE} AND routes.queue NOT IN (SELECT value FROM json_each(?2)) LIMIT {_PRUNE_BATCH}"
    old = select(connection, sql, (now - default, special))
    for queue, kept in retention.items():
        old += select(connection, f"{_ENDED_BEFORE} AND routes.queue = ?2 LIMIT {_PRUNE_BATCH}", (now - kept, queue))
    forgotten = _choose_keys(connection, now - keys, old) if keys is not None else []
    return Forget(tuple(id for id, _ in old), tuple(forgotten), oldest_minute(now))


def _choose_keys(connection: apsw.Connection, before: float, old: Sequence[Row]) -> list[str]:
    """Jobs that are emptied, or will be now, and ended before that time."""
    emptied = select(
        connection,
        f"SELECT id FROM jobs WHERE {_EMPTIED} AND updated_at < ? AND seq < (SELECT max(seq) FROM jobs)"
        " ORDER BY seq LIMIT ?",
        (before, _PRUNE_BATCH),
    )
    found = [id for (id,) in emptied] + [id for id, ended_at in old if ended_at < before]
    return found[:_PRUNE_BATCH]


def forget(connection: apsw.Connection, command: Forget) -> Pruned:
    """Drop the contents of the named jobs as far as they have ended. Dead letters, live jobs and other keys stay."""
    chosen = f"SELECT seq, id FROM jobs WHERE {IN_LIST} AND state IN ('done', 'discarded') AND payload IS NOT NULL"
    old = select(connection, f"{chosen} ORDER BY seq", (listed(command.ids),)) if command.ids else []
    _forget(connection, old)
    forget_minutes(connection, command.minutes_before)
    return Pruned(len(old), _drop_moves(connection, old), _forget_keys(connection, command.keys) if command.keys else 0)


def _forget_keys(connection: apsw.Connection, ids: Sequence[str]) -> int:
    """Ended and emptied long ago: only the number stays. So do the newest job and the newest move, lest their numbers
    be given again: whoever reads the feed would take what comes next for what it has seen."""
    chosen = f"SELECT seq, route, state FROM jobs WHERE {IN_LIST} AND {_EMPTIED}"
    newest = "seq < (SELECT max(seq) FROM jobs)"
    rows = select(connection, f"{chosen} AND {newest} ORDER BY seq", (listed(ids),))
    tally = Tally()
    for seq, route, state in rows:
        connection.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
        connection.execute("DELETE FROM moves WHERE job = ? AND seq < (SELECT max(seq) FROM moves)", (seq,))
        tally.move(route, state, route, "forgotten")
    tally.write(connection)
    return len(rows)


def erase(connection: apsw.Connection, ids: Sequence[str]) -> int:
    """Forget the contents for privacy: overwritten in the file, not only unlinked."""
    rows = [
        (row[0], id)
        for id in ids
        for row in connection.execute(
            "SELECT seq FROM jobs WHERE id = ? AND state IN ('done', 'dead', 'discarded', 'purged')", (id,)
        )
    ]
    for seq, _ in rows:
        connection.execute(
            "UPDATE jobs SET error = NULL, session_id = NULL, changes_json = NULL, options_json = NULL,"
            " recommendation = NULL, held_for = NULL, owner = NULL WHERE seq = ?",
            (seq,),
        )
        connection.execute("UPDATE moves SET why = NULL WHERE job = ? AND why IS NOT ?", (seq, ERASED))
    connection.executemany("UPDATE groups SET error = NULL WHERE sample = ?", [(id,) for _, id in rows])
    _forget(connection, rows, _UNDER_ITS_ID)
    _forget_what_names(connection, [id for _, id in rows])
    return len(rows)


def _forget_what_names(connection: apsw.Connection, ids: Sequence[str]) -> None:
    """Drop the documents that name these jobs, and the words of jobs that older versions wrote beside others."""
    for kind in _NAMING_IT:
        connection.execute(
            "DELETE FROM docs WHERE kind = ?1 AND json_valid(CAST(value AS TEXT))"
            " AND json_extract(CAST(value AS TEXT), '$.job_id') IN (SELECT value FROM json_each(?2))",
            (kind, _json(ids).decode()),
        )
    for kind, field in _UNWRITTEN:
        connection.execute(
            "UPDATE docs SET value = CAST(json_remove(CAST(value AS TEXT), ?2) AS BLOB) WHERE kind = ?1"
            " AND json_valid(CAST(value AS TEXT)) AND json_extract(CAST(value AS TEXT), ?2) IS NOT NULL",
            (kind, f"$.{field}"),
        )
    connection.execute(_SHORTEN_OLD_MESSAGES, (LOOK_THERE,))


def empty_log(connection: apsw.Connection) -> bool:
    """Overwrite the log, too; False where somebody reads. While we wait nobody else can checkpoint: a short try."""
    connection.set_busy_timeout(CHECKPOINT_BUSY_MS)
    try:
        return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0] == 0)
    except apsw.BusyError:
        return False
    finally:
        connection.set_busy_timeout(BUSY_MS)


def _forget(connection: apsw.Connection, jobs: Sequence[Row], kinds: Sequence[str] = _CONTENTS) -> None:
    """Empty the records: what is left says that there was a job, where it went, and who moved it and why."""
    for seq, id in jobs:
        connection.execute("UPDATE jobs SET payload = NULL, result = NULL WHERE seq = ?", (seq,))
        connection.execute(
            "UPDATE moves SET attempt = NULL, why = CASE WHEN who IS NULL THEN NULL ELSE why END WHERE job = ?", (seq,)
        )
        for kind in kinds:
            connection.execute("DELETE FROM docs WHERE kind = ? AND key >= ? AND key < ?", (kind, id, id + "0"))


def _drop_moves(connection: apsw.Connection, jobs: Sequence[Row]) -> int:
    """The feed of long ago. What somebody did stays, and the newest move, so that its number is not given again."""
    before = connection.total_changes()
    connection.executemany(
        "DELETE FROM moves WHERE job = ? AND who IS NULL AND seq < (SELECT max(seq) FROM moves)",
        [(seq,) for seq, _ in jobs],
    )
    return connection.total_changes() - before


def repair(connection: apsw.Connection, now: float) -> list[str]:
    """Counters from the records, days from the hours; what a clock that has since gone back stamped keeps its delay."""
    said = []
    before = connection.execute(reads.COUNTERS).fetchall()
    connection.execute(schema.recount())
    wrong = len(set(connection.execute(reads.COUNTERS).fetchall()) - set(before))
    if wrong:
        said.append(f"counters of {wrong} routes were wrong and have been recounted")
    if days := spans.add_up(connection):
        said.append(f"sums of {spans.in_words(days)} were wrong and have been added up anew")
    shifted = unstick(connection, now)
    if shifted:
        said.append(f"{shifted} waiting jobs were stamped in the future and have been moved to now")
    return said


def unstick(connection: apsw.Connection, now: float, slack: float = 5.0) -> int:
    """A job written by a clock that was ahead keeps the delay it was meant to have, counted from now."""
    connection.execute(
        "UPDATE jobs SET run_at = ? + max(0, run_at - updated_at), updated_at = ?, version = version + 1"
        " WHERE state = 'waiting' AND updated_at > ?",
        (now, now, now + slack),
    )
    return connection.changes()
