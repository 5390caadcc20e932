"""Keeps the file in order: forgets old contents, erases, repairs counters, sums and times, copies the file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import apsw

from redrive.core.commands import Forget
from redrive.core.documents import ERASURES, OfJob, of_job
from redrive.core.lifecycle import ERASED
from redrive.core.notice import LOOK_THERE
from redrive.core.store import Pruned
from redrive.errors import InvalidInput
from redrive.stores.sqlite import rollups, schema
from redrive.stores.sqlite.commits import CounterChanges, forget_contents
from redrive.stores.sqlite.connection import BUSY_MS, CHECKPOINT_BUSY_MS
from redrive.stores.sqlite.records import IN_LIST, Row, select, to_json
from redrive.stores.sqlite.search import COUNTERS

_UNDER_ITS_ID: Final = sorted(of_job(OfJob.contents, OfJob.key))
"""Kinds of documents under the id of a job that are erased with the job."""
_NAMING_IT: Final = sorted(of_job(OfJob.field))
"""Kinds of documents that name a job and are erased with the job."""
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
    connection: apsw.Connection, now: float, retention: Mapping[str, float], default: float, keys: float | None
) -> Forget:
    """Choose jobs that ended long enough ago for their contents, and for their keys where `keys` is set."""
    special = to_json(list(retention))
    sql = f"{_ENDED_BEFORE} AND routes.queue NOT IN (SELECT value FROM json_each(?2)) LIMIT {_PRUNE_BATCH}"
    old = select(connection, sql, (now - default, special))
    for queue, kept in retention.items():
        old += select(connection, f"{_ENDED_BEFORE} AND routes.queue = ?2 LIMIT {_PRUNE_BATCH}", (now - kept, queue))
    forgotten = _choose_keys(connection, now - keys, old) if keys is not None else []
    return Forget(tuple(id for id, _ in old), tuple(forgotten), int(now - rollups.DAY) // rollups.MINUTE)


def _choose_keys(connection: apsw.Connection, before: float, old: Sequence[Row]) -> list[str]:
    """Choose jobs that are emptied, or will be now, and ended before that time."""
    emptied = select(
        connection,
        f"SELECT id FROM jobs WHERE {_EMPTIED} AND updated_at < ? AND seq < (SELECT max(seq) FROM jobs)"
        " ORDER BY seq LIMIT ?",
        (before, _PRUNE_BATCH),
    )
    chosen = [id for (id,) in emptied] + [id for id, ended_at in old if ended_at < before]
    return chosen[:_PRUNE_BATCH]


def forget(connection: apsw.Connection, command: Forget) -> Pruned:
    """Drop the contents of the named jobs as far as they have ended. Dead letters, live jobs and other keys stay."""
    chosen = f"SELECT seq, id FROM jobs WHERE {IN_LIST} AND state IN ('done', 'discarded') AND payload IS NOT NULL"
    old = select(connection, f"{chosen} ORDER BY seq", (to_json(command.ids),)) if command.ids else []
    forget_contents(connection, old)
    rollups.close_minutes(connection, command.minutes_before)
    connection.execute("DELETE FROM minutes WHERE minute < ?", (command.minutes_before,))
    return Pruned(len(old), _drop_moves(connection, old), _forget_keys(connection, command.keys) if command.keys else 0)


def _forget_keys(connection: apsw.Connection, ids: Sequence[str]) -> int:
    """Delete emptied jobs but the newest, and their moves but the newest: their numbers must not be given again."""
    chosen = f"SELECT seq, route, state FROM jobs WHERE {IN_LIST} AND {_EMPTIED}"
    newest = "seq < (SELECT max(seq) FROM jobs)"
    rows = select(connection, f"{chosen} AND {newest} ORDER BY seq", (to_json(ids),))
    counters = CounterChanges()
    for seq, route, state in rows:
        connection.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
        connection.execute("DELETE FROM moves WHERE job = ? AND seq < (SELECT max(seq) FROM moves)", (seq,))
        counters.move(route, state, route, "forgotten")
    counters.write(connection)
    return len(rows)


def erase(connection: apsw.Connection, ids: Sequence[str]) -> int:
    """Forget contents for privacy. The writer's `secure_delete` overwrites them in the file."""
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
    forget_contents(connection, rows, _UNDER_ITS_ID)
    _forget_documents(connection, [id for _, id in rows])
    return len(rows)


