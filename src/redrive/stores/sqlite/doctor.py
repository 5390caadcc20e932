"""Looks at a database file without changing it: the checks of `redrive doctor`, the query of `redrive sql`."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import apsw
import apsw.ext
import msgspec

from redrive.core.job import State
from redrive.errors import InvalidInput
from redrive.stores.sqlite import claims, rollups, schema
from redrive.stores.sqlite.connection import NETWORK, explain_refusal, find_filesystem, open_reader, translate
from redrive.stores.sqlite.records import RouteCache, select
from redrive.stores.sqlite.search import COUNTERS

WAL_RESET_FIX: Final = (3, 51, 3)
BACKPORTS: Final = {(3, 44): 6, (3, 50): 7}
"""Older lines that got the fix, from this patch number on."""
WAL_LIMIT: Final = 64 * 1024 * 1024
LEAST_FREE: Final = 256 * 1024 * 1024


class FileCheck(msgspec.Struct, frozen=True):
    """The outcome of one check."""

    name: str
    ok: bool
    said: str
    hint: str = ""
    fixable: bool = False
    """`repair` puts it right."""


def examine(path: Path, *, full: bool = False) -> list[FileCheck]:
    """Make every check, from the outside in; the inner ones only where the file is a database of ours."""
    if path.is_dir():
        return [_unreadable(apsw.CantOpenError(), path)]
    checks = [
        check_library(apsw.sqlite_lib_version()),
        check_mode(path),
        check_filesystem(path),
        check_log_size(path),
        check_free_space(path),
    ]
    try:
        connection = open_reader(path)
    except apsw.Error as error:
        return [*checks, _unreadable(error, path)]
    try:
        return checks + list(_check_inside(connection, path, full=full))
    finally:
        connection.close()


def check_library(version: str) -> FileCheck:
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    backported = BACKPORTS.get((major, minor))
    if (major, minor, patch) >= WAL_RESET_FIX or (backported is not None and patch >= backported):
        return FileCheck("sqlite", True, f"SQLite {version}, with the fix for resetting the log")
    return FileCheck(
        "sqlite",
        False,
        f"SQLite {version} can corrupt a database when two connections reset its log at once",
        "upgrade apsw: pip install -U apsw",
    )


def check_mode(path: Path) -> FileCheck:
    bits = stat.S_IMODE(path.stat().st_mode)
    if bits & 0o077:
        return FileCheck("file mode", False, f"{bits:04o}: others can read or write the jobs", f"chmod 600 {path}")
    return FileCheck("file mode", True, f"{bits:04o}, private to its owner")


def check_filesystem(path: Path) -> FileCheck:
    kind = find_filesystem(path.parent.resolve())
    if kind in NETWORK:
        return FileCheck("filesystem", False, f"{kind} is a network filesystem", "move the database to a local disk")
    return FileCheck("filesystem", True, kind or "unknown, not known to be a network filesystem")


def check_log_size(path: Path) -> FileCheck:
    log = path.with_name(path.name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    state = f"the log holds {size:,} bytes"
    return FileCheck(
        "log", size <= WAL_LIMIT, state, "" if size <= WAL_LIMIT else "end what reads the file for very long"
    )


def check_free_space(path: Path) -> FileCheck:
    free = shutil.disk_usage(path.parent).free
    problem = f"{free // (1024 * 1024):,} MiB free"
    return FileCheck("disk", free >= LEAST_FREE, problem, "" if free >= LEAST_FREE else "free some space on this disk")


def _check_inside(connection: apsw.Connection, path: Path, *, full: bool) -> Iterator[FileCheck]:
    """Check schema, integrity, counters, sums and records; ends at the first that is wrong."""
    looks: list[Callable[[apsw.Connection], FileCheck]] = [
        _check_schema,
        lambda c: _check_integrity(c, full=full),
        _check_counters,
        _check_sums,
    ]
    looks += [_check_records] if full else []
    for look in looks:
        try:
            check = look(connection)
        except apsw.Error as error:
            check = _unreadable(error, path)
        yield check
        if not check.ok:
            return


def _unreadable(error: apsw.Error, path: Path) -> FileCheck:
    if why := explain_refusal(path):
        return FileCheck("database", False, *why)
    return FileCheck(
        "database", False, f"cannot be read: {error}", "restore a backup, or choose another file with --url"
    )


def _check_schema(connection: apsw.Connection) -> FileCheck:
    number, newest = schema.read_schema_number(connection), len(schema.read_steps())
    if connection.pragma("application_id") != schema.APPLICATION_ID:
        return FileCheck("schema", False, "this is not a database of redrive", "choose another file with --url")
    if number > newest:
        problem = f"schema {number} is newer than this redrive knows ({newest})"
        return FileCheck("schema", False, problem, "upgrade redrive, the way it was installed")
    later = "" if number == newest else f"; the next use brings it to {newest}"
    return FileCheck("schema", True, f"number {number}{later}")


def _check_integrity(connection: apsw.Connection, *, full: bool) -> FileCheck:
    pragma = "integrity_check" if full else "quick_check"
    problems = [str(row[0]) for row in connection.execute(f"PRAGMA {pragma}(10)")]
    if problems == ["ok"]:
        return FileCheck("integrity", True, f"{pragma} found nothing wrong")
    problem = f"{pragma}: {'; '.join(problems)}"
    return FileCheck("integrity", False, problem, "stop the workers and restore a backup (redrive backup makes them)")


def _check_counters(connection: apsw.Connection) -> FileCheck:
    """Compare the counters of every route with its jobs, both from one snapshot."""
    with _snapshot(connection):
        kept = {row[0]: row[1:] for row in connection.execute(COUNTERS)}
        counted = {id: [0] * len(State) for id in kept}
        order = [str(state) for state in State]
        for route, state, number in connection.execute("SELECT route, state, count(*) FROM jobs GROUP BY route, state"):
            counted[route][order.index(state)] = number
    wrong = sum(tuple(counted[id]) != tuple(numbers) for id, numbers in kept.items())
    if wrong:
        problem = f"the counters of {wrong} of {len(kept)} routes differ from their jobs"
        return FileCheck("counters", False, problem, "redrive doctor --fix counts anew", fixable=True)
    return FileCheck("counters", True, f"{len(kept)} routes, as many jobs as counted")


def _check_sums(connection: apsw.Connection) -> FileCheck:
    """Compare the days, which reports over months read, with the hours they were added up from."""
    if schema.read_schema_number(connection) < len(schema.read_steps()):
        return FileCheck("sums", True, "the next use adds them up")
    wrong = rollups.count_wrong_days(connection)
    if wrong:
        problem = f"{rollups.say_days(wrong)} with sums that differ from the hours"
        return FileCheck("sums", False, problem, "redrive doctor --fix adds up", fixable=True)
    return FileCheck("sums", True, "the days say what their hours say")


def _check_records(connection: apsw.Connection) -> FileCheck:
    """Read every job that has not ended: texts can be damaged where SQLite finds nothing wrong."""
    if schema.read_schema_number(connection) < len(schema.read_steps()):
        return FileCheck("records", True, "the next use brings them to the newest schema: look again then")
    damaged = _find_damaged(connection)
    if damaged:
        problems = "; ".join(f"{id}: {problem}" for id, problem in damaged[:10])
        hint = "run redrive cancel ID (discard ID where it is a dead letter) for each, or restore a backup"
        return FileCheck("records", False, f"{len(damaged)} cannot be read: {problems}", hint)
    return FileCheck("records", True, "every job that has not ended can be read")


_UNENDED: Final = (
    "SELECT seq FROM jobs WHERE state IN ('waiting', 'running', 'held', 'dead') AND seq > ? ORDER BY seq LIMIT 500"
)


def _find_damaged(connection: apsw.Connection) -> list[tuple[str, Exception]]:
    """Find the jobs that have not ended and that no claim could read: their ids and why."""
    damaged: list[tuple[str, Exception]] = []
    routes, after = RouteCache(), -1
    while seqs := [seq for (seq,) in select(connection, _UNENDED, (after,))]:
        after = seqs[-1]
        damaged += claims.find_damaged(connection, routes, seqs).values()
    return damaged


# -- one query of a person, on a read-only snapshot. For a process of its own: a long read would keep the log of a store
# -- that is open in the same process from being emptied

SECONDS: Final = 10.0
ROWS: Final = 10_000
_STEPS: Final = 10_000
"""Instructions of SQLite between two looks at the clock."""
_READING: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE})
_PRAGMAS: Final = frozenset({"table_list", "table_info", "table_xinfo", "index_list", "index_info", "index_xinfo"})
"""Pragmas that describe tables and columns; all others could change something."""

Cell = str | bytes | int | float | None


class QueryResult(msgspec.Struct, frozen=True):
    """The rows of one query."""

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    more: bool
    """Whether there are more rows than these."""


def query(path: Path, sql: str, *, seconds: float = SECONDS, rows: int = ROWS) -> QueryResult:
    """Run one SELECT and return its first rows. Raises InvalidInput for any statement that does more than read."""
    try:
        with closing(open_reader(path)) as connection:
            schema.check_ours(connection, str(path))
            connection.set_busy_timeout(int(seconds * 1000))
            with _snapshot(connection), _limited(connection, seconds):
                return _select(connection, sql, rows)
    except apsw.AuthError:
        raise InvalidInput(field="sql", problem="only reads: give one SELECT (or WITH ... SELECT)") from None
    except apsw.InterruptError:
        raise InvalidInput(
            field="sql", problem=f"was stopped after {seconds:g} s: ask for less, or ask a copy (redrive backup)"
        ) from None
    except apsw.SQLError as error:
        raise InvalidInput(field="sql", problem=f"SQLite does not understand it: {error}") from None
    except apsw.Error as error:
        raise translate(error, str(path)) from error


def _select(connection: apsw.Connection, sql: str, most: int) -> QueryResult:
    info = apsw.ext.query_info(connection, sql)
    if (info.query_remaining or "").strip():
        raise InvalidInput(field="sql", problem="holds several statements: give one")
    if not info.is_readonly or not info.description:
        raise apsw.AuthError
    rows = list(islice(connection.execute(sql), most + 1))
    return QueryResult(tuple(column[0] for column in info.description), rows[:most], len(rows) > most)


@contextmanager
def _snapshot(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def _limited(connection: apsw.Connection, seconds: float) -> Iterator[None]:
    """Let statements only read, and interrupt them when their time is over."""
    end = time.monotonic() + seconds
    connection.authorizer = _authorize
    connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    try:
        yield
    finally:
        connection.authorizer = None
        connection.set_progress_handler(None)


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    reads = action in _READING or (action == apsw.SQLITE_PRAGMA and first in _PRAGMAS)
    return apsw.SQLITE_OK if reads else apsw.SQLITE_DENY
