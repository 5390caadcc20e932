"""Runs one SELECT of a person on a read-only snapshot: what `redrive sql` shows.

For a process of its own: the connection is apsw's, so it shares the locks of a store that is open in the same process,
but a long read would keep that store's log from being emptied.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import apsw
import apsw.ext
import msgspec

from redrive.errors import InvalidInput
from redrive.stores.sqlite import schema
from redrive.stores.sqlite.connection import open_reader, translate

SECONDS: Final = 10.0
ROWS: Final = 10_000
_STEPS: Final = 10_000
"""Instructions of SQLite between two looks at the clock."""
_READING: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE})
_PRAGMAS: Final = frozenset({"table_list", "table_info", "table_xinfo", "index_list", "index_info", "index_xinfo"})
"""What tells of tables and columns; all others could change something."""

Cell = str | bytes | int | float | None


class Answer(msgspec.Struct, frozen=True):
    """The rows of one query."""

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    more: bool
    """Whether there are more rows than these."""


def query(path: Path, sql: str, *, seconds: float = SECONDS, rows: int = ROWS) -> Answer:
    """Runs one SELECT and returns its first rows. Raises InvalidInput for anything that does more than read."""
    try:
        with closing(open_reader(path)) as connection:
            schema.check_ours(connection, str(path))
            connection.set_busy_timeout(int(seconds * 1000))
            with _snapshot(connection), _limited(connection, seconds):
                return _answer(connection, sql, rows)
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


def _answer(connection: apsw.Connection, sql: str, most: int) -> Answer:
    info = apsw.ext.query_info(connection, sql)
    if (info.query_remaining or "").strip():
        raise InvalidInput(field="sql", problem="holds several statements: give one")
    if not info.is_readonly or not info.description:
        raise apsw.AuthError
    found = list(islice(connection.execute(sql), most + 1))
    return Answer(tuple(column[0] for column in info.description), found[:most], len(found) > most)


@contextmanager
def _snapshot(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def _limited(connection: apsw.Connection, seconds: float) -> Iterator[None]:
    """Within it statements may only read, and are interrupted when their time is over."""
    end = time.monotonic() + seconds
    connection.authorizer = _may
    connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    try:
        yield
    finally:
        connection.authorizer = None
        connection.set_progress_handler(None)


def _may(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    reads = action in _READING or (action == apsw.SQLITE_PRAGMA and first in _PRAGMAS)
    return apsw.SQLITE_OK if reads else apsw.SQLITE_DENY
