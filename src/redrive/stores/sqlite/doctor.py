"""A look at a database file without changing anything: what `redrive doctor` tells."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import apsw
import msgspec

from redrive.core.job import State
from redrive.stores.sqlite import reads, schema, spans
from redrive.stores.sqlite.connection import NETWORK, barred, filesystem_of, open_reader
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.unreadable import unreadable

WAL_RESET_FIX: Final = (3, 51, 3)
BACKPORTS: Final = {(3, 44): 6, (3, 50): 7}
"""Older lines that got the fix, from this patch number on."""
WAL_LIMIT: Final = 64 * 1024 * 1024
LEAST_FREE: Final = 256 * 1024 * 1024


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    ok: bool
    said: str
    hint: str = ""
    fixable: bool = False
    """`repair` puts it right."""


def examine(path: Path, *, full: bool = False) -> list[Check]:
    """Every check, from the outside in; the inner ones only where the file is a database of ours."""
    if path.is_dir():
        return [_unreadable(apsw.CantOpenError(), path)]
    checks = [library(apsw.sqlite_lib_version()), mode(path), filesystem(path), log_size(path), free_space(path)]
    try:
        connection = open_reader(path)
    except apsw.Error as error:
        return [*checks, _unreadable(error, path)]
    try:
        return checks + list(_inside(connection, path, full=full))
    finally:
        connection.close()


def library(version: str) -> Check:
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    backported = BACKPORTS.get((major, minor))
    if (major, minor, patch) >= WAL_RESET_FIX or (backported is not None and patch >= backported):
        return Check("sqlite", True, f"SQLite {version}, with the fix for resetting the log")
    return Check(
        "sqlite",
        False,
        f"SQLite {version} can corrupt a database when two connections reset its log at once",
        "upgrade apsw: pip install -U apsw",
    )


def mode(path: Path) -> Check:
    bits = stat.S_IMODE(path.stat().st_mode)
    if bits & 0o077:
        return Check("file mode", False, f"{bits:04o}: others can read or write the jobs", f"chmod 600 {path}")
    return Check("file mode", True, f"{bits:04o}, private to its owner")


def filesystem(path: Path) -> Check:
    kind = filesystem_of(path.parent.resolve())
    if kind in NETWORK:
        return Check("filesystem", False, f"{kind} is a network filesystem", "move the database to a local disk")
    return Check("filesystem", True, kind or "unknown, not known to be a network filesystem")


def log_size(path: Path) -> Check:
    log = path.with_name(path.name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    said = f"the log holds {size:,} bytes"
    return Check("log", size <= WAL_LIMIT, said, "" if size <= WAL_LIMIT else "end what reads the file for very long")


def free_space(path: Path) -> Check:
    free = shutil.disk_usage(path.parent).free
    said = f"{free // (1024 * 1024):,} MiB free"
    return Check("disk", free >= LEAST_FREE, said, "" if free >= LEAST_FREE else "free some space on this disk")


def _inside(connection: apsw.Connection, path: Path, *, full: bool) -> Iterator[Check]:
    """Schema, integrity, counters, sums, records; ends at the first that makes the next ones senseless."""
    looks: list[Callable[[apsw.Connection], Check]] = [_schema, lambda c: _integrity(c, full=full), _counters, _sums]
    looks += [_records] if full else []
    for look in looks:
        try:
            check = look(connection)
        except apsw.Error as error:
            check = _unreadable(error, path)
        yield check
        if not check.ok:
            return


def _unreadable(error: apsw.Error, path: Path) -> Check:
    if why := barred(path):
        return Check("database", False, *why)
    return Check("database", False, f"cannot be read: {error}", "restore a backup, or choose another file with --url")


def _schema(connection: apsw.Connection) -> Check:
    number, newest = reads.schema_number(connection), len(schema.steps())
    if connection.pragma("application_id") != schema.APPLICATION_ID:
        return Check("schema", False, "this is not a database of redrive", "choose another file with --url")
    if number > newest:
        said = f"schema {number} is newer than this redrive knows ({newest})"
        return Check("schema", False, said, "upgrade redrive, the way it was installed")
    later = "" if number == newest else f"; the next use brings it to {newest}"
    return Check("schema", True, f"number {number}{later}")


def _integrity(connection: apsw.Connection, *, full: bool) -> Check:
    pragma = "integrity_check" if full else "quick_check"
    found = [str(row[0]) for row in connection.execute(f"PRAGMA {pragma}(10)")]
    if found == ["ok"]:
        return Check("integrity", True, f"{pragma} found nothing wrong")
    said = f"{pragma}: {'; '.join(found)}"
    return Check("integrity", False, said, "stop the workers and restore a backup (redrive backup makes them)")


def _counters(connection: apsw.Connection) -> Check:
    """The counters of every route against its jobs, both from one snapshot."""
    connection.execute("BEGIN")
    try:
        kept = {row[0]: row[1:] for row in connection.execute(reads.COUNTERS)}
        counted = {id: [0] * len(State) for id in kept}
        order = [str(state) for state in State]
        for route, state, number in connection.execute("SELECT route, state, count(*) FROM jobs GROUP BY route, state"):
            counted[route][order.index(state)] = number
    finally:
        connection.execute("ROLLBACK")
    wrong = sum(tuple(counted[id]) != tuple(numbers) for id, numbers in kept.items())
    if wrong:
        said = f"the counters of {wrong} of {len(kept)} routes differ from their jobs"
        return Check("counters", False, said, "redrive doctor --fix counts anew", fixable=True)
    return Check("counters", True, f"{len(kept)} routes, as many jobs as counted")


def _sums(connection: apsw.Connection) -> Check:
    """What reports over months read, against the hours it was added up from."""
    if reads.schema_number(connection) < len(schema.steps()):
        return Check("sums", True, "the next use adds them up")
    wrong = spans.wrong_days(connection)
    if wrong:
        said = f"{spans.in_words(wrong)} with sums that differ from the hours"
        return Check("sums", False, said, "redrive doctor --fix adds up", fixable=True)
    return Check("sums", True, "the days say what their hours say")


def _records(connection: apsw.Connection) -> Check:
    """Whether every job that has not ended could be run: texts can be damaged where SQLite finds nothing wrong."""
    if reads.schema_number(connection) < len(schema.steps()):
        return Check("records", True, "the next use brings them to the newest schema: look again then")
    found = unreadable(connection, Routes())
    if found:
        said = "; ".join(f"{id}: {problem}" for id, problem in islice(found.items(), 10))
        hint = "redrive cancel ID (discard ID where it is a dead letter) lets go of one, or restore a backup"
        return Check("records", False, f"{len(found)} cannot be read: {said}", hint)
    return Check("records", True, "every job that has not ended can be read")
