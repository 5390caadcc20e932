"""The table rd_inbox, in which callers leave jobs inside their own transactions, and the statements that write into it.

Pure: statements are values, which the store's inbox runs on the caller's connection.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from redrive.errors import InvalidInput, InvalidOption

Dialect = Literal["postgresql", "sqlite"]
TABLE: Final = "rd_inbox"
NAMESPACE: Final = "default"
_DDL: Final[Mapping[Dialect, str]] = {
    "postgresql": (
        "CREATE TABLE IF NOT EXISTS rd_inbox ("
        "id uuid PRIMARY KEY, "
        "namespace text NOT NULL, "
        "payload text NOT NULL, "
        "created_at timestamptz NOT NULL DEFAULT now(), "
        "problem text)"
    ),
    "sqlite": (
        "CREATE TABLE IF NOT EXISTS rd_inbox ("
        "id text PRIMARY KEY, "
        "namespace text NOT NULL, "
        "payload text NOT NULL, "
        "created_at text NOT NULL DEFAULT CURRENT_TIMESTAMP, "
        "problem text)"
    ),
}
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('redrive rd_inbox', 0))"
"""Two transactions that make the table at once would fail one of them."""
_LOOK: Final[Mapping[Dialect, str]] = {
    "postgresql": (
        "SELECT to_regclass('rd_inbox') IS NOT NULL, coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
    ),
    "sqlite": "SELECT count(*) > 0, 1 FROM sqlite_master WHERE type = 'table' AND name = 'rd_inbox'",
}
_INSERT: Final[Mapping[Dialect, str]] = {
    "postgresql": ("INSERT INTO rd_inbox (id, namespace, payload) VALUES (CAST({id} AS uuid), {namespace}, {payload})"),
    "sqlite": "INSERT INTO rd_inbox (id, namespace, payload) VALUES ({id}, {namespace}, {payload})",
}


class Statement(NamedTuple):
    """One statement, with {name} for every value."""

    sql: str
    values: Mapping[str, str] = {}


class InboxRow(NamedTuple):
    """A job as it waits in the table."""

    id: str
    namespace: str
    payload: str


Steps = Generator[Statement, Sequence[Sequence[Any]], None]


def inbox_ddl(dialect: str) -> str:
    """The statement that makes the table rd_inbox, for your migrations: "postgresql" or "sqlite"."""
    return _DDL[check_dialect(dialect)]


def check_dialect(name: str) -> Dialect:
    if name not in get_args(Dialect):
        raise InvalidOption(field="within", problem=f"the inbox lives in PostgreSQL or SQLite, not in {name!r}")
    return cast("Dialect", name)


def make_table(dialect: Dialect) -> Steps:
    """Make the table where it is missing and this user may make it. Changes nothing where it may not."""
    ((exists, allowed),) = yield Statement(_LOOK[dialect])
    if exists:
        return
    if not allowed:
        raise InvalidInput(
            field="within",
            problem=f"the table {TABLE} is missing and this user may not make it; run as its owner: {_DDL[dialect]}",
        )
    if dialect == "postgresql":
        yield Statement(LOCK)
    yield Statement(_DDL[dialect])


def write_rows(dialect: Dialect, rows: Sequence[InboxRow]) -> Steps:
    """Write jobs into the inbox."""
    yield from make_table(dialect)
    for row in rows:
        yield Statement(_INSERT[dialect], row._asdict())