def _forget_documents(connection: apsw.Connection, ids: Sequence[str]) -> None:
    """Drop the documents that name these jobs, and the words of jobs that older versions wrote beside others."""
    for kind in _NAMING_IT:
        connection.execute(
            "DELETE FROM docs WHERE kind = ?1 AND json_valid(CAST(value AS TEXT))"
            " AND json_extract(CAST(value AS TEXT), '$.job_id') IN (SELECT value FROM json_each(?2))",
            (kind, to_json(ids)),
        )
    for kind, field in _UNWRITTEN:
        connection.execute(
            "UPDATE docs SET value = CAST(json_remove(CAST(value AS TEXT), ?2) AS BLOB) WHERE kind = ?1"
            " AND json_valid(CAST(value AS TEXT)) AND json_extract(CAST(value AS TEXT), ?2) IS NOT NULL",
            (kind, f"$.{field}"),
        )
    connection.execute(_SHORTEN_OLD_MESSAGES, (LOOK_THERE,))


def empty_log(connection: apsw.Connection) -> bool:
    """Empty the log, which still has what was erased; False where a reader holds it. Waits only briefly."""
    connection.set_busy_timeout(CHECKPOINT_BUSY_MS)
    try:
        return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0] == 0)
    except apsw.BusyError:
        return False
    finally:
        connection.set_busy_timeout(BUSY_MS)


def _drop_moves(connection: apsw.Connection, jobs: Sequence[Row]) -> int:
    """Drop the moves of these jobs, except those of people and the newest, so that its number is not given again."""
    before = connection.total_changes()
    connection.executemany(
        "DELETE FROM moves WHERE job = ? AND who IS NULL AND seq < (SELECT max(seq) FROM moves)",
        [(seq,) for seq, _ in jobs],
    )
    return connection.total_changes() - before


def repair(connection: apsw.Connection, now: float) -> list[str]:
    """Recount the counters from the records and the days from their hours; returns in words what was wrong."""
    repaired = []
    before = connection.execute(COUNTERS).fetchall()
    connection.execute(schema.make_recount())
    if wrong := len(set(connection.execute(COUNTERS).fetchall()) - set(before)):
        repaired.append(f"counters of {wrong} routes were wrong and have been recounted")
    if days := rollups.add_up(connection):
        repaired.append(f"sums of {rollups.say_days(days)} were wrong and have been added up anew")
    if shifted := unstick(connection, now):
        repaired.append(f"{shifted} waiting jobs were stamped in the future and have been moved to now")
    return repaired


def unstick(connection: apsw.Connection, now: float, slack: float = 5.0) -> int:
    """Give jobs that a clock ahead of ours stamped their delay again, counted from now."""
    connection.execute(
        "UPDATE jobs SET run_at = ? + max(0, run_at - updated_at), updated_at = ?, version = version + 1"
        " WHERE state = 'waiting' AND updated_at > ?",
        (now, now, now + slack),
    )
    return connection.changes()


def refuse_unfit_target(target: Path) -> None:
    """Refuse a file that exists, or whose folder does not, as the target of a backup."""
    if target.exists():
        raise InvalidInput(field="target", problem=f"{target} exists already; choose a new file")
    if not target.parent.is_dir():
        raise InvalidInput(field="target", problem=f"the folder {target.parent} does not exist")


def backup(connection: apsw.Connection, target: Path) -> int:
    """Copy the file by SQLite's online backup into a new private file, from one snapshot: writers do not restart it."""
    refuse_unfit_target(target)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    copy = apsw.Connection(str(target))
    connection.execute("SELECT 1 FROM sqlite_schema").fetchall()  # the snapshot begins here
    with copy.backup("main", connection, "main") as running:
        while not running.done:
            running.step(1_000)
    copy.close()
    return target.stat().st_size
